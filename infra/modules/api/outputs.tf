output "base_url" {
  description = "What an OpenAI SDK takes as base_url."
  value       = var.domain == null ? aws_api_gateway_stage.this.invoke_url : "https://${aws_api_gateway_domain_name.this[0].domain_name}/${var.stage}"

  # Nobody should call the URL before all of this is there.
  depends_on = [
    aws_api_gateway_base_path_mapping.this,
    aws_api_gateway_method_settings.this,
    aws_iam_role_policy.parts,
    aws_iam_role_policy.parts_key,
    aws_lambda_permission.api,
    aws_lambda_permission.authorizer,
    aws_wafv2_web_acl_association.this,
  ]
}

output "api_id" {
  description = "Id of the REST API."
  value       = aws_api_gateway_rest_api.this.id
}

output "host" {
  description = "Host of the REST API without a domain of yours."
  value       = "${aws_api_gateway_rest_api.this.id}.execute-api.${var.arn_prefix.region}.amazonaws.com"
}

output "domain_target" {
  description = "Host that your domain's DNS record points to; null without a domain."
  value       = one(aws_api_gateway_domain_name.this[*].regional_domain_name)
}
