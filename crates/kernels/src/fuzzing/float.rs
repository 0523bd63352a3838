//! Products in single precision.

use super::{
    input::{Input, TooShort},
    output::{agree, assert_same, written},
};
use crate::{
    float::{FloatMatrix, FloatRows, FloatWeights},
    simd::LANES,
    view::MatrixRef,
};

/// Compares the products of all rows, of the first row, and of columns up to a tile and from it on.
pub(super) fn compare(input: &mut Input<'_>) -> Result<(), TooShort> {
    let (rows, outputs, inputs) = (input.number(0, 30)?, input.number(1, 70)?, input.number(1, 130)?);
    let split = input.number(0, outputs / LANES)? * LANES;
    let activations = input.floats(rows * inputs)?;
    let packed = if input.pick(&[true, false])? {
        FloatMatrix::pack(outputs, inputs, FloatWeights::F16(&input.halves(outputs * inputs)))
    } else {
        FloatMatrix::pack(outputs, inputs, FloatWeights::F32(&input.floats(outputs * inputs)?))
    };
    let packed = packed.unwrap_or_else(|error| panic!("weights of a valid shape: {error}"));
    agree("float product", |kernels| {
        let mut arranged = FloatRows::default();
        let mut multiply = |rows: usize, columns: std::ops::Range<usize>| {
            kernels.interleave(MatrixRef::new(&activations[..rows * inputs], inputs), &mut arranged);
            written(rows, columns.len(), |out| kernels.matmul_float(&arranged, &packed, columns, out))
        };
        let whole = multiply(rows, 0..outputs);
        assert_same(
            "product of one row",
            &multiply(rows.min(1), 0..outputs),
            &whole[..rows.min(1) * outputs],
        );
        for columns in [0..split, split..outputs] {
            let expected: Vec<f32> =
                whole.chunks(outputs).flat_map(|row| row[columns.clone()].to_vec()).collect();
            assert_same("product of some columns", &multiply(rows, columns), &expected);
        }
        whole
    });
    Ok(())
}
