//! A GGUF writer: version 3, little-endian, as specified in ggml's `docs/gguf.md`.
//!
//! Does not validate its contents, so that tests can write broken files.

use half::{bf16, f16};

/// Unit of every weight; a power of two, so that each type stores weights exactly.
pub(super) const SCALE: f32 = 1.0 / 32.0;
/// Alignment of tensor data.
const ALIGNMENT: usize = 32;

/// Tensor types by ggml's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum GgufType {
    /// Single precision.
    F32 = 0,
    /// Half precision.
    F16 = 1,
    /// 4-bit with scale.
    Q4_0 = 2,
    /// 4-bit with scale and minimum.
    Q4_1 = 3,
    /// 5-bit with scale.
    Q5_0 = 6,
    /// 5-bit with scale and minimum.
    Q5_1 = 7,
    /// 8-bit with scale.
    Q8_0 = 8,
    /// Brain float.
    Bf16 = 30,
}

impl GgufType {
    /// Encodes multiples of 1/32; the block types take those from -8/32 to 7/32.
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        let blocks = || values.chunks_exact(32);
        match self {
            Self::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Self::F16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            Self::Bf16 => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
            Self::Q4_0 => blocks().flat_map(|block| [halves(&[SCALE]), nibbles(block)].concat()).collect(),
            Self::Q4_1 => {
                blocks().flat_map(|block| [halves(&[SCALE, -8.0 * SCALE]), nibbles(block)].concat()).collect()
            }
            Self::Q5_0 => blocks()
                .flat_map(|block| {
                    // The five bits store the level plus 16, so the high bit is set for levels from 0 on.
                    let high = high_bits(block, |level| level >= 0);
                    let low: Vec<f32> = block
                        .iter()
                        .map(|x| x - if *x >= 0.0 { 8.0 * SCALE } else { -8.0 * SCALE })
                        .collect();
                    [halves(&[SCALE]), high, nibbles(&low)].concat()
                })
                .collect(),
            Self::Q5_1 => blocks()
                .flat_map(|block| {
                    [halves(&[SCALE, -8.0 * SCALE]), high_bits(block, |_| false), nibbles(block)].concat()
                })
                .collect(),
            Self::Q8_0 => blocks()
                .flat_map(|block| {
                    let quants = block.iter().map(|&x| level(x) as i8 as u8).collect();
                    [halves(&[SCALE]), quants].concat()
                })
                .collect(),
        }
    }
}

fn level(value: f32) -> i32 {
    (value / SCALE) as i32
}

fn halves(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect()
}

/// Packs levels from -8 to 7 as 4-bit numbers; the first half of the block is in the low bits.
fn nibbles(block: &[f32]) -> Vec<u8> {
    let quant = |x: &f32| (level(*x) + 8) as u8 & 15;
    let (low, high) = block.split_at(block.len() / 2);
    low.iter().zip(high).map(|(low, high)| quant(low) | quant(high) << 4).collect()
}

fn high_bits(block: &[f32], bit: impl Fn(i32) -> bool) -> Vec<u8> {
    let bits = block.iter().enumerate().map(|(i, &x)| u32::from(bit(level(x))) << i);
    bits.fold(0, |all, bit| all | bit).to_le_bytes().to_vec()
}

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Meta {
    /// An unsigned integer.
    U32(u32),
    /// A float.
    F32(f32),
    /// A boolean.
    Bool(bool),
    /// A text.
    Text(String),
    /// Texts.
    Texts(Vec<String>),
    /// Signed integers.
    I32s(Vec<i32>),
    /// Floats.
    F32s(Vec<f32>),
    /// Any type by its number, with the bytes of the value.
    Raw(u32, Vec<u8>),
}

impl Meta {
    fn write(&self, out: &mut Vec<u8>) {
        let mut put = |kind: u32, bytes: &[u8]| {
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        };
        match self {
            Self::U32(x) => put(4, &x.to_le_bytes()),
            Self::F32(x) => put(6, &x.to_le_bytes()),
            Self::Bool(x) => put(7, &[u8::from(*x)]),
            Self::Text(text) => put(8, &text_bytes(text)),
            Self::Texts(texts) => put(9, &array(8, texts.iter().map(|text| text_bytes(text)))),
            Self::I32s(ints) => put(9, &array(5, ints.iter().map(|x| x.to_le_bytes().to_vec()))),
            Self::F32s(floats) => put(9, &array(6, floats.iter().map(|x| x.to_le_bytes().to_vec()))),
            Self::Raw(kind, bytes) => put(*kind, bytes),
        }
    }
}

fn text_bytes(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn array(kind: u32, elements: impl ExactSizeIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend((elements.len() as u64).to_le_bytes());
    bytes.extend(elements.flatten());
    bytes
}

/// A tensor of a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensor {
    /// Name in the file.
    pub name: String,
    /// Row-major shape; the file has the dimensions in reverse order.
    pub shape: Vec<usize>,
    /// Number of the type, as in [`GgufType`].
    pub kind: u32,
    /// Encoded rows.
    pub bytes: Vec<u8>,
}

/// A GGUF file before it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    /// Metadata in file order.
    pub meta: Vec<(String, Meta)>,
    /// Tensors in file order.
    pub tensors: Vec<GgufTensor>,
}

impl Gguf {
    /// Returns a file with these metadata and tensors.
    pub fn new(meta: Vec<(&str, Meta)>, tensors: Vec<GgufTensor>) -> Self {
        Self { meta: meta.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(), tensors }
    }

    /// Sets a metadata value, in place if the key exists.
    pub fn set(&mut self, key: &str, value: Meta) {
        match self.meta.iter_mut().find(|(name, _)| name == key) {
            Some(entry) => entry.1 = value,
            None => self.meta.push((key.to_owned(), value)),
        }
    }

    /// Removes a metadata value.
    pub fn unset(&mut self, key: &str) {
        self.meta.retain(|(name, _)| name != key);
    }

    /// Divides the file into `count` parts, as `llama-gguf-split` does: the first has the metadata.
    pub fn split(self, count: usize) -> Vec<Self> {
        let total = self.tensors.len() as i32;
        let each = self.tensors.len().div_ceil(count).max(1);
        let mut chunks = self.tensors.chunks(each);
        let part = |number: usize| {
            let meta = if number == 0 { self.meta.clone() } else { Vec::new() };
            let mut part = Self { meta, tensors: chunks.next().unwrap_or_default().to_vec() };
            part.set("split.no", Meta::Raw(2, (number as u16).to_le_bytes().to_vec()));
            part.set("split.count", Meta::Raw(2, (count as u16).to_le_bytes().to_vec()));
            part.set("split.tensors.count", Meta::Raw(5, total.to_le_bytes().to_vec()));
            part
        };
        (0..count).map(part).collect()
    }

    /// Returns the bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.meta.len() as u64).to_le_bytes());
        for (key, value) in &self.meta {
            out.extend(text_bytes(key));
            value.write(&mut out);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            out.extend(text_bytes(&tensor.name));
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            out.extend(tensor.shape.iter().rev().flat_map(|&dim| (dim as u64).to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset = (offset + tensor.bytes.len()).next_multiple_of(ALIGNMENT);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend(&tensor.bytes);
        }
        out
    }
}
