//! What validate does with files, good and bad, and with crashes at every call.

#[path = "../../finalize/tests/support/faults.rs"]
mod faults;
#[path = "../../finalize/tests/support/world.rs"]
mod world;

use std::sync::Arc;

use batch_core::batch::ValidationError;
use batch_core::blob_key::BlobKey;
use batch_core::external::PinnedObject;
use batch_core::file::{File, FileStatus, Purpose};
use batch_core::format;
use batch_core::id::{BatchId, FileId, UploadId};
use batch_core::lifecycle::{Event, SealedAs, State, Terminal};
use batch_core::message::{QueueName, SCHEMA};
use batch_core::settings::Timing;
use batch_core::upload::{Assembly, AssemblySource, Upload, UploadStatus};
use batch_io::Platform;
use batch_io::store::{AssemblyEnded, Stage, Store};
use expect_test::{Expect, expect};
use faults::{Fuse, When};
use validate::{Context, handle};
use world::{World, request, requests};

fn context(world: &World, platform: Platform) -> Context {
    let store = Store::new(Arc::clone(&platform.records), world.settings.timing);
    Context {
        platform,
        store,
        catalog: Arc::clone(&world.catalog),
        settings: world.settings,
    }
}

async fn validate(world: &World, batch: BatchId) {
    let ctx = context(world, world.platform.clone());
    handle(&ctx, world.stage_job(batch), world.now())
        .await
        .expect("validate");
}

/// Prints what a batch came to: its state, counts, errors, and each shard with the lines of its blob.
async fn outcome(world: &World, batch: BatchId) -> String {
    let view = world.batch(batch).await;
    let run = &view.run;
    let mut text = format!(
        "{}; {} lines, {} windows, models {:?}\n",
        run.state, run.counts.total, run.windows, run.models
    );
    for ValidationError {
        code,
        message,
        line,
        param,
    } in view.errors.unwrap_or_default()
    {
        let line = line.map_or_else(|| "-".to_owned(), |line| line.0.to_string());
        text += &format!(
            "{code} {line} {} {message}\n",
            param.as_deref().unwrap_or("-")
        );
    }
    if !matches!(run.state, State::InProgress) {
        return text;
    }
    for shard in world
        .store
        .list_shards(&world.tenant, batch)
        .await
        .expect("list shards")
    {
        let key = BlobKey::Shard {
            tenant: world.tenant.clone(),
            batch,
            shard: shard.id.clone(),
        };
        let blob = world.blob(&key).await.expect("the shard's blob");
        let lines: Vec<u64> = format::shard::decode(&blob)
            .map(|line| line.expect("a line").line.0)
            .collect();
        text += &format!(
            "shard {} {} window {} lines {lines:?}\n",
            shard.id, shard.model, shard.window
        );
    }
    text
}

async fn check(text: &[u8], expected: Expect) {
    let world = World::new();
    let batch = world.create_from(text).await;
    validate(&world, batch).await;
    let first = outcome(&world, batch).await;
    expected.assert_eq(&first);
    validate(&world, batch).await;
    assert_eq!(
        outcome(&world, batch).await,
        first,
        "a second run changes nothing"
    );
}

#[tokio::test]
async fn every_line_gets_its_own_error_when_lines_are_bad() {
    let good = request("a", "tiny");
    let lines = [
        "{not json".to_owned(),
        good.replace(r#""custom_id":"a","#, ""),
        good.replace(r#""method":"POST","#, ""),
        good.replace(r#""url":"/v1/chat/completions","#, ""),
        r#"{"custom_id":"b","method":"POST","url":"/v1/chat/completions"}"#.to_owned(),
        good.clone(),
        String::new(),
        good.clone(),
        good.replace("/v1/chat", "/v1/small")
            .replace(r#""a""#, r#""c""#),
        good.replace("POST", "GET").replace(r#""a""#, r#""d""#),
        request("e", "unknown"),
        good.replace(r#""a""#, r#""f""#)
            .replace(r#""max_tokens":4"#, r#""stream":true"#),
        good.replace(r#""a""#, r#""g""#)
            .replace(r#""model":"tiny","#, ""),
        good.replace(r#""a""#, r#""h""#).replace("messages", "mess"),
    ];
    check(lines.join("\n").as_bytes(), expect![[r#"
        failed; 0 lines, 0 windows, models []
        invalid_json_line 1 - This line is not parseable as valid JSON.
        missing_required_parameter 2 custom_id Missing required parameter: 'custom_id'.
        missing_required_parameter 3 method Missing required parameter: 'method'.
        duplicate_custom_id 4 custom_id The custom_id 'a' for this request is a duplicate of another request. The custom_id parameter must be unique for each request in a batch.
        missing_required_parameter 4 url Missing required parameter: 'url'.
        missing_required_parameter 5 body Missing required parameter: 'body'.
        duplicate_custom_id 6 custom_id The custom_id 'a' for this request is a duplicate of another request. The custom_id parameter must be unique for each request in a batch.
        duplicate_custom_id 8 custom_id The custom_id 'a' for this request is a duplicate of another request. The custom_id parameter must be unique for each request in a batch.
        invalid_url 9 url The URL provided for this request does not match the batch endpoint.
        invalid_method 10 method Invalid value: 'GET'. The method of every request must be 'POST'.
        model_not_found 11 body.model The provided model 'unknown' is not supported by the Batch API.
        streaming_unsupported 12 body.stream Chat Completions: Streaming is not supported in the Batch API.
        invalid_request 13 body.model Model parameter is required.
        invalid_request 14 body.messages Messages parameter is required.
    "#]]).await;
}

#[tokio::test]
async fn the_file_fails_when_it_has_no_request() {
    check(b"\n  \r\n", expect![[r#"
        failed; 0 lines, 0 windows, models []
        empty_file - - The input file is empty. Please ensure that the batch contains at least one request.
    "#]]).await;
}

#[tokio::test]
async fn shards_hold_each_models_lines_when_the_file_mixes_models() {
    let lines = [
        request("a", "tiny"),
        request("b", "small"),
        request("c", "tiny"),
    ];
    check(
        lines.join("\n").as_bytes(),
        expect![[r#"
        in progress; 3 lines, 1 windows, models ["tiny", "small"]
        shard 000-000000 tiny window 0 lines [1, 3]
        shard 001-000000 small window 0 lines [2]
    "#]],
    )
    .await;
}

#[tokio::test]
async fn shards_close_at_500_lines() {
    let world = World::new();
    let batch = world.create_from(requests(1_001).as_bytes()).await;
    validate(&world, batch).await;
    let shards = world
        .store
        .list_shards(&world.tenant, batch)
        .await
        .expect("list shards");
    assert_eq!(
        shards.iter().map(|shard| shard.lines).collect::<Vec<_>>(),
        [500, 500, 1]
    );
}

#[tokio::test]
async fn the_index_names_every_line_in_input_order_when_the_file_has_two_windows() {
    let world = World::new();
    let text = requests(20_001);
    let batch = world.create_from(text.as_bytes()).await;
    validate(&world, batch).await;
    let run = world.batch(batch).await.run;
    assert_eq!(
        (run.state, run.windows, run.counts.total),
        (State::InProgress, 2, 20_001)
    );
    let mut ids = Vec::new();
    for window in 0..2 {
        let key = BlobKey::Index {
            tenant: world.tenant.clone(),
            batch,
            window,
        };
        let index = world.blob(&key).await.expect("the index");
        ids.extend(format::index::decode(&index).map(|entry| {
            let entry = entry.expect("an entry");
            (entry.line.0, entry.custom_id_json.to_owned())
        }));
    }
    let expected = (1..=20_001).map(|number| (number, format!("\"r-{number}\"")));
    assert!(
        ids.into_iter().eq(expected),
        "line numbers and ids are those of the input"
    );
}

async fn check_input(input: &str, bytes: Option<u64>, world: &World, expected: Expect) {
    let batch = world.create(input, bytes).await;
    validate(world, batch).await;
    expected.assert_eq(&outcome(world, batch).await.replace(input, "<input>"));
}

#[tokio::test]
async fn the_file_is_not_found_when_it_never_existed() {
    check_input("file-nonsense", None, &World::new(), expect![[r#"
        failed; 0 lines, 0 windows, models []
        invalid_request - file_id Cannot find file <input>, or this project does not have access to it.
    "#]]).await;
}

#[tokio::test]
async fn the_file_is_not_found_when_it_is_for_something_else() {
    let world = World::new();
    let file = world
        .upload(Purpose::Assistants, requests(1).as_bytes())
        .await;
    check_input(&file.to_string(), Some(100), &world, expect![[r#"
        failed; 0 lines, 0 windows, models []
        invalid_request - file_id Cannot find file <input>, or this project does not have access to it.
    "#]]).await;
}

#[tokio::test]
async fn the_file_is_not_found_when_its_bytes_are_gone() {
    let world = World::new();
    let file = world.upload(Purpose::Batch, requests(1).as_bytes()).await;
    let blob = BlobKey::File {
        tenant: world.tenant.clone(),
        file,
    };
    world
        .platform
        .blobs
        .delete(&blob)
        .await
        .expect("delete the blob");
    check_input(&file.to_string(), Some(100), &world, expect![[r#"
        failed; 0 lines, 0 windows, models []
        invalid_request - file_id Cannot find file <input>, or this project does not have access to it.
    "#]]).await;
}

#[tokio::test]
async fn the_file_fails_when_it_is_over_a_limit() {
    let mut world = World::new();
    world.settings.lines_max = 2;
    let file = world.upload(Purpose::Batch, requests(3).as_bytes()).await;
    check_input(
        &file.to_string(),
        Some(1),
        &world,
        expect![[r#"
        failed; 0 lines, 0 windows, models []
        too_many_tasks - - The batch input file has 3 requests; the maximum is 2.
    "#]],
    )
    .await;
    world.settings.file_bytes_max = 300;
    check_input(&file.to_string(), Some(1), &world, expect![[r#"
        failed; 0 lines, 0 windows, models []
        file_too_large - - The batch input file is larger than the 300 maximum. Please try again with a smaller batch.
    "#]]).await;
}

#[tokio::test]
async fn the_batch_fails_when_too_many_tokens_would_wait() {
    let mut world = World::new();
    world.settings.enqueued_tokens_max = Some(1);
    let file = world.upload(Purpose::Batch, requests(3).as_bytes()).await;
    check_input(&file.to_string(), Some(1), &world, expect![[r#"
        failed; 0 lines, 0 windows, models []
        token_limit_exceeded - - Enqueued token limit reached for tiny. Limit: 1 enqueued tokens. Please try again once some in_progress batches have been completed.
    "#]]).await;
}

#[tokio::test]
async fn the_input_is_read_when_its_owner_deleted_it_after_the_create() {
    let world = World::new();
    let batch = world.create_from(requests(2).as_bytes()).await;
    let file: FileId = world
        .batch(batch)
        .await
        .params
        .input_file_id
        .parse()
        .expect("a file id");
    assert!(
        world
            .store
            .delete_file(&world.tenant, file, world.now())
            .await
            .expect("delete the file")
    );
    validate(&world, batch).await;
    assert_eq!(world.batch(batch).await.run.state, State::InProgress);
}

#[tokio::test]
async fn each_model_is_dispatched_when_the_batch_is_published() {
    let world = World::new();
    let lines = [request("a", "tiny"), request("b", "small")];
    let batch = world.create_from(lines.join("\n").as_bytes()).await;
    validate(&world, batch).await;
    let mut jobs = world.drain(&QueueName::Dispatch).await;
    jobs.sort();
    assert_eq!(
        jobs,
        [
            r#"{"schema":1,"model":"small"}"#,
            r#"{"schema":1,"model":"tiny"}"#
        ]
    );
}

#[tokio::test]
async fn nothing_happens_while_another_validator_holds_the_stage() {
    let world = World::new();
    let batch = world.create_from(requests(2).as_bytes()).await;
    let held = world
        .store
        .claim_stage(&world.tenant, batch, Stage::Validate, world.now())
        .await
        .expect("claim");
    assert!(held.is_some());
    validate(&world, batch).await;
    assert_eq!(world.batch(batch).await.run.state, State::Validating);
    world.advance_ms(world.settings.timing.lease_ms);
    validate(&world, batch).await;
    assert_eq!(world.batch(batch).await.run.state, State::InProgress);
}

#[tokio::test]
async fn nothing_is_published_when_the_batch_was_stopped_before() {
    for (event, state) in [
        (Event::CancelRequested, State::Sealed(SealedAs::Cancelled)),
        (Event::WindowClosed, State::Ended(Terminal::Expired)),
    ] {
        let world = World::new();
        let batch = world.create_from(requests(2).as_bytes()).await;
        world
            .store
            .apply(&world.tenant, batch, event, world.now())
            .await
            .expect("stop the batch");
        validate(&world, batch).await;
        assert_eq!(world.batch(batch).await.run.state, state);
    }
}

#[tokio::test]
async fn the_work_is_dropped_when_another_validator_takes_over() {
    let world = World::new();
    let batch = world.create_from(requests(2).as_bytes()).await;
    let fuse = Fuse::at(0, When::Stuck);
    let blobs = fuse.wrap(&world.platform).blobs;
    let mut ctx = context(
        &world,
        Platform {
            blobs,
            ..world.platform.clone()
        },
    );
    let hasty = Timing {
        lease_ms: 3,
        ..world.settings.timing
    };
    ctx.store = Store::new(Arc::clone(&world.platform.records), hasty);
    let takeover = async {
        while fuse.calls() == 0 {
            tokio::task::yield_now().await;
        }
        world.advance_ms(world.settings.timing.lease_ms);
        world
            .store
            .claim_stage(&world.tenant, batch, Stage::Validate, world.now())
            .await
            .expect("claim")
    };
    let (dropped, taken) =
        tokio::join!(handle(&ctx, world.stage_job(batch), world.now()), takeover);
    dropped.expect("a lost lease is no error");
    assert_eq!(
        taken.expect("a lapsed stage").epoch,
        world.batch(batch).await.run.stage.epoch
    );
    assert_eq!(world.batch(batch).await.run.state, State::Validating);
}

/// Validates with a crash at call `k`, then again without; returns the outcome and the calls made.
async fn crash_at(text: &str, k: i64, when: When) -> (String, u64) {
    let world = World::new();
    let batch = world.create_from(text.as_bytes()).await;
    let fuse = Fuse::at(k, when);
    // The error is the crash itself; what counts is what the next run makes of it.
    let _ = handle(
        &context(&world, fuse.wrap(&world.platform)),
        world.stage_job(batch),
        world.now(),
    )
    .await;
    let calls = fuse.calls();
    // Whoever lives on has given the stage back.
    if when != When::Once {
        world.advance_ms(world.settings.timing.lease_ms + world.settings.timing.takeover_ms);
    }
    validate(&world, batch).await;
    (outcome(&world, batch).await, calls)
}

#[tokio::test]
async fn fails_at_every_call() {
    let sound = requests(3) + &request("s", "small");
    let bad = requests(2) + &requests(1);
    for text in [sound, bad] {
        for when in [When::Before, When::After] {
            let (expected, calls) = crash_at(&text, i64::MAX, when).await;
            for k in 0..i64::try_from(calls).expect("few calls") {
                let (recovered, _) = crash_at(&text, k, when).await;
                assert_eq!(recovered, expected, "crash {when:?} call {k}");
            }
        }
    }
}

#[tokio::test]
async fn the_next_try_finds_the_stage_free_when_a_call_failed() {
    let text = requests(3);
    let (expected, calls) = crash_at(&text, i64::MAX, When::Once).await;
    for k in 0..i64::try_from(calls).expect("few calls") {
        let (recovered, _) = crash_at(&text, k, When::Once).await;
        assert_eq!(recovered, expected, "call {k}");
    }
}

/// Creates a batch on a file that a job is still to put together, and returns the upload of it.
async fn create_on_awaited(world: &World) -> (BatchId, Upload, FileId) {
    let id = FileId::new(world.now(), (world.platform.random)());
    let text = request("a", "tiny");
    let file = File {
        id,
        tenant: world.tenant.clone(),
        bytes: text.len() as u64,
        created_at: world.now(),
        expires_at: None,
        filename: "input.jsonl".to_owned(),
        purpose: Purpose::Batch,
        status: FileStatus::Uploaded,
        blob: BlobKey::File {
            tenant: world.tenant.clone(),
            file: id,
        },
        schema: SCHEMA,
    };
    let upload = Upload {
        id: UploadId::new(world.now(), (world.platform.random)()),
        tenant: world.tenant.clone(),
        bytes: file.bytes,
        created_at: world.now(),
        expires_at: world.now().plus_ms(3_600_000),
        filename: file.filename.clone(),
        mime_type: "application/jsonl".to_owned(),
        purpose: Purpose::Batch,
        expires_after: None,
        status: UploadStatus::Completed(id),
        schema: SCHEMA,
    };
    let assembly = Assembly {
        upload: upload.clone(),
        file: id,
        source: AssemblySource::Object(PinnedObject {
            object: "s3://exports/input.jsonl".parse().expect("an object"),
            etag: String::new(),
            bytes: file.bytes,
        }),
        md5: None,
    };
    world
        .store
        .begin_import(&assembly, &file, world.now())
        .await
        .expect("begin");
    let batch = world.create(&id.to_string(), Some(file.bytes)).await;
    (batch, upload, id)
}

async fn end_assembly(world: &World, upload: &Upload, file: FileId, status: FileStatus) {
    let ended = world
        .store
        .end_assembly(&world.tenant, upload.id, file, &status, world.now());
    assert_eq!(ended.await.expect("end"), AssemblyEnded::Done);
}

#[tokio::test]
async fn the_batch_waits_while_its_file_is_put_together() {
    let world = World::new();
    let (batch, upload, file) = create_on_awaited(&world).await;
    for _ in 0..2 {
        validate(&world, batch).await;
        assert_eq!(world.batch(batch).await.run.state, State::Validating);
        assert_eq!(
            world.drain(&QueueName::Validate).await,
            [""; 0],
            "not at once"
        );
        world.advance_ms(world.settings.timing.control_ms);
        assert_eq!(world.drain(&QueueName::Validate).await.len(), 1);
    }
    let blob = BlobKey::File {
        tenant: world.tenant.clone(),
        file,
    };
    let text = request("a", "tiny");
    world
        .platform
        .blobs
        .put(&blob, text.into())
        .await
        .expect("put the file");
    end_assembly(&world, &upload, file, FileStatus::Processed).await;
    validate(&world, batch).await;
    assert_eq!(world.batch(batch).await.run.state, State::InProgress);
}

#[tokio::test]
async fn the_batch_fails_when_its_file_cannot_be_put_together() {
    let world = World::new();
    let (batch, upload, file) = create_on_awaited(&world).await;
    let why = FileStatus::Error("The part 'part_1' is gone.".to_owned());
    end_assembly(&world, &upload, file, why).await;
    validate(&world, batch).await;
    let errors = world.batch(batch).await.errors.unwrap_or_default();
    let message = format!("The file {file} cannot be read. The part 'part_1' is gone.");
    assert_eq!((errors.len(), &errors[0].message), (1, &message));
}

#[tokio::test]
async fn a_stopped_batch_waits_for_no_file() {
    let world = World::new();
    let (batch, ..) = create_on_awaited(&world).await;
    world
        .store
        .apply(&world.tenant, batch, Event::WindowClosed, world.now())
        .await
        .expect("stop the batch");
    validate(&world, batch).await;
    world.advance_ms(world.settings.timing.control_ms);
    assert_eq!(world.drain(&QueueName::Validate).await, [""; 0]);
}
