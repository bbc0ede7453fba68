//! The adapters of AWS over real HTTP: the conformance suite on a calm day and in rough weather, and what
//! becomes of every answer that does not get better.
//!
//! Needs MiniStack, whose program `NIGHTSHIFT_TEST_MINISTACK` names.
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

mod support;

use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use batch_core::blob_key::BlobKey;
use batch_core::external::{ExternalObject, PinnedObject};
use batch_core::id::FileId;
use batch_core::message::QueueName;
use batch_core::time::UnixMs;
use batch_io::aws::{Aws, Resources};
use batch_io::conformance;
use batch_io::port::{
    Action, ActionKind, Attr, BlobReader, Condition, Item, RecordKey, TransactError, Update,
};
use batch_io::{IoError, IoKind};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};

use support::{Answer, Call, Deployed, Fault, Plan, fetch};

/// More than any call makes tries.
const ALWAYS: u32 = 1000;

const MIB: usize = 1024 * 1024;

fn run(test: impl AsyncFnOnce(Deployed)) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        if let Some(deployed) = Deployed::new().await {
            test(deployed).await;
        }
    });
}

#[test]
fn records_conform() {
    run(async |deployed| {
        let records = deployed.subject(Arc::clone(&deployed.aws.records), true);
        conformance::records::run(&records).await;
    });
}

#[test]
fn records_conform_in_rough_weather() {
    run(async |deployed| {
        deployed.proxy.plan(Plan::Rough(1));
        let records = deployed.subject(Arc::clone(&deployed.aws.records), false);
        conformance::records::run(&records).await;
    });
}

#[test]
fn blobs_conform() {
    run(async |deployed| {
        let blobs = deployed.subject(Arc::clone(&deployed.aws.blobs), true);
        conformance::blobs::run(&blobs).await;
    });
}

#[test]
fn blobs_conform_in_rough_weather() {
    run(async |deployed| {
        deployed.proxy.plan(Plan::Rough(2));
        let blobs = deployed.subject(Arc::clone(&deployed.aws.blobs), false);
        conformance::blobs::run(&blobs).await;
    });
}

#[test]
fn queues_conform() {
    run(async |deployed| conformance::queue::run_at_once(&deployed.queue(true)).await);
}

#[test]
fn queues_conform_in_rough_weather() {
    run(async |deployed| {
        let queue = deployed.queue(false);
        deployed.proxy.plan(Plan::Rough(3));
        conformance::queue::run_at_once(&queue).await;
    });
}

fn every(_: &Call) -> bool {
    true
}

fn key() -> RecordKey {
    RecordKey::new("acme/things", "a")
}

fn file(n: u8) -> BlobKey {
    BlobKey::File {
        tenant: "acme".to_owned().try_into().unwrap(),
        file: FileId::new(UnixMs(1), [n; 16]),
    }
}

fn act(kind: ActionKind, condition: Option<Condition>) -> Vec<Action> {
    vec![Action {
        key: key(),
        kind,
        condition,
    }]
}

fn put() -> ActionKind {
    ActionKind::Put(Item::default())
}

fn add() -> ActionKind {
    ActionKind::Update(Update {
        add: vec![("n".to_owned(), 1)],
        ..Update::default()
    })
}

fn kind<T: std::fmt::Debug>(outcome: Result<T, IoError>) -> IoKind {
    outcome.unwrap_err().kind
}

fn transact_kind(outcome: Result<(), TransactError>) -> IoKind {
    match outcome.unwrap_err() {
        TransactError::Io(error) => error.kind,
        TransactError::Conflict(positions) => panic!("a conflict of {positions:?}"),
    }
}

#[test]
fn a_busy_table_is_busy() {
    run(async |deployed| {
        let records = &deployed.aws.records;
        for fault in [
            Fault::Answer(Answer(400, "ThrottlingException")),
            Fault::Answer(Answer(400, "ProvisionedThroughputExceededException")),
            Fault::Answer(Answer(500, "InternalServerError")),
            Fault::DropBefore,
        ] {
            deployed.proxy.plan(Plan::Some(ALWAYS, every, fault));
            assert_eq!(kind(records.get(&key()).await), IoKind::Busy, "{fault:?}");
            assert_eq!(deployed.proxy.count(), 5, "{fault:?} is tried again");
            let written = records.transact(act(put(), Some(Condition::Absent))).await;
            assert_eq!(transact_kind(written), IoKind::Busy, "{fault:?}");
        }
        let met = Fault::Answer(Answer(400, "TransactionCanceledException"));
        deployed.proxy.plan(Plan::Some(ALWAYS, every, met));
        let written = records.transact(act(put(), Some(Condition::Absent))).await;
        assert_eq!(transact_kind(written), IoKind::Busy);
        assert_eq!(deployed.proxy.count(), 8, "meeting another is tried again");
        deployed.proxy.plan(Plan::Clear);
        assert_eq!(
            records.get(&key()).await.unwrap(),
            None,
            "none of it happened"
        );
    });
}

#[test]
fn a_busy_bucket_is_busy() {
    run(async |deployed| {
        let blobs = &deployed.aws.blobs;
        for fault in [
            Fault::Answer(Answer(503, "SlowDown")),
            Fault::Answer(Answer(500, "InternalError")),
            Fault::DropBefore,
        ] {
            deployed.proxy.plan(Plan::Some(ALWAYS, every, fault));
            let body = Bytes::from_static(b"x");
            assert_eq!(
                kind(blobs.put(&file(1), body).await),
                IoKind::Busy,
                "{fault:?}"
            );
            assert_eq!(kind(blobs.head(&file(1)).await), IoKind::Busy, "{fault:?}");
        }
        let met = Fault::Answer(Answer(409, "ConditionalRequestConflict"));
        deployed.proxy.plan(Plan::Some(ALWAYS, every, met));
        let first = blobs
            .put_if_absent(&file(1), Bytes::from_static(b"x"))
            .await;
        assert_eq!(kind(first), IoKind::Busy);
    });
}

#[test]
fn a_busy_queue_is_busy() {
    run(async |deployed| {
        let queue = &deployed.aws.queue;
        for fault in [
            Fault::Answer(Answer(400, "ThrottlingException")),
            Fault::Answer(Answer(403, "OverLimit")),
            Fault::Answer(Answer(500, "InternalFailure")),
            Fault::DropBefore,
        ] {
            deployed.proxy.plan(Plan::Some(ALWAYS, every, fault));
            let sent = queue
                .send(&QueueName::Validate, vec!["x".to_owned()], Duration::ZERO)
                .await;
            assert_eq!(kind(sent), IoKind::Busy, "{fault:?}");
            let received = queue
                .receive(&QueueName::Validate, 1, Duration::ZERO, Duration::ZERO)
                .await;
            assert_eq!(kind(received), IoKind::Busy, "{fault:?}");
        }
    });
}

#[test]
fn what_is_missing_or_forbidden_is_denied_by_name() {
    run(async |deployed| {
        let elsewhere = Resources {
            table: "no-table".to_owned(),
            bucket: "no-bucket".to_owned(),
            queue_url_prefix: deployed.resources.queue_url_prefix.replace("/d", "/no-"),
        };
        let missing = Aws::over(&elsewhere, &deployed.direct);
        let why = |error: IoError| {
            assert_eq!(error.kind, IoKind::Denied, "{error}");
            error.source.unwrap().to_string()
        };
        let table = why(missing.records.get(&key()).await.unwrap_err());
        assert!(
            table.contains("the DynamoDB table 'no-table' does not exist"),
            "{table}"
        );
        let bucket = missing.blobs.put(&file(1), Bytes::from_static(b"x")).await;
        let bucket = why(bucket.unwrap_err());
        assert!(
            bucket.contains("the S3 bucket 'no-bucket' does not exist"),
            "{bucket}"
        );
        let queue = why(missing.queue.depth(&QueueName::Validate).await.unwrap_err());
        assert!(queue.contains("-validate does not exist"), "{queue}");

        let mut nobody = deployed.direct.clone().into_builder();
        nobody.set_credentials_provider(None);
        let nobody = Aws::over(&deployed.resources, &nobody.build());
        let credentials = why(nobody.records.get(&key()).await.unwrap_err());
        assert!(credentials.contains("see the credentials"), "{credentials}");

        let denied = Fault::Answer(Answer(403, "AccessDenied"));
        deployed.proxy.plan(Plan::Some(ALWAYS, every, denied));
        let head = deployed.aws.blobs.get(&file(1), 0, None).await;
        let role = why(head.unwrap_err());
        assert!(
            role.contains("the role of this process may not do this"),
            "{role}"
        );
        assert_eq!(deployed.proxy.count(), 1, "a denial is not tried again");
    });
}

#[test]
fn a_write_whose_answer_got_lost_is_done_once() {
    run(async |deployed| {
        let (records, proxy) = (&deployed.aws.records, &deployed.proxy);
        let lose = |times| proxy.plan(Plan::Some(times, every, Fault::DropAfter));
        lose(2);
        let create = act(put(), Some(Condition::Absent));
        records.transact(create.clone()).await.unwrap();
        assert!(
            matches!(records.transact(create).await, Err(TransactError::Conflict(at)) if at == [0]),
            "another call is another's doing"
        );
        for _ in 0..3 {
            lose(3);
            records.transact(act(add(), None)).await.unwrap();
        }
        let item = records.get(&key()).await.unwrap().unwrap();
        assert_eq!(item.attrs["n"], Attr::Int(3));
        lose(1);
        records
            .transact(act(ActionKind::Delete, Some(Condition::Exists)))
            .await
            .unwrap();
        assert_eq!(records.get(&key()).await.unwrap(), None);
    });
}

#[test]
fn a_put_whose_answer_got_lost_is_known_again() {
    run(async |deployed| {
        let (blobs, proxy) = (&deployed.aws.blobs, &deployed.proxy);
        let lose = || {
            proxy.plan(Plan::Some(
                1,
                |call| !call.line.starts_with("HEAD"),
                Fault::DropAfter,
            ))
        };
        lose();
        let first = blobs
            .put_if_absent(&file(1), Bytes::from_static(b"one"))
            .await
            .unwrap();
        assert_eq!(blobs.head(&file(1)).await.unwrap(), first);
        lose();
        let second = blobs
            .put_if_absent(&file(1), Bytes::from_static(b"two"))
            .await;
        assert_eq!(
            kind(second),
            IoKind::Conflict,
            "another call is another's doing"
        );

        let id = blobs.multipart_begin(&file(2)).await.unwrap();
        let part = blobs
            .multipart_put(&file(2), &id, 1, Bytes::from_static(b"part"))
            .await
            .unwrap();
        lose();
        let whole = blobs
            .multipart_finish(&file(2), &id, &[part])
            .await
            .unwrap();
        assert_eq!(blobs.head(&file(2)).await.unwrap(), whole);
    });
}

fn sample(len: usize) -> Bytes {
    (0..len).map(|n| (n * 31 % 251).to_le_bytes()[0]).collect()
}

fn in_chunks(body: &Bytes, chunk: usize) -> BlobReader {
    let chunks: Vec<_> = body
        .chunks(chunk)
        .map(|chunk| Ok(Bytes::copy_from_slice(chunk)))
        .collect();
    stream::iter(chunks).boxed()
}

#[test]
fn a_read_that_breaks_goes_on_where_it_broke() {
    run(async |deployed| {
        let (blobs, proxy) = (&deployed.aws.blobs, &deployed.proxy);
        let body = sample(3 * MIB);
        blobs.put(&file(1), body.clone()).await.unwrap();
        let read = async |start, end| {
            let read = blobs.get(&file(1), start, end).await.unwrap();
            assert_eq!(read.meta.bytes, body.len() as u64);
            let chunks: Vec<Bytes> = read.body.try_collect().await?;
            Ok::<_, IoError>(chunks.concat())
        };
        let is_get = |call: &Call| call.line.starts_with("GET");
        proxy.plan(Plan::Some(5, is_get, Fault::Cut));
        assert!(read(0, None).await.unwrap() == body);
        proxy.plan(Plan::Some(5, is_get, Fault::Cut));
        assert!(read(10, Some(2_000_000)).await.unwrap() == body[10..2_000_000]);

        // Breaks that bring no byte are not survived for ever.
        let mut begun = {
            proxy.plan(Plan::Some(1, is_get, Fault::Cut));
            blobs.get(&file(1), 0, None).await.unwrap().body
        };
        begun.try_next().await.unwrap();
        blobs.delete(&file(1)).await.unwrap();
        let broken = begun.try_collect::<Vec<_>>().await;
        assert_eq!(kind(broken), IoKind::Busy, "the rest is gone");
    });
}

#[test]
fn a_long_stream_goes_in_parts_and_leaves_none_behind() {
    run(async |deployed| {
        let (blobs, proxy) = (&deployed.aws.blobs, &deployed.proxy);
        let body = sample(20 * MIB + 7);
        let meta = blobs
            .put_stream(&file(1), in_chunks(&body, 300_000))
            .await
            .unwrap();
        assert_eq!(meta.bytes, body.len() as u64);
        assert_eq!(blobs.head(&file(1)).await.unwrap(), meta);
        let read = blobs.get(&file(1), 0, None).await.unwrap().body;
        assert!(read.try_collect::<Vec<_>>().await.unwrap().concat() == body);

        let broken = in_chunks(&body, 300_000).chain(stream::iter([Err(IoError::new(
            "read the test's stream",
            "",
            IoKind::Denied,
        ))]));
        assert_eq!(
            kind(blobs.put_stream(&file(2), broken.boxed()).await),
            IoKind::Denied
        );
        let third_part = |call: &Call| call.line.contains("partNumber=3");
        let refused = Fault::Answer(Answer(503, "SlowDown"));
        proxy.plan(Plan::Some(ALWAYS, third_part, refused));
        let failed = blobs.put_stream(&file(2), in_chunks(&body, 300_000)).await;
        assert_eq!(kind(failed), IoKind::Busy);
        proxy.plan(Plan::Clear);
        assert_eq!(kind(blobs.head(&file(2)).await), IoKind::NotFound);
        assert_eq!(multiparts(&deployed).await, 0, "no part stays behind");
    });
}

fn s3(deployed: &Deployed) -> aws_sdk_s3::Client {
    let config = aws_sdk_s3::config::Builder::from(&deployed.direct).force_path_style(true);
    aws_sdk_s3::Client::from_conf(config.build())
}

async fn multiparts(deployed: &Deployed) -> usize {
    let list = s3(deployed)
        .list_multipart_uploads()
        .bucket(&deployed.resources.bucket);
    list.send().await.unwrap().uploads().len()
}

#[test]
fn a_prefix_of_many_blobs_is_removed_page_by_page() {
    run(async |deployed| {
        let blobs = &deployed.aws.blobs;
        let batch = batch_core::id::BatchId::new(UnixMs(1), [1; 16]);
        let index = |window| BlobKey::Index {
            tenant: "acme".to_owned().try_into().unwrap(),
            batch,
            window,
        };
        stream::iter(0..1005)
            .map(|window| {
                let key = index(window);
                async move { blobs.put(&key, Bytes::new()).await }
            })
            .buffer_unordered(16)
            .try_for_each(|_| async { Ok(()) })
            .await
            .unwrap();
        assert_eq!(blobs.delete_prefix("index/acme/").await.unwrap(), 1005);
        assert_eq!(kind(blobs.head(&index(1004)).await), IoKind::NotFound);
    });
}

#[test]
fn a_signed_address_needs_no_header_and_names_the_file() {
    run(async |deployed| {
        let blobs = Aws::over(&deployed.resources, &deployed.direct).blobs;
        blobs
            .put(&file(1), Bytes::from_static(b"{}\n"))
            .await
            .unwrap();
        let address = blobs
            .presigned_get(&file(1), "größe \"1\".jsonl", 60)
            .await
            .unwrap()
            .unwrap();
        let (status, headers, body) = fetch(&address).await.unwrap();
        assert_eq!((status.as_u16(), &body[..]), (200, &b"{}\n"[..]));
        assert_eq!(headers["content-type"], "application/jsonl");
        assert_eq!(
            headers["content-disposition"],
            "attachment; filename=\"gr__e _1_.jsonl\"; filename*=UTF-8''gr%C3%B6%C3%9Fe%20%221%22.jsonl"
        );
        assert!(address.contains("X-Amz-SignedHeaders=host&"), "{address}");
        let forever = blobs.presigned_get(&file(1), "x", 8 * 24 * 3600).await;
        assert_eq!(kind(forever), IoKind::TooLarge);
    });
}

#[test]
fn objects_of_others_are_copied_as_they_were_pinned() {
    run(async |deployed| {
        let blobs = &deployed.aws.blobs;
        let object: ExternalObject = "s3://import-here/fólder/a b+c.jsonl".parse().unwrap();
        let client = s3(&deployed);
        client
            .create_bucket()
            .bucket(&object.bucket)
            .send()
            .await
            .unwrap();
        let store = async |body: Bytes| {
            let put = client.put_object().bucket(&object.bucket).key(&object.key);
            put.body(body.into()).send().await.unwrap();
        };
        assert_eq!(kind(blobs.head_external(&object).await), IoKind::NotFound);
        let body = sample(6 * MIB);
        store(body.clone()).await;
        let meta = blobs.head_external(&object).await.unwrap();
        assert_eq!(meta.bytes, body.len() as u64);
        let pinned = PinnedObject {
            object: object.clone(),
            etag: meta.etag,
            bytes: meta.bytes,
        };
        let id = blobs.multipart_begin(&file(1)).await.unwrap();
        let copy = async |number, start, end| {
            blobs
                .multipart_copy_external(&file(1), &id, number, &pinned, start, end)
                .await
        };
        let (five, all) = (5 * MIB as u64, meta.bytes);
        let parts = [
            copy(1, 0, five).await.unwrap(),
            copy(2, five, all).await.unwrap(),
        ];
        store(sample(7)).await;
        assert_eq!(
            kind(copy(3, 0, 7).await),
            IoKind::Conflict,
            "it is another by now"
        );
        blobs.multipart_finish(&file(1), &id, &parts).await.unwrap();
        let read = blobs.get(&file(1), 0, None).await.unwrap().body;
        assert!(read.try_collect::<Vec<_>>().await.unwrap().concat() == body);
    });
}

/// Tells a test that it is its own second process.
const CHILD: &str = "BATCH_IO_AWS_CHILD";

#[test]
fn connecting_calls_nothing() {
    if std::env::var_os(CHILD).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let resources = Resources {
            table: "t".to_owned(),
            bucket: "b".to_owned(),
            queue_url_prefix: "https://sqs.eu-west-1.amazonaws.com/1/q-".to_owned(),
        };
        runtime.block_on(Aws::connect(&resources));
        println!("connected");
        return;
    }
    let metadata = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    metadata.set_nonblocking(true).unwrap();
    let home = tempfile::tempdir().unwrap();
    let address = format!("http://{}", metadata.local_addr().unwrap());
    // No region, no credentials: whatever asks for them asks the metadata service.
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["connecting_calls_nothing", "--exact", "--nocapture"])
        .env_clear()
        .env(CHILD, "1")
        .env("HOME", home.path())
        .env("AWS_EC2_METADATA_SERVICE_ENDPOINT", address)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("connected"),
        "{said}"
    );
    assert_eq!(
        metadata.accept().unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
}
