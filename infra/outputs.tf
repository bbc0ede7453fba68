output "api_base_url" {
  description = "What an OpenAI SDK takes as base_url."
  value       = module.api.base_url
}

output "api_id" {
  description = "Id of the REST API."
  value       = module.api.api_id
}

output "environment" {
  description = "What every process of the deployment is told: the NIGHTSHIFT_* variables."
  value       = local.environment

  precondition {
    condition     = local.environment_bytes <= local.environment_bytes_max
    error_message = "Lambda takes ${local.environment_bytes_max} bytes of environment, and this deployment's has ${local.environment_bytes}. Fewer models, aliases, profiles or import locations make it smaller; deploy a second one for the rest."
  }
}

output "table_name" {
  description = "Name of the records table."
  value       = module.state.table
}

output "bucket_name" {
  description = "Name of the bucket."
  value       = module.storage.bucket
}

output "queue_url_prefix" {
  description = "What the address of every queue starts with."
  value       = module.queues.url_prefix
}

output "dashboard_url" {
  description = "Address of the dashboard; null without one."
  value       = module.observability.dashboard_url
}

output "worker_group_names" {
  description = "Names of the auto-scaling groups, by profile."
  value       = { for profile, fleet in module.worker_fleet : profile => fleet.group_name }
}

output "ingest_base_url" {
  description = "What an SDK takes as base_url for files of any size; null without ingest."
  value       = one(module.ingest[*].base_url)
}

output "domain_target" {
  description = "Host that the DNS record of your domain points to; null without a domain."
  value       = module.api.domain_target
}

output "region" {
  description = "Region of the deployment."
  value       = local.region
}
