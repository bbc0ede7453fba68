resource "aws_lambda_function" "this" {
  #checkov:skip=CKV_AWS_115: Reserved concurrency is a variable: a new account has too little to give any away.
  #checkov:skip=CKV_AWS_116: A lost event is only a delay: the next minute's event, or reconcile, brings the work back. Queues have their own dead-letter queues.
  #checkov:skip=CKV_AWS_117: A function calls only AWS services that have public endpoints; a VPC would add cost and cold start, not safety.
  #checkov:skip=CKV_AWS_173: The environment holds names and addresses, no secret.
  #checkov:skip=CKV_AWS_272: Zips are built and hashed by whoever applies; a signing profile is theirs to add.
  function_name                  = var.name
  description                    = var.description
  role                           = aws_iam_role.this.arn
  runtime                        = "provided.al2023"
  handler                        = "bootstrap"
  architectures                  = [var.architecture]
  filename                       = var.artifact
  source_code_hash               = filebase64sha256(var.artifact)
  memory_size                    = var.memory_mb
  timeout                        = var.timeout_seconds
  reserved_concurrent_executions = coalesce(var.reserved_concurrency, -1)

  environment {
    variables = var.environment
  }

  logging_config {
    log_format = "JSON"
    log_group  = aws_cloudwatch_log_group.this.name
  }

  tracing_config {
    mode = var.tracing ? "Active" : "PassThrough"
  }

  depends_on = [aws_iam_role_policy.work, aws_iam_role_policy.keys]
}

resource "aws_cloudwatch_log_group" "this" {
  #checkov:skip=CKV_AWS_338: Retention is a variable; 30 days are enough to find a fault, and keep less about tenants.
  name              = "/aws/lambda/${var.name}"
  retention_in_days = var.log_retention_days
  kms_key_id        = var.kms_key_arn
}

resource "aws_iam_role" "this" {
  name        = var.name
  description = "What the function ${var.name} may do."

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "lambda.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy" "work" {
  name = "work"
  role = aws_iam_role.this.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [for statement in var.statements : merge({ Effect = "Allow" }, statement)],
      [{
        Sid      = "WriteOwnLog"
        Effect   = "Allow"
        Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
        Resource = ["${var.log_group_arn}:log-stream:*"]
      }],
    )
  })
}

resource "aws_iam_role_policy" "keys" {
  name = "keys"
  role = aws_iam_role.this.id

  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [for statement in var.kms_statements : merge({ Effect = "Allow" }, statement)]
  })
}

# X-Ray has no resources to name: its actions take "*" alone. So they exist only where tracing is on.
resource "aws_iam_role_policy" "tracing" {
  #checkov:skip=CKV_AWS_355: X-Ray's two write actions support no resource but "*".
  #checkov:skip=CKV_AWS_290: X-Ray's two write actions support no resource but "*".
  count = var.tracing ? 1 : 0

  name = "tracing"
  role = aws_iam_role.this.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["xray:PutTelemetryRecords", "xray:PutTraceSegments"]
      Resource = "*"
    }]
  })
}
