//! Limits on an ONNX file, checked before it is decoded.
//!
//! Decoded messages take up to a hundred times as much memory as their bytes, and `prost` does not limit their number.
//! This module traverses the wire format without allocating and counts the entries that cost memory. Constants, which
//! are most of a real file, are skipped.

use prost::encoding::{WireType, decode_key, decode_varint};

use super::error::DecodeError;

/// Maximum number of messages and strings in a file: far above any model, and about a gigabyte once decoded.
const ENTRIES: u64 = 4_000_000;

/// Maximum number of bytes of packed numbers, which the decoder unpacks.
const PACKED: u64 = 64 << 20;

/// A message whose field numbers are known to the traversal.
#[derive(Clone, Copy)]
enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    /// Messages with only short fields.
    Small,
}

/// Content of a length-delimited field.
enum Field {
    /// A message to traverse.
    Message(Message),
    /// Packed numbers of variable length.
    Packed,
    /// Bytes that are not decoded further.
    Plain,
}

fn field(message: Message, number: u32) -> Field {
    match (message, number) {
        (Message::Model, 7) | (Message::Attribute, 6) => Field::Message(Message::Graph),
        (Message::Graph, 1) => Field::Message(Message::Node),
        (Message::Graph, 5) | (Message::Attribute, 5) => Field::Message(Message::Tensor),
        (Message::Node, 5) => Field::Message(Message::Attribute),
        (Message::Graph, 11..=13) | (Message::Model, 8 | 14) | (Message::Tensor, 13) => {
            Field::Message(Message::Small)
        }
        (Message::Small, _) => Field::Message(Message::Small),
        (Message::Tensor, 1 | 5 | 7 | 11) | (Message::Attribute, 8) => Field::Packed,
        _ => Field::Plain,
    }
}

/// Refuses a file with too many entries. Bytes that are not protobuf pass, because the decoder reports them better.
pub(super) fn check(bytes: &[u8]) -> Result<(), DecodeError> {
    let mut walk = Walk { entries: 0, packed: 0 };
    // Messages still to be traversed. The traversal is not recursive, so nesting uses no stack.
    let mut pending = vec![(Message::Model, bytes)];
    while let Some((message, bytes)) = pending.pop() {
        walk.message(message, bytes, &mut pending)?;
    }
    Ok(())
}

struct Walk {
    entries: u64,
    packed: u64,
}

impl Walk {
    fn message<'a>(
        &mut self,
        message: Message,
        mut bytes: &'a [u8],
        pending: &mut Vec<(Message, &'a [u8])>,
    ) -> Result<(), DecodeError> {
        while let Ok((number, wire_type)) = decode_key(&mut bytes) {
            let length = match wire_type {
                WireType::Varint => {
                    let before = bytes.len();
                    if decode_varint(&mut bytes).is_err() {
                        return Ok(());
                    }
                    self.packed += (before - bytes.len()) as u64;
                    continue;
                }
                WireType::SixtyFourBit => 8,
                WireType::LengthDelimited => decode_varint(&mut bytes).unwrap_or(u64::MAX),
                WireType::ThirtyTwoBit => 4,
                WireType::StartGroup | WireType::EndGroup => return Ok(()),
            };
            let Some((inside, rest)) = usize::try_from(length).ok().and_then(|at| bytes.split_at_checked(at))
            else {
                return Ok(());
            };
            bytes = rest;
            if wire_type != WireType::LengthDelimited {
                continue;
            }
            match field(message, number) {
                // Strings and messages look alike on the wire; inside a small message, only a longer field can contain
                // a dimension.
                Field::Message(Message::Small) if matches!(message, Message::Small) && inside.len() <= 1 => {}
                Field::Message(kind) => pending.push((kind, inside)),
                Field::Packed => self.packed += length,
                Field::Plain => {}
            }
            self.entries += 1;
            self.within_limits(pending.len() as u64)?;
        }
        self.within_limits(0)
    }

    fn within_limits(&self, pending: u64) -> Result<(), DecodeError> {
        if self.entries.max(pending) > ENTRIES {
            return Err(DecodeError::TooMany { what: "entries", limit: ENTRIES });
        }
        if self.packed > PACKED {
            return Err(DecodeError::TooMany { what: "bytes of packed numbers", limit: PACKED });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{Graph, onnx::DecodeError};

    fn tagged(number: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for mut value in [number << 3 | 2, payload.len() as u64] {
            while value >= 0x80 {
                bytes.push(value as u8 | 0x80);
                value >>= 7;
            }
            bytes.push(value as u8);
        }
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn a_small_file_cannot_ask_for_much_memory() {
        let check = |graph: Vec<u8>, expected: &str| {
            let error = Graph::decode(&tagged(7, &graph)).unwrap_err();
            assert!(matches!(error, DecodeError::TooMany { what, .. } if what == expected), "{error}");
        };
        // Empty nodes of 9 MB would take most of a gigabyte after decoding.
        check(tagged(1, &[]).repeat(4_500_000), "entries");
        check(tagged(1, &tagged(1, &[]).repeat(4_500_000)), "entries");
        check(tagged(11, &tagged(2, &tagged(1, &tagged(2, &tagged(1, &[]).repeat(4_500_000))))), "entries");
        check(tagged(5, &tagged(7, &vec![0; 65 << 20])), "bytes of packed numbers");
    }

    #[test]
    fn constants_are_not_counted() {
        let mut graph = tagged(5, &tagged(9, &vec![1; 65 << 20]));
        graph.extend(tagged(2, b"g"));
        assert_eq!(Graph::decode(&tagged(7, &graph)).unwrap().initializers.len(), 1);
    }
}
