mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  bucket            = "night-files"
  bucket_arn        = "arn:aws:s3:::night-files"
  kms_key_arn       = "arn:aws:kms:eu-west-1:123456789012:key/k"
  retention         = { uploads_days = 2, work_days = 14, files_days = null, incomplete_multipart_days = 2 }
  lifecycle_enabled = true
  force_destroy     = false
}

run "bucket_is_private_encrypted_and_tidy" {
  command = plan

  module {
    source = "./modules/storage"
  }

  assert {
    condition = alltrue([
      aws_s3_bucket_public_access_block.this.block_public_acls,
      aws_s3_bucket_public_access_block.this.block_public_policy,
      aws_s3_bucket_public_access_block.this.ignore_public_acls,
      aws_s3_bucket_public_access_block.this.restrict_public_buckets,
    ])
    error_message = "public access is not blocked"
  }

  assert {
    condition     = one(aws_s3_bucket_ownership_controls.this.rule).object_ownership == "BucketOwnerEnforced"
    error_message = "ACLs work"
  }

  assert {
    condition = alltrue([
      for rule in aws_s3_bucket_server_side_encryption_configuration.this.rule :
      rule.bucket_key_enabled && one(rule.apply_server_side_encryption_by_default).sse_algorithm == "aws:kms" && one(rule.apply_server_side_encryption_by_default).kms_master_key_id == var.kms_key_arn
    ])
    error_message = "objects are not encrypted by the deployment's key"
  }

  assert {
    condition     = alltrue([for statement in jsondecode(aws_s3_bucket_policy.this.policy).Statement : statement.Effect == "Deny" && statement.Principal == "*"])
    error_message = "the bucket's policy lets somebody in"
  }

  assert {
    condition = {
      for statement in jsondecode(aws_s3_bucket_policy.this.policy).Statement : statement.Sid => statement.Condition
      } == {
      TlsOnly           = { Bool = { "aws:SecureTransport" = "false" } }
      Tls12OrNewer      = { NumericLessThan = { "s3:TlsVersion" = "1.2" } }
      NoOtherEncryption = { StringNotEquals = { "s3:x-amz-server-side-encryption" = "aws:kms" }, Null = { "s3:x-amz-server-side-encryption" = "false" } }
      NoOtherKey        = { StringNotEquals = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = var.kms_key_arn }, Null = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = "false" } }
    }
    error_message = "the bucket can be used without TLS 1.2, or written with another key"
  }

  assert {
    condition = {
      for rule in aws_s3_bucket_lifecycle_configuration.this[0].rule : rule.filter[0].prefix => rule.expiration[0].days if length(rule.expiration) > 0
    } == { "uploads/" = 2, "shards/" = 14, "index/" = 14, "results/" = 14 }
    error_message = "another folder expires, or one of these does not"
  }

  assert {
    condition     = one([for rule in aws_s3_bucket_lifecycle_configuration.this[0].rule : rule.abort_incomplete_multipart_upload[0].days_after_initiation if length(rule.abort_incomplete_multipart_upload) > 0]) == 2
    error_message = "what a killed function had begun to write stays"
  }
}
