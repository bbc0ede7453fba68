variable "name" {
  description = "Full name of the function."
  type        = string
}

variable "description" {
  description = "What the function does."
  type        = string
}

variable "artifact" {
  description = "Path of the zip with the file bootstrap."
  type        = string
}

variable "architecture" {
  description = "arm64 or x86_64, as the zip was built."
  type        = string
}

variable "memory_mb" {
  description = "Memory; 1769 MB is one whole vCPU."
  type        = number
}

variable "timeout_seconds" {
  description = "How long one invocation may run."
  type        = number
}

variable "environment" {
  description = "Environment variables."
  type        = map(string)
}

variable "statements" {
  description = "What the role may do beside writing its own log: IAM statements with Sid, Action, Resource and, where needed, Condition."
  type        = any
}

variable "kms_statements" {
  description = "What the role may do with keys. A policy of its own, because a new key's ARN is unknown in a plan and would hide all other statements."
  type        = any
}

variable "log_group_arn" {
  description = "ARN of the function's log group, made from its name."
  type        = string
}

variable "log_retention_days" {
  description = "How long the log is kept."
  type        = number
}

variable "kms_key_arn" {
  description = "ARN of the key that encrypts the log."
  type        = string
}

variable "tracing" {
  description = "Whether X-Ray traces the function."
  type        = bool
}

variable "reserved_concurrency" {
  description = "How many run at once at most, taken from the account's own limit; null takes none away."
  type        = number
  default     = null
}
