//! The conformance suite on every weather, and what holds of the embedded ports alone: several processes,
//! kills, versions.

use std::future::Future;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use batch_core::blob_key::BlobKey;
use batch_core::id::FileId;
use batch_core::message::QueueName;
use batch_core::time::UnixMs;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::*;
use crate::conformance::{self, Advance, Subject};
use crate::port::{Action, ActionKind, Attr, Due, Item, RecordKey, Update, WorkKind};

const ROUGH: Weather = Weather {
    index_lag_ms: 5000,
    short_pages: true,
    late_messages: true,
    double_messages: true,
    seed: 1,
};

/// A clock that stands still until it is moved.
fn still_clock() -> (Clock, Advance) {
    let now = Arc::new(AtomicI64::new(1_700_000_000_000));
    let hand = Arc::clone(&now);
    let clock: Clock = Arc::new(move || UnixMs(now.load(Ordering::SeqCst)));
    let advance: Advance = Arc::new(move |span| {
        hand.fetch_add(i64::try_from(span.as_millis()).unwrap(), Ordering::SeqCst);
        Box::pin(async {})
    });
    (clock, advance)
}

fn weathers() -> Vec<Weather> {
    let calm = Weather::default();
    vec![
        calm,
        Weather {
            index_lag_ms: 5000,
            ..calm
        },
        Weather {
            short_pages: true,
            ..calm
        },
        Weather {
            late_messages: true,
            ..calm
        },
        Weather {
            double_messages: true,
            ..calm
        },
        ROUGH,
        Weather { seed: 2, ..ROUGH },
    ]
}

fn run<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn check<P: ?Sized>(pick: impl Fn(Embedded) -> Arc<P>, suite: impl AsyncFn(&Subject<P>)) {
    for weather in weathers() {
        let dir = tempfile::tempdir().unwrap();
        let (clock, advance) = still_clock();
        let port = pick(Embedded::open_under(dir.path(), weather, clock).unwrap());
        let lag = Duration::from_millis(weather.index_lag_ms.unsigned_abs());
        let calm = !weather.late_messages && !weather.double_messages;
        run(suite(&Subject {
            port,
            advance,
            lag,
            calm,
        }));
    }
}

#[test]
fn records_conform_in_every_weather() {
    check(|embedded| embedded.records, conformance::records::run);
}

#[test]
fn queues_conform_in_every_weather() {
    check(|embedded| embedded.queue, conformance::queue::run);
}

#[test]
fn blobs_conform() {
    let dir = tempfile::tempdir().unwrap();
    let (clock, advance) = still_clock();
    let port = Embedded::open_under(dir.path(), Weather::default(), clock)
        .unwrap()
        .blobs;
    run(conformance::blobs::run(&Subject {
        port,
        advance,
        lag: Duration::ZERO,
        calm: true,
    }));
}

fn key() -> RecordKey {
    RecordKey::new("acme/batches", "a")
}

fn blob(n: u8) -> BlobKey {
    BlobKey::File {
        tenant: "acme".to_owned().try_into().unwrap(),
        file: FileId::new(UnixMs(1), [n; 16]),
    }
}

fn add(number: i64) -> Vec<Action> {
    let update = Update {
        add: vec![("n".to_owned(), number)],
        ..Update::default()
    };
    vec![Action {
        key: key(),
        kind: ActionKind::Update(update),
        condition: None,
    }]
}

async fn count(embedded: &Embedded) -> i64 {
    match embedded.records.get(&key()).await.unwrap().unwrap().attrs["n"] {
        Attr::Int(number) => number,
        Attr::Text(_) => panic!("a number"),
    }
}

/// Tells a test that it is its own second process, and which directory to use.
const CHILD: &str = "BATCH_IO_CHILD_DIR";

/// Runs one test of this binary again in a process of its own.
fn second_process(test: &str, dir: &Path) -> std::process::Child {
    let exe = std::env::current_exe().unwrap();
    let name = format!("embedded::tests::{test}");
    let mut command = Command::new(exe);
    command.args([name.as_str(), "--exact", "--nocapture", "--test-threads=1"]);
    command
        .env(CHILD, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    if let Some(dir) = std::env::var_os(CHILD) {
        return run(acknowledge_and_hang(Path::new(&dir)));
    }
    let dir = tempfile::tempdir().unwrap();
    let first = Embedded::open(dir.path()).unwrap();
    let mut child = second_process("what_was_acknowledged_survives_a_kill", dir.path());
    let said = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let ready = said.into_iter().any(|line| line.contains("acknowledged"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ready, "the second process did its part");

    assert_eq!(scratch_folders(dir.path()), 2);
    let after = Embedded::open(dir.path()).unwrap();
    assert_eq!(
        scratch_folders(dir.path()),
        2,
        "the dead process's folder is gone, those of the living stay"
    );
    run(async {
        for embedded in [&first, &after] {
            assert_eq!(count(embedded).await, 5);
            assert_eq!(embedded.blobs.head(&blob(1)).await.unwrap().bytes, 3);
            assert!(embedded.blobs.head(&blob(2)).await.is_err());
        }
        let messages = after
            .queue
            .receive(&QueueName::Validate, 10, Duration::ZERO, Duration::ZERO)
            .await
            .unwrap();
        assert_eq!(
            messages
                .iter()
                .map(|message| message.body.as_str())
                .collect::<Vec<_>>(),
            ["hello"]
        );
        let body = stream::iter([Ok(Bytes::from_static(b"xy"))]).boxed();
        let meta = first.blobs.put_stream(&blob(2), body).await.unwrap();
        assert_eq!(
            meta.bytes, 2,
            "the living process's scratch folder still serves"
        );
    });
}

async fn acknowledge_and_hang(dir: &Path) {
    let embedded = Embedded::open(dir).unwrap();
    embedded.records.transact(add(5)).await.unwrap();
    embedded
        .queue
        .send(
            &QueueName::Validate,
            vec!["hello".to_owned()],
            Duration::ZERO,
        )
        .await
        .unwrap();
    embedded
        .blobs
        .put(&blob(1), Bytes::from_static(b"abc"))
        .await
        .unwrap();
    let half = stream::iter([Ok(Bytes::from(vec![7; 1_000_000]))]).chain(stream::once(async {
        println!("acknowledged");
        std::future::pending().await
    }));
    embedded
        .blobs
        .put_stream(&blob(2), half.boxed())
        .await
        .unwrap();
}

fn scratch_folders(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("blobs/.scratch"))
        .unwrap()
        .count()
}

#[test]
fn two_processes_share_one_directory() {
    let work = async |dir: &Path| {
        let embedded = Embedded::open(dir).unwrap();
        for n in 0..40_u8 {
            embedded.records.transact(add(1)).await.unwrap();
            embedded
                .queue
                .send(&QueueName::Dispatch, vec![format!("{n}")], Duration::ZERO)
                .await
                .unwrap();
            let _ = embedded
                .blobs
                .put_if_absent(&blob(n), Bytes::from(vec![n; 10]))
                .await;
        }
        embedded
    };
    if let Some(dir) = std::env::var_os(CHILD) {
        run(work(Path::new(&dir)));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let child = second_process("two_processes_share_one_directory", dir.path());
    run(async {
        let embedded = work(dir.path()).await;
        let output = tokio::task::spawn_blocking(|| child.wait_with_output())
            .await
            .unwrap()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
        assert_eq!(count(&embedded).await, 80);
        assert_eq!(
            embedded.queue.depth(&QueueName::Dispatch).await.unwrap(),
            80
        );
        assert_eq!(
            embedded.blobs.delete_prefix("files/acme/").await.unwrap(),
            40
        );
    });
}

#[test]
fn a_long_poll_sees_what_another_opening_sends() {
    let dir = tempfile::tempdir().unwrap();
    let (here, there) = (
        Embedded::open(dir.path()).unwrap(),
        Embedded::open(dir.path()).unwrap(),
    );
    run(async {
        let poll = here.queue.receive(
            &QueueName::Validate,
            1,
            Duration::ZERO,
            Duration::from_secs(20),
        );
        let send = there
            .queue
            .send(&QueueName::Validate, vec!["a".to_owned()], Duration::ZERO);
        let (messages, sent) = futures::join!(poll, send);
        sent.unwrap();
        assert_eq!(messages.unwrap().len(), 1);
    });
}

#[test]
fn everything_is_there_after_a_second_opening() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let id = {
            let embedded = Embedded::open(&dir.path().join("deep/er")).unwrap();
            embedded.records.transact(add(1)).await.unwrap();
            embedded.blobs.multipart_begin(&blob(1)).await.unwrap()
        };
        let embedded = Embedded::open(&dir.path().join("deep/er")).unwrap();
        assert_eq!(count(&embedded).await, 1);
        let part = embedded
            .blobs
            .multipart_put(&blob(1), &id, 1, Bytes::from_static(b"x"))
            .await
            .unwrap();
        embedded
            .blobs
            .multipart_finish(&blob(1), &id, &[part])
            .await
            .unwrap();
    });
}

#[test]
fn a_newer_directory_is_refused_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    Embedded::open(dir.path()).unwrap();
    std::fs::write(dir.path().join("version"), "7\n").unwrap();
    let error = Embedded::open(dir.path()).unwrap_err();
    assert!(matches!(
        error,
        OpenError::NewerVersion {
            found: 7,
            known: 1,
            ..
        }
    ));
    let shown = error.to_string().replace(
        &*dir.path().canonicalize().unwrap().to_string_lossy(),
        "DIR",
    );
    assert_eq!(
        shown,
        "the data directory DIR has version 7, but this program knows none above 1: use a newer program"
    );
}

#[test]
fn a_version_that_is_no_number_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("version"), "one").unwrap();
    assert!(matches!(
        Embedded::open(dir.path()),
        Err(OpenError::UnreadableVersion { .. })
    ));
}

#[test]
fn a_file_is_no_data_directory() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(
        Embedded::open(file.path()),
        Err(OpenError::Io { .. })
    ));
}

#[test]
fn a_lagging_index_shows_the_past() {
    let dir = tempfile::tempdir().unwrap();
    let (clock, advance) = still_clock();
    let weather = Weather {
        index_lag_ms: 100,
        ..Weather::default()
    };
    let embedded = Embedded::open_under(dir.path(), weather, clock).unwrap();
    let put = |due| Action {
        key: key(),
        kind: ActionKind::Put(Item {
            due,
            ..Item::default()
        }),
        condition: None,
    };
    let at = |at| {
        Some(Due {
            kind: WorkKind::Batch,
            at: UnixMs(at),
        })
    };
    let shown = async || {
        let found = embedded
            .records
            .due(WorkKind::Batch, UnixMs(10), 5)
            .await
            .unwrap();
        found
            .into_iter()
            .map(|(_, due)| due.at.0)
            .collect::<Vec<_>>()
    };
    run(async {
        embedded.records.transact(vec![put(at(1))]).await.unwrap();
        assert!(shown().await.is_empty());
        advance(Duration::from_millis(60)).await;
        embedded.records.transact(vec![put(at(2))]).await.unwrap();
        assert!(shown().await.is_empty());
        advance(Duration::from_millis(60)).await;
        assert_eq!(shown().await, [1]);
        embedded.records.transact(vec![put(None)]).await.unwrap();
        advance(Duration::from_millis(60)).await;
        assert_eq!(shown().await, [2]);
        advance(Duration::from_millis(60)).await;
        assert!(shown().await.is_empty());
    });
}

#[test]
fn the_same_seed_gives_the_same_weather() {
    let deliver = |seed| {
        let dir = tempfile::tempdir().unwrap();
        let (clock, advance) = still_clock();
        let embedded = Embedded::open_under(dir.path(), Weather { seed, ..ROUGH }, clock).unwrap();
        run(async {
            let bodies = (0..20).map(|n| format!("{n}")).collect();
            embedded
                .queue
                .send(&QueueName::Validate, bodies, Duration::ZERO)
                .await
                .unwrap();
            let mut seen = Vec::new();
            for _ in 0..40 {
                let some = embedded.queue.receive(
                    &QueueName::Validate,
                    10,
                    Duration::from_secs(60),
                    Duration::ZERO,
                );
                seen.extend(some.await.unwrap().into_iter().map(|message| message.body));
                advance(Duration::from_millis(10)).await;
            }
            seen
        })
    };
    let first = deliver(5);
    assert!(first.len() > 20, "some messages come twice");
    assert_eq!(first, deliver(5));
    assert_ne!(first, deliver(6));
}

#[test]
fn a_blob_that_lost_bytes_is_corrupt() {
    let dir = tempfile::tempdir().unwrap();
    let embedded = Embedded::open(dir.path()).unwrap();
    run(async {
        embedded
            .blobs
            .put(&blob(1), Bytes::from(vec![1; 600_000]))
            .await
            .unwrap();
        let mut read = embedded.blobs.get(&blob(1), 0, None).await.unwrap().body;
        read.try_next().await.unwrap();
        let path = dir.path().join("blobs").join(blob(1).path());
        std::fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(300_000)
            .unwrap();
        let error = loop {
            match read.try_next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the blob is cut"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind, crate::IoKind::Corrupt);
    });
}
