mock_provider "aws" {
  source = "./tests/mocks"
}

run "every_queue_and_function_has_its_alarms" {
  command = plan

  module {
    source = "./modules/observability"
  }

  variables {
    name                    = "night"
    region                  = "eu-west-1"
    api_name                = "night"
    stage                   = "v1"
    functions               = { api = "night-api", reconcile = "night-reconcile" }
    queues                  = { validate = "night-validate", model-tiny-bulk = "night-model-tiny-bulk" }
    dead_letter_queues      = { validate = "night-validate-dead", model-tiny-bulk = "night-model-tiny-bulk-dead" }
    message_age_max_seconds = { model-tiny-bulk = 21600 }
    models                  = ["tiny"]
    profiles                = []
    topic_arns              = ["arn:aws:sns:eu-west-1:123456789012:alarms"]
    alarms_enabled          = true
    dashboard_enabled       = true
  }

  assert {
    condition = toset(keys(aws_cloudwatch_metric_alarm.this)) == toset([
      "dead-validate", "dead-model-tiny-bulk", "late-model-tiny-bulk", "errors-api", "errors-reconcile",
      "throttles-api", "throttles-reconcile", "api-5xx",
    ])
    error_message = "an alarm is missing: ${join(" ", keys(aws_cloudwatch_metric_alarm.this))}"
  }

  assert {
    condition     = alltrue([for alarm in concat(values(aws_cloudwatch_metric_alarm.this), aws_cloudwatch_metric_alarm.reconcile_rests) : tolist(alarm.alarm_actions) == var.topic_arns])
    error_message = "an alarm tells nobody"
  }

  assert {
    condition     = aws_cloudwatch_metric_alarm.this["dead-validate"].dimensions == tomap({ QueueName = "night-validate-dead" }) && aws_cloudwatch_metric_alarm.this["dead-validate"].threshold == 0
    error_message = "a message that was given up raises no alarm"
  }

  assert {
    condition = alltrue([
      strcontains(aws_cloudwatch_metric_alarm.this["dead-validate"].alarm_description, "the log of the function validate"),
      strcontains(aws_cloudwatch_metric_alarm.this["dead-model-tiny-bulk"].alarm_description, "the log of the model's workers"),
    ])
    error_message = "an alarm sends its reader to the wrong log"
  }

  assert {
    condition     = aws_cloudwatch_metric_alarm.reconcile_rests[0].treat_missing_data == "breaching"
    error_message = "a reconcile that never runs raises no alarm"
  }

  # CloudWatch refuses a graph without metrics.
  assert {
    condition     = alltrue([for widget in jsondecode(aws_cloudwatch_dashboard.this[0].dashboard_body).widgets : length(widget.properties.metrics) > 0])
    error_message = "a graph is empty"
  }
}
