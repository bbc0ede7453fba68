variable "name" {
  description = "Name of the deployment. Every resource of the fleet is called <name>-<profile>..."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,29}$", var.name))
    error_message = "name must start with a letter and have at most 30 lower-case letters, digits and hyphens."
  }
}

variable "profile" {
  description = "Name of this group of like machines: its key in the root module's profiles, and the Profile dimension of the metrics that it scales on."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,19}$", var.profile))
    error_message = "profile must start with a letter and have at most 20 lower-case letters, digits and hyphens."
  }
}

variable "settings" {
  description = <<-EOT
    The profile: one entry of the root module's profiles.
    - models: ids of the models that its workers serve.
    - instance_types: EC2 types that fit, best first when on demand. Four or more keep spot capacity available. Compute types of 16 vCPUs by default, small GPU types with gpu.
    - workers_min, workers_max: bounds of the group. Zero workers at rest is the default.
    - spot, on_demand_base: whether instances above the first on_demand_base are spot instances.
    - gpu: an AMI with NVIDIA's driver, and every GPU of the instance for the container. Off by default: the engine has no CUDA backend yet, and would leave the GPU idle.
    - volume_gb: root volume. With gpu the default AMI needs 75; the image, and models where the type has no instance store, come on top.
    - ami_ssm_parameter: public or own SSM parameter that names the AMI; resolved at each launch. By default Amazon Linux 2023, with gpu its Deep Learning image.
    - image_id: a fixed AMI instead. It must have the AWS CLI, and with gpu Docker and NVIDIA's container toolkit.
    - scale_in_minutes: how long a worker must have been unwanted before the group shrinks.
    - warmup_seconds: from launch to useful work; no instance refresh goes on before that.
    - drain_seconds: what a worker has to commit and stop before its container is killed.
    - arguments: further arguments of nightshift worker, such as --sequences 256.
    - session_manager: lets operators open a shell through SSM. There is no SSH key in any case.
    - secrets: environment variables of the worker, such as API keys of models' servers, by the ARN of the secret in Secrets Manager that holds the value. They are read at each start, and never written to a disk.
  EOT
  type = object({
    models            = list(string)
    instance_types    = optional(list(string))
    workers_min       = optional(number, 0)
    workers_max       = optional(number, 1)
    spot              = optional(bool, true)
    on_demand_base    = optional(number, 0)
    gpu               = optional(bool, false)
    volume_gb         = optional(number, 100)
    ami_ssm_parameter = optional(string)
    image_id          = optional(string)
    scale_in_minutes  = optional(number, 10)
    warmup_seconds    = optional(number, 300)
    drain_seconds     = optional(number, 60)
    arguments         = optional(list(string), [])
    session_manager   = optional(bool, false)
    secrets           = optional(map(string), {})
  })

  validation {
    condition     = length(var.settings.models) > 0
    error_message = "settings.models must name at least one model."
  }

  validation {
    condition     = var.settings.instance_types == null ? true : length(var.settings.instance_types) > 0 && length(var.settings.instance_types) <= 40
    error_message = "settings.instance_types must have 1 to 40 instance types."
  }

  validation {
    condition = (
      var.settings.workers_min >= 0 &&
      var.settings.workers_max >= max(1, var.settings.workers_min) &&
      var.settings.workers_max <= 1000 &&
      floor(var.settings.workers_min) == var.settings.workers_min &&
      floor(var.settings.workers_max) == var.settings.workers_max
    )
    error_message = "settings.workers_min and workers_max must be whole, with 0 <= workers_min <= workers_max and 1 <= workers_max <= 1000."
  }

  validation {
    condition     = var.settings.on_demand_base >= 0 && var.settings.on_demand_base <= var.settings.workers_max
    error_message = "settings.on_demand_base must be from 0 to workers_max."
  }

  validation {
    condition     = var.settings.volume_gb >= 20
    error_message = "settings.volume_gb must be at least 20 (75 with the AMI of gpu)."
  }

  validation {
    condition     = (var.settings.ami_ssm_parameter == null || can(regex("^/", var.settings.ami_ssm_parameter))) && (var.settings.image_id == null || can(regex("^ami-", var.settings.image_id)))
    error_message = "settings.ami_ssm_parameter must be the name of a parameter, and image_id, if set, an AMI's id."
  }

  validation {
    condition     = var.settings.scale_in_minutes >= 1 && var.settings.scale_in_minutes <= 55 && floor(var.settings.scale_in_minutes) == var.settings.scale_in_minutes
    error_message = "settings.scale_in_minutes must be a whole number from 1 to 55: CloudWatch evaluates alarms with longer periods less often than every minute."
  }

  validation {
    condition     = var.settings.drain_seconds >= 10 && var.settings.drain_seconds <= 90
    error_message = "settings.drain_seconds must be from 10 to 90: a spot instance has 120 seconds from the notice to its end."
  }

  validation {
    condition     = alltrue([for argument in var.settings.arguments : can(regex("^[A-Za-z0-9=._-]+$", argument))])
    error_message = "settings.arguments must be plain words, one per element."
  }

  validation {
    condition = alltrue([
      for name, arn in var.settings.secrets : can(regex("^[A-Z_][A-Z0-9_]*$", name)) && !can(regex("^(NIGHTSHIFT|AWS)_", name)) && can(regex("^arn:[a-z0-9-]+:secretsmanager:[a-z0-9-]+:[0-9]{12}:secret:[A-Za-z0-9/_+=.@-]+$", arn))
    ])
    error_message = "settings.secrets must have names of variables in upper case, none of which starts with NIGHTSHIFT_ or AWS_, and ARNs of secrets in Secrets Manager, without wildcards."
  }
}

variable "server_ports" {
  description = "Ports beside 443 that models' servers listen on: the workers may reach them anywhere."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for port in var.server_ports : can(regex("^[0-9]{1,5}$", port)) && tonumber(port) >= 1 && tonumber(port) <= 65535])
    error_message = "server_ports must be from 1 to 65535."
  }
}

variable "environment" {
  description = "Environment of the worker: the NIGHTSHIFT_* variables of the root module's output environment."
  type        = map(string)

  validation {
    condition     = alltrue([for key, value in var.environment : can(regex("^[A-Z][A-Z0-9_]*$", key)) && !strcontains(value, "\n")])
    error_message = "environment must have variable names in upper case, and values of one line."
  }
}

variable "region" {
  description = "Region of the deployment."
  type        = string
}

variable "vpc_id" {
  description = "VPC of the fleet."
  type        = string
}

variable "subnet_ids" {
  description = "Subnets of the fleet, one per availability zone: output worker_subnet_ids of the module network."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) > 0
    error_message = "subnet_ids must have at least one subnet."
  }
}

variable "image" {
  description = "Container image of the worker, by digest: <repository>@sha256:<64 hex digits>. See infra/images."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9._:/-]*@sha256:[0-9a-f]{64}$", var.image))
    error_message = "image must be a repository with a digest: <repository>@sha256:<64 hex digits>. A tag could change under a running fleet."
  }
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
  description = "ARNs of the queues that the workers receive from: fast and bulk of each of their models."
  type        = list(string)
}

variable "send_queue_arns" {
  description = "ARNs of the queues that the workers send to: dispatch and finalize."
  type        = list(string)
}

variable "kms_key_arn" {
  description = "ARN of the deployment's key, which encrypts its table, bucket, queues and logs. Its policy must let CloudWatch Logs use it."
  type        = string
}

variable "weights_locations" {
  description = "Where the models' files are: s3://bucket/key or s3://bucket/prefix/. The workers may read exactly these."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for location in var.weights_locations : can(regex("^s3://[a-z0-9][a-z0-9.-]+/[^*?$]+$", location))])
    error_message = "weights_locations must be s3://bucket/key or s3://bucket/prefix/, without wildcards; a whole bucket is refused."
  }
}

variable "weights_kms_key_arns" {
  description = "ARNs of the keys that encrypt the models' files, if they are not the deployment's own."
  type        = list(string)
  default     = []
}

variable "log_retention_days" {
  description = "How long CloudWatch keeps the workers' logs."
  type        = number
  default     = 30
}

variable "alarm_topic_arns" {
  description = "SNS topics that hear when workers are wanted and none comes."
  type        = list(string)
  default     = []
}

variable "tags" {
  description = "Tags of every resource of the fleet, its instances and their volumes."
  type        = map(string)
  default     = {}
}
