# What every fleet must be, planned against a provider that is not there.
mock_provider "aws" {
  override_during = plan

  mock_resource "aws_autoscaling_group" {
    defaults = { arn = "arn:aws:autoscaling:eu-west-1:123456789012:autoScalingGroup:11111111-2222-3333-4444-555555555555:autoScalingGroupName/night-gpu-workers" }
  }
  mock_resource "aws_cloudwatch_log_group" {
    defaults = { arn = "arn:aws:logs:eu-west-1:123456789012:log-group:/nightshift/night/workers/gpu" }
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
  name    = "night"
  profile = "gpu"
  region  = "eu-west-1"
  settings = {
    models = ["llama-3.1-8b"]
  }
  environment = {
    NIGHTSHIFT_DEPLOYMENT = "night"
    NIGHTSHIFT_CATALOG    = "[{\"id\":\"llama-3.1-8b\"}]"
  }
  vpc_id            = "vpc-1"
  subnet_ids        = ["subnet-1", "subnet-2"]
  image             = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/nightshift@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
  table_arn         = "arn:aws:dynamodb:eu-west-1:123456789012:table/night"
  bucket_arn        = "arn:aws:s3:::night-data"
  queue_arns        = ["arn:aws:sqs:eu-west-1:123456789012:night-model-llama-fast", "arn:aws:sqs:eu-west-1:123456789012:night-model-llama-bulk"]
  send_queue_arns   = ["arn:aws:sqs:eu-west-1:123456789012:night-dispatch", "arn:aws:sqs:eu-west-1:123456789012:night-finalize"]
  kms_key_arn       = "arn:aws:kms:eu-west-1:123456789012:key/11111111-2222-3333-4444-555555555555"
  weights_locations = ["s3://weights/llama/", "s3://weights/qwen.gguf", "s3://other/mistral/"]
}

run "instances_are_closed_and_encrypted" {
  command = plan

  assert {
    condition     = one(aws_launch_template.worker.metadata_options).http_tokens == "required" && one(aws_launch_template.worker.metadata_options).http_put_response_hop_limit == 2
    error_message = "IMDSv2 must be required, with two hops for the container."
  }
  assert {
    condition     = alltrue([for disk in aws_launch_template.worker.block_device_mappings : one(disk.ebs).encrypted == "true" && one(disk.ebs).volume_type == "gp3"])
    error_message = "Every volume must be an encrypted gp3."
  }
  assert {
    condition     = aws_launch_template.worker.key_name == null
    error_message = "An instance must have no SSH key."
  }
  assert {
    condition     = aws_vpc_security_group_egress_rule.https.from_port == 443 && aws_vpc_security_group_egress_rule.https.to_port == 443 && aws_vpc_security_group_egress_rule.https.ip_protocol == "tcp"
    error_message = "Only HTTPS may go out."
  }
  assert {
    condition     = length(aws_iam_role_policy_attachment.session_manager) == 0
    error_message = "Session Manager must be off unless asked for."
  }
  assert {
    condition     = aws_cloudwatch_log_group.worker.retention_in_days == 30 && aws_cloudwatch_log_group.worker.kms_key_id == var.kms_key_arn
    error_message = "Logs must be encrypted, and end."
  }
}

run "the_group_rests_at_zero_and_drains" {
  command = plan

  assert {
    condition     = aws_autoscaling_group.worker.min_size == 0 && aws_autoscaling_group.worker.max_size == 1
    error_message = "The default group must rest at zero and stop at one."
  }
  assert {
    condition     = aws_autoscaling_group.worker.capacity_rebalance == true
    error_message = "A spot group must rebalance."
  }
  assert {
    condition     = length(one(one(aws_autoscaling_group.worker.mixed_instances_policy).launch_template).override) >= 4
    error_message = "The default profile must know at least four instance types."
  }
  assert {
    condition     = one(one(aws_autoscaling_group.worker.mixed_instances_policy).instances_distribution).spot_allocation_strategy == "price-capacity-optimized" && one(one(aws_autoscaling_group.worker.mixed_instances_policy).instances_distribution).on_demand_percentage_above_base_capacity == 0
    error_message = "Instances above the base must be spot, by price and capacity."
  }
  assert {
    condition     = one(one(aws_autoscaling_group.worker.instance_refresh).preferences).min_healthy_percentage == 0
    error_message = "A refresh may replace every worker."
  }
  assert {
    condition     = aws_autoscaling_lifecycle_hook.drain.lifecycle_transition == "autoscaling:EC2_INSTANCE_TERMINATING" && aws_autoscaling_lifecycle_hook.drain.heartbeat_timeout == 300 && aws_autoscaling_lifecycle_hook.drain.default_result == "CONTINUE"
    error_message = "The group must wait for a worker that drains."
  }
  assert {
    condition     = contains(aws_autoscaling_group.worker.enabled_metrics, "GroupInServiceInstances") && alltrue([for tag in aws_autoscaling_group.worker.tag : tag.propagate_at_launch])
    error_message = "The alarm needs the group's metrics, and the bill its tags."
  }
}

run "on_demand_groups_buy_no_spot" {
  command = plan

  variables {
    settings = {
      models          = ["llama-3.1-8b"]
      instance_types  = ["c7i.4xlarge"]
      gpu             = false
      spot            = false
      image_id        = "ami-0123456789abcdef0"
      session_manager = true
      arguments       = ["--sequences", "32"]
    }
  }

  assert {
    condition     = one(one(aws_autoscaling_group.worker.mixed_instances_policy).instances_distribution).on_demand_percentage_above_base_capacity == 100 && aws_autoscaling_group.worker.capacity_rebalance == false
    error_message = "Without spot everything must be on demand."
  }
  assert {
    condition     = aws_launch_template.worker.image_id == "ami-0123456789abcdef0"
    error_message = "image_id must win over the parameter."
  }
  assert {
    condition     = length(aws_iam_role_policy_attachment.session_manager) == 1
    error_message = "Session Manager must come when asked for."
  }
  assert {
    condition     = strcontains(local.user_data, "GPU=false") && strcontains(local.user_data, "ARGUMENTS=--sequences 32")
    error_message = "The instance must know that it has no GPU, and the worker's arguments."
  }
}

run "gpu_groups_have_the_driver" {
  command = plan

  variables {
    settings = {
      models = ["llama-3.1-8b"]
      gpu    = true
    }
  }

  assert {
    condition     = aws_launch_template.worker.image_id == "resolve:ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-amazon-linux-2023/latest/ami-id"
    error_message = "The AMI must be the GPU image of Amazon Linux 2023, resolved at launch."
  }
  assert {
    condition     = alltrue([for type in one(one(aws_autoscaling_group.worker.mixed_instances_policy).launch_template).override[*].instance_type : startswith(type, "g")]) && length(one(one(aws_autoscaling_group.worker.mixed_instances_policy).launch_template).override) >= 4
    error_message = "A GPU profile must know at least four GPU types."
  }
  assert {
    condition     = strcontains(yamldecode(local.user_data).write_files[1].content, "GPU=true\n") && length(yamldecode(local.user_data).packages) == 0
    error_message = "The instance must know that it has GPUs, and install no second Docker."
  }
}

run "null_means_the_default" {
  command = plan

  variables {
    settings = {
      models            = ["llama-3.1-8b"]
      instance_types    = null
      workers_max       = null
      gpu               = null
      ami_ssm_parameter = null
      image_id          = null
      scale_in_minutes  = null
      arguments         = null
    }
  }

  assert {
    condition     = aws_autoscaling_group.worker.max_size == 1 && aws_launch_template.worker.instance_type == "c7i.4xlarge" && aws_cloudwatch_metric_alarm.wanted.period == 600
    error_message = "A profile of the root module that leaves something out must get the default."
  }
  assert {
    condition     = aws_launch_template.worker.image_id == "resolve:ssm:/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
    error_message = "The AMI must be Amazon Linux 2023, resolved at launch."
  }
  assert {
    condition     = strcontains(yamldecode(local.user_data).write_files[1].content, "GPU=false\n") && yamldecode(local.user_data).packages == ["docker"]
    error_message = "An instance has no GPU unless asked for, and gets Docker, which its AMI lacks."
  }
}

run "user_data_runs_the_image_by_digest" {
  command = plan

  assert {
    condition     = startswith(local.user_data, "#cloud-config\n") && aws_launch_template.worker.user_data == base64gzip(local.user_data)
    error_message = "User data must be cloud-config, compressed."
  }
  assert {
    condition = alltrue([for file in ["/etc/nightshift/worker.env", "/etc/nightshift/instance.env", "/usr/local/sbin/nightshift-instance", "/etc/systemd/system/nightshift-worker.service"] :
      contains(yamldecode(local.user_data).write_files[*].path, file)
    ])
    error_message = "A file of the instance is missing."
  }
  assert {
    condition     = strcontains(yamldecode(local.user_data).write_files[0].content, "NIGHTSHIFT_CATALOG=[{\"id\":\"llama-3.1-8b\"}]\n") && strcontains(yamldecode(local.user_data).write_files[0].content, "NIGHTSHIFT_PROFILE=gpu\n")
    error_message = "The worker must get its environment as it is, and its profile."
  }
  assert {
    condition     = strcontains(yamldecode(local.user_data).write_files[1].content, "IMAGE=${var.image}\n")
    error_message = "The instance must pull the image by its digest."
  }
  assert {
    condition     = alltrue([for flag in ["--read-only", "--cap-drop ALL", "no-new-privileges", "--gpus all", "awslogs-group"] : strcontains(yamldecode(local.user_data).write_files[2].content, flag)])
    error_message = "The container must be confined, see the GPUs, and log to CloudWatch."
  }
  assert {
    condition     = strcontains(yamldecode(local.user_data).write_files[3].content, "Restart=always") && strcontains(yamldecode(local.user_data).write_files[3].content, "TimeoutStopSec=90\n") && strcontains(yamldecode(local.user_data).write_files[3].content, "docker stop -t 60 ")
    error_message = "The unit must restart the worker, and leave it time to drain."
  }
}

run "the_role_has_no_wildcard_but_the_login" {
  command = plan

  assert {
    condition     = alltrue([for statement in local.statements : alltrue([for action in statement.Action : !strcontains(action, "*")])])
    error_message = "No action may be a wildcard."
  }
  assert {
    condition     = [for statement in local.statements : statement.Sid if contains(statement.Resource, "*")] == ["RegistryLogin"]
    error_message = "Only the registry's login may name every resource."
  }
  assert {
    condition     = flatten([for statement in local.statements : statement.Action if statement.Sid == "RegistryLogin"]) == ["ecr:GetAuthorizationToken"]
    error_message = "The login must be nothing but a login."
  }
  assert {
    condition     = toset(flatten([for statement in local.statements : statement.Resource if contains(statement.Action, "s3:PutObject")])) == toset(["arn:aws:s3:::night-data/results/*"])
    error_message = "A worker may write results/ alone."
  }
  assert {
    condition = toset(flatten([for statement in local.statements : statement.Resource if contains(statement.Action, "s3:GetObject")])) == toset([
      "arn:aws:s3:::night-data/shards/*",
      "arn:aws:s3:::night-data/results/*",
      "arn:aws:s3:::weights/llama/*",
      "arn:aws:s3:::weights/qwen.gguf",
      "arn:aws:s3:::other/mistral/*",
    ])
    error_message = "A worker may read shards/, results/ and its models' files alone."
  }
  # Of its own bucket whole, so that a missing shard is a 404; of others only where its models lie.
  assert {
    condition = { for statement in local.statements : statement.Resource[0] => try(statement.Condition.StringLike["s3:prefix"], []) if contains(statement.Action, "s3:ListBucket") } == {
      "arn:aws:s3:::night-data" = []
      "arn:aws:s3:::other"      = ["mistral/", "mistral/*"]
      "arn:aws:s3:::weights"    = ["llama/", "llama/*"]
    }
    error_message = "A worker may list its own bucket, and its models' folders alone."
  }
  assert {
    condition     = toset(flatten([for statement in local.statements : statement.Resource if contains(statement.Action, "sqs:ReceiveMessage")])) == toset(var.queue_arns)
    error_message = "A worker may receive from its models' queues alone."
  }
  assert {
    condition     = toset(flatten([for statement in local.statements : statement.Resource if contains(statement.Action, "sqs:SendMessage")])) == toset(concat(var.queue_arns, var.send_queue_arns))
    error_message = "A worker may send to its own queues, dispatch and finalize alone."
  }
  assert {
    condition     = toset(flatten([for statement in local.statements : statement.Resource if anytrue([for action in statement.Action : startswith(action, "dynamodb:")])])) == toset([var.table_arn])
    error_message = "A worker may use the records table alone."
  }
  assert {
    condition     = flatten([for statement in local.statements : statement.Resource if statement.Sid == "PullImage"]) == ["arn:aws:ecr:eu-west-1:123456789012:repository/nightshift"]
    error_message = "A worker may pull its image alone."
  }
  assert {
    condition     = jsondecode(aws_iam_role_policy.lifecycle.policy).Statement[0].Resource == [aws_autoscaling_group.worker.arn] && jsondecode(aws_iam_role_policy.lifecycle.policy).Statement[0].Action == ["autoscaling:CompleteLifecycleAction"]
    error_message = "A worker may end the drain of its own group alone."
  }
  assert {
    condition     = jsondecode(aws_iam_role_policy.worker.policy).Statement[0].Sid == "Records" && length(jsondecode(aws_iam_role_policy.worker.policy).Statement) == length(local.statements)
    error_message = "The policy must be the statements."
  }
}

run "secrets_are_named_and_never_written" {
  command = plan

  variables {
    settings = {
      models  = ["llama-3.1-8b"]
      secrets = { VLLM_API_KEY = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:vllm-AbCdEf" }
    }
    server_ports = ["8000"]
  }

  assert {
    condition     = jsonencode([for statement in local.statements : statement.Resource if statement.Sid == "ReadSecrets"]) == jsonencode([["arn:aws:secretsmanager:eu-west-1:123456789012:secret:vllm-AbCdEf"]])
    error_message = "The workers must be able to read exactly the secrets that are named."
  }
  assert {
    condition     = contains(one([for statement in local.statements : statement.Condition.StringEquals["kms:ViaService"] if statement.Sid == "Key"]), "secretsmanager.eu-west-1.amazonaws.com")
    error_message = "A secret under the deployment's key could not be read."
  }
  assert {
    condition     = strcontains(local.user_data, "VLLM_API_KEY=arn:aws:secretsmanager:eu-west-1:123456789012:secret:vllm-AbCdEf") && strcontains(local.user_data, "--env-file \"$SECRETS\"")
    error_message = "The instance does not learn which secrets to read."
  }
  assert {
    condition     = [for rule in aws_vpc_security_group_egress_rule.server : [rule.from_port, rule.to_port, rule.ip_protocol]] == [[8000, 8000, "tcp"]]
    error_message = "A model's server cannot be reached."
  }
}

run "nothing_is_added_where_no_server_has_a_model" {
  command = plan

  assert {
    condition     = length(aws_vpc_security_group_egress_rule.server) == 0 && length([for statement in local.statements : statement if statement.Sid == "ReadSecrets"]) == 0
    error_message = "A fleet without servers must not get their rights."
  }
}

run "a_secret_in_place_of_its_arn_is_refused" {
  command = plan

  variables {
    settings = { models = ["llama-3.1-8b"], secrets = { VLLM_API_KEY = "sk-1234" } }
  }

  expect_failures = [var.settings]
}

run "a_public_registry_needs_no_rights" {
  command = plan

  variables {
    image             = "ghcr.io/example/nightshift@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    weights_locations = []
  }

  assert {
    condition     = length([for statement in local.statements : statement if contains(statement.Resource, "*")]) == 0
    error_message = "Without ECR there must be no wildcard at all."
  }
  assert {
    condition     = length([for statement in local.statements : statement if contains(["ReadWeights", "PullImage"], statement.Sid)]) == 0
    error_message = "No right may be left over."
  }
}

run "a_tag_is_refused" {
  command = plan

  variables {
    image = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/nightshift:latest"
  }

  expect_failures = [var.image]
}

run "a_whole_weights_bucket_is_refused" {
  command = plan

  variables {
    weights_locations = ["s3://weights/"]
  }

  expect_failures = [var.weights_locations]
}

run "bounds_that_cross_are_refused" {
  command = plan

  variables {
    settings = {
      models      = ["llama-3.1-8b"]
      workers_min = 3
      workers_max = 2
    }
  }

  expect_failures = [var.settings]
}
