output "api_base_url" {
  description = "What an OpenAI SDK takes as base_url."
  value       = module.nightshift.api_base_url
}

output "ingest_base_url" {
  description = "The same for files of any size."
  value       = module.nightshift.ingest_base_url
}

output "dashboard_url" {
  description = "The dashboard."
  value       = module.nightshift.dashboard_url
}

output "domain_target" {
  description = "Host that the DNS record of your domain points to."
  value       = module.nightshift.domain_target
}

output "worker_group_names" {
  description = "The auto-scaling groups, by profile."
  value       = module.nightshift.worker_group_names
}

output "environment" {
  description = "What every process of the deployment is told: the NIGHTSHIFT_* variables."
  value       = module.nightshift.environment
}
