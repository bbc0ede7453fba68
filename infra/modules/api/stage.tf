resource "aws_api_gateway_stage" "this" {
  #checkov:skip=CKV_AWS_73: X-Ray is a variable: its rights cannot be narrowed to one resource.
  #checkov:skip=CKV_AWS_76: The access log is a variable: it needs a role that belongs to the whole account.
  #checkov:skip=CKV_AWS_120: Answers differ by key and change by the second; a cache would be wrong, and costs while idle.
  #checkov:skip=CKV2_AWS_4: The log level is set by aws_api_gateway_method_settings: off, as execution logs hold bodies and keys.
  #checkov:skip=CKV2_AWS_29: The web ACL is a variable, on by default.
  #checkov:skip=CKV2_AWS_77: The web ACL has the rule set against Log4j; only its look into bodies counts instead of blocking.
  #checkov:skip=CKV2_AWS_51: Clients prove themselves by API keys, as the OpenAI SDKs do; they have no certificates.
  rest_api_id          = aws_api_gateway_rest_api.this.id
  deployment_id        = aws_api_gateway_deployment.this.id
  stage_name           = var.stage
  xray_tracing_enabled = var.tracing

  dynamic "access_log_settings" {
    for_each = aws_cloudwatch_log_group.access

    content {
      destination_arn = access_log_settings.value.arn

      # No query string, header or body.
      format = jsonencode({
        request_id      = "$context.requestId"
        time            = "$context.requestTime"
        ip              = "$context.identity.sourceIp"
        method          = "$context.httpMethod"
        path            = "$context.path"
        protocol        = "$context.protocol"
        status          = "$context.status"
        response_bytes  = "$context.responseLength"
        latency_ms      = "$context.responseLatency"
        integration_ms  = "$context.integrationLatency"
        error_type      = "$context.error.responseType"
        waf_status      = "$context.waf.status"
        user_agent      = "$context.identity.userAgent"
        integration_err = "$context.integration.error"
      })
    }
  }

  depends_on = [aws_api_gateway_account.this]
}

resource "aws_api_gateway_method_settings" "this" {
  #checkov:skip=CKV_AWS_225: Answers differ by key and change by the second; a cache would be wrong.
  #checkov:skip=CKV_AWS_308: There is no cache to encrypt.
  rest_api_id = aws_api_gateway_rest_api.this.id
  stage_name  = aws_api_gateway_stage.this.stage_name
  method_path = "*/*"

  settings {
    throttling_rate_limit  = var.throttle.rate
    throttling_burst_limit = var.throttle.burst
    metrics_enabled        = true
    logging_level          = "OFF"
    data_trace_enabled     = false
  }
}

resource "aws_cloudwatch_log_group" "access" {
  #checkov:skip=CKV_AWS_338: Retention is a variable; addresses of clients should not be kept for a year.
  count = var.access_log.enabled ? 1 : 0

  name              = "/nightshift/${var.name}/access"
  retention_in_days = var.log_retention_days
  kms_key_id        = var.kms_key_arn
}

# API Gateway writes logs by one role for the whole account and region. An account that has one keeps it.
resource "aws_api_gateway_account" "this" {
  count = var.access_log.set_account_role ? 1 : 0

  cloudwatch_role_arn = aws_iam_role.access_log[0].arn
}

resource "aws_iam_role" "access_log" {
  count = var.access_log.set_account_role ? 1 : 0

  name        = "${var.name}-api-log"
  description = "Lets API Gateway write access logs in this account."

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "apigateway.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

# AWS's own policy for this: API Gateway refuses a role that may write only some groups.
resource "aws_iam_role_policy_attachment" "access_log" {
  count = var.access_log.set_account_role ? 1 : 0

  role       = aws_iam_role.access_log[0].name
  policy_arn = "arn:${var.arn_prefix.partition}:iam::aws:policy/service-role/AmazonAPIGatewayPushToCloudWatchLogs"
}

resource "aws_api_gateway_domain_name" "this" {
  count = var.domain == null ? 0 : 1

  domain_name              = var.domain.name
  regional_certificate_arn = var.domain.certificate_arn
  security_policy          = "TLS_1_2"

  endpoint_configuration {
    types = ["REGIONAL"]
  }
}

resource "aws_api_gateway_base_path_mapping" "this" {
  count = var.domain == null ? 0 : 1

  api_id      = aws_api_gateway_rest_api.this.id
  stage_name  = aws_api_gateway_stage.this.stage_name
  domain_name = aws_api_gateway_domain_name.this[0].domain_name
  base_path   = var.stage
}
