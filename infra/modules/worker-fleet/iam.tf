locals {
  # <account>.dkr.ecr.<region>.amazonaws.com/<repository>[:<tag>]@sha256:...: only a registry of ECR needs rights.
  ecr = try(regex("^(?P<account>[0-9]{12})\\.dkr\\.ecr\\.(?P<region>[a-z0-9-]+)\\.amazonaws\\.com(?:\\.cn)?/(?P<repository>[a-z0-9._/-]+)(?::[^@/]+)?@", var.image), null)

  weights = [
    for location in var.weights_locations : {
      bucket_arn = "arn:${local.partition}:s3:::${split("/", location)[2]}"
      key        = join("/", slice(split("/", location), 3, length(split("/", location))))
    }
  ]
  # A location that ends with a slash is a folder; all else is one object.
  weight_arns    = [for weight in local.weights : "${weight.bucket_arn}/${weight.key}${endswith(weight.key, "/") ? "*" : ""}"]
  weight_folders = { for weight in local.weights : weight.bucket_arn => weight.key... if endswith(weight.key, "/") }

  secret_arns = sort(distinct(values(var.settings.secrets)))

  services = { for service in concat(["dynamodb", "s3", "sqs"], length(local.secret_arns) == 0 ? [] : ["secretsmanager"]) : service => "${service}.${var.region}.amazonaws.com" }

  statements = concat(
    [
      {
        Sid    = "Records"
        Effect = "Allow"
        # A transaction asks for the right of each of its actions. A worker never queries: messages name its shards.
        Action   = ["dynamodb:ConditionCheckItem", "dynamodb:DeleteItem", "dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:UpdateItem"]
        Resource = [var.table_arn]
      },
      {
        Sid      = "ReadShardsAndSegments"
        Effect   = "Allow"
        Action   = ["s3:GetObject"]
        Resource = ["${var.bucket_arn}/shards/*", "${var.bucket_arn}/results/*"]
      },
      {
        # Without it S3 answers 403 where an object is not there, and a missing shard would look like a refusal.
        Sid      = "TellMissingBlobs"
        Effect   = "Allow"
        Action   = ["s3:ListBucket"]
        Resource = [var.bucket_arn]
      },
      {
        Sid      = "WriteSegments"
        Effect   = "Allow"
        Action   = ["s3:PutObject"]
        Resource = ["${var.bucket_arn}/results/*"]
      },
      {
        # Send as well: a worker that drains hands its shards back to the queue that they came from.
        Sid      = "OwnQueues"
        Effect   = "Allow"
        Action   = ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage", "sqs:SendMessage"]
        Resource = var.queue_arns
      },
      {
        Sid      = "OtherStages"
        Effect   = "Allow"
        Action   = ["sqs:SendMessage"]
        Resource = var.send_queue_arns
      },
      {
        Sid       = "Key"
        Effect    = "Allow"
        Action    = ["kms:Decrypt", "kms:GenerateDataKey"]
        Resource  = [var.kms_key_arn]
        Condition = { StringEquals = { "kms:ViaService" = values(local.services) } }
      },
      {
        Sid      = "Logs"
        Effect   = "Allow"
        Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
        Resource = ["${aws_cloudwatch_log_group.worker.arn}:log-stream:*"]
      },
    ],
    length(local.weight_arns) == 0 ? [] : [
      {
        Sid      = "ReadWeights"
        Effect   = "Allow"
        Action   = ["s3:GetObject"]
        Resource = local.weight_arns
      },
    ],
    [
      for index, bucket_arn in keys(local.weight_folders) : {
        Sid       = "ListWeights${index}"
        Effect    = "Allow"
        Action    = ["s3:ListBucket"]
        Resource  = [bucket_arn]
        Condition = { StringLike = { "s3:prefix" = flatten([for folder in local.weight_folders[bucket_arn] : [folder, "${folder}*"]]) } }
      }
    ],
    length(var.weights_kms_key_arns) == 0 ? [] : [
      {
        Sid       = "WeightsKeys"
        Effect    = "Allow"
        Action    = ["kms:Decrypt"]
        Resource  = var.weights_kms_key_arns
        Condition = { StringEquals = { "kms:ViaService" = [local.services.s3] } }
      },
    ],
    length(local.secret_arns) == 0 ? [] : [
      {
        Sid      = "ReadSecrets"
        Effect   = "Allow"
        Action   = ["secretsmanager:GetSecretValue"]
        Resource = local.secret_arns
      },
    ],
    local.ecr == null ? [] : [
      {
        Sid      = "PullImage"
        Effect   = "Allow"
        Action   = ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
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
}

resource "aws_iam_role" "worker" {
  name        = local.group_name
  description = "Nightshift workers of profile ${var.profile}."
  tags        = local.tags
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "worker" {
  name   = "worker"
  role   = aws_iam_role.worker.id
  policy = jsonencode({ Version = "2012-10-17", Statement = local.statements })
}

# Apart, because it names the group, which itself waits for the policy above.
resource "aws_iam_role_policy" "lifecycle" {
  name = "lifecycle"
  role = aws_iam_role.worker.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid      = "EndOwnDrain"
      Effect   = "Allow"
      Action   = ["autoscaling:CompleteLifecycleAction"]
      Resource = [aws_autoscaling_group.worker.arn]
    }]
  })
}

resource "aws_iam_role_policy_attachment" "session_manager" {
  count = var.settings.session_manager ? 1 : 0

  role       = aws_iam_role.worker.name
  policy_arn = "arn:${local.partition}:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_instance_profile" "worker" {
  name = local.group_name
  role = aws_iam_role.worker.name
  tags = local.tags
}
