//! What every blobs adapter refuses, as pure functions. Never touches a blob.
//!
//! Source: Amazon S3 multipart upload limits.

use super::PartTag;

/// Fewest bytes of a part that is not the last: 5 MiB.
pub const PART_BYTES_MIN: u64 = 5 * 1024 * 1024;

/// Most bytes of a part: 5 GiB.
pub const PART_BYTES_MAX: u64 = 5 * 1024 * 1024 * 1024;

/// Highest number of a part.
pub const PART_NUMBER_MAX: u32 = 10_000;

/// Why a request breaks the port's limits. Always a bug of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlobLimit {
    /// A part number that is none.
    #[error("the part number {0}, not 1 to {PART_NUMBER_MAX}")]
    PartNumber(u32),
    /// A part that is too small to be followed by another.
    #[error(
        "part {number} has {bytes} bytes and is not the last, but has less than {PART_BYTES_MIN}"
    )]
    PartTooSmall {
        /// Number.
        number: u32,
        /// Its size.
        bytes: u64,
    },
    /// A part that is too large.
    #[error("a part of {0} bytes, more than {PART_BYTES_MAX}")]
    PartTooLarge(u64),
    /// A blob of no parts.
    #[error("a blob of parts needs a part")]
    NoParts,
    /// Numbers out of order.
    #[error("part {next} comes after part {before}")]
    PartOrder {
        /// The number before.
        before: u32,
        /// A number that is not above it.
        next: u32,
    },
    /// A range that its source does not have.
    #[error("the range {start}..{end} of a blob of {bytes} bytes")]
    Range {
        /// First byte.
        start: u64,
        /// Beyond the last byte.
        end: u64,
        /// Size of the source.
        bytes: u64,
    },
    /// A prefix of every path.
    #[error("a prefix needs a character")]
    EmptyPrefix,
}

/// Checks a part before it is stored.
///
/// # Errors
///
/// [`BlobLimit`]: `PartNumber`, `PartTooLarge`.
pub fn check_part(number: u32, bytes: u64) -> Result<(), BlobLimit> {
    if !(1..=PART_NUMBER_MAX).contains(&number) {
        return Err(BlobLimit::PartNumber(number));
    }
    if bytes > PART_BYTES_MAX {
        Err(BlobLimit::PartTooLarge(bytes))
    } else {
        Ok(())
    }
}

/// Checks the range of a copied part.
///
/// # Errors
///
/// [`BlobLimit::Range`].
pub fn check_range(start: u64, end: u64, bytes: u64) -> Result<(), BlobLimit> {
    if start < end && end <= bytes {
        Ok(())
    } else {
        Err(BlobLimit::Range { start, end, bytes })
    }
}

/// Checks the parts of a blob that is to be finished.
///
/// # Errors
///
/// [`BlobLimit`]: `NoParts`, `PartNumber`, `PartOrder`, `PartTooSmall`.
pub fn check_parts(parts: &[PartTag]) -> Result<(), BlobLimit> {
    let Some((last, others)) = parts.split_last() else {
        return Err(BlobLimit::NoParts);
    };
    check_part(last.number, last.bytes)?;
    for (part, next) in others.iter().zip(&parts[1..]) {
        check_part(part.number, part.bytes)?;
        if next.number <= part.number {
            return Err(BlobLimit::PartOrder {
                before: part.number,
                next: next.number,
            });
        }
        if part.bytes < PART_BYTES_MIN {
            return Err(BlobLimit::PartTooSmall {
                number: part.number,
                bytes: part.bytes,
            });
        }
    }
    Ok(())
}
