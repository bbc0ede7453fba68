mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name               = "night-api"
  description        = "A function."
  artifact           = "tests/artifacts/api.zip"
  architecture       = "arm64"
  memory_mb          = 512
  timeout_seconds    = 29
  environment        = { A = "1" }
  statements         = [{ Sid = "Read", Action = ["dynamodb:GetItem"], Resource = ["arn:aws:dynamodb:eu-west-1:123456789012:table/night"] }]
  kms_statements     = []
  log_group_arn      = "arn:aws:logs:eu-west-1:123456789012:log-group:/aws/lambda/night-api"
  log_retention_days = 30
  kms_key_arn        = "arn:aws:kms:eu-west-1:123456789012:key/k"
  tracing            = false
}

run "function_runs_our_binary_and_writes_its_own_log" {
  command = plan

  module {
    source = "./modules/function"
  }

  assert {
    condition     = aws_lambda_function.this.runtime == "provided.al2023" && aws_lambda_function.this.handler == "bootstrap" && aws_lambda_function.this.architectures == tolist(["arm64"])
    error_message = "the function runs something else"
  }

  assert {
    condition     = [for statement in jsondecode(aws_iam_role_policy.work.policy).Statement : statement.Sid] == ["Read", "WriteOwnLog"]
    error_message = "the role may do something else"
  }

  assert {
    condition     = one([for statement in jsondecode(aws_iam_role_policy.work.policy).Statement : statement.Resource if statement.Sid == "WriteOwnLog"]) == ["${var.log_group_arn}:log-stream:*"]
    error_message = "the role may write other logs"
  }

  assert {
    condition     = length(aws_iam_role_policy.tracing) == 0 && aws_lambda_function.this.reserved_concurrent_executions == -1
    error_message = "the function traces, or takes concurrency away, without being told to"
  }
}
