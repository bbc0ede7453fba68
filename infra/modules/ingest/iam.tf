locals {
  ecr = try(regex("^(?P<account>[0-9]{12})\\.dkr\\.ecr\\.(?P<region>[a-z0-9-]+)\\.amazonaws\\.com(?:\\.cn)?/(?P<repository>[a-z0-9._/-]+)(?::[^@/]+)?@", var.image), null)

  # What the api function may do, as the tasks run its router.
  task_statements = concat(
    [
      {
        Sid    = "Records"
        Effect = "Allow"
        # A transaction asks for the right of each of its actions.
        Action   = ["dynamodb:ConditionCheckItem", "dynamodb:DeleteItem", "dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:Query", "dynamodb:UpdateItem"]
        Resource = [var.table_arn]
      },
      {
        Sid      = "ReadFiles"
        Effect   = "Allow"
        Action   = ["s3:GetObject"]
        Resource = ["${var.bucket_arn}/files/*", "${var.bucket_arn}/outputs/*", "${var.bucket_arn}/uploads/*"]
      },
      {
        # For deleting what is left of an upload, and because S3 answers 403 without it where an object is not there.
        Sid      = "TellMissingBlobs"
        Effect   = "Allow"
        Action   = ["s3:ListBucket"]
        Resource = [var.bucket_arn]
      },
      {
        Sid      = "WriteFiles"
        Effect   = "Allow"
        Action   = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:PutObject"]
        Resource = ["${var.bucket_arn}/files/*", "${var.bucket_arn}/uploads/*"]
      },
      {
        Sid      = "Stages"
        Effect   = "Allow"
        Action   = ["sqs:SendMessage"]
        Resource = var.send_queue_arns
      },
      {
        Sid       = "Key"
        Effect    = "Allow"
        Action    = ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey", "kms:ReEncryptFrom", "kms:ReEncryptTo"]
        Resource  = [var.kms_key_arn]
        Condition = { StringEquals = { "kms:ViaService" = [for service in ["dynamodb", "s3", "sqs"] : "${service}.${var.region}.amazonaws.com"] } }
      },
    ],
    length(var.imports.locations) == 0 ? [] : [
      {
        Sid      = "ReadImports"
        Effect   = "Allow"
        Action   = ["s3:GetObject"]
        Resource = [for location in var.imports.locations : "arn:${local.partition}:s3:::${trimprefix(location, "s3://")}*"]
      },
    ],
    length(var.imports.kms_key_arns) == 0 ? [] : [
      {
        Sid       = "DecryptImports"
        Effect    = "Allow"
        Action    = ["kms:Decrypt"]
        Resource  = var.imports.kms_key_arns
        Condition = { StringEquals = { "kms:ViaService" = ["s3.${var.region}.amazonaws.com"] } }
      },
    ],
  )

  execution_statements = concat(
    [
      {
        Sid      = "Logs"
        Effect   = "Allow"
        Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
        Resource = ["${aws_cloudwatch_log_group.this.arn}:log-stream:*"]
      },
    ],
    local.ecr == null ? [] : [
      {
        Sid      = "PullImage"
        Effect   = "Allow"
        Action   = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
        Resource = ["arn:${local.partition}:ecr:${local.ecr.region}:${local.ecr.account}:repository/${local.ecr.repository}"]
      },
      {
        # The one action here that has no resource: it answers with a token for what the role may pull.
        Sid      = "RegistryLogin"
        Effect   = "Allow"
        Action   = ["ecr:GetAuthorizationToken"]
        Resource = ["*"]
      },
    ],
  )

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ecs-tasks.amazonaws.com" }
      # No other account may make ECS use the role for it.
      Condition = { StringEquals = { "aws:SourceAccount" = local.arn[4] } }
    }]
  })
}

resource "aws_iam_role" "task" {
  name               = "${local.name}-task"
  description        = "The API router in the tasks of ingest."
  assume_role_policy = local.assume_role_policy
  tags               = local.tags
}

resource "aws_iam_role_policy" "task" {
  name   = "task"
  role   = aws_iam_role.task.id
  policy = jsonencode({ Version = "2012-10-17", Statement = local.task_statements })
}

resource "aws_iam_role" "execution" {
  name               = "${local.name}-execution"
  description        = "Starts the tasks of ingest: pulls their image, writes their logs."
  assume_role_policy = local.assume_role_policy
  tags               = local.tags
}

resource "aws_iam_role_policy" "execution" {
  name   = "execution"
  role   = aws_iam_role.execution.id
  policy = jsonencode({ Version = "2012-10-17", Statement = local.execution_statements })
}
