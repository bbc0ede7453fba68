# What API Gateway answers by itself, in OpenAI's envelope. REQUEST_TOO_LARGE is missing: nobody can change it.
locals {
  wrong_key = {
    status  = "401"
    message = "No valid API key came with the request. Send it in an Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."
    type    = "invalid_request_error"
    code    = "invalid_api_key"
  }

  too_many = {
    status  = "429"
    message = "Rate limit reached for requests. Please slow down."
    type    = "rate_limit_exceeded"
    code    = "rate_limit_exceeded"
  }

  malformed = {
    status  = "400"
    message = "The request is malformed."
    type    = "invalid_request_error"
    code    = null
  }

  broken = {
    status  = "500"
    message = "The server had an error while processing your request."
    type    = "server_error"
    code    = null
  }

  late = {
    status  = "504"
    message = "The server took too long to answer. Please try again in a moment."
    type    = "server_error"
    code    = null
  }

  gateway_responses = {
    # The authorizer's own words; it makes them fit for JSON.
    ACCESS_DENIED                  = { status = "403", message = "$context.authorizer.message", type = "invalid_request_error", code = null }
    API_CONFIGURATION_ERROR        = local.broken
    AUTHORIZER_CONFIGURATION_ERROR = local.broken
    AUTHORIZER_FAILURE             = local.broken
    BAD_REQUEST_BODY               = local.malformed
    BAD_REQUEST_PARAMETERS         = local.malformed
    DEFAULT_4XX                    = { status = null, message = "The request cannot be served.", type = "invalid_request_error", code = null }
    DEFAULT_5XX                    = { status = null, message = local.broken.message, type = "server_error", code = null }
    EXPIRED_TOKEN                  = local.wrong_key
    INTEGRATION_FAILURE            = { status = "502", message = local.broken.message, type = "server_error", code = null }
    INTEGRATION_TIMEOUT            = local.late
    INVALID_API_KEY                = local.wrong_key
    INVALID_SIGNATURE              = local.wrong_key
    MISSING_AUTHENTICATION_TOKEN   = { status = "404", message = "Invalid URL.", type = "invalid_request_error", code = "unknown_url" }
    QUOTA_EXCEEDED                 = local.too_many
    RESOURCE_NOT_FOUND             = { status = "404", message = "Invalid URL.", type = "invalid_request_error", code = "unknown_url" }
    THROTTLED                      = local.too_many
    UNAUTHORIZED                   = local.wrong_key
    UNSUPPORTED_MEDIA_TYPE         = { status = "415", message = "Unsupported content type.", type = "invalid_request_error", code = null }
    WAF_FILTERED                   = { status = "403", message = "The request was refused by the service's firewall.", type = "invalid_request_error", code = null }
  }
}

resource "aws_api_gateway_gateway_response" "this" {
  for_each = local.gateway_responses

  rest_api_id   = aws_api_gateway_rest_api.this.id
  response_type = each.key
  status_code   = each.value.status

  response_templates = {
    "application/json" = jsonencode({
      error = {
        message = each.value.message
        type    = each.value.type
        param   = null
        code    = each.value.code
      }
    })
  }

  # What a retry may mend, an SDK shall retry.
  response_parameters = merge(
    { "gatewayresponse.header.x-request-id" = "context.requestId" },
    each.value.type == "invalid_request_error" ? {} : {
      "gatewayresponse.header.x-should-retry" = "'true'"
      "gatewayresponse.header.retry-after"    = "'1'"
    },
    each.value.status == "401" ? { "gatewayresponse.header.www-authenticate" = "'Bearer'" } : {},
  )
}
