module "function" {
  source   = "../function"
  for_each = var.functions

  name                 = "${var.name}-${each.key}"
  description          = each.value.description
  artifact             = "${var.artifacts_dir}/${each.key}.zip"
  architecture         = var.architecture
  memory_mb            = each.value.memory_mb
  timeout_seconds      = each.value.timeout_seconds
  environment          = var.environment
  statements           = local.statements[each.key]
  kms_statements       = local.kms_statements[each.key]
  log_group_arn        = "arn:${var.arn_prefix.partition}:logs:${var.arn_prefix.region}:${var.arn_prefix.account}:log-group:/aws/lambda/${var.name}-${each.key}"
  log_retention_days   = var.log_retention_days
  kms_key_arn          = var.kms_key_arn
  tracing              = var.tracing
  reserved_concurrency = lookup(var.reserved_concurrency, each.key, null)
}
