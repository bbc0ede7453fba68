locals {
  tls           = var.certificate_arn != null
  listener_port = local.tls ? 443 : 80
}

# The addresses from which CloudFront reaches origins; the load balancer is internal, so that only VPC origins
# of this account can come from them.
data "aws_ec2_managed_prefix_list" "cloudfront" {
  name = "com.amazonaws.global.cloudfront.origin-facing"
}

resource "aws_security_group" "balancer" {
  name        = "${local.name}-balancer"
  description = "Load balancer of ingest: CloudFront comes in, the tasks are reached."
  vpc_id      = var.vpc_id
  tags        = merge(local.tags, { Name = "${local.name}-balancer" })
}

resource "aws_vpc_security_group_ingress_rule" "cloudfront" {
  security_group_id = aws_security_group.balancer.id
  description       = "CloudFront."
  prefix_list_id    = data.aws_ec2_managed_prefix_list.cloudfront.id
  ip_protocol       = "tcp"
  from_port         = local.listener_port
  to_port           = local.listener_port
  tags              = local.tags
}

resource "aws_vpc_security_group_egress_rule" "tasks" {
  security_group_id            = aws_security_group.balancer.id
  description                  = "The tasks."
  referenced_security_group_id = aws_security_group.task.id
  ip_protocol                  = "tcp"
  from_port                    = var.port
  to_port                      = var.port
  tags                         = local.tags
}

resource "aws_security_group" "task" {
  name        = "${local.name}-task"
  description = "Tasks of ingest: the load balancer comes in, HTTPS goes out."
  vpc_id      = var.vpc_id
  tags        = merge(local.tags, { Name = "${local.name}-task" })
}

resource "aws_vpc_security_group_ingress_rule" "balancer" {
  security_group_id            = aws_security_group.task.id
  description                  = "The load balancer."
  referenced_security_group_id = aws_security_group.balancer.id
  ip_protocol                  = "tcp"
  from_port                    = var.port
  to_port                      = var.port
  tags                         = local.tags
}

resource "aws_vpc_security_group_egress_rule" "https" {
  security_group_id = aws_security_group.task.id
  description       = "AWS services and the image's registry."
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  tags              = local.tags
}

resource "aws_lb" "this" {
  #checkov:skip=CKV_AWS_150:It holds no state, and terraform destroy must be able to end it.
  name                       = local.name
  internal                   = true
  load_balancer_type         = "application"
  security_groups            = [aws_security_group.balancer.id]
  subnets                    = length(var.balancer_subnet_ids) > 0 ? var.balancer_subnet_ids : var.subnet_ids
  idle_timeout               = 300
  drop_invalid_header_fields = true
  desync_mitigation_mode     = "strictest"
  tags                       = local.tags

  dynamic "access_logs" {
    for_each = var.access_logs_bucket[*]
    content {
      bucket  = access_logs.value
      prefix  = local.name
      enabled = true
    }
  }
}

resource "aws_lb_target_group" "this" {
  name                 = local.name
  vpc_id               = var.vpc_id
  target_type          = "ip"
  protocol             = "HTTP"
  port                 = var.port
  deregistration_delay = local.drain_seconds
  # One upload may hold a task for minutes.
  load_balancing_algorithm_type = "least_outstanding_requests"
  tags                          = local.tags

  health_check {
    path                = "/healthz"
    matcher             = "200"
    interval            = 15
    timeout             = 5
    healthy_threshold   = 2
    unhealthy_threshold = 3
  }
}

# Without a certificate requests come in plain HTTP from CloudFront's interfaces in this VPC, and leave it nowhere.
resource "aws_lb_listener" "this" {
  load_balancer_arn = aws_lb.this.arn
  port              = local.listener_port
  protocol          = local.tls ? "HTTPS" : "HTTP"
  certificate_arn   = var.certificate_arn
  ssl_policy        = local.tls ? "ELBSecurityPolicy-TLS13-1-2-2021-06" : null
  tags              = local.tags

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.this.arn
  }
}

resource "aws_cloudwatch_metric_alarm" "no_task" {
  alarm_name          = "${local.name}-no-healthy-task"
  alarm_description   = "For 5 minutes no task of ${local.name} was healthy: files and uploads are not served."
  namespace           = "AWS/ApplicationELB"
  metric_name         = "HealthyHostCount"
  dimensions          = { LoadBalancer = aws_lb.this.arn_suffix, TargetGroup = aws_lb_target_group.this.arn_suffix }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 5
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
  tags                = local.tags
}
