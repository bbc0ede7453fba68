resource "aws_lambda_event_source_mapping" "this" {
  for_each = var.triggers

  event_source_arn                   = var.source_arns[each.key]
  function_name                      = module.function[each.key].arn
  batch_size                         = each.value.batch_size
  maximum_batching_window_in_seconds = each.value.window_seconds
  function_response_types            = ["ReportBatchItemFailures"]

  scaling_config {
    maximum_concurrency = each.value.concurrency_maximum
  }
}

# Rules, not EventBridge Scheduler: they need no role of their own, and emulators run them.
resource "aws_cloudwatch_event_rule" "this" {
  for_each = var.scheduled

  name                = "${var.name}-${each.key}"
  description         = "Calls ${each.key} every minute."
  schedule_expression = "rate(1 minute)"
}

resource "aws_cloudwatch_event_target" "this" {
  for_each = var.scheduled

  rule      = aws_cloudwatch_event_rule.this[each.key].name
  target_id = each.key
  arn       = module.function[each.key].arn
}

resource "aws_lambda_permission" "rule" {
  for_each = var.scheduled

  statement_id  = "EveryMinute"
  action        = "lambda:InvokeFunction"
  function_name = module.function[each.key].name
  principal     = "events.amazonaws.com"
  source_arn    = aws_cloudwatch_event_rule.this[each.key].arn
}

# The next minute brings the next event; a late or repeated one only adds load.
resource "aws_lambda_function_event_invoke_config" "this" {
  for_each = var.scheduled

  function_name                = module.function[each.key].name
  maximum_event_age_in_seconds = 60
  maximum_retry_attempts       = 0
}
