//! Which line is sent when: what is due, within the pace, and not while the server wants its peace.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Instant;

use batch_core::limits::SERVER_TROUBLES_MAX;

use super::letter::Letter;
use super::pace::Pace;
use super::retry::backoff;
use super::verdict::Verdict;
use crate::pipeline::{LineAnswer, LineKey};

/// Of so many starts, all but one are of urgent lines while both kinds wait.
const URGENT_TURNS: u32 = 4;

/// All lines that have no result.
#[derive(Debug)]
pub(super) struct Desk {
    pace: Pace,
    urgent: VecDeque<Letter>,
    other: VecDeque<Letter>,
    /// Lines that are sent again, by when.
    later: BTreeMap<(Instant, LineKey), Letter>,
    sent: HashMap<LineKey, (Letter, Instant)>,
    turn: u32,
    /// Nothing is sent before.
    paused_until: Option<Instant>,
    cuts_in_row: u32,
    troubles_in_row: u32,
}

/// What to do next.
#[derive(Debug)]
pub(super) enum Next {
    /// Send this.
    Send(Letter),
    /// Nothing before this moment, unless an answer or a line comes.
    WaitUntil(Instant),
    /// Nothing, unless an answer or a line comes.
    Wait,
}

impl Desk {
    pub(super) fn new(requests_max: u32) -> Self {
        Self {
            pace: Pace::new(requests_max),
            urgent: VecDeque::new(),
            other: VecDeque::new(),
            later: BTreeMap::new(),
            sent: HashMap::new(),
            turn: 0,
            paused_until: None,
            cuts_in_row: 0,
            troubles_in_row: 0,
        }
    }

    /// Returns how many requests may be in flight.
    pub(super) fn limit(&self) -> usize {
        self.pace.limit()
    }

    /// Returns how many lines have no result.
    pub(super) fn lines(&self) -> usize {
        self.urgent.len() + self.other.len() + self.later.len() + self.sent.len()
    }

    /// Adds a line.
    pub(super) fn add(&mut self, letter: Letter) {
        self.lane(letter.urgent).push_back(letter);
    }

    /// Drops a line. The answer to its request, if one is in flight, is nobody's.
    pub(super) fn cancel(&mut self, key: LineKey) {
        self.urgent.retain(|letter| letter.key != key);
        self.other.retain(|letter| letter.key != key);
        self.later.retain(|(_, other), _| *other != key);
        self.sent.remove(&key);
    }

    /// Says what to do at `now`. Whoever is told to send must do so.
    pub(super) fn next(&mut self, now: Instant) -> Next {
        match self.paused_until {
            Some(until) if now < until => return Next::WaitUntil(until),
            Some(_) | None => self.paused_until = None,
        }
        while let Some(first) = self.later.first_entry()
            && first.key().0 <= now
        {
            let letter = first.remove();
            self.lane(letter.urgent).push_front(letter);
        }
        // In doubt, too: lines would use up their retries on a server that is down.
        if self.is_in_doubt() || self.sent.len() >= self.pace.limit() {
            return Next::Wait;
        }
        match self.pop() {
            Some(letter) => {
                self.sent.insert(letter.key, (letter.clone(), now));
                Next::Send(letter)
            }
            None => match self.later.keys().next() {
                Some((at, _)) => Next::WaitUntil(*at),
                None => Next::Wait,
            },
        }
    }

    /// Takes in the verdict on a request, with a draw from 0 to 1. Returns the line's result if it has one now.
    pub(super) fn judged(
        &mut self,
        key: LineKey,
        verdict: Verdict,
        now: Instant,
        draw: f64,
    ) -> Option<LineAnswer> {
        let in_flight = self.sent.len();
        let (mut letter, sent_at) = self.sent.remove(&key)?;
        let (trouble, wait, fault) = match verdict {
            Verdict::Final(result) => {
                self.troubles_in_row = 0;
                if result.is_ok() {
                    self.cuts_in_row = 0;
                    self.pace.good(in_flight);
                }
                return Some(LineAnswer { key, result });
            }
            Verdict::Again {
                trouble,
                wait,
                fault,
            } => (trouble, wait, fault),
        };
        self.troubles_in_row += u32::from(trouble.casts_doubt());
        if trouble.slows() && self.pace.strained(sent_at, now) {
            self.cuts_in_row += 1;
            // Lines that were never sent have no pause of their own: at the lowest pace they would all knock.
            self.pause(now + backoff(self.cuts_in_row, draw));
        }
        let wait = wait.unwrap_or_default();
        self.pause(now + wait);
        let Some(retry) = letter.tries.after(trouble) else {
            return Some(LineAnswer {
                key,
                result: Err(fault),
            });
        };
        let due = now + backoff(retry, draw).max(wait);
        self.later.insert((due, key), letter);
        None
    }

    /// Returns whether so many requests failed in a row that the server's health is in doubt. Nothing is sent until
    /// a request that is under way is answered well, or the server is found in good health.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.troubles_in_row >= SERVER_TROUBLES_MAX
    }

    /// The server was found in good health.
    pub(super) fn found_healthy(&mut self) {
        self.troubles_in_row = 0;
    }

    fn lane(&mut self, urgent: bool) -> &mut VecDeque<Letter> {
        if urgent {
            &mut self.urgent
        } else {
            &mut self.other
        }
    }

    fn pop(&mut self) -> Option<Letter> {
        let others_turn = self.turn % URGENT_TURNS == URGENT_TURNS - 1;
        if self.urgent.is_empty() || (others_turn && !self.other.is_empty()) {
            let letter = self.other.pop_front()?;
            self.turn = 0;
            return Some(letter);
        }
        self.turn = (self.turn + 1) % URGENT_TURNS;
        self.urgent.pop_front()
    }

    fn pause(&mut self, until: Instant) {
        self.paused_until = self.paused_until.max(Some(until));
    }
}

#[cfg(test)]
mod tests;
