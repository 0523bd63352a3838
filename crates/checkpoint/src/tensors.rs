//! The weights of an opened checkpoint: file tensors by canonical name.
//!
//! Both readers fill a [`Tensors`]. It has the location of each tensor and does not depend on a file format.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use narthex_files::MappedFile;

use crate::{
    error::{CheckpointError, Result},
    file_watches::FileWatches,
    layout::Layout,
    limits::unsupported,
    names::{NameTable, TensorPart},
    packed::{self, Elements},
    stored_tensor::{StoredTensor, TensorEncoding},
    weight::{Weight, WeightSource},
};

/// Supported encodings, for errors about another one.
const ENCODINGS: &str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K or MXFP4; \
                         convert the checkpoint or take another quantisation of it";

/// All tensors of a checkpoint.
pub(super) struct Tensors {
    /// Path of the opened checkpoint: a file or a folder.
    pub(super) origin: PathBuf,
    pub(super) maps: Vec<MappedFile>,
    /// Paths of the mapped files, in the same order.
    pub(super) files: Vec<PathBuf>,
    /// Tensors by their names in the files.
    pub(super) by_name: HashMap<String, StoredTensor>,
    /// Mapping between canonical names and names in the files.
    pub(super) names: &'static NameTable,
    /// Layout of the weights.
    pub(super) layout: Layout,
}

impl Tensors {
    /// Returns the watches on the mapped files.
    pub(super) fn watches(&self) -> FileWatches {
        let watches = self.files.iter().cloned().zip(self.maps.iter().map(MappedFile::watch));
        FileWatches(watches.collect())
    }

    /// Returns the file's names of the tensors that make up `canonical`, if all of them exist.
    pub(super) fn find(&self, canonical: &str) -> Option<Vec<String>> {
        self.names.file_names(canonical).into_iter().find_map(|file_name| {
            let names = match file_name.part {
                Some(TensorPart::PerHead) => {
                    (0..self.layout.heads_of(canonical)).map(|head| file_name.of_head(head)).collect()
                }
                _ => vec![file_name.name],
            };
            (!names.is_empty() && names.iter().all(|name| self.by_name.contains_key(name))).then_some(names)
        })
    }

    /// Returns the bytes of a tensor.
    fn bytes(&self, tensor: &StoredTensor) -> &[u8] {
        self.maps.get(tensor.file).and_then(|map| map.get(tensor.bytes.clone())).unwrap_or(&[])
    }

    /// Returns the shape of `canonical` as stored.
    pub(super) fn shape(&self, canonical: &str) -> Result<&[usize]> {
        let names = self.find(canonical);
        let located = names.as_ref().and_then(|names| self.by_name.get(names.first()?));
        located.map(|located| located.shape.as_slice()).ok_or_else(|| self.missing(canonical))
    }

    /// Returns the file that has `canonical`, or the path with which the checkpoint was opened if no file has it.
    pub(super) fn file_of(&self, canonical: &str) -> &Path {
        let names = self.find(canonical);
        let located = names.as_ref().and_then(|names| self.by_name.get(names.first()?));
        located.and_then(|located| self.files.get(located.file)).unwrap_or(&self.origin)
    }

    fn missing(&self, canonical: &str) -> CheckpointError {
        CheckpointError::MissingTensor { path: self.origin.clone(), name: self.called(canonical) }
    }

    /// Returns the tensor that the file calls `file_name`, in the file's order.
    pub(super) fn stored(&self, file_name: &str, name: &str) -> Result<Weight<'_>> {
        self.tensor(file_name, name, Elements::Read)
    }

    fn tensor(&self, file_name: &str, name: &str, elements: Elements) -> Result<Weight<'_>> {
        let Some(located) = self.by_name.get(file_name) else { return Err(self.missing(name)) };
        let encoding = match &located.kind {
            TensorEncoding::Known(encoding) => *encoding,
            TensorEncoding::PackedTensor(packed) => {
                return packed::weight(name, located, packed, elements, |tensor| self.bytes(tensor));
            }
            TensorEncoding::Other(found) => {
                return Err(unsupported(format!("type of tensor {file_name}"), ENCODINGS, found));
            }
        };
        Weight::new(name, located.shape.clone(), encoding, self.bytes(located))
    }
}

impl WeightSource for Tensors {
    fn weight(&self, name: &str) -> Result<Weight<'_>> {
        self.of_file(name, Elements::Read)
    }

    fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn file(&self, name: &str) -> Option<&Path> {
        Some(self.file_of(name))
    }

    fn called(&self, name: &str) -> String {
        let place = self.names.file_names(name).into_iter().next();
        let found = match self.find(name).as_deref() {
            Some([one]) => Some(one.clone()),
            _ => place.map(|place| place.name),
        };
        match (found, self.names.part(name)) {
            (Some(found), None | Some(TensorPart::PerHead)) => format!("{name} (named {found} in this file)"),
            (Some(found), Some(_)) => format!("{name} (a part of {found} in this file)"),
            (None, _) => name.to_owned(),
        }
    }
}

impl Tensors {
    /// Checks that the weight `name` exists with a supported encoding and the shape `expected`. It does not read
    /// elements.
    pub(super) fn check(&self, name: &str, expected: &[usize]) -> Result<()> {
        let part = self.names.part(name);
        for located in self.find(name).iter().flatten().filter_map(|file_name| self.by_name.get(file_name)) {
            let expected = self.layout.stored_shape(name, part, expected, &located.shape);
            if located.shape != expected {
                let found = located.shape.clone();
                let error = CheckpointError::WrongShape { name: self.called(name), expected, found };
                return Err(error.in_file(self.file_of(name)));
            }
        }
        self.of_file(name, Elements::Unread).map(drop)
    }

    fn of_file(&self, name: &str, elements: Elements) -> Result<Weight<'_>> {
        self.read(name, elements)
            .map_err(|error| error.of_tensor(self.called(name)).in_file(self.file_of(name)))
    }

    fn read(&self, name: &str, elements: Elements) -> Result<Weight<'_>> {
        let Some(names) = self.find(name) else { return Err(self.missing(name)) };
        let weight = match &names[..] {
            [file_name] => self.tensor(file_name, name, elements)?,
            heads => stacked(name, heads.iter().map(|head| self.stored(head, name)))?,
        };
        self.layout.canonical(weight, self.names.part(name))
    }
}

/// Stacks vectors of equal length as the rows of a matrix.
fn stacked<'a>(name: &str, vectors: impl Iterator<Item = Result<Weight<'a>>>) -> Result<Weight<'a>> {
    let mut values = Vec::new();
    let mut shape = vec![0, 0];
    for vector in vectors {
        let vector = vector?;
        let width = if shape[0] == 0 { vector.cols() } else { shape[1] };
        vector.expect_shape(&[width])?;
        shape = vec![shape[0] + 1, width];
        values.extend(vector.to_f32());
    }
    Weight::of_values(name, shape, &values)
}

/// Returns the end of a tensor if it is inside a file of `length` bytes.
pub(super) fn end_of(start: usize, size: usize, length: usize) -> Option<usize> {
    start.checked_add(size).filter(|&end| end <= length)
}

/// Returns the file name of `path`, for messages.
pub(super) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, kind: TensorEncoding) -> Tensors {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [0; 32]).unwrap();
        let located = StoredTensor { shape: vec![8, 1], kind, file: 0, bytes: 0..32 };
        Tensors {
            origin: PathBuf::from("tiny.gguf"),
            maps: vec![crate::limits::map(file.path()).unwrap()],
            files: vec![PathBuf::from("tiny.gguf")],
            by_name: HashMap::from([(name.to_owned(), located)]),
            names: crate::family::GGUF[0].names,
            layout: Layout::default(),
        }
    }

    #[test]
    fn absent_and_undecodable_tensors_are_named() {
        let tensors = one("blk.0.attn_v.weight", TensorEncoding::Other("IQ4_NL".into()));
        let check = |name: &str, expect: &str| {
            let error = tensors.weight(name).unwrap_err().to_string();
            assert!(error.starts_with(expect), "{error}");
        };
        check(
            "layers.0.attn.v_proj.weight",
            "tiny.gguf: unsupported type of tensor blk.0.attn_v.weight: found IQ4_NL",
        );
        check(
            "norm.weight",
            "tiny.gguf has no tensor for norm.weight (named output_norm.weight in this file)",
        );
        check("rubbish", "tiny.gguf has no tensor for rubbish");
        assert!(tensors.has("layers.0.attn.v_proj.weight") && !tensors.has("norm.weight"));
    }
}
