//! Finds the texts of special tokens in a text.

use std::collections::BTreeMap;
use std::ops::Range;

/// A token that is recognised by its text before anything is split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Special {
    pub(super) text: String,
    pub(super) id: u32,
    /// Written by templates alone: [`super::Specials::Plain`] does not see it.
    pub(super) control: bool,
}

/// Finds special tokens in one pass.
#[derive(Debug)]
pub(super) struct SpecialMatcher {
    /// By first byte; longest first.
    starts: BTreeMap<u8, Vec<Special>>,
}

impl SpecialMatcher {
    pub(super) fn new(specials: impl IntoIterator<Item = Special>) -> Self {
        let mut starts: BTreeMap<u8, Vec<Special>> = BTreeMap::new();
        for special in specials {
            if let Some(&first) = special.text.as_bytes().first() {
                starts.entry(first).or_default().push(special);
            }
        }
        for specials in starts.values_mut() {
            specials.sort_by(|a, b| b.text.len().cmp(&a.text.len()).then(a.id.cmp(&b.id)));
        }
        Self { starts }
    }

    /// Finds the specials of `text` that `sees` accepts at their offset, ascending, none overlapping.
    ///
    /// Of two that overlap the longer one counts, wherever it begins, as in llama.cpp.
    pub(super) fn find(
        &self,
        text: &str,
        sees: impl Fn(usize, &Special) -> bool,
    ) -> Vec<(Range<usize>, u32)> {
        let mut candidates = Vec::new();
        for (at, byte) in text.bytes().enumerate() {
            let Some(specials) = self.starts.get(&byte) else {
                continue;
            };
            let matching = specials
                .iter()
                .filter(|special| text.as_bytes()[at..].starts_with(special.text.as_bytes()));
            candidates.extend(
                matching
                    .filter(|special| sees(at, special))
                    .map(|special| (at, special)),
            );
        }
        candidates
            .sort_by_key(|&(at, special)| (std::cmp::Reverse(special.text.len()), special.id, at));
        let mut found: BTreeMap<usize, (usize, u32)> = BTreeMap::new();
        for (start, special) in candidates {
            let end = start + special.text.len();
            // Those found do not overlap: only the last that begins before `end` can reach into this one.
            let before = found.range(..end).next_back();
            if before.is_none_or(|(_, &(before_end, _))| before_end <= start) {
                found.insert(start, (end, special.id));
            }
        }
        found
            .into_iter()
            .map(|(start, (end, id))| (start..end, id))
            .collect()
    }

    /// Returns all special tokens.
    pub(super) fn all(&self) -> impl Iterator<Item = &Special> {
        self.starts.values().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(texts: &[&str], text: &str, expected: &[(Range<usize>, u32)]) {
        let specials = (0..).zip(texts).map(|(id, text)| Special {
            text: (*text).to_owned(),
            id,
            control: true,
        });
        assert_eq!(
            SpecialMatcher::new(specials).find(text, |_, _| true),
            expected
        );
    }

    #[test]
    fn every_occurrence_is_found_in_order() {
        check(
            &["<a>", "<b>"],
            "<b>x<a><a>",
            &[(0..3, 1), (4..7, 0), (7..10, 0)],
        );
    }

    #[test]
    fn the_longer_of_two_that_overlap_counts() {
        check(&["<a", "a>b>"], "<a>b>", &[(1..5, 1)]);
        check(&["<a", "<a>"], "<a>", &[(0..3, 1)]);
    }

    #[test]
    fn empty_special_tokens_are_never_found() {
        check(&[""], "x", &[]);
    }
}
