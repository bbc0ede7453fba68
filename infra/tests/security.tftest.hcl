mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name       = "night"
  account_id = "123456789012"
  partition  = "aws"
  region     = "eu-west-1"
}

run "key_turns_and_names_its_users" {
  command = plan

  module {
    source = "./modules/security"
  }

  assert {
    condition     = aws_kms_key.this[0].enable_key_rotation
    error_message = "the key does not rotate"
  }

  assert {
    condition = alltrue(flatten([
      for statement in jsondecode(aws_kms_key.this[0].policy).Statement : [
        !anytrue([for action in statement.Action : strcontains(action, "*")]),
        statement.Principal != "*" && !contains(values(statement.Principal), "*"),
      ]
    ]))
    error_message = "the key's policy has a wildcard action, or lets anyone in"
  }

  assert {
    condition = one([
      for statement in jsondecode(aws_kms_key.this[0].policy).Statement : statement.Condition if statement.Sid == "LogsEncryptThisDeploymentsGroups"
      ]) == {
      ArnLike = {
        "kms:EncryptionContext:aws:logs:arn" = [
          "arn:aws:logs:eu-west-1:123456789012:log-group:/aws/lambda/night-*",
          "arn:aws:logs:eu-west-1:123456789012:log-group:/nightshift/night/*",
        ]
      }
    }
    error_message = "logs of others may use the key"
  }
}

run "own_key_replaces_ours" {
  command = plan

  module {
    source = "./modules/security"
  }

  variables {
    kms_key_arn = "arn:aws:kms:eu-west-1:123456789012:key/mine"
  }

  assert {
    condition     = length(aws_kms_key.this) == 0 && output.kms_key_arn == "arn:aws:kms:eu-west-1:123456789012:key/mine"
    error_message = "a key was made though one was given"
  }
}
