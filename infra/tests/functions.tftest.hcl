# What calls the functions.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name               = "night"
  arn_prefix         = { partition = "aws", region = "eu-west-1", account = "123456789012" }
  artifacts_dir      = "tests/artifacts"
  architecture       = "arm64"
  environment        = {}
  table_arn          = "arn:aws:dynamodb:eu-west-1:123456789012:table/night"
  bucket_arn         = "arn:aws:s3:::night-files"
  queue_arns         = { for queue in ["assemble", "dispatch", "finalize", "validate"] : queue => "arn:aws:sqs:eu-west-1:123456789012:night-${queue}" }
  source_arns        = { for queue in ["assemble", "dispatch", "finalize", "validate"] : queue => "arn:aws:sqs:eu-west-1:123456789012:night-${queue}" }
  scheduled          = ["dispatch", "reconcile"]
  kms_key_arn        = "arn:aws:kms:eu-west-1:123456789012:key/k"
  imports            = { locations = [], kms_key_arns = [] }
  log_retention_days = 30
  tracing            = false

  reserved_concurrency = {}

  functions = {
    for function in ["api", "assemble", "authorizer", "dispatch", "finalize", "reconcile", "validate"] :
    function => { description = function, memory_mb = 128, timeout_seconds = 3 }
  }

  triggers = {
    assemble = { batch_size = 1, window_seconds = 0, concurrency_maximum = 10 }
    dispatch = { batch_size = 10, window_seconds = 1, concurrency_maximum = 2 }
    finalize = { batch_size = 1, window_seconds = 0, concurrency_maximum = 10 }
    validate = { batch_size = 1, window_seconds = 0, concurrency_maximum = 10 }
  }
}

override_resource {
  target          = module.function["assemble"].aws_lambda_function.this
  override_during = plan
  values          = { arn = "arn:aws:lambda:eu-west-1:123456789012:function:night-assemble" }
}

override_resource {
  target          = module.function["dispatch"].aws_lambda_function.this
  override_during = plan
  values          = { arn = "arn:aws:lambda:eu-west-1:123456789012:function:night-dispatch" }
}

override_resource {
  target          = module.function["finalize"].aws_lambda_function.this
  override_during = plan
  values          = { arn = "arn:aws:lambda:eu-west-1:123456789012:function:night-finalize" }
}

override_resource {
  target          = module.function["reconcile"].aws_lambda_function.this
  override_during = plan
  values          = { arn = "arn:aws:lambda:eu-west-1:123456789012:function:night-reconcile" }
}

override_resource {
  target          = module.function["validate"].aws_lambda_function.this
  override_during = plan
  values          = { arn = "arn:aws:lambda:eu-west-1:123456789012:function:night-validate" }
}

run "queues_call_their_functions" {
  command = plan

  module {
    source = "./modules/functions"
  }

  assert {
    condition = {
      for key, trigger in aws_lambda_event_source_mapping.this : key => [trigger.event_source_arn, trigger.function_name]
      } == {
      for key in ["assemble", "dispatch", "finalize", "validate"] : key => [
        "arn:aws:sqs:eu-west-1:123456789012:night-${key}", "arn:aws:lambda:eu-west-1:123456789012:function:night-${key}",
      ]
    }
    error_message = "a queue calls another function than its own"
  }

  # Without this the messages that were done are done again with those that failed.
  assert {
    condition     = alltrue([for trigger in aws_lambda_event_source_mapping.this : trigger.function_response_types == toset(["ReportBatchItemFailures"])])
    error_message = "one failed message brings back a whole batch of them"
  }

  assert {
    condition = {
      for key, trigger in aws_lambda_event_source_mapping.this : key => [trigger.batch_size, trigger.maximum_batching_window_in_seconds, trigger.scaling_config[0].maximum_concurrency]
    } == { assemble = [1, 0, 10], dispatch = [10, 1, 2], finalize = [1, 0, 10], validate = [1, 0, 10] }
    error_message = "a function gets more or fewer messages at once"
  }
}

run "every_minute_calls_dispatch_and_reconcile" {
  command = plan

  module {
    source = "./modules/functions"
  }

  assert {
    condition = {
      for key, target in aws_cloudwatch_event_target.this : key => [target.rule, target.arn]
      } == {
      for key in ["dispatch", "reconcile"] : key => ["night-${key}", "arn:aws:lambda:eu-west-1:123456789012:function:night-${key}"]
    }
    error_message = "a rule calls another function than its own"
  }

  assert {
    condition     = { for key, rule in aws_cloudwatch_event_rule.this : key => [rule.name, rule.schedule_expression] } == { for key in ["dispatch", "reconcile"] : key => ["night-${key}", "rate(1 minute)"] }
    error_message = "a rule is not called every minute"
  }

  assert {
    condition     = { for key, permission in aws_lambda_permission.rule : key => [permission.function_name, permission.principal] } == { for key in ["dispatch", "reconcile"] : key => ["night-${key}", "events.amazonaws.com"] }
    error_message = "a rule may not call its function"
  }
}
