//! The sampling rules of [`super::SampleParams`], shared by the scalar reference and the CPU.
//!
//! Plain f32 in a fixed order: the bits do not depend on the machine, the batch, or the thread.
//! Never sorts the whole vocabulary: sets are selected first, and only survivors are sorted.
//!
//! The passes over the vocabulary are `#[inline(always)]`: a caller that is compiled for wider vectors runs
//! them in these. The bits stay the same, since nothing is fused or reordered.
//!
//! What [`super::SampleParams`] leaves open: `top_p` counts in the distribution that `min_p` and `top_k` left,
//! made to sum to one, and the draw walks the survivors by ascending id.

mod philox;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use super::SampleRow;
use super::exp::exp;

/// The tokens of one slot.
#[derive(Debug, Default)]
pub(super) struct History {
    prompt: Vec<u32>,
    output: Vec<u32>,
    last: u32,
}

impl History {
    /// Makes an empty history that holds `tokens` tokens without allocating.
    pub(super) fn with_capacity(tokens: usize) -> Self {
        Self {
            prompt: Vec::with_capacity(tokens),
            output: Vec::with_capacity(tokens),
            last: 0,
        }
    }

    /// Sets the history.
    pub(super) fn reset(&mut self, prompt: &[u32], output: &[u32]) {
        self.prompt.clear();
        self.prompt.extend_from_slice(prompt);
        self.output.clear();
        self.output.extend_from_slice(output);
        self.last = output.last().or(prompt.last()).copied().unwrap_or(0);
    }

    /// Appends a sampled token.
    pub(super) fn push(&mut self, token: u32) {
        self.output.push(token);
        self.last = token;
    }

    /// Returns the token that was sampled last, or the last of the prompt.
    pub(super) fn last(&self) -> u32 {
        self.last
    }

    /// Returns the bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        (self.prompt.capacity() + self.output.capacity()) * size_of::<u32>()
    }
}

/// What became of a row.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum Sampled {
    /// The row was not live.
    #[default]
    Dead,
    /// A logit is not finite, or the mask allows nothing.
    Bad,
    /// It got a token.
    Token {
        /// The token.
        id: u32,
        /// Its log-probability before masks, penalties and temperature; 0 where none was asked for.
        logprob: f32,
        /// The most likely tokens, most likely first.
        top: Vec<(u32, f32)>,
    },
}

/// Working memory for one row at a time.
#[derive(Debug)]
pub(super) struct Sampler {
    /// Logits after mask, bias and penalties: `[vocabulary]`.
    adjusted: Vec<f32>,
    /// Probability relative to the most likely token's: `[vocabulary]`.
    weights: Vec<f32>,
    /// Uses of a token in the output, and [`SEEN`]: `[vocabulary]`, zero between rows.
    counts: Vec<u32>,
    /// Tokens with a count that is not zero.
    touched: Vec<u32>,
    /// Ids that may still be drawn.
    candidates: Vec<u32>,
}

/// Marks a token of prompt or output in [`Sampler::counts`].
const SEEN: u32 = 1 << 31;

impl Sampler {
    /// Makes working memory for logit rows of up to `vocabulary` values.
    pub(super) fn new(vocabulary: usize) -> Self {
        Self {
            adjusted: Vec::with_capacity(vocabulary),
            weights: vec![0.0; vocabulary],
            counts: vec![0; vocabulary],
            touched: Vec::with_capacity(vocabulary),
            candidates: Vec::with_capacity(vocabulary),
        }
    }

    /// Returns the bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        (self.adjusted.capacity()
            + self.weights.capacity()
            + self.counts.capacity()
            + self.touched.capacity()
            + self.candidates.capacity())
            * size_of::<u32>()
    }

    /// Chooses the token of one row. `logits` ends where padding ids begin.
    ///
    /// Does not append to `history`.
    #[inline(always)]
    pub(super) fn sample(&mut self, logits: &[f32], row: &SampleRow, history: &History) -> Sampled {
        if !row.live {
            return Sampled::Dead;
        }
        let Some(max) = finite_max(logits) else {
            return Sampled::Bad;
        };
        let id = match row.forced {
            Some(forced) => Some(forced),
            None if is_plain_greedy(row) => first_equal(logits, max),
            None => self.choose(logits, row, history),
        };
        let Some(id) = id else {
            return Sampled::Bad;
        };
        let Some(top_n) = row.logprobs else {
            return Sampled::Token {
                id,
                logprob: 0.0,
                top: Vec::new(),
            };
        };
        let log_sum = log_sum_exp(logits, max);
        let logprob = |id: u32| {
            logits
                .get(id as usize)
                .map_or(f32::NEG_INFINITY, |&x| (f64::from(x) - log_sum) as f32)
        };
        let mut top = most_likely(logits, top_n as usize);
        for entry in &mut top {
            entry.1 = logprob(entry.0);
        }
        Sampled::Token {
            id,
            logprob: logprob(id),
            top,
        }
    }

    #[inline(always)]
    fn choose(&mut self, logits: &[f32], row: &SampleRow, history: &History) -> Option<u32> {
        self.adjust(logits, row, history);
        let mut max = f32::NEG_INFINITY;
        for &x in &self.adjusted {
            max = if x > max { x } else { max };
        }
        if max == f32::NEG_INFINITY {
            return None;
        }
        let params = &row.params;
        if params.is_greedy() {
            return first_equal(&self.adjusted, max);
        }
        for (weight, &x) in self.weights.iter_mut().zip(&self.adjusted) {
            *weight = exp((x - max) / params.temperature);
        }
        self.candidates.clear();
        for (id, (&x, &weight)) in self.adjusted.iter().zip(&self.weights).enumerate() {
            let allowed = x > f32::NEG_INFINITY && (weight >= params.min_p || x == max);
            if allowed {
                self.candidates.push(id as u32);
            }
        }
        self.keep_top_k(params.top_k as usize);
        if params.top_p < 1.0 {
            self.keep_top_p(params.top_p);
        }
        Some(self.draw(philox::uniform(row.seed, row.choice, row.position)))
    }

    /// Fills `adjusted`: bias, penalties, and last the mask, which none of them can lift.
    #[inline(always)]
    fn adjust(&mut self, logits: &[f32], row: &SampleRow, history: &History) {
        self.adjusted.clear();
        self.adjusted.extend_from_slice(logits);
        for &(id, bias) in &row.bias {
            if let Some(x) = self.adjusted.get_mut(id as usize) {
                *x = finite(*x + bias);
            }
        }
        let params = &row.params;
        let penalised = params.repetition_penalty != 1.0
            || params.frequency_penalty != 0.0
            || params.presence_penalty != 0.0;
        if penalised {
            self.penalise(row, history);
        }
        if let Some(mask) = &row.mask {
            for (id, x) in self.adjusted.iter_mut().enumerate() {
                let word = mask.get(id / 32).copied().unwrap_or(0);
                if word >> (id % 32) & 1 == 0 {
                    *x = f32::NEG_INFINITY;
                }
            }
        }
    }

    fn penalise(&mut self, row: &SampleRow, history: &History) {
        let vocabulary = self.adjusted.len();
        let tokens = history
            .prompt
            .iter()
            .map(|&t| (t, 0))
            .chain(history.output.iter().map(|&t| (t, 1)));
        for (token, uses) in tokens.filter(|&(t, _)| (t as usize) < vocabulary) {
            let count = &mut self.counts[token as usize];
            if *count == 0 {
                self.touched.push(token);
            }
            *count = (*count | SEEN) + uses;
        }
        let params = &row.params;
        for token in self.touched.drain(..) {
            let uses = std::mem::take(&mut self.counts[token as usize]) & !SEEN;
            let mut x = self.adjusted[token as usize];
            x = if x > 0.0 {
                x / params.repetition_penalty
            } else {
                x * params.repetition_penalty
            };
            if uses > 0 {
                x -= params.frequency_penalty * uses as f32 + params.presence_penalty;
            }
            self.adjusted[token as usize] = finite(x);
        }
    }

    fn keep_top_k(&mut self, top_k: usize) {
        if top_k == 0 || top_k >= self.candidates.len() {
            return;
        }
        let adjusted = &self.adjusted;
        self.candidates
            .select_nth_unstable_by(top_k - 1, |&a, &b| by_likelihood(adjusted, a, b));
        self.candidates.truncate(top_k);
        self.candidates.sort_unstable();
    }

    /// Keeps the shortest prefix, in order of likelihood, whose weight reaches `top_p` of the total.
    fn keep_top_p(&mut self, top_p: f32) {
        let target = f64::from(top_p) * self.total();
        let adjusted = &self.adjusted;
        let order = |a: &u32, b: &u32| by_likelihood(adjusted, *a, *b);
        let (mut start, mut width, mut sum) = (0, 64, 0.0);
        let mut kept = self.candidates.len();
        'prefix: while start < self.candidates.len() {
            let rest = &mut self.candidates[start..];
            if width < rest.len() {
                rest.select_nth_unstable_by(width - 1, order);
            }
            let end = width.min(rest.len());
            rest[..end].sort_unstable_by(order);
            for (i, &id) in rest[..end].iter().enumerate() {
                sum += f64::from(self.weights[id as usize]);
                if sum >= target {
                    kept = start + i + 1;
                    break 'prefix;
                }
            }
            start += end;
            width *= 4;
        }
        self.candidates.truncate(kept);
        self.candidates.sort_unstable();
    }

    #[inline(always)]
    fn total(&self) -> f64 {
        const LANES: usize = 8;
        let weight = |id: u32| f64::from(self.weights[id as usize]);
        let mut lanes = [0.0; LANES];
        let (chunks, rest) = self.candidates.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, &id) in lanes.iter_mut().zip(chunk) {
                *lane += weight(id);
            }
        }
        lanes.iter().sum::<f64>() + rest.iter().map(|&id| weight(id)).sum::<f64>()
    }

    /// Returns the candidate at `uniform` (in `[0, 1)`) of the cumulative weight by ascending id.
    #[inline(always)]
    fn draw(&self, uniform: f64) -> u32 {
        let target = uniform * self.total();
        let mut sum = 0.0;
        let mut drawn = 0;
        for &id in &self.candidates {
            let weight = f64::from(self.weights[id as usize]);
            if weight > 0.0 {
                drawn = id;
            }
            sum += weight;
            if sum > target {
                break;
            }
        }
        drawn
    }
}

/// Returns whether the row's token is the highest logit as it stands.
fn is_plain_greedy(row: &SampleRow) -> bool {
    let params = &row.params;
    params.is_greedy()
        && params.repetition_penalty == 1.0
        && params.frequency_penalty == 0.0
        && params.presence_penalty == 0.0
        && row.mask.is_none()
        && row.bias.is_empty()
}

/// Returns whether nothing of a row's logits matters but which is the greatest.
pub(super) fn needs_only_greatest(row: &SampleRow) -> bool {
    row.live && row.forced.is_none() && row.logprobs.is_none() && is_plain_greedy(row)
}

/// Orders ids by descending logit, then ascending id.
fn by_likelihood(logits: &[f32], a: u32, b: u32) -> Ordering {
    let (x, y) = (logits[a as usize], logits[b as usize]);
    y.partial_cmp(&x).unwrap_or(Ordering::Equal).then(a.cmp(&b))
}

/// Keeps a sum of user-given numbers comparable.
fn finite(x: f32) -> f32 {
    if x.is_nan() {
        f32::MIN
    } else {
        x.clamp(f32::MIN, f32::MAX)
    }
}

#[inline(always)]
fn first_equal(logits: &[f32], max: f32) -> Option<u32> {
    logits.iter().position(|&x| x == max).map(|id| id as u32)
}

/// Returns the greatest logit, or `None` if one is not finite or there are none.
#[inline(always)]
fn finite_max(logits: &[f32]) -> Option<f32> {
    const EXPONENT: u32 = 0x7f80_0000;
    const LANES: usize = 16;
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut special = [0u32; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let x = chunk[lane];
            max[lane] = if x > max[lane] { x } else { max[lane] };
            special[lane] |= u32::from(x.to_bits() & EXPONENT == EXPONENT);
        }
    }
    for &x in rest {
        max[0] = if x > max[0] { x } else { max[0] };
        special[0] |= u32::from(!x.is_finite());
    }
    let max = max.into_iter().fold(f32::NEG_INFINITY, f32::max);
    (special == [0; LANES] && !logits.is_empty()).then_some(max)
}

/// Returns `ln(sum(e^x))` over the logits, whose greatest is `max`.
#[inline(always)]
fn log_sum_exp(logits: &[f32], max: f32) -> f64 {
    const LANES: usize = 16;
    const CHUNK: usize = 32 * LANES;
    let mut sum = 0.0f64;
    for chunk in logits.chunks(CHUNK) {
        // Short f32 sums in fixed lanes, then f64: fast, and exact to well below f32's resolution.
        let mut lanes = [0.0f32; LANES];
        let (blocks, rest) = chunk.as_chunks::<LANES>();
        for block in blocks {
            for lane in 0..LANES {
                lanes[lane] += exp(block[lane] - max);
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane += exp(x - max);
        }
        sum += lanes.iter().map(|&x| f64::from(x)).sum::<f64>();
    }
    f64::from(max) + sum.ln()
}

/// Returns the `count` highest logits in order of likelihood.
#[inline(always)]
fn most_likely(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let count = count.min(logits.len());
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(count);
    if count == 0 {
        return top;
    }
    for (id, &x) in logits.iter().enumerate() {
        if top.len() == count {
            if top[count - 1].1 >= x {
                continue;
            }
            top.pop();
        }
        let at = top.partition_point(|entry| entry.1 >= x);
        top.insert(at, (id as u32, x));
    }
    top
}
