locals {
  # Reconcile removes all of this much earlier: the rules are a net under it.
  expiry_days = {
    for folder, days in {
      uploads = var.retention.uploads_days
      shards  = var.retention.work_days
      index   = var.retention.work_days
      results = var.retention.work_days
      files   = var.retention.files_days
      outputs = var.retention.files_days
    } : folder => days if days != null
  }
}

resource "aws_s3_bucket" "this" {
  #checkov:skip=CKV_AWS_18: Access logs would name every tenant's files in a second bucket; CloudTrail data events do this better.
  #checkov:skip=CKV_AWS_21: Objects never change and a deleted file must be gone, so there are no versions.
  #checkov:skip=CKV_AWS_144: A batch can be sent again; a copy in a second region would double the cost of storage.
  #checkov:skip=CKV2_AWS_62: Nothing waits for S3 events: functions are called by messages.
  bucket        = var.bucket
  force_destroy = var.force_destroy
}

resource "aws_s3_bucket_public_access_block" "this" {
  bucket = aws_s3_bucket.this.id

  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    bucket_key_enabled = true

    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "this" {
  count = var.lifecycle_enabled ? 1 : 0

  bucket = aws_s3_bucket.this.id

  rule {
    id     = "abort-incomplete-multipart"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = var.retention.incomplete_multipart_days
    }
  }

  dynamic "rule" {
    for_each = local.expiry_days

    content {
      id     = "expire-${rule.key}"
      status = "Enabled"

      filter {
        prefix = "${rule.key}/"
      }

      expiration {
        days = rule.value
      }
    }
  }
}

resource "aws_s3_bucket_policy" "this" {
  bucket = aws_s3_bucket.this.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "TlsOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:*"
        Resource  = [var.bucket_arn, "${var.bucket_arn}/*"]
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
      {
        Sid       = "Tls12OrNewer"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:*"
        Resource  = [var.bucket_arn, "${var.bucket_arn}/*"]
        Condition = { NumericLessThan = { "s3:TlsVersion" = "1.2" } }
      },
      # A request that names no encryption gets the bucket's own, which is this key.
      {
        Sid       = "NoOtherEncryption"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:PutObject"
        Resource  = "${var.bucket_arn}/*"
        Condition = {
          StringNotEquals = { "s3:x-amz-server-side-encryption" = "aws:kms" }
          Null            = { "s3:x-amz-server-side-encryption" = "false" }
        }
      },
      {
        Sid       = "NoOtherKey"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:PutObject"
        Resource  = "${var.bucket_arn}/*"
        Condition = {
          StringNotEquals = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = var.kms_key_arn }
          Null            = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = "false" }
        }
      },
    ]
  })

  depends_on = [aws_s3_bucket_public_access_block.this]
}
