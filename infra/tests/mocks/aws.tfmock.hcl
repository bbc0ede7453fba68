# What the provider would know, known in plans already, so that assertions see whole policies.

mock_data "aws_caller_identity" {
  defaults = {
    account_id = "123456789012"
  }
}

mock_data "aws_partition" {
  defaults = {
    partition  = "aws"
    dns_suffix = "amazonaws.com"
  }
}

mock_data "aws_region" {
  defaults = {
    id   = "eu-west-1"
    name = "eu-west-1"
  }
}

mock_data "aws_availability_zones" {
  defaults = {
    names    = ["eu-west-1a", "eu-west-1b", "eu-west-1c"]
    zone_ids = ["euw1-az1", "euw1-az2", "euw1-az3"]
  }
}

mock_resource "aws_kms_key" {
  override_during = plan
  defaults = {
    arn    = "arn:aws:kms:eu-west-1:123456789012:key/00000000-0000-4000-8000-000000000000"
    key_id = "00000000-0000-4000-8000-000000000000"
  }
}
