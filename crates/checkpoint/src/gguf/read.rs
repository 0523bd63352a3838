//! Parser for the bytes of a GGUF file: little-endian, versions 2 and 3.
//!
//! Follows ggml's `docs/gguf.md`. Counts, lengths and offsets are checked against the file's length and [`BUDGET`].
//! Memory is allocated only for elements that have been read.

use std::{
    collections::{BTreeMap, HashMap, hash_map},
    path::Path,
};

use narthex_text::tokenizer::{MAX_MERGES, MAX_TOKENS};

use super::{
    data_section::DataSection,
    meta::{Metadata, Value},
};
use crate::{
    encoding::Encoding,
    error::Result,
    limits::{malformed, unsupported},
    stored_tensor::{StoredTensor, TensorEncoding},
};

/// Maximum memory for metadata, in bytes. A vocabulary of 250,000 tokens takes about 30 MB.
const BUDGET: usize = 512 << 20;
/// Memory that a metadata entry or tensor takes in addition to its text, in bytes.
const ENTRY_COST: usize = 128;
/// Memory that a string in an array takes in addition to its text, in bytes.
const STRING_COST: usize = size_of::<String>() + 32;
/// Maximum number of tensors of a model.
pub(super) const MAX_TENSORS: u64 = 1 << 16;
/// Maximum number of dimensions of a tensor in ggml.
const MAX_DIMS: u32 = 4;
/// Alignment of the tensor data if the file states none, in bytes.
const DEFAULT_ALIGNMENT: usize = 32;
/// Maximum accepted alignment, in bytes.
const MAX_ALIGNMENT: usize = 1 << 20;
/// Maximum nesting depth of arrays.
const MAX_DEPTH: usize = 4;

/// Contents of a file.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) metadata: Metadata,
    /// Location of each tensor, by name.
    pub(crate) tensors: HashMap<String, StoredTensor>,
}

/// Reads the header, the metadata and the tensor table of `bytes`; `path` is for messages.
pub(crate) fn read(path: &Path, bytes: &[u8]) -> Result<Contents> {
    let (mut contents, end) = tables(path, bytes)?;
    let alignment = alignment(&contents.metadata)?;
    let start = end.next_multiple_of(alignment);
    let data = DataSection { length: bytes.len(), start, alignment };
    data.locate_all(path, &mut contents.tensors)?;
    Ok(contents)
}

/// Returns whether the header, with which a file begins, is refused.
pub(crate) fn has_bad_header(beginning: &[u8]) -> bool {
    Reader { path: Path::new(""), bytes: beginning, at: 0, budget: BUDGET }.header().is_err()
}

/// Returns whether the beginning of a file contains the whole metadata and tensor table.
pub(crate) fn has_whole_tables(beginning: &[u8]) -> bool {
    tables(Path::new(""), beginning).is_ok()
}

/// Returns the metadata and the tensor table, and the position of their end. Tensor positions are not yet checked
/// against the file's length.
fn tables(path: &Path, bytes: &[u8]) -> Result<(Contents, usize)> {
    let mut reader = Reader { path, bytes, at: 0, budget: BUDGET };
    let [tensor_count, value_count] = reader.header()?;
    let mut values = BTreeMap::new();
    for _ in 0..value_count {
        reader.charge(ENTRY_COST)?;
        let key = reader.text("a metadata key")?;
        let kind = reader.u32("a metadata type")?;
        let value = reader.value(kind, &key, 0)?;
        if values.contains_key(&key) {
            return Err(malformed(path, "each metadata key once", key));
        }
        values.insert(key, value);
    }
    let mut tensors = HashMap::new();
    for _ in 0..tensor_count {
        reader.charge(ENTRY_COST)?;
        let (name, located) = reader.tensor()?;
        match tensors.entry(name) {
            hash_map::Entry::Vacant(place) => place.insert(located),
            hash_map::Entry::Occupied(place) => return Err(malformed(path, "each tensor once", place.key())),
        };
    }
    Ok((Contents { metadata: Metadata { path: path.to_owned(), values }, tensors }, reader.at))
}

fn alignment(metadata: &Metadata) -> Result<usize> {
    let alignment = metadata.count("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
    if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT {
        return Ok(alignment);
    }
    let expected = format!("general.alignment as a power of two up to {MAX_ALIGNMENT}");
    Err(malformed(metadata.path(), expected, alignment))
}

/// Reader of the file's bytes.
struct Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
    budget: usize,
}

impl<'a> Reader<'a> {
    /// Reads the magic and version and returns the numbers of tensors and metadata entries.
    fn header(&mut self) -> Result<[u64; 2]> {
        let magic = self.take(4, "the magic GGUF")?;
        if magic != b"GGUF" {
            let found = magic.escape_ascii().to_string();
            return Err(malformed(self.path, "a GGUF file, which begins with GGUF", found));
        }
        match self.u32("a version")? {
            2 | 3 => {}
            version if (1..=3).contains(&version.swap_bytes()) => {
                return Err(unsupported("byte order", "a little-endian GGUF file", "big-endian"));
            }
            version => return Err(unsupported("GGUF version", "2 or 3; convert the model again", version)),
        }
        let tensors = self.u64("a tensor count")?;
        if tensors > MAX_TENSORS {
            return Err(malformed(self.path, format!("at most {MAX_TENSORS} tensors"), tensors));
        }
        Ok([tensors, self.u64("a metadata count")?])
    }

    fn take(&mut self, length: usize, what: &str) -> Result<&'a [u8]> {
        let taken = self.at.checked_add(length).and_then(|end| self.bytes.get(self.at..end));
        let Some(taken) = taken else {
            let found = format!("the end of the file at byte {}; fetch it again", self.bytes.len());
            return Err(malformed(self.path, format!("{what} at byte {}", self.at), found));
        };
        self.at += length;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let taken = self.take(N, what)?;
        Ok(taken.first_chunk().copied().unwrap_or([0; N]))
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        self.fixed(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        self.fixed(what).map(u64::from_le_bytes)
    }

    /// Reads a number of bytes or elements of this file.
    fn length(&mut self, what: &str) -> Result<usize> {
        let length = self.u64(what)?;
        usize::try_from(length).map_err(|_| malformed(self.path, what, length))
    }

    /// Subtracts `bytes` from the memory that metadata may still use.
    fn charge(&mut self, bytes: usize) -> Result<()> {
        match self.budget.checked_sub(bytes) {
            Some(left) => {
                self.budget = left;
                Ok(())
            }
            None => Err(malformed(self.path, format!("metadata of at most {BUDGET} bytes"), "more")),
        }
    }

    fn text(&mut self, what: &str) -> Result<String> {
        let length = self.length(what)?;
        let at = self.at;
        let bytes = self.take(length, what)?;
        self.charge(length)?;
        // A mapped file may change, so the bytes are copied before they are checked.
        String::from_utf8(bytes.to_vec())
            .map_err(|_| malformed(self.path, format!("{what} in UTF-8 at byte {at}"), "other bytes"))
    }

    fn value(&mut self, kind: u32, key: &str, depth: usize) -> Result<Value> {
        match kind {
            8 => Ok(Value::Text(self.text("a metadata string")?)),
            9 => self.array(key, depth),
            7 => self.flag().map(Value::Bool),
            6 | 12 => self.float(kind).map(Value::Float),
            _ => self.int(kind).map(Value::Int),
        }
    }

    fn flag(&mut self) -> Result<bool> {
        match self.fixed("a boolean")? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(malformed(self.path, "a boolean of 0 or 1", other)),
        }
    }

    fn float(&mut self, kind: u32) -> Result<f64> {
        let what = "a metadata number";
        match kind {
            6 => self.fixed(what).map(|bytes| f32::from_le_bytes(bytes).into()),
            _ => self.fixed(what).map(f64::from_le_bytes),
        }
    }

    fn int(&mut self, kind: u32) -> Result<i128> {
        let what = "a metadata number";
        match kind {
            0 => self.fixed(what).map(|bytes| u8::from_le_bytes(bytes).into()),
            1 => self.fixed(what).map(|bytes| i8::from_le_bytes(bytes).into()),
            2 => self.fixed(what).map(|bytes| u16::from_le_bytes(bytes).into()),
            3 => self.fixed(what).map(|bytes| i16::from_le_bytes(bytes).into()),
            4 => self.fixed(what).map(|bytes| u32::from_le_bytes(bytes).into()),
            5 => self.fixed(what).map(|bytes| i32::from_le_bytes(bytes).into()),
            10 => self.fixed(what).map(|bytes| u64::from_le_bytes(bytes).into()),
            11 => self.fixed(what).map(|bytes| i64::from_le_bytes(bytes).into()),
            other => Err(malformed(self.path, "a metadata type from 0 to 12", other)),
        }
    }

    fn array(&mut self, key: &str, depth: usize) -> Result<Value> {
        if depth >= MAX_DEPTH {
            return Err(malformed(self.path, format!("arrays nested at most {MAX_DEPTH} deep"), "more"));
        }

        let kind = self.u32("an array's element type")?;
        let count = self.length("an array's length")?;
        let element = match kind {
            8 => STRING_COST,
            9 => ENTRY_COST,
            _ => size_of::<i64>(),
        };

        // Every element takes at least one byte of the file, so an excessive count fails before anything is read.
        if count > self.bytes.len().saturating_sub(self.at) {
            return Err(malformed(self.path, "an array inside the file", format!("{count} elements")));
        }
        if let Some(most) = max_elements(key).filter(|&most| count > most) {
            return Err(malformed(self.path, format!("at most {most} elements of {key}"), count));
        }

        self.charge(count.saturating_mul(element))?;
        match kind {
            8 => self.elements(count, |r| r.text("a string in an array")).map(Value::Texts),
            6 | 12 => self.elements(count, |r| r.float(kind).map(|x| x as f32)).map(Value::Floats),
            7 => self.elements(count, |r| Ok(i64::from(r.flag()?))).map(Value::Ints),
            9 => {
                for _ in 0..count {
                    self.value(kind, key, depth + 1)?;
                }
                Ok(Value::Unread)
            }
            _ => self.elements(count, |r| r.int(kind).map(clamp)).map(Value::Ints),
        }
    }

    fn elements<T>(
        &mut self,
        count: usize,
        mut element: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        (0..count).map(|_| element(self)).collect()
    }

    /// Reads an entry of the tensor table. Its byte range has only the offset so far.
    fn tensor(&mut self) -> Result<(String, StoredTensor)> {
        let name = self.text("a tensor name")?;
        let dims = self.u32("a number of dimensions")?;
        if !(1..=MAX_DIMS).contains(&dims) {
            return Err(malformed(self.path, format!("tensor {name} of 1 to {MAX_DIMS} dimensions"), dims));
        }
        let mut shape = self.elements(dims as usize, |r| r.length("a dimension"))?;
        if shape.contains(&0) {
            return Err(malformed(
                self.path,
                format!("tensor {name} without empty dimensions"),
                format!("{shape:?}"),
            ));
        }
        // ggml lists the innermost dimension first.
        shape.reverse();
        let kind = kind(self.u32("a tensor type")?);
        let offset = self.length("a tensor offset")?;
        Ok((name, StoredTensor { shape, kind, file: 0, bytes: offset..offset }))
    }
}

/// Returns the maximum number of elements of the array with this key, if it has one. A longer vocabulary would be
/// refused later, after it had been copied.
fn max_elements(key: &str) -> Option<usize> {
    match key {
        "tokenizer.ggml.merges" => Some(MAX_MERGES),
        "tokenizer.ggml.tokens" | "tokenizer.ggml.scores" | "tokenizer.ggml.token_type" => Some(MAX_TOKENS),
        _ => None,
    }
}

fn clamp(value: i128) -> i64 {
    value.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Maps ggml's number of a tensor type.
fn kind(number: u32) -> TensorEncoding {
    let encoding = match number {
        0 => Encoding::F32,
        1 => Encoding::F16,
        2 => Encoding::Q4_0,
        3 => Encoding::Q4_1,
        6 => Encoding::Q5_0,
        7 => Encoding::Q5_1,
        8 => Encoding::Q8_0,
        12 => Encoding::Q4K,
        13 => Encoding::Q5K,
        14 => Encoding::Q6K,
        30 => Encoding::Bf16,
        39 => Encoding::Mxfp4,
        _ => return TensorEncoding::Other(other_type(number)),
    };
    TensorEncoding::Known(encoding)
}

fn other_type(number: u32) -> String {
    let name = match number {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        40 => "NVFP4",
        _ => return format!("number {number}"),
    };

    name.to_owned()
}

#[cfg(test)]
mod tests {
    use narthex_testkit::checkpoint::{Gguf, GgufTensor, Meta, tiny_llama};

    use super::*;

    /// Returns a file with one tensor and one metadata value.
    fn small() -> Gguf {
        let tensor = GgufTensor { name: "t".into(), shape: vec![2, 3], kind: 0, bytes: vec![0; 24] };
        Gguf { meta: vec![("key".into(), Meta::U32(7))], tensors: vec![tensor] }
    }

    fn outcome(bytes: &[u8]) -> String {
        match read(Path::new("f.gguf"), bytes) {
            Ok(contents) => format!("{} tensors", contents.tensors.len()),
            Err(error) => error.to_string(),
        }
    }

    fn check(change: impl FnOnce(&mut Gguf), expect: &str) {
        let mut file = small();
        change(&mut file);
        let found = outcome(&file.to_bytes());
        assert!(found.contains(expect), "{found} lacks {expect}");
    }

    /// Returns `bytes` with those from `at` on replaced by `with`.
    fn patched(mut bytes: Vec<u8>, at: usize, with: &[u8]) -> Vec<u8> {
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    }

    #[test]
    fn values_of_every_type_are_read() {
        let mut file = small();
        let numbers = [
            (0, vec![200], Value::Int(200)),
            (1, vec![0xFF], Value::Int(-1)),
            (2, vec![1, 2], Value::Int(513)),
            (3, vec![0xFE, 0xFF], Value::Int(-2)),
            (4, 70_000u32.to_le_bytes().to_vec(), Value::Int(70_000)),
            (5, (-70_000i32).to_le_bytes().to_vec(), Value::Int(-70_000)),
            (6, 0.5f32.to_le_bytes().to_vec(), Value::Float(0.5)),
            (7, vec![1], Value::Bool(true)),
            (10, u64::MAX.to_le_bytes().to_vec(), Value::Int(u64::MAX.into())),
            (11, i64::MIN.to_le_bytes().to_vec(), Value::Int(i64::MIN.into())),
            (12, 0.1f64.to_le_bytes().to_vec(), Value::Float(0.1)),
        ];
        for (kind, bytes, _) in &numbers {
            file.set(&format!("n{kind}"), Meta::Raw(*kind, bytes.clone()));
        }
        file.set("text", Meta::Text("ä".into()));
        file.set("texts", Meta::Texts(vec!["a".into(), String::new()]));
        file.set("ints", Meta::I32s(vec![-1, 2]));
        file.set("floats", Meta::F32s(vec![0.25]));
        // An array of one array of two booleans.
        let nested =
            [&9u32.to_le_bytes()[..], &1u64.to_le_bytes(), &7u32.to_le_bytes(), &2u64.to_le_bytes(), &[0, 1]];
        file.set("nested", Meta::Raw(9, nested.concat()));
        let values = read(Path::new("f"), &file.to_bytes()).unwrap().metadata.values;
        for (kind, _, expect) in numbers {
            assert_eq!(values[&format!("n{kind}")], expect);
        }
        assert_eq!(values["text"], Value::Text("ä".into()));
        assert_eq!(values["texts"], Value::Texts(vec!["a".into(), String::new()]));
        assert_eq!(values["ints"], Value::Ints(vec![-1, 2]));
        assert_eq!(values["floats"], Value::Floats(vec![0.25]));
        assert_eq!(values["nested"], Value::Unread);
    }

    #[test]
    fn tensors_lie_where_the_file_says() {
        let file = tiny_llama(1);
        let bytes = file.to_bytes();
        let contents = read(Path::new("f"), &bytes).unwrap();
        assert_eq!(contents.tensors.len(), file.tensors.len());
        for tensor in &file.tensors {
            let located = &contents.tensors[&tensor.name];
            assert_eq!(located.shape, tensor.shape);
            assert!(bytes[located.bytes.clone()] == tensor.bytes);
        }
    }

    #[test]
    fn versions_2_and_3_are_read_and_others_are_not() {
        let check = |version: [u8; 4], expect: &str| {
            let found = outcome(&patched(small().to_bytes(), 4, &version));
            assert!(found.contains(expect), "{found}");
        };
        check([2, 0, 0, 0], "1 tensors");
        check([3, 0, 0, 0], "1 tensors");
        check([1, 0, 0, 0], "unsupported GGUF version: found 1, expected 2 or 3");
        check([0, 0, 0, 3], "big-endian");
        assert!(outcome(b"GGML....").contains("begins with GGUF, found GGML"));
        assert!(outcome(b"").contains("the magic GGUF at byte 0"));
    }

    #[test]
    fn contradictions_are_refused() {
        check(|_| (), "1 tensors");
        check(|f| f.meta.push(("key".into(), Meta::U32(8))), "each metadata key once");
        check(|f| f.tensors.push(f.tensors[0].clone()), "each tensor once");
        check(|f| f.set("b", Meta::Raw(7, vec![2])), "a boolean of 0 or 1");
        check(|f| f.set("b", Meta::Raw(13, vec![])), "a metadata type from 0 to 12");
        check(|f| f.set("b", Meta::Raw(8, [&2u64.to_le_bytes()[..], &[0xFF, 0xFE]].concat())), "in UTF-8");
        check(|f| f.set("general.alignment", Meta::U32(24)), "power of two");
        check(|f| f.set("general.alignment", Meta::U32(0)), "power of two");
        check(|f| f.set("general.alignment", Meta::U32(1 << 31)), "power of two");
        check(|f| f.tensors[0].shape = vec![], "1 to 4 dimensions");
        check(|f| f.tensors[0].shape = vec![1; 5], "1 to 4 dimensions");
        check(|f| f.tensors[0].shape = vec![0, 3], "without empty dimensions");
        check(|f| f.tensors[0].shape = vec![3, 3], "inside the file");
        check(|f| f.tensors[0].shape = vec![usize::MAX, 3], "inside the file");
        check(|f| f.tensors[0].kind = 2, "rows of tensor t in blocks of 32, found rows of 3");
    }

    #[test]
    fn tensors_that_share_bytes_are_refused() {
        let tensor =
            |name: &str| GgufTensor { name: name.into(), shape: vec![2, 32], kind: 0, bytes: vec![0; 256] };
        let file = Gguf { meta: Vec::new(), tensors: vec![tensor("first"), tensor("other")] };
        let bytes = file.to_bytes();
        // The name is followed by the number of dimensions, two dimensions, the type and the offset.
        let name = bytes.windows(5).position(|name| name == b"other").unwrap();
        let place = name + 5 + 4 + 2 * 8 + 4;
        assert_eq!(bytes[place..place + 8], 256u64.to_le_bytes());
        let check = |offset: u64, expect: &str| {
            let found = outcome(&patched(bytes.clone(), place, &offset.to_le_bytes()));
            assert!(found.contains(expect), "{offset}: {found}");
        };
        check(256, "2 tensors");
        check(224, "expected tensors that share no bytes, found first and other, which share byte");
        check(0, "found first and other, which share byte");
    }

    #[test]
    fn types_have_ggml_s_numbers() {
        use Encoding::*;
        let numbers = [0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30, 39];
        let encodings = [F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4K, Q5K, Q6K, Bf16, Mxfp4];
        assert_eq!(numbers.map(kind), encodings.map(TensorEncoding::Known));
        assert!(
            (0..64)
                .all(|number| numbers.contains(&number) || matches!(kind(number), TensorEncoding::Other(_)))
        );
    }

    #[test]
    fn tensors_of_other_types_are_known_by_name_only() {
        let mut file = small();
        file.tensors[0].kind = 20;
        let contents = read(Path::new("f"), &file.to_bytes()).unwrap();
        assert_eq!(contents.tensors["t"].kind, TensorEncoding::Other("IQ4_NL".into()));
        file.tensors[0].kind = 999;
        let contents = read(Path::new("f"), &file.to_bytes()).unwrap();
        assert_eq!(contents.tensors["t"].kind, TensorEncoding::Other("number 999".into()));
    }

    #[test]
    fn giant_counts_and_lengths_fail_before_anything_is_allocated() {
        for giant in [u64::MAX, 1 << 62, 1 << 40] {
            let giant = giant.to_le_bytes();
            for at in [8, 16] {
                assert!(outcome(&patched(small().to_bytes(), at, &giant)).contains("malformed"));
            }
            for kind in [0u32, 5, 6, 7, 8, 9] {
                let array = [&kind.to_le_bytes()[..], &giant].concat();
                check(|f| f.set("a", Meta::Raw(9, array.clone())), "an array inside the file");
            }
            check(|f| f.set("a", Meta::Raw(8, giant.to_vec())), "at byte");
        }
    }

    #[test]
    fn the_number_of_tensors_is_limited_before_they_are_read() {
        let outcome = |count: u64| outcome(&patched(small().to_bytes(), 8, &count.to_le_bytes()));
        assert!(outcome(MAX_TENSORS + 1).contains("at most 65536 tensors, found 65537"));
        assert!(!outcome(MAX_TENSORS).contains("at most"));
    }

    #[test]
    fn arrays_do_not_nest_without_end() {
        let level = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
        check(|f| f.set("a", Meta::Raw(9, level.repeat(1000))), "nested at most");
    }

    #[test]
    fn vocabularies_that_are_too_long_are_refused_before_their_strings_are_read() {
        for (key, most) in [
            ("tokenizer.ggml.merges", MAX_MERGES),
            ("tokenizer.ggml.tokens", MAX_TOKENS),
            ("tokenizer.ggml.scores", MAX_TOKENS),
            ("tokenizer.ggml.token_type", MAX_TOKENS),
        ] {
            // The bytes after the count are not strings, which a reader of them would notice first.
            let array = |count: usize| {
                let head = [&8u32.to_le_bytes()[..], &(count as u64).to_le_bytes()].concat();
                Meta::Raw(9, [head, vec![0xFF; count]].concat())
            };
            let expect = format!("at most {most} elements of {key}, found {}", most + 1);
            check(|f| f.set(key, array(most + 1)), &expect);
            check(|f| f.set(key, array(most)), "a string in an array");
        }
    }

    #[test]
    fn metadata_has_a_memory_limit() {
        // Each byte of the file would take eight bytes in memory.
        let count = BUDGET / 8 + 1;
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend([0u64, 1].map(u64::to_le_bytes).concat());
        bytes.extend([&1u64.to_le_bytes()[..], b"a", &9u32.to_le_bytes(), &0u32.to_le_bytes()].concat());
        bytes.extend((count as u64).to_le_bytes());
        bytes.resize(bytes.len() + count, 0);
        assert!(outcome(&bytes).contains("metadata of at most"));
    }
}
