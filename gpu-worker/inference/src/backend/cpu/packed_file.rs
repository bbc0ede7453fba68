//! Packed weights on disk: made once, then mapped, so that a load reads nothing and workers share the memory.
//!
//! The file is `blob* index length mark`: blobs begin at multiples of a page, the index is JSON, `length` is
//! its bytes in 64 bits. A file is written under another name and renamed when it is whole; one that is cut
//! off, or was made of other weights or by another version, counts as absent and is replaced.
#![expect(
    unsafe_code,
    reason = "a file is mapped, and its bytes are read as numbers"
)]

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read as _, Write as _};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::bf16;
use memmap2::Mmap;
use serde::{Deserialize, Serialize};

use super::storage::Aligned;

/// Ends every file; another layout of panels gets another mark.
const MARK: [u8; 8] = *b"NSPACK-3";

/// Blobs begin at multiples of this: a page of memory, and so any number is aligned.
const ALIGNMENT: u64 = 4096;

/// Bytes that are written at once: file systems that can then keep the file in huge pages, and cores read weights
/// nearly twice as fast as from small ones (measured: 22 against 13 GB/s a core).
const WRITE_BYTES: usize = 16 << 20;

/// Where packed weights are kept between runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedCache {
    /// The file.
    pub path: PathBuf,
    /// Names the weights: a file with another key is not used.
    pub key: String,
}

/// What became of a [`PackedCache`].
#[derive(Debug)]
pub enum PackedStatus<'a> {
    /// There was none.
    Off,
    /// The weights are mapped from it.
    Mapped,
    /// The weights were packed, and it was written.
    Written,
    /// The weights were packed, and it could not be written: the next load packs again.
    Failed(&'a io::Error),
}

/// Numbers for which all bits are valid, and zero is all bits zero.
///
/// # Safety
///
/// Implementors have no padding, no invalid values, and nothing to drop.
pub(super) unsafe trait Plain:
    Copy + Default + Send + Sync + std::fmt::Debug + 'static
{
}

// SAFETY: every pattern of bits is a value.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for bf16 {}
// SAFETY: as above.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}

/// Packed numbers, in this process's memory or in a mapped file.
#[derive(Debug)]
pub(super) enum Values<T> {
    /// They were packed just now.
    Owned(Aligned<T>),
    /// They were packed before.
    Mapped(MappedValues<T>),
}

/// A part of a mapped file.
#[derive(Debug)]
pub(super) struct MappedValues<T> {
    map: Arc<Mmap>,
    /// Bytes before the first; a multiple of [`ALIGNMENT`].
    start: usize,
    len: usize,
    number: PhantomData<T>,
}

impl<T: Plain> Values<T> {
    /// Returns the bytes of this process's own memory that they take.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Values::Owned(values) => values.bytes(),
            Values::Mapped(_) => 0,
        }
    }
}

impl<T: Plain> std::ops::Deref for Values<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        match self {
            Values::Owned(values) => values,
            Values::Mapped(mapped) => {
                let first = mapped.map[mapped.start..].as_ptr().cast::<T>();
                // SAFETY: `PackedFile::blob` has checked that `len` numbers lie there, aligned; every pattern
                // of bits is a number, and the map lives as long as `self`.
                unsafe { std::slice::from_raw_parts(first, mapped.len) }
            }
        }
    }
}

/// Returns the bytes of numbers.
#[inline(always)]
fn bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: numbers without padding are bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Blob {
    start: u64,
    bytes: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Index {
    key: String,
    blobs: HashMap<String, Blob>,
}

/// The packed weights of one load: found, being written, or not kept.
#[derive(Debug)]
pub(super) struct PackedFile(State);

#[derive(Debug)]
enum State {
    Off,
    Found(Arc<Mmap>, Index),
    Writing(Box<Writer>),
    Written,
    Failed(io::Error),
}

#[derive(Debug)]
struct Writer {
    file: BufWriter<File>,
    unfinished: PathBuf,
    path: PathBuf,
    at: u64,
    index: Index,
}

impl PackedFile {
    /// Opens the file, or begins to write it.
    pub(super) fn open(cache: Option<&PackedCache>) -> Self {
        let Some(cache) = cache else {
            return Self(State::Off);
        };
        // Whatever is wrong with the file, it is made anew.
        match read(&cache.path, &cache.key) {
            Some((map, index)) => Self(State::Found(Arc::new(map), index)),
            None => match Writer::create(cache) {
                Ok(writer) => Self(State::Writing(Box::new(writer))),
                Err(error) => Self(State::Failed(error)),
            },
        }
    }

    /// Returns `len` numbers that were kept under `name`.
    pub(super) fn blob<T: Plain>(&self, name: &str, len: usize) -> Option<Values<T>> {
        let State::Found(map, index) = &self.0 else {
            return None;
        };
        let blob = index.blobs.get(name)?;
        let start = usize::try_from(blob.start).ok()?;
        let bytes = usize::try_from(blob.bytes).ok()?;
        let fits = start.checked_add(bytes)? <= map.len();
        let aligned = start.is_multiple_of(ALIGNMENT as usize);
        (fits && aligned && bytes == len.checked_mul(size_of::<T>())?).then(|| {
            Values::Mapped(MappedValues {
                map: Arc::clone(map),
                start,
                len,
                number: PhantomData,
            })
        })
    }

    /// Keeps numbers under `name`, if the file is being written.
    pub(super) fn keep<T: Plain>(&mut self, name: &str, values: &[T]) {
        if let State::Writing(writer) = &mut self.0
            && let Err(error) = writer.add(name, values)
        {
            self.fail(error);
        }
    }

    /// Says that all weights are here.
    pub(super) fn finish(&mut self) {
        if let State::Writing(writer) = &mut self.0 {
            match writer.finish() {
                Ok(()) => self.0 = State::Written,
                Err(error) => self.fail(error),
            }
        }
    }

    /// Returns what became of the file.
    pub(super) fn status(&self) -> PackedStatus<'_> {
        match &self.0 {
            State::Off | State::Writing(_) => PackedStatus::Off,
            State::Found(..) => PackedStatus::Mapped,
            State::Written => PackedStatus::Written,
            State::Failed(error) => PackedStatus::Failed(error),
        }
    }

    fn fail(&mut self, error: io::Error) {
        self.0 = State::Failed(error);
    }
}

impl Writer {
    fn create(cache: &PackedCache) -> io::Result<Self> {
        if let Some(folder) = cache.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut name = cache.path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let unfinished = PathBuf::from(name);
        Ok(Self {
            file: BufWriter::with_capacity(WRITE_BYTES, File::create(&unfinished)?),
            unfinished,
            path: cache.path.clone(),
            at: 0,
            index: Index {
                key: cache.key.clone(),
                blobs: HashMap::new(),
            },
        })
    }

    fn add<T: Plain>(&mut self, name: &str, values: &[T]) -> io::Result<()> {
        let start = self.at.next_multiple_of(ALIGNMENT);
        // A seek would write what there is so far.
        io::copy(&mut io::repeat(0).take(start - self.at), &mut self.file)?;
        let bytes = bytes(values);
        self.file.write_all(bytes)?;
        self.at = start + bytes.len() as u64;
        let blob = Blob {
            start,
            bytes: bytes.len() as u64,
        };
        self.index.blobs.insert(name.to_owned(), blob);
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        let index = serde_json::to_vec(&self.index)?;
        self.file.write_all(&index)?;
        self.file.write_all(&(index.len() as u64).to_le_bytes())?;
        self.file.write_all(&MARK)?;
        self.file.flush()?;
        std::fs::rename(&self.unfinished, &self.path)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // There is one only when the load failed: after the rename the name is free.
        let _ = std::fs::remove_file(&self.unfinished);
    }
}

/// Maps a whole file of `key`, and reads its index.
fn read(path: &Path, key: &str) -> Option<(Mmap, Index)> {
    let file = File::open(path).ok()?;
    // SAFETY: the file is never written in place: writers rename a new one over it. Whoever truncates it by
    // hand ends the process with SIGBUS.
    let map = unsafe { Mmap::map(&file) }.ok()?;
    #[cfg(target_os = "linux")]
    // A hint, for what is not in the page cache yet; small pages are right too.
    let _ = map.advise(memmap2::Advice::HugePage);
    let rest = map.strip_suffix(&MARK)?;
    let (rest, length) = rest.split_last_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let index = rest.get(rest.len().checked_sub(length)?..)?;
    let index: Index = serde_json::from_slice(index).ok()?;
    (index.key == key).then_some((map, index))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(folder: &Path) -> PackedCache {
        PackedCache {
            path: folder.join("packed"),
            key: "weights".to_owned(),
        }
    }

    fn written(cache: &PackedCache) {
        let mut file = PackedFile::open(Some(cache));
        assert!(file.blob::<f32>("a", 3).is_none());
        file.keep("a", &[1.0f32, 2.0, 3.0]);
        file.keep("b", &[-1i8; 5000]);
        file.finish();
        assert!(matches!(file.status(), PackedStatus::Written));
    }

    #[test]
    fn numbers_come_back_as_they_were() {
        let folder = tempfile::tempdir().expect("there is a folder for temporary files");
        let cache = cache(folder.path());
        written(&cache);
        let file = PackedFile::open(Some(&cache));
        let a = file.blob::<f32>("a", 3).expect("it was kept");
        let b = file.blob::<i8>("b", 5000).expect("it was kept");
        assert_eq!(*a, [1.0, 2.0, 3.0]);
        assert_eq!(*b, [-1; 5000]);
        assert_eq!(a.bytes(), 0, "mapped memory is not the process's own");
        assert!(file.blob::<f32>("a", 4).is_none(), "another shape");
        assert!(file.blob::<f32>("c", 3).is_none(), "never kept");
        assert!(matches!(file.status(), PackedStatus::Mapped));
    }

    #[test]
    fn other_weights_and_every_cut_file_count_as_absent() {
        let folder = tempfile::tempdir().expect("there is a folder for temporary files");
        let cache = cache(folder.path());
        written(&cache);
        assert!(read(&cache.path, "other weights").is_none());
        let whole = std::fs::read(&cache.path).expect("it was written");
        for len in [0, 7, 8, 15, 16, 100, whole.len() - 1] {
            std::fs::write(&cache.path, &whole[..len]).expect("the folder is writable");
            assert!(read(&cache.path, "weights").is_none(), "cut to {len}");
        }
        written(&cache);
        assert!(read(&cache.path, "weights").is_some(), "it was replaced");
    }

    #[test]
    fn failed_load_leaves_nothing() {
        let folder = tempfile::tempdir().expect("there is a folder for temporary files");
        let mut file = PackedFile::open(Some(&cache(folder.path())));
        file.keep("a", &[1.0f32]);
        drop(file);
        let left = std::fs::read_dir(folder.path())
            .expect("it is there")
            .count();
        assert_eq!(left, 0);
    }

    #[test]
    fn folder_that_cannot_be_written_is_a_status() {
        let folder = tempfile::tempdir().expect("there is a folder for temporary files");
        let file = folder.path().join("file");
        std::fs::write(&file, "").expect("the folder is writable");
        let mut packed = PackedFile::open(Some(&cache(&file)));
        packed.keep("a", &[1.0f32]);
        packed.finish();
        assert!(matches!(packed.status(), PackedStatus::Failed(_)));
    }
}
