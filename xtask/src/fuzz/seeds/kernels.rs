//! Seeds for the operands of kernels: the kind of kernel, choices and shapes, and bytes from which the elements are made.
//! `crates/kernels/src/fuzzing` reads them in this order.

use super::Input;

/// Kinds of kernels.
const QUANTIZED: u8 = 0;
const FLOAT: u8 = 1;
const ATTENTION: u8 = 2;
const ROWS: u8 = 3;
const PACKED: u8 = 4;

/// Distribution of elements in single precision: moderate numbers, and moderate and special ones.
const MODERATE: u8 = 2;
const MIXED: u8 = 3;

/// Choices and shapes of an input.
struct Choices(Vec<u8>);

impl Choices {
    fn new(kind: u8) -> Self {
        Self(vec![kind])
    }

    /// Adds numbers of two bytes, as distances from their minimum.
    fn numbers(mut self, numbers: &[u16]) -> Self {
        self.0.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        self
    }

    /// Adds choices of one byte.
    fn choices(mut self, choices: &[u8]) -> Self {
        self.0.extend(choices);
        self
    }

    /// Adds bytes for the elements.
    fn elements(mut self) -> Vec<u8> {
        self.0.extend((0..=255u8).map(|byte| byte.wrapping_mul(37)));
        self.0
    }
}

/// A product with `rows` rows, of 40 outputs and 100 inputs. The choices are the width of weights, and the kinds of zero
/// points and scales.
fn quantized(rows: u16, granularity: u8, weights: [u8; 3]) -> Vec<u8> {
    let shape = Choices::new(QUANTIZED).numbers(&[rows]).choices(&[granularity]).numbers(&[1, 39, 99]);
    let [bits, zeros, scales] = weights;
    let scales: &[u8] = if scales == 0 { &[0, MODERATE] } else { &[1] };
    shape.choices(&[1, bits, zeros]).choices(scales).choices(&[MIXED]).elements()
}

/// Attention of `tokens` tokens after 300 others, in groups of three heads. The choices are the limit of scores, the
/// mask, and the element type of the cache.
fn attention(tokens: u16, head_size: u16, choices: [u8; 3]) -> Vec<u8> {
    let [cap, mask, cache] = choices;
    let rows: &[u8] = if cache == 1 { &[1] } else { &[cache, MODERATE] };
    let shape = Choices::new(ATTENTION).numbers(&[head_size - 1, 2, tokens, 300, 0, 69]);
    shape.choices(&[0, cap, mask, MODERATE]).choices(rows).choices(rows).elements()
}

/// The header of a packed matrix, and bytes after it.
fn packed(outputs: u64, inputs: u64, format: [u8; 4], bytes: usize) -> Vec<u8> {
    let mut data = [&[PACKED], b"NARXPAK\x01".as_slice()].concat();
    data.extend([outputs.to_le_bytes(), inputs.to_le_bytes()].concat());
    data.extend(format);
    data.resize(1 + 64 + bytes, 0x5a);
    data[29..65].fill(0);
    data
}

pub(super) fn seeds() -> Vec<Input> {
    let float = Choices::new(FLOAT).numbers(&[12, 32, 63, 1]);
    let rows = Choices::new(ROWS).numbers(&[2, 66, 16]);
    let most = u64::MAX;
    vec![
        Input::valid("one-row", quantized(1, 0, [0, 0, 0])),
        Input::valid("four-bits", quantized(20, 1, [0, 0, 1])),
        Input::valid("without-zero-points", quantized(40, 0, [0, 1, 1])),
        Input::valid("eight-bits", quantized(7, 1, [1, 0, 0])),
        Input::valid("floats", float.choices(&[MODERATE, 1, MIXED]).elements()),
        Input::valid("one-token", attention(1, 64, [0, 0, 0])),
        Input::valid("halves", attention(1, 48, [1, 1, 1])),
        Input::valid("integers", attention(1, 64, [0, 0, 2])),
        Input::valid("window", attention(9, 40, [2, 2, 2])),
        Input::valid("rows", rows.choices(&[0, MIXED, MODERATE, MODERATE, MIXED]).elements()),
        Input::valid("packed-four", packed(17, 40, [32, 4, 0, 1], 2 * 2 * (256 + 16 + 32))),
        Input::valid("packed-eight", packed(3, 16, [16, 8, 1, 0], 256 + 64)),
        Input::bomb("outputs", packed(most, 0, [32, 4, 0, 0], 0)),
        Input::bomb("inputs", packed(0, most, [16, 8, 1, 1], 0)),
        Input::bomb("sizes", packed(most, most, [128, 8, 1, 1], 64)),
    ]
}
