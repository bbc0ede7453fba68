locals {
  fortnight_seconds = 14 * 24 * 3600
  # Longer means fewer calls of KMS; a message says only which batch or shard to look at.
  data_key_reuse_seconds = 3600

  policies = {
    for arn in flatten([for queue in var.queues : [queue.arn, queue.dead_letter_arn]]) : arn => jsonencode({
      Version = "2012-10-17"
      Statement = [{
        Sid       = "TlsOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:*"
        Resource  = arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      }]
    })
  }
}

resource "aws_sqs_queue" "this" {
  for_each = var.queues

  name                              = each.value.name
  visibility_timeout_seconds        = each.value.visibility_seconds
  message_retention_seconds         = local.fortnight_seconds
  receive_wait_time_seconds         = 20
  kms_master_key_id                 = var.kms_key_arn
  kms_data_key_reuse_period_seconds = local.data_key_reuse_seconds
  policy                            = local.policies[each.value.arn]

  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_letter[each.key].arn
    maxReceiveCount     = each.value.receives_max
  })
}

# Messages that were received too often: a fault of ours, or an outage that outlasted a function's tries. No work is
# lost with them: reconcile asks for it again from the records.
resource "aws_sqs_queue" "dead_letter" {
  for_each = var.queues

  name                              = each.value.dead_letter_name
  message_retention_seconds         = local.fortnight_seconds
  kms_master_key_id                 = var.kms_key_arn
  kms_data_key_reuse_period_seconds = local.data_key_reuse_seconds
  policy                            = local.policies[each.value.dead_letter_arn]

  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = [each.value.arn]
  })
}
