//! Reads GGUF files, versions 2 and 3: metadata and where the tensors lie.
//!
//! Borrows everything from the file's bytes; what it allocates is bounded by constants, whatever the
//! lengths in the file say. [`llama`] makes a model of it.
//! Source: the GGUF specification in the ggml repository.

pub(super) mod llama;
mod reader;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub(crate) use value::{Array, Value};

use super::ModelError;
use super::dequant::block_of;
use crate::backend::Format;
use reader::Reader;

/// Metadata entries, at most; real files have fewer than a hundred.
const ENTRIES_MAX: u64 = 1 << 16;
/// Tensors, at most; real files have a few thousand.
const TENSORS_MAX: u64 = 1 << 16;
/// The format allows 64 bytes.
const TENSOR_NAME_BYTES_MAX: usize = 256;
/// The format allows four.
const DIMENSIONS_MAX: u32 = 4;

/// What is wrong with a file, before its path is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The format forbids it.
    Corrupt(String),
    /// The format allows it.
    Unsupported(String),
}

impl Fault {
    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt(what.into())
    }

    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported(what.into())
    }

    /// Says in which file it is.
    pub(crate) fn in_file(self, path: &str) -> ModelError {
        let path = path.to_owned();
        match self {
            Self::Corrupt(what) => ModelError::Corrupt { path, what },
            Self::Unsupported(what) => ModelError::Unsupported { path, what },
        }
    }
}

/// The header of a GGUF file.
#[derive(Debug)]
pub(crate) struct Gguf<'a> {
    metadata: BTreeMap<&'a str, Value<'a>>,
    /// The tensors, in the file's order.
    pub(crate) tensors: Vec<TensorInfo<'a>>,
    /// Where the tensors' bytes begin.
    pub(crate) data_start: usize,
}

/// Where one tensor lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorInfo<'a> {
    /// As the file names it.
    pub(crate) name: &'a str,
    /// How its numbers are stored.
    pub(crate) format: Format,
    /// Outermost first: the last is contiguous in memory, unlike in the file's own listing.
    pub(crate) shape: Vec<usize>,
    /// Its bytes in the file.
    pub(crate) range: Range<usize>,
}

impl<'a> Gguf<'a> {
    /// Parses the header and checks that every tensor lies in the file.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Fault> {
        let mut reader = Reader::new(bytes);
        if reader.take(4, "magic")? != b"GGUF" {
            return Err(Fault::corrupt("the file does not begin with GGUF"));
        }
        match reader.u32("version")? {
            2 | 3 => {}
            version if (2..=3).contains(&version.swap_bytes()) => {
                return Err(Fault::unsupported("big-endian GGUF"));
            }
            version => return Err(Fault::unsupported(format!("GGUF version {version}"))),
        }
        // A tensor takes at least a name length, a dimension count, a type and an offset; an entry a key
        // length, a type and one byte.
        let tensor_count = reader.count(24, TENSORS_MAX, "tensor count")?;
        let entry_count = reader.count(13, ENTRIES_MAX, "metadata count")?;
        let metadata = read_metadata(&mut reader, entry_count)?;
        let mut gguf = Self {
            metadata,
            tensors: Vec::with_capacity(tensor_count),
            data_start: 0,
        };
        let alignment = gguf.alignment()?;
        let mut names = BTreeSet::new();
        for _ in 0..tensor_count {
            let tensor = read_tensor(&mut reader)?;
            if !names.insert(tensor.name) {
                return Err(Fault::corrupt(format!(
                    "tensor {} is there twice",
                    tensor.name
                )));
            }
            gguf.tensors.push(tensor);
        }
        gguf.data_start = reader.at().next_multiple_of(alignment);
        for tensor in &mut gguf.tensors {
            place(tensor, gguf.data_start, alignment, bytes.len())?;
        }
        Ok(gguf)
    }

    fn alignment(&self) -> Result<usize, Fault> {
        let alignment = self
            .optional("general.alignment", "an unsigned integer", Value::as_u64)?
            .unwrap_or(32);
        if !alignment.is_power_of_two() || alignment > 1 << 20 {
            return Err(Fault::corrupt(format!("general.alignment is {alignment}")));
        }
        Ok(usize::try_from(alignment).expect("at most 2^20"))
    }

    /// Returns a value as `read` sees it, or none if the file lacks the key.
    pub(crate) fn optional<'s, T>(
        &'s self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'s Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        let Some(value) = self.metadata.get(key) else {
            return Ok(None);
        };
        read(value).map(Some).ok_or_else(|| {
            Fault::corrupt(format!(
                "{key} is {}, and should be {expected}",
                value.kind_name()
            ))
        })
    }

    /// Returns an unsigned integer, or none if the file lacks the key.
    pub(crate) fn optional_usize(&self, key: &str) -> Result<Option<usize>, Fault> {
        self.optional(key, "an unsigned integer", |value| {
            usize::try_from(value.as_u64()?).ok()
        })
    }

    /// Returns an unsigned integer.
    pub(crate) fn usize(&self, key: &str) -> Result<usize, Fault> {
        self.optional_usize(key)?.ok_or_else(|| missing(key))
    }

    /// Returns a token id, or none if the file lacks the key.
    pub(crate) fn token(&self, key: &str) -> Result<Option<u32>, Fault> {
        self.optional(key, "a token id", |value| {
            u32::try_from(value.as_u64()?).ok()
        })
    }

    /// Returns a number, or none if the file lacks the key.
    pub(crate) fn optional_f64(&self, key: &str) -> Result<Option<f64>, Fault> {
        self.optional(key, "a number", Value::as_f64)
    }

    /// Returns a boolean, or none if the file lacks the key.
    pub(crate) fn optional_bool(&self, key: &str) -> Result<Option<bool>, Fault> {
        self.optional(key, "a boolean", Value::as_bool)
    }

    /// Returns a string, or none if the file lacks the key.
    pub(crate) fn optional_str(&self, key: &str) -> Result<Option<&'a str>, Fault> {
        self.optional(key, "a string of UTF-8", Value::as_str)
    }

    /// Returns a string.
    pub(crate) fn str(&self, key: &str) -> Result<&'a str, Fault> {
        self.optional_str(key)?.ok_or_else(|| missing(key))
    }

    /// Returns an array, or none if the file lacks the key.
    pub(crate) fn optional_array(&self, key: &str) -> Result<Option<&Array<'a>>, Fault> {
        self.optional(key, "an array", Value::as_array)
    }

    /// Returns the value of a key as it is.
    pub(crate) fn value(&self, key: &str) -> Option<&Value<'a>> {
        self.metadata.get(key)
    }
}

fn missing(key: &str) -> Fault {
    Fault::corrupt(format!("{key} is missing"))
}

fn read_metadata<'a>(
    reader: &mut Reader<'a>,
    count: usize,
) -> Result<BTreeMap<&'a str, Value<'a>>, Fault> {
    let mut metadata = BTreeMap::new();
    for _ in 0..count {
        let at = reader.at();
        let key = std::str::from_utf8(reader.string("metadata key")?)
            .map_err(|_| Fault::corrupt(format!("metadata key at offset {at} is not UTF-8")))?;
        let value = Value::read(reader)?;
        if metadata.insert(key, value).is_some() {
            return Err(Fault::corrupt(format!(
                "metadata key at offset {at} is there twice"
            )));
        }
    }
    Ok(metadata)
}

/// Reads the description of one tensor; the range begins at the offset that the file gives.
fn read_tensor<'a>(reader: &mut Reader<'a>) -> Result<TensorInfo<'a>, Fault> {
    let at = reader.at();
    let name = reader.string("tensor name")?;
    let name = std::str::from_utf8(name)
        .ok()
        .filter(|name| name.len() <= TENSOR_NAME_BYTES_MAX)
        .ok_or_else(|| {
            Fault::corrupt(format!(
                "tensor name at offset {at} is too long or not UTF-8"
            ))
        })?;
    let dimensions = reader.u32("dimension count")?;
    if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
        return Err(Fault::corrupt(format!(
            "tensor {name} has {dimensions} dimensions"
        )));
    }
    let mut shape = Vec::with_capacity(dimensions as usize);
    for _ in 0..dimensions {
        let size = reader.u64("dimension")?;
        let size = usize::try_from(size).ok().filter(|&size| size > 0);
        shape.push(
            size.ok_or_else(|| {
                Fault::corrupt(format!("tensor {name} has a dimension of no size"))
            })?,
        );
    }
    shape.reverse();
    let format = format_of(reader.u32("tensor type")?, name)?;
    let offset = reader.u64("tensor offset")?;
    let offset = usize::try_from(offset)
        .map_err(|_| Fault::corrupt(format!("tensor {name} begins at {offset}")))?;
    Ok(TensorInfo {
        name,
        format,
        shape,
        range: offset..offset,
    })
}

/// Turns the offset within the data into the range within the file.
fn place(
    tensor: &mut TensorInfo<'_>,
    data_start: usize,
    alignment: usize,
    file_len: usize,
) -> Result<(), Fault> {
    let name = tensor.name;
    let offset = tensor.range.start;
    if !offset.is_multiple_of(alignment) {
        return Err(Fault::corrupt(format!(
            "tensor {name} begins at {offset}, not a multiple of {alignment}"
        )));
    }
    let block = block_of(tensor.format);
    let columns = tensor.shape.last().copied().unwrap_or(0);
    if !columns.is_multiple_of(block.values) {
        return Err(Fault::corrupt(format!(
            "tensor {name} has rows of {columns} values, not a multiple of {}",
            block.values
        )));
    }
    let end = tensor
        .shape
        .iter()
        .try_fold(1, |values: usize, &size| values.checked_mul(size))
        .and_then(|values| (values / block.values).checked_mul(block.bytes))
        .and_then(|bytes| Some((data_start.checked_add(offset)?, bytes)))
        .and_then(|(start, bytes)| Some(start..start.checked_add(bytes)?))
        .filter(|range| range.end <= file_len);
    tensor.range = end.ok_or_else(|| {
        Fault::corrupt(format!(
            "tensor {name} of shape {:?} at {offset} lies beyond the file's end",
            tensor.shape
        ))
    })?;
    Ok(())
}

fn format_of(kind: u32, name: &str) -> Result<Format, Fault> {
    Ok(match kind {
        0 => Format::F32,
        1 => Format::F16,
        2 => Format::Q4_0,
        3 => Format::Q4_1,
        8 => Format::Q8_0,
        12 => Format::Q4K,
        14 => Format::Q6K,
        30 => Format::Bf16,
        other => {
            let known = match other {
                6 => "Q5_0",
                7 => "Q5_1",
                9 => "Q8_1",
                10 => "Q2_K",
                11 => "Q3_K",
                13 => "Q5_K",
                15 => "Q8_K",
                16..=23 | 29 => "IQ",
                34 | 35 => "TQ",
                39 => "MXFP4",
                _ => "unknown",
            };
            return Err(Fault::unsupported(format!(
                "tensor {name} of type {other} ({known})"
            )));
        }
    })
}

#[cfg(test)]
mod tests;
