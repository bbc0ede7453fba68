locals {
  error_percent = 5

  queue_alarms = merge(
    {
      for key, queue in var.dead_letter_queues : "dead-${key}" => {
        description = "Messages of ${key} were given up. No work is lost: reconcile asks for it again. Look into the log of ${startswith(key, "model-") ? "the model's workers" : "the function ${key}"}; when the fault is mended or the outage over, purge ${queue}."
        namespace   = "AWS/SQS"
        metric      = "ApproximateNumberOfMessagesVisible"
        dimensions  = { QueueName = queue }
        statistic   = "Maximum"
        threshold   = 0
        period      = 300
        periods     = 1
      }
    },
    {
      for key, seconds in var.message_age_max_seconds : "late-${key}" => {
        description = "A message waits in ${key} for more than ${seconds} seconds: nobody takes it. Are there workers for this model?"
        namespace   = "AWS/SQS"
        metric      = "ApproximateAgeOfOldestMessage"
        dimensions  = { QueueName = var.queues[key] }
        statistic   = "Maximum"
        threshold   = seconds
        period      = 300
        periods     = 2
      }
    },
  )

  function_alarms = merge(
    {
      for key, function in var.functions : "errors-${key}" => {
        description = "The function ${key} failed several times in five minutes."
        namespace   = "AWS/Lambda"
        metric      = "Errors"
        dimensions  = { FunctionName = function }
        statistic   = "Sum"
        threshold   = 2
        period      = 300
        periods     = 1
      }
    },
    {
      for key, function in var.functions : "throttles-${key}" => {
        description = "Calls of the function ${key} were refused: the account or the function has too little concurrency."
        namespace   = "AWS/Lambda"
        metric      = "Throttles"
        dimensions  = { FunctionName = function }
        statistic   = "Sum"
        threshold   = 0
        period      = 300
        periods     = 2
      }
    },
  )

  api_alarms = {
    api-5xx = {
      description = "More than ${local.error_percent} percent of requests end with a server's error."
      namespace   = "AWS/ApiGateway"
      metric      = "5XXError"
      dimensions  = { ApiName = var.api_name, Stage = var.stage }
      statistic   = "Average"
      threshold   = local.error_percent / 100
      period      = 300
      periods     = 2
    }
  }

  alarms = var.alarms_enabled ? merge(local.queue_alarms, local.function_alarms, local.api_alarms) : {}
}

resource "aws_cloudwatch_metric_alarm" "this" {
  for_each = local.alarms

  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = each.value.description
  namespace           = each.value.namespace
  metric_name         = each.value.metric
  dimensions          = each.value.dimensions
  statistic           = each.value.statistic
  comparison_operator = "GreaterThanThreshold"
  threshold           = each.value.threshold
  period              = each.value.period
  evaluation_periods  = each.value.periods
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.topic_arns
  ok_actions          = var.topic_arns
}

# No data is the very fault: without reconcile nothing that got lost comes back.
resource "aws_cloudwatch_metric_alarm" "reconcile_rests" {
  count = var.alarms_enabled ? 1 : 0

  alarm_name          = "${var.name}-reconcile-rests"
  alarm_description   = "Reconcile has not run for five minutes: lost leases, lost messages and closed windows stay as they are."
  namespace           = "AWS/Lambda"
  metric_name         = "Invocations"
  dimensions          = { FunctionName = var.functions["reconcile"] }
  statistic           = "Sum"
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  period              = 300
  evaluation_periods  = 1
  treat_missing_data  = "breaching"
  alarm_actions       = var.topic_arns
  ok_actions          = var.topic_arns
}
