variable "name" {
  description = "Name of the deployment, which all its resources start with."
  type        = string
  default     = "nightshift"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,21}[a-z0-9]$", var.name))
    error_message = "name must have 3 to 23 lower-case letters, digits and hyphens, start with a letter and not end with a hyphen: queue names, which end in a model's name, have 80 characters at most."
  }
}

variable "models" {
  description = <<-EOT
    The models by id. Users name them by id or alias.
    - engine: native, the engine of the workers, or http, a server of OpenAI's API.
    - source: for native, exactly one of hugging_face, s3 (s3://bucket/key or s3://bucket/prefix/), path (in the worker's image) and pypi.
    - server: for http. url is what an SDK takes as its base URL; model is the server's name for it, the id if null;
      api_key_env names the variable with its API key, which a profile's secrets must set; requests_max (256) and
      timeout_seconds (600) bound what a worker sends.
    - endpoints: the paths that lines may name, such as /v1/chat/completions.
    - price: dollars a million tokens at realtime rates; a batch pays half.
    - context_tokens: the most tokens of prompt and output together; the model's own limit if null.
    - tokens_per_s: tokens a second of one worker, until it is measured.
  EOT
  type = map(object({
    engine = optional(string, "native")
    source = optional(object({
      hugging_face = optional(object({
        repo     = string
        revision = optional(string)
        file     = optional(string)
      }))
      s3   = optional(string)
      path = optional(string)
      pypi = optional(object({
        package = string
        version = string
        file    = string
      }))
    }))
    server = optional(object({
      url             = string
      model           = optional(string)
      api_key_env     = optional(string)
      requests_max    = optional(number)
      timeout_seconds = optional(number)
    }))
    endpoints = optional(list(string), ["/v1/chat/completions"])
    price = optional(object({
      input_per_million  = number
      output_per_million = number
    }), { input_per_million = 0, output_per_million = 0 })
    aliases        = optional(list(string), [])
    context_tokens = optional(number)
    tokens_per_s   = optional(number)
    owned_by       = optional(string)
  }))

  validation {
    condition     = length(var.models) > 0
    error_message = "models must have at least one model: every line of a batch names one."
  }

  validation {
    condition = alltrue([
      for name in flatten([for id, model in var.models : concat([id], model.aliases)]) : can(regex("^[!-~]{1,256}$", name))
    ])
    error_message = "models: ids and aliases must have 1 to 256 printable ASCII characters without spaces."
  }

  validation {
    condition = length(flatten([for id, model in var.models : concat([id], model.aliases)])) == length(distinct(
      flatten([for id, model in var.models : concat([id], model.aliases)])
    ))
    error_message = "models: two ids or aliases are the same."
  }

  validation {
    condition     = length(distinct([for id in keys(var.models) : substr(replace(id, "/[^A-Za-z0-9_-]/", "-"), 0, 40)])) == length(var.models)
    error_message = "models: two ids make the same queue name. Queues keep 40 characters of an id, with every character but letters, digits, - and _ replaced by -."
  }

  validation {
    condition = alltrue([
      for model in values(var.models) : model.engine == "http" ? model.source == null && model.server != null : model.engine == "native" && model.source != null && model.server == null
    ])
    error_message = "models: a model has a source and engine native (the default), or a server and engine http."
  }

  validation {
    condition = alltrue([
      for model in values(var.models) : model.source == null ? true : length([for source in values(model.source) : source if source != null]) == 1
    ])
    error_message = "models: source must be exactly one of hugging_face, s3, path and pypi."
  }

  validation {
    condition = alltrue([
      for model in values(var.models) : model.server == null ? true : (
        can(regex("^https?://[^/@:?# ]+(:[0-9]{1,5})?(/[!-~]*)?$", model.server.url)) && !can(regex("[?#@]", model.server.url)) &&
        (model.server.model == null ? true : can(regex("^.{1,256}$", model.server.model))) &&
        (model.server.api_key_env == null ? true : can(regex("^[A-Z_][A-Z0-9_]*$", model.server.api_key_env)) && !can(regex("^(NIGHTSHIFT|AWS)_", model.server.api_key_env)))
      )
    ])
    error_message = "models: server.url must be http(s)://host[:port]/path without a user or a query, server.model 1 to 256 characters, and server.api_key_env the name of a variable (not the key itself) that starts neither with NIGHTSHIFT_ nor with AWS_."
  }

  validation {
    condition = alltrue([
      for server in compact([for model in values(var.models) : model.server == null ? null : jsonencode(model.server)]) : alltrue([
        for bound in [[jsondecode(server).requests_max, 4096], [jsondecode(server).timeout_seconds, 7200]] :
        bound[0] == null ? true : bound[0] >= 1 && bound[0] <= bound[1] && floor(bound[0]) == bound[0]
      ])
    ])
    error_message = "models: server.requests_max must be a whole number from 1 to 4096, and server.timeout_seconds from 1 to 7200."
  }

  validation {
    condition = alltrue([
      for model in values(var.models) : try(model.source.s3, null) == null ? true : can(regex("^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[^*?$]+$", model.source.s3))
    ])
    error_message = "models: source.s3 must be s3://bucket/key or s3://bucket/prefix/, without wildcards."
  }

  validation {
    condition = alltrue([
      for model in values(var.models) : length(model.endpoints) > 0 && alltrue([
        for endpoint in model.endpoints : contains(["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"], endpoint)
      ])
    ])
    error_message = "models: endpoints must be some of /v1/chat/completions, /v1/completions, /v1/embeddings and /v1/responses."
  }

  validation {
    condition     = alltrue([for model in values(var.models) : model.price.input_per_million >= 0 && model.price.output_per_million >= 0])
    error_message = "models: prices must be zero or more."
  }

  validation {
    condition = alltrue([
      for count in flatten([for model in values(var.models) : [model.context_tokens, model.tokens_per_s]]) :
      count == null ? true : count >= 1 && count <= 4294967295 && floor(count) == count
    ])
    error_message = "models: context_tokens and tokens_per_s must be whole numbers from 1."
  }
}

variable "profiles" {
  description = <<-EOT
    Groups of like machines by name; none makes a deployment without workers. See modules/worker-fleet for more.
    - models: ids of the models that its workers serve.
    - instance_types: EC2 types that fit, best first; compute types by default, GPU types with gpu.
    - workers_min, workers_max: bounds of the group, which shrinks to workers_min when nothing waits.
    - spot, on_demand_base: whether instances above the first on_demand_base are spot instances.
    - gpu: an image with NVIDIA's driver, and every GPU for the container. Off: the engine has no CUDA backend yet.
    - volume_gb: root volume.
    - ami_ssm_parameter, image_id: the machine image, by SSM parameter or fixed.
    - scale_in_minutes, warmup_seconds, drain_seconds: how the group shrinks, starts and stops.
    - session_manager: lets operators open a shell through SSM.
    - secrets: environment variables of the workers by the ARN of the secret in Secrets Manager that holds the value, one line: the keys that models' server.api_key_env name. Under the key aws/secretsmanager or the deployment's own.
  EOT
  type = map(object({
    models            = list(string)
    instance_types    = optional(list(string))
    workers_min       = optional(number)
    workers_max       = optional(number)
    spot              = optional(bool)
    on_demand_base    = optional(number)
    gpu               = optional(bool)
    volume_gb         = optional(number)
    ami_ssm_parameter = optional(string)
    image_id          = optional(string)
    scale_in_minutes  = optional(number)
    warmup_seconds    = optional(number)
    drain_seconds     = optional(number)
    session_manager   = optional(bool)
    secrets           = optional(map(string))
  }))
  default = {}

  validation {
    condition     = alltrue([for profile in values(var.profiles) : length(profile.models) > 0 && alltrue([for id in profile.models : contains(keys(var.models), id)])])
    error_message = "profiles: models must name at least one id of models, and nothing else."
  }

  validation {
    condition     = length(var.profiles) == 0 || alltrue([for id in keys(var.models) : contains(flatten(values(var.profiles)[*].models), id)])
    error_message = "profiles: every model must be served by some profile, or its batches would wait until they expire."
  }

  validation {
    condition = alltrue(flatten([
      for profile in values(var.profiles) : [
        for name in compact([for id in profile.models : try(var.models[id].server.api_key_env, null)]) : contains(keys(coalesce(profile.secrets, {})), name)
      ]
    ]))
    error_message = "profiles: secrets must have each variable that server.api_key_env of one of the profile's models names."
  }
}

variable "worker_image" {
  description = "Container image of the workers: <repository>@sha256:<digest>. Needed where there are profiles."
  type        = string
  default     = null

  validation {
    condition     = length(var.profiles) == 0 || can(regex("@sha256:[0-9a-f]{64}$", var.worker_image))
    error_message = "worker_image must be a repository with a digest, <repository>@sha256:<64 hex digits>, where there are profiles."
  }
}

variable "artifacts_dir" {
  description = "Folder with the functions' zips, <function>.zip, as `make package` makes them for one architecture."
  type        = string

  validation {
    condition     = alltrue([for function in keys(local.functions) : fileexists("${var.artifacts_dir}/${function}.zip")])
    error_message = "artifacts_dir must have ${join(", ", [for function in keys(local.functions) : "${function}.zip"])}: run `make package`."
  }
}

variable "architecture" {
  description = "What the zips were built for: arm64 or x86_64."
  type        = string
  default     = "arm64"

  validation {
    condition     = contains(["arm64", "x86_64"], var.architecture)
    error_message = "architecture must be arm64 or x86_64."
  }
}

variable "settings" {
  description = <<-EOT
    Limits that differ from the contract's own: lines and bytes of an input file, batches an hour and waiting tokens
    of a tenant. testing closes windows early and shortens every time; it is for tests.
  EOT
  type = object({
    lines_per_file   = optional(number)
    file_bytes       = optional(number)
    batches_per_hour = optional(number)
    enqueued_tokens  = optional(number)
    testing = optional(object({
      window_seconds        = optional(number)
      times_faster          = optional(number)
      inline_assembly_bytes = optional(number)
    }))
  })
  default = {}

  validation {
    condition = alltrue([
      for count in [var.settings.lines_per_file, var.settings.file_bytes, var.settings.batches_per_hour, var.settings.enqueued_tokens] :
      count == null ? true : count >= 1 && floor(count) == count
    ])
    error_message = "settings must be whole numbers from 1."
  }
}

variable "import_locations" {
  description = "Where batches may read their input by reference: s3://bucket/prefix/, each with its slash. Functions may read objects below these, and nothing else outside their own bucket."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for location in var.import_locations : can(regex("^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/([^*?$]+/)?$", location))])
    error_message = "import_locations must be s3://bucket/ or s3://bucket/prefix/, end with a slash and have no wildcards."
  }

  validation {
    condition     = alltrue([for location in var.import_locations : !startswith(location, "s3://${local.bucket}/")])
    error_message = "import_locations must not name the deployment's own bucket: it holds every tenant's files."
  }
}

variable "import_kms_key_arns" {
  description = "ARNs of the keys that encrypt what is imported."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.import_kms_key_arns : can(regex("^arn:[^:*?]+:kms:[^:*?]+:[0-9]{12}:key/[^*?]+$", arn))])
    error_message = "import_kms_key_arns must be ARNs of single keys."
  }
}

variable "network" {
  description = <<-EOT
    Where workers and ingest run. Without profiles and ingest there is no network at all.
    - mode: public_egress (cheapest: public addresses, closed inwards), nat, endpoints (no way to the internet) or existing.
    - cidr, az_count: of a new VPC. More zones find more spot capacity.
    - flow_logs: logs traffic that a new VPC has refused.
    - existing: your VPC and its subnets, for mode existing.
  EOT
  type = object({
    mode      = optional(string, "public_egress")
    cidr      = optional(string, "10.64.0.0/16")
    az_count  = optional(number, 3)
    flow_logs = optional(bool, false)
    existing = optional(object({
      vpc_id             = string
      private_subnet_ids = optional(list(string), [])
      public_subnet_ids  = optional(list(string), [])
    }))
  })
  default = {}

  validation {
    condition     = contains(["public_egress", "nat", "endpoints", "existing"], var.network.mode)
    error_message = "network.mode must be public_egress, nat, endpoints or existing."
  }

  validation {
    condition     = (var.network.mode == "existing") == (var.network.existing != null)
    error_message = "network.existing goes with network.mode \"existing\", and only with it."
  }
}

variable "ingest" {
  description = <<-EOT
    The API once more, in containers behind CloudFront, for files.create of any size. It costs about 33 dollars a
    month while idle.
    - image: its container image, <repository>@sha256:<digest>, for arm64.
    - tasks: containers that run.
    - certificate_arn, origin_domain_name: TLS between CloudFront and the load balancer as well.
    - web_acl_arn: web ACL of the distribution (scope CLOUDFRONT, in us-east-1).
  EOT
  type = object({
    enabled            = optional(bool, false)
    image              = optional(string)
    tasks              = optional(number, 2)
    certificate_arn    = optional(string)
    origin_domain_name = optional(string)
    web_acl_arn        = optional(string)
  })
  default = {}

  validation {
    condition     = !var.ingest.enabled || can(regex("@sha256:[0-9a-f]{64}$", var.ingest.image))
    error_message = "ingest.image must be a repository with a digest, <repository>@sha256:<64 hex digits>, where ingest is enabled."
  }
}

variable "domain" {
  description = "A host of yours for the API, with TLS 1.2 or newer, and its certificate in ACM of this region. Point the host to output domain_target."
  type = object({
    name            = string
    certificate_arn = string
  })
  default = null
}

variable "throttle" {
  description = "Requests a second that the API takes, and how many at once."
  type = object({
    rate  = optional(number, 100)
    burst = optional(number, 200)
  })
  default = {}

  validation {
    condition     = var.throttle.rate >= 1 && var.throttle.burst >= 1
    error_message = "throttle.rate and throttle.burst must be at least 1."
  }
}

variable "waf" {
  description = "A web ACL in front of the API: AWS's common rules, and how many requests one address may make in five minutes."
  type = object({
    enabled    = optional(bool, true)
    rate_limit = optional(number, 5000)
  })
  default = {}

  validation {
    condition     = var.waf.rate_limit >= 10 && var.waf.rate_limit <= 2000000000 && floor(var.waf.rate_limit) == var.waf.rate_limit
    error_message = "waf.rate_limit must be a whole number from 10 to 2,000,000,000."
  }
}

variable "access_log" {
  description = <<-EOT
    Logs every request, without query, headers and body. API Gateway needs a role for this that belongs to the whole
    account and region: set_account_role sets it, and replaces what is there.
  EOT
  type = object({
    enabled          = optional(bool, false)
    set_account_role = optional(bool, false)
  })
  default = {}
}

variable "kms_key_arn" {
  description = "Your key for files, records, messages and logs; null makes one. Its policy must let CloudWatch Logs of this region use it."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:[^:]+:kms:[^:]+:[0-9]{12}:key/.+$", var.kms_key_arn))
    error_message = "kms_key_arn must be the ARN of a key, not of an alias."
  }
}

variable "retention" {
  description = <<-EOT
    Days after which S3 itself removes what reconcile has left behind.
    - uploads_days: parts of uploads, which live an hour.
    - work_days: shards, index and results, which live as long as their batch runs.
    - files_days: files and outputs. Null keeps them until they expire by the API's rules or are deleted.
    - incomplete_multipart_days: what a function that was killed had begun to write.
    - lifecycle_rules: off for emulators, where making the rules takes a minute.
  EOT
  type = object({
    uploads_days              = optional(number, 2)
    work_days                 = optional(number, 14)
    files_days                = optional(number)
    incomplete_multipart_days = optional(number, 2)
    lifecycle_rules           = optional(bool, true)
  })
  default = {}

  validation {
    condition     = var.retention.uploads_days >= 1 && var.retention.incomplete_multipart_days >= 1
    error_message = "retention: uploads_days and incomplete_multipart_days must be at least 1."
  }

  validation {
    condition     = var.retention.work_days >= 9
    error_message = "retention.work_days must be at least 9: a batch may run for 7 days."
  }

  validation {
    condition     = var.retention.files_days == null ? true : var.retention.files_days >= 30
    error_message = "retention.files_days must be at least 30, which is how long the API promises to keep a file."
  }
}

variable "deletion_protection" {
  description = "Refuses to delete the table, and to delete the bucket while it holds anything. Apply false before a destroy."
  type        = bool
  default     = true
}

variable "log_retention_days" {
  description = "How long logs are kept."
  type        = number
  default     = 30

  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653], var.log_retention_days)
    error_message = "log_retention_days must be one of the lengths that CloudWatch Logs takes, such as 7, 30, 90 or 365."
  }
}

variable "tracing" {
  description = "Traces requests and functions with X-Ray. Its rights cannot be narrowed: roles then have two xray actions on resource \"*\"."
  type        = bool
  default     = false
}

variable "reserved_concurrency" {
  description = "How many of a function run at once at most, by function. It is taken from the account's limit, of which 100 must stay free."
  type        = map(number)
  default     = {}

  validation {
    condition     = alltrue([for function in keys(var.reserved_concurrency) : contains(keys(local.functions), function)])
    error_message = "reserved_concurrency must name functions: ${join(", ", keys(local.functions))}."
  }
}

variable "function_environment" {
  description = "More environment variables of every function. NIGHTSHIFT_LOG sets how much they log; all other NIGHTSHIFT_ variables are the deployment's own. No secrets: anyone who may read the function may read them."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for key in keys(var.function_environment) : key == "NIGHTSHIFT_LOG" || !startswith(key, "NIGHTSHIFT_")])
    error_message = "function_environment must not set NIGHTSHIFT_ variables but NIGHTSHIFT_LOG: the deployment sets them."
  }
}

variable "alarms" {
  description = "Alarms, the SNS topics that hear of them, and how old a model's oldest message may grow (six hours of a window of a day)."
  type = object({
    enabled                 = optional(bool, true)
    topic_arns              = optional(list(string), [])
    message_age_max_seconds = optional(number, 21600)
  })
  default = {}
}

variable "dashboard" {
  description = "Whether CloudWatch gets a dashboard."
  type        = bool
  default     = true
}
