variable "name" {
  description = "Name of the deployment; the resources are called <name>-ingest."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,24}$", var.name))
    error_message = "name must start with a letter and have at most 25 lower-case letters, digits and hyphens: a load balancer's name is at most 32 characters long."
  }
}

variable "region" {
  description = "Region of the deployment."
  type        = string
}

variable "environment" {
  description = "Environment of the ingest tasks: the NIGHTSHIFT_* variables of the root module's output environment."
  type        = map(string)
}

variable "image" {
  description = "Container image for arm64, by digest: <repository>@sha256:<64 hex digits>. See infra/images."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9._:/-]*@sha256:[0-9a-f]{64}$", var.image))
    error_message = "image must be a repository with a digest: <repository>@sha256:<64 hex digits>."
  }
}

variable "architecture" {
  description = "CPU architecture of the tasks; the image must have it."
  type        = string
  default     = "arm64"

  validation {
    condition     = contains(["arm64", "x86_64"], var.architecture)
    error_message = "architecture must be arm64 or x86_64."
  }
}

variable "cpu" {
  description = "CPU units of a task; 256 are a quarter of a core."
  type        = number
  default     = 256
}

variable "memory" {
  description = "Memory of a task in MiB."
  type        = number
  default     = 1024
}

variable "desired_count" {
  description = "Tasks that run. Two survive the loss of one, and of a zone."
  type        = number
  default     = 2

  validation {
    condition     = var.desired_count >= 1
    error_message = "desired_count must be at least 1."
  }
}

variable "port" {
  description = "Port on which the router listens in its container."
  type        = number
  default     = 8080
}

variable "vpc_id" {
  description = "VPC of the load balancer and the tasks. It must have an internet gateway, though no route needs to lead to it: CloudFront asks for one."
  type        = string
}

variable "subnet_ids" {
  description = "Subnets of the tasks, in two zones or more: output worker_subnet_ids of the module network."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) >= 2
    error_message = "subnet_ids must have subnets in two zones or more."
  }
}

variable "balancer_subnet_ids" {
  description = "Private subnets of the load balancer, in two zones or more: output private_subnet_ids of the module network. None: the subnets of the tasks. CloudFront reaches private subnets alone."
  type        = list(string)
  default     = []
}

variable "assign_public_ip" {
  description = "Gives tasks public addresses: true in the network's mode public_egress, where there is no other way out."
  type        = bool
  default     = false
}

variable "api_domain_name" {
  description = "Host of the REST API: <id>.execute-api.<region>.amazonaws.com."
  type        = string
}

variable "api_origin_path" {
  description = "Path that CloudFront puts in front of a viewer's on the way to the REST API. None, as the API's stage is itself called v1."
  type        = string
  default     = ""
}

variable "table_arn" {
  description = "ARN of the records table."
  type        = string
}

variable "bucket_arn" {
  description = "ARN of the bucket."
  type        = string
}

variable "send_queue_arns" {
  description = "ARNs of the queues that the API sends to: assemble, finalize, validate."
  type        = list(string)
}

variable "kms_key_arn" {
  description = "ARN of the deployment's key. Its policy must let CloudWatch Logs use it."
  type        = string
}

variable "imports" {
  description = "Where batches may read input from: locations as s3://bucket/prefix/, and the keys that encrypt them. The tasks learn of the locations by NIGHTSHIFT_IMPORTS in environment."
  type = object({
    locations    = optional(list(string), [])
    kms_key_arns = optional(list(string), [])
  })
  default = {}

  validation {
    condition     = alltrue([for location in var.imports.locations : can(regex("^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/([^*?$]+/)?$", location))])
    error_message = "imports.locations must be s3://bucket/ or s3://bucket/prefix/, end with a slash and have no wildcards."
  }
}

variable "certificate_arn" {
  description = "Certificate of the load balancer, for TLS between CloudFront and it as well. Needs origin_domain_name."
  type        = string
  default     = null

  validation {
    condition     = (var.certificate_arn == null) == (var.origin_domain_name == null)
    error_message = "certificate_arn and origin_domain_name go together."
  }
}

variable "origin_domain_name" {
  description = "Host that the certificate is for; CloudFront checks it. It need not resolve."
  type        = string
  default     = null
}

variable "aliases" {
  description = "Own host names of the distribution; the DNS records are the operator's. Need viewer_certificate_arn."
  type        = list(string)
  default     = []
}

variable "viewer_certificate_arn" {
  description = "Certificate for aliases, in us-east-1. Without one the distribution has its cloudfront.net name alone."
  type        = string
  default     = null

  validation {
    condition     = (length(var.aliases) > 0) == (var.viewer_certificate_arn != null)
    error_message = "aliases and viewer_certificate_arn go together."
  }
}

variable "web_acl_arn" {
  description = "WAF web ACL of the distribution (scope CLOUDFRONT, in us-east-1)."
  type        = string
  default     = null
}

variable "access_logs_bucket" {
  description = "Bucket for the load balancer's access logs; its policy must admit the service. None: no access logs."
  type        = string
  default     = null
}

variable "price_class" {
  description = "Price class of the distribution: where its edges are."
  type        = string
  default     = "PriceClass_100"
}

variable "response_timeout_seconds" {
  description = "How long CloudFront waits for the next bytes of an answer. Above 60 the account needs a raised quota."
  type        = number
  default     = 60

  validation {
    condition     = var.response_timeout_seconds >= 1 && var.response_timeout_seconds <= 180
    error_message = "response_timeout_seconds must be from 1 to 180."
  }
}

variable "log_retention_days" {
  description = "How long CloudWatch keeps the tasks' logs."
  type        = number
  default     = 30
}

variable "alarm_topic_arns" {
  description = "SNS topics that hear when no task is healthy."
  type        = list(string)
  default     = []
}

variable "tags" {
  description = "Tags of every resource of the module."
  type        = map(string)
  default     = {}
}
