variable "table" {
  description = "Name of the table."
  type        = string
}

variable "kms_key_arn" {
  description = "ARN of the key that encrypts the records."
  type        = string
}

variable "deletion_protection" {
  description = "Whether DynamoDB refuses to delete the table."
  type        = bool
}
