//! `POST /batches`: once for each wish of the user, however often the request is sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use batch_core::batch::BatchParams;
use batch_core::file::{File, Purpose};
use batch_core::id::{BatchId, FileId};
use batch_core::message::{QueueName, SCHEMA, StageJob};
use batch_core::wire::{BatchInput, CreateBatch, WireError};
use batch_io::store::{Created, Creation, NewBatch, Retry};
use batch_io::{IoError, IoKind};
use bytes::Bytes;
use http::header::HeaderValue;
use http::{HeaderMap, HeaderName};
use sha2::{Digest, Sha256};

use crate::batches::show;
use crate::body::JsonBody;
use crate::caller::Caller;
use crate::context::Context;
use crate::files::store_lines;
use crate::import::import;
use crate::reply::{ApiError, Reply};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const X_STAINLESS_RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");

/// Tells a client that its request had made this batch before.
const X_NIGHTSHIFT_DEDUPLICATED: HeaderName = HeaderName::from_static("x-nightshift-deduplicated");

/// Name of the file that inline requests become.
const INLINE_FILENAME: &str = "requests.jsonl";

/// Creates a batch. A caller that goes away does not stop it half-way: its retry must find the batch.
pub(crate) async fn create(
    State(context): State<Arc<Context>>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Reply {
    let creation = creation(&caller, &headers, &body);
    let creating = tokio::spawn(async move {
        let created = create_once(&context, &caller, &body, creation.clone()).await;
        if let Err(refused) = &created
            && refused.is_refusal()
            && let Err(fault) = context
                .store
                .refuse_create(&caller.tenant, &creation, caller.now)
                .await
        {
            tracing::warn!(error = %fault, "a refused create is not remembered");
        }
        created
    });
    creating
        .await
        .unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))
}

async fn create_once(
    context: &Arc<Context>,
    caller: &Caller,
    body: &Bytes,
    creation: Creation,
) -> Reply {
    match context
        .store
        .find_retry(&caller.tenant, &creation, caller.now)
        .await?
    {
        Some(Retry::Existing(batch)) => return existing(context, caller, batch).await,
        Some(Retry::Mismatch) => return Err(WireError::idempotency_mismatch().into()),
        None => {}
    }
    let asked = CreateBatch::parse(body)?;
    let made_here = match &asked.input {
        BatchInput::Inline(_) | BatchInput::Import(_) => true,
        BatchInput::File(_) => false,
    };
    let (input_file_id, input) = find_input(context, caller, &asked.input).await?;
    let made_file = input.as_ref().map(|file| file.id).filter(|_| made_here);
    let params = params(context, caller, asked, input_file_id).await?;
    let created = place(context, params.clone(), input, &creation).await;
    if let Some(file) = made_file
        && !matches!(created, Ok(Created::Made))
    {
        context
            .store
            .delete_file(&caller.tenant, file, caller.now)
            .await?;
    }
    match created? {
        Created::Made => {
            ask_validate(context, &params).await;
            show(context, caller, params.id).await
        }
        Created::RateLimited { retry_after_s } => Err(WireError::rate_limited(
            context.settings.batches_per_hour_max,
            retry_after_s,
        )
        .into()),
        Created::Existing(batch) => existing(context, caller, batch).await,
        Created::IdempotencyMismatch => Err(WireError::idempotency_mismatch().into()),
        Created::FileGone => {
            Err(IoError::new("create batch", params.id.to_string(), IoKind::Conflict).into())
        }
    }
}

/// Writes the batch. If its input is deleted between the look and this, it is made without it, and fails
/// in validation.
async fn place(
    context: &Context,
    mut params: BatchParams,
    input: Option<File>,
    creation: &Creation,
) -> Result<Created, IoError> {
    params.input_bytes = input.as_ref().map(|file| file.bytes);
    let mut new = NewBatch {
        pin: input.map(|file| file.id),
        creation: Some(creation.clone()),
        rate_limit_per_hour: context.settings.batches_per_hour_max,
        now: params.created_at,
        params,
    };
    let created = context.store.create_batch(new.clone()).await?;
    if created != Created::FileGone {
        return Ok(created);
    }
    new.pin = None;
    new.params.input_bytes = None;
    context.store.create_batch(new).await
}

/// Reads what tells this create from another.
fn creation(caller: &Caller, headers: &HeaderMap, body: &[u8]) -> Creation {
    let retries = headers
        .get(X_STAINLESS_RETRY_COUNT)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Creation {
        key: caller.key,
        body_sha256: hex::encode(Sha256::digest(body)),
        retry_count: retries.unwrap_or(0),
        idempotency_sha256: headers
            .get(IDEMPOTENCY_KEY)
            .map(|key| hex::encode(Sha256::digest(key.as_bytes()))),
    }
}

/// Finds the input file, or makes one of inline requests or of an object outside. A name that names no file of a batch is fine here:
/// validation will say so.
async fn find_input(
    context: &Arc<Context>,
    caller: &Caller,
    input: &BatchInput,
) -> Result<(String, Option<File>), ApiError> {
    match input {
        BatchInput::Inline(lines) => {
            let file = store_lines(context, caller, INLINE_FILENAME, lines.clone()).await?;
            Ok((file.id.to_string(), Some(file)))
        }
        BatchInput::Import(object) => {
            let file = import(context, caller, object).await?;
            Ok((file.id.to_string(), Some(file)))
        }
        BatchInput::File(name) => {
            let file = match name.parse::<FileId>() {
                Ok(id) => {
                    context
                        .store
                        .load_file(&caller.tenant, id, caller.now)
                        .await?
                }
                Err(_) => None,
            };
            Ok((
                name.clone(),
                file.filter(|file| file.purpose == Purpose::Batch),
            ))
        }
    }
}

async fn params(
    context: &Context,
    caller: &Caller,
    asked: CreateBatch,
    input_file_id: String,
) -> Result<BatchParams, IoError> {
    let learned = context.store.list_rates().await?;
    let mut prices = BTreeMap::new();
    let mut rates = BTreeMap::new();
    for model in context
        .catalog
        .models()
        .iter()
        .filter(|model| model.endpoints.contains(&asked.endpoint))
    {
        prices.insert(model.id.clone(), model.price);
        if let Some(rate) = learned.get(&model.id).copied().or(model.tokens_per_s) {
            rates.insert(model.id.clone(), rate);
        }
    }
    let window_ms = context.settings.window_ms(asked.window_ms);
    Ok(BatchParams {
        id: BatchId::new(caller.now, context.entropy()),
        tenant: caller.tenant.clone(),
        endpoint: asked.endpoint,
        input_file_id,
        completion_window: asked.completion_window,
        expires_at: caller.now.plus_ms(window_ms),
        created_at: caller.now,
        metadata: asked.metadata,
        output_expires_after: asked.output_expires_after,
        input_bytes: None,
        prices,
        rates,
        creation: None,
        schema: SCHEMA,
    })
}

async fn existing(context: &Context, caller: &Caller, batch: BatchId) -> Reply {
    let mut response: Response = show(context, caller, batch).await?;
    response
        .headers_mut()
        .insert(X_NIGHTSHIFT_DEDUPLICATED, HeaderValue::from_static("true"));
    Ok(response)
}

/// Asks for validation. A message that is not sent is only a delay: reconcile sends it again.
async fn ask_validate(context: &Context, params: &BatchParams) {
    let job = StageJob {
        schema: SCHEMA,
        tenant: params.tenant.clone(),
        batch: params.id,
    };
    send_job(context, &QueueName::Validate, &job).await;
}

/// Sends a stage's message; a failure is logged and left to reconcile.
pub(crate) async fn send_job(context: &Context, queue: &QueueName, job: &StageJob) {
    let sent = context
        .platform
        .send(queue, std::slice::from_ref(job), Duration::ZERO);
    if let Err(fault) = sent.await {
        tracing::warn!(error = %fault, batch.id = %job.batch, "a message is left to reconcile");
    }
}
