locals {
  name = "${var.name}-${var.profile}"

  # The ARN of the table says where we are; no data source, so that a plan needs no credentials.
  arn       = split(":", var.table_arn)
  partition = local.arn[1]
  account   = local.arn[4]

  # The user of the image (infra/images), which owns the scratch folder on the instance.
  container_user = 65532

  # What an instance of either kind starts from. The image with NVIDIA's driver has Docker; Amazon Linux's own
  # package of it would not go beside that.
  kinds = {
    cpu = {
      instance_types    = ["c7i.4xlarge", "m7i.4xlarge", "c6i.4xlarge", "m6i.4xlarge", "c7a.4xlarge"]
      ami_ssm_parameter = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
      packages          = ["docker"]
    }
    gpu = {
      instance_types    = ["g6.xlarge", "g6.2xlarge", "g5.xlarge", "g5.2xlarge", "g6e.xlarge"]
      ami_ssm_parameter = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-amazon-linux-2023/latest/ami-id"
      packages          = []
    }
  }
  kind = local.kinds[var.settings.gpu ? "gpu" : "cpu"]

  instance_types = coalesce(var.settings.instance_types, local.kind.instance_types)
  machine_image  = coalesce(var.settings.image_id, "resolve:ssm:${coalesce(var.settings.ami_ssm_parameter, local.kind.ami_ssm_parameter)}")

  group_name = "${local.name}-workers"
  hook_name  = "drain"

  environment = merge(var.environment, {
    AWS_REGION        = var.region
    NIGHTSHIFT_MODELS = "/scratch/models"
    HF_HOME           = "/scratch/models/huggingface"
    # How the worker knows which of the catalog's models are its own.
    NIGHTSHIFT_PROFILE = var.profile
  })

  instance_environment = {
    DRAIN_SECONDS  = var.settings.drain_seconds
    GPU            = var.settings.gpu
    GROUP          = local.group_name
    HOOK           = local.hook_name
    IMAGE          = var.image
    LOG_GROUP      = aws_cloudwatch_log_group.worker.name
    REGION         = var.region
    CONTAINER_USER = local.container_user
    ARGUMENTS      = join(" ", var.settings.arguments)
  }

  user_data = templatefile("${path.module}/files/user-data.yaml.tftpl", {
    packages = local.kind.packages
    files = [
      {
        path        = "/etc/nightshift/worker.env"
        permissions = "0600"
        content     = join("", [for key, value in local.environment : "${key}=${value}\n"])
      },
      {
        path        = "/etc/nightshift/instance.env"
        permissions = "0600"
        content     = join("", [for key, value in local.instance_environment : "${key}=${value}\n"])
      },
      {
        path        = "/usr/local/sbin/nightshift-instance"
        permissions = "0755"
        content     = file("${path.module}/files/nightshift-instance.sh")
      },
      {
        path        = "/etc/systemd/system/nightshift-worker.service"
        permissions = "0644"
        content = templatefile("${path.module}/files/nightshift-worker.service.tftpl", {
          drain_seconds = var.settings.drain_seconds
        })
      },
      {
        # Names and addresses alone: the values are in Secrets Manager.
        path        = "/etc/nightshift/secrets"
        permissions = "0600"
        content     = join("", [for name, arn in var.settings.secrets : "${name}=${arn}\n"])
      },
    ]
  })

  tags = merge(var.tags, { Name = local.group_name, "nightshift:deployment" = var.name, "nightshift:profile" = var.profile })
}

resource "aws_cloudwatch_log_group" "worker" {
  #checkov:skip=CKV_AWS_338:How long logs are kept is the operator's choice; they hold no user content, and a year is not needed to run the service.
  name              = "/nightshift/${var.name}/workers/${var.profile}"
  retention_in_days = var.log_retention_days
  kms_key_id        = var.kms_key_arn
  tags              = local.tags
}

resource "aws_security_group" "worker" {
  name        = local.group_name
  description = "Nightshift workers: nothing comes in, HTTPS goes out."
  vpc_id      = var.vpc_id
  tags        = local.tags
}

resource "aws_vpc_security_group_egress_rule" "https" {
  security_group_id = aws_security_group.worker.id
  description       = "AWS services and the image's registry."
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  tags              = local.tags
}

resource "aws_vpc_security_group_egress_rule" "server" {
  for_each = var.server_ports

  security_group_id = aws_security_group.worker.id
  description       = "Servers of models."
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = tonumber(each.key)
  to_port           = tonumber(each.key)
  tags              = local.tags
}

resource "aws_launch_template" "worker" {
  #checkov:skip=CKV_AWS_341:The worker runs in a container behind Docker's bridge, which is one hop more; tokens are required all the same.
  name                   = local.group_name
  description            = "One worker of Nightshift, profile ${var.profile}."
  update_default_version = true
  image_id               = local.machine_image
  instance_type          = local.instance_types[0]
  user_data              = base64gzip(local.user_data)
  ebs_optimized          = true
  vpc_security_group_ids = [aws_security_group.worker.id]
  tags                   = local.tags

  # A worker that shuts its machine down is gone; the group decides whether there is another.
  instance_initiated_shutdown_behavior = "terminate"

  iam_instance_profile {
    arn = aws_iam_instance_profile.worker.arn
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 2
    instance_metadata_tags      = "disabled"
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      # The account's own EBS key: another would need a grant for the service-linked role of Auto Scaling.
      encrypted             = true
      volume_type           = "gp3"
      volume_size           = var.settings.volume_gb
      throughput            = 250
      delete_on_termination = true
    }
  }

  monitoring {
    enabled = true
  }

  tag_specifications {
    resource_type = "volume"
    tags          = local.tags
  }

  tag_specifications {
    resource_type = "network-interface"
    tags          = local.tags
  }

  lifecycle {
    precondition {
      condition     = length(base64gzip(local.user_data)) <= 21848
      error_message = "The user data is over EC2's 16 KiB even when compressed: the catalog in environment is too long."
    }
  }
}

resource "aws_autoscaling_group" "worker" {
  name                      = local.group_name
  vpc_zone_identifier       = var.subnet_ids
  min_size                  = var.settings.workers_min
  max_size                  = var.settings.workers_max
  capacity_rebalance        = var.settings.spot
  default_instance_warmup   = var.settings.warmup_seconds
  health_check_type         = "EC2"
  health_check_grace_period = var.settings.warmup_seconds
  # From zero there is nothing to wait for.
  wait_for_capacity_timeout = "0"
  metrics_granularity       = "1Minute"
  enabled_metrics = [
    "GroupDesiredCapacity",
    "GroupInServiceInstances",
    "GroupMaxSize",
    "GroupMinSize",
    "GroupPendingInstances",
    "GroupTerminatingInstances",
    "GroupTotalInstances",
  ]

  mixed_instances_policy {
    instances_distribution {
      on_demand_allocation_strategy            = "prioritized"
      on_demand_base_capacity                  = var.settings.on_demand_base
      on_demand_percentage_above_base_capacity = var.settings.spot ? 0 : 100
      spot_allocation_strategy                 = "price-capacity-optimized"
    }

    launch_template {
      launch_template_specification {
        launch_template_id = aws_launch_template.worker.id
        version            = aws_launch_template.worker.latest_version
      }

      dynamic "override" {
        for_each = local.instance_types
        content {
          instance_type = override.value
        }
      }
    }
  }

  # All workers may be replaced at once: their work is committed every 30 seconds, and leases bring back the rest.
  instance_refresh {
    strategy = "Rolling"
    preferences {
      min_healthy_percentage = 0
      instance_warmup        = var.settings.warmup_seconds
    }
  }

  dynamic "tag" {
    for_each = local.tags
    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  lifecycle {
    # The scaling policy owns it.
    ignore_changes = [desired_capacity]
  }

  # With a minimum above zero instances start at once: their rights must be there.
  depends_on = [aws_iam_role_policy.worker]
}

resource "aws_autoscaling_lifecycle_hook" "drain" {
  name                   = local.hook_name
  autoscaling_group_name = aws_autoscaling_group.worker.name
  lifecycle_transition   = "autoscaling:EC2_INSTANCE_TERMINATING"
  heartbeat_timeout      = 300
  default_result         = "CONTINUE"
}
