//! Two workers, a reconciler and a clock on one shard: every order of their steps.

use std::collections::BTreeSet;

use super::tests::{TIMING, released_at, shard, worker};
use super::*;

/// One worker's view: what it holds, and a write that it decided and has not sent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Actor {
    held: Option<u64>,
    /// What was read, what is to be written, and whether that is a commit.
    decided: Option<(Record, Record, bool)>,
    segments: u32,
}

/// The parts of a shard that the protocol changes, with an order for the set of seen worlds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Record {
    leased: Option<(WorkerId, i64)>,
    released: bool,
    epoch: u64,
    losses: u32,
    segments: Vec<SegmentRef>,
}

impl Record {
    fn of(shard: &Shard) -> Self {
        let leased = match shard.state {
            ShardState::Leased { owner, until } => Some((owner, until.0)),
            ShardState::Pending
            | ShardState::Released { .. }
            | ShardState::Done
            | ShardState::Split => None,
        };
        let released = matches!(shard.state, ShardState::Released { .. });
        Self {
            leased,
            released,
            epoch: shard.epoch,
            losses: shard.losses,
            segments: shard.segments.clone(),
        }
    }

    fn to_shard(&self) -> Shard {
        let state = match (self.leased, self.released) {
            (Some((owner, until)), _) => ShardState::Leased {
                owner,
                until: UnixMs(until),
            },
            (None, true) => released_at(0),
            (None, false) => ShardState::Done,
        };
        Shard {
            epoch: self.epoch,
            losses: self.losses,
            segments: self.segments.clone(),
            ..shard(state)
        }
    }
}

/// The stored record, two workers, a clock, and every commit that the store accepted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    stored: Record,
    workers: [Actor; 2],
    now: i64,
    accepted: BTreeSet<SegmentRef>,
}

impl World {
    /// Returns every world that one step of anybody leads to.
    fn steps(&self) -> Vec<World> {
        let mut worlds = Vec::new();
        let shard = self.stored.to_shard();
        let now = UnixMs(self.now);
        for (index, number) in [(0, 1), (1, 2)] {
            let mut decide = |next: Shard, is_commit: bool| {
                let mut world = self.clone();
                world.workers[index].decided =
                    Some((self.stored.clone(), Record::of(&next), is_commit));
                worlds.push(world);
            };
            let actor = &self.workers[index];
            if actor.decided.is_none() {
                if let Some(epoch) = actor.held {
                    for last in [false, true] {
                        let segment = Some(SegmentRef {
                            epoch,
                            number: actor.segments,
                        });
                        if let Ok(next) = commit(&shard, epoch, segment, last, now, &TIMING) {
                            decide(next, true);
                        }
                    }
                    if let Ok(next) = hand_back(&shard, epoch, now, &TIMING) {
                        decide(next, false);
                    }
                } else if let Claim::Granted(next) = claim(&shard, worker(number), now, &TIMING) {
                    decide(next, false);
                }
            }
            if let Some((read, next, is_commit)) = actor.decided.clone() {
                worlds.push(self.write(index, &read, next, is_commit));
            }
        }
        if let Lapse::Release { next, .. } = lapse(&shard, false, now, &TIMING) {
            worlds.push(World {
                stored: Record::of(&next),
                ..self.clone()
            });
        }
        worlds.push(World {
            now: self.now + 12,
            ..self.clone()
        });
        worlds
    }

    /// The store's condition: state, epoch and segments are as they were read.
    fn write(&self, index: usize, read: &Record, next: Record, is_commit: bool) -> World {
        let mut world = self.clone();
        let actor = &mut world.workers[index];
        actor.decided = None;
        if *read != self.stored {
            actor.held = None;
            return world;
        }
        let owner = worker([1, 2][index]);
        actor.held = next
            .leased
            .filter(|(holder, _)| *holder == owner)
            .map(|_| next.epoch);
        if is_commit {
            actor.segments += 1;
            let segment = *next.segments.last().unwrap();
            assert!(
                world.accepted.insert(segment),
                "one segment was accepted twice"
            );
        } else {
            actor.segments = 0;
        }
        world.stored = next;
        world
    }

    fn check(&self, before: &World) {
        let stored: BTreeSet<SegmentRef> = self.stored.segments.iter().copied().collect();
        assert_eq!(
            stored.len(),
            self.stored.segments.len(),
            "no segment is named twice"
        );
        assert_eq!(
            stored, self.accepted,
            "every accepted segment, and no other, is named"
        );
        assert!(self.stored.epoch >= before.stored.epoch);
        assert!(self.stored.losses < SHARD_LOSSES_MAX);
        let was_done = before.stored.leased.is_none() && !before.stored.released;
        assert!(
            !was_done || self.stored == before.stored,
            "what is done stays"
        );
        let holds = |index: usize, number| {
            self.stored
                .leased
                .is_some_and(|(owner, _)| owner == worker(number))
                && self.workers[index].held == Some(self.stored.epoch)
        };
        assert!(!(holds(0, 1) && holds(1, 2)), "two holders");
    }
}

#[test]
fn every_interleaving_of_two_workers_keeps_every_result_once() {
    let stored = Record {
        segments: Vec::new(),
        ..Record::of(&shard(released_at(0)))
    };
    let start = World {
        stored,
        workers: [Actor::default(), Actor::default()],
        now: 0,
        accepted: BTreeSet::new(),
    };
    let mut seen = BTreeSet::from([start.clone()]);
    let mut frontier = vec![start];
    let mut done = 0;
    for _ in 0..12 {
        let mut next_frontier = Vec::new();
        for world in &frontier {
            for next in world.steps() {
                next.check(world);
                if seen.insert(next.clone()) {
                    done += usize::from(next.stored.leased.is_none() && !next.stored.released);
                    next_frontier.push(next);
                }
            }
        }
        frontier = next_frontier;
    }
    assert!(
        seen.len() > 10_000 && done > 100,
        "{} worlds, {done} of them done",
        seen.len()
    );
}
