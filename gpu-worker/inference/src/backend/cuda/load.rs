//! Loading: the arena, and weights on their way to the device.
//!
//! Weights go through two pinned buffers: threads decode one while the device copies the other.

use half::bf16;

use super::driver::{Device, Event, Pinned, Said};
use super::{device_error, unsupported};
use crate::backend::{BackendError, Recipe, WeightDesc, WeightSource, WeightUse};
use crate::model::ModelError;

/// Small things share allocations of this size.
const CHUNK_BYTES: usize = 2 << 20;

/// Words of one staging buffer.
const STAGING_WORDS: usize = 4 << 20;

/// The most threads that decode weights.
const THREADS_MAX: usize = 16;

/// Values that one thread should have at least.
const VALUES_PER_THREAD: usize = 1 << 18;

/// Memory of the device in pieces that stay until the end.
#[derive(Debug, Default)]
pub(super) struct Arena {
    next: u64,
    left: usize,
}

impl Arena {
    /// Takes `bytes` that begin at a multiple of 256.
    pub(super) fn take(
        &mut self,
        device: &mut Device,
        bytes: usize,
        what: &str,
    ) -> Result<u64, BackendError> {
        let bytes = bytes
            .max(1)
            .checked_next_multiple_of(256)
            .unwrap_or(usize::MAX);
        if bytes > self.left && bytes >= CHUNK_BYTES / 2 {
            return allocate(device, bytes, what);
        }
        if bytes > self.left {
            self.next = allocate(device, CHUNK_BYTES, what)?;
            self.left = CHUNK_BYTES;
        }
        let at = self.next;
        self.next += bytes as u64;
        self.left -= bytes;
        Ok(at)
    }
}

fn allocate(device: &mut Device, bytes: usize, what: &str) -> Result<u64, BackendError> {
    match device.allocate(bytes).map_err(device_error)? {
        Some(at) => Ok(at),
        None => Err(no_room(device, bytes, what)),
    }
}

/// Returns the error that `what` does not fit.
pub(super) fn no_room(device: &Device, needed_bytes: usize, what: &str) -> BackendError {
    BackendError::OutOfMemory {
        what: what.to_owned(),
        needed_bytes,
        available_bytes: device.memory_bytes().map_or(0, |bytes| bytes.0),
    }
}

/// A weight on the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stored {
    /// Output features of one matrix.
    pub(super) n: usize,
    /// Input features.
    pub(super) k: usize,
    /// Experts or heads.
    pub(super) stacks: usize,
    /// bf16 rows, where there are any.
    pub(super) bf16: Option<Matrix>,
    /// Codes, where the recipe has them.
    pub(super) int8: Option<Matrix>,
    /// Address of a gain or a bias in f32; 0 for matrices.
    pub(super) vector: u64,
}

/// Rows of numbers on the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix {
    pub(super) at: u64,
    /// Elements from row to row.
    pub(super) ld: usize,
    /// Address of the scale of each row; 0 for bf16.
    pub(super) scales: u64,
}

/// How values become bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    F32,
    Bf16,
    Int8,
}

/// Two pinned buffers for weights.
#[derive(Debug)]
pub(super) struct Staging {
    buffers: [(Pinned, Event, bool); 2],
    next: usize,
}

impl Staging {
    /// Allocates the buffers.
    pub(super) fn new(device: &mut Device) -> Said<Self> {
        let mut buffer = || -> Said<_> {
            Ok((
                device.allocate_pinned(STAGING_WORDS)?,
                device.event()?,
                false,
            ))
        };
        Ok(Self {
            buffers: [buffer()?, buffer()?],
            next: 0,
        })
    }

    /// Takes the buffer that was used longest ago, once the device has read it.
    fn turn(&mut self, device: &Device) -> Said<Pinned> {
        self.next = 1 - self.next;
        let (pinned, event, used) = &mut self.buffers[self.next];
        if std::mem::replace(used, true) {
            device.wait(*event)?;
        }
        Ok(*pinned)
    }

    fn sent(&self, device: &Device) -> Said<()> {
        device.record(self.buffers[self.next].1)
    }

    /// Uploads numbers as they are.
    pub(super) fn send_floats(&mut self, device: &mut Device, at: u64, values: &[f32]) -> Said<()> {
        for (i, part) in values.chunks(STAGING_WORDS).enumerate() {
            let pinned = self.turn(device)?;
            let words = device.words_mut(pinned, 0, part.len());
            for (word, value) in words.iter_mut().zip(part) {
                *word = value.to_bits();
            }
            device.copy_in(at + (4 * i * STAGING_WORDS) as u64, pinned, 0, part.len())?;
            self.sent(device)?;
        }
        Ok(())
    }
}

/// What loading writes to.
pub(super) struct Loader<'a> {
    pub(super) device: &'a mut Device,
    pub(super) arena: &'a mut Arena,
    pub(super) staging: &'a mut Staging,
}

impl Loader<'_> {
    /// Uploads a weight in the forms that its use and its recipe need.
    pub(super) fn weight(
        &mut self,
        desc: &WeightDesc,
        source: &dyn WeightSource,
    ) -> Result<Stored, BackendError> {
        let mut stored = Stored {
            n: desc.n,
            k: desc.k,
            stacks: desc.experts * desc.heads,
            bf16: None,
            int8: None,
            vector: 0,
        };
        let (table, codes) = match (desc.used_as, desc.recipe) {
            (WeightUse::Vector, _) => {
                stored.vector = self.rows(desc, source, Encoding::F32)?.at;
                return Ok(stored);
            }
            (_, Recipe::F32) => return Err(unsupported("products in f32")),
            (WeightUse::Linear, Recipe::Int8) => (false, true),
            (WeightUse::TiedEmbedding, Recipe::Int8) => (true, true),
            (WeightUse::Embedding, _) | (_, Recipe::Bf16) => (true, false),
        };
        if table {
            stored.bf16 = Some(self.rows(desc, source, Encoding::Bf16)?);
        }
        if codes {
            stored.int8 = Some(self.rows(desc, source, Encoding::Int8)?);
        }
        Ok(stored)
    }

    fn rows(
        &mut self,
        desc: &WeightDesc,
        source: &dyn WeightSource,
        encoding: Encoding,
    ) -> Result<Matrix, BackendError> {
        let (rows, k) = (source.rows(), source.cols());
        // Vectors lie without gaps; rows of matrices begin at multiples of 16 bytes.
        let (ld, row_bytes) = match encoding {
            Encoding::F32 => (k, 4 * k),
            Encoding::Bf16 => (k.next_multiple_of(8), 2 * k.next_multiple_of(8)),
            Encoding::Int8 => (k.next_multiple_of(16), k.next_multiple_of(16)),
        };
        let bytes = rows.saturating_mul(row_bytes);
        let at = self.arena.take(self.device, bytes, &desc.name)?;
        let mut scales = vec![0f32; if encoding == Encoding::Int8 { rows } else { 0 }];
        let row_words = row_bytes / 4;
        let step = (STAGING_WORDS / row_words.max(1)).max(1);
        if row_words > STAGING_WORDS {
            return Err(unsupported(format!("rows of {k} values in {}", desc.name)));
        }
        for first in (0..rows).step_by(step) {
            let count = step.min(rows - first);
            let pinned = self.staging.turn(self.device).map_err(device_error)?;
            let words = self.device.words_mut(pinned, 0, count * row_words);
            let scales = scales.get_mut(first..first + count).unwrap_or_default();
            encode_rows(source, first, words, row_words, scales, encoding).map_err(|source| {
                BackendError::Weight {
                    name: desc.name.clone(),
                    source,
                }
            })?;
            let to = at + (first * row_bytes) as u64;
            let sent = self
                .device
                .copy_in(to, pinned, 0, count * row_words)
                .and_then(|()| self.staging.sent(self.device));
            sent.map_err(device_error)?;
        }
        let scales = if scales.is_empty() {
            0
        } else {
            let scales_at = self.arena.take(self.device, 4 * rows, &desc.name)?;
            self.staging
                .send_floats(self.device, scales_at, &scales)
                .map_err(device_error)?;
            scales_at
        };
        Ok(Matrix { at, ld, scales })
    }
}

/// Decodes rows on as many threads as are worth it.
fn encode_rows(
    source: &dyn WeightSource,
    first: usize,
    words: &mut [u32],
    row_words: usize,
    scales: &mut [f32],
    encoding: Encoding,
) -> Result<(), ModelError> {
    if row_words == 0 {
        return Ok(());
    }
    let rows = words.len() / row_words;
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(THREADS_MAX)
        .min(rows * source.cols() / VALUES_PER_THREAD)
        .max(1);
    if threads == 1 {
        return encode_part(source, first, words, row_words, scales, encoding);
    }
    let per_thread = rows.div_ceil(threads);
    let parts = words.chunks_mut(per_thread * row_words).enumerate();
    std::thread::scope(|scope| {
        let mut scales = scales.chunks_mut(per_thread.max(1));
        let tasks: Vec<_> = parts
            .map(|(i, words)| {
                let scales = scales.next().unwrap_or_default();
                let first = first + i * per_thread;
                scope.spawn(move || encode_part(source, first, words, row_words, scales, encoding))
            })
            .collect();
        tasks.into_iter().try_for_each(|task| match task.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

fn encode_part(
    source: &dyn WeightSource,
    first: usize,
    words: &mut [u32],
    row_words: usize,
    scales: &mut [f32],
    encoding: Encoding,
) -> Result<(), ModelError> {
    let mut values = vec![0.0; source.cols()];
    for (i, words) in words.chunks_exact_mut(row_words).enumerate() {
        source.read_rows(first + i, &mut values)?;
        match encoding {
            Encoding::F32 => {
                for (word, value) in words.iter_mut().zip(&values) {
                    *word = value.to_bits();
                }
            }
            Encoding::Bf16 => {
                for (word, pair) in words.iter_mut().zip(values.chunks(2)) {
                    *word = pair.iter().rev().fold(0, |word, &value| {
                        word << 16 | u32::from(bf16::from_f32(value).to_bits())
                    });
                }
                words[values.len().div_ceil(2)..].fill(0);
            }
            Encoding::Int8 => {
                let scale = row_scale(&values);
                scales[i] = scale;
                for (word, four) in words.iter_mut().zip(values.chunks(4)) {
                    *word = four.iter().rev().fold(0, |word, &value| {
                        word << 8 | u32::from((value / scale).round_ties_even() as i8 as u8)
                    });
                }
                words[values.len().div_ceil(4)..].fill(0);
            }
        }
    }
    Ok(())
}

/// Returns what one step of a code is worth.
fn row_scale(values: &[f32]) -> f32 {
    let most = values
        .iter()
        .fold(0f32, |most, value| most.max(value.abs()));
    if most == 0.0 { 1.0 } else { most / 127.0 }
}
