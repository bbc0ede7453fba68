//! `nightshift run`: one batch file through the engine, without the service.
//!
//! Finished lines go to a journal beside the output at once; a second start with the same input goes on from
//! it. The output files appear only when they are complete, in input order.

mod input;
mod journal;
mod models;
mod progress;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use batch_core::batch::TokenCounts;
use batch_core::id::{BatchId, RequestId, batch_request_id};
use batch_core::time::UnixMs;
use batch_io::platform::{system_clock, system_randomness};
use batch_io::{Clock, Randomness};
use serde_json::json;
use worker::model::EngineOptions;
use worker::pipeline::{LineAnswer, LineJob, LineKey, Pipeline, answer_record};
use worker::service::Place;

use crate::cli::RunArgs;
use crate::config::Config;
use crate::failure::{Interrupted, usage};
use crate::models::Shelf;
use crate::say::answer;
use crate::work::{engine_options, precision};
use input::{Input, OpenLine};
use journal::Journal;
use progress::Progress;

/// Runs the file, and returns when both output files are written.
pub(crate) fn run(args: RunArgs) -> anyhow::Result<()> {
    crate::logging::start("warn", args.json)?;
    let started = Instant::now();
    let config = Config::load(args.config.as_deref())?;
    let errors = args
        .errors
        .clone()
        .unwrap_or_else(|| beside(&args.output, "errors"));
    check_outputs(&args.input, &args.output, &errors)?;
    let shelf = Shelf::open()?;
    let of_config = engine_options(&config.engine, &shelf);
    let choice = models::Choice::new(&config, shelf, args.model.as_deref())?;
    let input = Input::read(&args.input, &choice, config.settings.lines_max)?;
    let options = EngineOptions {
        precision: precision(args.precision.or(config.engine.precision)),
        ..of_config
    };
    let (clock, random) = (system_clock(), system_randomness());
    let journal_path = beside(&args.output, "resume");
    let fingerprint = format!("{} {:?} {:?}", input.sha256, options.precision, args.model);
    let journal = Journal::open(&journal_path, &fingerprint, BatchId::new(clock(), random()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    let mut runner = FileRun {
        input: &input,
        journal,
        clock,
        random,
        options,
        computed_tokens: 0,
        loading: Duration::ZERO,
    };
    let ran = runtime.block_on(async {
        // From the first poll on, the signal no longer ends the process: every wait must heed it.
        tokio::select! {
            ran = runner.all_models(&choice) => ran,
            _ = tokio::signal::ctrl_c() => Err(interrupted()),
        }
    });
    let spent = Spent {
        tokens: runner.computed_tokens,
        loading: runner.loading,
        started,
    };
    let journal = runner.journal;
    if let Err(error) = ran {
        runtime.shutdown_background();
        if let Err(unwritten) = journal.leave() {
            tracing::warn!(error = %unwritten, "keep the results so far");
        }
        return Err(error);
    }
    let written = runtime.block_on(async {
        let (output, errors) = (args.output.clone(), errors.clone());
        let writing =
            tokio::task::spawn_blocking(move || journal.write_outputs(&input, &output, &errors));
        tokio::select! {
            written = writing => written.context("write the output files")?,
            _ = tokio::signal::ctrl_c() => Err(interrupted()),
        }
    });
    runtime.shutdown_background();
    report(&args, &errors, &written?, &spent)
}

fn interrupted() -> anyhow::Error {
    Interrupted("interrupted; run the same command again to go on".to_owned()).into()
}

/// What a run took.
struct Spent {
    /// Tokens that this run computed.
    tokens: u64,
    /// Time until models could take lines.
    loading: Duration,
    started: Instant,
}

fn report(
    args: &RunArgs,
    errors: &Path,
    summary: &journal::Summary,
    spent: &Spent,
) -> anyhow::Result<()> {
    let wall_s = spent.started.elapsed().as_secs_f64();
    let TokenCounts { input, output, .. } = summary.tokens;
    // Lines of an earlier, interrupted run cost this one no time.
    let tokens_per_s = spent.tokens as f64 / wall_s.max(1e-9);
    if args.json {
        let line = json!({
            "lines": summary.lines,
            "failed": summary.failed,
            "prompt_tokens": input,
            "completion_tokens": output,
            "wall_s": wall_s,
            "load_s": spent.loading.as_secs_f64(),
            "tokens_per_s": tokens_per_s,
            "peak_rss_bytes": peak_rss_bytes(),
        });
        return answer(line);
    }
    answer(format_args!(
        "{} lines, {} failed; {input} prompt and {output} completion tokens in {wall_s:.1} s ({tokens_per_s:.0} tokens/s)\nanswers: {}",
        summary.lines,
        summary.failed,
        args.output.display()
    ))?;
    if summary.failed > 0 {
        answer(format_args!("errors:  {}", errors.display()))?;
    }
    Ok(())
}

/// `answers.jsonl` and `errors` give `answers.errors.jsonl`.
fn beside(output: &Path, word: &str) -> PathBuf {
    let stem = output.file_stem().unwrap_or_default().to_string_lossy();
    let end = output
        .extension()
        .map(|end| format!(".{}", end.to_string_lossy()))
        .unwrap_or_default();
    output.with_file_name(format!("{stem}.{word}{end}"))
}

fn check_outputs(input: &Path, output: &Path, errors: &Path) -> anyhow::Result<()> {
    if output == errors {
        return Err(usage(
            "the output and the error file are the same; name another with -e",
        ));
    }
    for path in [output, errors] {
        if path == input {
            return Err(usage(format!(
                "{} is the input; name another file",
                path.display()
            )));
        }
        // The finished file is renamed into place, which would replace a device or a pipe.
        if path.exists() && !path.is_file() {
            return Err(usage(format!(
                "{} is no plain file; name another",
                path.display()
            )));
        }
    }
    let folder = output
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(usage(format!(
            "the folder {} does not exist",
            folder.display()
        )));
    }
    Ok(())
}

struct FileRun<'a> {
    input: &'a Input,
    journal: Journal,
    clock: Clock,
    random: Randomness,
    options: EngineOptions,
    /// Prompt and output tokens of this run alone.
    computed_tokens: u64,
    /// Time until models could take lines.
    loading: Duration,
}

impl FileRun<'_> {
    async fn all_models(&mut self, choice: &models::Choice) -> anyhow::Result<()> {
        let done = self
            .input
            .lines
            .iter()
            .filter(|line| self.journal.has(**line))
            .count();
        let mut progress = Progress::new(self.input.lines.len(), done);
        for model in &self.input.models {
            if self
                .input
                .lines_of(model)
                .all(|line| self.journal.has(line))
            {
                continue;
            }
            let loading = Instant::now();
            progress.say(&format!("loading {model}"));
            let mut pipeline = match choice.place(model)? {
                Place::Files(path) => {
                    let context_tokens = choice.context_tokens(model);
                    self.load(model, path, context_tokens).await?
                }
                Place::Server(served) => {
                    let (clock, random) = (Arc::clone(&self.clock), Arc::clone(&self.random));
                    Pipeline::connect(model, &served, clock, random).await?
                }
            };
            self.loading += loading.elapsed();
            progress.begin();
            self.one_model(&mut pipeline, model, &mut progress).await?;
        }
        progress.finish();
        Ok(())
    }

    async fn load(
        &self,
        model: &str,
        path: PathBuf,
        context_tokens: Option<usize>,
    ) -> anyhow::Result<Pipeline> {
        let options = EngineOptions {
            context_tokens,
            ..self.options.clone()
        };
        let id = model.to_owned();
        let loaded = tokio::task::spawn_blocking(move || worker::model::load(&id, &path, &options))
            .await
            .context("load the model")?
            .with_context(|| {
                format!("load {model}; if its file is damaged, remove it and pull it again")
            })?;
        Ok(Pipeline::start(loaded))
    }

    async fn one_model(
        &mut self,
        pipeline: &mut Pipeline,
        model: &str,
        progress: &mut Progress,
    ) -> anyhow::Result<()> {
        let input = self.input;
        let mut waiting = input.requests(model).peekable();
        let mut open: HashMap<LineKey, OpenLine> = HashMap::new();
        let run: Arc<str> = self.journal.run().to_string().into();
        loop {
            while open.len() < pipeline.lines_ahead()
                && let Some(line) = waiting.next()
            {
                let line = line?;
                if !self.journal.has(line.line) {
                    let job = self.job(&line, &run);
                    open.insert(job.key, line);
                    pipeline.submit(job);
                }
            }
            if open.is_empty() {
                return Ok(());
            }
            let answer = pipeline.next(&*self.clock).await;
            let answer = answer.context(
                "run the lines; what is done is kept, and the same command goes on from there",
            )?;
            if let Some(line) = open.remove(&answer.key) {
                let answered = answer.result.as_ref();
                let tokens = answered.map_or(TokenCounts::default(), |answered| answered.tokens);
                self.computed_tokens += tokens.input + tokens.output;
                self.write(&line, &answer, tokens)?;
                progress.line(answer.result.is_ok(), tokens);
            }
        }
    }

    fn job(&self, line: &OpenLine, run: &Arc<str>) -> LineJob {
        LineJob {
            key: LineKey(line.line.0),
            endpoint: self.input.endpoint,
            run: Arc::clone(run),
            custom_id_json: line.custom_id_json.clone(),
            line: line.line,
            created_at: self.journal.run().created_at(),
            request_id: batch_request_id(self.journal.run(), line.line),
            body: line.body.clone(),
            salt: 0,
        }
    }

    fn write(
        &mut self,
        line: &OpenLine,
        answer: &LineAnswer,
        tokens: TokenCounts,
    ) -> anyhow::Result<()> {
        let now: UnixMs = (self.clock)();
        let request_id = RequestId::new(now, (self.random)()).to_string();
        let record = answer_record(
            self.journal.run(),
            line.line,
            &line.custom_id_json,
            &request_id,
            &answer.result,
        );
        self.journal
            .add(line.line, answer.result.is_ok(), tokens, &record)
    }
}

/// Returns the most memory that this process had, where the system tells.
fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace()
        .nth(1)?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}
