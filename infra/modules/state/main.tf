# One table holds all records. The index is sparse: only items that need a look at some time have its keys.
resource "aws_dynamodb_table" "this" {
  name                        = var.table
  billing_mode                = "PAY_PER_REQUEST"
  hash_key                    = "pk"
  range_key                   = "sk"
  deletion_protection_enabled = var.deletion_protection

  attribute {
    name = "pk"
    type = "S"
  }

  attribute {
    name = "sk"
    type = "S"
  }

  attribute {
    name = "wk"
    type = "S"
  }

  attribute {
    name = "due"
    type = "N"
  }

  global_secondary_index {
    name            = "work"
    hash_key        = "wk"
    range_key       = "due"
    projection_type = "KEYS_ONLY"
  }

  # Reserved: nothing writes it. Records end by reconcile, which also removes the blobs that they name; DynamoDB would
  # leave those behind.
  ttl {
    attribute_name = "ttl"
    enabled        = true
  }

  point_in_time_recovery {
    enabled = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = var.kms_key_arn
  }
}
