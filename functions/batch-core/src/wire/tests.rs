//! Golden texts of every object in every state, and one table of every refused parameter.

use expect_test::{Expect, expect};
use serde::Serialize;

use super::query::LimitBounds;
use super::*;
use crate::batch::*;
use crate::blob_key::BlobKey;
use crate::catalog::{Engine, Model, Price, Source};
use crate::file::{ExpiresAfter, File, FileStatus, Purpose};
use crate::id::{BatchId, FileId, LineNo, PartId, TenantId, UploadId, WorkerId};
use crate::lifecycle::{SealedAs, State, Stop, Terminal};
use crate::time::UnixMs;
use crate::upload::{Piece, Upload, UploadPart, UploadStatus};
use crate::worker::WorkerRecord;

const NOW: UnixMs = UnixMs(1_790_000_000_123);

fn json(object: &impl Serialize) -> String {
    serde_json::to_string(object).unwrap()
}

fn file(status: FileStatus) -> File {
    let id = FileId::new(NOW, [1; 16]);
    File {
        id,
        tenant: TenantId::default_tenant(),
        bytes: 4711,
        created_at: NOW,
        expires_at: expiry::expires_at(Purpose::Batch, None, NOW),
        filename: "nightly \u{1f319}\r\n.jsonl".to_owned(),
        purpose: Purpose::Batch,
        status,
        blob: BlobKey::File {
            tenant: TenantId::default_tenant(),
            file: id,
        },
        schema: 1,
    }
}

fn upload(status: UploadStatus) -> Upload {
    let mut upload = CreateUpload::parse(
        br#"{"bytes": 9, "filename": "a.jsonl", "mime_type": "application/jsonl", "purpose": "batch"}"#,
        100,
    )
    .unwrap()
    .into_upload(TenantId::default_tenant(), NOW, [2; 16]);
    upload.status = status;
    upload
}

fn part(byte: u8, bytes: u64) -> UploadPart {
    let (upload, id) = (UploadId::new(NOW, [2; 16]), PartId::new(NOW, [byte; 16]));
    let blob = BlobKey::Part {
        tenant: TenantId::default_tenant(),
        upload,
        part: id,
    };
    UploadPart {
        id,
        upload,
        bytes,
        created_at: NOW,
        blob,
    }
}

fn params() -> BatchParams {
    BatchParams {
        id: BatchId::new(NOW, [3; 16]),
        tenant: TenantId::default_tenant(),
        endpoint: Endpoint::ChatCompletions,
        input_file_id: "file-x".to_owned(),
        completion_window: "24h".to_owned(),
        expires_at: NOW.plus_ms(86_400_000),
        created_at: NOW,
        metadata: Some(vec![
            ("z".to_owned(), "1".to_owned()),
            ("a".to_owned(), "2".to_owned()),
        ]),
        output_expires_after: None,
        input_bytes: Some(4711),
        prices: [].into(),
        rates: [].into(),
        creation: None,
        schema: 1,
    }
}

fn run(state: State, counts: (u64, u64, u64)) -> BatchRun {
    let at = |seconds: i64| Some(NOW.plus_ms(seconds * 1000));
    let started = !matches!(state, State::Validating | State::Ended(Terminal::Failed));
    BatchRun {
        state,
        seal_at: None,
        stage: StageLease::default(),
        models: if started {
            vec!["m".to_owned()]
        } else {
            Vec::new()
        },
        counts: LineCounts {
            total: counts.0,
            completed: counts.1,
            failed: counts.2,
        },
        shards_total: 1,
        shards_done: 0,
        windows: 1,
        tokens: TokenCounts {
            input: 10 * counts.1,
            cached: counts.1,
            output: 5 * counts.1,
        },
        cost_picodollars: 1_500_000 * counts.1,
        estimated_tokens: 5_000,
        moments: Moments {
            in_progress_at: if started { at(4) } else { None },
            finalizing_at: if state == State::InProgress || !started {
                None
            } else {
                at(44)
            },
            cancelling_at: if state.status().name().starts_with("cancel") {
                at(40)
            } else {
                None
            },
            ended_at: if state.is_terminal() { at(50) } else { None },
        },
        output_file_id: state
            .is_terminal()
            .then(|| FileId::new(NOW, [4; 16]))
            .filter(|_| started),
        error_file_id: None,
        manifest: None,
        saved_place: None,
    }
}

fn worker(loaded: bool) -> WorkerRecord {
    WorkerRecord {
        id: WorkerId::new(NOW, [5; 16]),
        models: vec!["m".to_owned()],
        loaded: loaded.then(|| "m".to_owned()),
        slots: 2,
        tokens_per_s: 100,
        pid: 1,
        expires_at: NOW,
    }
}

fn check_batch(
    run: &BatchRun,
    errors: Option<&[ValidationError]>,
    workers: &[WorkerRecord],
    expected: Expect,
) {
    let params = params();
    let progress = Progress::new(ProgressInput {
        run,
        workers,
        now: NOW.plus_ms(24_000),
    });
    let object = BatchObject::new(&params, run, errors, progress);
    expected.assert_eq(
        &json(&object)
            .replace(",\"in_progress_at\"", ",\n\"in_progress_at\"")
            .replace(",\"usage\"", ",\n\"usage\""),
    );
}

#[test]
fn a_batch_has_every_key_in_every_state() {
    let rejected = [ValidationError {
        code: "invalid_json_line".to_owned(),
        message: "This line is not parseable as valid JSON.".to_owned(),
        line: Some(LineNo(3)),
        param: None,
    }];
    check_batch(
        &run(State::Validating, (0, 0, 0)),
        None,
        &[],
        expect![[r#"
        {"id":"batch_01a0c4506c7b73038303030303030303","object":"batch","endpoint":"/v1/chat/completions","model":null,"errors":null,"input_file_id":"file-x","completion_window":"24h","status":"validating","output_file_id":null,"error_file_id":null,"created_at":1790000000,
        "in_progress_at":null,"expires_at":1790086400,"finalizing_at":null,"completed_at":null,"failed_at":null,"expired_at":null,"cancelling_at":null,"cancelled_at":null,"request_counts":{"total":0,"completed":0,"failed":0},
        "usage":null,"metadata":{"z":"1","a":"2"},"progress":{"phase":"validating","lines_per_s":null,"tokens_per_s":null,"eta_s":null,"waiting_reason":null},"cost":{"currency":"usd","amount":0.0},"manifest":null}"#]],
    );
    check_batch(
        &run(State::InProgress, (100, 0, 0)),
        None,
        &[],
        expect![[r#"
        {"id":"batch_01a0c4506c7b73038303030303030303","object":"batch","endpoint":"/v1/chat/completions","model":"m","errors":null,"input_file_id":"file-x","completion_window":"24h","status":"in_progress","output_file_id":null,"error_file_id":null,"created_at":1790000000,
        "in_progress_at":1790000004,"expires_at":1790086400,"finalizing_at":null,"completed_at":null,"failed_at":null,"expired_at":null,"cancelling_at":null,"cancelled_at":null,"request_counts":{"total":100,"completed":0,"failed":0},
        "usage":null,"metadata":{"z":"1","a":"2"},"progress":{"phase":"waiting","lines_per_s":null,"tokens_per_s":null,"eta_s":null,"waiting_reason":"no_worker"},"cost":{"currency":"usd","amount":0.0},"manifest":null}"#]],
    );
    check_batch(
        &run(State::InProgress, (100, 0, 0)),
        None,
        &[worker(true)],
        expect![[r#"
        {"id":"batch_01a0c4506c7b73038303030303030303","object":"batch","endpoint":"/v1/chat/completions","model":"m","errors":null,"input_file_id":"file-x","completion_window":"24h","status":"in_progress","output_file_id":null,"error_file_id":null,"created_at":1790000000,
        "in_progress_at":1790000004,"expires_at":1790086400,"finalizing_at":null,"completed_at":null,"failed_at":null,"expired_at":null,"cancelling_at":null,"cancelled_at":null,"request_counts":{"total":100,"completed":0,"failed":0},
        "usage":null,"metadata":{"z":"1","a":"2"},"progress":{"phase":"waiting","lines_per_s":null,"tokens_per_s":null,"eta_s":50,"waiting_reason":"queued"},"cost":{"currency":"usd","amount":0.0},"manifest":null}"#]],
    );
    check_batch(
        &run(State::InProgress, (100, 38, 2)),
        None,
        &[worker(true)],
        expect![[r#"
        {"id":"batch_01a0c4506c7b73038303030303030303","object":"batch","endpoint":"/v1/chat/completions","model":"m","errors":null,"input_file_id":"file-x","completion_window":"24h","status":"in_progress","output_file_id":null,"error_file_id":null,"created_at":1790000000,
        "in_progress_at":1790000004,"expires_at":1790086400,"finalizing_at":null,"completed_at":null,"failed_at":null,"expired_at":null,"cancelling_at":null,"cancelled_at":null,"request_counts":{"total":100,"completed":38,"failed":2},
        "usage":null,"metadata":{"z":"1","a":"2"},"progress":{"phase":"running","lines_per_s":2.0,"tokens_per_s":28.5,"eta_s":30,"waiting_reason":null},"cost":{"currency":"usd","amount":0.000057},"manifest":null}"#]],
    );
    check_batch(
        &run(State::Draining(Stop::Cancelled), (100, 38, 2)),
        None,
        &[],
        expect![[r#"
        {"id":"batch_01a0c4506c7b73038303030303030303","object":"batch","endpoint":"/v1/chat/completions","model":"m","errors":null,"input_file_id":"file-x","completion_window":"24h","status":"cancelling","output_file_id":null,"error_file_id":null,"created_at":1790000000,
        "in_progress_at":1790000004,"expires_at":1790086400,"finalizing_at":1790000044,"completed_at":null,"failed_at":null,"expired_at":null,"cancelling_at":1790000040,"cancelled_at":null,"request_counts":{"total":100,"completed":38,"failed":2},
        "usage":null,"metadata":{"z":"1","a":"2"},"progress":{"phase":"stopping","lines_per_s":1.0,"tokens_per_s":14.25,"eta_s":null,"waiting_reason":null},"cost":{"currency":"usd","amount":0.000057},"manifest":null}"#]],
    );
    check_batch(
        &run(State::Draining(Stop::Expired), (100, 38, 2)),
        None,
        &[],
        expect![[r#"
        {"id":"batch_01a0c4506c7b73038303030303030303","object":"batch","endpoint":"/v1/chat/completions","model":"m","errors":null,"input_file_id":"file-x","completion_window":"24h","status":"finalizing","output_file_id":null,"error_file_id":null,"created_at":1790000000,
        "in_progress_at":1790000004,"expires_at":1790086400,"finalizing_at":1790000044,"completed_at":null,"failed_at":null,"expired_at":null,"cancelling_at":null,"cancelled_at":null,"request_counts":{"total":100,"completed":38,"failed":2},
        "usage":null,"metadata":{"z":"1","a":"2"},"progress":{"phase":"stopping","lines_per_s":1.0,"tokens_per_s":14.25,"eta_s":null,"waiting_reason":null},"cost":{"currency":"usd","amount":0.000057},"manifest":null}"#]],
    );
    check_batch(
        &run(State::Sealed(SealedAs::Completed), (100, 98, 2)),
        None,
        &[],
        expect![[r#"
        {"id":"batch_01a0c4506c7b73038303030303030303","object":"batch","endpoint":"/v1/chat/completions","model":"m","errors":null,"input_file_id":"file-x","completion_window":"24h","status":"finalizing","output_file_id":null,"error_file_id":null,"created_at":1790000000,
        "in_progress_at":1790000004,"expires_at":1790086400,"finalizing_at":1790000044,"completed_at":null,"failed_at":null,"expired_at":null,"cancelling_at":null,"cancelled_at":null,"request_counts":{"total":100,"completed":98,"failed":2},
        "usage":null,"metadata":{"z":"1","a":"2"},"progress":{"phase":"finalizing","lines_per_s":2.5,"tokens_per_s":36.75,"eta_s":null,"waiting_reason":null},"cost":{"currency":"usd","amount":0.000147},"manifest":null}"#]],
    );
    check_batch(
        &run(State::Ended(Terminal::Failed), (0, 0, 0)),
        Some(&rejected),
        &[],
        expect![[r#"
        {"id":"batch_01a0c4506c7b73038303030303030303","object":"batch","endpoint":"/v1/chat/completions","model":null,"errors":{"object":"list","data":[{"code":"invalid_json_line","message":"This line is not parseable as valid JSON.","line":3,"param":null}]},"input_file_id":"file-x","completion_window":"24h","status":"failed","output_file_id":null,"error_file_id":null,"created_at":1790000000,
        "in_progress_at":null,"expires_at":1790086400,"finalizing_at":null,"completed_at":null,"failed_at":1790000050,"expired_at":null,"cancelling_at":null,"cancelled_at":null,"request_counts":{"total":0,"completed":0,"failed":0},
        "usage":{"input_tokens":0,"input_tokens_details":{"cached_tokens":0},"output_tokens":0,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":0},"metadata":{"z":"1","a":"2"},"progress":{"phase":"ended","lines_per_s":null,"tokens_per_s":null,"eta_s":null,"waiting_reason":null},"cost":{"currency":"usd","amount":0.0},"manifest":null}"#]],
    );
    check_batch(
        &run(State::Ended(Terminal::Expired), (100, 38, 62)),
        None,
        &[],
        expect![[r#"
            {"id":"batch_01a0c4506c7b73038303030303030303","object":"batch","endpoint":"/v1/chat/completions","model":"m","errors":null,"input_file_id":"file-x","completion_window":"24h","status":"expired","output_file_id":"file-01a0c4506c7b74048404040404040404","error_file_id":null,"created_at":1790000000,
            "in_progress_at":1790000004,"expires_at":1790086400,"finalizing_at":1790000044,"completed_at":null,"failed_at":null,"expired_at":1790000050,"cancelling_at":null,"cancelled_at":null,"request_counts":{"total":100,"completed":38,"failed":62},
            "usage":{"input_tokens":380,"input_tokens_details":{"cached_tokens":38},"output_tokens":190,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":570},"metadata":{"z":"1","a":"2"},"progress":{"phase":"ended","lines_per_s":0.826,"tokens_per_s":12.391,"eta_s":null,"waiting_reason":null},"cost":{"currency":"usd","amount":0.000057},"manifest":null}"#]],
    );
    check_batch(
        &run(State::Ended(Terminal::Cancelled), (100, 38, 62)),
        None,
        &[],
        expect![[r#"
            {"id":"batch_01a0c4506c7b73038303030303030303","object":"batch","endpoint":"/v1/chat/completions","model":"m","errors":null,"input_file_id":"file-x","completion_window":"24h","status":"cancelled","output_file_id":"file-01a0c4506c7b74048404040404040404","error_file_id":null,"created_at":1790000000,
            "in_progress_at":1790000004,"expires_at":1790086400,"finalizing_at":1790000044,"completed_at":null,"failed_at":null,"expired_at":null,"cancelling_at":1790000040,"cancelled_at":1790000050,"request_counts":{"total":100,"completed":38,"failed":62},
            "usage":{"input_tokens":380,"input_tokens_details":{"cached_tokens":38},"output_tokens":190,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":570},"metadata":{"z":"1","a":"2"},"progress":{"phase":"ended","lines_per_s":0.826,"tokens_per_s":12.391,"eta_s":null,"waiting_reason":null},"cost":{"currency":"usd","amount":0.000057},"manifest":null}"#]],
    );
    let mut done = run(State::Ended(Terminal::Completed), (100, 98, 2));
    let digest = FileDigest {
        sha256: "ab".repeat(32),
        lines: 100,
        bytes: 4711,
    };
    done.manifest = Some(Manifest {
        input: digest,
        output: None,
        error: None,
    });
    done.models.push("other".to_owned());
    check_batch(
        &done,
        None,
        &[],
        expect![[r#"
        {"id":"batch_01a0c4506c7b73038303030303030303","object":"batch","endpoint":"/v1/chat/completions","model":null,"errors":null,"input_file_id":"file-x","completion_window":"24h","status":"completed","output_file_id":"file-01a0c4506c7b74048404040404040404","error_file_id":null,"created_at":1790000000,
        "in_progress_at":1790000004,"expires_at":1790086400,"finalizing_at":1790000044,"completed_at":1790000050,"failed_at":null,"expired_at":null,"cancelling_at":null,"cancelled_at":null,"request_counts":{"total":100,"completed":98,"failed":2},
        "usage":{"input_tokens":980,"input_tokens_details":{"cached_tokens":98},"output_tokens":490,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":1470},"metadata":{"z":"1","a":"2"},"progress":{"phase":"ended","lines_per_s":2.174,"tokens_per_s":31.957,"eta_s":null,"waiting_reason":null},"cost":{"currency":"usd","amount":0.000147},"manifest":{"input":{"sha256":"abababababababababababababababababababababababababababababababab","lines":100,"bytes":4711},"output":null,"error":null}}"#]],
    );
}

#[test]
fn a_failed_batch_has_a_list_of_errors_though_none_are_stored() {
    let (params, run) = (params(), run(State::Ended(Terminal::Failed), (0, 0, 0)));
    let progress = Progress::new(ProgressInput {
        run: &run,
        workers: &[],
        now: NOW,
    });
    let text = json(&BatchObject::new(&params, &run, None, progress));
    assert!(
        text.contains(r#""errors":{"object":"list","data":[]}"#),
        "{text}"
    );
}

#[test]
fn a_waiting_batch_is_queued_until_a_worker_has_loaded_its_model() {
    let run = run(State::InProgress, (100, 0, 0));
    let progress = |workers: &[WorkerRecord]| {
        Progress::new(ProgressInput {
            run: &run,
            workers,
            now: NOW,
        })
    };
    assert_eq!(progress(&[]).waiting_reason, Some(WaitingReason::NoWorker));
    assert_eq!(
        (
            progress(&[worker(false)]).waiting_reason,
            progress(&[worker(false)]).eta_s
        ),
        (Some(WaitingReason::Queued), None)
    );
    assert_eq!(progress(&[worker(true), worker(true)]).eta_s, Some(25));
}

#[test]
fn files_uploads_and_lists_have_every_key() {
    let check = |object: String, expected: Expect| expected.assert_eq(&object);
    check(
        json(&FileObject::from(&file(FileStatus::Processed))),
        expect![[
            r#"{"id":"file-01a0c4506c7b71018101010101010101","object":"file","bytes":4711,"created_at":1790000000,"expires_at":1792592000,"filename":"nightly 🌙\r\n.jsonl","purpose":"batch","status":"processed","status_details":null}"#
        ]],
    );
    check(
        json(&FileObject::from(&file(FileStatus::Uploaded))),
        expect![[
            r#"{"id":"file-01a0c4506c7b71018101010101010101","object":"file","bytes":4711,"created_at":1790000000,"expires_at":1792592000,"filename":"nightly 🌙\r\n.jsonl","purpose":"batch","status":"uploaded","status_details":null}"#
        ]],
    );
    check(
        json(&FileObject::from(&file(FileStatus::Error(
            "md5".to_owned(),
        )))),
        expect![[
            r#"{"id":"file-01a0c4506c7b71018101010101010101","object":"file","bytes":4711,"created_at":1790000000,"expires_at":1792592000,"filename":"nightly 🌙\r\n.jsonl","purpose":"batch","status":"error","status_details":"md5"}"#
        ]],
    );
    check(
        json(&Deleted::file(FileId::new(NOW, [1; 16]))),
        expect![[
            r#"{"id":"file-01a0c4506c7b71018101010101010101","object":"file","deleted":true}"#
        ]],
    );
    check(
        json(&UploadObject::new(
            &upload(UploadStatus::Pending),
            None,
            NOW,
        )),
        expect![[
            r#"{"id":"upload_01a0c4506c7b72028202020202020202","object":"upload","bytes":9,"created_at":1790000000,"expires_at":1790003600,"filename":"a.jsonl","purpose":"batch","status":"pending","file":null}"#
        ]],
    );
    check(
        json(&UploadObject::new(
            &upload(UploadStatus::Pending),
            None,
            NOW.plus_ms(3_600_000),
        )),
        expect![[
            r#"{"id":"upload_01a0c4506c7b72028202020202020202","object":"upload","bytes":9,"created_at":1790000000,"expires_at":1790003600,"filename":"a.jsonl","purpose":"batch","status":"expired","file":null}"#
        ]],
    );
    check(
        json(&UploadObject::new(
            &upload(UploadStatus::Cancelled),
            None,
            NOW,
        )),
        expect![[
            r#"{"id":"upload_01a0c4506c7b72028202020202020202","object":"upload","bytes":9,"created_at":1790000000,"expires_at":1790003600,"filename":"a.jsonl","purpose":"batch","status":"cancelled","file":null}"#
        ]],
    );
    let made = file(FileStatus::Processed);
    check(
        json(&UploadObject::new(
            &upload(UploadStatus::Completed(made.id)),
            Some(&made),
            NOW,
        )),
        expect![[
            r#"{"id":"upload_01a0c4506c7b72028202020202020202","object":"upload","bytes":9,"created_at":1790000000,"expires_at":1790003600,"filename":"a.jsonl","purpose":"batch","status":"completed","file":{"id":"file-01a0c4506c7b71018101010101010101","object":"file","bytes":4711,"created_at":1790000000,"expires_at":1792592000,"filename":"nightly 🌙\r\n.jsonl","purpose":"batch","status":"processed","status_details":null}}"#
        ]],
    );
    check(
        json(&PartObject::from(&part(7, 5))),
        expect![[
            r#"{"id":"part_01a0c4506c7b77078707070707070707","object":"upload.part","created_at":1790000000,"upload_id":"upload_01a0c4506c7b72028202020202020202"}"#
        ]],
    );
    check(
        json(&Page::new(
            [
                ("a".to_owned(), Deleted::file("a")),
                ("b".to_owned(), Deleted::file("b")),
            ],
            true,
        )),
        expect![[
            r#"{"object":"list","data":[{"id":"a","object":"file","deleted":true},{"id":"b","object":"file","deleted":true}],"first_id":"a","last_id":"b","has_more":true}"#
        ]],
    );
    check(
        json(&Page::new(Vec::<(String, Deleted)>::new(), false)),
        expect![[r#"{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}"#]],
    );
    let model = Model {
        id: "org/m".to_owned(),
        aliases: Vec::new(),
        engine: Engine::Native(Source::Path("m".to_owned())),
        context_tokens: None,
        endpoints: vec![Endpoint::ChatCompletions],
        price: Price {
            input_per_million: 1.0,
            output_per_million: 2.0,
        },
        owned_by: None,
        tokens_per_s: None,
    };
    check(
        json(&model::ModelList::new(std::slice::from_ref(&model))),
        expect![[
            r#"{"object":"list","data":[{"id":"org/m","object":"model","created":0,"owned_by":"nightshift"}]}"#
        ]],
    );
}

const BATCH: &str =
    r#""input_file_id":"file-x","endpoint":"/v1/responses","completion_window":"24h""#;

fn refusal<T: std::fmt::Debug>(parsed: Result<T, WireError>) -> String {
    let error = parsed.unwrap_err();
    let (param, code) = (
        error.param.unwrap_or("-".to_owned()),
        error.code.unwrap_or("-"),
    );
    format!("{} {param} {code}: {}\n", error.status, error.message)
}

#[test]
fn bad_parameters_of_a_batch_are_named() {
    let with = |rest: &str| format!("{{{BATCH},{rest}}}");
    let long = "x".repeat(600);
    let many = (0..17)
        .map(|n| format!("\"{n}\":\"\""))
        .collect::<Vec<_>>()
        .join(",");
    let bodies = [
        String::new(),
        "{".to_owned(),
        "[]".to_owned(),
        "\"text\"".to_owned(),
        "{\"input_file_id\":null}".to_owned(),
        "{\"input_file_id\":7}".to_owned(),
        "{\"input_file_id\":\"\"}".to_owned(),
        format!("{{\"input_file_id\":\"{long}\"}}"),
        r#"{"input_file_id":"file-x"}"#.to_owned(),
        r#"{"input_file_id":"file-x","endpoint":"/v1/rerank"}"#.to_owned(),
        r#"{"input_file_id":"file-x","endpoint":"/v1/responses"}"#.to_owned(),
        r#"{"input_file_id":"file-x","endpoint":"/v1/responses","completion_window":"169h"}"#
            .to_owned(),
        r#"{"input_file_id":"file-x","endpoint":"/v1/responses","completion_window":"024h"}"#
            .to_owned(),
        r#"{"input_file_id":"file-x","endpoint":"/v1/responses","completion_window":24}"#
            .to_owned(),
        with(r#""metadata":[]"#),
        with(r#""metadata":{"tags":["a"]}"#),
        with(r#""metadata":{"n":1.5}"#),
        with(r#""metadata":{"n":null}"#),
        with(&format!(r#""metadata":{{"n":"{long}"}}"#)),
        with(&format!(r#""metadata":{{"{}":"n"}}"#, &long[..65])),
        with(&format!(r#""metadata":{{{many}}}"#)),
        with(r#""metadata":{"n":"\ud83d"}"#),
        with(r#""output_expires_after":7"#),
        with(r#""output_expires_after":{}"#),
        with(r#""output_expires_after":{"anchor":"now","seconds":3600}"#),
        with(r#""output_expires_after":{"anchor":"created_at"}"#),
        with(r#""output_expires_after":{"anchor":"created_at","seconds":3599}"#),
        with(r#""output_expires_after":{"anchor":"created_at","seconds":2592001}"#),
        with(r#""output_expires_after":{"anchor":"created_at","seconds":-1}"#),
        with(r#""output_expires_after":{"anchor":"created_at","seconds":3600.5}"#),
        with(r#""webhook_url":"https://example.com""#),
        with(r#""requests":[{}]"#),
        r#"{"requests":[]}"#.to_owned(),
        r#"{"requests":{}}"#.to_owned(),
        format!(
            r#"{{"requests":["{}"]}}"#,
            "x".repeat(create_batch::INLINE_BYTES_MAX)
        ),
        r#"{"input_s3_uri":"https://bucket/key"}"#.to_owned(),
        r#"{"input_s3_uri":7}"#.to_owned(),
        with(r#""input_s3_uri":"s3://bucket/key""#),
        r#"{"input_s3_uri":"s3://bucket/key","requests":[{}]}"#.to_owned(),
    ];
    let table: String = bodies
        .iter()
        .map(|body| refusal(CreateBatch::parse(body.as_bytes())))
        .collect();
    expect![[r#"
        400 input_file_id missing_required_parameter: Missing required parameter: 'input_file_id'.
        400 - -: We could not parse the JSON body of your request: EOF while parsing an object at line 1 column 1.
        400 - -: We could not parse the JSON body of your request: invalid type: sequence, expected a map at line 1 column 0.
        400 - -: We could not parse the JSON body of your request: invalid type: string "text", expected a map at line 1 column 6.
        400 input_file_id missing_required_parameter: Missing required parameter: 'input_file_id'.
        400 input_file_id invalid_type: Invalid type for 'input_file_id': expected a string, but got an integer instead.
        400 input_file_id empty_string: Invalid 'input_file_id': empty string. Expected a string with minimum length 1.
        400 input_file_id string_above_max_length: Invalid 'input_file_id': string too long. Expected a string with maximum length 512, but got a string with length 600 instead.
        400 endpoint missing_required_parameter: Missing required parameter: 'endpoint'.
        400 endpoint invalid_value: Invalid value: '/v1/rerank'. Supported values are: '/v1/chat/completions', '/v1/completions', '/v1/embeddings', and '/v1/responses'.
        400 completion_window missing_required_parameter: Missing required parameter: 'completion_window'.
        400 completion_window invalid_value: Invalid value: '169h'. The completion_window must be '24h', or whole hours from '1h' to '168h'.
        400 completion_window invalid_value: Invalid value: '024h'. The completion_window must be '24h', or whole hours from '1h' to '168h'.
        400 completion_window invalid_type: Invalid type for 'completion_window': expected a string, but got an integer instead.
        400 metadata invalid_type: Invalid type for 'metadata': expected an object, but got an array instead.
        400 metadata.tags invalid_type: Invalid type for 'metadata.tags': expected a string, but got an array instead.
        400 metadata.n invalid_type: Invalid type for 'metadata.n': expected a string, but got a decimal number instead.
        400 metadata.n invalid_type: Invalid type for 'metadata.n': expected a string, but got null instead.
        400 metadata.n string_above_max_length: Invalid 'metadata.n': string too long. Expected a string with maximum length 512, but got a string with length 600 instead.
        400 metadata.xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx string_above_max_length: Invalid 'metadata.xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx': string too long. Expected a string with maximum length 64, but got a string with length 65 instead.
        400 metadata object_above_max_properties: Invalid 'metadata': too many properties. Expected an object with at most 16 properties, but got an object with 17 properties instead.
        400 - -: We could not parse the JSON body of your request: 'metadata': unexpected end of hex escape at line 1 column 13.
        400 output_expires_after invalid_type: Invalid type for 'output_expires_after': expected an object, but got an integer instead.
        400 output_expires_after.anchor missing_required_parameter: Missing required parameter: 'output_expires_after.anchor'.
        400 output_expires_after.anchor invalid_value: Invalid value: 'now'. The supported value is 'created_at'.
        400 output_expires_after.seconds missing_required_parameter: Missing required parameter: 'output_expires_after.seconds'.
        400 output_expires_after.seconds integer_below_min_value: Invalid 'output_expires_after.seconds': integer below minimum value. Expected a value >= 3600, but got 3599 instead.
        400 output_expires_after.seconds integer_above_max_value: Invalid 'output_expires_after.seconds': integer above maximum value. Expected a value <= 2592000, but got 2592001 instead.
        400 output_expires_after.seconds integer_below_min_value: Invalid 'output_expires_after.seconds': integer below minimum value. Expected a value >= 3600, but got -1 instead.
        400 output_expires_after.seconds invalid_type: Invalid type for 'output_expires_after.seconds': expected an integer, but got a decimal number instead.
        400 webhook_url unsupported: Webhooks are not available yet: poll the batch, and leave 'webhook_url' out.
        400 requests invalid_value: Give one of 'input_file_id', 'requests' and 'input_s3_uri', not two.
        400 requests empty_array: Invalid 'requests': empty array. Expected an array with minimum length 1.
        400 requests invalid_type: Invalid type for 'requests': expected an array, but got an object instead.
        413 requests content_too_large: 'requests' is larger than the maximum of 4194304 bytes.
        400 input_s3_uri invalid_value: Invalid 'input_s3_uri': it does not begin with 's3://'.
        400 input_s3_uri invalid_type: Invalid type for 'input_s3_uri': expected a string, but got an integer instead.
        400 input_s3_uri invalid_value: Give one of 'input_file_id', 'requests' and 'input_s3_uri', not two.
        400 input_s3_uri invalid_value: Give one of 'input_file_id', 'requests' and 'input_s3_uri', not two.
    "#]].assert_eq(&table);
}

#[test]
fn good_batches_are_read() {
    let parse = |body: &str| CreateBatch::parse(body.as_bytes()).unwrap();
    let body = format!(
        r#"{{{BATCH},"metadata":{{"b":"1","a":"2"}},"output_expires_after":{{"anchor":"created_at","seconds":3600}},"other":[1]}}"#
    );
    let batch = parse(&body);
    assert_eq!(batch.input, BatchInput::File("file-x".to_owned()));
    assert_eq!(
        (batch.endpoint, batch.window_ms),
        (Endpoint::Responses, 86_400_000)
    );
    assert_eq!(
        batch.output_expires_after,
        Some(ExpiresAfter { seconds: 3600 })
    );
    assert_eq!(
        batch.metadata,
        Some(vec![
            ("b".to_owned(), "1".to_owned()),
            ("a".to_owned(), "2".to_owned())
        ])
    );
    let nulls = format!(
        r#"{{{BATCH},"metadata":null,"output_expires_after":null,"webhook_url":null,"requests":null}}"#
    );
    assert_eq!(parse(&nulls).metadata, None);
    for (window, hours) in [("1h", 1), ("168h", 168)] {
        let body = format!("{{{BATCH}}}").replace("24h", window);
        assert_eq!(parse(&body).window_ms, hours * 3_600_000);
    }
}

#[test]
fn inline_requests_keep_their_text() {
    let body = r#"{"endpoint":"/v1/responses","completion_window":"24h","requests":[{"seed":9007199254740993,
        "n":1e999, "s":"\ud83d\u2028"},  7]}"#;
    let BatchInput::Inline(lines) = CreateBatch::parse(body.as_bytes()).unwrap().input else {
        panic!("these are inline requests")
    };
    let expected =
        "{\"seed\":9007199254740993,         \"n\":1e999, \"s\":\"\\ud83d\\u2028\"}\n7\n";
    assert_eq!(String::from_utf8(lines).unwrap(), expected);
}

#[test]
fn bad_parameters_of_uploads_and_files_are_named() {
    let good = r#""bytes":9,"filename":"a.jsonl","mime_type":"text/plain","purpose":"batch""#;
    let uploads = [
        "{}".to_owned(),
        format!("{{{good}}}").replace(":9", ":0"),
        format!("{{{good}}}").replace(":9", ":101"),
        format!("{{{good}}}").replace(":9", ":\"9\""),
        format!("{{{good}}}").replace("a.jsonl", "a.csv"),
        format!("{{{good}}}").replace("a.jsonl", ""),
        format!("{{{good}}}").replace("batch", "batch_output"),
        format!("{{{good},\"expires_after\":{{\"anchor\":\"created_at\",\"seconds\":1}}}}"),
    ];
    let mut table: String = uploads
        .iter()
        .map(|body| refusal(CreateUpload::parse(body.as_bytes(), 100)))
        .collect();
    let id = PartId::new(NOW, [7; 16]);
    let completions = [
        "{}".to_owned(),
        r#"{"part_ids":"x"}"#.to_owned(),
        r#"{"part_ids":[]}"#.to_owned(),
        r#"{"part_ids":[7]}"#.to_owned(),
        r#"{"part_ids":["part_1"]}"#.to_owned(),
        format!(r#"{{"part_ids":["{id}","{id}"]}}"#),
        format!(r#"{{"part_ids":["{id}"],"md5":"xyz"}}"#),
    ];
    table.extend(
        completions
            .iter()
            .map(|body| refusal(CompleteUpload::parse(body.as_bytes()))),
    );
    let forms: [&[(&str, &str)]; 6] = [
        &[],
        &[("purpose", "nothing")],
        &[
            ("purpose", "batch"),
            ("expires_after[anchor]", "created_at"),
        ],
        &[("purpose", "batch"), ("expires_after[seconds]", "3600")],
        &[
            ("purpose", "batch"),
            ("expires_after[anchor]", "now"),
            ("expires_after[seconds]", "3600"),
        ],
        &[
            ("purpose", "batch"),
            ("expires_after[anchor]", "created_at"),
            ("expires_after[seconds]", "1h"),
        ],
    ];
    for fields in forms {
        let mut form = FileForm::default();
        for (name, value) in fields {
            *form.field(name).unwrap() = Some((*value).to_owned());
        }
        table.push_str(&refusal(form.finish()));
    }
    expect![[r#"
        400 bytes missing_required_parameter: Missing required parameter: 'bytes'.
        400 bytes integer_below_min_value: Invalid 'bytes': integer below minimum value. Expected a value >= 1, but got 0 instead.
        400 bytes integer_above_max_value: Invalid 'bytes': integer above maximum value. Expected a value <= 100, but got 101 instead.
        400 bytes invalid_type: Invalid type for 'bytes': expected an integer, but got a string instead.
        400 filename invalid_file_format: Invalid file format for Batch API. Must be .jsonl
        400 filename empty_string: Invalid 'filename': empty string. Expected a string with minimum length 1.
        400 purpose invalid_value: Invalid value: 'batch_output'. Supported values are: 'assistants', 'batch', 'fine-tune', 'vision', 'user_data', and 'evals'.
        400 expires_after.seconds integer_below_min_value: Invalid 'expires_after.seconds': integer below minimum value. Expected a value >= 3600, but got 1 instead.
        400 part_ids missing_required_parameter: Missing required parameter: 'part_ids'.
        400 part_ids invalid_type: Invalid type for 'part_ids': expected an array, but got a string instead.
        400 part_ids invalid_value: Invalid 'part_ids': expected an array of 1 to 10000 part ids, but got 0.
        400 part_ids[0] invalid_type: Invalid type for 'part_ids[0]': expected a string, but got an integer instead.
        400 part_ids invalid_value: No such part of this upload: 'part_1'.
        400 part_ids invalid_value: Invalid 'part_ids': part 'part_01a0c4506c7b77078707070707070707' is named twice.
        400 md5 invalid_value: Invalid 'md5': expected 32 hexadecimal digits.
        400 purpose missing_required_parameter: Missing required parameter: 'purpose'.
        400 purpose invalid_value: Invalid value: 'nothing'. Supported values are: 'assistants', 'batch', 'fine-tune', 'vision', 'user_data', and 'evals'.
        400 expires_after[seconds] missing_required_parameter: Missing required parameter: 'expires_after[seconds]'.
        400 expires_after[anchor] missing_required_parameter: Missing required parameter: 'expires_after[anchor]'.
        400 expires_after[anchor] invalid_value: Invalid value: 'now'. The supported value is 'created_at'.
        400 expires_after[seconds] invalid_type: Invalid type for 'expires_after[seconds]': expected an integer, but got a string instead.
    "#]].assert_eq(&table);
}

#[test]
fn parts_are_taken_in_the_order_asked_for() {
    let stored = [part(7, 4), part(8, 5), part(9, 100)];
    let stored = stored.iter().map(|part| (part.id, part.into())).collect();
    let upload = upload(UploadStatus::Pending);
    let complete = |bytes: &[u8]| CompleteUpload {
        part_ids: bytes.iter().map(|b| part(*b, 0).id).collect(),
        md5: None,
    };
    let parts = complete(&[8, 7]).select(&upload, &stored).unwrap();
    assert_eq!(parts.iter().map(Piece::bytes).collect::<Vec<_>>(), [5, 4]);
    assert_eq!(
        complete(&[7]).select(&upload, &stored).unwrap_err().code,
        Some("bytes_mismatch")
    );
    assert_eq!(
        complete(&[7, 6])
            .select(&upload, &stored)
            .unwrap_err()
            .param
            .as_deref(),
        Some("part_ids")
    );
}

#[test]
fn queries_of_lists_are_read_or_named() {
    let parse = |query: &str| {
        let pairs: Vec<_> = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .collect();
        let pairs: Vec<_> = pairs
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        ListQuery::<FileId>::parse(&pairs, LimitBounds::FILES)
    };
    let id = FileId::new(NOW, [1; 16]);
    let all = ListQuery {
        after: None,
        limit: 10_000,
        ascending: false,
        purpose: None,
    };
    assert_eq!(parse("limit=&after=&whatever=1"), Ok(all));
    let narrow = ListQuery {
        after: Some(id),
        limit: 2,
        ascending: true,
        purpose: Some(Purpose::BatchOutput),
    };
    assert_eq!(
        parse(&format!(
            "limit=1&limit=2&order=asc&purpose=batch_output&after={id}"
        )),
        Ok(narrow)
    );
    let bad = [
        "limit=0",
        "limit=10001",
        "limit=-1",
        "limit=ten",
        "order=up",
        "purpose=x",
        "after=batch_1",
    ];
    let table: String = bad.iter().map(|query| refusal(parse(query))).collect();
    expect![[r#"
        400 limit integer_below_min_value: Invalid 'limit': integer below minimum value. Expected a value >= 1, but got 0 instead.
        400 limit integer_above_max_value: Invalid 'limit': integer above maximum value. Expected a value <= 10000, but got 10001 instead.
        400 limit integer_below_min_value: Invalid 'limit': integer below minimum value. Expected a value >= 1, but got -1 instead.
        400 limit invalid_type: Invalid type for 'limit': expected an integer, but got a string instead.
        400 order invalid_value: Invalid value: 'up'. Supported values are: 'asc' and 'desc'.
        400 purpose invalid_value: Invalid value: 'x'. Supported values are: 'assistants', 'batch', 'fine-tune', 'vision', 'user_data', and 'evals'.
        400 after invalid_value: Invalid 'after': 'batch_1' is not the id of an object of this list.
    "#]].assert_eq(&table);
}

#[test]
fn the_envelope_has_all_four_keys() {
    let check = |error: WireError, expected: Expect| {
        let json = String::from_utf8(error.to_json()).unwrap();
        expected.assert_eq(&format!(
            "{} {:?} {:?} {json}",
            error.status, error.retry, error.retry_after_s
        ));
    };
    check(
        WireError::no_file("file-1"),
        expect![[
            r#"404 None None {"error":{"message":"No such File object: file-1","type":"invalid_request_error","param":"id","code":null}}"#
        ]],
    );
    check(
        WireError::no_upload("upload_1"),
        expect![[
            r#"404 None None {"error":{"message":"No such Upload object: upload_1","type":"invalid_request_error","param":"upload_id","code":null}}"#
        ]],
    );
    check(
        WireError::no_batch("batch_1"),
        expect![[
            r#"404 None None {"error":{"message":"No batch found with id 'batch_1'.","type":"invalid_request_error","param":"batch_id","code":null}}"#
        ]],
    );
    check(
        WireError::no_model("gpt-9"),
        expect![[
            r#"404 None None {"error":{"message":"The model 'gpt-9' does not exist.","type":"invalid_request_error","param":"model","code":"model_not_found"}}"#
        ]],
    );
    check(
        WireError::no_key(),
        expect![[
            r#"401 None None {"error":{"message":"You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}"#
        ]],
    );
    check(
        WireError::unknown_url("GET", "/v1/x"),
        expect![[
            r#"404 None None {"error":{"message":"Invalid URL (GET /v1/x)","type":"invalid_request_error","param":null,"code":"unknown_url"}}"#
        ]],
    );
    check(
        WireError::method_not_allowed("PUT", "/v1/files"),
        expect![[
            r#"405 None None {"error":{"message":"Not allowed to PUT on /v1/files.","type":"invalid_request_error","param":null,"code":"method_not_supported"}}"#
        ]],
    );
    check(
        WireError::cannot_cancel(crate::lifecycle::Status::Completed),
        expect![[
            r#"409 Some(false) None {"error":{"message":"Cannot cancel a batch with status 'completed'.","type":"invalid_request_error","param":null,"code":null}}"#
        ]],
    );
    check(
        WireError::idempotency_mismatch(),
        expect![[
            r#"409 Some(false) None {"error":{"message":"This Idempotency-Key was used with another request body within the last 24 hours.","type":"invalid_request_error","param":null,"code":"idempotency_key_reused"}}"#
        ]],
    );
    check(
        WireError::too_large("The file", 7),
        expect![[
            r#"413 None None {"error":{"message":"The file is larger than the maximum of 7 bytes.","type":"invalid_request_error","param":null,"code":"content_too_large"}}"#
        ]],
    );
    check(
        WireError::unsupported_media_type("multipart/form-data", "text/plain"),
        expect![[
            r#"415 None None {"error":{"message":"Unsupported content type: expected 'multipart/form-data', but got 'text/plain' instead.","type":"invalid_request_error","param":null,"code":null}}"#
        ]],
    );
    check(
        WireError::body_timeout(60),
        expect![[
            r#"408 None None {"error":{"message":"The request body did not arrive: nothing came for 60 seconds.","type":"invalid_request_error","param":null,"code":"request_timeout"}}"#
        ]],
    );
    check(
        WireError::rate_limited(2000, 3000),
        expect![[
            r#"429 None Some(60) {"error":{"message":"Rate limit reached for batch creation: at most 2000 batches an hour.","type":"rate_limit_exceeded","param":null,"code":"rate_limit_exceeded"}}"#
        ]],
    );
    check(
        WireError::server_error(),
        expect![[
            r#"500 None None {"error":{"message":"The server had an error while processing your request.","type":"server_error","param":null,"code":null}}"#
        ]],
    );
    check(
        WireError::overloaded(0),
        expect![[
            r#"503 None Some(1) {"error":{"message":"The server is overloaded. Please try again in a moment.","type":"server_error","param":null,"code":null}}"#
        ]],
    );
    check(
        create_upload::not_pending("completed"),
        expect![[
            r#"400 None None {"error":{"message":"This upload cannot be changed any more: its status is 'completed'.","type":"invalid_request_error","param":"upload_id","code":"upload_not_pending"}}"#
        ]],
    );
    check(
        create_upload::md5_mismatch("a", "b"),
        expect![[
            r#"400 None None {"error":{"message":"The MD5 of the parts is b, but the request says a.","type":"invalid_request_error","param":"md5","code":"md5_mismatch"}}"#
        ]],
    );
    check(
        Finding::Encoding("UTF-16 (little-endian)").into(),
        expect![[
            r#"400 None None {"error":{"message":"Invalid file format for Batch API. Must be .jsonl: the file is UTF-16 (little-endian), as its byte order mark says, and not UTF-8.","type":"invalid_request_error","param":"file","code":"invalid_file_format"}}"#
        ]],
    );
}

#[test]
fn echoed_values_are_clipped() {
    let long = "é".repeat(5_000);
    let message = WireError::no_batch(&long).message;
    assert_eq!(message.chars().filter(|c| *c == 'é').count(), 128);
}
