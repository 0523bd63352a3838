//! Views of matrices in memory that the caller owns.
//!
//! [`MatrixMut`] can be split by columns, so that several threads can write to different columns of one matrix.
//! Disjoint columns of a slice cannot be expressed without `unsafe` code, which is confined to this file.

use std::{marker::PhantomData, ops::Range, ptr::NonNull};

/// Rows of numbers, for reading.
#[derive(Debug, Clone, Copy)]
pub struct MatrixRef<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    stride: usize,
}

impl<'a> MatrixRef<'a> {
    /// Creates a view of a matrix with `columns` columns in row-major order.
    ///
    /// # Panics
    /// Panics if the length of `data` is not a multiple of `columns`, or `columns` is 0.
    pub fn new(data: &'a [f32], columns: usize) -> Self {
        assert!(
            columns > 0 && data.len().is_multiple_of(columns),
            "{} elements, {columns} columns",
            data.len()
        );
        Self { data, rows: data.len() / columns, columns, stride: columns }
    }

    /// Returns a range of the columns.
    ///
    /// # Panics
    /// Panics if there are no such columns.
    pub fn columns_in(self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.columns,
            "columns {range:?} of {}",
            self.columns
        );
        Self { data: self.data.get(range.start..).unwrap_or_default(), columns: range.len(), ..self }
    }

    /// Returns a range of the rows.
    ///
    /// # Panics
    /// Panics if there are no such rows.
    pub fn rows_in(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let data = self.data.get(range.start * self.stride..).unwrap_or_default();
        Self { data, rows: range.len(), ..self }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns one row.
    ///
    /// # Panics
    /// Panics if there is no such row.
    pub fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.stride..][..self.columns]
    }
}

/// Rows of numbers, for writing. They may be some of the columns of a wider matrix.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    /// First element of the first row. At each multiple of `stride` below `rows * stride`, `columns` elements are
    /// valid, and only this view may access them.
    start: NonNull<f32>,
    rows: usize,
    columns: usize,
    stride: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: a view is an exclusive borrow of its elements, and `f32` is `Send`.
unsafe impl Send for MatrixMut<'_> {}
// SAFETY: a shared view gives no access to elements.
unsafe impl Sync for MatrixMut<'_> {}

impl<'a> MatrixMut<'a> {
    /// Creates a view of a matrix with `columns` columns in row-major order.
    ///
    /// # Panics
    /// Panics if the length of `data` is not a multiple of `columns`, or `columns` is 0.
    pub fn new(data: &'a mut [f32], columns: usize) -> Self {
        assert!(
            columns > 0 && data.len().is_multiple_of(columns),
            "{} elements, {columns} columns",
            data.len()
        );
        let rows = data.len() / columns;
        Self { start: NonNull::from(data).cast(), rows, columns, stride: columns, lifetime: PhantomData }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Splits the view into the columns before `column` and the others.
    ///
    /// # Panics
    /// Panics if `column` is beyond the last.
    pub fn split_at_column(self, column: usize) -> (Self, Self) {
        assert!(column <= self.columns, "column {column} of {}", self.columns);
        // An empty matrix has no rows, so the pointer must not be moved.
        let offset = if self.rows == 0 { 0 } else { column };
        // SAFETY: the offset is within the first row or just after it.
        let right = unsafe { self.start.add(offset) };
        (Self { columns: column, ..self }, Self { start: right, columns: self.columns - column, ..self })
    }

    /// Returns a view with a shorter lifetime.
    pub fn reborrow(&mut self) -> MatrixMut<'_> {
        MatrixMut { lifetime: PhantomData, ..*self }
    }

    /// Returns one row.
    ///
    /// # Panics
    /// Panics if there is no such row.
    #[inline]
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the row's elements are valid and no other view has them; `&mut self` makes the slice exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(row * self.stride), self.columns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_write_their_own_columns() {
        let mut data = vec![0.0f32; 3 * 7];
        let (left, right) = MatrixMut::new(&mut data, 7).split_at_column(3);
        let (right, rest) = right.split_at_column(4);
        assert_eq!((rest.rows(), rest.columns()), (3, 0));
        std::thread::scope(|scope| {
            for (value, mut part) in [(1.0, left), (2.0, right)] {
                scope.spawn(move || (0..3).for_each(|row| part.row_mut(row).fill(value)));
            }
        });
        assert!(data.chunks(7).all(|row| row == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]));
    }

    #[test]
    fn an_empty_matrix_can_be_split() {
        let (left, right) = MatrixMut::new(&mut [], 4).split_at_column(4);
        assert_eq!((left.rows(), right.columns()), (0, 0));
    }
}
