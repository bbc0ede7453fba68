# The root module as a whole: what its parts are given, seen from outside.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  artifacts_dir    = "tests/artifacts"
  worker_image     = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/worker@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  import_locations = ["s3://inputs/batches/"]

  models = {
    "qwen3:4b" = { source = { s3 = "s3://weights/qwen3-4b/" } }
    tiny       = { source = { path = "/models/tiny.gguf" } }
  }

  profiles = {
    small = { models = ["qwen3:4b", "tiny"], workers_max = 2 }
  }

  ingest = {
    enabled = true
    image   = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/worker@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  }
}

override_resource {
  target          = module.queues.aws_sqs_queue.dead_letter
  override_during = plan
  values          = { arn = "arn:aws:sqs:eu-west-1:123456789012:dead" }
}

run "roles_are_narrow" {
  command = plan

  assert {
    condition = alltrue(flatten([
      for policies in values(module.functions.policies) : [
        for policy in policies : [
          for statement in jsondecode(policy).Statement : [for action in flatten([statement.Action]) : !strcontains(action, "*")]
        ]
      ]
    ]))
    error_message = "a function's role has an action with a wildcard"
  }

  # A star may only end a resource, after the slash of a bucket's folder or for the streams of a log group. Anywhere
  # else it would also mean what others own, such as arn:aws:s3:::nightshift*.
  assert {
    condition = alltrue(flatten([
      for policies in values(module.functions.policies) : [
        for policy in policies : [
          for statement in jsondecode(policy).Statement : [
            for resource in flatten([statement.Resource]) : can(regex("^arn:aws:[a-z0-9]+:[a-z0-9-]*:[0-9]*:[^*?]+(:log-stream:\\*)?$|^arn:aws:s3:::[^*?/]+/([^*?]+/)?\\*$", resource))
          ]
        ]
      ]
    ]))
    error_message = "a function's role has a resource with a wildcard"
  }

  assert {
    condition     = length(distinct(values(module.functions.roles))) == length(local.functions)
    error_message = "two functions share a role"
  }

  assert {
    condition = alltrue([
      for function in ["authorizer", "dispatch"] : !strcontains(join("", module.functions.policies[function]), "\"s3:")
    ])
    error_message = "a function that has no business with files may reach the bucket"
  }

  assert {
    condition     = !can(regex("PutItem|UpdateItem|DeleteItem|sqs:", join("", module.functions.policies["authorizer"])))
    error_message = "the authorizer may change something"
  }

  # Which function may read, write and delete in which folder of the deployment's bucket.
  assert {
    condition = {
      for function, policies in module.functions.policies : function => join(" ", sort(distinct(flatten([
        for statement in jsondecode(policies[0]).Statement : [
          for resource in flatten([statement.Resource]) : split("/", resource)[1] if startswith(resource, "${local.bucket_arn}/")
        ] if contains(flatten([statement.Action]), "s3:GetObject")
      ]))))
      } == {
      api        = "files outputs uploads"
      assemble   = "uploads"
      authorizer = ""
      dispatch   = ""
      finalize   = "index outputs results"
      reconcile  = "index results shards"
      validate   = "files index shards"
    }
    error_message = "a function may read in another folder than it needs to"
  }

  assert {
    condition = {
      for function, policies in module.functions.policies : function => join(" ", sort(distinct(flatten([
        for statement in jsondecode(policies[0]).Statement : [
          for resource in flatten([statement.Resource]) : split("/", resource)[1]
        ] if contains(flatten([statement.Action]), "s3:DeleteObject")
      ]))))
      } == {
      api        = "files uploads"
      assemble   = "files uploads"
      authorizer = ""
      dispatch   = ""
      finalize   = "outputs"
      reconcile  = "files index outputs results shards uploads"
      validate   = ""
    }
    error_message = "a function may delete in another folder than it needs to"
  }

  assert {
    condition = {
      for function, policies in module.functions.policies : function => join(" ", sort(distinct(flatten([
        for statement in jsondecode(policies[0]).Statement : [
          for resource in flatten([statement.Resource]) : split("/", resource)[1]
        ] if contains(flatten([statement.Action]), "s3:PutObject")
      ]))))
      } == {
      api        = "files uploads"
      assemble   = "files"
      authorizer = ""
      dispatch   = ""
      finalize   = "outputs results"
      reconcile  = "results"
      validate   = "index shards"
    }
    error_message = "a function may write to another folder than its own"
  }

  # Which function may send to which queue.
  assert {
    condition = {
      for function, policies in module.functions.policies : function => join(" ", sort(distinct(flatten([
        for statement in jsondecode(policies[0]).Statement : [
          for resource in flatten([statement.Resource]) : trimprefix(split(":", resource)[5], "nightshift-")
        ] if contains(flatten([statement.Action]), "sqs:SendMessage")
      ]))))
      } == {
      api        = "assemble finalize validate"
      assemble   = ""
      authorizer = ""
      dispatch   = "model-qwen3-4b-bulk model-qwen3-4b-fast model-tiny-bulk model-tiny-fast"
      finalize   = "finalize"
      reconcile  = "assemble dispatch finalize model-qwen3-4b-bulk model-qwen3-4b-fast model-tiny-bulk model-tiny-fast validate"
      validate   = "dispatch validate"
    }
    error_message = "a function may send to another queue than it needs to"
  }

  assert {
    condition = alltrue([
      for function, policies in module.functions.policies :
      strcontains(policies[0], "arn:aws:s3:::inputs/batches/*") == contains(["api", "assemble"], function)
    ])
    error_message = "imports are not readable by api and assemble, or by another function"
  }
}

# Both run the same router.
run "ingest_may_do_exactly_what_the_api_function_may" {
  command = plan

  variables {
    import_kms_key_arns = ["arn:aws:kms:eu-west-1:123456789012:key/inputs"]
  }

  assert {
    condition = toset(flatten([
      for statement in jsondecode(module.ingest[0].policy).Statement : [
        for action in statement.Action : [
          for resource in statement.Resource : jsonencode([action, resource, try(statement.Condition, null)])
        ]
      ]
      ])) == toset(flatten([
      for policy in module.functions.policies["api"] : [
        for statement in jsondecode(policy).Statement : [
          for action in statement.Action : [
            for resource in statement.Resource : jsonencode([action, resource, try(statement.Condition, null)])
          ]
        ] if statement.Sid != "WriteOwnLog"
      ]
    ]))
    error_message = "ingest and the api function differ in what they may do"
  }

  assert {
    condition = alltrue([
      for right in [
        ["s3:ListBucket", local.bucket_arn],
        ["s3:GetObject", "arn:aws:s3:::inputs/batches/*"],
        ["kms:Decrypt", "arn:aws:kms:eu-west-1:123456789012:key/inputs"],
        ] : anytrue([
          for statement in jsondecode(module.ingest[0].policy).Statement : contains(statement.Action, right[0]) && contains(statement.Resource, right[1])
      ])
    ])
    error_message = "ingest cannot tell a missing object, or read an import"
  }
}

run "every_function_has_a_log_that_ends" {
  command = plan

  assert {
    condition     = length(distinct(values(module.functions.log_groups)[*].name)) == length(local.functions)
    error_message = "two functions share a log group"
  }

  assert {
    condition     = alltrue([for group in values(module.functions.log_groups) : group.retention_days == 30 && group.kms_key_arn == module.security.kms_key_arn])
    error_message = "a log group has no retention or no key"
  }

  assert {
    condition     = local.environment_bytes <= 4096
    error_message = "the environment is larger than Lambda takes"
  }

  assert {
    condition     = output.environment["NIGHTSHIFT_TABLE"] == "nightshift" && output.environment["NIGHTSHIFT_BUCKET"] == "nightshift-123456789012-eu-west-1"
    error_message = "processes are told of another table or bucket"
  }
}

# What the resources have, not what the locals say.
run "messages_stay_hidden_while_their_function_may_run" {
  command = plan

  assert {
    condition = module.functions.sizes == {
      api        = { memory_mb = 512, timeout_seconds = 29 }
      assemble   = { memory_mb = 1769, timeout_seconds = 900 }
      authorizer = { memory_mb = 256, timeout_seconds = 5 }
      dispatch   = { memory_mb = 512, timeout_seconds = 60 }
      finalize   = { memory_mb = 1769, timeout_seconds = 900 }
      reconcile  = { memory_mb = 512, timeout_seconds = 120 }
      validate   = { memory_mb = 1769, timeout_seconds = 900 }
    }
    error_message = "a function has another size: ${jsonencode(module.functions.sizes)}"
  }

  assert {
    condition = alltrue([
      for key in ["assemble", "dispatch", "finalize", "validate"] : module.queues.visibility_seconds[key] >= 6 * module.functions.sizes[key].timeout_seconds
    ])
    error_message = "a queue shows a message again while its function may still run"
  }

  assert {
    condition     = alltrue([for seconds in values(module.queues.visibility_seconds) : seconds <= 12 * 3600])
    error_message = "a queue hides messages for longer than SQS can"
  }

  assert {
    condition = module.queues.receives_max == {
      assemble            = 8
      dispatch            = 8
      finalize            = 8
      model-qwen3-4b-bulk = 100
      model-qwen3-4b-fast = 100
      model-tiny-bulk     = 100
      model-tiny-fast     = 100
      validate            = 8
    }
    error_message = "a queue gives up earlier or later: ${jsonencode(module.queues.receives_max)}"
  }
}
