# The examples make plans, not only sense.

mock_provider "aws" {
  source = "./tests/mocks"
}

run "complete_has_workers_and_both_doors" {
  command = plan

  module {
    source = "./examples/complete"
  }

  variables {
    artifacts_dir  = "tests/artifacts"
    worker_image   = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/worker@sha256:0000000000000000000000000000000000000000000000000000000000000000"
    ingest_image   = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/ingest@sha256:0000000000000000000000000000000000000000000000000000000000000000"
    weights_bucket = "weights"
    import_bucket  = "inputs"
    alarm_email    = "nobody@example.com"
    domain         = { name = "batch.example.com", certificate_arn = "arn:aws:acm:eu-west-1:123456789012:certificate/c" }
  }

  assert {
    condition     = toset(keys(output.worker_group_names)) == toset(["small", "large"])
    error_message = "a profile has no group"
  }

  # What the program serves today.
  assert {
    condition = toset(flatten([for model in jsondecode(output.environment["NIGHTSHIFT_CATALOG"]) : model.endpoints])) == toset([
      "/v1/chat/completions", "/v1/completions", "/v1/responses",
    ])
    error_message = "the example has a model with an endpoint that no worker serves"
  }

  assert {
    condition     = output.api_base_url == "https://batch.example.com/v1"
    error_message = "the domain is not the base URL: ${output.api_base_url}"
  }
}
