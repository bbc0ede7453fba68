variable "bucket" {
  description = "Name of the bucket."
  type        = string
}

variable "bucket_arn" {
  description = "ARN of the bucket, made from its name."
  type        = string
}

variable "kms_key_arn" {
  description = "ARN of the key that encrypts the objects."
  type        = string
}

variable "retention" {
  description = "After how many days S3 itself removes what is left in each folder; null keeps it."
  type = object({
    uploads_days              = number
    work_days                 = number
    files_days                = number
    incomplete_multipart_days = number
  })
}

variable "lifecycle_enabled" {
  description = "Whether the bucket has lifecycle rules."
  type        = bool
}

variable "force_destroy" {
  description = "Whether a destroy empties the bucket first."
  type        = bool
}
