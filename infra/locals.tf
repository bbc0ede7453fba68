data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_region" "current" {}

# Names, and ARNs made from them: a plan can show every policy whole, and no two modules wait for each other.
locals {
  region    = data.aws_region.current.id
  account   = data.aws_caller_identity.current.account_id
  partition = data.aws_partition.current.partition

  arn_prefix = {
    partition = local.partition
    region    = local.region
    account   = local.account
  }

  stage      = "v1"
  table      = var.name
  table_arn  = "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${local.table}"
  bucket     = "${var.name}-${local.account}-${local.region}"
  bucket_arn = "arn:${local.partition}:s3:::${local.bucket}"
}

# Functions. 1769 MB is one vCPU: what scans JSON gets a whole one.
locals {
  functions = {
    api        = { description = "Answers the API's requests.", memory_mb = 512, timeout_seconds = 29 }
    authorizer = { description = "Says whether a part may be stored, and under which name.", memory_mb = 256, timeout_seconds = 5 }
    validate   = { description = "Reads inputs, and rejects them or cuts them into shards.", memory_mb = 1769, timeout_seconds = 900 }
    dispatch   = { description = "Releases shards into the models' queues.", memory_mb = 512, timeout_seconds = 60 }
    finalize   = { description = "Merges results into output and error files.", memory_mb = 1769, timeout_seconds = 900 }
    assemble   = { description = "Puts the parts of large uploads together.", memory_mb = 1769, timeout_seconds = 900 }
    reconcile  = { description = "Finds what got lost, and asks for it again.", memory_mb = 512, timeout_seconds = 120 }
  }

  # A message is one long piece of work, but for dispatch: its jobs say the same again and again.
  triggers = {
    validate = { batch_size = 1, window_seconds = 0, concurrency_maximum = 10 }
    finalize = { batch_size = 1, window_seconds = 0, concurrency_maximum = 10 }
    assemble = { batch_size = 1, window_seconds = 0, concurrency_maximum = 10 }
    dispatch = { batch_size = 10, window_seconds = 1, concurrency_maximum = 2 }
  }
}

# Queues. batch_core::message::queue_slug names the models' queues by the same rule.
locals {
  model_slugs = { for id in keys(var.models) : id => substr(replace(id, "/[^A-Za-z0-9_-]/", "-"), 0, 40) }

  model_queues = {
    for id, slug in local.model_slugs : id => { for lane in ["fast", "bulk"] : lane => "model-${slug}-${lane}" }
  }

  # A function's message must stay hidden for as long as the function may still have it, retries included. One that
  # fails shows it again after 5 s, doubling to 300: eight times are about ten minutes of trying.
  # A worker's message is an alarm clock alone: the lease decides. What is poison ends by counted losses, long
  # before its message was received so often.
  function_timeouts_hidden = 6

  queue_rules = merge(
    {
      for key in keys(local.triggers) : key => {
        visibility_seconds = local.function_timeouts_hidden * local.functions[key].timeout_seconds
        receives_max       = 8
      }
    },
    {
      for key in flatten([for queues in values(local.model_queues) : values(queues)]) : key => {
        visibility_seconds = 120
        receives_max       = 100
      }
    },
  )

  queues = {
    for key, rules in local.queue_rules : key => merge(rules, {
      name             = "${var.name}-${key}"
      arn              = "arn:${local.partition}:sqs:${local.region}:${local.account}:${var.name}-${key}"
      dead_letter_name = "${var.name}-${key}-dead"
      dead_letter_arn  = "arn:${local.partition}:sqs:${local.region}:${local.account}:${var.name}-${key}-dead"
    })
  }

  queue_arns = { for key, queue in local.queues : key => queue.arn }
}

# What processes are told. Only what was set: a variable that is not there keeps its default.
locals {
  catalog = [
    for id, model in var.models : merge(
      {
        id        = id
        endpoints = model.endpoints
        price     = model.price
      },
      # A loop over one key: the branches of a condition would need one type.
      { for key in ["source"] : key => { for kind, source in model.source : kind => try({ for name, value in source : name => value if value != null }, source) if source != null } if model.source != null },
      { for key in ["engine"] : key => model.engine if model.server != null },
      { for key in ["server"] : key => { for name, value in model.server : name => value if value != null } if model.server != null },
      length(model.aliases) > 0 ? { aliases = model.aliases } : {},
      { for key in ["context_tokens", "tokens_per_s", "owned_by"] : key => model[key] if model[key] != null },
    )
  ]

  # Where the models' servers of a profile listen, beside the port that every worker may reach.
  server_ports = {
    for name, profile in var.profiles : name => setsubtract(distinct(compact([
      for url in compact([for id in profile.models : try(var.models[id].server.url, null)]) :
      coalesce(regex("^(?P<scheme>https?)://[^/:]+(?::(?P<port>[0-9]+))?", url).port, startswith(url, "https://") ? "443" : "80")
    ])), ["443"])
  }

  settings = merge(
    { for key, value in var.settings : key => value if value != null && key != "testing" },
    var.settings.testing == null ? {} : { testing = { for key, value in var.settings.testing : key => value if value != null } },
  )

  profiles = {
    for name, profile in var.profiles : name => {
      models      = profile.models
      workers_min = coalesce(profile.workers_min, 0)
      workers_max = coalesce(profile.workers_max, 1)
    }
  }

  environment = merge(
    {
      NIGHTSHIFT_DEPLOYMENT       = var.name
      NIGHTSHIFT_TABLE            = module.state.table
      NIGHTSHIFT_BUCKET           = module.storage.bucket
      NIGHTSHIFT_QUEUE_URL_PREFIX = module.queues.url_prefix
    },
    local.written,
  )

  written = merge(
    { NIGHTSHIFT_CATALOG = jsonencode(local.catalog) },
    length(local.settings) > 0 ? { NIGHTSHIFT_SETTINGS = jsonencode(local.settings) } : {},
    length(local.profiles) > 0 ? { NIGHTSHIFT_PROFILES = jsonencode(local.profiles) } : {},
    length(var.import_locations) > 0 ? { NIGHTSHIFT_IMPORTS = jsonencode(var.import_locations) } : {},
  )

  # Lambda measures all variables as one JSON text, quotes of JSON in JSON escaped. The names that AWS gives
  # are not known in a plan, so this has room for the longest.
  environment_bytes_max = 4096
  environment_bytes = length(jsonencode(merge(local.written, var.function_environment, {
    NIGHTSHIFT_DEPLOYMENT       = var.name
    NIGHTSHIFT_TABLE            = local.table
    NIGHTSHIFT_BUCKET           = local.bucket
    NIGHTSHIFT_QUEUE_URL_PREFIX = "https://sqs.${local.region}.amazonaws.com/${local.account}/${var.name}-"
  })))
}
