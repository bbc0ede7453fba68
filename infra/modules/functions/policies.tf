# What each function may do: exactly what its code calls, on exactly what it calls it on.
locals {
  read_records = {
    Sid      = "ReadRecords"
    Action   = ["dynamodb:GetItem", "dynamodb:Query"]
    Resource = [var.table_arn]
  }

  read_work_index = {
    Sid      = "ReadWorkIndex"
    Action   = ["dynamodb:Query"]
    Resource = ["${var.table_arn}/index/work"]
  }

  # TransactWriteItems asks for the right of each action that it holds.
  write_records = {
    Sid      = "WriteRecords"
    Action   = ["dynamodb:ConditionCheckItem", "dynamodb:DeleteItem", "dynamodb:PutItem", "dynamodb:UpdateItem"]
    Resource = [var.table_arn]
  }

  # Without it S3 answers 403 where an object is not there, and a missing blob would look like a refusal.
  tell_missing_blobs = {
    Sid      = "TellMissingBlobs"
    Action   = ["s3:ListBucket"]
    Resource = [var.bucket_arn]
  }

  # Which folders of the bucket each function reads, writes and deletes in. A write may be a multipart one,
  # and whoever begins one may drop it.
  folders = {
    api = {
      read   = ["files", "outputs", "uploads"]
      write  = ["files", "uploads"]
      delete = ["files", "uploads"]
    }
    authorizer = { read = [], write = [], delete = [] }
    validate = {
      read   = ["files", "index", "shards"]
      write  = ["index", "shards"]
      delete = []
    }
    dispatch = { read = [], write = [], delete = [] }
    finalize = {
      read   = ["index", "outputs", "results"]
      write  = ["outputs", "results"]
      delete = ["outputs"]
    }
    assemble = {
      read   = ["uploads"]
      write  = ["files"]
      delete = ["files", "uploads"]
    }
    reconcile = {
      read   = ["index", "results", "shards"]
      write  = ["results"]
      delete = ["files", "index", "outputs", "results", "shards", "uploads"]
    }
  }

  blob_statements = {
    for function, folders in local.folders : function => concat(
      [for statement in [local.tell_missing_blobs] : statement if length(folders.read) + length(folders.delete) > 0],
      [for verb, access in {
        read   = { Sid = "ReadBlobs", Action = ["s3:GetObject"] }
        write  = { Sid = "WriteBlobs", Action = ["s3:AbortMultipartUpload", "s3:PutObject"] }
        delete = { Sid = "DeleteBlobs", Action = ["s3:DeleteObject"] }
      } : merge(access, { Resource = [for folder in folders[verb] : "${var.bucket_arn}/${folder}/*"] }) if length(folders[verb]) > 0],
    )
  }

  model_queues = [for queue in sort(keys(var.queue_arns)) : queue if startswith(queue, "model-")]

  # Which queues each function sends to, and whose length it asks for.
  queues = {
    api        = { send = ["assemble", "finalize", "validate"], measure = [] }
    authorizer = { send = [], measure = [] }
    validate   = { send = ["dispatch", "validate"], measure = [] }
    dispatch   = { send = local.model_queues, measure = [] }
    finalize   = { send = ["finalize"], measure = [] }
    assemble   = { send = [], measure = [] }
    reconcile = {
      send    = concat(["assemble", "dispatch", "finalize", "validate"], local.model_queues)
      measure = concat(["finalize", "validate"], local.model_queues)
    }
  }

  queue_statements = {
    for function, queues in local.queues : function => concat(
      [for verb, access in {
        send    = { Sid = "SendMessages", Action = ["sqs:SendMessage"] }
        measure = { Sid = "MeasureQueues", Action = ["sqs:GetQueueAttributes"] }
      } : merge(access, { Resource = [for queue in queues[verb] : var.queue_arns[queue]] }) if length(queues[verb]) > 0],
      [for queue in keys(var.triggers) : {
        Sid      = "ReceiveOwnMessages"
        Action   = ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"]
        Resource = [var.queue_arns[queue]]
      } if queue == function],
    )
  }

  # Api looks at an object, assemble copies it.
  importers = ["api", "assemble"]

  import_statements = [
    for locations in [[for location in var.imports.locations : "arn:${var.arn_prefix.partition}:s3:::${trimprefix(location, "s3://")}*"]] : {
      Sid      = "ReadImports"
      Action   = ["s3:GetObject"]
      Resource = locations
    } if length(locations) > 0
  ]

  record_statements = {
    api = [local.read_records, local.write_records]
    # Keys and uploads, and no other tenant data.
    authorizer = [{
      Sid       = "ReadKeysAndUploads"
      Action    = ["dynamodb:GetItem"]
      Resource  = [var.table_arn]
      Condition = { "ForAllValues:StringLike" = { "dynamodb:LeadingKeys" = ["keys", "*/uploads"] } }
    }]
    validate  = [local.read_records, local.write_records]
    dispatch  = [local.read_records, local.write_records, local.read_work_index]
    finalize  = [local.read_records, local.write_records]
    assemble  = [local.read_records, local.write_records]
    reconcile = [local.read_records, local.write_records, local.read_work_index]
  }

  statements = {
    for function in keys(var.functions) : function => concat(
      local.record_statements[function],
      local.blob_statements[function],
      local.queue_statements[function],
      [for statement in local.import_statements : statement if contains(local.importers, function)],
    )
  }

  # The services use the key on behalf of the role. Nobody may call KMS for anything else.
  kms_statements = {
    for function in keys(var.functions) : function => concat(
      [{
        Sid      = "UseKeyThroughServices"
        Action   = function == "authorizer" ? ["kms:Decrypt", "kms:DescribeKey"] : ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey", "kms:ReEncryptFrom", "kms:ReEncryptTo"]
        Resource = [var.kms_key_arn]
        Condition = {
          StringEquals = {
            "kms:ViaService" = [for service in function == "authorizer" ? ["dynamodb"] : ["dynamodb", "s3", "sqs"] : "${service}.${var.arn_prefix.region}.amazonaws.com"]
          }
        }
      }],
      [for keys in [var.imports.kms_key_arns] : {
        Sid       = "DecryptImports"
        Action    = ["kms:Decrypt"]
        Resource  = keys
        Condition = { StringEquals = { "kms:ViaService" = ["s3.${var.arn_prefix.region}.amazonaws.com"] } }
      } if length(keys) > 0 && contains(local.importers, function)],
    )
  }
}
