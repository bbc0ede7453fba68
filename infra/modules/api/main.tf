locals {
  integration_timeout_ms = 29000

  # Every resource gets ANY: a resource without it would answer a known path with API Gateway's own 403, and
  # the API's own router says better what is wrong.
  proxied = {
    root    = aws_api_gateway_rest_api.this.root_resource_id
    any     = aws_api_gateway_resource.any.id
    uploads = aws_api_gateway_resource.uploads.id
    upload  = aws_api_gateway_resource.upload.id
    verbs   = aws_api_gateway_resource.verbs.id
    parts   = aws_api_gateway_resource.parts.id
  }

  # Whatever these files say, with whatever they are given: a deployment is a copy, and takes no later change.
  deployed = {
    files            = { for file in ["main.tf", "parts.tf", "gateway_responses.tf"] : file => filesha256("${path.module}/${file}") }
    resources        = local.proxied
    default_endpoint = var.default_endpoint
    authorizer       = aws_api_gateway_authorizer.this.id
    functions        = { for name, function in var.functions : name => function.invoke_arn }
    parts_role       = aws_iam_role.parts.arn
    bucket           = var.bucket
    kms_key          = var.kms_key_arn
  }
}

resource "aws_api_gateway_rest_api" "this" {
  name                         = var.name
  description                  = "OpenAI-compatible batch API of ${var.name}."
  binary_media_types           = ["*/*"]
  disable_execute_api_endpoint = !var.default_endpoint

  endpoint_configuration {
    types = ["REGIONAL"]
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_api_gateway_resource" "any" {
  rest_api_id = aws_api_gateway_rest_api.this.id
  parent_id   = aws_api_gateway_rest_api.this.root_resource_id
  path_part   = "{proxy+}"
}

resource "aws_api_gateway_resource" "uploads" {
  rest_api_id = aws_api_gateway_rest_api.this.id
  parent_id   = aws_api_gateway_rest_api.this.root_resource_id
  path_part   = "uploads"
}

resource "aws_api_gateway_resource" "upload" {
  rest_api_id = aws_api_gateway_rest_api.this.id
  parent_id   = aws_api_gateway_resource.uploads.id
  path_part   = "{id}"
}

resource "aws_api_gateway_resource" "verbs" {
  rest_api_id = aws_api_gateway_rest_api.this.id
  parent_id   = aws_api_gateway_resource.upload.id
  path_part   = "{proxy+}"
}

resource "aws_api_gateway_resource" "parts" {
  rest_api_id = aws_api_gateway_rest_api.this.id
  parent_id   = aws_api_gateway_resource.upload.id
  path_part   = "parts"
}

resource "aws_api_gateway_method" "proxied" {
  #checkov:skip=CKV_AWS_59: The function judges the key itself, so that a wrong one gets OpenAI's exact error.
  #checkov:skip=CKV2_AWS_53: The function checks every request; a model of API Gateway's would answer in its own words.
  for_each = local.proxied

  rest_api_id   = aws_api_gateway_rest_api.this.id
  resource_id   = each.value
  http_method   = "ANY"
  authorization = "NONE"
}

resource "aws_api_gateway_integration" "proxied" {
  for_each = local.proxied

  rest_api_id             = aws_api_gateway_rest_api.this.id
  resource_id             = each.value
  http_method             = aws_api_gateway_method.proxied[each.key].http_method
  type                    = "AWS_PROXY"
  integration_http_method = "POST"
  uri                     = var.functions["api"].invoke_arn
  timeout_milliseconds    = local.integration_timeout_ms
}

resource "aws_lambda_permission" "api" {
  statement_id  = "ApiGateway"
  action        = "lambda:InvokeFunction"
  function_name = var.functions["api"].name
  principal     = "apigateway.amazonaws.com"
  source_arn    = "${aws_api_gateway_rest_api.this.execution_arn}/${var.stage}/*"
}

resource "aws_api_gateway_deployment" "this" {
  rest_api_id = aws_api_gateway_rest_api.this.id

  triggers = {
    definition = sha256(jsonencode(local.deployed))
  }

  depends_on = [
    aws_api_gateway_integration.proxied,
    aws_api_gateway_integration.parts,
    aws_api_gateway_integration_response.stored,
    aws_api_gateway_integration_response.failed,
    aws_api_gateway_gateway_response.this,
  ]

  lifecycle {
    create_before_destroy = true
  }
}
