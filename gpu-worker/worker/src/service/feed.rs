//! Which shards fit, and which of their lines the engine gets next.

use batch_core::message::{Lane, QueueName};

use super::held::Held;
use super::{SLOTS, Service};
use crate::pipeline::Pipeline;

/// Lines that the engine is given, in multiples of the sequences it runs at once: enough that it never waits
/// for this worker, few enough that the fast lane does not wait long behind them.
const AHEAD: usize = 2;

/// Shards held at once by a worker whose shards are small.
const HELD_MAX: usize = 32;

impl Service {
    /// Returns whether another shard of this lane fits: two keep the engine full, and more are taken while
    /// the lines of all of them do not.
    pub(super) fn has_room(&self, pipeline: &Pipeline, lane: Lane) -> bool {
        let held = self.held.values();
        let in_lane = held.clone().filter(|held| lane_of(held) == lane).count();
        let open: usize = held.map(Held::open_lines).sum();
        let starves = open < pipeline.sequences_at_once() * AHEAD;
        in_lane < SLOTS || (starves && self.held.len() < HELD_MAX)
    }

    /// Returns whether a shard must have this worker for itself.
    pub(super) fn runs_alone(&self) -> bool {
        self.held.values().any(|held| held.shard.alone)
    }

    /// Returns how many lines the engine has been given, and has not answered.
    pub(super) fn running_lines(&self) -> usize {
        self.held.values().map(Held::running_lines).sum()
    }

    /// Gives waiting lines to the engine: those of the fast lane first, but a quarter of the places is kept
    /// for the others. A line that must run alone waits until nothing runs, and nothing starts beside it.
    pub(super) fn feed(&mut self, pipeline: &Pipeline) {
        let mut held = self.held.values();
        if held.any(|held| held.shard.alone && held.running_lines() > 0) {
            return;
        }
        let limit = pipeline.sequences_at_once() * AHEAD;
        self.feed_lane(pipeline, Lane::Fast, limit - limit / 4, limit);
        self.feed_lane(pipeline, Lane::Bulk, limit, limit);
        self.feed_lane(pipeline, Lane::Fast, limit, limit);
        if self.running_lines() == 0
            && let Some(alone) = self.held.values_mut().find(|held| !held.waiting.is_empty())
        {
            submit(pipeline, alone, usize::MAX);
        }
    }

    /// Submits lines of a lane while fewer than `lane_max` of its own, and than `all_max` in all, run.
    fn feed_lane(&mut self, pipeline: &Pipeline, lane: Lane, lane_max: usize, all_max: usize) {
        let in_lane = self.held.values().filter(|held| lane_of(held) == lane);
        let lane_runs: usize = in_lane.map(Held::running_lines).sum();
        let free = all_max.saturating_sub(self.running_lines());
        let mut room = lane_max.saturating_sub(lane_runs).min(free);
        let shards = self.held.values_mut();
        for held in shards.filter(|held| lane_of(held) == lane && !held.shard.alone) {
            room -= submit(pipeline, held, room);
        }
    }
}

/// Submits at most `room` waiting lines of a shard, and returns how many.
fn submit(pipeline: &Pipeline, held: &mut Held, room: usize) -> usize {
    let lines = room.min(held.waiting.len());
    for job in held.waiting.drain(..lines) {
        tracing::debug!(batch.id = %job.run, line.no = job.line.0, "line submitted");
        pipeline.submit(job);
    }
    lines
}

fn lane_of(held: &Held) -> Lane {
    match held.queue {
        QueueName::Model { lane, .. } => lane,
        QueueName::Validate | QueueName::Finalize | QueueName::Dispatch | QueueName::Assemble => {
            Lane::Bulk
        }
    }
}
