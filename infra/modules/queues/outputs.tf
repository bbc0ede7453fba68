output "url_prefix" {
  description = "What the address of every queue starts with."
  value       = trimsuffix(aws_sqs_queue.this["validate"].url, "validate")
}

output "arns" {
  description = "ARNs of the queues, by their name without the deployment's prefix."
  value       = { for key, queue in aws_sqs_queue.this : key => queue.arn }
}
