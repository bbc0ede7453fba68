//! Memory of the backend: aligned vectors, activation planes, and slices that tasks write in parts.
#![expect(
    unsafe_code,
    reason = "bytes of a mapping are numbers, and tasks of one operation write disjoint parts of one slice"
)]

use std::marker::PhantomData;
use std::ops::Range;

use half::bf16;
use memmap2::MmapMut;

use super::element::Element;
use super::int8::CodedPlane;
use super::pack::{ROWS, lanes_of};
use super::packed_file::Plain;
use super::simd::Simd;
use crate::backend::BackendError;

/// A vector of numbers in memory of its own, whose first lies on a page and so on a cache line.
///
/// Zeros until written, and what was never written takes no memory: a pool that is never full costs what was
/// used of it.
#[derive(Debug)]
pub(super) struct Aligned<T> {
    /// None for a vector without numbers.
    map: Option<MmapMut>,
    len: usize,
    number: PhantomData<T>,
}

impl<T: Plain> Aligned<T> {
    /// Makes `len` zeros.
    pub(super) fn zeros(len: usize, what: &str) -> Result<Self, BackendError> {
        if len == 0 {
            return Ok(Self::default());
        }
        let bytes = len.saturating_mul(size_of::<T>());
        let map = MmapMut::map_anon(bytes).map_err(|_| BackendError::OutOfMemory {
            what: what.to_owned(),
            needed_bytes: bytes,
            // The system does not say how much it has.
            available_bytes: 0,
        })?;
        Ok(Self {
            map: Some(map),
            len,
            number: PhantomData,
        })
    }

    /// Asks for huge pages, for what is read from end to end again and again. Not for what is written once: the
    /// first touch of a huge page can cost a virtual machine more than all that it saves (measured: 2 ms each).
    pub(super) fn on_huge_pages(self) -> Self {
        #[cfg(target_os = "linux")]
        if let Some(map) = &self.map {
            // A hint: a kernel without huge pages refuses it, and small ones are right too.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        self
    }

    /// Returns the bytes that it may come to hold.
    pub(super) fn bytes(&self) -> usize {
        self.map.as_ref().map_or(0, |map| map.len())
    }
}

impl<T> Default for Aligned<T> {
    fn default() -> Self {
        Self {
            map: None,
            len: 0,
            number: PhantomData,
        }
    }
}

impl<T: Plain> std::ops::Deref for Aligned<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        let Some(map) = &self.map else {
            return &[];
        };
        // SAFETY: `len` numbers fit the mapping, which lies on a page; zeros and whatever was written are
        // numbers.
        unsafe { std::slice::from_raw_parts(map.as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> std::ops::DerefMut for Aligned<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        let Some(map) = &mut self.map else {
            return &mut [];
        };
        // SAFETY: as for `deref`, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr().cast(), self.len) }
    }
}

/// An activation buffer of one number type.
#[derive(Debug, Default)]
pub(super) struct Plane<E> {
    /// Values in a row.
    pub(super) cols: usize,
    /// Values from row to row: `cols`, rounded up as [`lanes_of`] does. The padding stays zero.
    pub(super) stride: usize,
    /// `[rows, stride]`, in whole [`ROWS`].
    pub(super) values: Aligned<E>,
}

impl<E: Element> Plane<E> {
    /// Makes a plane of zeros.
    pub(super) fn zeros(rows: usize, cols: usize) -> Result<Self, BackendError> {
        let stride = lanes_of(cols, E::PACK) * E::PACK;
        let rows = rows.next_multiple_of(ROWS);
        Ok(Self {
            cols,
            stride,
            values: Aligned::zeros(rows.saturating_mul(stride), "activations")?,
        })
    }

    /// Returns a row without its padding.
    pub(super) fn row(&self, row: usize) -> &[E] {
        &self.values[row * self.stride..][..self.cols]
    }
}

/// An activation buffer.
#[derive(Debug)]
pub(super) enum Buffer {
    /// Single precision.
    F32(Plane<f32>),
    /// The input of bf16 products.
    Bf16(Plane<bf16>),
    /// The input of int8 products.
    Int8(CodedPlane),
}

impl Buffer {
    /// Returns the plane of an f32 buffer.
    ///
    /// # Panics
    ///
    /// If it is another: the caller gave it the wrong role.
    pub(super) fn f32(&self) -> &Plane<f32> {
        match self {
            Buffer::F32(plane) => plane,
            Buffer::Bf16(_) | Buffer::Int8(_) => panic!("the operation needs an f32 buffer"),
        }
    }

    /// Returns the plane of an f32 buffer, as [`Buffer::f32`].
    pub(super) fn f32_mut(&mut self) -> &mut Plane<f32> {
        match self {
            Buffer::F32(plane) => plane,
            Buffer::Bf16(_) | Buffer::Int8(_) => panic!("the operation needs an f32 buffer"),
        }
    }

    /// Returns the buffer as something that tasks write.
    ///
    /// Codes are made later, when a product reads the buffer: a row's scale needs all of the row.
    pub(super) fn output(&mut self) -> Output<'_> {
        let plane = match self {
            Buffer::F32(plane) => {
                return Output {
                    stride: plane.stride,
                    cols: plane.cols,
                    values: OutputValues::F32(Shared::new(&mut plane.values)),
                };
            }
            Buffer::Bf16(plane) => plane,
            Buffer::Int8(coded) => {
                coded.coded_for = None;
                &mut coded.values
            }
        };
        Output {
            stride: plane.stride,
            cols: plane.cols,
            values: OutputValues::Bf16(Shared::new(&mut plane.values)),
        }
    }

    /// Returns the bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Buffer::F32(plane) => plane.values.bytes(),
            Buffer::Bf16(plane) => plane.values.bytes(),
            Buffer::Int8(coded) => coded.bytes(),
        }
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Buffer::F32(Plane::default())
    }
}

/// A slice that several tasks write, each its own part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shared<'a, T> {
    first: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` handed out in parts; `T: Send` makes writing a part from another thread fine.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above; overlapping parts are excluded by the contract of `part`.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Borrows `slice` for tasks to write.
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self {
            first: slice.as_mut_ptr(),
            len: slice.len(),
            borrow: PhantomData,
        }
    }

    /// Returns one part.
    ///
    /// # Panics
    ///
    /// If the range is not inside the slice.
    ///
    /// # Safety
    ///
    /// While the part lives, no other task may hold a part that overlaps it.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the contract excludes overlaps")]
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "the part lies inside the slice"
        );
        // SAFETY: the range is inside the borrowed slice.
        let first = unsafe { self.first.add(range.start) };
        // SAFETY: the slice is borrowed mutably for 'a, and the caller excludes overlaps.
        unsafe { std::slice::from_raw_parts_mut(first, range.end - range.start) }
    }
}

/// An activation buffer that tasks write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output<'a> {
    /// Values from row to row.
    pub(super) stride: usize,
    /// Values in a row.
    pub(super) cols: usize,
    /// The values.
    pub(super) values: OutputValues<'a>,
}

impl Output<'_> {
    /// Rounds `values` to the buffer's type and writes them to columns `col..` of `row`.
    ///
    /// # Safety
    ///
    /// No other task may write the same columns of the row.
    #[inline(always)]
    pub(super) unsafe fn write<S: Simd>(&self, s: S, row: usize, col: usize, values: &[f32]) {
        let at = row * self.stride + col;
        let range = at..at + values.len();
        match &self.values {
            // SAFETY: the caller's promise.
            OutputValues::F32(shared) => write_values(s, values, unsafe { shared.part(range) }),
            // SAFETY: the caller's promise.
            OutputValues::Bf16(shared) => write_values(s, values, unsafe { shared.part(range) }),
        }
    }
}

/// Rounds `values` into `out`, which is as long.
#[inline(always)]
pub(super) fn write_values<S: Simd, E: Element>(s: S, values: &[f32], out: &mut [E]) {
    let whole = values.len() / S::LANES * S::LANES;
    let mut at = 0;
    while at < whole {
        E::store(s, s.load(&values[at..]), &mut out[at..]);
        at += S::LANES;
    }
    while at < values.len() {
        out[at] = E::from_f32(values[at]);
        at += 1;
    }
}

/// The values of an [`Output`].
#[derive(Debug, Clone, Copy)]
pub(super) enum OutputValues<'a> {
    /// Single precision.
    F32(Shared<'a, f32>),
    /// Rounded to bf16.
    Bf16(Shared<'a, bf16>),
}
