//! A first look at an ONNX file's bytes, so that a small file cannot make the decoder fill the memory.
//!
//! Decoded messages are up to a hundred times as large as their bytes. This walks the wire format without keeping
//! anything and counts what costs memory; constants, which are most of a real file, are skipped whole.

use super::error::DecodeError;

/// The most messages and texts that a file may hold: far above any model, and at most about a gigabyte once decoded.
const ENTRIES: u64 = 4_000_000;

/// The most bytes of numbers that the wire packs and the decoder unpacks.
const PACKED: u64 = 64 << 20;

/// What the walk knows of the field numbers of a message.
#[derive(Clone, Copy)]
enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    /// Messages that hold only short fields.
    Small,
}

/// What a length-delimited field is.
enum Field {
    /// A message to walk into.
    Message(Message),
    /// Numbers of variable length.
    Packed,
    /// Bytes that stay as they are.
    Plain,
}

fn field(message: Message, number: u64) -> Field {
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

/// Refuses a file with too many entries. Bytes that are no protobuf pass: the decoder names what is wrong with them.
pub(super) fn check(bytes: &[u8]) -> Result<(), DecodeError> {
    let mut walk = Walk { entries: 0, packed: 0 };
    // Messages still to be walked; the walk itself is not recursive, so nesting costs no stack.
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
        while let Some(key) = varint(&mut bytes) {
            let length = match key & 7 {
                0 => {
                    let before = bytes.len();
                    if varint(&mut bytes).is_none() {
                        return Ok(());
                    }
                    self.packed += (before - bytes.len()) as u64;
                    continue;
                }
                1 => 8,
                2 => varint(&mut bytes).unwrap_or(u64::MAX),
                5 => 4,
                _ => return Ok(()),
            };
            let Some((inside, rest)) = usize::try_from(length).ok().and_then(|at| bytes.split_at_checked(at))
            else {
                return Ok(());
            };
            bytes = rest;
            if key & 7 != 2 {
                continue;
            }
            match field(message, key >> 3) {
                Field::Message(Message::Small) if !looks_nested(message, inside) => {}
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

/// Texts and messages look alike on the wire; inside small messages only what can hold a dimension is worth a walk.
fn looks_nested(parent: Message, inside: &[u8]) -> bool {
    !matches!(parent, Message::Small) || inside.len() > 1
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for (index, &byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            *bytes = bytes.get(index + 1..)?;
            return Some(value);
        }
    }
    None
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
        // Empty nodes of 9 MB would be most of a gigabyte once decoded.
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
