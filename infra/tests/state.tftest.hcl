mock_provider "aws" {
  source = "./tests/mocks"
}

run "table_is_as_the_adapter_expects" {
  command = plan

  module {
    source = "./modules/state"
  }

  variables {
    table               = "night"
    kms_key_arn         = "arn:aws:kms:eu-west-1:123456789012:key/k"
    deletion_protection = true
  }

  assert {
    condition     = aws_dynamodb_table.this.hash_key == "pk" && aws_dynamodb_table.this.range_key == "sk" && aws_dynamodb_table.this.billing_mode == "PAY_PER_REQUEST"
    error_message = "the table has another key, or is provisioned"
  }

  assert {
    condition     = { for attribute in aws_dynamodb_table.this.attribute : attribute.name => attribute.type } == { pk = "S", sk = "S", wk = "S", due = "N" }
    error_message = "an attribute has another type"
  }

  assert {
    condition = [for index in aws_dynamodb_table.this.global_secondary_index : [index.name, index.hash_key, index.range_key, index.projection_type]] == [
      ["work", "wk", "due", "KEYS_ONLY"]
    ]
    error_message = "the work index is another one"
  }

  assert {
    condition = alltrue([
      one(aws_dynamodb_table.this.ttl).enabled && one(aws_dynamodb_table.this.ttl).attribute_name == "ttl",
      one(aws_dynamodb_table.this.point_in_time_recovery).enabled,
      one(aws_dynamodb_table.this.server_side_encryption).enabled && one(aws_dynamodb_table.this.server_side_encryption).kms_key_arn == var.kms_key_arn,
      aws_dynamodb_table.this.deletion_protection_enabled,
    ])
    error_message = "the table lacks expiry, recovery, the deployment's key or protection"
  }
}
