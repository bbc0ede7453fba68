variable "name" {
  description = "Name of the deployment."
  type        = string
}

variable "account_id" {
  description = "The account that owns the key."
  type        = string
}

variable "partition" {
  description = "The account's partition, such as aws."
  type        = string
}

variable "region" {
  description = "The region that everything runs in."
  type        = string
}

variable "kms_key_arn" {
  description = "A key of yours; null makes one. Its policy must let CloudWatch Logs of this region use it."
  type        = string
  default     = null
}
