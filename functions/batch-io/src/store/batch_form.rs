//! A batch's records as items. `run` is one attribute a field, so that a status change and a commit never
//! touch the same one; what never changes is JSON in one attribute.

use batch_core::batch::{BatchParams, BatchRun, LineCounts, Moments, StageLease, TokenCounts};
use batch_core::id::FileId;
use batch_core::lifecycle::{SealedAs, State, Stop, Terminal, next_look};
use batch_core::settings::Timing;

use super::fields::{Attrs, Fields};
use crate::IoError;
use crate::port::{Attr, Condition, Due, Item, RecordKey, WorkKind};

pub(super) const PARAMS: &str = "params";
pub(super) const ERRORS: &str = "errors";
pub(super) const STATE: &str = "state";
pub(super) const SEAL_AT: &str = "seal_at";
pub(super) const STAGE_EPOCH: &str = "stage_epoch";
pub(super) const STAGE_UNTIL: &str = "stage_until";
pub(super) const MODELS: &str = "models";
pub(super) const TOTAL: &str = "total";
pub(super) const COMPLETED: &str = "completed";
pub(super) const FAILED: &str = "failed";
pub(super) const SHARDS_TOTAL: &str = "shards_total";
pub(super) const SHARDS_DONE: &str = "shards_done";
pub(super) const WINDOWS: &str = "windows";
pub(super) const TOKENS_INPUT: &str = "tokens_input";
pub(super) const TOKENS_CACHED: &str = "tokens_cached";
pub(super) const TOKENS_OUTPUT: &str = "tokens_output";
pub(super) const COST: &str = "cost_picodollars";
pub(super) const ESTIMATED_TOKENS: &str = "estimated_tokens";
pub(super) const IN_PROGRESS_AT: &str = "in_progress_at";
pub(super) const FINALIZING_AT: &str = "finalizing_at";
pub(super) const CANCELLING_AT: &str = "cancelling_at";
pub(super) const ENDED_AT: &str = "ended_at";
pub(super) const OUTPUT_FILE: &str = "output_file_id";
pub(super) const ERROR_FILE: &str = "error_file_id";
pub(super) const MANIFEST: &str = "manifest";
pub(super) const SAVED_PLACE: &str = "saved_place";
pub(super) const PIN: &str = "pin";

/// Every state, with the word that its record has.
const STATES: [(State, &str); 11] = [
    (State::Validating, "validating"),
    (State::InProgress, "in_progress"),
    (State::Draining(Stop::Cancelled), "draining_cancelled"),
    (State::Draining(Stop::Expired), "draining_expired"),
    (State::Sealed(SealedAs::Completed), "sealed_completed"),
    (State::Sealed(SealedAs::Cancelled), "sealed_cancelled"),
    (State::Sealed(SealedAs::Expired), "sealed_expired"),
    (State::Ended(Terminal::Completed), "ended_completed"),
    (State::Ended(Terminal::Failed), "ended_failed"),
    (State::Ended(Terminal::Expired), "ended_expired"),
    (State::Ended(Terminal::Cancelled), "ended_cancelled"),
];

/// How a batch goes, and the input file that it pins while it is validating.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RunRecord {
    pub(super) run: BatchRun,
    pub(super) pin: Option<FileId>,
}

pub(super) fn state_word(state: State) -> &'static str {
    STATES
        .iter()
        .find(|(known, _)| *known == state)
        .map(|(_, word)| *word)
        .expect("every state is in the table")
}

/// The state is one of those that `pick` picks.
pub(super) fn state_is(pick: impl Fn(State) -> bool) -> Condition {
    let words = STATES
        .iter()
        .filter(|(state, _)| pick(*state))
        .map(|(_, word)| Attr::Text((*word).to_owned()))
        .collect();
    Condition::OneOf(STATE.to_owned(), words)
}

/// The phase is open: workers may commit.
pub(super) fn is_open() -> Condition {
    state_is(State::is_open)
}

pub(super) fn params_item(params: &BatchParams) -> Item {
    Attrs::of_record().json(PARAMS, params).into_item()
}

pub(super) fn read_params(key: &RecordKey, item: &Item) -> Result<BatchParams, IoError> {
    Fields::of(key, item)?.json(PARAMS)
}

/// The entry of a batch in the work index.
pub(super) fn batch_due(run: &BatchRun, params: &BatchParams, timing: &Timing) -> Option<Due> {
    next_look(run, params, timing).map(|at| Due {
        kind: WorkKind::Batch,
        at,
    })
}

/// A batch that was just created.
pub(super) fn new_run() -> BatchRun {
    BatchRun {
        state: State::Validating,
        seal_at: None,
        stage: StageLease::default(),
        models: Vec::new(),
        counts: LineCounts::default(),
        shards_total: 0,
        shards_done: 0,
        windows: 0,
        tokens: TokenCounts::default(),
        cost_picodollars: 0,
        estimated_tokens: 0,
        moments: Moments::default(),
        output_file_id: None,
        error_file_id: None,
        manifest: None,
        saved_place: None,
    }
}

pub(super) fn run_item(record: &RunRecord, due: Option<Due>) -> Item {
    let RunRecord { run, pin } = record;
    let attrs = Attrs::of_record()
        .text(STATE, state_word(run.state))
        .opt_moment(SEAL_AT, run.seal_at)
        .count(STAGE_EPOCH, run.stage.epoch)
        .int(STAGE_UNTIL, run.stage.until.0)
        .json(MODELS, &run.models)
        .count(TOTAL, run.counts.total)
        .count(COMPLETED, run.counts.completed)
        .count(FAILED, run.counts.failed)
        .count(SHARDS_TOTAL, run.shards_total)
        .count(SHARDS_DONE, run.shards_done)
        .count(WINDOWS, u64::from(run.windows))
        .count(TOKENS_INPUT, run.tokens.input)
        .count(TOKENS_CACHED, run.tokens.cached)
        .count(TOKENS_OUTPUT, run.tokens.output)
        .count(COST, run.cost_picodollars)
        .count(ESTIMATED_TOKENS, run.estimated_tokens)
        .opt_moment(IN_PROGRESS_AT, run.moments.in_progress_at)
        .opt_moment(FINALIZING_AT, run.moments.finalizing_at)
        .opt_moment(CANCELLING_AT, run.moments.cancelling_at)
        .opt_moment(ENDED_AT, run.moments.ended_at)
        .opt_text(OUTPUT_FILE, run.output_file_id.map(|file| file.to_string()))
        .opt_text(ERROR_FILE, run.error_file_id.map(|file| file.to_string()))
        .opt_text(MANIFEST, run.manifest.as_ref().map(super::fields::to_json))
        .opt_text(PIN, pin.map(|file| file.to_string()))
        .opt_text(SAVED_PLACE, run.saved_place.map(|epoch| epoch.to_string()));
    Item {
        due,
        ..attrs.into_item()
    }
}

pub(super) fn read_run(key: &RecordKey, item: &Item) -> Result<RunRecord, IoError> {
    let fields = Fields::of(key, item)?;
    let word = fields.text(STATE)?;
    let state = STATES
        .iter()
        .find(|(_, known)| *known == word)
        .map(|(state, _)| *state);
    let run = BatchRun {
        state: state.ok_or_else(|| fields.corrupt(STATE))?,
        seal_at: fields.opt_moment(SEAL_AT)?,
        stage: StageLease {
            epoch: fields.count(STAGE_EPOCH)?,
            until: fields.moment(STAGE_UNTIL)?,
        },
        models: fields.json(MODELS)?,
        counts: LineCounts {
            total: fields.count(TOTAL)?,
            completed: fields.count(COMPLETED)?,
            failed: fields.count(FAILED)?,
        },
        shards_total: fields.count(SHARDS_TOTAL)?,
        shards_done: fields.count(SHARDS_DONE)?,
        windows: fields.count(WINDOWS)?,
        tokens: TokenCounts {
            input: fields.count(TOKENS_INPUT)?,
            cached: fields.count(TOKENS_CACHED)?,
            output: fields.count(TOKENS_OUTPUT)?,
        },
        cost_picodollars: fields.count(COST)?,
        estimated_tokens: fields.count(ESTIMATED_TOKENS)?,
        moments: Moments {
            in_progress_at: fields.opt_moment(IN_PROGRESS_AT)?,
            finalizing_at: fields.opt_moment(FINALIZING_AT)?,
            cancelling_at: fields.opt_moment(CANCELLING_AT)?,
            ended_at: fields.opt_moment(ENDED_AT)?,
        },
        output_file_id: fields.opt_parsed(OUTPUT_FILE)?,
        error_file_id: fields.opt_parsed(ERROR_FILE)?,
        manifest: fields.opt_json(MANIFEST)?,
        saved_place: fields.opt_parsed(SAVED_PLACE)?,
    };
    Ok(RunRecord {
        run,
        pin: fields.opt_parsed(PIN)?,
    })
}
