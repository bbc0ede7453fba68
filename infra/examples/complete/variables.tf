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

variable "worker_image" {
  description = "Container image of the workers: <repository>@sha256:<digest>."
  type        = string
}

variable "ingest_image" {
  description = "Container image of ingest: <repository>@sha256:<digest>."
  type        = string
}

variable "weights_bucket" {
  description = "Bucket with the weights of llama-3.2-3b-instruct."
  type        = string
}

variable "import_bucket" {
  description = "Bucket that batches may read input from, below batches/."
  type        = string
}

variable "alarm_email" {
  description = "Who hears of alarms."
  type        = string
}

variable "domain" {
  description = "A host of yours for the API and its certificate in ACM; null for none."
  type = object({
    name            = string
    certificate_arn = string
  })
  default = null
}
