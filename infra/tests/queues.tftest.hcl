mock_provider "aws" {
  source = "./tests/mocks"
}

run "queues_are_encrypted_and_have_a_dead_letter_queue" {
  command = plan

  module {
    source = "./modules/queues"
  }

  variables {
    kms_key_arn = "arn:aws:kms:eu-west-1:123456789012:key/k"

    queues = {
      for key in ["validate", "model-tiny-bulk"] : key => {
        name               = "night-${key}"
        arn                = "arn:aws:sqs:eu-west-1:123456789012:night-${key}"
        dead_letter_name   = "night-${key}-dead"
        dead_letter_arn    = "arn:aws:sqs:eu-west-1:123456789012:night-${key}-dead"
        visibility_seconds = 120
        receives_max       = 8
      }
    }
  }

  override_resource {
    target          = aws_sqs_queue.dead_letter
    override_during = plan
    values          = { arn = "arn:aws:sqs:eu-west-1:123456789012:dead" }
  }

  assert {
    condition     = keys(aws_sqs_queue.this) == keys(aws_sqs_queue.dead_letter)
    error_message = "a queue has no dead-letter queue"
  }

  assert {
    condition     = alltrue([for queue in aws_sqs_queue.this : jsondecode(queue.redrive_policy) == { deadLetterTargetArn = "arn:aws:sqs:eu-west-1:123456789012:dead", maxReceiveCount = 8 }])
    error_message = "a queue does not give up to its dead-letter queue"
  }

  assert {
    condition     = alltrue([for queue in concat(values(aws_sqs_queue.this), values(aws_sqs_queue.dead_letter)) : queue.kms_master_key_id == var.kms_key_arn])
    error_message = "a queue is not encrypted by the deployment's key"
  }

  assert {
    condition     = alltrue([for queue in values(aws_sqs_queue.dead_letter) : queue.message_retention_seconds == 14 * 24 * 3600])
    error_message = "a dead-letter queue forgets before a fortnight is over"
  }

  assert {
    condition = alltrue([
      for key, queue in aws_sqs_queue.dead_letter : jsondecode(queue.redrive_allow_policy) == { redrivePermission = "byQueue", sourceQueueArns = [var.queues[key].arn] }
    ])
    error_message = "another queue may give up to a dead-letter queue"
  }

  assert {
    condition = alltrue([
      for queue in concat(values(aws_sqs_queue.this), values(aws_sqs_queue.dead_letter)) : anytrue([
        for statement in jsondecode(queue.policy).Statement : statement.Effect == "Deny" && statement.Principal == "*" && statement.Condition == { Bool = { "aws:SecureTransport" = "false" } }
      ])
    ])
    error_message = "a queue can be used without TLS"
  }
}
