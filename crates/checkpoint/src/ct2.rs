//! Whisper models in the format of CTranslate2, `model.bin`, which faster-whisper uses (`WhisperSpec`, binary versions 4
//! to 6).
//!
//! The file is a list of named tensors. Tensors get the names of the `transformers` library; fused projections are ranges
//! of one tensor. Only floating-point weights are read. Layout: OpenNMT/CTranslate2, `python/ctranslate2/specs/model_spec.py`.

use std::{collections::HashMap, io::Read, path::Path};

use narthex_files::{MappedFile, open_regular};
use narthex_spec::arch::{Activation, Family, SpeechArch, SpeechLayers};

use crate::{
    encoding::Encoding,
    error::Result,
    family::WHISPER_NORM_EPSILON,
    limits::{LAYERS, bounded, malformed, map, unsupported},
    stored_tensor::{StoredTensor, TensorEncoding},
};

/// File of the weights.
pub(crate) const MODEL: &str = "model.bin";

/// Name of the specification, as it is stored.
const SPEC: &[u8] = b"WhisperSpec\0";

/// Versions of the binary format whose tensors have a type and a number of bytes.
const VERSIONS: std::ops::RangeInclusive<u32> = 4..=6;

/// Maximum rank of a tensor. Whisper's convolutions have 3 dimensions.
const MAX_RANK: u8 = 4;

/// CTranslate2's number of the exact GELU.
const GELU: i64 = 3;

/// A mapped file, its tensors by the names of the `transformers` library, and its architecture.
pub(crate) struct Ct2Model {
    pub(crate) map: MappedFile,
    pub(crate) by_name: HashMap<String, StoredTensor>,
    pub(crate) arch: SpeechArch,
}

/// Returns whether a folder has a Whisper model of this format.
pub(crate) fn is_whisper(folder: &Path) -> bool {
    let mut start = Vec::new();
    let length = 6 + SPEC.len();
    let Ok(file) = open_regular(&folder.join(MODEL)) else { return false };
    file.take(length as u64).read_to_end(&mut start).is_ok() && start.get(6..) == Some(SPEC)
}

/// Reads the model of a folder.
pub(crate) fn open(folder: &Path) -> Result<Ct2Model> {
    let path = folder.join(MODEL);
    let map = map(&path)?;
    let tensors = Ct2Reader { path: &path, bytes: &map, at: 0 }.tensors()?;
    let arch = architecture(&path, &map, &tensors)?;
    let mut by_name = HashMap::with_capacity(tensors.len());
    for (name, tensor) in &tensors {
        for (name, part) in renamed(&path, &map, name, tensor)? {
            by_name.insert(name, part);
        }
    }
    Ok(Ct2Model { map, by_name, arch })
}

/// Cursor over the bytes of a file.
struct Ct2Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Ct2Reader<'a> {
    /// Returns the location of each tensor by its name in the file.
    fn tensors(mut self) -> Result<HashMap<String, StoredTensor>> {
        let version = self.u32()?;
        if !VERSIONS.contains(&version) {
            let expected = "a file of CTranslate2 with version 4 to 6; convert the model again";
            return Err(malformed(self.path, expected, format!("version {version}")));
        }
        let spec = self.text()?;
        if spec.as_bytes() != &SPEC[..SPEC.len() - 1] {
            return Err(malformed(self.path, "a WhisperSpec", spec));
        }
        self.u32()?;
        let count = self.u32()?;
        let mut tensors = HashMap::new();
        // Every tensor takes bytes of the file, so the loop ends with the file at the latest.
        for _ in 0..count {
            let (name, tensor) = self.tensor()?;
            if let Some(_earlier) = tensors.insert(name.clone(), tensor) {
                return Err(malformed(self.path, "each tensor once", name));
            }
        }
        Ok(tensors)
    }

    fn tensor(&mut self) -> Result<(String, StoredTensor)> {
        let name = self.text()?;
        let rank = self.take(1)?[0];
        if rank > MAX_RANK {
            let expected = format!("at most {MAX_RANK} dimensions of {name}");
            return Err(malformed(self.path, expected, rank));
        }

        let shape = (0..rank).map(|_| Ok(self.u32()? as usize)).collect::<Result<Vec<_>>>()?;
        let (kind, size) = match self.take(1)?[0] {
            0 => (TensorEncoding::Known(Encoding::F32), 4),
            1 => (TensorEncoding::Other("int8".to_owned()), 1),
            2 => (TensorEncoding::Other("int16".to_owned()), 2),
            3 => (TensorEncoding::Other("int32".to_owned()), 4),
            4 => (TensorEncoding::Known(Encoding::F16), 2),
            5 => (TensorEncoding::Known(Encoding::Bf16), 2),
            other => return Err(malformed(self.path, format!("a type from 0 to 5 of {name}"), other)),
        };
        let length = self.u32()? as usize;
        let elements = shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
        if elements.and_then(|elements| elements.checked_mul(size)) != Some(length) {
            let expected = format!("{shape:?} elements of {size} bytes in {name}");
            return Err(malformed(self.path, expected, format!("{length} bytes")));
        }

        let start = self.at;
        self.take(length)?;
        Ok((name, StoredTensor { shape, kind, file: 0, bytes: start..start + length }))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len());
        let Some(end) = end else {
            let expected = format!("{length} bytes at {}", self.at);
            let found = format!("the end of the file at {}; fetch it again", self.bytes.len());
            return Err(malformed(self.path, expected, found));
        };
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Reads a text, whose stored length includes a zero byte at its end.
    fn text(&mut self) -> Result<String> {
        let length = self.take(2)?;
        let length = u16::from_le_bytes([length[0], length[1]]);
        let bytes = self.take(usize::from(length))?;
        let text = bytes.strip_suffix(&[0]).unwrap_or(bytes);
        match std::str::from_utf8(text) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(malformed(self.path, "names in UTF-8", error)),
        }
    }
}

/// Returns the architecture that the shapes of the tensors and the numbers beside them state.
fn architecture(path: &Path, bytes: &[u8], tensors: &HashMap<String, StoredTensor>) -> Result<SpeechArch> {
    let shape = |name: &str| match tensors.get(name) {
        Some(tensor) if !tensor.shape.is_empty() => Ok(tensor.shape.as_slice()),
        _ => Err(malformed(path, format!("the tensor {name}"), "none")),
    };
    let number = |name: &str| {
        let bytes = bytes.get(tensors.get(name)?.bytes.clone())?;
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut whole = [if negative { 0xff } else { 0 }; 8];
        whole.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(i64::from_le_bytes(whole))
    };
    let expect = |name: &str, expected: i64| match number(name) {
        Some(found) if found != expected => Err(unsupported(name, expected.to_string(), found)),
        _ => Ok(()),
    };
    for side in ["encoder", "decoder"] {
        expect(&format!("{side}/activation"), GELU)?;
        expect(&format!("{side}/pre_norm"), 1)?;
        expect(&format!("{side}/scale_embeddings"), 0)?;
    }

    let embedding = shape("decoder/embeddings/weight")?;
    let hidden = embedding.get(1).copied().unwrap_or(0);
    let layers = |side: &str| {
        let is_there = |&layer: &usize| {
            tensors.contains_key(&format!("{side}/layer_{layer}/self_attention/linear_0/weight"))
        };
        let count = (0..=*LAYERS.end()).take_while(is_there).count();
        let heads = number(&format!("{side}/num_heads")).and_then(|heads| usize::try_from(heads).ok());
        Ok(SpeechLayers {
            layers: bounded(path, &format!("a number of layers of the {side}"), count, &LAYERS)?,
            // Every published model has heads of 64 elements.
            heads: heads.unwrap_or(hidden / 64),
            inner: shape(&format!("{side}/layer_0/ffn/linear_0/weight"))?[0],
        })
    };
    Ok(SpeechArch {
        family: Family::Whisper,
        vocab: embedding[0],
        hidden,
        bins: shape("encoder/conv1/weight")?.get(1).copied().unwrap_or(0),
        source_positions: shape("encoder/position_encodings/encodings")?[0],
        target_positions: shape("decoder/position_encodings/encodings")?[0],
        encoder: layers("encoder")?,
        decoder: layers("decoder")?,
        activation: Activation::Gelu,
        norm_epsilon: WHISPER_NORM_EPSILON,
        alignment_heads: Vec::new(),
    })
}

/// Returns the tensors of the `transformers` library that a tensor contains; none for numbers.
fn renamed(
    path: &Path,
    bytes: &[u8],
    name: &str,
    tensor: &StoredTensor,
) -> Result<Vec<(String, StoredTensor)>> {
    if tensor.shape.is_empty() {
        return Ok(Vec::new());
    }
    let (module, leaf) = name.rsplit_once('/').unwrap_or(("", name));
    let leaf = match leaf {
        "gamma" | "encodings" => "weight",
        "beta" => "bias",
        other => other,
    };
    let (outside, inside) = match module.split_once("/layer_").and_then(|(side, rest)| {
        let (number, inside) = rest.split_once('/')?;
        number.parse::<usize>().is_ok().then(|| (format!("model.{side}.layers.{number}"), inside))
    }) {
        Some(inside) => inside,
        None => return Ok(vec![(format!("model.{}.{leaf}", outer(module)), tensor.clone())]),
    };

    let parts: &[&str] = match inside {
        "self_attention/layer_norm" => &["self_attn_layer_norm"],
        "self_attention/linear_0" => &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "self_attention/linear_1" => &["self_attn.out_proj"],
        "attention/layer_norm" => &["encoder_attn_layer_norm"],
        "attention/linear_0" => &["encoder_attn.q_proj"],
        "attention/linear_1" => &["encoder_attn.k_proj", "encoder_attn.v_proj"],
        "attention/linear_2" => &["encoder_attn.out_proj"],
        "ffn/layer_norm" => &["final_layer_norm"],
        "ffn/linear_0" => &["fc1"],
        "ffn/linear_1" => &["fc2"],
        other => &[other],
    };
    let mut named = Vec::with_capacity(parts.len());
    for (part, location) in parts.iter().zip(split(path, name, tensor, parts.len())?) {
        if *part == "self_attn.k_proj" || *part == "encoder_attn.k_proj" {
            // Keys have no bias. CTranslate2 stores zeros.
            let values = bytes.get(location.bytes.clone()).unwrap_or_default();
            if leaf == "bias" && values.iter().any(|&byte| byte & 0x7f != 0) {
                return Err(unsupported(format!("bias of keys in {name}"), "zeros", "other values"));
            }
            if leaf == "bias" {
                continue;
            }
        }
        named.push((format!("{outside}.{part}.{leaf}"), location));
    }
    Ok(named)
}

/// Returns the name of a module outside of layers.
fn outer(module: &str) -> String {
    match module {
        "decoder/embeddings" => "decoder.embed_tokens".to_owned(),
        "encoder/position_encodings" => "encoder.embed_positions".to_owned(),
        "decoder/position_encodings" => "decoder.embed_positions".to_owned(),
        other => other.replace('/', "."),
    }
}

/// Divides a tensor into `parts` of equal size along its first dimension.
fn split(path: &Path, name: &str, tensor: &StoredTensor, parts: usize) -> Result<Vec<StoredTensor>> {
    let rows = tensor.shape[0];
    if !rows.is_multiple_of(parts) {
        return Err(malformed(path, format!("rows of {name} in {parts} parts"), rows));
    }
    let length = tensor.bytes.len() / parts;
    let mut shape = tensor.shape.clone();
    shape[0] = rows / parts;
    let mut divided = Vec::with_capacity(parts);
    for start in (tensor.bytes.start..).step_by(length.max(1)).take(parts) {
        divided.push(StoredTensor { shape: shape.clone(), bytes: start..start + length, ..tensor.clone() });
    }
    Ok(divided)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;
    use crate::{CheckpointError, weight::Weight};

    fn golden() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/speech")
    }

    /// Copies the tiny Whisper with these weights, changed by `change`.
    fn copy(weights: &str, change: impl FnOnce(&mut Vec<u8>)) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in ["config.json", "generation_config.json", "tokenizer.json"] {
            fs::copy(golden().join(name), folder.path().join(name)).unwrap();
        }
        let mut bytes = fs::read(golden().join(weights)).unwrap();
        change(&mut bytes);
        fs::write(folder.path().join(weights), bytes).unwrap();
        folder
    }

    #[test]
    fn both_formats_have_the_same_weights_and_tokens() {
        let [safetensors, ct2] = ["model.safetensors", "model.bin"].map(|weights| {
            let folder = copy(weights, |_| ());
            (crate::open(folder.path()).unwrap_or_else(|error| panic!("{error}")), folder)
        });
        let (expected, found) = (&safetensors.0, &ct2.0);
        assert_eq!(found.architecture, expected.architecture);
        assert_eq!(found.speech, expected.speech);
        let values = |weight: Result<Weight<'_>>| weight.unwrap().to_f32();
        for name in expected.architecture.weights().iter().map(|weight| weight.name.to_string()) {
            let [found, expected] =
                [&found.weights, &expected.weights].map(|weights| values(weights.weight(&name)));
            assert_eq!(found, expected, "{name}");
        }
        let speech = expected.speech.clone().unwrap();
        assert_eq!((speech.start, speech.end, speech.first_timestamp), (257, 256, 266));
        assert_eq!(speech.languages, [("de".to_owned(), 259), ("en".to_owned(), 258)].into());
        assert_eq!(speech.suppress, [1, 2, 7, 257, 258, 259, 260, 261, 262, 263, 264, 265]);
        assert_eq!(speech.suppress_first, [32, 256]);
    }

    #[test]
    fn malformed_files_are_refused_and_never_read_beyond_their_end() {
        let refused = |change: &dyn Fn(&mut Vec<u8>), expect: &str| {
            let folder = copy("model.bin", |bytes| change(bytes));
            let error = crate::open(folder.path()).err().unwrap().to_string();
            assert!(error.contains(expect), "{error} lacks {expect}");
        };
        refused(&|bytes| bytes[0] = 3, "expected a file of CTranslate2 with version 4 to 6");
        refused(&|bytes| bytes.truncate(bytes.len() / 2), "fetch it again");
        // More tensors than the file has.
        refused(&|bytes| bytes[22..26].fill(0xff), "model.bin is malformed");
        // The length of the first name.
        refused(&|bytes| bytes[26..28].fill(0xff), "names in UTF-8");
        let at = |bytes: &[u8], name: &str| {
            bytes.windows(name.len()).position(|window| window == name.as_bytes()).unwrap() + name.len() + 1
        };
        refused(
            &|bytes| {
                let rank = at(bytes, "encoder/conv1/weight");
                bytes[rank + 1] += 1;
            },
            "encoder/conv1/weight",
        );
        refused(
            &|bytes| {
                let rank = at(bytes, "encoder/conv1/weight");
                bytes[rank] = 200;
            },
            "at most 4 dimensions",
        );
        refused(
            &|bytes| {
                let rank = at(bytes, "decoder/activation");
                bytes[rank + 1 + 1 + 4] = 1;
            },
            "unsupported decoder/activation: found 1, expected 3",
        );
        refused(
            &|bytes| {
                // Behind the rank, an extent, the type and the length; the keys' biases are the second third.
                let rank = at(bytes, "encoder/layer_0/self_attention/linear_0/bias");
                bytes[rank + 1 + 4 + 1 + 4 + 2 * 40] = 1;
            },
            "bias of keys",
        );
        for length in 0..60 {
            let folder = copy("model.bin", |bytes| bytes.truncate(length));
            let error = crate::open(folder.path()).err().unwrap();
            assert!(!matches!(error, CheckpointError::Read { .. }), "{error}");
        }
    }

    #[test]
    fn integers_are_refused_with_the_next_step() {
        let folder = copy("model.bin", |bytes| {
            let name = b"encoder/conv1/bias\0";
            let at = bytes.windows(name.len()).position(|window| window == name).unwrap() + name.len();
            // 16-bit integers have the size of half precision.
            bytes[at + 1 + 4] = 2;
        });
        let error = crate::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains("found int16") && error.contains("convert the checkpoint"), "{error}");
    }
}
