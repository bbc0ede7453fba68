locals {
  flow_logs = local.create && var.flow_logs.enabled
}

resource "aws_cloudwatch_log_group" "flow" {
  #checkov:skip=CKV_AWS_338:How long logs are kept is the operator's choice.
  count = local.flow_logs ? 1 : 0

  name              = "/nightshift/${var.name}/flow"
  retention_in_days = var.flow_logs.retention_days
  kms_key_id        = var.flow_logs.kms_key_arn
  tags              = local.tags
}

resource "aws_flow_log" "this" {
  count = local.flow_logs ? 1 : 0

  vpc_id          = aws_vpc.this[0].id
  traffic_type    = "REJECT"
  log_destination = aws_cloudwatch_log_group.flow[0].arn
  iam_role_arn    = aws_iam_role.flow[0].arn
  tags            = local.tags
}

resource "aws_iam_role" "flow" {
  count = local.flow_logs ? 1 : 0

  name        = "${var.name}-flow-logs"
  description = "Writes the flow logs of Nightshift's VPC."
  tags        = local.tags
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "vpc-flow-logs.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "flow" {
  count = local.flow_logs ? 1 : 0

  name = "write"
  role = aws_iam_role.flow[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
      Resource = [aws_cloudwatch_log_group.flow[0].arn, "${aws_cloudwatch_log_group.flow[0].arn}:log-stream:*"]
    }]
  })
}
