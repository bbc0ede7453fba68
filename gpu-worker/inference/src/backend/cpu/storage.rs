//! Memory of the backend: aligned vectors, activation planes, and slices that tasks write in parts.
#![expect(
    unsafe_code,
    reason = "tasks of one operation write disjoint parts of one slice"
)]

use std::marker::PhantomData;
use std::ops::Range;

use half::bf16;

use super::element::Element;
use super::simd::Simd;
use crate::backend::BackendError;
use crate::backend::scalar::zeros;

/// A vector whose first value lies on a cache line.
#[derive(Debug, Default)]
pub(super) struct Aligned<T> {
    values: Vec<T>,
    first: usize,
    len: usize,
}

const LINE_BYTES: usize = 64;

impl<T: Clone + Default> Aligned<T> {
    /// Makes `len` zeros.
    pub(super) fn zeros(len: usize, what: &str) -> Result<Self, BackendError> {
        let slack = LINE_BYTES / size_of::<T>();
        let values = zeros::<T>(len.saturating_add(slack), what)?;
        let first = values.as_ptr().align_offset(LINE_BYTES).min(slack);
        Ok(Self { values, first, len })
    }

    /// Returns the bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.values.capacity() * size_of::<T>()
    }
}

impl<T> std::ops::Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values[self.first..self.first + self.len]
    }
}

impl<T> std::ops::DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values[self.first..self.first + self.len]
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
            Buffer::Bf16(_) => panic!("the operation needs an f32 buffer"),
        }
    }

    /// Returns the plane of an f32 buffer, as [`Buffer::f32`].
    pub(super) fn f32_mut(&mut self) -> &mut Plane<f32> {
        match self {
            Buffer::F32(plane) => plane,
            Buffer::Bf16(_) => panic!("the operation needs an f32 buffer"),
        }
    }

    /// Returns the buffer as something that tasks write.
    pub(super) fn output(&mut self) -> Output<'_> {
        match self {
            Buffer::F32(plane) => Output {
                stride: plane.stride,
                cols: plane.cols,
                values: OutputValues::F32(Shared::new(&mut plane.values)),
            },
            Buffer::Bf16(plane) => Output {
                stride: plane.stride,
                cols: plane.cols,
                values: OutputValues::Bf16(Shared::new(&mut plane.values)),
            },
        }
    }

    /// Returns the bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Buffer::F32(plane) => plane.values.bytes(),
            Buffer::Bf16(plane) => plane.values.bytes(),
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
