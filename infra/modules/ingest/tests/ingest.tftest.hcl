# One host for the whole API, planned against a provider that is not there.
mock_provider "aws" {
  override_during = plan

  mock_resource "aws_lb" {
    defaults = { arn = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:loadbalancer/app/night-ingest/1", dns_name = "internal-night-ingest-1.eu-west-1.elb.amazonaws.com" }
  }
  mock_resource "aws_lb_target_group" {
    defaults = { arn = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/night-ingest/1" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/night-ingest" }
  }
  mock_resource "aws_ecs_task_definition" {
    defaults = { arn = "arn:aws:ecs:eu-west-1:123456789012:task-definition/night-ingest:1" }
  }
  mock_resource "aws_cloudfront_distribution" {
    defaults = { domain_name = "d111111abcdef8.cloudfront.net" }
  }
  mock_resource "aws_cloudwatch_log_group" {
    defaults = { arn = "arn:aws:logs:eu-west-1:123456789012:log-group:/nightshift/night/ingest" }
  }
  mock_data "aws_ec2_managed_prefix_list" {
    defaults = { id = "pl-cloudfront" }
  }
}

variables {
  name            = "night"
  region          = "eu-west-1"
  environment     = { NIGHTSHIFT_DEPLOYMENT = "night" }
  image           = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/nightshift@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
  vpc_id          = "vpc-1"
  subnet_ids      = ["subnet-1", "subnet-2"]
  api_domain_name = "abc123.execute-api.eu-west-1.amazonaws.com"
  table_arn       = "arn:aws:dynamodb:eu-west-1:123456789012:table/night"
  bucket_arn      = "arn:aws:s3:::night-data"
  send_queue_arns = ["arn:aws:sqs:eu-west-1:123456789012:night-validate", "arn:aws:sqs:eu-west-1:123456789012:night-finalize"]
  kms_key_arn     = "arn:aws:kms:eu-west-1:123456789012:key/1"
}

run "one_host_leads_to_both_origins" {
  command = plan

  assert {
    condition     = output.base_url == "https://d111111abcdef8.cloudfront.net/v1"
    error_message = "The base URL must be the distribution's, as the SDKs take it."
  }
  assert {
    condition     = aws_cloudfront_distribution.this.ordered_cache_behavior[*].path_pattern == tolist(["/v1/files*", "/v1/uploads*"]) && alltrue([for behaviour in aws_cloudfront_distribution.this.ordered_cache_behavior : behaviour.target_origin_id == "ingest"])
    error_message = "Files and uploads must go to the tasks."
  }
  assert {
    condition     = one(aws_cloudfront_distribution.this.default_cache_behavior).target_origin_id == "api"
    error_message = "Everything else must go to API Gateway."
  }
  assert {
    condition     = alltrue([for behaviour in concat(aws_cloudfront_distribution.this.ordered_cache_behavior, aws_cloudfront_distribution.this.default_cache_behavior) : behaviour.viewer_protocol_policy == "https-only" && contains(behaviour.allowed_methods, "POST") && behaviour.cache_policy_id == "4135ea2d-6df8-44a3-9df3-4b5a84be39ad"])
    error_message = "Nothing may be cached, or go over plain HTTP."
  }
  assert {
    condition     = alltrue([for answer in aws_cloudfront_distribution.this.custom_error_response : answer.error_caching_min_ttl == 0])
    error_message = "Errors may not be cached."
  }
}

run "only_cloudfront_comes_in" {
  command = plan

  assert {
    condition     = aws_lb.this.internal
    error_message = "The load balancer must be internal."
  }
  assert {
    condition     = aws_vpc_security_group_ingress_rule.cloudfront.prefix_list_id == "pl-cloudfront" && aws_vpc_security_group_ingress_rule.cloudfront.cidr_ipv4 == null && aws_vpc_security_group_ingress_rule.cloudfront.from_port == 80
    error_message = "The load balancer must admit CloudFront alone."
  }
  assert {
    condition     = aws_vpc_security_group_ingress_rule.balancer.cidr_ipv4 == null && aws_vpc_security_group_ingress_rule.balancer.from_port == 8080 && aws_vpc_security_group_ingress_rule.balancer.to_port == 8080
    error_message = "The tasks must admit the load balancer alone."
  }
  assert {
    condition     = aws_vpc_security_group_egress_rule.https.from_port == 443 && aws_vpc_security_group_egress_rule.https.to_port == 443
    error_message = "Only HTTPS may go out of a task."
  }
}

run "the_load_balancer_may_have_its_own_subnets" {
  command = plan

  variables {
    balancer_subnet_ids = ["subnet-3", "subnet-4"]
    assign_public_ip    = true
  }

  assert {
    condition     = aws_lb.this.subnets == toset(["subnet-3", "subnet-4"]) && one(aws_ecs_service.this.network_configuration).subnets == toset(["subnet-1", "subnet-2"])
    error_message = "Load balancer and tasks must each be in their own subnets."
  }
}

run "tasks_are_confined_and_let_uploads_end" {
  command = plan

  assert {
    condition     = jsondecode(aws_ecs_task_definition.this.container_definitions)[0].readonlyRootFilesystem && jsondecode(aws_ecs_task_definition.this.container_definitions)[0].user == "65532:65532"
    error_message = "A task must not be root, nor write its file system."
  }
  assert {
    condition     = jsondecode(aws_ecs_task_definition.this.container_definitions)[0].image == var.image && jsondecode(aws_ecs_task_definition.this.container_definitions)[0].command[0] == "ingest"
    error_message = "A task must run ingest, from the image by digest."
  }
  assert {
    condition     = one(aws_ecs_task_definition.this.runtime_platform).cpu_architecture == "ARM64" && aws_ecs_service.this.desired_count == 2
    error_message = "Two small arm64 tasks are the default."
  }
  assert {
    condition     = aws_ecs_task_definition.this.cpu == "256" && aws_ecs_task_definition.this.memory == "1024"
    error_message = "A task must have a quarter of a core, and 1 GiB for the uploads that it holds."
  }
  assert {
    condition     = tonumber(aws_lb_target_group.this.deregistration_delay) >= 120 && jsondecode(aws_ecs_task_definition.this.container_definitions)[0].stopTimeout == 120 && aws_lb.this.idle_timeout >= 120
    error_message = "An upload in flight must be let go on."
  }
  assert {
    condition     = one(aws_lb_target_group.this.health_check).path == "/healthz" && one(aws_lb_target_group.this.health_check).matcher == "200"
    error_message = "A task is healthy when it says so, where nobody needs a key."
  }
  assert {
    condition     = !aws_ecs_service.this.enable_execute_command && one(aws_ecs_service.this.deployment_circuit_breaker).rollback
    error_message = "No shell in a task; a deployment that fails must be undone."
  }
  assert {
    condition     = aws_cloudwatch_log_group.this.retention_in_days == 30 && aws_cloudwatch_log_group.this.kms_key_id == var.kms_key_arn
    error_message = "Logs must be encrypted, and end."
  }
}

run "the_roles_have_no_wildcard_but_the_login" {
  command = plan

  assert {
    condition     = alltrue([for statement in concat(local.task_statements, local.execution_statements) : alltrue([for action in statement.Action : !strcontains(action, "*")])])
    error_message = "No action may be a wildcard."
  }
  assert {
    condition     = [for statement in concat(local.task_statements, local.execution_statements) : statement.Sid if contains(statement.Resource, "*")] == ["RegistryLogin"]
    error_message = "Only the registry's login may name every resource."
  }
  assert {
    condition     = toset(flatten([for statement in local.task_statements : statement.Resource if contains(statement.Action, "s3:PutObject")])) == toset(["arn:aws:s3:::night-data/files/*", "arn:aws:s3:::night-data/uploads/*"])
    error_message = "Ingest may write files and uploads alone."
  }
  assert {
    condition     = flatten([for statement in local.task_statements : statement.Resource if contains(statement.Action, "s3:ListBucket")]) == ["arn:aws:s3:::night-data"]
    error_message = "Ingest must be able to tell that an object is not there, and only in its own bucket."
  }
  assert {
    condition     = aws_iam_role.task.name != aws_iam_role.execution.name
    error_message = "What runs and what starts it must be two roles."
  }
}

run "a_certificate_brings_tls_to_the_load_balancer" {
  command = plan

  variables {
    certificate_arn        = "arn:aws:acm:eu-west-1:123456789012:certificate/1"
    origin_domain_name     = "ingest.example.com"
    aliases                = ["batch.example.com"]
    viewer_certificate_arn = "arn:aws:acm:us-east-1:123456789012:certificate/2"
  }

  assert {
    condition     = aws_lb_listener.this.protocol == "HTTPS" && aws_lb_listener.this.port == 443 && aws_vpc_security_group_ingress_rule.cloudfront.from_port == 443
    error_message = "The load balancer must speak TLS."
  }
  assert {
    condition     = one(aws_cloudfront_vpc_origin.this.vpc_origin_endpoint_config).origin_protocol_policy == "https-only"
    error_message = "CloudFront must speak TLS to the load balancer."
  }
  assert {
    condition     = one(aws_cloudfront_distribution.this.viewer_certificate).minimum_protocol_version == "TLSv1.2_2021" && output.base_url == "https://batch.example.com/v1"
    error_message = "An own name must have TLS 1.2 or newer, and be the base URL."
  }
}

run "imports_can_be_read" {
  command = plan

  variables {
    imports = { locations = ["s3://inputs/batches/"], kms_key_arns = ["arn:aws:kms:eu-west-1:123456789012:key/inputs"] }
  }

  assert {
    condition     = flatten([for statement in local.task_statements : statement.Resource if statement.Sid == "ReadImports"]) == ["arn:aws:s3:::inputs/batches/*"]
    error_message = "Ingest must read below the locations alone."
  }
  assert {
    condition     = flatten([for statement in local.task_statements : statement.Resource if statement.Sid == "DecryptImports"]) == ["arn:aws:kms:eu-west-1:123456789012:key/inputs"]
    error_message = "Ingest must be able to decrypt what it imports."
  }
}

run "an_import_with_a_wildcard_is_refused" {
  command = plan

  variables {
    imports = { locations = ["s3://inputs*/"] }
  }

  expect_failures = [var.imports]
}

run "half_a_certificate_is_refused" {
  command = plan

  variables {
    certificate_arn = "arn:aws:acm:eu-west-1:123456789012:certificate/1"
  }

  expect_failures = [var.certificate_arn]
}

run "a_tag_is_refused" {
  command = plan

  variables {
    image = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/nightshift:latest"
  }

  expect_failures = [var.image]
}

run "one_zone_is_refused" {
  command = plan

  variables {
    subnet_ids = ["subnet-1"]
  }

  expect_failures = [var.subnet_ids]
}
