//! Memory of the backend: aligned vectors, activation planes, and slices that tasks write in parts.
#![expect(
    unsafe_code,
    reason = "aligned memory, and tasks of one operation that write disjoint parts of one slice"
)]

use std::alloc::Layout;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use half::bf16;

use super::element::Element;
use super::int8::CodedPlane;
use super::packed_file::Plain;
use super::simd::Simd;
use crate::backend::BackendError;

/// A vector of numbers whose first lies on a cache line.
///
/// The system gives zeros page by page, when a page is first written: a pool that is never full takes no more
/// memory than what was used of it.
#[derive(Debug)]
pub(super) struct Aligned<T> {
    /// What was allocated; none for a vector without numbers.
    block: Option<Block>,
    first: NonNull<T>,
    len: usize,
}

#[derive(Debug)]
struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

const LINE_BYTES: usize = 64;

// SAFETY: it owns its numbers, as a `Vec` does.
unsafe impl<T: Send> Send for Aligned<T> {}
// SAFETY: as above; a shared borrow only reads.
unsafe impl<T: Sync> Sync for Aligned<T> {}

impl<T: Plain> Aligned<T> {
    /// Makes `len` zeros.
    pub(super) fn zeros(len: usize, what: &str) -> Result<Self, BackendError> {
        let out_of_memory = || BackendError::OutOfMemory {
            what: what.to_owned(),
            needed_bytes: len.saturating_mul(size_of::<T>()),
            // The allocator does not say how much it has.
            available_bytes: 0,
        };
        if len == 0 {
            return Ok(Self::default());
        }
        // Without an alignment of its own: for a greater one, zeros would be written at once.
        let bytes = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_add(LINE_BYTES))
            .ok_or_else(out_of_memory)?;
        let layout = Layout::array::<u8>(bytes).map_err(|_| out_of_memory())?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
        let start = start.ok_or_else(out_of_memory)?;
        let offset = start.as_ptr().align_offset(LINE_BYTES).min(LINE_BYTES);
        // SAFETY: the block is a line longer than the numbers.
        let first = unsafe { start.add(offset) }.cast();
        Ok(Self {
            block: Some(Block { start, layout }),
            first,
            len,
        })
    }

    /// Returns the bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.layout.size())
    }
}

impl<T> Default for Aligned<T> {
    fn default() -> Self {
        Self {
            block: None,
            first: NonNull::dangling(),
            len: 0,
        }
    }
}

impl<T> std::ops::Deref for Aligned<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` numbers lie there, for which zero is valid, and live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T> std::ops::DerefMut for Aligned<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

/// An activation buffer of one number type.
#[derive(Debug, Default)]
pub(super) struct Plane<E> {
    /// Values in a row.
    pub(super) cols: usize,
    /// Values from row to row: `cols`, rounded up to whole lanes. The padding stays zero.
    pub(super) stride: usize,
    /// `[rows, stride]`.
    pub(super) values: Aligned<E>,
}

impl<E: Element> Plane<E> {
    /// Makes a plane of zeros.
    pub(super) fn zeros(rows: usize, cols: usize) -> Result<Self, BackendError> {
        let stride = cols.next_multiple_of(E::PACK);
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
                coded.is_coded = false;
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
