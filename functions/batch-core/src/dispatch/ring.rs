//! Deficit round robin over keys.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::time::UnixMs;

/// Quanta that a key may be in debt: a change of shard sizes must not lock it out for long.
const DEBT_QUANTA_MAX: i64 = 4;

/// What each key may still take, and who was served last.
///
/// A key with a positive deficit may be served once more, and pays afterwards what that cost. When no
/// key may, each gets one quantum.
/// Source: Shreedhar and Varghese 1996, "Efficient fair queuing using deficit round-robin".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(
    serialize = "K: Serialize + Ord",
    deserialize = "K: Deserialize<'de> + Ord"
))]
pub(super) struct Ring<K> {
    last: Option<K>,
    deficits: BTreeMap<K, i64>,
}

impl<K> Default for Ring<K> {
    fn default() -> Self {
        Self {
            last: None,
            deficits: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Clone> Ring<K> {
    /// Picks the key to serve: of those that may be, the most urgent, else the next after the last.
    ///
    /// `waiting` names keys, any number of times, with the deadline of what is urgent. With
    /// `urgent_first`, urgent ones are picked whatever they have taken.
    pub(super) fn pick<'k>(
        &mut self,
        waiting: impl Iterator<Item = (&'k K, Option<UnixMs>)>,
        quantum: u64,
        urgent_first: bool,
    ) -> Option<K>
    where
        K: 'k,
    {
        let mut keys: BTreeMap<&K, Option<UnixMs>> = BTreeMap::new();
        for (key, urgent) in waiting {
            let earliest = keys.entry(key).or_default();
            *earliest = match (*earliest, urgent) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        if keys.is_empty() {
            return None;
        }
        if !urgent_first || keys.values().all(Option::is_none) {
            self.fill(&keys, quantum);
            keys.retain(|key, _| self.deficit(key) > 0);
        }
        let urgent = keys
            .iter()
            .filter_map(|(key, deadline)| deadline.map(|deadline| (deadline, key)))
            .min();
        let next = || {
            keys.keys()
                .find(|key| Some(**key) > self.last.as_ref())
                .or_else(|| keys.keys().next())
        };
        let picked = urgent
            .map(|(_, key)| key)
            .or_else(next)
            .map(|key| (*key).clone());
        self.last.clone_from(&picked);
        picked
    }

    /// Takes the cost of what was served.
    pub(super) fn charge(&mut self, key: &K, cost: u64) {
        let deficit = self
            .deficit(key)
            .saturating_sub(i64::try_from(cost).unwrap_or(i64::MAX));
        self.deficits.insert(key.clone(), deficit);
    }

    /// Forgets keys, and whatever is out of proportion to `quantum`.
    pub(super) fn retain(&mut self, keep: impl Fn(&K) -> bool, quantum: u64) {
        let quantum = i64::try_from(quantum).unwrap_or(i64::MAX);
        self.deficits.retain(|key, deficit| {
            *deficit = (*deficit).clamp(quantum.saturating_mul(-DEBT_QUANTA_MAX), quantum);
            keep(key)
        });
    }

    /// Returns how many keys it remembers.
    pub(super) fn len(&self) -> usize {
        self.deficits.len()
    }

    fn deficit(&self, key: &K) -> i64 {
        self.deficits.get(key).copied().unwrap_or(0)
    }

    /// Gives rounds until one of `keys` may be served.
    fn fill(&mut self, keys: &BTreeMap<&K, Option<UnixMs>>, quantum: u64) {
        let quantum = i64::try_from(quantum).unwrap_or(i64::MAX).max(1);
        let best = keys.keys().map(|key| self.deficit(key)).max().unwrap_or(0);
        if best > 0 {
            return;
        }
        let rounds = best.unsigned_abs() / quantum.unsigned_abs() + 1;
        let grant = quantum.saturating_mul(i64::try_from(rounds).unwrap_or(i64::MAX));
        for key in keys.keys() {
            let deficit = self.deficit(key).saturating_add(grant);
            self.deficits.insert((*key).clone(), deficit);
        }
    }
}
