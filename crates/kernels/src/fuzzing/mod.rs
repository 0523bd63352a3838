//! Entry point of the fuzz target for kernels: runs a kernel on every instruction set, and compares the results with
//! those of the portable kernels. Not part of the product.
//!
//! Start at [`compare_with_portable`]. [`input`] makes operands from bytes. All kernels write into matrices with a
//! margin, which shows numbers that are written outside the result.

mod attention;
mod float;
mod input;
mod output;
mod packed_bytes;
mod quantized;
mod rows;

use input::{Input, TooShort};

/// Comparison of one kind of kernel on an input.
type Comparison = fn(&mut Input<'_>) -> Result<(), TooShort>;

/// Kind of kernel, the first byte of an input. `xtask/src/fuzz/seeds/kernels.rs` writes it.
const KINDS: [Comparison; 5] =
    [quantized::compare, float::compare, attention::compare, rows::compare, packed_bytes::compare];

/// Makes the operands of a kernel from bytes, and runs the kernel on every instruction set of this processor.
///
/// # Errors
/// The reason if the bytes are too few for the shapes of the operands.
///
/// # Panics
/// The results on two instruction sets differ, or results that must be independent of the division of the work depend on
/// it.
pub fn compare_with_portable(data: &[u8]) -> Result<(), String> {
    let mut input = Input::new(data);
    let compare = input.pick(&KINDS).map_err(|error| error.to_string())?;
    compare(&mut input).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns bytes of a linear congruential generator.
    fn random_bytes(seed: u32, len: usize) -> Vec<u8> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        std::iter::repeat_with(next).take(len).collect()
    }

    #[test]
    fn random_inputs_agree_on_every_instruction_set() {
        for (kind, rounds) in [60, 60, 30, 60, 10].into_iter().enumerate() {
            for round in 0..rounds {
                let mut data = random_bytes(round * 5 + kind as u32, 40 + 13 * round as usize);
                data[0] = kind as u8;
                assert_eq!(compare_with_portable(&data), Ok(()), "kind {kind}, round {round}");
            }
        }
    }

    #[test]
    fn keys_and_values_of_different_types_agree() {
        // One token with one head of sixteen elements, after five others.
        let shape = [2, 15, 0, 0, 0, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 2];
        let [single, half, integers] = [&[0, 2][..], &[1], &[2, 2]];
        for (keys, values) in [(integers, single), (half, integers), (integers, half), (single, half)] {
            let data = [&shape, keys, values, &random_bytes(1, 99)].concat();
            assert_eq!(compare_with_portable(&data), Ok(()), "{keys:?}, {values:?}");
        }
    }

    #[test]
    fn inputs_without_shapes_are_refused() {
        for kind in 0..4 {
            let error = compare_with_portable(&[kind, 1]).unwrap_err();
            assert!(error.contains("too short"), "{error}");
        }
        assert!(compare_with_portable(&[]).is_err());
    }
}
