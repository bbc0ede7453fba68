output "api_id" {
  description = "Id of the REST API."
  value       = module.nightshift.api_id
}

output "environment" {
  description = "What every process of the deployment is told: the NIGHTSHIFT_* variables."
  value       = module.nightshift.environment
}

output "region" {
  description = "Region of the deployment."
  value       = module.nightshift.region
}

output "bucket_name" {
  description = "Name of the bucket."
  value       = module.nightshift.bucket_name
}

output "table_name" {
  description = "Name of the records table."
  value       = module.nightshift.table_name
}

output "queue_url_prefix" {
  description = "What the address of every queue starts with."
  value       = module.nightshift.queue_url_prefix
}
