//! The weights of an opened checkpoint: file tensors by canonical name.
//!
//! Both readers fill a [`Tensors`]; it knows where each tensor lies, not how its format's headers look.

use std::{
    borrow::Cow,
    collections::HashMap,
    ops::Range,
    path::{Path, PathBuf},
};

use memmap2::Mmap;

use super::{CheckpointError, Encoding, Weight, WeightSource, limit::unsupported, names::Words};

/// What the readers decode; the expectation of every error about another type.
const ENCODINGS: &str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K; \
                         convert the checkpoint or take another quantisation of it";

/// How a tensor's elements are encoded, as far as we know its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// A type that is decoded.
    Known(Encoding),
    /// The format's name of one that is not; an error only when the tensor is asked for.
    Other(String),
}

/// Where a tensor lies.
#[derive(Debug, Clone)]
pub(super) struct Located {
    /// Row-major shape.
    pub(super) shape: Vec<usize>,
    /// Element type.
    pub(super) kind: Kind,
    /// Index of the file.
    pub(super) file: usize,
    /// Its bytes in that file; checked against the file's length by the reader.
    pub(super) bytes: Range<usize>,
}

/// The order of q and k rows in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowOrder {
    /// The canonical one: the two halves of a head are rotated against each other.
    Halves,
    /// Neighbours are rotated against each other, as GGUF stores Llama.
    Neighbours {
        /// Elements per head.
        head_size: usize,
        /// Rotated elements per head.
        dims: usize,
    },
}

/// Every tensor of a checkpoint.
pub(super) struct Tensors {
    /// The file or folder that the checkpoint was opened by.
    pub(super) origin: PathBuf,
    /// The mapped files.
    pub(super) maps: Vec<Mmap>,
    /// Tensors by the file's names.
    pub(super) by_name: HashMap<String, Located>,
    /// How the names are translated.
    pub(super) words: &'static Words,
    /// How q and k rows lie.
    pub(super) order: RowOrder,
}

impl Tensors {
    /// The file's name of `canonical`, and where it lies.
    pub(super) fn find(&self, canonical: &str) -> Option<(String, &Located)> {
        self.words
            .file_names(canonical)
            .into_iter()
            .find_map(|name| self.by_name.get(&name).map(|located| (name, located)))
    }

    /// The shape of `canonical` as stored.
    pub(super) fn shape(&self, canonical: &str) -> Result<&[usize], CheckpointError> {
        match self.find(canonical) {
            Some((_, located)) => Ok(&located.shape),
            None => Err(self.missing(canonical)),
        }
    }

    fn missing(&self, canonical: &str) -> CheckpointError {
        let name = match self.words.file_names(canonical).first() {
            Some(file_name) => format!("{canonical} (there called {file_name})"),
            None => canonical.to_owned(),
        };
        CheckpointError::MissingTensor { path: self.origin.clone(), name }
    }

    /// The tensor that the file calls `file_name`, in the file's order.
    pub(super) fn stored(&self, file_name: &str, name: &str) -> Result<Weight<'_>, CheckpointError> {
        let Some(located) = self.by_name.get(file_name) else { return Err(self.missing(name)) };
        let encoding = match &located.kind {
            Kind::Known(encoding) => *encoding,
            Kind::Other(found) => {
                return Err(unsupported(format!("type of tensor {file_name}"), ENCODINGS, found));
            }
        };
        let bytes = self.maps.get(located.file).and_then(|map| map.get(located.bytes.clone())).unwrap_or(&[]);
        Weight::new(name, located.shape.clone(), encoding, bytes)
    }
}

impl WeightSource for Tensors {
    fn weight(&self, name: &str) -> Result<Weight<'_>, CheckpointError> {
        let Some((file_name, _)) = self.find(name) else { return Err(self.missing(name)) };
        let weight = self.stored(&file_name, name)?;
        match self.order {
            RowOrder::Neighbours { head_size, dims } if is_rotated(name) => {
                to_halves(weight, head_size, dims)
            }
            _ => Ok(weight),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }
}

/// Whether `name` is a weight or bias of q or k.
fn is_rotated(name: &str) -> bool {
    name.contains(".attn.q_proj.") || name.contains(".attn.k_proj.")
}

/// `weight` with its rows in the canonical order. A bias is one row, so its elements are moved instead.
fn to_halves(weight: Weight<'_>, head_size: usize, dims: usize) -> Result<Weight<'_>, CheckpointError> {
    let is_bias = weight.shape.len() == 1;
    let rows = if is_bias { weight.cols() } else { weight.rows_len() };
    if !rows.is_multiple_of(head_size) {
        let mut expected = weight.shape.clone();
        expected.iter_mut().take(1).for_each(|rows| *rows = rows.next_multiple_of(head_size));
        return Err(CheckpointError::WrongShape { name: weight.name, expected, found: weight.shape });
    }
    if !is_bias {
        let rows = halves(rows, head_size, dims);
        return weight.with_rows(rows);
    }
    let values = weight.to_f32();
    let moved: Vec<u8> = halves(values.len(), head_size, dims)
        .into_iter()
        .flat_map(|from| values.get(from as usize).copied().unwrap_or(0.0).to_le_bytes())
        .collect();
    Weight::new(weight.name, weight.shape, Encoding::F32, Cow::Owned(moved))
}

/// For each row in canonical order, its row in an order where neighbours are rotated against each other. Elements
/// of a head beyond the rotated ones keep their places. `rows` is a whole number of heads.
fn halves(rows: usize, head_size: usize, dims: usize) -> Vec<u32> {
    let half = dims / 2;
    let from = |element: usize| match element {
        e if e < half => 2 * e,
        e if e < 2 * half => 2 * (e - half) + 1,
        e => e,
    };
    (0..rows).map(|row| (row - row % head_size + from(row % head_size)) as u32).collect()
}

/// A tensor's end, where it lies wholly inside a file of `length` bytes.
pub(super) fn end_of(start: usize, size: usize, length: usize) -> Option<usize> {
    start.checked_add(size).filter(|&end| end <= length)
}

/// The file name of `path`, for messages.
pub(super) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, kind: Kind, order: RowOrder) -> Tensors {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), (0..8u8).flat_map(|x| f32::from(x).to_le_bytes()).collect::<Vec<_>>())
            .unwrap();
        let shape = if name.ends_with("bias") { vec![8] } else { vec![8, 1] };
        let located = Located { shape, kind, file: 0, bytes: 0..32 };
        Tensors {
            origin: PathBuf::from("tiny.gguf"),
            maps: vec![super::super::map::map(file.path()).unwrap()],
            by_name: HashMap::from([(name.to_owned(), located)]),
            words: crate::checkpoint::family::GGUF[0].words,
            order,
        }
    }

    #[test]
    fn rows_of_neighbours_are_brought_to_halves() {
        let check = |rows, head, dims, expect: &[u32]| assert_eq!(halves(rows, head, dims), expect);
        check(8, 4, 4, &[0, 2, 1, 3, 4, 6, 5, 7]);
        check(6, 6, 4, &[0, 2, 1, 3, 4, 5]);
        check(3, 1, 0, &[0, 1, 2]);
    }

    #[test]
    fn weights_and_biases_of_q_and_k_are_permuted_alike() {
        let order = RowOrder::Neighbours { head_size: 4, dims: 4 };
        for leaf in ["weight", "bias"] {
            let tensors = one(&format!("blk.0.attn_k.{leaf}"), Kind::Known(Encoding::F32), order);
            let weight = tensors.weight(&format!("layers.0.attn.k_proj.{leaf}")).unwrap();
            assert_eq!(weight.to_f32(), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
        }
        let tensors = one("blk.0.attn_v.weight", Kind::Known(Encoding::F32), order);
        let odd = one(
            "blk.0.attn_q.weight",
            Kind::Known(Encoding::F32),
            RowOrder::Neighbours { head_size: 3, dims: 2 },
        );
        let error = odd.weight("layers.0.attn.q_proj.weight").unwrap_err().to_string();
        assert!(error.ends_with("wrong shape: expected [9, 1], found [8, 1]"), "{error}");
        let weight = tensors.weight("layers.0.attn.v_proj.weight").unwrap();
        assert!(weight.rows.is_none() && matches!(weight.bytes, Cow::Borrowed(_)));
    }

    #[test]
    fn absent_and_undecodable_tensors_are_named() {
        let tensors = one("blk.0.attn_v.weight", Kind::Other("IQ4_NL".into()), RowOrder::Halves);
        let check = |name: &str, expect: &str| {
            let error = tensors.weight(name).unwrap_err().to_string();
            assert!(error.starts_with(expect), "{error}");
        };
        check(
            "layers.0.attn.v_proj.weight",
            "type of tensor blk.0.attn_v.weight \"IQ4_NL\" is not supported",
        );
        check("norm.weight", "tiny.gguf has no tensor for norm.weight (there called output_norm.weight)");
        check("rubbish", "tiny.gguf has no tensor for rubbish");
        assert!(tensors.has("layers.0.attn.v_proj.weight") && !tensors.has("norm.weight"));
    }
}
