//! Processes die by SIGKILL at random moments, and the batch ends as if nothing had happened.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use system_tests::catalog::{self, DEFAULT_MODEL};
use system_tests::client::Client;
use system_tests::environment;
use system_tests::inside::{self, Committed};
use system_tests::proof::{self, Counts};
use system_tests::random::Chances;
use system_tests::service::{Options, Service};

const LINES: u64 = 300;

const KILLS: usize = 10;

/// Long enough for a few commits (one every 2 s), short enough that ten of these do not see the batch end.
const LONGEST_LIFE_MS: u64 = 3_500;

/// For one restart of a worker: its longest backoff is 10 s.
const RESTART: Duration = Duration::from_secs(60);

/// For what is left after the last kill.
const REST: Duration = Duration::from_secs(240);

/// What was committed at the moment of a kill.
struct Snapshot {
    committed: Committed,
    /// Where the log was when this was read.
    log_bytes: usize,
}

struct Chaos {
    service: Service,
    client: Client,
    batch: String,
    lines: u64,
    counts: Counts,
    snapshots: Vec<Snapshot>,
}

impl Chaos {
    /// Starts a batch that is cut into shards of 32 lines: the catalog calls the model slow.
    async fn start(workers: u16, lines: u64) -> Option<Self> {
        let model = environment::model()?;
        let entry = catalog::entry_with(DEFAULT_MODEL, &model, "tokens_per_s = 4");
        // One thread, few sequences, and steps that wait for all weights in f32: a fast machine must not end the
        // batch before the tenth kill.
        let config = format!("{entry}[engine]\nthreads = 1\nsequences = 4\nprecision = \"f32\"\n");
        let service = Service::start(Options {
            workers,
            config: Some(config),
            ..Options::default()
        });
        let client = service.client();
        let requests: Vec<String> = (1..=lines)
            .map(|n| catalog::line(&format!("line-{n}"), DEFAULT_MODEL, 5))
            .collect();
        let batch = client
            .submit(catalog::file(&requests))
            .await
            .expect("submit the batch");
        Some(Self {
            service,
            client,
            batch,
            lines,
            counts: Counts::default(),
            snapshots: Vec::new(),
        })
    }

    async fn look(&mut self) -> Value {
        let batch = self
            .client
            .batch(&self.batch)
            .await
            .expect("read the batch");
        self.counts.follow(&batch);
        batch
    }

    /// Polls for a while.
    async fn look_on(&mut self, span: Duration) {
        let until = tokio::time::Instant::now() + span;
        while tokio::time::Instant::now() < until {
            self.look().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Lets workers live for a random while: from their claim of a shard, or (one time in four) from their start,
    /// when they may still be loading the model.
    async fn live(&mut self, claims_before: usize, chances: &mut Chances) {
        if chances.below(4) > 0 {
            let claimed = self
                .service
                .has_logged("shard claimed", claims_before + 1, RESTART)
                .await;
            assert!(claimed, "no shard was claimed: {}", self.service.log_text());
        }
        self.look_on(chances.span_ms(LONGEST_LIFE_MS)).await;
        let batch = self.look().await;
        let kills = self.snapshots.len();
        assert_eq!(
            batch["status"], "in_progress",
            "it should outlive {KILLS} kills, not only {kills}: {batch}"
        );
    }

    fn claims(&self) -> usize {
        self.service.log_text().matches("shard claimed").count()
    }

    /// Notes what is committed. What is committed now must never be given to an engine again.
    async fn snapshot(&mut self) {
        let committed = inside::committed(&self.service.data(), &self.batch)
            .await
            .expect("read the commits");
        if let Some(before) = self.snapshots.last() {
            for (line, record) in &before.committed {
                assert_eq!(
                    committed.get(line),
                    Some(record),
                    "line {line} was committed before, and differently"
                );
            }
        }
        let log_bytes = self.service.log_text().len();
        self.snapshots.push(Snapshot {
            committed,
            log_bytes,
        });
    }

    /// Waits for the end and checks it.
    async fn check_end(mut self) {
        let until = tokio::time::Instant::now() + REST;
        let batch = loop {
            let batch = self.look().await;
            if batch["status"] != "in_progress" && batch["status"] != "finalizing" {
                break batch;
            }
            assert!(
                tokio::time::Instant::now() < until,
                "it does not end: {batch}\n{}",
                self.service.log_text()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        assert_eq!(batch["status"], "completed", "{batch}");
        let input: Vec<String> = (1..=self.lines).map(|n| format!("line-{n}")).collect();
        let results = proof::complete(&self.client, &batch, &input).await;
        assert_eq!(results.errors.len(), 0, "{:?}", results.errors);
        let billed = batch["usage"]["output_tokens"]
            .as_u64()
            .expect("an ended batch has its usage");
        let used = results
            .output
            .iter()
            .map(|record| record["response"]["body"]["usage"]["completion_tokens"].as_u64());
        assert_eq!(
            used.sum::<Option<u64>>(),
            Some(billed),
            "no token is billed twice"
        );
        self.check_committed_records(&batch).await;
        self.check_engine_calls();
    }

    /// What was committed at a kill is in the output, byte for byte.
    async fn check_committed_records(&self, batch: &Value) {
        let file = batch["output_file_id"]
            .as_str()
            .expect("it has an output file");
        let output = self
            .client
            .content(file)
            .await
            .expect("download the output file");
        let records: Vec<&[u8]> = output.split(|byte| *byte == b'\n').collect();
        for Snapshot { committed, .. } in &self.snapshots {
            for (line, record) in committed {
                let place = usize::try_from(line - 1).expect("line numbers are small");
                assert_eq!(
                    records[place], record,
                    "line {line} was computed again after its commit"
                );
            }
        }
    }

    /// Bounds the engine's work. Let a line be in flight at a kill if a worker had given it to its engine and no
    /// commit holds it: it runs, it waits for a place in a step, or it finished less than a commit interval ago.
    /// Then no committed line is given to an engine again, and engine calls are at most
    /// lines + sum over kills of the lines in flight at the kill.
    fn check_engine_calls(&self) {
        let log = self.service.log_text();
        let mut allowed = self.lines as usize;
        for (
            kill,
            Snapshot {
                committed,
                log_bytes,
            },
        ) in self.snapshots.iter().enumerate()
        {
            let (before, after) = log.split_at(*log_bytes);
            for line in inside::submissions(after, &self.batch) {
                assert!(
                    !committed.contains_key(&line),
                    "line {line} ran again after kill {kill}, though committed"
                );
            }
            let mut in_flight = inside::submissions(before, &self.batch);
            in_flight.sort_unstable();
            in_flight.dedup();
            in_flight.retain(|line| !committed.contains_key(line));
            allowed += in_flight.len();
        }
        let mut calls: BTreeMap<u64, usize> = BTreeMap::new();
        for line in inside::submissions(&log, &self.batch) {
            *calls.entry(line).or_default() += 1;
        }
        assert_eq!(calls.len() as u64, self.lines, "every line ran");
        let made: usize = calls.values().sum();
        assert!(
            made <= allowed,
            "{made} engine calls for {} lines, with {allowed} allowed",
            self.lines
        );
    }
}

/// Reports 65, 67, 107, 109.
#[tokio::test(flavor = "multi_thread")]
async fn batch_completes_when_workers_are_killed_at_ten_random_moments() {
    let mut chances = Chances::from_environment();
    let Some(mut chaos) = Chaos::start(2, LINES).await else {
        return;
    };
    let mut claims = 0;
    let mut killed = 0;
    for _ in 0..KILLS {
        chaos.live(claims, &mut chances).await;
        claims = chaos.claims();
        killed += chaos.service.kill_workers();
        chaos.snapshot().await;
    }
    assert!(
        killed >= KILLS,
        "{killed} workers were killed in {KILLS} rounds"
    );
    chaos.check_end().await;
}

/// Reports 65, 67, 107, 109.
#[tokio::test(flavor = "multi_thread")]
async fn batch_completes_when_everything_is_killed_at_ten_random_moments() {
    let mut chances = Chances::from_environment();
    let Some(mut chaos) = Chaos::start(1, LINES).await else {
        return;
    };
    let mut claims = 0;
    for _ in 0..KILLS {
        chaos.live(claims, &mut chances).await;
        claims = chaos.claims();
        chaos.service.kill_all();
        chaos.snapshot().await;
        chaos.service.restart();
        chaos.client = chaos.service.client();
    }
    chaos.check_end().await;
}

/// Reports 67, 109: a model that answers at once puts most kills into validation, dispatch and finalization.
#[tokio::test(flavor = "multi_thread")]
async fn batches_complete_when_everything_is_killed_in_every_stage() {
    const BATCH_LINES: usize = 4_000;
    let mut chances = Chances::from_environment();
    let config = catalog::entry("tiny", &catalog::tiny_model());
    let mut service = Service::start(Options {
        config: Some(config),
        ..Options::default()
    });
    let ids: Vec<String> = (0..BATCH_LINES).map(|n| format!("line-{n}")).collect();
    let lines: Vec<String> = ids.iter().map(|id| catalog::line(id, "tiny", 2)).collect();
    let file = service
        .client()
        .upload(catalog::file(&lines))
        .await
        .expect("upload");
    let mut batches: BTreeMap<String, Counts> = BTreeMap::new();
    for kill in 0..KILLS {
        if kill % 3 == 0 {
            batches.insert(
                service.client().create(&file).await.expect("create"),
                Counts::default(),
            );
        }
        let until = tokio::time::Instant::now() + chances.span_ms(1_500);
        while tokio::time::Instant::now() < until {
            follow(&service.client(), &mut batches).await;
        }
        service.kill_all();
        service.restart();
    }
    for (batch, mut counts) in batches {
        let client = service.client();
        let ended = client
            .wait(&batch, REST)
            .await
            .unwrap_or_else(|error| panic!("{error}\n{}", service.log_text()));
        counts.follow(&ended);
        assert_eq!(ended["status"], "completed", "{ended}");
        let results = proof::complete(&client, &ended, &ids).await;
        assert_eq!(results.errors.len(), 0, "{:?}", results.errors);
    }
}

async fn follow(client: &Client, batches: &mut BTreeMap<String, Counts>) {
    for (batch, counts) in batches {
        counts.follow(&client.batch(batch).await.expect("read the batch"));
    }
}

/// Reports 43, 111: a worker that hangs is found by its silence, and its lines run elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn batch_completes_when_its_only_worker_hangs() {
    let Some(mut chaos) = Chaos::start(1, 96).await else {
        return;
    };
    assert!(
        chaos.service.has_logged("shard claimed", 1, RESTART).await,
        "{}",
        chaos.service.log_text()
    );
    chaos.look_on(Duration::from_secs(3)).await;
    chaos.service.signal_workers(Signal::STOP);
    chaos.snapshot().await;
    let noticed = chaos
        .service
        .has_logged("a worker hangs", 1, Duration::from_secs(90))
        .await;
    assert!(noticed, "nobody notices: {}", chaos.service.log_text());
    chaos.check_end().await;
}

/// Report 63: a worker that was away comes back with results of lines that others have done by then.
#[tokio::test(flavor = "multi_thread")]
async fn late_results_are_dropped_when_a_worker_comes_back_after_its_leases_ended() {
    let Some(mut chaos) = Chaos::start(2, 160).await else {
        return;
    };
    assert!(
        chaos.service.has_logged("shard claimed", 2, RESTART).await,
        "{}",
        chaos.service.log_text()
    );
    chaos.look_on(Duration::from_secs(3)).await;
    let away = chaos.service.workers()[0];
    // It may have ended by itself.
    let _ = kill_process(away, Signal::STOP);
    chaos.snapshot().await;
    // Longer than a lease, and shorter than what makes the supervisor kill it.
    chaos.look_on(Duration::from_secs(22)).await;
    let _ = kill_process(away, Signal::CONT);
    chaos.check_end().await;
}

/// Report 43: three losses together, three alone, and the line is given up; the others do not suffer for it.
#[tokio::test(flavor = "multi_thread")]
async fn line_that_kills_its_worker_again_and_again_becomes_an_error_line_alone() {
    const DEADLY: u64 = 2;
    const DEATHS_MAX: usize = 12;
    let Some(model) = environment::model() else {
        return;
    };
    let config = catalog::entry(DEFAULT_MODEL, &model);
    let service = Service::start(Options {
        config: Some(config),
        ..Options::default()
    });
    let client = service.client();
    let mut lines: Vec<String> = (1..=3)
        .map(|n| catalog::line(&format!("line-{n}"), DEFAULT_MODEL, 4))
        .collect();
    // Long enough that the worker is still at it when it is killed.
    lines[1] = catalog::line("line-2", DEFAULT_MODEL, 2_000)
        .replace("\"temperature\"", "\"ignore_eos\":true,\"temperature\"");
    let batch = client.submit(catalog::file(&lines)).await.expect("submit");
    let mut counts = Counts::default();
    let mut deaths = 0;
    let ended = loop {
        let seen = client.batch(&batch).await.expect("read the batch");
        counts.follow(&seen);
        if seen["status"] == "completed" {
            break seen;
        }
        let tries = inside::submissions(&service.log_text(), &batch)
            .iter()
            .filter(|line| **line == DEADLY)
            .count();
        if tries > deaths {
            assert!(deaths < DEATHS_MAX, "it is tried for ever: {seen}");
            service.kill_workers();
            deaths = tries;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(
        deaths >= 6,
        "given up after {deaths} deaths: the line was not even alone yet"
    );
    let input: Vec<String> = (1..=3).map(|n| format!("line-{n}")).collect();
    let results = proof::complete(&client, &ended, &input).await;
    assert_eq!(results.output_ids(), ["line-1", "line-3"]);
    assert_eq!(
        results.errors[0]["response"]["status_code"], 500,
        "{}",
        results.errors[0]
    );
    assert_eq!(
        results.errors[0]["response"]["body"]["error"]["code"], "worker_crash",
        "{}",
        results.errors[0]
    );
}
