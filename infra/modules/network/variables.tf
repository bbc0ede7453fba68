variable "name" {
  description = "Name of the deployment; the network's resources carry it."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,29}$", var.name))
    error_message = "name must start with a letter and have at most 30 lower-case letters, digits and hyphens."
  }
}

variable "mode" {
  description = <<-EOT
    How the VPC reaches what is outside it. Nothing outside can open a connection into it in any mode.
    - public_egress: public subnets and public addresses, security groups without ingress. Costs nothing at rest.
    - nat: private subnets behind NAT.
    - endpoints: private subnets without a way out; interface endpoints for the AWS services in use.
    - existing: the VPC and subnets of existing.
  EOT
  type        = string
  default     = "public_egress"

  validation {
    condition     = contains(["public_egress", "nat", "endpoints", "existing"], var.mode)
    error_message = "mode must be public_egress, nat, endpoints or existing."
  }
}

variable "region" {
  description = "Region of the deployment."
  type        = string
}

variable "cidr" {
  description = "IPv4 range of the VPC. Not used in mode existing."
  type        = string
  default     = "10.64.0.0/16"

  validation {
    condition     = can(cidrhost(var.cidr, 0)) && try(tonumber(split("/", var.cidr)[1]) >= 16 && tonumber(split("/", var.cidr)[1]) <= 24, false)
    error_message = "cidr must be an IPv4 range from /16 to /24."
  }
}

variable "az_count" {
  description = "Availability zones to use. More zones find more spot capacity."
  type        = number
  default     = 3

  validation {
    condition     = var.az_count >= 2 && var.az_count <= 6
    error_message = "az_count must be from 2 to 6."
  }
}

variable "availability_zones" {
  description = "The zones to use, by name, instead of the region's first az_count: where your GPU types are offered."
  type        = list(string)
  default     = null

  validation {
    condition     = var.availability_zones == null ? true : length(var.availability_zones) >= 2 && length(var.availability_zones) <= 6
    error_message = "availability_zones must name 2 to 6 zones."
  }
}

variable "nat_per_az" {
  description = "In mode nat: one NAT gateway in each zone instead of one in all. Survives the loss of a zone; costs that much more."
  type        = bool
  default     = false
}

variable "internet_gateway" {
  description = "In mode endpoints: attaches an internet gateway that no route leads to. CloudFront asks for one before it makes a VPC origin (module ingest)."
  type        = bool
  default     = false
}

variable "endpoint_services" {
  description = "In mode endpoints: AWS services that get an interface endpoint."
  type        = set(string)
  default     = ["autoscaling", "ecr.api", "ecr.dkr", "kms", "logs", "monitoring", "sqs", "sts"]
}

variable "session_manager_endpoints" {
  description = "In mode endpoints: adds the interface endpoints that Session Manager needs."
  type        = bool
  default     = false
}

variable "secrets_endpoint" {
  description = "In mode endpoints: adds the interface endpoint of Secrets Manager, which workers with secrets read."
  type        = bool
  default     = false
}

variable "flow_logs" {
  description = "Whether to log rejected traffic of the VPC to CloudWatch. Not used in mode existing."
  type = object({
    enabled        = optional(bool, false)
    retention_days = optional(number, 30)
    kms_key_arn    = optional(string)
  })
  default = {}
}

variable "existing" {
  description = "In mode existing: the VPC to use. Workers run in the private subnets; if there are none, in the public ones."
  type = object({
    vpc_id             = string
    private_subnet_ids = optional(list(string), [])
    public_subnet_ids  = optional(list(string), [])
  })
  default = null

  validation {
    condition     = var.mode != "existing" || try(length(concat(var.existing.private_subnet_ids, var.existing.public_subnet_ids)) > 0, false)
    error_message = "existing must name a VPC and at least one subnet when mode is existing."
  }
}

variable "tags" {
  description = "Tags of every resource of the network."
  type        = map(string)
  default     = {}
}
