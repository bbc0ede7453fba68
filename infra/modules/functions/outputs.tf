output "functions" {
  description = "The functions by name, as API Gateway and alarms name them."
  value       = { for key, function in module.function : key => { name = function.name, arn = function.arn, invoke_arn = function.invoke_arn } }
}

output "sizes" {
  description = "Memory and time of each function."
  value       = { for key, function in module.function : key => function.size }
}

output "policies" {
  description = "What each function's role may do, as JSON, for whoever audits it."
  value       = { for key, function in module.function : key => function.policies }
}

output "roles" {
  description = "Names of the functions' roles."
  value       = { for key, function in module.function : key => function.role }
}

output "log_groups" {
  description = "The functions' log groups."
  value       = { for key, function in module.function : key => function.log_group }
}
