variable "name" {
  description = "Name of the deployment."
  type        = string
}

variable "stage" {
  description = "Name of the stage, and first segment of every path."
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
  description = "The functions api and authorizer."
  type = map(object({
    name       = string
    arn        = string
    invoke_arn = string
  }))
}

variable "bucket" {
  description = "Name of the bucket that parts go to."
  type        = string
}

variable "bucket_arn" {
  description = "ARN of the bucket, made from its name."
  type        = string
}

variable "kms_key_arn" {
  description = "ARN of the key that encrypts the bucket and the access log."
  type        = string
}

variable "throttle" {
  description = "Requests a second, and how many at once, that the stage lets through."
  type = object({
    rate  = number
    burst = number
  })
}

variable "waf" {
  description = "Whether a web ACL guards the stage, and how many requests in five minutes one address may make."
  type = object({
    enabled    = bool
    rate_limit = number
  })
}

variable "access_log" {
  description = "Whether requests are logged, and whether to set the account's role for it."
  type = object({
    enabled          = bool
    set_account_role = bool
  })
}

variable "domain" {
  description = "A host of yours and its certificate; null for none."
  type = object({
    name            = string
    certificate_arn = string
  })
}

variable "default_endpoint" {
  description = "Whether the API answers under its execute-api host too."
  type        = bool
}

variable "tracing" {
  description = "Whether X-Ray traces requests."
  type        = bool
}

variable "log_retention_days" {
  description = "How long the access log is kept."
  type        = number
}
