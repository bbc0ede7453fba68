locals {
  name = "${var.name}-ingest"

  arn       = split(":", var.table_arn)
  partition = local.arn[1]

  # Large enough for an upload in flight on a slow line; ECS stops a task only after its load balancer lets go of it.
  drain_seconds = 300

  tags = merge(var.tags, { Name = local.name, "nightshift:deployment" = var.name })
}

resource "aws_cloudwatch_log_group" "this" {
  #checkov:skip=CKV_AWS_338:How long logs are kept is the operator's choice; they hold no user content.
  name              = "/nightshift/${var.name}/ingest"
  retention_in_days = var.log_retention_days
  kms_key_id        = var.kms_key_arn
  tags              = local.tags
}

resource "aws_ecs_cluster" "this" {
  #checkov:skip=CKV_AWS_65:Container Insights costs more than the tasks; the load balancer and the logs have the numbers that matter.
  name = local.name
  tags = local.tags
}

resource "aws_ecs_task_definition" "this" {
  family                   = local.name
  requires_compatibilities = ["FARGATE"]
  network_mode             = "awsvpc"
  cpu                      = var.cpu
  memory                   = var.memory
  execution_role_arn       = aws_iam_role.execution.arn
  task_role_arn            = aws_iam_role.task.arn
  tags                     = local.tags

  runtime_platform {
    operating_system_family = "LINUX"
    cpu_architecture        = var.architecture == "arm64" ? "ARM64" : "X86_64"
  }

  container_definitions = jsonencode([{
    name      = "ingest"
    image     = var.image
    command   = ["ingest", "--listen", "0.0.0.0:${var.port}"]
    essential = true
    user      = "65532:65532"
    # An upload goes through memory alone.
    readonlyRootFilesystem = true
    # The most that Fargate gives.
    stopTimeout     = 120
    linuxParameters = { initProcessEnabled = true }
    portMappings    = [{ containerPort = var.port, protocol = "tcp" }]
    environment = [
      for key, value in merge(var.environment, { AWS_REGION = var.region }) : { name = key, value = value }
    ]
    logConfiguration = {
      logDriver = "awslogs"
      options = {
        "awslogs-group"         = aws_cloudwatch_log_group.this.name
        "awslogs-region"        = var.region
        "awslogs-stream-prefix" = "ingest"
        "mode"                  = "non-blocking"
        "max-buffer-size"       = "4m"
      }
    }
  }])
}

resource "aws_ecs_service" "this" {
  name                               = local.name
  cluster                            = aws_ecs_cluster.this.id
  task_definition                    = aws_ecs_task_definition.this.arn
  launch_type                        = "FARGATE"
  platform_version                   = "LATEST"
  desired_count                      = var.desired_count
  deployment_minimum_healthy_percent = 100
  deployment_maximum_percent         = 200
  health_check_grace_period_seconds  = 60
  enable_execute_command             = false
  propagate_tags                     = "SERVICE"
  tags                               = local.tags

  deployment_circuit_breaker {
    enable   = true
    rollback = true
  }

  network_configuration {
    subnets          = var.subnet_ids
    security_groups  = [aws_security_group.task.id]
    assign_public_ip = var.assign_public_ip
  }

  load_balancer {
    target_group_arn = aws_lb_target_group.this.arn
    container_name   = "ingest"
    container_port   = var.port
  }

  depends_on = [aws_lb_listener.this, aws_iam_role_policy.execution, aws_iam_role_policy.task]
}
