output "kms_key_arn" {
  description = "ARN of the key that encrypts everything at rest."
  value       = var.kms_key_arn == null ? one(aws_kms_key.this[*].arn) : var.kms_key_arn
}
