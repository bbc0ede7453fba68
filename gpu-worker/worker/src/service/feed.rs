//! Which shards fit, and which of their lines the engine gets next.

use batch_core::message::{Lane, QueueName};

use super::held::Held;
use super::{SLOTS, Service};
use crate::pipeline::Pipeline;

/// Lines that a worker must hold, in multiples of the sequences that the engine runs at once: with fewer it
/// could wait for this worker. With more, lines would wait here that another worker could run.
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

    /// Gives waiting lines to the engine, where those of the fast lane start before the others, but leave them
    /// a quarter of the starts. A line that must run alone waits until nothing runs, and nothing starts beside
    /// it.
    pub(super) fn feed(&mut self, pipeline: &Pipeline) {
        let mut held = self.held.values();
        if held.any(|held| held.shard.alone && held.running_lines() > 0) {
            return;
        }
        for lane in [Lane::Fast, Lane::Bulk] {
            self.feed_lane(pipeline, lane);
        }
        if self.running_lines() == 0
            && let Some(alone) = self.held.values_mut().find(|held| !held.waiting.is_empty())
        {
            submit(pipeline, alone, usize::MAX);
        }
    }

    /// Submits lines of a lane while the engine has room for more of them.
    fn feed_lane(&mut self, pipeline: &Pipeline, lane: Lane) {
        let in_lane = self.held.values().filter(|held| lane_of(held) == lane);
        let running: usize = in_lane.map(Held::running_lines).sum();
        let mut room = pipeline.lines_ahead().saturating_sub(running);
        let shards = self.held.values_mut();
        for held in shards.filter(|held| lane_of(held) == lane && !held.shard.alone) {
            room -= submit(pipeline, held, room);
        }
    }
}

/// Submits at most `room` waiting lines of a shard, and returns how many.
fn submit(pipeline: &Pipeline, held: &mut Held, room: usize) -> usize {
    let lines = room.min(held.waiting.len());
    let lane = lane_of(held);
    for job in held.waiting.drain(..lines) {
        tracing::debug!(batch.id = %job.run, line.no = job.line.0, "line submitted");
        match lane {
            Lane::Fast => pipeline.submit_urgent(job),
            Lane::Bulk => pipeline.submit(job),
        }
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
