# From a dead-letter queue, which is there first: functions, which are told this, need not wait for all queues.
output "url_prefix" {
  description = "What the address of every queue starts with."
  value       = trimsuffix(aws_sqs_queue.dead_letter["validate"].url, "validate-dead")
}

output "arns" {
  description = "ARNs of the queues, by their name without the deployment's prefix."
  value       = { for key, queue in aws_sqs_queue.this : key => queue.arn }
}

output "visibility_seconds" {
  description = "How long each queue hides a message that was received, by its name without the deployment's prefix."
  value       = { for key, queue in aws_sqs_queue.this : key => queue.visibility_timeout_seconds }
}

output "receives_max" {
  description = "How often a message may be received before it is given up, by its queue's name without the deployment's prefix."
  value       = { for key, queue in aws_sqs_queue.this : key => jsondecode(queue.redrive_policy).maxReceiveCount }
}
