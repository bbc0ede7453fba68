//! Results that are kept for requests that ask the same later: the least recently used give way.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::question::Question;
use crate::engine::Generation;

/// Memory of all that is kept.
///
/// A line of 100 prompt tokens and 64 of output takes 4 B for each, 4 B of text for each of output, and about
/// 400 B around them: 1.3 kB. So 8 MiB are 6,400 of these, several times what the engine is given at once.
const BYTES_MAX: usize = 8 << 20;

/// What an entry needs for itself in both maps, roughly: keys, values, reference counts.
const ENTRY_BYTES: usize =
    size_of::<Question>() + size_of::<Kept>() + 2 * size_of::<Arc<Question>>() + 64;

#[derive(Debug)]
struct Kept {
    generation: Generation,
    bytes: usize,
    used: u64,
}

/// The results that are kept.
#[derive(Debug, Default)]
pub(super) struct Answers {
    by_question: HashMap<Arc<Question>, Kept>,
    by_use: BTreeMap<u64, Arc<Question>>,
    bytes: usize,
    clock: u64,
}

impl Answers {
    /// Returns the result of a question, if it is kept, which makes it the most recently used.
    pub(super) fn get(&mut self, question: &Question) -> Option<&Generation> {
        let kept = self.by_question.get_mut(question)?;
        let entry = self.by_use.remove(&kept.used);
        self.clock += 1;
        kept.used = self.clock;
        self.by_use
            .insert(kept.used, entry.expect("what is kept has a time of use"));
        Some(&kept.generation)
    }

    /// Keeps a result, unless it is too large by itself.
    pub(super) fn keep(&mut self, question: Arc<Question>, generation: &Generation) {
        let bytes = ENTRY_BYTES + question.bytes() + bytes_of(generation);
        if bytes > BYTES_MAX {
            return;
        }
        self.clock += 1;
        let kept = Kept {
            generation: generation.clone(),
            bytes,
            used: self.clock,
        };
        self.by_use.insert(kept.used, Arc::clone(&question));
        self.bytes += bytes;
        let earlier = self.by_question.insert(question, kept);
        assert!(earlier.is_none(), "what is kept was computed again");
        while self.bytes > BYTES_MAX {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let (_, question) = self.by_use.pop_first().expect("bytes are kept");
        let kept = self.by_question.remove(&question);
        self.bytes -= kept.expect("what has a time of use is kept").bytes;
    }
}

fn bytes_of(generation: &Generation) -> usize {
    let logprobs = generation.logprobs.as_deref().unwrap_or_default();
    let tops = logprobs.iter().map(|entry| size_of_val(&*entry.top));
    generation.text.len()
        + size_of_val(&*generation.tokens)
        + size_of_val(logprobs)
        + tops.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::FinishReason;
    use crate::engine::duplicates::tests::request;

    fn question(prompt: u32) -> Arc<Question> {
        Arc::new(Question::of(&request(0, &[prompt])))
    }

    fn generation(tokens: usize) -> Generation {
        Generation {
            text: "a".repeat(4 * tokens),
            tokens: vec![1; tokens],
            logprobs: None,
            finish_reason: FinishReason::Length,
            prompt_tokens: 1,
            cached_tokens: 0,
            completion_tokens: 1,
        }
    }

    #[test]
    fn least_recently_used_give_way_and_memory_is_bounded() {
        let mut answers = Answers::default();
        // Of 80 kB each: about a hundred fit.
        for prompt in 0..300 {
            answers.keep(question(prompt), &generation(10_000));
            assert!(answers.get(&question(0)).is_some());
            assert!(answers.bytes <= BYTES_MAX);
        }
        let kept = (0..300).filter(|prompt| answers.get(&question(*prompt)).is_some());
        let kept: Vec<u32> = kept.collect();
        assert!((90..110).contains(&kept.len()), "{}", kept.len());
        assert_eq!((kept[0], kept[1]), (0, 301 - kept.len() as u32));
        let bytes: usize = answers.by_question.values().map(|kept| kept.bytes).sum();
        assert_eq!(bytes, answers.bytes);
        assert_eq!(answers.by_use.len(), answers.by_question.len());
    }

    #[test]
    fn result_that_is_too_large_is_not_kept() {
        let mut answers = Answers::default();
        answers.keep(question(1), &generation(2_000_000));
        assert!(answers.get(&question(1)).is_none());
        assert_eq!(answers.bytes, 0);
    }
}
