//! Reading one [`Weight`]: rows, shapes, sizes.
//!
//! Finding weights in files is `tensors`' matter, the block formats are in `decode`.

use std::borrow::Cow;

use rayon::prelude::*;

use super::{CheckpointError, Encoding, Weight};

impl<'a> Weight<'a> {
    /// A weight in file order: `bytes` holds `shape` row-major in `encoding`.
    ///
    /// Fails with [`CheckpointError::WrongShape`] where a dimension is zero, missing, or its last one is not a whole
    /// number of blocks, and with [`CheckpointError::WrongSize`] where `bytes` has another length than those take.
    pub fn new(
        name: impl Into<String>,
        shape: Vec<usize>,
        encoding: Encoding,
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> Result<Self, CheckpointError> {
        let (name, bytes) = (name.into(), bytes.into());
        let elements = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        let whole = shape.last().is_some_and(|cols| cols.is_multiple_of(encoding.block_elements()));
        let size = elements.filter(|&elements| elements > 0 && whole).and_then(|n| encoding.bytes(n));
        let Some(expected) = size else {
            let mut expected = shape.clone();
            if let Some(cols) = expected.last_mut() {
                *cols = cols.next_multiple_of(encoding.block_elements()).max(encoding.block_elements());
            }
            return Err(CheckpointError::WrongShape { name, expected, found: shape });
        };
        if bytes.len() != expected {
            return Err(CheckpointError::WrongSize { name, expected, found: bytes.len() });
        }
        Ok(Self { name, shape, encoding, bytes, rows: None })
    }

    /// The same weight with its row `r` read from row `rows[r]` of the bytes.
    ///
    /// Fails with [`CheckpointError::WrongShape`] where `rows` has another length than [`Weight::rows_len`] or names
    /// a row that is not there.
    pub fn with_rows(mut self, rows: Vec<u32>) -> Result<Self, CheckpointError> {
        let count = self.rows_len();
        if rows.len() != count || rows.iter().any(|&row| row as usize >= count) {
            return Err(CheckpointError::WrongShape {
                name: self.name,
                expected: vec![count],
                found: vec![rows.len()],
            });
        }
        self.rows = Some(rows);
        Ok(self)
    }

    /// Rows: the product of every dimension but the last.
    pub fn rows_len(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Elements of a row: the last dimension.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }

    /// Row `row`, still encoded. Panics where there is no such row.
    pub fn row_bytes(&self, row: usize) -> &[u8] {
        let stored = self.rows.as_ref().map_or(row, |rows| rows[row] as usize);
        let length = self.cols() / self.encoding.block_elements() * self.encoding.block_bytes();
        &self.bytes[stored * length..][..length]
    }

    /// Decodes row `row` into the first [`Weight::cols`] elements of `out`. Panics where there is no such row.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        self.encoding.decode(self.row_bytes(row), out);
    }

    /// Every element, row-major, decoded in parallel.
    pub fn to_f32(&self) -> Vec<f32> {
        let cols = self.cols();
        let mut out = vec![0.0; self.rows_len() * cols];
        out.par_chunks_mut(cols.max(1)).enumerate().for_each(|(row, out)| self.read_row(row, out));
        out
    }

    /// Fails with [`CheckpointError::WrongShape`] unless the shape is `expected`.
    pub fn expect_shape(&self, expected: &[usize]) -> Result<(), CheckpointError> {
        if self.shape == expected {
            return Ok(());
        }
        Err(CheckpointError::WrongShape {
            name: self.name.clone(),
            expected: expected.to_vec(),
            found: self.shape.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32_bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    #[test]
    fn rows_follow_the_permutation() {
        let bytes = f32_bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let weight = Weight::new("w", vec![3, 2], Encoding::F32, bytes).unwrap();
        assert_eq!((weight.rows_len(), weight.cols()), (3, 2));
        assert_eq!(weight.to_f32(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let weight = weight.with_rows(vec![2, 0, 1]).unwrap();
        assert_eq!(weight.to_f32(), [5.0, 6.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(weight.row_bytes(0), f32_bytes(&[5.0, 6.0]));
        let mut row = [0.0; 2];
        weight.read_row(2, &mut row);
        assert_eq!(row, [3.0, 4.0]);
    }

    #[test]
    fn a_vector_is_one_row() {
        let weight = Weight::new("w", vec![3], Encoding::F32, f32_bytes(&[1.0, 2.0, 3.0])).unwrap();
        assert_eq!((weight.rows_len(), weight.cols()), (1, 3));
        assert_eq!(weight.to_f32(), [1.0, 2.0, 3.0]);
    }

    #[test]
    fn sizes_that_disagree_are_refused() {
        let check = |shape: &[usize], encoding, length: usize, expect: &str| {
            let error = Weight::new("w", shape.to_vec(), encoding, vec![0; length]).unwrap_err();
            assert_eq!(error.to_string(), expect);
        };
        check(
            &[2, 2],
            Encoding::F32,
            15,
            "tensor w has the wrong size: expected 16 bytes, found 15; fetch the file again",
        );
        check(&[2, 33], Encoding::Q4_0, 36, "tensor w has the wrong shape: expected [2, 64], found [2, 33]");
        // 32 elements make a whole block, yet not a whole one per row.
        check(&[2, 16], Encoding::Q4_0, 18, "tensor w has the wrong shape: expected [2, 32], found [2, 16]");
    }

    #[test]
    fn hostile_shapes_and_rows_are_refused() {
        for shape in [vec![], vec![0], vec![4, 0], vec![usize::MAX, 2], vec![usize::MAX]] {
            assert!(Weight::new("w", shape, Encoding::F32, vec![]).is_err());
        }
        for rows in [vec![0], vec![0, 2], vec![0, 1, 1]] {
            let weight = Weight::new("w", vec![2, 1], Encoding::F32, vec![0; 8]).unwrap();
            assert!(weight.with_rows(rows).is_err());
        }
    }

    #[test]
    fn shapes_are_compared_whole() {
        let weight = Weight::new("w", vec![2, 1], Encoding::F32, vec![0; 8]).unwrap();
        assert!(weight.expect_shape(&[2, 1]).is_ok());
        assert!(weight.expect_shape(&[2]).is_err());
    }
}
