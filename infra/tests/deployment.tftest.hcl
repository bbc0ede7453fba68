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

  # A star may only end a resource that says which bucket's folder, or which log group's streams.
  assert {
    condition = alltrue(flatten([
      for policies in values(module.functions.policies) : [
        for policy in policies : [
          for statement in jsondecode(policy).Statement : [
            for resource in flatten([statement.Resource]) : can(regex("^arn:aws:[a-z0-9]+:[a-z0-9-]*:[0-9]*:[^*]+(/|:log-stream:)?\\*?$", resource)) && resource != "*"
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

  # Which function may write to which folder.
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

  # Messages stay hidden for six times as long as their function may run.
  assert {
    condition     = alltrue([for key in keys(local.triggers) : local.queues[key].visibility_seconds >= 6 * local.functions[key].timeout_seconds])
    error_message = "a queue shows a message again while its function may still run"
  }

  assert {
    condition     = alltrue([for queue in local.queues : queue.visibility_seconds <= 12 * 3600])
    error_message = "a queue hides messages for longer than SQS can"
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
