# The smallest deployment: the whole API, one model, no workers. `nightshift worker` serves it from any machine that
# has its environment (terraform output -json environment) and AWS credentials.

terraform {
  required_version = ">= 1.9"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.100, < 7"
    }
  }
}

variable "region" {
  description = "Region to deploy to."
  type        = string
  default     = "us-east-1"
}

variable "artifacts_dir" {
  description = "Folder with the functions' zips, as `make package` makes them."
  type        = string
  default     = "../../../target/lambda/arm64"
}

provider "aws" {
  region = var.region

  default_tags {
    tags = { Project = "nightshift" }
  }
}

module "nightshift" {
  source = "../.."

  artifacts_dir = var.artifacts_dir

  models = {
    smollm2-135m-instruct = {
      source = {
        hugging_face = {
          repo = "HuggingFaceTB/SmolLM2-135M-Instruct"
        }
      }
    }
  }

  # To try it out: a destroy then needs no second thought.
  deletion_protection = false
}

output "api_base_url" {
  description = "What an OpenAI SDK takes as base_url."
  value       = module.nightshift.api_base_url
}

output "environment" {
  description = "What a worker elsewhere is told."
  value       = module.nightshift.environment
}
