# The table from workers wanted to the group's size.
mock_provider "aws" {
  override_during = plan

  mock_resource "aws_autoscaling_group" {
    defaults = { arn = "arn:aws:autoscaling:eu-west-1:123456789012:autoScalingGroup:11111111-2222-3333-4444-555555555555:autoScalingGroupName/night-gpu-workers" }
  }
  mock_resource "aws_iam_instance_profile" {
    defaults = { arn = "arn:aws:iam::123456789012:instance-profile/night-gpu-workers" }
  }
  mock_resource "aws_autoscaling_policy" {
    defaults = { arn = "arn:aws:autoscaling:eu-west-1:123456789012:scalingPolicy:1:autoScalingGroupName/night-gpu-workers:policyName/wanted" }
  }
  mock_resource "aws_launch_template" {
    defaults = { id = "lt-0123456789abcdef0", latest_version = 1 }
  }
}

variables {
  name            = "night"
  profile         = "gpu"
  region          = "eu-west-1"
  settings        = { models = ["m"], workers_max = 3 }
  environment     = {}
  vpc_id          = "vpc-1"
  subnet_ids      = ["subnet-1"]
  image           = "ghcr.io/example/nightshift@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
  table_arn       = "arn:aws:dynamodb:eu-west-1:123456789012:table/night"
  bucket_arn      = "arn:aws:s3:::night-data"
  queue_arns      = ["arn:aws:sqs:eu-west-1:123456789012:night-model-m-fast"]
  send_queue_arns = ["arn:aws:sqs:eu-west-1:123456789012:night-dispatch"]
  kms_key_arn     = "arn:aws:kms:eu-west-1:123456789012:key/1"
}

run "three_workers_have_four_sizes" {
  command = plan

  assert {
    condition     = jsonencode([for step in local.steps : [step.from, step.to, step.size]]) == "[[0,1,0],[1,2,1],[2,3,2],[3,null,3]]"
    error_message = "Each number wanted must be its own size."
  }
  assert {
    condition     = aws_autoscaling_policy.wanted.adjustment_type == "ExactCapacity" && length(aws_autoscaling_policy.wanted.step_adjustment) == 4
    error_message = "The policy must set sizes, by the table."
  }
  assert {
    condition     = sort([for step in aws_autoscaling_policy.wanted.step_adjustment : "${step.metric_interval_lower_bound}:${step.metric_interval_upper_bound == null ? "" : step.metric_interval_upper_bound}:${step.scaling_adjustment}"]) == sort(["0:1:0", "1:2:1", "2:3:2", "3::3"])
    error_message = "The policy's steps must be the table."
  }
}

run "one_worker_comes_and_goes" {
  command = plan

  variables {
    settings = { models = ["m"], workers_max = 1 }
  }

  assert {
    condition     = jsonencode([for step in local.steps : [step.from, step.to, step.size]]) == "[[0,1,0],[1,null,1]]"
    error_message = "From zero to one and back."
  }
}

run "nineteen_workers_are_exact" {
  command = plan

  variables {
    settings = { models = ["m"], workers_max = 19 }
  }

  assert {
    condition     = local.sizes == range(0, 20)
    error_message = "Nineteen sizes and none fill the twenty steps."
  }
}

run "twenty_workers_leave_one_size_out" {
  command = plan

  variables {
    settings = { models = ["m"], workers_max = 20 }
  }

  assert {
    condition     = length(local.steps) == 20 && jsonencode(local.sizes) == jsonencode(concat(range(0, 19), [20]))
    error_message = "Twenty steps: every size up to 18, then 20."
  }
  assert {
    condition     = jsonencode([for step in slice(local.steps, 18, 20) : [step.from, step.to, step.size]]) == "[[18,19,18],[19,null,20]]"
    error_message = "Nineteen wanted must give twenty."
  }
}

run "fifty_workers_grow_by_shares" {
  command = plan

  variables {
    settings = { models = ["m"], workers_max = 50 }
  }

  assert {
    condition     = jsonencode(local.sizes) == "[0,1,2,3,4,5,6,7,8,9,10,11,12,14,17,21,26,33,40,50]"
    error_message = "The sizes must be exact below 13 and then grow by a quarter."
  }
  assert {
    condition     = alltrue([for index in range(1, length(local.steps)) : local.steps[index].from == local.steps[index - 1].to && local.steps[index].size > local.steps[index - 1].size])
    error_message = "Steps must touch and rise."
  }
}

run "a_thousand_workers_keep_to_twenty_steps" {
  command = plan

  variables {
    settings = { models = ["m"], workers_max = 1000 }
  }

  assert {
    condition     = length(local.steps) == 20 && local.sizes[19] == 1000 && alltrue([for index in range(1, 20) : local.sizes[index] > local.sizes[index - 1]])
    error_message = "Twenty rising steps up to the maximum."
  }
}

run "one_alarm_sees_the_last_minutes" {
  command = plan

  variables {
    settings = { models = ["m"], workers_max = 3, scale_in_minutes = 15 }
  }

  assert {
    condition     = aws_cloudwatch_metric_alarm.wanted.period == 900 && aws_cloudwatch_metric_alarm.wanted.statistic == "Maximum" && aws_cloudwatch_metric_alarm.wanted.evaluation_periods == 1
    error_message = "The group follows the most that was wanted in the last scale_in_minutes."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.wanted.threshold == 0 && aws_cloudwatch_metric_alarm.wanted.comparison_operator == "GreaterThanOrEqualToThreshold"
    error_message = "The steps count from zero, and every number counts."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.wanted.treat_missing_data == "missing"
    error_message = "Without a number the group must stay as it is."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.wanted.dimensions == tomap({ Deployment = "night", Profile = "gpu" }) && aws_cloudwatch_metric_alarm.wanted.metric_name == "WorkersWanted" && aws_cloudwatch_metric_alarm.wanted.namespace == "Nightshift"
    error_message = "The metric is the one that dispatch writes."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.wanted.alarm_actions == toset([aws_autoscaling_policy.wanted.arn])
    error_message = "The alarm must run the policy."
  }
}

run "someone_hears_when_no_worker_comes" {
  command = plan

  variables {
    alarm_topic_arns = ["arn:aws:sns:eu-west-1:123456789012:night-alarms"]
  }

  assert {
    condition     = aws_cloudwatch_metric_alarm.no_worker.evaluation_periods == 15 && aws_cloudwatch_metric_alarm.no_worker.alarm_actions == toset(var.alarm_topic_arns)
    error_message = "After 15 minutes the topic must hear."
  }
}

run "an_hour_of_patience_is_refused" {
  command = plan

  variables {
    settings = { models = ["m"], scale_in_minutes = 60 }
  }

  expect_failures = [var.settings]
}
