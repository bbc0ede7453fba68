//! The sampling parameters that chat, completions and responses share.

use std::sync::Arc;

use inference::backend::SampleParams;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::LineContext;
use super::fields::{Fields, LineError, wrong_type};

/// The most stop strings of a request: OpenAI's limit.
const STOP_STRINGS_MAX: usize = 4;

/// The most choices of a request: OpenAI's limit.
const CHOICES_MAX: i64 = 128;

/// Below it, 2^53, every whole number is one `f64`, and no other rounds to it.
const EXACT_F64_MAX: f64 = 9_007_199_254_740_992.0;

/// One sequence of a line, before it has a request id.
#[derive(Debug, Clone)]
pub struct SequenceSpec {
    /// Prompt token ids.
    pub prompt: Arc<[u32]>,
    /// Index of the choice: choices of one prompt draw from different streams.
    pub choice: u32,
    /// Seed of the draws.
    pub seed: u64,
    /// The most tokens to generate.
    pub max_tokens: u32,
    /// How tokens are chosen.
    pub params: SampleParams,
    /// Added to logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// How many of the most likely tokens to report; none: no logprobs.
    pub logprobs: Option<u32>,
    /// Strings that end the text.
    pub stop: Vec<Vec<u8>>,
    /// Goes on past the model's stop tokens.
    pub ignore_eos: bool,
}

/// What a request says about sampling.
#[derive(Debug)]
pub(super) struct Sampling {
    pub(super) choices: u32,
    pub(super) seed: u64,
    pub(super) params: SampleParams,
    pub(super) logit_bias: Vec<(u32, f32)>,
    pub(super) stop: Vec<Vec<u8>>,
    pub(super) ignore_eos: bool,
}

impl Sampling {
    /// Reads the parameters that every endpoint knows, and the usual extensions of open servers
    /// (`top_k`, `min_p`, `repetition_penalty`, `ignore_eos`).
    pub(super) fn read(body: &Fields, context: &LineContext<'_>) -> Result<Self, LineError> {
        if body.boolean("stream")? == Some(true) {
            return Err(LineError::unsupported("stream", "a batch does not stream"));
        }
        let greedy = SampleParams::GREEDY;
        let params = SampleParams {
            temperature: body.number("temperature", 0.0, 2.0)?.unwrap_or(1.0),
            top_p: body.number("top_p", 0.0, 1.0)?.unwrap_or(greedy.top_p),
            top_k: body
                .integer("top_k", -1, i64::from(u32::MAX))?
                .map_or(greedy.top_k, |k| u32::try_from(k).unwrap_or(0)),
            min_p: body.number("min_p", 0.0, 1.0)?.unwrap_or(greedy.min_p),
            repetition_penalty: body
                .number("repetition_penalty", 0.01, 10.0)?
                .unwrap_or(greedy.repetition_penalty),
            frequency_penalty: body
                .number("frequency_penalty", -2.0, 2.0)?
                .unwrap_or(greedy.frequency_penalty),
            presence_penalty: body
                .number("presence_penalty", -2.0, 2.0)?
                .unwrap_or(greedy.presence_penalty),
        };
        Ok(Self {
            choices: body.integer("n", 1, CHOICES_MAX)?.unwrap_or(1) as u32,
            seed: seed(body, context)?,
            params,
            logit_bias: logit_bias(body)?,
            stop: stop(body)?,
            ignore_eos: body.boolean("ignore_eos")?.unwrap_or(false),
        })
    }

    /// Makes one sequence for each choice of one prompt; choices count up from `first_choice`.
    pub(super) fn sequences(
        &self,
        prompt: Vec<u32>,
        first_choice: u32,
        max_tokens: Option<u32>,
        logprobs: Option<u32>,
        context: &LineContext<'_>,
    ) -> impl Iterator<Item = SequenceSpec> {
        let prompt: Arc<[u32]> = prompt.into();
        let room = context
            .context_tokens
            .saturating_sub(prompt.len() as u32)
            .max(1);
        (0..self.choices).map(move |choice| SequenceSpec {
            prompt: Arc::clone(&prompt),
            choice: first_choice + choice,
            seed: self.seed,
            max_tokens: max_tokens.map_or(room, |max| max.min(room)),
            params: self.params,
            logit_bias: self.logit_bias.clone(),
            logprobs,
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
        })
    }
}

/// Integers of any size are seeds: those beyond 64 bits count by their digits.
fn seed(body: &Fields, context: &LineContext<'_>) -> Result<u64, LineError> {
    let Some(value) = body.get("seed") else {
        let mut hash = Sha256::new();
        hash.update(context.run.as_bytes());
        hash.update([0]);
        hash.update(context.custom_id_json.as_bytes());
        return Ok(first_u64(&hash.finalize()));
    };
    if let Some(seed) = value.as_i64() {
        return Ok(seed.cast_unsigned());
    }
    if let Some(seed) = value.as_u64() {
        return Ok(seed);
    }
    match (value.as_f64(), body.wide_seed()) {
        // 7.0 is written by clients whose language has one number type.
        (Some(number), _) if number.fract() == 0.0 && number.abs() < EXACT_F64_MAX => {
            Ok((number as i64).cast_unsigned())
        }
        (Some(number), Some(digits)) if number.fract() == 0.0 => {
            Ok(first_u64(&Sha256::digest(digits.as_bytes())))
        }
        (Some(_) | None, Some(_) | None) => Err(wrong_type("seed", "an integer", value)),
    }
}

fn first_u64(digest: &[u8]) -> u64 {
    digest
        .iter()
        .take(8)
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn stop(body: &Fields) -> Result<Vec<Vec<u8>>, LineError> {
    let invalid = |value| wrong_type("stop", "a string or an array of strings", value);
    let strings = match body.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text.as_str()],
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| item.as_str().ok_or_else(|| invalid(item)))
            .collect::<Result<_, _>>()?,
        Some(value) => return Err(invalid(value)),
    };
    if strings.len() > STOP_STRINGS_MAX {
        return Err(LineError::invalid(
            "stop",
            "array_above_max_length",
            format!(
                "Invalid 'stop': at most {STOP_STRINGS_MAX} strings are allowed, but got {}.",
                strings.len()
            ),
        ));
    }
    if strings.iter().any(|text| text.is_empty()) {
        return Err(LineError::invalid(
            "stop",
            "invalid_value",
            "Invalid 'stop': a stop string must not be empty.",
        ));
    }
    Ok(strings
        .into_iter()
        .map(|text| text.as_bytes().to_vec())
        .collect())
}

fn logit_bias(body: &Fields) -> Result<Vec<(u32, f32)>, LineError> {
    let object = match body.get("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(object)) => object,
        Some(value) => return Err(wrong_type("logit_bias", "an object", value)),
    };
    let entry = |(token, bias): (&String, &Value)| match (token.parse(), bias.as_f64()) {
        (Ok(token), Some(bias)) if (-100.0..=100.0).contains(&bias) => Ok((token, bias as f32)),
        (Ok(_) | Err(_), Some(_) | None) => Err(LineError::invalid(
            "logit_bias",
            "invalid_value",
            "Invalid 'logit_bias': keys must be token ids and values numbers from -100 to 100.",
        )),
    };
    object.iter().map(entry).collect()
}
