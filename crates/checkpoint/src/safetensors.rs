//! Safetensors files, single or sharded, as locations of tensors.
//!
//! The `safetensors` crate parses the header and checks offsets against shapes. Sharding follows the
//! `model.safetensors.index.json` of the `transformers` library. This module does not interpret the tensors.

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
};

use narthex_files::MappedFile;
use safetensors::{Dtype, tensor::Metadata};
use serde::Deserialize;

use crate::{
    encoding::Encoding,
    error::{CheckpointError, Result},
    limits::map,
    limits::{check_values, malformed, read_at_most, unsupported},
    stored_tensor::{StoredTensor, TensorEncoding},
    tensors::end_of,
};

/// File of an unsharded checkpoint.
pub(super) const SINGLE: &str = "model.safetensors";
/// Index of a sharded checkpoint.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// Maximum size of a header and of an index, in bytes. A header of ten thousand tensors takes about 1.5 MB, an index
/// about 1 MB.
const MAX_HEADER_BYTES: u64 = 32 << 20;
/// Maximum number of files of a checkpoint.
const MAX_SHARDS: usize = 4096;
/// Maximum number of tensors of a checkpoint. One with hundreds of experts in each layer has 150,000.
const MAX_TENSORS: usize = 1 << 18;
/// Maximum number of JSON values in a header. A tensor is about nine, and the parser copies each before it knows which
/// are tensors.
const MAX_HEADER_VALUES: usize = 1 << 21;

/// The tensors of a folder.
pub(super) struct Shards {
    pub(super) maps: Vec<MappedFile>,
    /// Tensors by the file's names.
    pub(super) by_name: HashMap<String, StoredTensor>,
    /// All files that were read.
    pub(super) files: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

/// Opens the safetensors of `folder`. An index has precedence over a single file: a folder with both has its weights in
/// the shards.
pub(super) fn open(folder: &Path) -> Result<Shards> {
    let index_path = folder.join(INDEX);
    let mut shards = Shards { maps: Vec::new(), by_name: HashMap::new(), files: Vec::new() };
    if !index_path.is_file() {
        shards.read(folder.join(SINGLE))?;
        return Ok(shards);
    }

    let index: Index = match serde_json::from_slice(&read_at_most(&index_path, MAX_HEADER_BYTES)?) {
        Ok(index) => index,
        Err(error) => return Err(malformed(&index_path, "a JSON object with a weight_map", error)),
    };
    let names: BTreeSet<&String> = index.weight_map.values().collect();
    if names.len() > MAX_SHARDS {
        return Err(malformed(&index_path, format!("at most {MAX_SHARDS} files"), names.len()));
    }

    for name in names {
        // The index is untrusted and must not refer to files outside the folder.
        if Path::new(name).file_name() != Some(name.as_ref()) {
            return Err(malformed(&index_path, "names of files in the same folder", name));
        }
        shards.read(folder.join(name))?;
    }

    if let Some(absent) = index.weight_map.keys().filter(|name| !shards.by_name.contains_key(*name)).min() {
        return Err(CheckpointError::MissingTensor { path: folder.to_owned(), name: absent.clone() });
    }

    shards.files.push(index_path);
    Ok(shards)
}

impl Shards {
    fn read(&mut self, path: PathBuf) -> Result<()> {
        self.read_as(path, "")
    }

    /// Adds the tensors of a file, with a prefix before their names.
    pub(super) fn read_as(&mut self, path: PathBuf, prefix: &str) -> Result<()> {
        let bytes = map(&path)?;
        let tensors = locate(&path, &bytes, self.maps.len())?;
        let total = self.by_name.len() + tensors.len();
        if total > MAX_TENSORS {
            return Err(malformed(&path, format!("at most {MAX_TENSORS} tensors in all files"), total));
        }
        for (name, located) in tensors {
            let name = format!("{prefix}{name}");
            if self.by_name.insert(name.clone(), located).is_some() {
                return Err(malformed(&path, "each tensor in one file only", name));
            }
        }
        self.maps.push(bytes);
        self.files.push(path);
        Ok(())
    }
}

/// Returns the location of each tensor of a mapped file.
fn locate(path: &Path, bytes: &[u8], file: usize) -> Result<Vec<(String, StoredTensor)>> {
    // The parser checks a text and then copies it. In between, a mapped file may change.
    let header = header(path, bytes)?.to_vec();
    check_values(path, &header, MAX_HEADER_VALUES)?;
    let metadata: Metadata = match serde_json::from_slice(&header) {
        Ok(metadata) => metadata,
        Err(error) => {
            return Err(malformed(path, "a safetensors header", format!("{error}; fetch it again")));
        }
    };

    let start = size_of::<u64>() + header.len();
    // The crate has checked that tensors are contiguous. The file must have exactly their length.
    if start.checked_add(metadata.data_len()) != Some(bytes.len()) {
        let expected = format!("{} bytes of tensors", metadata.data_len());
        return Err(malformed(path, expected, format!("{}; fetch it again", bytes.len() - start)));
    }

    Ok(metadata
        .tensors()
        .into_iter()
        .map(|(name, info)| {
            let (from, to) = info.data_offsets;
            (
                name,
                StoredTensor {
                    shape: info.shape.clone(),
                    kind: kind(info.dtype),
                    file,
                    bytes: start + from..start + to,
                },
            )
        })
        .collect())
}

/// Returns the number of bytes from the file's start that contain the list of its tensors, estimated from `beginning`;
/// `None` if `beginning` suffices.
pub(super) fn header_length(beginning: &[u8]) -> Option<u64> {
    let length = size_of::<u64>() as u64;
    let whole = match beginning.first_chunk().copied().map(u64::from_le_bytes) {
        Some(header) if header <= MAX_HEADER_BYTES => length + header,
        // Reading such a file reports the error.
        Some(_) => return None,
        None => length,
    };
    ((beginning.len() as u64) < whole).then_some(whole)
}

/// Returns the JSON text at the file's beginning, after its length field.
fn header<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a [u8]> {
    let length = bytes.first_chunk().copied().map(u64::from_le_bytes);
    let header = length.filter(|&length| length <= MAX_HEADER_BYTES).and_then(|length| {
        let end = end_of(size_of::<u64>(), usize::try_from(length).ok()?, bytes.len())?;
        bytes.get(size_of::<u64>()..end)
    });
    header.ok_or_else(|| {
        let expected = format!("a safetensors header of at most {MAX_HEADER_BYTES} bytes inside the file");
        let found = length.map_or("no length".to_owned(), |length| format!("{length}"));
        malformed(path, expected, format!("{found} in a file of {} bytes; fetch it again", bytes.len()))
    })
}

fn kind(dtype: Dtype) -> TensorEncoding {
    match dtype {
        Dtype::F32 => TensorEncoding::Known(Encoding::F32),
        Dtype::F16 => TensorEncoding::Known(Encoding::F16),
        Dtype::BF16 => TensorEncoding::Known(Encoding::Bf16),
        other => TensorEncoding::Other(format!("{other:?}")),
    }
}

/// Fails, with the next step, for folders whose weights are in another format.
pub(super) fn refuse_other_formats(names: &[String]) -> Result<()> {
    let other = names.iter().find(|name| {
        [".bin", ".pt", ".pth", ".h5", ".msgpack", ".ckpt"].iter().any(|ending| name.ends_with(ending))
    });
    match other {
        Some(name) => Err(unsupported(
            "weight file",
            format!("{SINGLE} or {INDEX}; save the model again as safetensors"),
            name,
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use narthex_testkit::checkpoint::{
        HfTensor, hf_tensors, safetensors_bytes, tiny_llama_shards, tiny_llama_weights,
    };

    use super::*;

    fn located(bytes: &[u8]) -> Result<Vec<(String, StoredTensor)>> {
        locate(Path::new("model.safetensors"), bytes, 0)
    }

    fn refused(bytes: &[u8], expect: &str) {
        let error = located(bytes).unwrap_err().to_string();
        assert!(
            error.starts_with("model.safetensors is malformed") && error.contains(expect),
            "{error} lacks {expect}"
        );
    }

    fn with_header(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    #[test]
    fn tensors_lie_where_the_header_says() {
        let mut tensors = hf_tensors(&tiny_llama_weights(1));
        tensors.push(HfTensor { name: "ids".into(), dtype: "I64", shape: vec![1], bytes: vec![0; 8] });
        let bytes = safetensors_bytes(&tensors);
        let found: HashMap<_, _> = located(&bytes).unwrap().into_iter().collect();
        assert_eq!(found.len(), tensors.len());
        for tensor in &tensors {
            let located = &found[&tensor.name];
            let encoding = match tensor.dtype {
                "F32" => TensorEncoding::Known(Encoding::F32),
                "F16" => TensorEncoding::Known(Encoding::F16),
                "BF16" => TensorEncoding::Known(Encoding::Bf16),
                other => TensorEncoding::Other(other.to_owned()),
            };
            assert_eq!((&located.shape, &located.kind), (&tensor.shape, &encoding));
            assert!(bytes[located.bytes.clone()] == tensor.bytes);
        }
    }

    #[test]
    fn the_first_bytes_state_the_length_of_the_header() {
        let bytes = safetensors_bytes(&hf_tensors(&tiny_llama_weights(1)));
        let header = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap());
        let check =
            |length: u64, expect| assert_eq!(header_length(&bytes[..length as usize]), expect, "{length}");
        check(3, Some(8));
        check(8, Some(header));
        check(header - 1, Some(header));
        check(header, None);
        assert_eq!(header_length(&u64::MAX.to_le_bytes()), None);
    }

    #[test]
    fn broken_files_are_refused() {
        refused(b"", "inside the file");
        refused(b"1234567", "inside the file");
        refused(&u64::MAX.to_le_bytes(), "inside the file");
        refused(&(MAX_HEADER_BYTES + 1).to_le_bytes(), "at most 33554432 bytes");
        refused(&with_header("{", 0), "a safetensors header");
        refused(&with_header(&"[".repeat(100_000), 0), "a safetensors header");
        refused(&with_header(&"[".repeat(MAX_HEADER_VALUES + 1), 0), "at most 2097152 values");
        let one = |shape: &str, offsets: &str| {
            format!(r#"{{"t":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        assert!(located(&with_header(&one("[2]", "[0,8]"), 8)).is_ok());
        refused(&with_header(&one("[2]", "[0,8]"), 7), "8 bytes of tensors, found 7; fetch it again");
        refused(&with_header(&one("[2]", "[0,8]"), 9), "8 bytes of tensors, found 9; fetch it again");
        refused(&with_header(&one("[3]", "[0,8]"), 8), "fetch it again");
        refused(&with_header(&one("[2]", "[8,16]"), 16), "fetch it again");
        refused(&with_header(&one("[18446744073709551615]", "[0,8]"), 8), "fetch it again");
        refused(&with_header(&one("[2]", "[8,0]"), 8), "fetch it again");
        let two = |second: &str| {
            let tensor = |name: &str, offsets: &str| {
                format!(r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":{offsets}}}"#)
            };
            format!("{{{},{}}}", tensor("t", "[0,8]"), tensor("u", second))
        };
        assert!(located(&with_header(&two("[8,16]"), 16)).is_ok());
        // Tensors that share bytes.
        refused(&with_header(&two("[0,8]"), 8), "fetch it again");
        refused(&with_header(&two("[4,12]"), 12), "fetch it again");
        // Each tensor's size is consistent, but their sum exceeds the address space.
        let huge = 1u64 << 60;
        let chain: Vec<String> = (0..16u64)
            .map(|i| {
                let end = if i == 15 { u64::MAX - 7 } else { (i + 1) * huge };
                let from = i * huge;
                format!(r#""t{i}":{{"dtype":"U8","shape":[{}],"data_offsets":[{from},{end}]}}"#, end - from)
            })
            .collect();
        refused(&with_header(&format!("{{{}}}", chain.join(",")), 8), "bytes of tensors, found 8");
    }

    #[test]
    fn shards_are_read_together_and_a_broken_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        tiny_llama_shards(path, 1).unwrap();
        let shards = open(path).map_err(|error| error.to_string()).unwrap();
        assert_eq!((shards.maps.len(), shards.by_name.len(), shards.files.len()), (2, 20, 3));
        let second = path.join("model-00002-of-00002.safetensors");
        let whole = std::fs::read(&second).unwrap();
        let check = |expect: &str| {
            let error = open(path).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expect), "{error} lacks {expect}");
        };
        std::fs::write(&second, &whole[..whole.len() - 5]).unwrap();
        check("model-00002-of-00002.safetensors is malformed: expected");
        std::fs::remove_file(&second).unwrap();
        check("cannot read");
        check("model-00002-of-00002.safetensors");
        std::fs::copy(path.join("model-00001-of-00002.safetensors"), &second).unwrap();
        check("each tensor in one file only");
        std::fs::write(&second, safetensors_bytes(&[])).unwrap();
        check("has no tensor for model.layers.0.mlp.down_proj.weight");
    }

    #[test]
    fn the_tensors_of_all_files_are_limited() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SINGLE);
        let tensor = HfTensor { name: "ids".into(), dtype: "I64", shape: vec![1], bytes: vec![0; 8] };
        std::fs::write(&path, safetensors_bytes(&[tensor])).unwrap();
        let kind = TensorEncoding::Known(Encoding::F32);
        let other = StoredTensor { shape: Vec::new(), kind, file: 0, bytes: 0..0 };
        let read = |others: usize| {
            let by_name = (0..others).map(|index| (index.to_string(), other.clone())).collect();
            let mut shards = Shards { maps: Vec::new(), by_name, files: Vec::new() };
            shards.read(path.clone()).map_err(|error| error.to_string())
        };
        assert_eq!(read(MAX_TENSORS - 1), Ok(()));
        let error = read(MAX_TENSORS).unwrap_err();
        assert!(error.contains("at most 262144 tensors in all files, found 262145"), "{error}");
    }

    #[test]
    fn an_index_does_not_lead_out_of_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", ""] {
            let index = serde_json::json!({"weight_map": {"t": name}});
            std::fs::write(folder.path().join(INDEX), index.to_string()).unwrap();
            let error = open(folder.path()).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("names of files in the same folder"), "{name}: {error}");
        }
    }

    #[test]
    fn other_weight_formats_get_the_next_step() {
        let names = ["config.json", "pytorch_model.bin"].map(str::to_owned);
        let error = refuse_other_formats(&names).unwrap_err().to_string();
        assert!(
            error.contains("found pytorch_model.bin")
                && error.contains("save the model again as safetensors")
        );
        assert!(refuse_other_formats(&names[..1]).is_ok());
    }
}
