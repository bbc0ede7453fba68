//! What one step takes in and gives back.

/// Upper bounds of a step's shape. A backend without graphs gets the exact counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bucket {
    /// Token rows.
    pub rows: usize,
    /// Sequences.
    pub sequences: usize,
    /// Rows whose logits are needed.
    pub logit_rows: usize,
}

/// One sequence's share of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSequence {
    /// Its slot: last token and history on the device.
    pub slot: u32,
    /// First of its rows.
    pub q_start: u32,
    /// Number of its rows.
    pub q_len: u32,
    /// Tokens in its cache once this step's rows are written.
    pub kv_len: u32,
}

/// The pages of all sequences in one layer group, concatenated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageTable {
    /// Page ids, sequence after sequence, in token order.
    pub pages: Vec<u32>,
    /// Where each sequence begins in `pages`: `[sequences + 1]`.
    pub starts: Vec<u32>,
    /// For each row, `page * page_tokens + offset` where its K and V go: `[rows]`.
    pub write_slots: Vec<u32>,
}

/// Sequences whose first pages are the same: attention may read them once for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareGroup {
    /// Full pages in common, counted from position 0.
    pub pages: u32,
    /// Indices into [`StepInputs::sequences`].
    pub members: Vec<u32>,
}

/// Sets a slot to a known state before the step runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotReset {
    /// The slot.
    pub slot: u32,
    /// The prompt, for repetition penalties.
    pub prompt: Vec<u32>,
    /// Tokens generated so far (preemption, resume).
    pub output: Vec<u32>,
}

/// Everything about a step that differs between sequences.
#[derive(Debug, Clone, Default)]
pub struct StepInputs {
    /// The shape that operations run on; at least the counts below.
    pub bucket: Bucket,
    /// Token ids `[rows]`; [`StepInputs::LAST`] set means "the last token of the slot in the low bits".
    pub tokens: Vec<u32>,
    /// Positions `[rows]`.
    pub positions: Vec<u32>,
    /// Token types `[rows]`; empty for decoders.
    pub token_types: Vec<u32>,
    /// Sequences, in row order.
    pub sequences: Vec<StepSequence>,
    /// One table for each KV group.
    pub page_tables: Vec<PageTable>,
    /// Share groups; a sequence is in at most one.
    pub share_groups: Vec<ShareGroup>,
    /// Rows whose logits are needed, ascending: `[S]`.
    pub logit_rows: Vec<u32>,
    /// Slots that start, or start again, with this step.
    pub resets: Vec<SlotReset>,
}

impl StepInputs {
    /// Flag of a token that only the device knows.
    pub const LAST: u32 = 1 << 31;

    /// Returns the exact shape of the step.
    pub fn exact_bucket(&self) -> Bucket {
        Bucket {
            rows: self.tokens.len(),
            sequences: self.sequences.len(),
            logit_rows: self.logit_rows.len(),
        }
    }
}

/// How one row's token is chosen, in the order of application.
///
/// Mask of padding ids; log-softmax (what logprobs report); grammar mask; `bias`; repetition penalty over
/// prompt and output; frequency and presence penalties over output; temperature; `min_p`; `top_k`; `top_p`;
/// draw. The sets are exact. Ties go to the lower id.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// Smallest set whose probability reaches this; 1.0 is all.
    pub top_p: f32,
    /// The most likely this many; 0 is all.
    pub top_k: u32,
    /// Those at least this times as likely as the most likely; 0.0 is all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen; 1.0 is none.
    pub repetition_penalty: f32,
    /// Subtracted for each time a token was generated.
    pub frequency_penalty: f32,
    /// Subtracted once for a token that was generated.
    pub presence_penalty: f32,
}

impl SampleParams {
    /// The most likely token, always.
    pub const GREEDY: SampleParams = SampleParams {
        temperature: 0.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
    };

    /// Returns whether the most likely token is taken, and nothing drawn; so it is when the temperature is no
    /// number.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 || self.temperature.is_nan()
    }
}

/// One row to sample.
#[derive(Debug, Clone)]
pub struct SampleRow {
    /// The slot whose history grows.
    pub slot: u32,
    /// False: compute nothing, append nothing (a surplus row of a sequence that has stopped).
    pub live: bool,
    /// Draws are `Philox(seed; choice, position)`.
    pub seed: u64,
    /// Index of the choice (`n > 1`).
    pub choice: u32,
    /// Index of the token in the output, from 0.
    pub position: u32,
    /// Parameters.
    pub params: SampleParams,
    /// Allowed tokens, one bit each, little-endian words; none is all.
    pub mask: Option<Vec<u32>>,
    /// Added to logits.
    pub bias: Vec<(u32, f32)>,
    /// How many of the most likely tokens to report beside the drawn one; none: no log-probabilities at all,
    /// which spares a pass over the vocabulary.
    pub logprobs: Option<u32>,
    /// Take this token, whatever the logits say (replay, prompt scoring).
    pub forced: Option<u32>,
}

impl SampleRow {
    /// Returns a row that takes the most likely token of all, and reports no log-probabilities.
    #[must_use]
    pub fn greedy(slot: u32, position: u32) -> Self {
        Self {
            slot,
            live: true,
            seed: 0,
            choice: 0,
            position,
            params: SampleParams::GREEDY,
            mask: None,
            bias: Vec::new(),
            logprobs: None,
            forced: None,
        }
    }
}

/// What [`super::Backend::sample`] needs beside the logits.
#[derive(Debug, Clone, Default)]
pub struct SampleInputs {
    /// One for each logit row of the step, in their order.
    pub rows: Vec<SampleRow>,
    /// Ids from here on are padding and never sampled.
    pub vocabulary: usize,
}

/// Names the results of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// What a step produced. All vectors follow the step's logit rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepOutput {
    /// Sampled token; meaningless where the row was not live or is bad.
    pub tokens: Vec<u32>,
    /// Its log-probability before masks, penalties and temperature; 0 where none was asked for.
    pub logprobs: Vec<f32>,
    /// The most likely tokens and their log-probabilities, most likely first.
    pub top_n: Vec<Vec<(u32, f32)>>,
    /// Pooled rows `[sequences that ended, H]`.
    pub pooled: Vec<Vec<f32>>,
    /// Indices of rows with a logit that is not finite.
    pub bad_rows: Vec<u32>,
}
