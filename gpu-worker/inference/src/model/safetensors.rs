//! Reads safetensors files: one, or the shards of an index.
//!
//! The header is parsed here rather than by a library so that a tensor named twice is an error and no sum of
//! hostile offsets can overflow.
//! Source: the safetensors format, https://github.com/huggingface/safetensors.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::ModelError;
use super::digest::Digest;
use super::gguf::Fault;
use super::mapped::MappedFile;
use super::weights::Tensor;
use crate::backend::Format;

/// The format's own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Shards, at most.
const SHARDS_MAX: usize = 4096;
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The mapped files of a folder, and where in them the tensors lie.
#[derive(Debug, Default)]
pub(super) struct Shards {
    pub(super) files: Vec<MappedFile>,
    pub(super) tensors: BTreeMap<String, Tensor>,
}

impl Shards {
    /// Opens the weights of a folder, and adds them to `digest`.
    pub(super) fn open(folder: &Path, digest: &mut Digest) -> Result<Self, ModelError> {
        let mut shards = Self::default();
        let index_path = folder.join(INDEX);
        if folder.join(SINGLE).exists() || !index_path.exists() {
            shards.add(&folder.join(SINGLE), digest)?;
            return Ok(shards);
        }
        let shown = index_path.display().to_string();
        let index = std::fs::read(&index_path).map_err(|source| ModelError::Io {
            path: shown.clone(),
            source,
        })?;
        let map = parse_index(&index).map_err(|fault| fault.in_file(&shown))?;
        let names: std::collections::BTreeSet<&str> = map.values().map(String::as_str).collect();
        for name in &names {
            shards.add(&folder.join(name), digest)?;
        }
        for (tensor, file) in &map {
            let claimed = names.iter().position(|name| name == file);
            if shards.tensors.get(tensor).map(|tensor| tensor.file) != claimed {
                return Err(
                    Fault::corrupt(format!("tensor {tensor} is not in {file}")).in_file(&shown)
                );
            }
        }
        Ok(shards)
    }

    fn add(&mut self, path: &Path, digest: &mut Digest) -> Result<(), ModelError> {
        let file = MappedFile::open(path)?;
        let header = parse_header(file.bytes()).map_err(|fault| fault.in_file(&file.path))?;
        digest.header(file.bytes(), header.data_start);
        for (name, mut tensor) in header.tensors {
            digest.sample(&file.bytes()[tensor.range.clone()]);
            tensor.file = self.files.len();
            if self.tensors.insert(name.clone(), tensor).is_some() {
                return Err(
                    Fault::corrupt(format!("tensor {name} is in another shard too"))
                        .in_file(&file.path),
                );
            }
        }
        self.files.push(file);
        Ok(())
    }
}

/// Parses an index, and refuses file names that could lead out of the folder.
pub(super) fn parse_index(bytes: &[u8]) -> Result<BTreeMap<String, String>, Fault> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: Unique<String>,
    }
    let index: Index = serde_json::from_slice(bytes)
        .map_err(|error| Fault::corrupt(format!("the index does not parse: {error}")))?;
    for name in index.weight_map.0.values() {
        let plain = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if !plain || name.starts_with('.') || !name.ends_with(".safetensors") {
            return Err(Fault::corrupt(format!("shard file name {name:?}")));
        }
    }
    let shards: std::collections::BTreeSet<&String> = index.weight_map.0.values().collect();
    if shards.len() > SHARDS_MAX {
        return Err(Fault::corrupt(format!(
            "{} shards, with a limit of {SHARDS_MAX}",
            shards.len()
        )));
    }
    Ok(index.weight_map.0)
}

/// The header of one file.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) data_start: usize,
    /// By name; `file` is 0.
    pub(super) tensors: BTreeMap<String, Tensor>,
}

/// Parses a header and checks that every tensor lies in the file.
pub(super) fn parse_header(bytes: &[u8]) -> Result<Header, Fault> {
    let len = bytes.first_chunk().copied().map(u64::from_le_bytes);
    let len = len.ok_or_else(|| Fault::corrupt(format!("{} bytes are no header", bytes.len())))?;
    let header = usize::try_from(len)
        .ok()
        .filter(|_| len <= HEADER_BYTES_MAX)
        .and_then(|len| bytes[8..].get(..len));
    let header = header.ok_or_else(|| {
        Fault::corrupt(format!(
            "a header of {len} bytes in a file of {}, with a limit of {HEADER_BYTES_MAX}",
            bytes.len()
        ))
    })?;
    let entries: Unique<Entry> = serde_json::from_slice(header)
        .map_err(|error| Fault::corrupt(format!("the header does not parse: {error}")))?;
    let data_start = 8 + header.len();
    let tensors = entries
        .0
        .into_iter()
        .filter_map(|(name, entry)| match entry {
            Entry::Metadata => None,
            Entry::Tensor {
                dtype,
                shape,
                data_offsets,
            } => {
                let tensor = place(&name, &dtype, shape, data_offsets, data_start, bytes.len());
                Some(tensor.map(|tensor| (name, tensor)))
            }
        });
    Ok(Header {
        data_start,
        tensors: tensors.collect::<Result<_, _>>()?,
    })
}

fn place(
    name: &str,
    dtype: &str,
    shape: Vec<usize>,
    [start, end]: [usize; 2],
    data_start: usize,
    file_len: usize,
) -> Result<Tensor, Fault> {
    let (format, bytes) = match dtype {
        "F32" => (Format::F32, 4),
        "F16" => (Format::F16, 2),
        "BF16" => (Format::Bf16, 2),
        other => return Err(Fault::unsupported(format!("tensor {name} of type {other}"))),
    };
    let needed = shape
        .iter()
        .try_fold(bytes, |total: usize, &size| total.checked_mul(size));
    if needed.is_none() || end.checked_sub(start) != needed {
        return Err(Fault::corrupt(format!(
            "tensor {name} of shape {shape:?} and type {dtype} lies at {start}..{end}"
        )));
    }
    if end > file_len - data_start {
        return Err(Fault::corrupt(format!(
            "tensor {name} lies at {start}..{end} of {} bytes of data",
            file_len - data_start
        )));
    }
    Ok(Tensor {
        file: 0,
        format,
        shape,
        range: data_start + start..data_start + end,
    })
}

/// One entry of a header.
#[derive(Debug)]
enum Entry {
    /// Free text under `__metadata__`.
    Metadata,
    Tensor {
        dtype: String,
        shape: Vec<usize>,
        data_offsets: [usize; 2],
    },
}

/// What a map of unique names may hold.
trait Member: Sized {
    fn next<'de, A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Self, A::Error>;
}

impl Member for String {
    fn next<'de, A: MapAccess<'de>>(_: &str, map: &mut A) -> Result<Self, A::Error> {
        map.next_value()
    }
}

impl Member for Entry {
    fn next<'de, A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Self, A::Error> {
        #[derive(Deserialize)]
        struct Info {
            dtype: String,
            shape: Vec<usize>,
            data_offsets: [usize; 2],
        }
        if name == "__metadata__" {
            map.next_value::<IgnoredAny>()?;
            return Ok(Self::Metadata);
        }
        let Info {
            dtype,
            shape,
            data_offsets,
        } = map.next_value()?;
        Ok(Self::Tensor {
            dtype,
            shape,
            data_offsets,
        })
    }
}

/// A JSON object in which no name comes twice.
#[derive(Debug)]
struct Unique<T>(BTreeMap<String, T>);

impl<'de, T: Member> Deserialize<'de> for Unique<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UniqueVisitor<T>(std::marker::PhantomData<T>);
        impl<'de, T: Member> Visitor<'de> for UniqueVisitor<T> {
            type Value = Unique<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    let member = T::next(&name, &mut map)?;
                    if members.contains_key(&name) {
                        return Err(serde::de::Error::custom(format!("{name} is there twice")));
                    }
                    members.insert(name, member);
                }
                Ok(Unique(members))
            }
        }
        deserializer.deserialize_map(UniqueVisitor(std::marker::PhantomData))
    }
}

#[cfg(test)]
mod tests;
