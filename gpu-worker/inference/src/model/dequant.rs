//! Turns stored blocks into f32.
//!
//! The arithmetic is that of ggml's reference code, operation for operation: results are equal to the bit.

use half::{bf16, f16};

use crate::backend::Format;

/// The unit in which a format stores numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    /// Numbers in a block.
    pub(crate) values: usize,
    /// Bytes of a block.
    pub(crate) bytes: usize,
}

/// Returns the block of a format; a single number where there are no blocks.
pub(crate) fn block_of(format: Format) -> Block {
    let (values, bytes) = match format {
        Format::F32 => (1, 4),
        Format::F16 | Format::Bf16 => (1, 2),
        Format::Q4_0 => (32, 18),
        Format::Q4_1 => (32, 20),
        Format::Q8_0 => (32, 34),
        Format::Q4K => (256, 144),
        Format::Q6K => (256, 210),
    };
    Block { values, bytes }
}

/// Decodes blocks into `out`.
///
/// # Panics
///
/// If `bytes` and `out` are not the same number of whole blocks.
pub(crate) fn dequantise(format: Format, bytes: &[u8], out: &mut [f32]) {
    let block = block_of(format);
    assert!(
        bytes.len().is_multiple_of(block.bytes)
            && out.len().is_multiple_of(block.values)
            && bytes.len() / block.bytes == out.len() / block.values,
        "{} bytes of {format:?} do not hold {} values",
        bytes.len(),
        out.len()
    );
    let decode = match format {
        Format::F32 => {
            |b: &[u8], out: &mut [f32]| out[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]])
        }
        Format::F16 => |b: &[u8], out: &mut [f32]| out[0] = half_at(b, 0),
        Format::Bf16 => {
            |b: &[u8], out: &mut [f32]| out[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32()
        }
        Format::Q4_0 => q4_0,
        Format::Q4_1 => q4_1,
        Format::Q8_0 => q8_0,
        Format::Q4K => q4_k,
        Format::Q6K => q6_k,
    };
    for (bytes, out) in bytes
        .chunks_exact(block.bytes)
        .zip(out.chunks_exact_mut(block.values))
    {
        decode(bytes, out);
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Block: scale d, then 16 bytes whose low nibbles are values 0..16 and high nibbles 16..32.
fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, &byte) in block[2..].iter().enumerate() {
        out[i] = (f32::from(byte & 15) - 8.0) * d;
        out[i + 16] = (f32::from(byte >> 4) - 8.0) * d;
    }
}

/// Block: scale d, minimum m, then nibbles as in [`q4_0`].
fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (i, &byte) in block[4..].iter().enumerate() {
        out[i] = f32::from(byte & 15) * d + m;
        out[i + 16] = f32::from(byte >> 4) * d + m;
    }
}

/// Block: scale d, then 32 signed bytes.
fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (out, &byte) in out.iter_mut().zip(&block[2..]) {
        *out = f32::from(byte.cast_signed()) * d;
    }
}

/// Block: scales d and dmin, 12 bytes of 6-bit scales and minima for 8 sub-blocks of 32, 128 bytes of nibbles.
fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (scales, nibbles) = (&block[4..16], &block[16..]);
    for (pair, (nibbles, out)) in nibbles
        .chunks_exact(32)
        .zip(out.chunks_exact_mut(64))
        .enumerate()
    {
        let (low, high) = out.split_at_mut(32);
        for (half, out) in [low, high].into_iter().enumerate() {
            let (scale, minimum) = q4_k_scale(scales, 2 * pair + half);
            let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
            for (out, &byte) in out.iter_mut().zip(nibbles) {
                *out = scale * f32::from((byte >> (4 * half)) & 15) - minimum;
            }
        }
    }
}

/// Unpacks the scale and the minimum of sub-block `j` of 8.
fn q4_k_scale(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let scale = (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4);
        let minimum = (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4);
        (scale, minimum)
    }
}

/// Block: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales for sub-blocks of 16, scale d.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, high, scales, d) = (
        &block[..128],
        &block[128..192],
        &block[192..208],
        half_at(block, 208),
    );
    for (half, out) in out.chunks_exact_mut(128).enumerate() {
        let (low, high, scales) = (&low[64 * half..], &high[32 * half..], &scales[8 * half..]);
        for (i, out) in out.iter_mut().enumerate() {
            let (quarter, column) = (i / 32, i % 32);
            let nibble = (low[column + 32 * (quarter % 2)] >> (4 * (quarter / 2))) & 15;
            let bits = (high[column] >> (2 * quarter)) & 3;
            let value = (nibble | (bits << 4)).cast_signed() - 32;
            *out = d * f32::from(scales[i / 16].cast_signed()) * f32::from(value);
        }
    }
}

#[cfg(test)]
mod tests;
