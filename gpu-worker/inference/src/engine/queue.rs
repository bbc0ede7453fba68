//! The sequences that wait, in the order in which they may start.
//!
//! Those that lost their pages come first. New ones wait in two lanes, each put in order a round at a time;
//! see [`super::order`] for the order within a round.

use std::collections::BTreeMap;

use super::order::{Candidate, depth_first};
use super::sequence::SequenceId;

/// Requests whose places in the order may be exchanged: a later round never overtakes an earlier one, so a
/// request waits for fewer than two rounds of later ones. Ten times what usually runs at once, so that most
/// that share a prefix meet; small enough to be put in order in a millisecond or two.
const ROUND_REQUESTS: u64 = 1024;

/// A round is put in order again when it has grown by a part of this size since the last time.
const GROWTH_DIVISOR: usize = 4;

/// Urgent starts between two others, while sequences of both lanes wait: nobody waits for ever.
const URGENT_IN_A_ROW: u32 = 3;

/// Which of the new sequences go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Three of four starts.
    Urgent,
    /// The rest.
    Patient,
}

/// The place of a waiting sequence: with it, it is found again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rank {
    /// It lost its pages; the oldest starts first.
    Preempted {
        /// When it first started.
        age: u64,
    },
    /// It has never run.
    New {
        /// Where it waits.
        lane: Lane,
        /// Its place there.
        place: Place,
    },
}

/// A place in a lane: smaller starts earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    round: u64,
    turn: Turn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// Its place when the round was last put in order, and how many had arrived before it.
    Ordered { position: usize, arrival: u64 },
    /// It arrived since.
    Fresh { arrival: u64 },
}

impl Turn {
    fn arrival(self) -> u64 {
        match self {
            Turn::Ordered { arrival, .. } | Turn::Fresh { arrival } => arrival,
        }
    }
}

#[derive(Debug, Default)]
struct LaneQueue {
    by_place: BTreeMap<Place, SequenceId>,
    arrivals: u64,
    /// The round that was last put in order. The three numbers below are about it.
    round: u64,
    ordered: usize,
    fresh: usize,
    /// How many outputs had been learned from.
    samples: u64,
}

impl LaneQueue {
    fn push(&mut self, id: SequenceId) -> Place {
        let place = Place {
            round: self.arrivals / ROUND_REQUESTS,
            turn: Turn::Fresh {
                arrival: self.arrivals,
            },
        };
        self.arrivals += 1;
        self.fresh += usize::from(place.round == self.round);
        self.by_place.insert(place, id);
        place
    }

    fn remove(&mut self, place: Place) -> bool {
        if place.round == self.round {
            match place.turn {
                Turn::Ordered { .. } => self.ordered -= 1,
                Turn::Fresh { .. } => self.fresh -= 1,
            }
        }
        self.by_place.remove(&place).is_some()
    }

    /// Whether the next round has no order yet, or one that is out of date: a quarter of it is new, or twice
    /// as many outputs are known. Both grow by a factor, so the cost of ordering stays `log n` a request.
    fn needs_order(&self, samples: u64) -> bool {
        let Some((first, _)) = self.by_place.first_key_value() else {
            return false;
        };
        first.round != self.round
            || self.fresh > self.ordered / GROWTH_DIVISOR
            || (samples >= 2 * self.samples.max(1) && self.ordered > 1)
    }

    /// Puts the next round in order, and returns its new places.
    fn put_in_order<'a>(
        &mut self,
        samples: u64,
        page_tokens: usize,
        describe: impl Fn(SequenceId) -> Candidate<'a>,
    ) -> Vec<(SequenceId, Place)> {
        let Some((&Place { round, .. }, _)) = self.by_place.first_key_value() else {
            return Vec::new();
        };
        let mut members: Vec<(u64, SequenceId)> = Vec::new();
        while let Some(entry) = self.by_place.first_entry()
            && entry.key().round == round
        {
            let (place, id) = entry.remove_entry();
            members.push((place.turn.arrival(), id));
        }
        members.sort_unstable();
        let candidates: Vec<Candidate<'_>> = members.iter().map(|(_, id)| describe(*id)).collect();
        let mut places = Vec::with_capacity(members.len());
        for (position, index) in depth_first(&candidates, page_tokens)
            .into_iter()
            .enumerate()
        {
            let (arrival, id) = members[index];
            let turn = Turn::Ordered { position, arrival };
            let place = Place { round, turn };
            self.by_place.insert(place, id);
            places.push((id, place));
        }
        self.round = round;
        self.ordered = places.len();
        self.fresh = 0;
        self.samples = samples;
        places
    }
}

/// All sequences that wait.
#[derive(Debug, Default)]
pub(crate) struct WaitingQueue {
    preempted: BTreeMap<u64, SequenceId>,
    urgent: LaneQueue,
    patient: LaneQueue,
    /// Urgent ones that started since one of the other lane did.
    urgent_started: u32,
}

impl WaitingQueue {
    /// Adds a new sequence.
    pub(crate) fn push(&mut self, lane: Lane, id: SequenceId) -> Rank {
        let place = self.lane(lane).push(id);
        Rank::New { lane, place }
    }

    /// Adds one that lost its pages.
    pub(crate) fn push_preempted(&mut self, age: u64, id: SequenceId) -> Rank {
        self.preempted.insert(age, id);
        Rank::Preempted { age }
    }

    /// Removes the sequence at a place: it starts, or is dropped.
    ///
    /// # Panics
    ///
    /// If nothing waits there.
    pub(crate) fn remove(&mut self, rank: Rank) {
        let was_here = match rank {
            Rank::Preempted { age } => self.preempted.remove(&age).is_some(),
            Rank::New { lane, place } => self.lane(lane).remove(place),
        };
        assert!(was_here, "a sequence does not wait at its place");
    }

    /// Removes a sequence that starts, and counts it towards the balance of the lanes.
    pub(crate) fn start(&mut self, rank: Rank) {
        self.remove(rank);
        match rank {
            Rank::Preempted { .. } => {}
            Rank::New { lane, .. } => {
                self.urgent_started = match lane {
                    Lane::Urgent => (self.urgent_started + 1).min(URGENT_IN_A_ROW),
                    Lane::Patient => 0,
                };
            }
        }
    }

    /// Brings the order of the next rounds up to date, and returns every rank that changed.
    ///
    /// `samples` is the number of outputs that the expectations come from.
    pub(crate) fn put_in_order<'a>(
        &mut self,
        samples: u64,
        page_tokens: usize,
        describe: impl Fn(SequenceId) -> Candidate<'a>,
    ) -> Vec<(SequenceId, Rank)> {
        let mut ranks = Vec::new();
        for lane in [Lane::Urgent, Lane::Patient] {
            let queue = self.lane(lane);
            if queue.needs_order(samples) {
                let places = queue.put_in_order(samples, page_tokens, &describe);
                let ranked = places.into_iter();
                ranks.extend(ranked.map(|(id, place)| (id, Rank::New { lane, place })));
            }
        }
        ranks
    }

    /// Returns the sequences in the order in which they may start.
    pub(crate) fn iter(&self) -> impl Iterator<Item = SequenceId> {
        let mut urgent = self.urgent.by_place.values();
        let mut patient = self.patient.by_place.values();
        let mut in_a_row = self.urgent_started;
        let new = std::iter::from_fn(move || {
            if in_a_row < URGENT_IN_A_ROW {
                in_a_row += 1;
                urgent.next().or_else(|| patient.next())
            } else {
                in_a_row = 0;
                patient.next().or_else(|| urgent.next())
            }
        });
        self.preempted.values().chain(new).copied()
    }

    /// Returns the number of sequences that wait.
    pub(crate) fn len(&self) -> usize {
        self.preempted.len() + self.urgent.by_place.len() + self.patient.by_place.len()
    }

    fn lane(&mut self, lane: Lane) -> &mut LaneQueue {
        match lane {
            Lane::Urgent => &mut self.urgent,
            Lane::Patient => &mut self.patient,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue whose sequences have unlike prompts, and outputs as long as their id is high.
    #[derive(Default)]
    struct Queue {
        waiting: WaitingQueue,
        ranks: BTreeMap<SequenceId, Rank>,
    }

    fn describe(id: SequenceId) -> Candidate<'static> {
        Candidate {
            salt: id.0,
            prompt: &[],
            expected: id.0 as usize,
        }
    }

    impl Queue {
        fn push(&mut self, lane: Lane, ids: impl IntoIterator<Item = u64>) {
            for id in ids.into_iter().map(SequenceId) {
                self.ranks.insert(id, self.waiting.push(lane, id));
            }
        }

        fn start(&mut self) -> Option<u64> {
            self.ranks
                .extend(self.waiting.put_in_order(0, 16, describe));
            let id = self.waiting.iter().next()?;
            self.waiting.start(self.ranks[&id]);
            Some(id.0)
        }

        fn starts(&mut self, count: usize) -> Vec<u64> {
            (0..count).map_while(|_| self.start()).collect()
        }
    }

    #[test]
    fn later_round_never_overtakes() {
        let mut queue = Queue::default();
        queue.push(Lane::Patient, 0..ROUND_REQUESTS + 3);
        let first = queue.starts(2);
        assert_eq!(first, [ROUND_REQUESTS - 1, ROUND_REQUESTS - 2]);
        queue.push(Lane::Patient, [9999]);
        let rest = queue.starts(usize::MAX);
        let last = [9999, ROUND_REQUESTS + 2, ROUND_REQUESTS + 1, ROUND_REQUESTS];
        assert_eq!(rest[rest.len() - 5..], [&[0], &last[..]].concat());
        assert_eq!(rest.len() as u64, ROUND_REQUESTS + 2);
    }

    #[test]
    fn few_that_arrive_late_wait_until_they_are_a_quarter_of_the_round() {
        let mut queue = Queue::default();
        queue.push(Lane::Patient, 0..8);
        assert_eq!(queue.starts(1), [7]);
        queue.push(Lane::Patient, [20]);
        assert_eq!(queue.starts(1), [6]);
        queue.push(Lane::Patient, [30]);
        assert_eq!(queue.starts(3), [30, 20, 5]);
    }

    #[test]
    fn order_is_made_again_when_twice_as_many_outputs_are_known() {
        let mut waiting = WaitingQueue::default();
        for id in 0..8 {
            waiting.push(Lane::Patient, SequenceId(id));
        }
        assert_eq!(waiting.put_in_order(10, 16, describe).len(), 8);
        assert_eq!(waiting.put_in_order(19, 16, describe).len(), 0);
        assert_eq!(waiting.put_in_order(20, 16, describe).len(), 8);
    }

    #[test]
    fn urgent_ones_take_three_starts_of_four() {
        let mut queue = Queue::default();
        queue.push(Lane::Patient, 0..4);
        queue.push(Lane::Urgent, 10..15);
        let starts = queue.starts(usize::MAX);
        assert_eq!(starts, [14, 13, 12, 3, 11, 10, 2, 1, 0]);
    }

    #[test]
    fn one_that_lost_its_pages_goes_first() {
        let mut queue = Queue::default();
        queue.push(Lane::Urgent, [1]);
        for age in [7, 5] {
            let id = SequenceId(age);
            let rank = queue.waiting.push_preempted(age, id);
            queue.ranks.insert(id, rank);
        }
        assert_eq!(queue.starts(usize::MAX), [5, 7, 1]);
    }
}
