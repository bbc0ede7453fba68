locals {
  # A policy of Auto Scaling has at most 20 steps. The first is "none wanted".
  steps_max = 20

  # What the group can be told to be: every size up to 19; above that, every size as long as the geometric
  # series from 1 to workers_max is below it, then that series. Rounds up to the next size, never down.
  sizes = (
    var.settings.workers_max < local.steps_max
    ? range(0, var.settings.workers_max + 1)
    : concat(
      [0],
      [
        for step in range(1, local.steps_max - 1) :
        max(step, floor(pow(var.settings.workers_max, step / (local.steps_max - 1))))
      ],
      [var.settings.workers_max],
    )
  )

  # A step holds from one above the size before it, up to and with its own size; the last holds whatever is above.
  steps = [
    for index, size in local.sizes : {
      from = index == 0 ? 0 : local.sizes[index - 1] + 1
      to   = index == length(local.sizes) - 1 ? null : size + 1
      size = size
    }
  ]

  dimensions = { Deployment = var.name, Profile = var.profile }
}

resource "aws_autoscaling_policy" "wanted" {
  name                    = "wanted"
  autoscaling_group_name  = aws_autoscaling_group.worker.name
  policy_type             = "StepScaling"
  adjustment_type         = "ExactCapacity"
  metric_aggregation_type = "Maximum"

  dynamic "step_adjustment" {
    for_each = local.steps
    content {
      metric_interval_lower_bound = step_adjustment.value.from
      metric_interval_upper_bound = step_adjustment.value.to
      scaling_adjustment          = step_adjustment.value.size
    }
  }
}

# Not a fault: a number that is never below zero is always "in alarm", so that the policy runs every minute.
resource "aws_cloudwatch_metric_alarm" "wanted" {
  alarm_name          = "${local.group_name}-scaling"
  alarm_description   = "Sets the size of ${local.group_name}. Always in alarm while dispatch runs; not a fault."
  namespace           = "Nightshift"
  metric_name         = "WorkersWanted"
  dimensions          = local.dimensions
  statistic           = "Maximum"
  period              = var.settings.scale_in_minutes * 60
  evaluation_periods  = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  threshold           = 0
  # Without a number the group stays as it is.
  treat_missing_data = "missing"
  alarm_actions      = [aws_autoscaling_policy.wanted.arn]
  tags               = local.tags
}

resource "aws_cloudwatch_metric_alarm" "no_worker" {
  alarm_name          = "${local.group_name}-none-in-service"
  alarm_description   = "For 15 minutes workers of profile ${var.profile} were wanted and none was in service: look at the group's activity (capacity, quota, image) and at the workers' logs."
  evaluation_periods  = 15
  datapoints_to_alarm = 15
  comparison_operator = "GreaterThanOrEqualToThreshold"
  threshold           = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
  tags                = local.tags

  metric_query {
    id          = "none"
    expression  = "IF(FILL(wanted, 0) > 0 AND FILL(working, 0) < 1, 1, 0)"
    label       = "Wanted, and none in service"
    return_data = true
  }

  metric_query {
    id = "wanted"
    metric {
      namespace   = "Nightshift"
      metric_name = "WorkersWanted"
      dimensions  = local.dimensions
      stat        = "Maximum"
      period      = 60
    }
  }

  metric_query {
    id = "working"
    metric {
      namespace   = "AWS/AutoScaling"
      metric_name = "GroupInServiceInstances"
      dimensions  = { AutoScalingGroupName = aws_autoscaling_group.worker.name }
      stat        = "Maximum"
      period      = 60
    }
  }
}
