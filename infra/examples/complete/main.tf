# Everything at once: two profiles on spot instances in a private network, ingest for uploads of any size, input by
# reference, a domain, alarms by mail.
#
# The engine computes on CPUs and knows Llama's architecture: models and instances are chosen for that.

terraform {
  required_version = ">= 1.9"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.100, < 7"
    }
  }
}

provider "aws" {
  region = var.region

  default_tags {
    tags = { Project = "nightshift" }
  }
}

module "nightshift" {
  source = "../.."

  name          = "nightshift-prod"
  artifacts_dir = var.artifacts_dir
  architecture  = "arm64"

  models = {
    "llama-3.2-3b-instruct" = {
      source         = { s3 = "s3://${var.weights_bucket}/llama-3.2-3b-instruct/" }
      endpoints      = ["/v1/chat/completions", "/v1/completions", "/v1/responses"]
      price          = { input_per_million = 0.05, output_per_million = 0.08 }
      aliases        = ["gpt-4o-mini"]
      context_tokens = 32768
      owned_by       = "meta"
    }
    "smollm2-1.7b-instruct" = {
      source         = { hugging_face = { repo = "HuggingFaceTB/SmolLM2-1.7B-Instruct", revision = "main" } }
      endpoints      = ["/v1/chat/completions", "/v1/responses"]
      price          = { input_per_million = 0.02, output_per_million = 0.06 }
      context_tokens = 8192
      owned_by       = "HuggingFaceTB"
    }
  }

  profiles = {
    small = {
      models         = ["smollm2-1.7b-instruct"]
      instance_types = ["c7i.2xlarge", "m7i.2xlarge", "c6i.2xlarge", "m6i.2xlarge"]
      workers_max    = 8
      on_demand_base = 1
    }
    large = {
      models         = ["llama-3.2-3b-instruct"]
      instance_types = ["c7i.8xlarge", "m7i.8xlarge", "c6i.8xlarge", "m6i.8xlarge"]
      workers_max    = 4
    }
  }

  worker_image = var.worker_image

  ingest = {
    enabled = true
    image   = var.ingest_image
  }

  network = {
    mode      = "nat"
    flow_logs = true
  }

  import_locations = ["s3://${var.import_bucket}/batches/"]
  domain           = var.domain

  settings = {
    lines_per_file   = 1000000
    file_bytes       = 8589934592
    batches_per_hour = 200
  }

  throttle = { rate = 200, burst = 400 }
  waf      = { rate_limit = 10000 }

  access_log = {
    enabled          = true
    set_account_role = true
  }

  alarms = {
    topic_arns              = [aws_sns_topic.alarms.arn]
    message_age_max_seconds = 10800
  }

  retention          = { files_days = 90 }
  log_retention_days = 90
}

resource "aws_sns_topic" "alarms" {
  #checkov:skip=CKV_AWS_26: CloudWatch can publish to an encrypted topic only by a key of your own; alarms name queues and functions alone.
  name = "nightshift-prod-alarms"
}

resource "aws_sns_topic_subscription" "alarms" {
  topic_arn = aws_sns_topic.alarms.arn
  protocol  = "email"
  endpoint  = var.alarm_email
}
