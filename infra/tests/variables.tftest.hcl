# What a user gets wrong is refused in a plan, by the variable at fault.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  artifacts_dir = "tests/artifacts"
  models        = { tiny = { source = { path = "/m" } } }
}

run "wrong_values_are_refused" {
  command = plan

  variables {
    name                 = "Ends-"
    artifacts_dir        = "tests/nowhere"
    architecture         = "riscv"
    profiles             = { small = { models = ["unknown"] } }
    settings             = { lines_per_file = 0 }
    import_kms_key_arns  = ["*"]
    network              = { mode = "existing" }
    ingest               = { enabled = true, image = "ingest:latest" }
    throttle             = { rate = 0 }
    waf                  = { rate_limit = 1 }
    kms_key_arn          = "alias/mine"
    retention            = { work_days = 7 }
    log_retention_days   = 31
    reserved_concurrency = { nobody = 1 }
    function_environment = { NIGHTSHIFT_TABLE = "another" }
  }

  expect_failures = [
    var.name, var.artifacts_dir, var.architecture, var.profiles, var.settings,
    var.import_kms_key_arns, var.network, var.ingest, var.throttle, var.waf, var.kms_key_arn, var.retention,
    var.log_retention_days, var.reserved_concurrency, var.function_environment,
  ]
}

run "functions_may_be_told_how_much_to_log" {
  command = plan

  variables {
    function_environment = { NIGHTSHIFT_LOG = "debug", RUST_BACKTRACE = "1" }
  }

  assert {
    condition     = !can(output.environment["NIGHTSHIFT_LOG"])
    error_message = "the environment of every process has what only functions were to get"
  }
}

run "own_bucket_is_no_place_to_import_from_and_a_tag_no_digest" {
  command = plan

  variables {
    import_locations = ["s3://nightshift-123456789012-eu-west-1/files/"]
    profiles         = { small = { models = ["tiny"] } }
    worker_image     = "worker:latest"
  }

  expect_failures = [var.import_locations, var.worker_image]
}

run "model_has_one_source_and_an_import_no_wildcard" {
  command = plan

  variables {
    import_locations = ["s3://inputs/*"]
    models           = { two = { source = { path = "/m", s3 = "s3://weights/m" } } }
  }

  expect_failures = [var.import_locations, var.models]
}

run "model_of_a_server_has_no_source" {
  command = plan

  variables {
    models = { served = { engine = "http", source = { path = "/m" }, server = { url = "http://gpu:8000/v1" } } }
  }

  expect_failures = [var.models]
}

run "engine_http_needs_a_server" {
  command = plan

  variables {
    models = { served = { engine = "http" } }
  }

  expect_failures = [var.models]
}

run "model_needs_a_source_or_a_server" {
  command = plan

  variables {
    models = { nowhere = {} }
  }

  expect_failures = [var.models]
}

run "server_address_holds_no_password" {
  command = plan

  variables {
    models = { served = { engine = "http", server = { url = "http://me:secret@gpu:8000/v1" } } }
  }

  expect_failures = [var.models]
}

run "server_key_is_named_and_not_given" {
  command = plan

  variables {
    models = { served = { engine = "http", server = { url = "http://gpu:8000/v1", api_key_env = "sk-1234" } } }
  }

  expect_failures = [var.models]
}

run "server_bounds_are_whole_and_small" {
  command = plan

  variables {
    models = { served = { engine = "http", server = { url = "http://gpu:8000/v1", requests_max = 5000 } } }
  }

  expect_failures = [var.models]
}

run "server_key_is_a_secret_of_the_profile" {
  command = plan

  variables {
    models       = { served = { engine = "http", server = { url = "http://gpu:8000/v1", api_key_env = "GPU_KEY" } } }
    profiles     = { small = { models = ["served"] } }
    worker_image = "worker@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  }

  expect_failures = [var.profiles]
}

run "workers_reach_the_servers_of_their_models" {
  command = plan

  variables {
    models = {
      served = { engine = "http", server = { url = "http://gpu:8000/v1", api_key_env = "GPU_KEY" } }
      plain  = { engine = "http", server = { url = "http://gpu/v1" } }
      secure = { engine = "http", server = { url = "https://gpu/v1" } }
    }
    profiles     = { small = { models = ["served", "plain", "secure"], secrets = { GPU_KEY = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:gpu-AbCdEf" } } }
    worker_image = "worker@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  }

  assert {
    condition     = local.server_ports["small"] == toset(["8000", "80"])
    error_message = "ports of servers: ${jsonencode(local.server_ports)}"
  }
}

run "models_share_no_queue" {
  command = plan

  variables {
    models = {
      "llama-3.1" = { source = { path = "/a" } }
      "llama-3-1" = { source = { path = "/b" } }
    }
  }

  expect_failures = [var.models]
}

run "models_share_no_name" {
  command = plan

  variables {
    models = {
      a = { source = { path = "/a" } }
      b = { source = { path = "/b" }, aliases = ["a"] }
    }
  }

  expect_failures = [var.models]
}

run "unknown_endpoint_is_refused" {
  command = plan

  variables {
    models = { a = { source = { path = "/a" }, endpoints = ["/v1/images"] } }
  }

  expect_failures = [var.models]
}

run "model_without_workers_is_refused" {
  command = plan

  variables {
    models       = { a = { source = { path = "/a" } }, b = { source = { path = "/b" } } }
    profiles     = { small = { models = ["a"] } }
    worker_image = "worker@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  }

  expect_failures = [var.profiles]
}

run "environment_beyond_lambdas_limit_is_refused" {
  command = plan

  variables {
    models = { for number in range(20) : "model-with-a-rather-long-name-${number}" => { source = { path = "/models/some-folder/model-${number}.gguf" } } }
  }

  expect_failures = [output.environment]
}
