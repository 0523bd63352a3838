//! Limits on an ONNX file, most of them checked before it is decoded.
//!
//! Decoded messages take up to several hundred times as much memory as their bytes, and `prost` does not limit their
//! number. This module traverses the wire format without allocating and counts the memory of the entries. Constants,
//! which are most of a real file, are skipped. Lists and names that later stages copy are limited while the graph is
//! built.

use prost::encoding::{WireType, decode_key, decode_varint};

use super::error::DecodeError;

/// Maximum number of bytes of the decoded entries, without the constants and texts in them. The largest graphs, exports
/// of mixtures of experts with a few nodes for each expert, have 60,000 nodes and as many initializers, and take about
/// 400 MB; a dense model of 80 layers takes less than 100 MB.
const MEMORY: u64 = 768 << 20;

/// Maximum number of bytes of packed numbers, which the decoder unpacks.
const PACKED: u64 = 64 << 20;

/// Maximum number of extents of a value or constant.
const MAX_RANK: u64 = 64;

/// Maximum length of a name in bytes.
const MAX_NAME: u64 = 4096;

/// Maximum number of graph inputs and outputs without a declared rank. Later stages search through all of them.
const MAX_UNRANKED: u64 = 1024;

/// Maximum number of bytes of symbols for extents without a name, each of which contains the value's name.
const MAX_SYMBOL_BYTES: u64 = 64 << 20;

/// A message whose field numbers are known to the traversal.
#[derive(Clone, Copy)]
enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Value,
    Type,
    TensorType,
    Shape,
    Extent,
    /// A pair of strings, or the name and version of an operator set.
    Entry,
}

impl Message {
    /// Returns the approximate number of bytes of memory that a message without fields takes, including the room for
    /// growth of the list that contains it and the graph's own copy.
    fn memory(self) -> u64 {
        match self {
            Self::Node => 600,
            Self::Attribute => 700,
            Self::Tensor => 600,
            Self::Value => 800,
            Self::Extent | Self::Entry => 250,
            // Stored inside the message that contains them.
            Self::Model | Self::Graph | Self::Type | Self::TensorType | Self::Shape => TEXT,
        }
    }
}

/// Approximate number of bytes of memory that a string takes, without its content.
const TEXT: u64 = 100;

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
        (Message::Graph, 11..=13) => Field::Message(Message::Value),
        (Message::Value, 2) => Field::Message(Message::Type),
        (Message::Type, 1) => Field::Message(Message::TensorType),
        (Message::TensorType, 2) => Field::Message(Message::Shape),
        (Message::Shape, 1) => Field::Message(Message::Extent),
        (Message::Model, 8 | 14) | (Message::Tensor, 13) => Field::Message(Message::Entry),
        (Message::Tensor, 1 | 5 | 7 | 11) | (Message::Attribute, 8) => Field::Packed,
        _ => Field::Plain,
    }
}

fn within(count: u64, limit: u64, what: &'static str) -> Result<(), DecodeError> {
    if count <= limit { Ok(()) } else { Err(DecodeError::TooMany { what, limit }) }
}

/// Refuses a name that is too long.
pub(super) fn name(name: &str) -> Result<(), DecodeError> {
    within(name.len() as u64, MAX_NAME, "bytes in a name")
}

/// Refuses a value or constant with too many extents.
pub(super) fn rank(rank: usize) -> Result<(), DecodeError> {
    within(rank as u64, MAX_RANK, "extents of a value")
}

/// Refuses a graph with too many inputs and outputs without a declared rank.
pub(super) fn unranked(count: usize) -> Result<(), DecodeError> {
    within(count as u64, MAX_UNRANKED, "inputs and outputs without a rank")
}

/// Bytes that the graphs of a file have taken so far.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    symbols: u64,
}

impl Bounds {
    /// Counts a symbol for an extent without a name.
    pub(super) fn add_symbol(&mut self, symbol: &str) -> Result<(), DecodeError> {
        self.symbols += symbol.len() as u64;
        within(self.symbols, MAX_SYMBOL_BYTES, "bytes of symbols for extents without a name")
    }
}

/// Refuses a file with too many entries. Bytes that are not protobuf pass, because the decoder reports them better.
pub(super) fn check(bytes: &[u8]) -> Result<(), DecodeError> {
    let mut walk = Walk { memory: 0, packed: 0 };
    // Messages still to be traversed. The traversal is not recursive, so nesting uses no stack.
    let mut pending = vec![(Message::Model, bytes)];
    while let Some((message, bytes)) = pending.pop() {
        walk.message(message, bytes, &mut pending)?;
    }
    Ok(())
}

struct Walk {
    memory: u64,
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

            self.memory += match field(message, number) {
                Field::Message(kind) => {
                    pending.push((kind, inside));
                    kind.memory()
                }
                Field::Packed => {
                    self.packed += length;
                    0
                }
                Field::Plain => TEXT,
            };
            self.within_limits()?;
        }
        self.within_limits()
    }

    fn within_limits(&self) -> Result<(), DecodeError> {
        within(self.memory, MEMORY, "bytes of decoded entries")?;
        within(self.packed, PACKED, "bytes of packed numbers")
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

    /// Encodes a graph input from its name and its dimensions.
    fn input(name: &str, dims: &[u8]) -> Vec<u8> {
        let shape = tagged(2, &tagged(1, &tagged(2, dims)));
        tagged(11, &[tagged(1, name.as_bytes()), shape].concat())
    }

    #[test]
    fn a_small_file_cannot_ask_for_much_memory() {
        let check = |graph: Vec<u8>, expected: &str| {
            let error = Graph::decode(&tagged(7, &graph)).unwrap_err();
            assert!(matches!(error, DecodeError::TooMany { what, .. } if what == expected), "{error}");
        };
        let entries = "bytes of decoded entries";
        // Empty nodes of 4 MB would take most of a gigabyte after decoding.
        check(tagged(1, &[]).repeat(2_000_000), entries);
        check(tagged(1, &tagged(5, &[]).repeat(2_000_000)), entries);
        check(tagged(1, &tagged(1, &[]).repeat(9_000_000)), entries);
        check(tagged(5, &[]).repeat(2_000_000), entries);
        check(tagged(11, &[]).repeat(2_000_000), entries);
        check(input("", &tagged(1, &[]).repeat(4_000_000)), entries);
        check(tagged(5, &tagged(13, &[]).repeat(4_000_000)), entries);
        check(tagged(5, &tagged(7, &vec![0; 65 << 20])), "bytes of packed numbers");
    }

    #[test]
    fn names_and_shapes_that_are_copied_are_limited() {
        let check = |graph: Vec<u8>, expected: Option<&str>| {
            let found = match Graph::decode(&tagged(7, &graph)) {
                Ok(_) => None,
                Err(DecodeError::TooMany { what, .. }) => Some(what),
                Err(error) => panic!("{error}"),
            };
            assert_eq!(found, expected);
        };
        let name = |length: usize| tagged(1, "x".repeat(length).as_bytes());
        let dims = |count: usize| tagged(1, &[]).repeat(count);
        check(input(&"x".repeat(4096), &dims(64)), None);
        check(input(&"x".repeat(4097), &[]), Some("bytes in a name"));
        check(input("x", &dims(65)), Some("extents of a value"));
        // Repeated fields of one message are joined.
        let shape = tagged(2, &tagged(1, &tagged(2, &dims(40))));
        check(tagged(11, &shape.repeat(2)), Some("extents of a value"));
        check(tagged(13, &shape.repeat(2)), Some("extents of a value"));
        check(tagged(5, &tagged(8, &vec![b'x'; 4097])), Some("bytes in a name"));
        check(tagged(5, &tagged(1, &[1; 64])), None);
        check(tagged(5, &tagged(1, &[1; 65])), Some("extents of a value"));
        let symbols = "bytes of symbols for extents without a name";
        check(input(&"x".repeat(4096), &dims(64)).repeat(300), Some(symbols));
        let body = tagged(6, &input(&"x".repeat(4096), &dims(64)));
        // The type of the attribute is a graph.
        let body = tagged(5, &[body, vec![0xA0, 1, 5]].concat());
        check(tagged(1, &body.repeat(300)), Some(symbols));
        check(tagged(11, &name(1)).repeat(1025), Some("inputs and outputs without a rank"));
        check(tagged(1, &tagged(3, &[b'x'; 4097])), Some("bytes in a name"));
        check(tagged(1, &tagged(5, &name(4097))), Some("bytes in a name"));
    }

    #[test]
    fn few_parts_that_are_not_kept_are_described() {
        let attributes = tagged(5, &[]).repeat(1000);
        let node = tagged(1, &[tagged(3, &[b'x'; 4096]), attributes].concat());
        let graph = Graph::decode(&tagged(7, &node)).unwrap();
        assert_eq!(graph.unread.len(), 64);
        let within = Graph::decode(&tagged(7, &tagged(11, &[]).repeat(100))).unwrap();
        assert_eq!(within.unread.len(), 64);
    }

    #[test]
    fn constants_are_not_counted() {
        let mut graph = tagged(5, &tagged(9, &vec![1; 65 << 20]));
        graph.extend(tagged(2, b"g"));
        assert_eq!(Graph::decode(&tagged(7, &graph)).unwrap().initializers.len(), 1);
    }
}
