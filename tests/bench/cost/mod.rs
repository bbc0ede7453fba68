//! Simulates a batch of 1,000,000 lines in 2,000 shards on AWS, and counts what its control plane calls.
//!
//! The functions and the workers are the real ones, over counted ports in memory, with the times of AWS. Only
//! the engine and the clock are made up. Fewer lines a shard are run than billed: calls go by shards and time,
//! and the few that go by lines or bytes are added.

mod bill;
mod engine;
mod world;

use std::sync::Arc;
use std::time::Duration;

use batch_core::message::{DispatchJob, QueueName, SCHEMA, StageJob};
use batch_io::Platform;
use batch_io::counting::{Counts, Operation};
use batch_io::port::Message;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

pub(crate) use bill::Bill;
use world::World;

/// Shards of the batch.
const SHARDS: u64 = 2_000;

/// Lines that are billed, and bytes of each, in and out.
const LINES: u64 = 1_000_000;
const LINE_BYTES: u64 = 2_000;

/// Workers, each with two shards: a shard takes 50 s of its worker and is held for 100 s.
const WORKERS: u32 = 16;
const SHARD_WORK_S: f64 = 50.0;

/// Seconds between beats of the engines.
const BEAT_S: u64 = 2;

/// The client asks every 10 s for 6 hours.
const POLL: Duration = Duration::from_secs(10);
const POLLS: u64 = 6 * 360;

/// Event source mappings of Lambda look at a queue with five long polls of 20 s.
const MAPPING_POLLS: u64 = 5;
const MAPPING_WAIT: Duration = Duration::from_secs(20);

/// Queues that functions are mapped to: validate, finalize, dispatch, assemble.
const MAPPED_QUEUES: u64 = 4;

/// Minutes of a month of 30 days.
const MONTH_MINUTES: u64 = 43_200;

/// Runs a batch whose shards have so many lines, and returns what it cost.
///
/// # Panics
///
/// If the batch does not complete, or its shards are not held for 100 s.
pub(crate) fn simulate(lines_per_shard: u64) -> Bill {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(run(lines_per_shard))
}

async fn run(lines_per_shard: u64) -> Bill {
    let world = Arc::new(World::new(lines_per_shard));
    world.store_input(SHARDS * lines_per_shard).await;
    let batch = world.create_batch().await;
    let job: StageJob = world.take(&QueueName::Validate, "validate").await;
    let context = world.validate();
    let validated = validate::handle(&context, job, world.now()).await;
    validated.expect("validate");
    world.assert_published(batch, SHARDS).await;

    let begun = Instant::now();
    tokio::time::pause();
    let (sealed, held_s) = run_shards(&world, batch).await;
    let seconds = begun.elapsed().as_secs_f64();
    tokio::time::resume();

    let context = world.finalize();
    let finalized = finalize::handle(&context, sealed, world.now(), None).await;
    finalized.expect("finalize");
    world
        .assert_completed(batch, SHARDS * lines_per_shard)
        .await;
    poll_on(&world, batch).await;
    world.clear().await;
    let windows = world.windows(batch).await;
    add_what_goes_by_lines(&world.counts, windows);
    add_what_runs_anyway(&world.counts, seconds);
    add_run_times(&world.counts, (LINES * LINE_BYTES) as f64 / 75e6);
    let held_s = held_s / SHARDS as f64;
    assert!(
        (98.0..110.0).contains(&held_s),
        "shards are held for {held_s} s, not 100"
    );
    Bill {
        title: format!(
            "A batch of 1,000,000 lines in {SHARDS} shards, each held for {held_s:.0} s by one of {WORKERS} workers, in {:.2} hours",
            seconds / 3_600.0
        ),
        entries: world.counts.read(),
    }
}

/// Returns what a month costs in which nothing waits: dispatch and reconcile look each minute, and Lambda looks
/// at the queues.
pub(crate) fn idle_month() -> Bill {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let world = World::new(1);
    runtime.block_on(async {
        world
            .dispatch(DispatchJob {
                schema: SCHEMA,
                model: None,
            })
            .await;
        world.reconcile().await;
    });
    add_run_times(&world.counts, 0.0);
    let mut entries = world.counts.read();
    for tally in entries.values_mut() {
        tally.calls *= MONTH_MINUTES;
        tally.units *= MONTH_MINUTES as f64;
    }
    let counts = Counts::default();
    add_what_runs_anyway(&counts, (MONTH_MINUTES * 60) as f64);
    entries.extend(counts.read());
    Bill {
        title: "A month in which nothing waits".to_owned(),
        entries,
    }
}

/// Runs the fleet and the functions until the batch is sealed. Returns its job and the seconds for which
/// shards were held, all together.
async fn run_shards(world: &Arc<World>, batch: batch_core::id::BatchId) -> (StageJob, f64) {
    let (stop, stopped) = watch::channel(false);
    let mut fleet = tokio::task::JoinSet::new();
    for number in 0..WORKERS {
        let context = world.worker();
        let stopped = stopped.clone();
        fleet.spawn(async move {
            // Machines do not start in step.
            tokio::time::sleep(Duration::from_millis(u64::from(number) * 3_100)).await;
            worker::service::run(context, stopped).await
        });
    }
    let mut tasks = tokio::task::JoinSet::new();
    let metronome = Arc::clone(&world.metronome);
    tasks.spawn(every(Duration::from_secs(BEAT_S), move || {
        metronome.beat();
        std::future::ready(())
    }));
    spawn_functions(&mut tasks, world);
    let polling = Arc::clone(world);
    tasks.spawn(every(POLL, move || {
        let world = Arc::clone(&polling);
        async move { world.poll(batch).await }
    }));
    let looking = Arc::clone(world);
    tasks.spawn(every(world::LOOK, move || {
        let world = Arc::clone(&looking);
        async move { world.count_held().await }
    }));
    let sealed = world.take(&QueueName::Finalize, "finalize").await;
    let _ = stop.send(true);
    while let Some(ended) = fleet.join_next().await {
        ended.expect("no panic").expect("the worker drains");
    }
    world.metronome.end();
    tasks.shutdown().await;
    (sealed, world.held_s())
}

/// Calls dispatch and reconcile as AWS would: each minute, and dispatch by its messages, too.
fn spawn_functions(tasks: &mut tokio::task::JoinSet<()>, world: &Arc<World>) {
    let minute = Duration::from_secs(60);
    let by_clock = Arc::clone(world);
    tasks.spawn(every(minute, move || {
        let world = Arc::clone(&by_clock);
        async move {
            world
                .dispatch(DispatchJob {
                    schema: SCHEMA,
                    model: None,
                })
                .await
        }
    }));
    let by_clock = Arc::clone(world);
    tasks.spawn(every(minute, move || {
        let world = Arc::clone(&by_clock);
        async move { world.reconcile().await }
    }));
    let by_message = Arc::clone(world);
    tasks.spawn(async move {
        loop {
            let job = by_message.take(&QueueName::Dispatch, "dispatch").await;
            by_message.dispatch(job).await;
        }
    });
}

async fn every<F: Future<Output = ()>>(period: Duration, act: impl Fn() -> F) {
    let mut turn = interval(period);
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turn.tick().await;
        act().await;
    }
}

/// The client goes on asking: it was told to ask for six hours.
async fn poll_on(world: &World, batch: batch_core::id::BatchId) {
    while world.polls() < POLLS {
        world.poll(batch).await;
    }
}

/// Adds the calls that grow with lines and bytes, and not with shards: 2 GB come in by an upload of parts, are
/// read in windows, and go out in parts.
fn add_what_goes_by_lines(counts: &Counts, windows: u64) {
    let bytes = LINES * LINE_BYTES;
    let parts = bytes.div_ceil(8 * 1024 * 1024);
    let full_windows = (LINES / 20_000).max(bytes.div_ceil(64 * 1024 * 1024));
    let more = full_windows - windows;
    counts.add("validate", Operation::PutObject, more, more as f64);
    counts.add("finalize", Operation::GetObject, more, more as f64);
    let tally = |actor, operation| {
        let read = counts.read();
        read.get(&(actor, operation)).map_or(0, |tally| tally.calls)
    };
    let run = tally("finalize", Operation::UploadPart) + tally("finalize", Operation::PutObject);
    let more = (parts + 2).saturating_sub(run);
    counts.add("finalize", Operation::UploadPart, more, more as f64);
    // Each part: a call, an authorizer that reads the key and the upload, a PUT; then two reads of its edges
    // and a copy, and a beginning and an end.
    counts.add("upload", Operation::CallApi, parts + 2, (parts + 2) as f64);
    counts.add("upload", Operation::Invoke, parts + 2, (parts + 2) as f64);
    counts.add("upload", Operation::GetItem, 2 * parts, (2 * parts) as f64);
    counts.add("upload", Operation::PutObject, parts, parts as f64);
    counts.add(
        "upload",
        Operation::GetObject,
        2 * parts,
        (2 * parts) as f64,
    );
    counts.add(
        "upload",
        Operation::UploadPart,
        parts + 2,
        (parts + 2) as f64,
    );
}

/// Adds the long polls of Lambda's event source mappings while the batch runs: they never end.
fn add_what_runs_anyway(counts: &Counts, seconds: f64) {
    let rounds = (seconds / MAPPING_WAIT.as_secs_f64()).ceil() as u64;
    let polls = rounds * MAPPING_POLLS * MAPPED_QUEUES;
    counts.add("mappings", Operation::ReceiveNothing, polls, polls as f64);
}

/// Adds the functions' time: what they wait for, and in validate and finalize the seconds for all bytes.
fn add_run_times(counts: &Counts, bytes_s: f64) {
    for (actor, own_s, gigabytes) in [
        ("api", 0.0, 0.5),
        ("poll", 0.0, 0.5),
        ("upload", 0.0, 0.5),
        ("validate", bytes_s, 1.769),
        ("dispatch", 0.0, 0.5),
        ("reconcile", 0.0, 0.5),
        ("finalize", bytes_s, 1.769),
    ] {
        bill::add_run_time(counts, actor, own_s, gigabytes);
    }
}

/// Reads the job of a message.
fn job_of<J: DeserializeOwned>(message: &Message) -> J {
    serde_json::from_str(&message.body).expect("a job of ours")
}

/// Waits for a message of a queue, as an event source mapping does, and drops it.
async fn take_message(platform: &Platform, queue: &QueueName) -> Message {
    loop {
        let hidden = Duration::from_secs(900);
        let received = platform.queue.receive(queue, 1, hidden, MAPPING_WAIT).await;
        if let Some(message) = received.expect("receive").pop() {
            let deleted = platform.queue.delete(queue, &message.receipt).await;
            deleted.expect("delete");
            return message;
        }
    }
}
