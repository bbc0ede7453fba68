output "group_name" {
  description = "Name of the auto-scaling group."
  value       = aws_autoscaling_group.worker.name
}

output "role_arn" {
  description = "ARN of the workers' role."
  value       = aws_iam_role.worker.arn
}

output "log_group_name" {
  description = "Log group of the workers."
  value       = aws_cloudwatch_log_group.worker.name
}
