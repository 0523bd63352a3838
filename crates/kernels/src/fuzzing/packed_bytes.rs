//! Stored bytes of packed matrices.

use std::sync::Arc;

use super::{
    input::{Input, TooShort},
    quantized::QuantizedProduct,
};
use crate::{activations::Granularity, packed::PackedMatrix};

/// Maximum number of inputs and of outputs that are multiplied. A matrix without outputs may state any number of inputs,
/// and the reverse.
const MAX_SIZE: usize = 4096;

/// Number of rows of the product.
const ROWS: usize = 2;

/// Reads the rest of the input as a packed matrix. An accepted matrix must have the bytes that it was read from, and is
/// multiplied.
pub(super) fn compare(input: &mut Input<'_>) -> Result<(), TooShort> {
    let bytes = input.rest();
    let Ok(weights) = PackedMatrix::from_bytes(Arc::new(bytes.to_vec()), 0..bytes.len()) else {
        return Ok(());
    };
    assert!(weights.as_bytes() == bytes, "a packed matrix has other bytes than those it was read from");
    let sizes = [weights.inputs(), weights.outputs()];
    if sizes.iter().all(|size| (1..=MAX_SIZE).contains(size)) {
        let activations: Vec<f32> = (0..ROWS * weights.inputs()).map(|i| (i % 7) as f32 - 3.0).collect();
        let product = QuantizedProduct {
            weights: &weights,
            granularity: Granularity::Block,
            activations: &activations,
        };
        product.compare(0);
    }
    Ok(())
}
