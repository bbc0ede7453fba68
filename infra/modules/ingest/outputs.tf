output "base_url" {
  description = "Base URL of the whole API, for uploads of any size: base_url of the SDKs."
  value       = "https://${length(var.aliases) > 0 ? var.aliases[0] : aws_cloudfront_distribution.this.domain_name}/v1"
}

output "distribution_id" {
  description = "The CloudFront distribution."
  value       = aws_cloudfront_distribution.this.id
}

output "cluster_name" {
  description = "The ECS cluster of the tasks."
  value       = aws_ecs_cluster.this.name
}

output "log_group_name" {
  description = "Log group of the tasks."
  value       = aws_cloudwatch_log_group.this.name
}

output "role_arn" {
  description = "ARN of the tasks' role."
  value       = aws_iam_role.task.arn
}

output "policy" {
  description = "What the tasks may do, as JSON, for whoever audits it."
  value       = aws_iam_role_policy.task.policy
}
