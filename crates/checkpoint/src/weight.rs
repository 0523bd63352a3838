//! One [`Weight`] with its rows, shape and size, and the [`WeightSource`] that has all of a checkpoint.
//!
//! `tensors` finds weights in files; the block formats are in `encoding`.

use std::{borrow::Cow, ops::Range, path::Path};

use rayon::prelude::*;

use crate::{
    encoding::{Encoding, IntegerBlocks},
    error::{CheckpointError, Result},
    limits::unsupported,
};

/// A weight in its encoded form, usually borrowed from a memory map.
#[derive(Debug, Clone)]
pub struct Weight<'a> {
    /// Canonical name.
    pub name: String,
    /// Row-major shape; linear weights are `[out, in]`, vectors `[n]`.
    pub shape: Vec<usize>,
    /// Encoding of elements; blocks run along the last dimension.
    pub encoding: Encoding,
    /// The encoded rows, in file order.
    pub bytes: Cow<'a, [u8]>,
    /// Row `r` of the weight is row `rows[r]` of `bytes`; `None` is the identity. (GGUF stores the q and k rows of
    /// Llama interleaved.)
    pub rows: Option<Vec<u32>>,
    /// Elements of a stored row that belong to the weight; `None` for all of them.
    pub columns: Option<Columns>,
    /// Factor by which every decoded element is multiplied.
    pub scale: f32,
}

/// Selected columns of a stored weight, in whole blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// Number of elements in a stored row.
    stored: usize,
    /// Ranges to read, in this order.
    ranges: Vec<Range<usize>>,
}

/// A checkpoint's weights by canonical name.
pub trait WeightSource: Send + Sync {
    /// Returns the weight called `name` with the shape as stored.
    fn weight(&self, name: &str) -> Result<Weight<'_>>;

    /// Returns whether the weight called `name` exists.
    fn has(&self, name: &str) -> bool;

    /// Returns the file that has the weight called `name`, for messages.
    fn file(&self, _name: &str) -> Option<&Path> {
        None
    }

    /// Returns the weight's name, with the file's own name for it if that differs, for messages.
    fn called(&self, name: &str) -> String {
        name.to_owned()
    }

    /// Checks the values of the weight called `name`. Fails with [`CheckpointError::NotFinite`] if one of them is not
    /// finite.
    fn check_finite(&self, name: &str, values: &[f32]) -> Result<()> {
        let Some(&found) = values.iter().find(|value| !value.is_finite()) else { return Ok(()) };
        let error = CheckpointError::NotFinite { name: self.called(name), found };
        Err(match self.file(name) {
            Some(file) => error.in_file(file),
            None => error,
        })
    }
}

impl<'a> Weight<'a> {
    /// Creates a weight in file order: `bytes` has `shape` in row-major order, encoded in `encoding`.
    ///
    /// Fails with [`CheckpointError::WrongShape`] if there is no dimension, a dimension is zero, or the last one is not
    /// a whole number of blocks, and with [`CheckpointError::WrongSize`] if `bytes` has another length than the shape
    /// requires.
    pub fn new(
        name: impl Into<String>,
        shape: Vec<usize>,
        encoding: Encoding,
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> Result<Self> {
        let name = name.into();
        let bytes = bytes.into();
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
        Ok(Self { name, shape, encoding, bytes, rows: None, columns: None, scale: 1.0 })
    }

    /// Creates a weight of these values, in row-major order.
    ///
    /// Fails as [`Weight::new`].
    pub(super) fn of_values(name: impl Into<String>, shape: Vec<usize>, values: &[f32]) -> Result<Self> {
        Self::new(name, shape, Encoding::F32, bytemuck::cast_slice(values).to_vec())
    }

    /// Returns the weight with row `r` read from row `rows[r]` of the bytes.
    ///
    /// Fails with [`CheckpointError::WrongShape`] if the length of `rows` is not [`Weight::rows_len`] or a row does not
    /// exist.
    pub fn with_rows(mut self, rows: Vec<u32>) -> Result<Self> {
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

    /// Returns the weight with only these rows, in this order.
    ///
    /// Fails with [`CheckpointError::WrongShape`] if they are not rows of a matrix.
    pub(super) fn with_row_ranges(mut self, ranges: &[Range<usize>]) -> Result<Self> {
        let count: usize = ranges.iter().map(Range::len).sum();
        let inside = ranges.iter().all(|range| range.end <= self.rows_len());
        match self.shape.first_mut() {
            Some(rows) if inside && count > 0 => *rows = count,
            _ => {
                let expected = vec![ranges.iter().map(|range| range.end).max().unwrap_or(1), self.cols()];
                return Err(CheckpointError::WrongShape { name: self.name, expected, found: self.shape });
            }
        }
        self.rows = Some(
            ranges
                .iter()
                .cloned()
                .flatten()
                .filter_map(|row| self.rows.as_ref().map_or(Some(row as u32), |rows| rows.get(row).copied()))
                .collect(),
        );
        Ok(self)
    }

    /// Returns the weight with only these columns, in this order.
    ///
    /// Fails with [`CheckpointError::WrongShape`] if they are not columns of a matrix, or not whole blocks.
    pub(super) fn with_column_ranges(mut self, ranges: &[Range<usize>]) -> Result<Self> {
        let stored = self.cols();
        let block = self.encoding.block_elements();
        let count: usize = ranges.iter().map(Range::len).sum();
        let fits = ranges
            .iter()
            .flat_map(|range| [range.start, range.end])
            .all(|bound| bound <= stored && bound.is_multiple_of(block));
        match self.shape.last_mut() {
            Some(cols) if fits && count > 0 && self.columns.is_none() => *cols = count,
            _ => {
                let mut expected = self.shape.clone();
                expected.iter_mut().last().into_iter().for_each(|cols| *cols = count.next_multiple_of(block));
                return Err(CheckpointError::WrongShape { name: self.name, expected, found: self.shape });
            }
        }
        self.columns = Some(Columns { stored, ranges: ranges.to_vec() });
        Ok(self)
    }

    /// Returns the weight with every element multiplied by `factor`.
    pub(super) fn scaled(self, factor: f32) -> Self {
        Self { scale: self.scale * factor, ..self }
    }

    /// Returns the number of rows: the product of all dimensions except the last.
    pub fn rows_len(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Returns the number of elements in a row: the last dimension.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }

    /// Returns row `row` in its encoded form. Panics if there is no such row.
    pub fn row_bytes(&self, row: usize) -> &[u8] {
        let stored = self.rows.as_ref().map_or(row, |rows| rows[row] as usize);
        let cols = self.columns.as_ref().map_or(self.cols(), |columns| columns.stored);
        let length = self.encoded_length(cols);
        &self.bytes[stored * length..][..length]
    }

    /// Returns the number of bytes that `elements` elements take; they must be whole blocks.
    fn encoded_length(&self, elements: usize) -> usize {
        elements / self.encoding.block_elements() * self.encoding.block_bytes()
    }

    /// Decodes row `row` into the first [`Weight::cols`] elements of `out`. Panics if there is no such row.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        self.decode_row(row, out);
        if self.scale != 1.0 {
            out.iter_mut().take(self.cols()).for_each(|element| *element *= self.scale);
        }
    }

    fn decode_row(&self, row: usize, out: &mut [f32]) {
        let mut at = 0;
        for part in self.row_parts(row) {
            let elements = part.len() / self.encoding.block_bytes() * self.encoding.block_elements();
            self.encoding.decode(part, &mut out[at..at + elements]);
            at += elements;
        }
    }

    /// Returns the encoded parts of row `row` that belong to the weight, in order.
    fn row_parts(&self, row: usize) -> impl Iterator<Item = &[u8]> {
        let bytes = self.row_bytes(row);
        let whole = self.columns.is_none().then_some(bytes);
        let ranges = self.columns.iter().flat_map(|columns| &columns.ranges);
        let parts =
            ranges.map(|range| &bytes[self.encoded_length(range.start)..self.encoded_length(range.end)]);
        whole.into_iter().chain(parts)
    }

    /// Replaces `out` by the integers of row `row`. Panics if there is no such row.
    ///
    /// Fails with [`CheckpointError::Unsupported`] if the elements are not integers in blocks of 32 with one scale.
    pub fn read_integers(&self, row: usize, out: &mut IntegerBlocks) -> Result<()> {
        if !self.encoding.integers(self.row_parts(row), out) {
            let expected = "integers in blocks of 32 with one scale; convert the checkpoint";
            return Err(unsupported(format!("type of tensor {}", self.name), expected, self.encoding.name()));
        }
        if self.scale != 1.0 {
            out.scales.iter_mut().chain(&mut out.minimums).for_each(|x| *x *= self.scale);
        }
        Ok(())
    }

    /// Returns all elements in row-major order. Rows are decoded in parallel.
    pub fn to_f32(&self) -> Vec<f32> {
        let cols = self.cols();
        let mut out = vec![0.0; self.rows_len() * cols];
        out.par_chunks_mut(cols.max(1)).enumerate().for_each(|(row, out)| self.read_row(row, out));
        out
    }

    /// Fails with [`CheckpointError::WrongShape`] unless the shape is `expected`.
    pub fn expect_shape(&self, expected: &[usize]) -> Result<()> {
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
    use half::f16;

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
    fn rows_and_columns_are_passed_over() {
        let one = |range: Range<usize>| [range];
        let bytes = f32_bytes(&[0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0, 20.0, 21.0, 22.0, 23.0]);
        let weight = Weight::new("w", vec![3, 4], Encoding::F32, bytes).unwrap();
        let some = weight.clone().with_row_ranges(&[2..3, 0..1]).unwrap();
        let some = some.with_column_ranges(&[0..1, 2..4]).unwrap();
        assert_eq!((some.shape.as_slice(), some.rows_len(), some.cols()), ([2, 3].as_slice(), 2, 3));
        assert_eq!(some.to_f32(), [20.0, 22.0, 23.0, 0.0, 2.0, 3.0]);
        let turned = weight.clone().with_rows(vec![1, 2, 0]).unwrap().with_row_ranges(&one(1..3)).unwrap();
        assert_eq!(turned.to_f32()[..5], [20.0, 21.0, 22.0, 23.0, 0.0]);
        let wrong = |found: Result<Weight<'_>>| found.unwrap_err().to_string();
        assert!(wrong(weight.clone().with_row_ranges(&one(0..4))).ends_with("expected [4, 4], found [3, 4]"));
        assert!(wrong(weight.with_column_ranges(&one(2..5))).contains("found [3, 4]"));
        // Blocks of 32 elements cannot be split.
        let mut bytes = vec![0; 36];
        bytes[18..].fill(0x31);
        let integers = Weight::new("w", vec![1, 64], Encoding::Q4_0, bytes).unwrap();
        let integers = integers.with_column_ranges(&[32..64, 0..32]).unwrap().scaled(2.0);
        let mut blocks = IntegerBlocks::default();
        integers.read_integers(0, &mut blocks).unwrap();
        assert_eq!((blocks.quants[0], blocks.quants[16], blocks.quants[32]), (1, 3, 0));
        let scale = 2.0 * f16::from_le_bytes([0x31, 0x31]).to_f32();
        assert_eq!((blocks.scales, blocks.minimums), (vec![scale, 0.0], vec![-8.0 * scale, 0.0]));
        let weight = Weight::new("w", vec![1, 64], Encoding::Q4_0, vec![0; 36]).unwrap();
        assert_eq!(weight.clone().with_column_ranges(&one(32..64)).unwrap().to_f32(), [0.0; 32]);
        assert!(wrong(weight.with_column_ranges(&one(0..16))).ends_with("expected [1, 32], found [1, 64]"));
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
        // 32 elements are one whole block, but a row has only half a block.
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
