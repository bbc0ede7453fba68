locals {
  widgets = [
    {
      title   = "Work that waits: tokens by model"
      stat    = "Maximum"
      metrics = [for model in var.models : ["Nightshift", "BacklogTokens", "Deployment", var.name, "Model", model, { label = model }]]
    },
    {
      title   = "Work that waits: shards by model"
      stat    = "Maximum"
      metrics = [for model in var.models : ["Nightshift", "BacklogShards", "Deployment", var.name, "Model", model, { label = model }]]
    },
    {
      title   = "Workers wanted, by profile"
      stat    = "Maximum"
      metrics = [for profile in var.profiles : ["Nightshift", "WorkersWanted", "Deployment", var.name, "Profile", profile, { label = profile }]]
    },
    {
      title   = "Oldest message in seconds, by queue"
      stat    = "Maximum"
      metrics = [for key, queue in var.queues : ["AWS/SQS", "ApproximateAgeOfOldestMessage", "QueueName", queue, { label = key }]]
    },
    {
      title   = "Messages given up, by queue"
      stat    = "Maximum"
      metrics = [for key, queue in var.dead_letter_queues : ["AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName", queue, { label = key }]]
    },
    {
      title = "Requests"
      stat  = "Sum"
      metrics = [
        for metric in ["Count", "4XXError", "5XXError"] : ["AWS/ApiGateway", metric, "ApiName", var.api_name, "Stage", var.stage, { label = metric }]
      ]
    },
    {
      title = "Latency of requests in milliseconds"
      stat  = "p95"
      metrics = [
        for metric in ["Latency", "IntegrationLatency"] : ["AWS/ApiGateway", metric, "ApiName", var.api_name, "Stage", var.stage, { label = metric }]
      ]
    },
    {
      title   = "Duration of functions in milliseconds"
      stat    = "Maximum"
      metrics = [for key, function in var.functions : ["AWS/Lambda", "Duration", "FunctionName", function, { label = key }]]
    },
    {
      title   = "Failed calls of functions"
      stat    = "Sum"
      metrics = [for key, function in var.functions : ["AWS/Lambda", "Errors", "FunctionName", function, { label = key }]]
    },
  ]

  # CloudWatch refuses a graph without metrics; three graphs make a row.
  graphs = [for widget in local.widgets : widget if length(widget.metrics) > 0]
}

resource "aws_cloudwatch_dashboard" "this" {
  count = var.dashboard_enabled ? 1 : 0

  dashboard_name = var.name

  dashboard_body = jsonencode({
    widgets = [
      for position, widget in local.graphs : {
        type   = "metric"
        x      = (position % 3) * 8
        y      = floor(position / 3) * 6
        width  = 8
        height = 6
        properties = {
          title   = widget.title
          region  = var.region
          view    = "timeSeries"
          stacked = false
          period  = 60
          stat    = widget.stat
          metrics = widget.metrics
          yAxis   = { left = { min = 0 } }
        }
      }
    ]
  })
}
