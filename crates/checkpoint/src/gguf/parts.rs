//! A GGUF checkpoint in one file or divided into parts, as by `llama-gguf-split`.
//!
//! Each part is a GGUF file with some of the tensors. The first has the metadata of the model; every part states its
//! number and the number of parts.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
};

use narthex_files::{MappedFile, PartName};

use super::{
    meta::Metadata,
    read::{Contents, MAX_TENSORS, read},
};
use crate::{
    error::{CheckpointError, Result},
    limits::{malformed, map, unsupported},
    stored_tensor::StoredTensor,
    tensors::file_name,
};

/// Number of a part, counted from zero.
const NUMBER: &str = "split.no";
/// Number of parts.
const COUNT: &str = "split.count";
/// Number of tensors in all parts.
const TENSORS: &str = "split.tensors.count";

/// Maximum number of parts.
const MAX_PARTS: usize = 1024;

/// The mapped files of a checkpoint, with the contents of all of them.
pub(crate) struct GgufFiles {
    pub(crate) maps: Vec<MappedFile>,
    /// Paths of the mapped files, in the same order.
    pub(crate) paths: Vec<PathBuf>,
    /// Metadata of the model.
    pub(crate) metadata: Metadata,
    /// Location of each tensor, by name.
    pub(crate) tensors: HashMap<String, StoredTensor>,
}

impl GgufFiles {
    /// Opens the file `path`, and the other parts beside it if it is one of several.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let (bytes, contents) = map_and_read(path)?;
        let count = contents.metadata.count(COUNT)?.unwrap_or(1);
        if count <= 1 {
            let Contents { metadata, tensors } = contents;
            return Ok(Self { maps: vec![bytes], paths: vec![path.to_owned()], metadata, tensors });
        }
        if count > MAX_PARTS {
            return Err(malformed(path, format!("{COUNT} of at most {MAX_PARTS}"), count));
        }

        let name = file_name(path);
        let Some(part) = PartName::parse(&name).filter(|part| part.count as usize == count) else {
            let expected = format!(
                "the name that the part had when the model was divided, such as model-00001-of-{count:05}.gguf; \
                 rename all parts, or join them with llama-gguf-split --merge"
            );
            return Err(unsupported("name of a part of a GGUF file", expected, name));
        };
        let mut names = part.all();
        let first = path.with_file_name(names.next().unwrap_or_default());
        let mut files = Self::first_part(&first, count)?;
        for name in names {
            files.add_part(&path.with_file_name(name), count)?;
        }

        let stated = files.metadata.count(TENSORS)?;
        match stated.filter(|&stated| stated != files.tensors.len()) {
            None => Ok(files),
            Some(stated) => {
                let expected = format!("{stated} tensors in the {count} parts of the model");
                Err(malformed(&first, expected, files.tensors.len()))
            }
        }
    }

    fn first_part(path: &Path, count: usize) -> Result<Self> {
        let (bytes, Contents { metadata, tensors }) = map_part(path, 0, count)?;
        Ok(Self { maps: vec![bytes], paths: vec![path.to_owned()], metadata, tensors })
    }

    /// Adds the tensors of the next part.
    fn add_part(&mut self, path: &Path, count: usize) -> Result<()> {
        let file = self.maps.len();
        let (bytes, Contents { tensors, .. }) = map_part(path, file, count)?;
        let total = self.tensors.len() + tensors.len();
        if total as u64 > MAX_TENSORS {
            return Err(malformed(path, format!("at most {MAX_TENSORS} tensors in all parts"), total));
        }
        for (name, tensor) in tensors {
            if self.tensors.contains_key(&name) {
                return Err(malformed(path, "each tensor in one part only", name));
            }
            self.tensors.insert(name, StoredTensor { file, ..tensor });
        }
        self.maps.push(bytes);
        self.paths.push(path.to_owned());
        Ok(())
    }
}

/// Opens the part `number` of `count`, counted from zero.
fn map_part(path: &Path, number: usize, count: usize) -> Result<(MappedFile, Contents)> {
    let (bytes, contents) = map_and_read(path).map_err(|error| match error {
        CheckpointError::Read { path, source } if source.kind() == io::ErrorKind::NotFound => {
            let reason = format!(
                "the file is missing, which is part {} of {count} of the model; put all parts into one folder",
                number + 1
            );
            CheckpointError::Read { path, source: io::Error::new(io::ErrorKind::NotFound, reason) }
        }
        other => other,
    })?;
    for (key, expected) in [(COUNT, count), (NUMBER, number)] {
        let found = contents.metadata.count(key)?;
        if found != Some(expected) {
            let found = found.map_or("none".to_owned(), |found| found.to_string());
            return Err(malformed(path, format!("{key} {expected}, because of the file's name"), found));
        }
    }
    Ok((bytes, contents))
}

fn map_and_read(path: &Path) -> Result<(MappedFile, Contents)> {
    let bytes = map(path)?;
    let contents = read(path, &bytes)?;
    Ok((bytes, contents))
}

#[cfg(test)]
mod tests {
    use narthex_testkit::checkpoint::{Gguf, Meta, tiny_llama};

    use super::*;
    use crate::Checkpoint;

    fn names(count: usize) -> Vec<String> {
        PartName::parse(&format!("m-00001-of-{count:05}.gguf")).unwrap().all().collect()
    }

    /// Writes the tiny Llama in three parts after `change`.
    fn write_parts(folder: &Path, change: impl FnOnce(&mut Vec<Gguf>)) {
        let mut parts = tiny_llama(1).split(3);
        change(&mut parts);
        for (name, part) in names(3).iter().zip(&parts) {
            std::fs::write(folder.join(name), part.to_bytes()).unwrap();
        }
    }

    fn open(path: &Path) -> Checkpoint {
        crate::open(path).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn any_part_and_the_folder_open_the_whole_model() {
        let folder = tempfile::tempdir().unwrap();
        write_parts(folder.path(), |_| ());
        let whole = tempfile::tempdir().unwrap();
        std::fs::write(whole.path().join("m.gguf"), tiny_llama(1).to_bytes()).unwrap();
        let whole = open(whole.path());
        let mut paths: Vec<PathBuf> = names(3).iter().map(|name| folder.path().join(name)).collect();
        let files = paths.clone();
        paths.push(folder.path().to_owned());
        for path in paths {
            let found = open(&path);
            assert_eq!(found.files, files);
            assert_eq!(found.architecture, whole.architecture);
            assert_eq!(found.chat_template, whole.chat_template);
            for name in ["embed.weight", "layers.0.attn.q_proj.weight", "layers.1.mlp.down_proj.weight"] {
                let (a, b) = (found.weights.weight(name).unwrap(), whole.weights.weight(name).unwrap());
                assert_eq!((a.bytes, a.encoding, a.shape), (b.bytes, b.encoding, b.shape), "{name}");
            }
            found.watches.check().unwrap();
        }
    }

    #[test]
    fn parts_that_do_not_belong_together_are_refused() {
        let check = |change: &dyn Fn(&mut Vec<Gguf>), expect: &str| {
            let folder = tempfile::tempdir().unwrap();
            write_parts(folder.path(), change);
            let found = crate::open(&folder.path().join(&names(3)[1]));
            let found = found.map_or_else(|error| error.to_string(), |_| "opened".to_owned());
            assert!(found.contains(expect), "{found} lacks {expect}");
        };
        check(&|_| (), "opened");
        check(&|parts| drop(parts.pop()), "m-00003-of-00003.gguf: the file is missing, which is part 3 of 3");
        check(&|parts| parts.swap(0, 2), "m-00001-of-00003.gguf is malformed: expected split.no 0");
        check(
            &|parts| parts[2].set(COUNT, Meta::U32(4)),
            "m-00003-of-00003.gguf is malformed: expected split.count 3, because of the file's name, found 4",
        );
        check(&|parts| parts[0].set(TENSORS, Meta::U32(99)), "expected 99 tensors in the 3 parts");
        check(&|parts| parts[1].set(COUNT, Meta::U32(2)), "such as model-00001-of-00002.gguf");
        check(&|parts| parts[1].set(COUNT, Meta::U32(1 << 20)), "split.count of at most 1024");
        let duplicated = |parts: &mut Vec<Gguf>| {
            let tensor = parts[0].tensors[0].clone();
            parts[1].tensors.push(tensor);
        };
        check(&duplicated, "each tensor in one part only");
    }

    #[test]
    fn a_renamed_part_is_refused_with_the_expected_name() {
        let folder = tempfile::tempdir().unwrap();
        write_parts(folder.path(), |_| ());
        let renamed = folder.path().join("model.gguf");
        std::fs::rename(folder.path().join(&names(3)[0]), &renamed).unwrap();
        let error = crate::open(&renamed).err().unwrap().to_string();
        assert!(error.contains("found model.gguf, expected the name that the part had"), "{error}");
    }
}
