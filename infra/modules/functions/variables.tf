variable "name" {
  description = "Name of the deployment."
  type        = string
}

variable "arn_prefix" {
  description = "What the ARNs of this partition, region and account are made of."
  type = object({
    partition = string
    region    = string
    account   = string
  })
}

variable "functions" {
  description = "The functions by name: what each one is given."
  type = map(object({
    description     = string
    memory_mb       = number
    timeout_seconds = number
  }))
}

variable "artifacts_dir" {
  description = "Folder with <function>.zip."
  type        = string
}

variable "architecture" {
  description = "arm64 or x86_64, as the zips were built."
  type        = string
}

variable "environment" {
  description = "Environment variables of every function."
  type        = map(string)
}

variable "table_arn" {
  description = "ARN of the records table."
  type        = string
}

variable "bucket_arn" {
  description = "ARN of the bucket."
  type        = string
}

variable "queue_arns" {
  description = "ARNs of the queues, made from their names, by the name without the deployment's prefix."
  type        = map(string)
}

variable "source_arns" {
  description = "The same ARNs as the queues themselves report them, so that triggers wait for their queues."
  type        = map(string)
}

variable "triggers" {
  description = "How SQS calls functions, by the name that queue and function share."
  type = map(object({
    batch_size          = number
    window_seconds      = number
    concurrency_maximum = number
  }))
}

variable "scheduled" {
  description = "Functions that EventBridge calls every minute."
  type        = set(string)
}

variable "kms_key_arn" {
  description = "ARN of the deployment's key."
  type        = string
}

variable "imports" {
  description = "Where batches may read input from: locations as s3://bucket/prefix/, and the keys that encrypt them."
  type = object({
    locations    = list(string)
    kms_key_arns = list(string)
  })
}

variable "log_retention_days" {
  description = "How long logs are kept."
  type        = number
}

variable "tracing" {
  description = "Whether X-Ray traces the functions."
  type        = bool
}

variable "reserved_concurrency" {
  description = "Reserved concurrency by function."
  type        = map(number)
}
