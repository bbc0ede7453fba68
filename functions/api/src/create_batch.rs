//! `POST /batches`: once for each wish of the user, however often the request is sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use batch_core::batch::{BatchParams, Endpoint};
use batch_core::catalog::Price;
use batch_core::file::{File, Purpose};
use batch_core::id::{BatchId, FileId};
use batch_core::message::{QueueName, SCHEMA, StageJob};
use batch_core::upload::Assembly;
use batch_core::wire::{BatchInput, CreateBatch, WireError};
use batch_io::store::{Created, Creation, NewBatch, Retry};
use batch_io::{IoError, IoKind};
use bytes::Bytes;
use http::header::HeaderValue;
use http::{HeaderMap, HeaderName};
use sha2::{Digest, Sha256};

use crate::background::Background;
use crate::batches::show;
use crate::body::JsonBody;
use crate::caller::Caller;
use crate::context::Context;
use crate::files::store_lines;
use crate::import::{import, take_back};
use crate::reply::{ApiError, Reply};
use crate::uploads::ask_assemble;

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
    background: Background,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Reply {
    let creation = creation(&caller, &headers, &body);
    let creating = tokio::spawn(async move {
        let created = create_once(&context, &background, &caller, &body, creation.clone()).await;
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
    background: &Background,
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
    let frozen = freeze(context, asked.endpoint).await?;
    // From here on something may have been made for this batch alone.
    let input = find_input(context, background, caller, &asked.input).await?;
    let params = params(context, caller, asked, frozen, input.id);
    let created = place(context, params.clone(), input.file, &creation).await;
    settle_input(context, &params, input.made, &created).await;
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

/// The input of a batch to be.
struct Input {
    /// As the batch names it.
    id: String,
    /// None if the name names no file for batches: validation will say so.
    file: Option<File>,
    made: Made,
}

/// What was made for one batch alone.
enum Made {
    /// Nothing: the file was there.
    Nothing,
    /// A file of inline requests.
    File(FileId),
    /// The records of an import, whose job was not asked for yet.
    Import(Box<Assembly>),
}

/// Finds the input file, or makes one of inline requests or of an object outside.
async fn find_input(
    context: &Arc<Context>,
    background: &Background,
    caller: &Caller,
    input: &BatchInput,
) -> Result<Input, ApiError> {
    match input {
        BatchInput::Inline(lines) => {
            let lines = lines.clone();
            let file = store_lines(context, background, caller, INLINE_FILENAME, lines).await?;
            Ok(Input {
                id: file.id.to_string(),
                made: Made::File(file.id),
                file: Some(file),
            })
        }
        BatchInput::Import(object) => {
            let (file, assembly) = import(context, caller, object).await?;
            Ok(Input {
                id: file.id.to_string(),
                made: Made::Import(Box::new(assembly)),
                file: Some(file),
            })
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
            Ok(Input {
                id: name.clone(),
                file: file.filter(|file| file.purpose == Purpose::Batch),
                made: Made::Nothing,
            })
        }
    }
}

/// Sees to what was made for a batch alone: an import begins once its batch exists, and what no batch names
/// goes. After an unknown outcome only a batch that is surely absent lets its input go.
async fn settle_input(
    context: &Context,
    params: &BatchParams,
    made: Made,
    created: &Result<Created, IoError>,
) {
    let is_made = match created {
        Ok(Created::Made) => true,
        Ok(
            Created::RateLimited { .. }
            | Created::FileGone
            | Created::Existing(_)
            | Created::IdempotencyMismatch,
        ) => false,
        Err(_) => !matches!(
            context.store.load_batch(&params.tenant, params.id).await,
            Ok(None)
        ),
    };
    match (made, is_made) {
        (Made::Nothing, _) | (Made::File(_), true) => {}
        (Made::Import(assembly), true) => ask_assemble(context, &assembly).await,
        (Made::Import(assembly), false) => take_back(context, &assembly, params.created_at).await,
        (Made::File(file), false) => {
            let tenant = &params.tenant;
            let deleted = context.store.delete_file(tenant, file, params.created_at);
            if let Err(fault) = deleted.await {
                tracing::warn!(error = %fault, file.id = %file, "a file that no batch needs stays until it expires");
            }
        }
    }
}

/// What models cost and do when a batch is created, by the model's id. It holds for the batch's whole life.
#[derive(Default)]
struct Frozen {
    prices: BTreeMap<String, Price>,
    rates: BTreeMap<String, u32>,
}

async fn freeze(context: &Context, endpoint: Endpoint) -> Result<Frozen, IoError> {
    let learned = context.store.list_rates().await?;
    let mut frozen = Frozen::default();
    for model in context
        .catalog
        .models()
        .iter()
        .filter(|model| model.endpoints.contains(&endpoint))
    {
        frozen.prices.insert(model.id.clone(), model.price);
        if let Some(rate) = learned.get(&model.id).copied().or(model.tokens_per_s) {
            frozen.rates.insert(model.id.clone(), rate);
        }
    }
    Ok(frozen)
}

fn params(
    context: &Context,
    caller: &Caller,
    asked: CreateBatch,
    Frozen { prices, rates }: Frozen,
    input_file_id: String,
) -> BatchParams {
    let window_ms = context.settings.window_ms(asked.window_ms);
    BatchParams {
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
    }
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
