# POST /uploads/{id}/parts: API Gateway itself puts the body into the bucket. No function sees the bytes, so a
# part may have 10 MB where a function's event ends at 6.

# A key comes in Authorization or in api-key. API Gateway answers 401 by itself where an identity source is absent, so
# no header may be one. Left out, the provider sets Authorization; the caller's address is always there. It is no key
# of a cache: there is none.
resource "aws_api_gateway_authorizer" "this" {
  name                             = "${var.name}-parts"
  rest_api_id                      = aws_api_gateway_rest_api.this.id
  type                             = "REQUEST"
  identity_source                  = "context.identity.sourceIp"
  authorizer_uri                   = var.functions["authorizer"].invoke_arn
  authorizer_result_ttl_in_seconds = 0 # Each answer names one new part.
}

resource "aws_lambda_permission" "authorizer" {
  statement_id  = "ApiGateway"
  action        = "lambda:InvokeFunction"
  function_name = var.functions["authorizer"].name
  principal     = "apigateway.amazonaws.com"
  source_arn    = "${aws_api_gateway_rest_api.this.execution_arn}/authorizers/${aws_api_gateway_authorizer.this.id}"
}

resource "aws_api_gateway_method" "parts" {
  #checkov:skip=CKV2_AWS_53: The body is opaque here; complete reads and checks it.
  rest_api_id   = aws_api_gateway_rest_api.this.id
  resource_id   = aws_api_gateway_resource.parts.id
  http_method   = "POST"
  authorization = "CUSTOM"
  authorizer_id = aws_api_gateway_authorizer.this.id

  request_parameters = {
    "method.request.header.Content-Type" = false
  }
}

resource "aws_api_gateway_integration" "parts" {
  rest_api_id             = aws_api_gateway_rest_api.this.id
  resource_id             = aws_api_gateway_resource.parts.id
  http_method             = aws_api_gateway_method.parts.http_method
  type                    = "AWS"
  integration_http_method = "PUT"
  credentials             = aws_iam_role.parts.arn
  uri                     = "arn:${var.arn_prefix.partition}:apigateway:${var.arn_prefix.region}:s3:path/${var.bucket}/uploads/{tenant}/{upload}/{part}"
  passthrough_behavior    = "WHEN_NO_MATCH"
  timeout_milliseconds    = local.integration_timeout_ms

  # All of the key comes from the authorizer, none of it from the client. The media type is stored with the
  # part: complete needs its boundary. The bucket's own default encrypts.
  request_parameters = {
    "integration.request.path.tenant"         = "context.authorizer.tenant"
    "integration.request.path.upload"         = "context.authorizer.upload"
    "integration.request.path.part"           = "context.authorizer.part"
    "integration.request.header.Content-Type" = "method.request.header.Content-Type"
  }
}

resource "aws_api_gateway_method_response" "stored" {
  rest_api_id = aws_api_gateway_rest_api.this.id
  resource_id = aws_api_gateway_resource.parts.id
  http_method = aws_api_gateway_method.parts.http_method
  status_code = "200"

  response_models = {
    "application/json" = "Empty"
  }

  response_parameters = {
    "method.response.header.x-request-id" = false
  }
}

resource "aws_api_gateway_integration_response" "stored" {
  rest_api_id       = aws_api_gateway_rest_api.this.id
  resource_id       = aws_api_gateway_resource.parts.id
  http_method       = aws_api_gateway_method.parts.http_method
  status_code       = aws_api_gateway_method_response.stored.status_code
  selection_pattern = "200"
  content_handling  = "CONVERT_TO_TEXT"

  response_templates = {
    "application/json" = "{\"id\":\"$context.authorizer.part\",\"object\":\"upload.part\",\"created_at\":$context.authorizer.created_at,\"upload_id\":\"$context.authorizer.upload\"}"
  }

  response_parameters = {
    "method.response.header.x-request-id" = "context.requestId"
  }

  depends_on = [aws_api_gateway_integration.parts]
}

resource "aws_api_gateway_method_response" "failed" {
  rest_api_id = aws_api_gateway_rest_api.this.id
  resource_id = aws_api_gateway_resource.parts.id
  http_method = aws_api_gateway_method.parts.http_method
  status_code = "503"

  response_models = {
    "application/json" = "Empty"
  }

  response_parameters = {
    "method.response.header.x-request-id"   = false
    "method.response.header.x-should-retry" = false
    "method.response.header.retry-after"    = false
  }
}

# Whatever S3 answers but 200, its redirects while a bucket is new included: the part is not stored.
resource "aws_api_gateway_integration_response" "failed" {
  rest_api_id      = aws_api_gateway_rest_api.this.id
  resource_id      = aws_api_gateway_resource.parts.id
  http_method      = aws_api_gateway_method.parts.http_method
  status_code      = aws_api_gateway_method_response.failed.status_code
  content_handling = "CONVERT_TO_TEXT"

  response_templates = {
    "application/json" = jsonencode({
      error = {
        message = "The part could not be stored. Please try again in a moment."
        type    = "server_error"
        param   = null
        code    = null
      }
    })
  }

  response_parameters = {
    "method.response.header.x-request-id"   = "context.requestId"
    "method.response.header.x-should-retry" = "'true'"
    "method.response.header.retry-after"    = "'1'"
  }

  depends_on = [aws_api_gateway_integration.parts]
}

# Anyone who may pass this role can make API Gateway use it. A condition on aws:SourceArn or aws:SourceAccount would
# narrow that to this API; AWS does not say that API Gateway sends either when it takes an integration's role, and
# without them such a condition would refuse every part. We have not tried it on a real account.
resource "aws_iam_role" "parts" {
  name        = "${var.name}-parts"
  description = "Lets API Gateway put parts of uploads into the bucket of ${var.name}, and nothing else."

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "apigateway.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy" "parts" {
  name = "work"
  role = aws_iam_role.parts.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid      = "PutParts"
      Effect   = "Allow"
      Action   = ["s3:PutObject"]
      Resource = ["${var.bucket_arn}/uploads/*"]
    }]
  })
}

resource "aws_iam_role_policy" "parts_key" {
  name = "keys"
  role = aws_iam_role.parts.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "UseKeyThroughS3"
      Effect    = "Allow"
      Action    = ["kms:Decrypt", "kms:GenerateDataKey"]
      Resource  = [var.kms_key_arn]
      Condition = { StringEquals = { "kms:ViaService" = "s3.${var.arn_prefix.region}.amazonaws.com" } }
    }]
  })
}
