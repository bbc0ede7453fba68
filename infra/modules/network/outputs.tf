output "vpc_id" {
  description = "The VPC."
  value       = local.vpc_id
}

output "private_subnet_ids" {
  description = "Subnets that the internet cannot reach. In mode public_egress they have no way out either, and suit load balancers alone."
  value       = local.private_subnet_ids
}

output "public_subnet_ids" {
  description = "Subnets with a route to an internet gateway; none in mode endpoints."
  value       = local.public_subnet_ids
}

output "worker_subnet_ids" {
  description = "Subnets for workers and ingest tasks: the private ones if they have a way out, else the public ones."
  value       = local.has_private_egress ? local.private_subnet_ids : local.public_subnet_ids
}

output "workers_need_public_ip" {
  description = "Whether what runs in worker_subnet_ids has no way out but a public address of its own."
  value       = !local.has_private_egress
}

output "s3_endpoint_id" {
  description = "The gateway endpoint for S3; null in mode existing."
  value       = try(aws_vpc_endpoint.gateway["s3"].id, null)
}
