//! Locations of tensors in the files of a checkpoint.

use std::{collections::HashMap, ops::Range};

use crate::{encoding::Encoding, limits::EXPERTS};

/// Encoding of a tensor's elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TensorEncoding {
    /// An encoding that can be decoded.
    Known(Encoding),
    /// Elements of a quantised checkpoint, with their scales and zero points.
    PackedTensor(Box<PackedTensor>),
    /// The format's name of an unsupported encoding. It causes an error only if the tensor is read.
    Other(String),
}

/// Location of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredTensor {
    /// Row-major shape.
    pub(super) shape: Vec<usize>,
    /// Element type.
    pub(super) kind: TensorEncoding,
    /// Index of the file.
    pub(super) file: usize,
    /// Byte range in that file. The reader has checked it against the file's length.
    pub(super) bytes: Range<usize>,
}

/// Layout of a weight's integers, scales and zero points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PackedLayout {
    /// AMD Quark and AutoAWQ: 4-bit integers `[in, out / 8]`, eight rows in a word in the order of [`PLACES`](crate::packed::PLACES); scales
    /// `[groups, out]`, zero points as the integers, `[groups, out / 8]`.
    Interleaved,
    /// GPTQ: integers `[in · bits / 32, out]`, consecutive columns in a word from the lowest bits on; scales `[groups, out]`;
    /// zero points minus `zero_offset`, `[groups, out · bits / 32]`.
    Columns {
        /// Width of an integer.
        bits: u32,
        /// Difference between a zero point and its stored integer.
        zero_offset: u32,
    },
    /// compressed-tensors: integers plus half of their range, `[out, in · bits / 32]`, consecutive columns in a word; scales
    /// `[out, groups]`; zero points in the same form, `[out · bits / 32, groups]`.
    Rows {
        /// Width of an integer.
        bits: u32,
    },
    /// compressed-tensors: signed bytes `[out, in]`; scales `[out, groups]` or one; signed zero points of the same shape.
    Bytes,
    /// gpt-oss: floats of 4 bits (E2M1), `[out, in / 32, 16]`, two consecutive columns in a byte from the lower bits on;
    /// exponents of the scales plus 127, `[out, in / 32]`.
    Mxfp4,
    /// Floats of 8 bits with 4 bits of exponent (`F8_E4M3`), `[out, in]`; scales `[out blocks, in blocks]` or one.
    Float8,
}

/// The additional tensors of a packed weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PackedTensor {
    pub(super) layout: PackedLayout,
    /// Scales, in half or single precision.
    pub(super) scales: StoredTensor,
    /// Zero points; `None` for symmetric weights.
    pub(super) zeros: Option<StoredTensor>,
    /// Group of each column, if groups are not consecutive columns.
    pub(super) groups: Option<StoredTensor>,
    /// Number of rows and of columns that share a scale.
    pub(super) tile: [usize; 2],
}

impl StoredTensor {
    /// Returns the members of a stack along its first axis; `None` if it has none, or more than a layer's experts.
    fn members(&self) -> Option<Vec<Self>> {
        let (&count, shape) = self.shape.split_first()?;
        if !EXPERTS.contains(&count) || !self.bytes.len().is_multiple_of(count) {
            return None;
        }
        let size = self.bytes.len() / count;
        let kinds = match &self.kind {
            TensorEncoding::PackedTensor(packed) => {
                let scales = packed.scales.members().filter(|scales| scales.len() == count)?;
                let packed = scales.into_iter().map(|scales| PackedTensor { scales, ..(**packed).clone() });
                packed.map(|packed| TensorEncoding::PackedTensor(Box::new(packed))).collect()
            }
            kind => vec![kind.clone(); count],
        };
        let members = kinds.into_iter().enumerate().map(|(number, kind)| {
            let start = self.bytes.start + number * size;
            Self { shape: shape.to_vec(), kind, file: self.file, bytes: start..start + size }
        });
        Some(members.collect())
    }
}

/// Replaces stacks by their members. `names` has the end of a stack's name and that of a member's, with a `#` for its
/// number. A stack that cannot be divided stays as it is.
pub(super) fn divide_stacks(tensors: &mut HashMap<String, StoredTensor>, names: &[(&str, &str)]) {
    for &(stack, member) in names {
        let found = tensors.keys().filter(|name| name.ends_with(stack)).cloned().collect::<Vec<_>>();
        for name in found {
            let Some(members) = tensors.get(&name).and_then(StoredTensor::members) else { continue };
            tensors.remove(&name);
            let start = &name[..name.len() - stack.len()];
            let numbered = members.into_iter().enumerate();
            tensors.extend(numbered.map(|(number, tensor)| {
                (format!("{start}{}", member.replace('#', &number.to_string())), tensor)
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_become_their_members() {
        let tensor = |shape: &[usize], bytes: Range<usize>| StoredTensor {
            shape: shape.to_vec(),
            kind: TensorEncoding::Known(Encoding::F16),
            file: 3,
            bytes,
        };
        let stacks = [
            ("a.x", tensor(&[2, 3, 4], 100..148)),
            ("b.x", tensor(&[3, 1], 0..5)),
            ("x.y", tensor(&[2], 0..4)),
        ];
        let mut tensors = stacks.map(|(name, tensor)| (name.to_owned(), tensor)).into();
        divide_stacks(&mut tensors, &[(".x", ".#.x.weight")]);
        let mut names: Vec<&str> = tensors.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["a.0.x.weight", "a.1.x.weight", "b.x", "x.y"]);
        assert_eq!(tensors["a.1.x.weight"], tensor(&[3, 4], 124..148));
    }
}
