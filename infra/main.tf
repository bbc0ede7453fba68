module "security" {
  source = "./modules/security"

  name        = var.name
  partition   = local.partition
  region      = local.region
  account_id  = local.account
  kms_key_arn = var.kms_key_arn
}

module "storage" {
  source = "./modules/storage"

  bucket            = local.bucket
  bucket_arn        = local.bucket_arn
  kms_key_arn       = module.security.kms_key_arn
  retention         = var.retention
  lifecycle_enabled = var.retention.lifecycle_rules
  force_destroy     = !var.deletion_protection
}

module "state" {
  source = "./modules/state"

  table               = local.table
  kms_key_arn         = module.security.kms_key_arn
  deletion_protection = var.deletion_protection
}

module "queues" {
  source = "./modules/queues"

  queues      = local.queues
  kms_key_arn = module.security.kms_key_arn
}

module "functions" {
  source = "./modules/functions"

  name                 = var.name
  arn_prefix           = local.arn_prefix
  functions            = local.functions
  artifacts_dir        = var.artifacts_dir
  architecture         = var.architecture
  environment          = merge(var.function_environment, local.environment)
  table_arn            = local.table_arn
  bucket_arn           = local.bucket_arn
  queue_arns           = local.queue_arns
  source_arns          = module.queues.arns
  triggers             = local.triggers
  scheduled            = ["dispatch", "reconcile"]
  kms_key_arn          = module.security.kms_key_arn
  imports              = { locations = var.import_locations, kms_key_arns = var.import_kms_key_arns }
  log_retention_days   = var.log_retention_days
  tracing              = var.tracing
  reserved_concurrency = var.reserved_concurrency
}

module "api" {
  source = "./modules/api"

  name               = var.name
  stage              = local.stage
  arn_prefix         = local.arn_prefix
  functions          = { for function in ["api", "authorizer"] : function => module.functions.functions[function] }
  bucket             = module.storage.bucket
  bucket_arn         = local.bucket_arn
  kms_key_arn        = module.security.kms_key_arn
  throttle           = var.throttle
  waf                = var.waf
  access_log         = var.access_log
  domain             = var.domain
  default_endpoint   = var.domain == null || var.ingest.enabled
  tracing            = var.tracing
  log_retention_days = var.log_retention_days
}

module "observability" {
  source = "./modules/observability"

  name               = var.name
  region             = local.region
  api_name           = var.name
  stage              = local.stage
  functions          = { for function in keys(local.functions) : function => "${var.name}-${function}" }
  queues             = { for key, queue in local.queues : key => queue.name }
  dead_letter_queues = { for key, queue in local.queues : key => queue.dead_letter_name }
  models             = keys(var.models)
  profiles           = keys(var.profiles)
  topic_arns         = var.alarms.topic_arns
  alarms_enabled     = var.alarms.enabled
  dashboard_enabled  = var.dashboard

  message_age_max_seconds = merge(
    { for key in ["validate", "finalize", "assemble"] : key => 1800 },
    { for key in flatten([for queues in values(local.model_queues) : values(queues)]) : key => var.alarms.message_age_max_seconds },
  )
}

module "network" {
  source = "./modules/network"
  count  = length(var.profiles) > 0 || var.ingest.enabled ? 1 : 0

  name             = var.name
  region           = local.region
  mode             = var.network.mode
  cidr             = var.network.cidr
  az_count         = var.network.az_count
  existing         = var.network.existing
  internet_gateway = var.ingest.enabled

  flow_logs = {
    enabled        = var.network.flow_logs
    retention_days = var.log_retention_days
    kms_key_arn    = module.security.kms_key_arn
  }

  session_manager_endpoints = anytrue([for profile in values(var.profiles) : coalesce(profile.session_manager, false)])
  secrets_endpoint          = anytrue([for profile in values(var.profiles) : length(coalesce(profile.secrets, {})) > 0])
}

module "worker_fleet" {
  source   = "./modules/worker-fleet"
  for_each = var.profiles

  name               = var.name
  profile            = each.key
  region             = local.region
  settings           = each.value
  environment        = local.environment
  vpc_id             = module.network[0].vpc_id
  subnet_ids         = module.network[0].worker_subnet_ids
  image              = var.worker_image
  table_arn          = local.table_arn
  bucket_arn         = local.bucket_arn
  queue_arns         = [for key in sort(flatten([for id in each.value.models : values(local.model_queues[id])])) : local.queue_arns[key]]
  send_queue_arns    = [for key in ["dispatch", "finalize"] : local.queue_arns[key]]
  weights_locations  = compact([for id in each.value.models : try(var.models[id].source.s3, null)])
  server_ports       = local.server_ports[each.key]
  kms_key_arn        = module.security.kms_key_arn
  log_retention_days = var.log_retention_days
  alarm_topic_arns   = var.alarms.topic_arns
}

module "ingest" {
  source = "./modules/ingest"
  count  = var.ingest.enabled ? 1 : 0

  name                = var.name
  region              = local.region
  environment         = local.environment
  image               = var.ingest.image
  desired_count       = var.ingest.tasks
  vpc_id              = module.network[0].vpc_id
  subnet_ids          = module.network[0].worker_subnet_ids
  balancer_subnet_ids = module.network[0].private_subnet_ids
  assign_public_ip    = module.network[0].workers_need_public_ip
  api_domain_name     = module.api.host
  table_arn           = local.table_arn
  bucket_arn          = local.bucket_arn
  alarm_topic_arns    = var.alarms.topic_arns
  send_queue_arns     = [for key in ["assemble", "finalize", "validate"] : local.queue_arns[key]]
  imports             = { locations = var.import_locations, kms_key_arns = var.import_kms_key_arns }
  kms_key_arn         = module.security.kms_key_arn
  certificate_arn     = var.ingest.certificate_arn
  origin_domain_name  = var.ingest.origin_domain_name
  web_acl_arn         = var.ingest.web_acl_arn
  log_retention_days  = var.log_retention_days
}
