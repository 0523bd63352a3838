//! The format of a file with the keys and values of one block.
//!
//! | Bytes | Content |
//! |---|---|
//! | 8 | [`MAGIC`] |
//! | 4 | [`VERSION`] |
//! | 32 | identity of the model |
//! | 4, 32 | index and digest of the block |
//! | 8 | length of the payload |
//! | 32 | BLAKE3 digest of all other bytes |
//! | | payload |
//!
//! The payload has the numbers of tokens and layers (4 bytes each). For each layer follow the numbers of heads and
//! elements of a head (4 bytes each), a byte each for the type of the keys and the type of the values, then the keys and the values. Numbers are little-endian. Every length is compared with the bytes that
//! are left before anything is allocated.

use half::f16;
use narthex_engine::{
    executor::{KvBlock, KvLayer, KvRows},
    prefix_storage::BlockKey,
};

/// First bytes of every file.
const MAGIC: [u8; 8] = *b"NTHXKVPB";

/// Version of the format.
pub(crate) const VERSION: u32 = 2;

/// Bytes before the digest.
const LABEL_BYTES: usize = 8 + 4 + 32 + 4 + 32 + 8;

/// Bytes before the payload.
const HEADER_BYTES: usize = LABEL_BYTES + 32;

/// Model and block of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileLabel {
    /// Identity of the model.
    pub(crate) identity: [u8; 32],
    pub(crate) key: BlockKey,
}

impl FileLabel {
    /// Returns the bytes before the digest of a file with a payload of `length` bytes.
    fn to_bytes(self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LABEL_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.identity);
        bytes.extend(self.key.index.to_le_bytes());
        bytes.extend(self.key.hash);
        bytes.extend((length as u64).to_le_bytes());
        bytes
    }
}

/// Returns the contents of a file, or `None` for a block with values that are not finite, which must not be stored.
pub(crate) fn encode(label: FileLabel, block: &KvBlock) -> Option<Vec<u8>> {
    let data: usize =
        block.layers().iter().flat_map(|layer| [&layer.keys, &layer.values]).map(bytes_of).sum();
    let mut payload = Vec::with_capacity(8 + 10 * block.layers().len() + data);
    payload.extend((block.tokens() as u32).to_le_bytes());
    payload.extend((block.layers().len() as u32).to_le_bytes());
    for layer in block.layers() {
        payload.extend((layer.heads as u32).to_le_bytes());
        payload.extend((layer.head_size as u32).to_le_bytes());
        payload.extend([type_of(&layer.keys), type_of(&layer.values)]);
        let is_finite = put(&mut payload, &layer.keys) && put(&mut payload, &layer.values);
        if !is_finite {
            return None;
        }
    }
    let mut bytes = label.to_bytes(payload.len());
    let digest = digest(&bytes, &payload);
    bytes.extend(digest);
    bytes.extend(payload);
    Some(bytes)
}

/// Reads the contents of a file.
///
/// # Errors
/// The reason for bytes that are not the file with this label.
pub(crate) fn decode(bytes: &[u8], label: FileLabel) -> Result<KvBlock, String> {
    let (header, payload) = bytes
        .split_at_checked(HEADER_BYTES)
        .ok_or_else(|| format!("expected at least {HEADER_BYTES} bytes, found {}", bytes.len()))?;
    let (found, checksum) = header.split_at(LABEL_BYTES);
    check_label(found, &label.to_bytes(payload.len()))?;
    if digest(found, payload) != checksum {
        return Err("its checksum is wrong".to_owned());
    }
    decode_payload(payload)
}

/// Reads a payload.
///
/// # Errors
/// The reason for bytes that are not a block.
pub(crate) fn decode_payload(payload: &[u8]) -> Result<KvBlock, String> {
    let mut rest = payload;
    let tokens = number(&mut rest)?;
    let layers = number(&mut rest)?;
    let mut read = Vec::new();
    for _ in 0..layers {
        read.push(layer(&mut rest, tokens)?);
    }
    if !rest.is_empty() {
        return Err(format!("expected {layers} layers, found {} more bytes", rest.len()));
    }
    KvBlock::new(tokens, read).map_err(|error| error.to_string())
}

/// Compares the label of a file with the expected one.
fn check_label(found: &[u8], expected: &[u8]) -> Result<(), String> {
    let parts = [
        (0..8, "it is not a file of the prefix cache"),
        (8..12, "it has another version"),
        (12..44, "it belongs to another model, device or version of Narthex"),
        (44..80, "it has another block"),
        (80..88, "it is truncated or too long"),
    ];
    let differs =
        parts.into_iter().find(|(range, _)| found.get(range.clone()) != expected.get(range.clone()));
    differs.map_or(Ok(()), |(_, reason)| Err(reason.to_owned()))
}

fn digest(label: &[u8], payload: &[u8]) -> [u8; 32] {
    *blake3::Hasher::new().update(label).update(payload).finalize().as_bytes()
}

fn layer(rest: &mut &[u8], tokens: usize) -> Result<KvLayer, String> {
    let heads = number(rest)?;
    let head_size = number(rest)?;
    let types = [take(rest, 1)?, take(rest, 1)?];
    let count = tokens.checked_mul(heads).ok_or("its shape is too large")?;
    let keys = rows(rest, types[0], count, head_size)?;
    let values = rows(rest, types[1], count, head_size)?;
    Ok(KvLayer { heads, head_size, keys, values })
}

/// Removes `count` rows of `size` elements from the front.
fn rows(rest: &mut &[u8], dtype: &[u8], count: usize, size: usize) -> Result<KvRows, String> {
    let elements = count.checked_mul(size).ok_or("its shape is too large")?;
    let mut bytes = |count: usize, size| take(rest, count.checked_mul(size).ok_or("its shape is too large")?);
    let singles = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect();
    match dtype {
        [0] => Ok(KvRows::F32(singles(bytes(elements, 4)?))),
        [1] => {
            let halves = bytes(elements, 2)?.as_chunks().0.iter().map(|&two| f16::from_le_bytes(two));
            Ok(KvRows::F16(halves.collect()))
        }
        [2] => {
            let integers = bytes(elements, 1)?.iter().map(|byte| byte.cast_signed()).collect();
            Ok(KvRows::I8 { integers, scales: singles(bytes(count, 4)?) })
        }
        other => Err(format!("expected an element type of 0 to 2, found {other:?}")),
    }
}

/// Removes a number from the front.
fn number(rest: &mut &[u8]) -> Result<usize, String> {
    let four = take(rest, 4)?.try_into().map_err(|_| "expected 4 bytes".to_owned())?;
    Ok(u32::from_le_bytes(four) as usize)
}

/// Removes `count` bytes from the front.
fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], String> {
    let left = rest.len();
    rest.split_off(..count).ok_or_else(|| format!("expected {count} more bytes, found {left}"))
}

fn type_of(rows: &KvRows) -> u8 {
    match rows {
        KvRows::F32(_) => 0,
        KvRows::F16(_) => 1,
        KvRows::I8 { .. } => 2,
    }
}

fn bytes_of(rows: &KvRows) -> usize {
    match rows {
        KvRows::F32(values) => 4 * values.len(),
        KvRows::F16(values) => 2 * values.len(),
        KvRows::I8 { integers, scales } => integers.len() + 4 * scales.len(),
    }
}

/// Appends the elements. Returns false if one is not finite.
fn put(bytes: &mut Vec<u8>, rows: &KvRows) -> bool {
    match rows {
        KvRows::F32(values) => {
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            values.iter().all(|value| value.is_finite())
        }
        KvRows::F16(values) => {
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            values.iter().all(|value| value.is_finite())
        }
        KvRows::I8 { integers, scales } => {
            bytes.extend(integers.iter().map(|integer| integer.cast_unsigned()));
            bytes.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
            scales.iter().all(|scale| scale.is_finite())
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::load::prefix_cache) fn label(number: u8) -> FileLabel {
        FileLabel { identity: [7; 32], key: BlockKey { index: 0, hash: [number; 32] } }
    }

    pub(in crate::load::prefix_cache) fn block(seed: f32) -> KvBlock {
        let single = KvRows::F32((0..12).map(|i| seed + i as f32).collect());
        let half = KvRows::F16((0..24).map(|i| f16::from_f32(seed * i as f32)).collect());
        let layer = |heads, keys: &KvRows, values: &KvRows| KvLayer {
            heads,
            head_size: 3,
            keys: keys.clone(),
            values: values.clone(),
        };
        let scales = (0..8).map(|i| seed * i as f32).collect();
        let integers = KvRows::I8 { integers: (-12..12).collect(), scales };
        let layers = vec![layer(2, &single, &single), layer(4, &half, &half), layer(4, &integers, &half)];
        KvBlock::new(2, layers).unwrap()
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = encode(label(1), &block(0.5)).unwrap();
        assert_eq!(decode(&bytes, label(1)), Ok(block(0.5)));
        let empty = KvBlock::new(0, Vec::new()).unwrap();
        assert_eq!(decode(&encode(label(1), &empty).unwrap(), label(1)), Ok(empty));
        assert_eq!(encode(label(1), &block(f32::NAN)), None);
    }

    #[test]
    fn every_other_byte_and_length_is_refused() {
        let bytes = encode(label(1), &block(0.5)).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(decode(&changed, label(1)).is_err(), "byte {at}");
            assert!(decode(&bytes[..at], label(1)).is_err(), "{at} bytes");
        }
        assert!(decode(&[&bytes[..], &[0]].concat(), label(1)).unwrap_err().contains("too long"));
    }

    #[test]
    fn a_file_states_its_model_and_its_block() {
        let bytes = encode(label(1), &block(0.5)).unwrap();
        let check = |label, expect: &str| {
            let error = decode(&bytes, label).unwrap_err();
            assert!(error.contains(expect), "{error}");
        };
        check(FileLabel { identity: [8; 32], ..label(1) }, "another model");
        check(label(2), "another block");
        check(FileLabel { key: BlockKey { index: 3, ..label(1).key }, ..label(1) }, "another block");
    }

    #[test]
    fn lengths_of_a_payload_with_a_right_checksum_are_not_trusted() {
        let check = |payload: &[u8], expect: &str| {
            let mut bytes = label(1).to_bytes(payload.len());
            let digest = digest(&bytes, payload);
            bytes.extend(digest);
            bytes.extend(payload);
            let error = decode(&bytes, label(1)).unwrap_err();
            assert!(error.contains(expect), "{error}");
        };
        let most = u32::MAX.to_le_bytes();
        let one = 1u32.to_le_bytes();
        check(&[], "expected 4 more bytes, found 0");
        check(&[one, most].concat(), "expected 4 more bytes, found 0");
        let huge = [&most[..], &one, &most, &most, &[0, 0]].concat();
        check(&huge, "its shape is too large");
        check(&[&one[..], &one, &most, &one, &[0, 0]].concat(), "expected 17179869180 more bytes");
        check(&[&one[..], &one, &one, &one, &[3, 0]].concat(), "element type");
        check(&[&one[..], &[0; 4], &[1]].concat(), "1 more bytes");
    }
}
