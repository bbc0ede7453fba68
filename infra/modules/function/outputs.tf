output "name" {
  description = "Name of the function."
  value       = aws_lambda_function.this.function_name
}

output "arn" {
  description = "ARN of the function."
  value       = aws_lambda_function.this.arn
}

output "invoke_arn" {
  description = "ARN by which API Gateway calls the function."
  value       = aws_lambda_function.this.invoke_arn
}

output "size" {
  description = "What an invocation is given: memory and time."
  value = {
    memory_mb       = aws_lambda_function.this.memory_size
    timeout_seconds = aws_lambda_function.this.timeout
  }
}

output "role" {
  description = "Name of the function's role."
  value       = aws_iam_role.this.name
}

output "policies" {
  description = "What the role may do, as JSON."
  value       = concat([aws_iam_role_policy.work.policy, aws_iam_role_policy.keys.policy], aws_iam_role_policy.tracing[*].policy)
}

output "log_group" {
  description = "The function's log group."
  value = {
    name           = aws_cloudwatch_log_group.this.name
    retention_days = aws_cloudwatch_log_group.this.retention_in_days
    kms_key_arn    = aws_cloudwatch_log_group.this.kms_key_id
  }
}
