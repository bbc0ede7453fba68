output "dashboard_url" {
  description = "Address of the dashboard; null without one."
  value       = one([for dashboard in aws_cloudwatch_dashboard.this : "https://${var.region}.console.aws.amazon.com/cloudwatch/home?region=${var.region}#dashboards:name=${dashboard.dashboard_name}"])
}
