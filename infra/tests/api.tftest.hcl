mock_provider "aws" {
  source = "./tests/mocks"

  mock_resource "aws_api_gateway_rest_api" {
    override_during = plan
    defaults = {
      id               = "api123"
      root_resource_id = "root123"
      execution_arn    = "arn:aws:execute-api:eu-west-1:123456789012:api123"
    }
  }

  mock_resource "aws_api_gateway_authorizer" {
    override_during = plan
    defaults        = { id = "auth123" }
  }

  mock_resource "aws_api_gateway_resource" {
    override_during = plan
    defaults        = { id = "resource123" }
  }

  mock_resource "aws_iam_role" {
    override_during = plan
    defaults        = { arn = "arn:aws:iam::123456789012:role/night-parts" }
  }
}

variables {
  name               = "night"
  stage              = "v1"
  arn_prefix         = { partition = "aws", region = "eu-west-1", account = "123456789012" }
  bucket             = "night-files"
  bucket_arn         = "arn:aws:s3:::night-files"
  kms_key_arn        = "arn:aws:kms:eu-west-1:123456789012:key/k"
  throttle           = { rate = 100, burst = 200 }
  waf                = { enabled = true, rate_limit = 5000 }
  access_log         = { enabled = true, set_account_role = false }
  domain             = null
  default_endpoint   = true
  tracing            = false
  log_retention_days = 30

  functions = {
    for function in ["api", "authorizer"] : function => {
      name       = "night-${function}"
      arn        = "arn:aws:lambda:eu-west-1:123456789012:function:night-${function}"
      invoke_arn = "arn:aws:apigateway:eu-west-1:lambda:path/2015-03-31/functions/arn:aws:lambda:eu-west-1:123456789012:function:night-${function}/invocations"
    }
  }
}

run "api_speaks_openai" {
  command = plan

  module {
    source = "./modules/api"
  }

  # Every answer of API Gateway's own has the envelope, all four keys, and retries where they help.
  assert {
    condition = alltrue([
      for response in aws_api_gateway_gateway_response.this : alltrue([
        for body in values(response.response_templates) : keys(jsondecode(body)) == ["error"] && keys(jsondecode(body).error) == ["code", "message", "param", "type"]
      ]) && join(" ", keys(response.response_templates)) == "application/json"
    ])
    error_message = "an answer of API Gateway is not in OpenAI's envelope"
  }

  assert {
    condition = toset(keys(aws_api_gateway_gateway_response.this)) == toset([
      "ACCESS_DENIED", "API_CONFIGURATION_ERROR", "AUTHORIZER_CONFIGURATION_ERROR", "AUTHORIZER_FAILURE",
      "BAD_REQUEST_BODY", "BAD_REQUEST_PARAMETERS", "DEFAULT_4XX", "DEFAULT_5XX", "EXPIRED_TOKEN",
      "INTEGRATION_FAILURE", "INTEGRATION_TIMEOUT", "INVALID_API_KEY", "INVALID_SIGNATURE",
      "MISSING_AUTHENTICATION_TOKEN", "QUOTA_EXCEEDED", "RESOURCE_NOT_FOUND", "THROTTLED", "UNAUTHORIZED",
      "UNSUPPORTED_MEDIA_TYPE", "WAF_FILTERED",
    ])
    error_message = "an answer that can be changed is left as it is"
  }

  assert {
    condition = [
      for type in ["UNAUTHORIZED", "ACCESS_DENIED", "THROTTLED", "QUOTA_EXCEEDED", "INTEGRATION_TIMEOUT", "INTEGRATION_FAILURE", "WAF_FILTERED"] : aws_api_gateway_gateway_response.this[type].status_code
    ] == ["401", "403", "429", "429", "504", "502", "403"]
    error_message = "an answer has another status"
  }

  assert {
    condition     = jsondecode(aws_api_gateway_gateway_response.this["UNAUTHORIZED"].response_templates["application/json"]).error.code == "invalid_api_key"
    error_message = "a wrong key has another code"
  }

  assert {
    condition     = jsondecode(aws_api_gateway_gateway_response.this["ACCESS_DENIED"].response_templates["application/json"]).error.message == "$context.authorizer.message"
    error_message = "the authorizer's words are lost"
  }

  assert {
    condition = alltrue([
      for type in ["THROTTLED", "INTEGRATION_TIMEOUT", "DEFAULT_5XX"] : aws_api_gateway_gateway_response.this[type].response_parameters["gatewayresponse.header.x-should-retry"] == "'true'"
    ])
    error_message = "an SDK would give up where a retry helps"
  }

  # Everything but a part goes to the api function, and the function judges the key.
  assert {
    condition = alltrue([
      for integration in aws_api_gateway_integration.proxied : integration.type == "AWS_PROXY" && integration.timeout_milliseconds == 29000 && integration.uri == var.functions["api"].invoke_arn
    ])
    error_message = "a route goes elsewhere than to the api function"
  }

  assert {
    condition     = aws_api_gateway_rest_api.this.binary_media_types == tolist(["*/*"])
    error_message = "bodies would be read as text"
  }
}

run "parts_go_to_their_own_folder" {
  command = plan

  module {
    source = "./modules/api"
  }

  assert {
    condition     = aws_api_gateway_method.parts.authorization == "CUSTOM" && aws_api_gateway_authorizer.this.authorizer_result_ttl_in_seconds == 0
    error_message = "a part can be stored without the authorizer, or twice under one name"
  }

  # A key may be in api-key alone: a header as an identity source would be a 401 without asking the authorizer.
  assert {
    condition     = aws_api_gateway_authorizer.this.identity_source == "context.identity.sourceIp"
    error_message = "a request needs a certain header before the authorizer is asked"
  }

  assert {
    condition = (
      aws_api_gateway_integration.parts.uri == "arn:aws:apigateway:eu-west-1:s3:path/night-files/uploads/{tenant}/{upload}/{part}" &&
      aws_api_gateway_integration.parts.integration_http_method == "PUT" &&
      alltrue([for segment in ["tenant", "upload", "part"] : aws_api_gateway_integration.parts.request_parameters["integration.request.path.${segment}"] == "context.authorizer.${segment}"])
    )
    error_message = "a part's key does not come from the authorizer alone"
  }

  assert {
    condition = [for statement in jsondecode(aws_iam_role_policy.parts.policy).Statement : [statement.Action, statement.Resource]] == [
      [["s3:PutObject"], ["arn:aws:s3:::night-files/uploads/*"]]
    ]
    error_message = "API Gateway may do more than put parts"
  }

  assert {
    condition     = jsondecode(aws_api_gateway_integration_response.failed.response_templates["application/json"]).error.type == "server_error" && aws_api_gateway_integration_response.failed.selection_pattern == null
    error_message = "a failed put is not told as one"
  }

  assert {
    condition = jsondecode(
      replace(aws_api_gateway_integration_response.stored.response_templates["application/json"], "$context.authorizer.created_at", "1790000000")
      ) == {
      id         = "$context.authorizer.part"
      object     = "upload.part"
      created_at = 1790000000
      upload_id  = "$context.authorizer.upload"
    }
    error_message = "a stored part is described otherwise"
  }

  assert {
    condition     = aws_api_gateway_method_settings.this.settings[0].throttling_rate_limit == 100 && aws_api_gateway_method_settings.this.settings[0].throttling_burst_limit == 200
    error_message = "the stage is not throttled"
  }

  assert {
    condition     = aws_api_gateway_method_settings.this.settings[0].logging_level == "OFF" && !aws_api_gateway_method_settings.this.settings[0].data_trace_enabled
    error_message = "execution logs would hold bodies and keys"
  }

  assert {
    condition = alltrue([
      for secret in ["queryString", "header", "body", "apiKey", "Authorization"] : !strcontains(one(aws_api_gateway_stage.this.access_log_settings).format, secret)
    ])
    error_message = "the access log holds what it must not"
  }

  assert {
    condition     = length(aws_wafv2_web_acl_association.this) == 1
    error_message = "no web ACL guards the stage"
  }

  # No rule may refuse a batch for what its prompts say.
  assert {
    condition = {
      for group in flatten([for rule in aws_wafv2_web_acl.this[0].rule : rule.statement[0].managed_rule_group_statement]) :
      group.name => toset([for override in group.rule_action_override : override.name if length(override.action_to_use[0].count) == 1])
      } == {
      AWSManagedRulesCommonRuleSet = toset([
        "CrossSiteScripting_BODY", "EC2MetaDataSSRF_BODY", "GenericLFI_BODY", "GenericRFI_BODY", "SizeRestrictions_BODY",
      ])
      AWSManagedRulesKnownBadInputsRuleSet = toset(["JavaDeserializationRCE_BODY", "Log4JRCE_BODY", "ReactJSRCE_BODY"])
    }
    error_message = "a rule that looks into bodies blocks, or another one does not"
  }
}

# A stage serves a copy of the API: what is in no trigger changes for nobody.
run "every_change_makes_a_deployment" {
  command = plan

  module {
    source = "./modules/api"
  }

  variables {
    domain           = { name = "batch.example.com", certificate_arn = "arn:aws:acm:eu-west-1:123456789012:certificate/c" }
    default_endpoint = false
  }

  assert {
    condition     = aws_api_gateway_deployment.this.triggers["definition"] == sha256(jsonencode(local.deployed))
    error_message = "a deployment is made for something else than what was written"
  }

  assert {
    condition = alltrue([
      keys(local.deployed.files) == ["gateway_responses.tf", "main.tf", "parts.tf"],
      keys(local.deployed.resources) == ["any", "parts", "root", "upload", "uploads", "verbs"],
      local.deployed.functions == { for name, function in var.functions : name => function.invoke_arn },
      local.deployed.authorizer == "auth123",
      local.deployed.parts_role == "arn:aws:iam::123456789012:role/night-parts",
      local.deployed.bucket == "night-files",
      local.deployed.kms_key == var.kms_key_arn,
    ])
    error_message = "a part of the API can change without a deployment"
  }

  assert {
    condition     = aws_api_gateway_rest_api.this.disable_execute_api_endpoint == !local.deployed.default_endpoint
    error_message = "closing the execute-api host reaches no stage"
  }
}
