//! Weight sources: matrices of a file, stacked and reordered.

use super::ModelError;
use super::dequant::{block_of, dequantise};
use crate::backend::{Format, WeightSource};

/// In which order a file holds the rows of a projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowOrder {
    /// As they are read.
    Stored,
    /// The rows of a head as pairs `(2i, 2i + 1)`, where they are read as `(i, i + d/2)`.
    Interleaved {
        /// Rows of a head.
        head_dim: usize,
    },
}

impl RowOrder {
    /// Returns where the file holds row `row`.
    fn stored(self, row: usize) -> usize {
        match self {
            Self::Stored => row,
            Self::Interleaved { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                let (half, pair) = (within / (head_dim / 2), within % (head_dim / 2));
                head * head_dim + 2 * pair + half
            }
        }
    }
}

/// One matrix of a file: `rows * cols` numbers, row by row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) format: Format,
    pub(super) bytes: &'a [u8],
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) order: RowOrder,
}

impl Matrix<'_> {
    fn read_row(&self, row: usize, out: &mut [f32]) {
        let block = block_of(self.format);
        let row_bytes = self.cols / block.values * block.bytes;
        let start = self.order.stored(row) * row_bytes;
        dequantise(self.format, &self.bytes[start..start + row_bytes], out);
    }
}

/// Matrices of the same width, one below the other.
#[derive(Debug)]
pub(super) struct Stack<'a> {
    parts: Vec<Matrix<'a>>,
    cols: usize,
}

impl<'a> Stack<'a> {
    /// Stacks `parts`.
    ///
    /// # Panics
    ///
    /// If they differ in width.
    pub(super) fn new(parts: Vec<Matrix<'a>>) -> Self {
        let cols = parts.first().map_or(0, |part| part.cols);
        assert!(
            parts.iter().all(|part| part.cols == cols),
            "stacked matrices are of one width"
        );
        Self { parts, cols }
    }

    /// Finds the part that holds a row, and the row within it.
    fn locate(&self, mut row: usize) -> Option<(&Matrix<'a>, usize)> {
        for part in &self.parts {
            if row < part.rows {
                return Some((part, row));
            }
            row -= part.rows;
        }
        None
    }
}

impl WeightSource for Stack<'_> {
    fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn read_rows(&self, first_row: usize, out: &mut [f32]) -> Result<(), ModelError> {
        let rows = out.len() / self.cols.max(1);
        assert!(
            out.len() == rows * self.cols
                && first_row
                    .checked_add(rows)
                    .is_some_and(|end| end <= self.rows()),
            "rows {first_row}.. of {} are read into {} values of {} columns",
            self.rows(),
            out.len(),
            self.cols
        );
        for (row, out) in (first_row..).zip(out.chunks_exact_mut(self.cols.max(1))) {
            let (part, row) = self.locate(row).expect("the range was checked above");
            part.read_row(row, out);
        }
        Ok(())
    }

    fn raw(&self) -> Option<(Format, &[u8])> {
        match self.parts.as_slice() {
            [part] if part.order == RowOrder::Stored => Some((part.format, part.bytes)),
            _ => None,
        }
    }
}

/// Vectors, one after the other: a single row.
///
/// Each part is a matrix of one column, so that a bias can be in the order of its projection's rows.
#[derive(Debug)]
pub(super) struct Vector<'a>(Stack<'a>);

impl<'a> Vector<'a> {
    /// Joins `parts`.
    ///
    /// # Panics
    ///
    /// If one of them is wider than a column.
    pub(super) fn new(parts: Vec<Matrix<'a>>) -> Self {
        assert!(
            parts.iter().all(|part| part.cols == 1),
            "parts of a vector have one column"
        );
        Self(Stack::new(parts))
    }
}

impl WeightSource for Vector<'_> {
    fn rows(&self) -> usize {
        1
    }

    fn cols(&self) -> usize {
        self.0.rows()
    }

    fn read_rows(&self, first_row: usize, out: &mut [f32]) -> Result<(), ModelError> {
        assert!(
            first_row == 0 || out.is_empty(),
            "a vector has one row, and row {first_row} is read"
        );
        self.0.read_rows(0, out)
    }

    fn raw(&self) -> Option<(Format, &[u8])> {
        self.0.raw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
        values.into_iter().flat_map(f32::to_le_bytes).collect()
    }

    fn column(bytes: &[u8], order: RowOrder) -> Matrix<'_> {
        Matrix {
            format: Format::F32,
            bytes,
            rows: bytes.len() / 4,
            cols: 1,
            order,
        }
    }

    #[test]
    fn rows_of_interleaved_heads_come_out_in_neox_order() {
        // Two heads of six rows, stored as pairs (0, 3), (1, 4), (2, 5).
        let stored = bytes([0., 3., 1., 4., 2., 5., 10., 13., 11., 14., 12., 15.]);
        let stack = Stack::new(vec![column(&stored, RowOrder::Interleaved { head_dim: 6 })]);
        let mut out = [0.0; 12];
        stack.read_rows(0, &mut out).unwrap();
        assert_eq!(out, [0., 1., 2., 3., 4., 5., 10., 11., 12., 13., 14., 15.]);
        assert!(
            stack.raw().is_none(),
            "the bytes are not in the order of the rows"
        );
    }

    #[test]
    fn rows_across_parts_are_read_in_one_call() {
        let (a, b) = (bytes([1., 2., 3.]), bytes([4., 5.]));
        let stack = Stack::new(vec![
            column(&a, RowOrder::Stored),
            column(&b, RowOrder::Stored),
        ]);
        let mut out = [0.0; 3];
        stack.read_rows(2, &mut out).unwrap();
        assert_eq!((stack.rows(), stack.cols(), out), (5, 1, [3., 4., 5.]));
    }

    #[test]
    fn vectors_join_into_one_row() {
        let (a, b) = (bytes([1., 2.]), bytes([3.]));
        let vector = Vector::new(vec![
            column(&a, RowOrder::Stored),
            column(&b, RowOrder::Stored),
        ]);
        let mut out = [0.0; 3];
        vector.read_rows(0, &mut out).unwrap();
        assert_eq!((vector.rows(), vector.cols(), out), (1, 3, [1., 2., 3.]));
    }

    #[test]
    fn a_whole_matrix_in_its_own_order_is_raw() {
        let a = bytes([1., 2.]);
        let stack = Stack::new(vec![column(&a, RowOrder::Stored)]);
        assert_eq!(stack.raw(), Some((Format::F32, a.as_slice())));
    }
}
