locals {
  # Lines hold whatever people ask a model: markup, paths, code. A rule that looks into bodies would refuse
  # honest batches, so these only count.
  body_rules = {
    AWSManagedRulesCommonRuleSet = [
      "CrossSiteScripting_BODY",
      "EC2MetaDataSSRF_BODY",
      "GenericLFI_BODY",
      "GenericRFI_BODY",
      "SizeRestrictions_BODY",
    ]
    AWSManagedRulesKnownBadInputsRuleSet = [
      "JavaDeserializationRCE_BODY",
      "Log4JRCE_BODY",
      "ReactJSRCE_BODY",
    ]
  }
}

resource "aws_wafv2_web_acl" "this" {
  #checkov:skip=CKV_AWS_192: The rule set against Log4j is there; only its look into bodies counts instead of blocking.
  #checkov:skip=CKV2_AWS_31: WAF logs hold whole headers, API keys with them; metrics and sampled requests are enough.
  count = var.waf.enabled ? 1 : 0

  name        = var.name
  description = "Guards the API of ${var.name}."
  scope       = "REGIONAL"

  default_action {
    allow {}
  }

  custom_response_body {
    key          = "too-many"
    content_type = "APPLICATION_JSON"
    content = jsonencode({
      error = {
        message = local.too_many.message
        type    = local.too_many.type
        param   = null
        code    = local.too_many.code
      }
    })
  }

  rule {
    name     = "rate-by-address"
    priority = 0

    action {
      block {
        custom_response {
          response_code            = 429
          custom_response_body_key = "too-many"

          response_header {
            name  = "retry-after"
            value = "30"
          }
        }
      }
    }

    statement {
      rate_based_statement {
        limit              = var.waf.rate_limit
        aggregate_key_type = "IP"
      }
    }

    visibility_config {
      metric_name                = "${var.name}-rate-by-address"
      cloudwatch_metrics_enabled = true
      sampled_requests_enabled   = true
    }
  }

  dynamic "rule" {
    for_each = local.body_rules

    content {
      name     = rule.key
      priority = 1 + index(keys(local.body_rules), rule.key)

      override_action {
        none {}
      }

      statement {
        managed_rule_group_statement {
          vendor_name = "AWS"
          name        = rule.key

          dynamic "rule_action_override" {
            for_each = rule.value

            content {
              name = rule_action_override.value

              action_to_use {
                count {}
              }
            }
          }
        }
      }

      visibility_config {
        metric_name                = "${var.name}-${rule.key}"
        cloudwatch_metrics_enabled = true
        sampled_requests_enabled   = true
      }
    }
  }

  visibility_config {
    metric_name                = var.name
    cloudwatch_metrics_enabled = true
    sampled_requests_enabled   = true
  }
}

resource "aws_wafv2_web_acl_association" "this" {
  count = var.waf.enabled ? 1 : 0

  resource_arn = aws_api_gateway_stage.this.arn
  web_acl_arn  = aws_wafv2_web_acl.this[0].arn
}
