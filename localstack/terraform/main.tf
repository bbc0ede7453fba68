# Nightshift on an emulator: the module that a user applies, with what emulators lack or are slow at switched off.

provider "aws" {
  region     = var.region
  access_key = "test"
  secret_key = "test"

  s3_use_path_style           = true
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_region_validation      = true

  # Every service that infra/ uses.
  endpoints {
    apigateway     = var.endpoint
    cloudwatch     = var.endpoint
    dynamodb       = var.endpoint
    ec2            = var.endpoint
    events         = var.endpoint
    iam            = var.endpoint
    kms            = var.endpoint
    lambda         = var.endpoint
    cloudwatchlogs = var.endpoint
    s3             = var.endpoint
    sqs            = var.endpoint
    ssm            = var.endpoint
    sts            = var.endpoint
  }
}

module "nightshift" {
  source = "../../infra"

  name          = var.name
  models        = var.models
  artifacts_dir = var.artifacts_dir
  architecture  = var.architecture

  settings = var.settings

  function_environment = var.function_environment

  # Workers run beside the emulator, not on instances: no profiles, so no network.
  alarms              = { enabled = var.alarms }
  dashboard           = false
  deletion_protection = false
  tracing             = false
  waf                 = { enabled = false }

  # The provider waits 55 s for them.
  retention = { lifecycle_rules = false }
}
