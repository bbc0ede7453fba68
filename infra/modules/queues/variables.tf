variable "queues" {
  description = "Queues by their name without the deployment's prefix."
  type = map(object({
    name               = string
    arn                = string
    dead_letter_name   = string
    dead_letter_arn    = string
    visibility_seconds = number
    receives_max       = number
  }))
}

variable "kms_key_arn" {
  description = "ARN of the key that encrypts the messages."
  type        = string
}
