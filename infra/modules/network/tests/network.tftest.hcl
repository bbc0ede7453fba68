# The four modes, planned against a provider that is not there.
mock_provider "aws" {
  override_during = plan

  mock_data "aws_availability_zones" {
    defaults = { names = ["eu-west-1a", "eu-west-1b", "eu-west-1c"] }
  }
}

variables {
  name   = "night"
  region = "eu-west-1"
}

run "the_default_costs_nothing_and_lets_nothing_in" {
  command = plan

  assert {
    condition     = length(aws_subnet.public) == 3 && length(aws_subnet.private) == 3 && length(aws_route.nat) == 0 && alltrue([for subnet in aws_subnet.public : subnet.map_public_ip_on_launch])
    error_message = "Workers must be in public subnets, with addresses of their own; private subnets have no way out."
  }
  assert {
    condition     = length(aws_nat_gateway.this) == 0 && length(aws_vpc_endpoint.interface) == 0 && length(aws_eip.nat) == 0
    error_message = "Nothing may cost money at rest."
  }
  assert {
    condition     = length(aws_vpc_security_group_ingress_rule.endpoints) == 0
    error_message = "Nothing may come in."
  }
  assert {
    condition     = toset(keys(aws_vpc_endpoint.gateway)) == toset(["s3", "dynamodb"]) && alltrue([for endpoint in aws_vpc_endpoint.gateway : endpoint.vpc_endpoint_type == "Gateway"])
    error_message = "S3 and DynamoDB must have their free endpoints."
  }
  assert {
    condition     = length(aws_default_security_group.this) == 1
    error_message = "The VPC's default security group must be ours, without rules."
  }
  assert {
    condition     = length(output.worker_subnet_ids) == 3 && output.workers_need_public_ip
    error_message = "Workers must get the public subnets."
  }
  assert {
    condition     = length(aws_flow_log.this) == 0
    error_message = "Flow logs must be off unless asked for."
  }
}

run "one_nat_gateway_serves_all_zones" {
  command = plan

  variables {
    mode = "nat"
  }

  assert {
    condition     = length(aws_nat_gateway.this) == 1 && length(aws_route.nat) == 3
    error_message = "One gateway, and a route to it from each zone."
  }
  assert {
    condition     = length(aws_subnet.private) == 3 && !anytrue([for subnet in aws_subnet.public : subnet.map_public_ip_on_launch])
    error_message = "Workers must be private, and public subnets give no addresses."
  }
  assert {
    condition     = length(output.worker_subnet_ids) == 3 && !output.workers_need_public_ip && length(aws_vpc_endpoint.gateway) == 2
    error_message = "Workers must get the private subnets, and the free endpoints all the same."
  }
}

run "each_zone_may_have_its_own_nat_gateway" {
  command = plan

  variables {
    mode       = "nat"
    az_count   = 2
    nat_per_az = true
  }

  assert {
    condition     = toset(keys(aws_nat_gateway.this)) == toset(["eu-west-1a", "eu-west-1b"])
    error_message = "Two zones, two gateways."
  }
}

run "endpoints_mode_has_no_way_out" {
  command = plan

  variables {
    mode                      = "endpoints"
    session_manager_endpoints = true
    secrets_endpoint          = true
  }

  assert {
    condition     = length(aws_internet_gateway.this) == 0 && length(aws_route.internet) == 0 && length(aws_route.nat) == 0 && length(aws_subnet.public) == 0
    error_message = "No route may lead out."
  }
  assert {
    condition     = length(setsubtract(["sqs", "ecr.api", "ecr.dkr", "logs", "sts", "kms", "autoscaling", "monitoring", "ssm", "ssmmessages", "ec2messages", "secretsmanager"], keys(aws_vpc_endpoint.interface))) == 0
    error_message = "A service that workers call has no endpoint."
  }
  assert {
    condition     = alltrue([for endpoint in aws_vpc_endpoint.interface : endpoint.private_dns_enabled])
    error_message = "The SDKs' own names must lead to the endpoints."
  }
  assert {
    condition     = aws_vpc_security_group_ingress_rule.endpoints[0].cidr_ipv4 == var.cidr && aws_vpc_security_group_ingress_rule.endpoints[0].from_port == 443 && aws_vpc_security_group_ingress_rule.endpoints[0].to_port == 443
    error_message = "Endpoints must take HTTPS of this VPC alone."
  }
}

run "cloudfront_gets_a_gateway_without_a_route" {
  command = plan

  variables {
    mode             = "endpoints"
    internet_gateway = true
  }

  assert {
    condition     = length(aws_internet_gateway.this) == 1 && length(aws_route.internet) == 0
    error_message = "A gateway, and no route to it."
  }
}

run "zones_may_be_named" {
  command = plan

  variables {
    mode               = "nat"
    availability_zones = ["eu-west-1c", "eu-west-1a"]
  }

  assert {
    condition     = toset(keys(aws_subnet.private)) == toset(["eu-west-1a", "eu-west-1c"]) && length(data.aws_availability_zones.this) == 0
    error_message = "Exactly the named zones must be used."
  }
}

run "an_existing_vpc_is_left_alone" {
  command = plan

  variables {
    mode = "existing"
    existing = {
      vpc_id             = "vpc-1"
      private_subnet_ids = ["subnet-1", "subnet-2"]
      public_subnet_ids  = ["subnet-3"]
    }
  }

  assert {
    condition     = length(aws_vpc.this) == 0 && length(aws_vpc_endpoint.gateway) == 0 && length(aws_default_security_group.this) == 0
    error_message = "Nothing may be made in a VPC of someone else."
  }
  assert {
    condition     = output.vpc_id == "vpc-1" && output.worker_subnet_ids == tolist(["subnet-1", "subnet-2"]) && output.s3_endpoint_id == null
    error_message = "Workers must get the private subnets that were named."
  }
}

run "existing_needs_a_vpc" {
  command = plan

  variables {
    mode = "existing"
  }

  expect_failures = [var.existing]
}

run "flow_logs_come_when_asked_for" {
  command = plan

  variables {
    flow_logs = { enabled = true, retention_days = 7 }
  }

  assert {
    condition     = aws_flow_log.this[0].traffic_type == "REJECT" && aws_cloudwatch_log_group.flow[0].retention_in_days == 7
    error_message = "Rejected traffic must be logged, for a week."
  }
}

run "an_unknown_mode_is_refused" {
  command = plan

  variables {
    mode = "public"
  }

  expect_failures = [var.mode]
}
