//! Linear weights as packed by AMD Quark's Hugging Face export: 4-bit integers with a scale and a zero point for each
//! group of a row, in three tensors.
//!
//! Counterpart of `export::quark`. `is_read` decides which settings are supported.

use std::{borrow::Cow, collections::HashMap, path::Path};

use rayon::prelude::*;
use serde_json::Value;

use crate::{
    encoding::Encoding,
    error::{CheckpointError, Result},
    limits::{malformed, unsupported},
    stored_tensor::{PackedTensor, StoredTensor, TensorEncoding},
    weight::Weight,
};

/// Position of each of eight rows among the nibbles of a packed 32-bit word, counted from the lowest. Nibble `i` is row
/// `[0, 2, 4, 6, 1, 3, 5, 7][i]`; Quark calls this `reorder` (`Pack_4_bits` in `quark/torch/utils/pack.py`).
pub const PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Elements of a block of [`Encoding::Uint4`]. A group consists of several blocks.
const BLOCK: usize = 32;

/// Returns whether a `quantization_config` is supported: Quark's 4-bit integers in groups with zero points, for weights
/// only.
pub(super) fn is_read(config: &Value) -> bool {
    let text = |path: &str| config.pointer(path).and_then(Value::as_str);
    let weight = "/global_quant_config/weight";
    text("/quant_method") == Some("quark")
        && text("/export/pack_method") == Some("reorder")
        && text(&format!("{weight}/dtype")) == Some("uint4")
        && text(&format!("{weight}/qscheme")) == Some("per_group")
        && config.pointer("/global_quant_config/input_tensors").is_none_or(Value::is_null)
}

/// Combines each packed weight of a folder with its scales and zero points into one tensor `[out, in]`.
pub(super) fn gather(folder: &Path, tensors: &mut HashMap<String, StoredTensor>) -> Result<()> {
    let mut names: Vec<String> = tensors
        .iter()
        .filter(|(name, tensor)| name.ends_with(".weight") && tensor.kind == integers())
        .map(|(name, _)| name.clone())
        .filter(|name| {
            ["scale", "zero_point"].iter().any(|end| tensors.contains_key(&format!("{name}_{end}")))
        })
        .collect();

    names.sort_unstable();
    for name in names {
        let scales = take(folder, tensors, format!("{name}_scale"))?;
        let zeros = take(folder, tensors, format!("{name}_zero_point"))?;
        let Some(weight) = tensors.get_mut(&name) else { continue };
        let sizes = sizes(&weight.shape, &scales.shape, &zeros.shape);
        let Some((shape, group)) = sizes.filter(|_| zeros.kind == integers()) else {
            let expected = format!("a {name} of whole groups of {BLOCK} columns or more, in int32");
            let found = format!("shapes {:?}, {:?} and {:?}", weight.shape, scales.shape, zeros.shape);
            return Err(malformed(folder, expected, found));
        };
        weight.shape = shape.to_vec();
        weight.kind = TensorEncoding::PackedTensor(Box::new(PackedTensor { scales, zeros, group }));
    }
    Ok(())
}

/// Removes a tensor of a folder from the list, and returns it.
fn take(folder: &Path, tensors: &mut HashMap<String, StoredTensor>, name: String) -> Result<StoredTensor> {
    tensors.remove(&name).ok_or_else(|| CheckpointError::MissingTensor { path: folder.to_owned(), name })
}

/// Returns the encoding of packed tensors.
fn integers() -> TensorEncoding {
    TensorEncoding::Other("I32".to_owned())
}

/// Returns `[out, in]` and the number of columns in a group, or `None` if the three shapes do not match.
fn sizes(words: &[usize], scales: &[usize], zeros: &[usize]) -> Option<([usize; 2], usize)> {
    let (&[cols, words], &[groups, rows]) = (words, scales) else { return None };
    let group = cols.checked_div(groups)?;
    let fits = zeros == [groups, words] && words == rows.div_ceil(8) && group * groups == cols;
    (fits && group > 0 && group.is_multiple_of(BLOCK)).then_some(([rows, cols], group))
}

/// Choice between reading a weight's elements and only its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Elements {
    Read,
    /// Reads only the shape; all elements are zero.
    Unread,
}

/// Returns a packed weight converted to row-major blocks of [`Encoding::Uint4`]. `bytes` returns the bytes of a stored
/// tensor.
pub(super) fn weight<'a>(
    name: &str,
    located: &StoredTensor,
    packed: &PackedTensor,
    elements: Elements,
    bytes: impl Fn(&StoredTensor) -> &'a [u8],
) -> Result<Weight<'static>> {
    let shape = located.shape.clone();
    let &[rows, cols] = &shape[..] else {
        return Err(CheckpointError::WrongShape {
            name: name.to_owned(),
            expected: vec![0, 0],
            found: shape,
        });
    };

    let mut out = vec![0; rows * (cols / BLOCK) * Encoding::Uint4.block_bytes()];
    if elements == Elements::Read {
        let scales = singles(&packed.scales.kind, bytes(&packed.scales)).ok_or_else(|| {
            let expected = "f32, f16 or bf16; export the model again";
            unsupported(
                format!("type of the scales of {name}"),
                expected,
                format!("{:?}", packed.scales.kind),
            )
        })?;
        let quants = bytes(located).as_chunks().0;
        let zeros = bytes(&packed.zeros).as_chunks().0;
        Groups { quants, zeros, scales, rows, group: packed.group }.unpack(cols, &mut out);
    }
    Weight::new(name, shape, Encoding::Uint4, Cow::Owned(out))
}

/// Quantised values, zero points and scales of a packed weight. Each line has one nibble or one scale per row of the
/// weight.
struct Groups<'a> {
    quants: &'a [[u8; 4]],
    zeros: &'a [[u8; 4]],
    scales: Vec<f32>,
    rows: usize,
    group: usize,
}

impl Groups<'_> {
    /// Writes the blocks of every row; a row has `cols` elements.
    fn unpack(&self, cols: usize, out: &mut [u8]) {
        let row_bytes = cols / BLOCK * Encoding::Uint4.block_bytes();
        out.par_chunks_mut(row_bytes.max(1)).enumerate().for_each(|(row, out)| {
            for (index, block) in out.chunks_exact_mut(Encoding::Uint4.block_bytes()).enumerate() {
                let first = index * BLOCK;
                let group = index * BLOCK / self.group;
                let scale = self.scales.get(group * self.rows + row).copied().unwrap_or_default();
                block[..4].copy_from_slice(&scale.to_le_bytes());
                block[4] = self.nibble(self.zeros, group, row);
                for (at, pair) in block[5..].iter_mut().enumerate() {
                    let [low, high] =
                        [at, at + BLOCK / 2].map(|col| self.nibble(self.quants, first + col, row));
                    *pair = low | high << 4;
                }
            }
        });
    }

    /// Returns the nibble of a row in line `line` of packed words.
    fn nibble(&self, words: &[[u8; 4]], line: usize, row: usize) -> u8 {
        let word =
            words.get(line * self.rows.div_ceil(8) + row / 8).map_or(0, |word| u32::from_le_bytes(*word));
        (word >> (4 * PLACES[row % 8]) & 15) as u8
    }
}

/// Converts the elements of a floating-point tensor to `f32`.
fn singles(kind: &TensorEncoding, bytes: &[u8]) -> Option<Vec<f32>> {
    let TensorEncoding::Known(encoding @ (Encoding::F32 | Encoding::F16 | Encoding::Bf16)) = kind else {
        return None;
    };
    let mut singles = vec![0.0; bytes.len() / encoding.block_bytes()];
    encoding.decode(bytes, &mut singles);
    Some(singles)
}
