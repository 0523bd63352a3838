//! Files to which an ONNX file refers: data files of tensors and binaries of compiled contexts.
//!
//! ONNX Runtime opens them when it loads the file. The search covers every message that may contain a tensor, also
//! those that a decoded [`Graph`](crate::Graph) omits, such as functions. It keeps nothing in memory.

use prost::{
    Message as _,
    encoding::{WireType, decode_key, decode_varint},
};

use super::{
    error::DecodeError,
    messages::{EXTERNAL, StringStringEntryProto},
};
use crate::context::CONTEXT_OP;

/// Maximum depth of messages, which is Protobuf's.
const MAX_DEPTH: u64 = 100;

/// A message that may contain a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageKind {
    Model,
    Training,
    Function,
    Graph,
    Node,
    Attribute,
    SparseTensor,
    Tensor,
}

/// Returns the kind of the message in a field; `None` for a field without references.
fn inside(message: MessageKind, number: u32) -> Option<MessageKind> {
    use MessageKind as M;
    Some(match (message, number) {
        (M::Model, 7) | (M::Training, 1 | 2) | (M::Attribute, 6 | 11) => M::Graph,
        (M::Model, 20) => M::Training,
        (M::Model, 25) => M::Function,
        (M::Graph, 1) | (M::Function, 7) => M::Node,
        (M::Node, 5) | (M::Function, 11) => M::Attribute,
        (M::Graph, 15) | (M::Attribute, 22 | 23) => M::SparseTensor,
        (M::Graph, 5) | (M::Attribute, 5 | 10) | (M::SparseTensor, 1 | 2) => M::Tensor,
        _ => return None,
    })
}

/// Returns the first file to which the bytes of an ONNX file refer and for which `is_wanted` returns true. Names are
/// relative to the folder of the ONNX file.
///
/// # Errors
/// [`DecodeError`] for bytes that are not Protobuf, and for messages that are too deep.
pub fn find_reference(bytes: &[u8], is_wanted: &dyn Fn(&str) -> bool) -> Result<Option<String>, DecodeError> {
    find(MessageKind::Model, bytes, 0, is_wanted)
}

fn find(
    message: MessageKind,
    bytes: &[u8],
    depth: u64,
    is_wanted: &dyn Fn(&str) -> bool,
) -> Result<Option<String>, DecodeError> {
    if depth > MAX_DEPTH {
        return Err(DecodeError::TooMany { what: "nested messages", limit: MAX_DEPTH });
    }

    let own = match message {
        MessageKind::Tensor => data_file(bytes, is_wanted)?,
        MessageKind::Node => context_binary(bytes, is_wanted)?,
        _ => None,
    };

    if own.is_some() {
        return Ok(own);
    }

    for field in Fields(bytes) {
        if let (number, FieldValue::Bytes(within)) = field?
            && let Some(kind) = inside(message, number)
            && let Some(found) = find(kind, within, depth + 1, is_wanted)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn data_file(tensor: &[u8], is_wanted: &dyn Fn(&str) -> bool) -> Result<Option<String>, DecodeError> {
    let mut is_external = false;
    for field in Fields(tensor) {
        if let (14, FieldValue::Number(location)) = field? {
            // Protobuf reads the low 32 bits.
            is_external = location as i32 == EXTERNAL;
        }
    }
    for field in Fields(if is_external { tensor } else { &[] }) {
        if let (13, FieldValue::Bytes(entry)) = field? {
            let StringStringEntryProto { key, value } =
                StringStringEntryProto::decode(entry).map_err(not_onnx)?;
            if key == "location" && is_wanted(&value) {
                return Ok(Some(value));
            }
        }
    }
    Ok(None)
}

/// Returns the wanted binary of a node's compiled context. An embedded binary is not a reference.
fn context_binary(node: &[u8], is_wanted: &dyn Fn(&str) -> bool) -> Result<Option<String>, DecodeError> {
    let mut is_context = false;
    let mut is_embedded = true;
    for field in Fields(node) {
        match field? {
            (4, FieldValue::Bytes(op)) => is_context = op == CONTEXT_OP.as_bytes(),
            (5, FieldValue::Bytes(bytes)) => {
                let attribute = ShortAttribute::read(bytes)?;
                is_embedded &= attribute.name != b"embed_mode" || attribute.int != 0;
            }
            _ => {}
        }
    }

    for field in Fields(if is_context && !is_embedded { node } else { &[] }) {
        if let (5, FieldValue::Bytes(bytes)) = field? {
            let ShortAttribute { name, text, .. } = ShortAttribute::read(bytes)?;
            if name == b"ep_cache_context" {
                // A mapped file may change, so the bytes are copied before they are checked.
                let binary = String::from_utf8(text.to_vec()).map_err(not_onnx)?;
                if !binary.is_empty() && is_wanted(&binary) {
                    return Ok(Some(binary));
                }
            }
        }
    }
    Ok(None)
}

/// The fields of an attribute that a compiled context needs.
struct ShortAttribute<'a> {
    name: &'a [u8],
    int: u64,
    text: &'a [u8],
}

impl<'a> ShortAttribute<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut attribute = Self { name: &[], int: 0, text: &[] };
        for field in Fields(bytes) {
            match field? {
                (1, FieldValue::Bytes(name)) => attribute.name = name,
                (3, FieldValue::Number(int)) => attribute.int = int,
                (4, FieldValue::Bytes(text)) => attribute.text = text,
                _ => {}
            }
        }
        Ok(attribute)
    }
}

fn not_onnx(reason: impl ToString) -> DecodeError {
    DecodeError::NotOnnx { reason: reason.to_string() }
}

/// Value of a field; values of fixed length are not kept.
enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed,
}

/// Iterator over the fields of a message. It ends after the first error.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn read(&mut self) -> Result<(u32, FieldValue<'a>), DecodeError> {
        let (number, wire_type) = decode_key(&mut self.0).map_err(not_onnx)?;
        let length = match wire_type {
            WireType::Varint => {
                return Ok((number, FieldValue::Number(decode_varint(&mut self.0).map_err(not_onnx)?)));
            }
            WireType::SixtyFourBit => 8,
            WireType::ThirtyTwoBit => 4,
            WireType::LengthDelimited => decode_varint(&mut self.0).map_err(not_onnx)?,
            WireType::StartGroup | WireType::EndGroup => return Err(not_onnx("it has a group")),
        };
        let split = usize::try_from(length).ok().and_then(|length| self.0.split_at_checked(length));
        let (value, rest) = split.ok_or_else(|| not_onnx("a field exceeds its message"))?;
        self.0 = rest;
        let is_fixed = wire_type != WireType::LengthDelimited;
        Ok((number, if is_fixed { FieldValue::Fixed } else { FieldValue::Bytes(value) }))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, FieldValue<'a>), DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::DType;
    use prost::encoding::{encode_key, encode_varint};

    use super::*;
    use crate::{
        Attribute,
        build::{Builder, External, NodeSpec},
        graph::MICROSOFT,
    };

    /// Encodes a length-delimited field.
    fn field(number: u32, inside: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_key(number, WireType::LengthDelimited, &mut bytes);
        encode_varint(inside.len() as u64, &mut bytes);
        bytes.extend_from_slice(inside);
        bytes
    }

    /// Encodes a field with a number.
    fn number(number: u32, value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_key(number, WireType::Varint, &mut bytes);
        encode_varint(value, &mut bytes);
        bytes
    }

    /// Encodes a tensor whose bytes are in the file `w`.
    fn tensor(location: u64) -> Vec<u8> {
        let entry = [field(1, b"location"), field(2, b"w")].concat();
        [field(13, &field(1, b"offset")), field(13, &entry), number(14, location)].concat()
    }

    #[test]
    fn every_message_with_a_tensor_is_searched() {
        let check = |path: &[u32], expect: Option<&str>| {
            let model =
                |tensor: Vec<u8>| path.iter().rev().fold(tensor, |bytes, number| field(*number, &bytes));
            assert_eq!(find_reference(&model(tensor(1)), &|_| true).unwrap().as_deref(), expect, "{path:?}");
            let low_bits = find_reference(&model(tensor((1 << 32) + 1)), &|_| true);
            assert_eq!(low_bits.unwrap().as_deref(), expect, "{path:?}");
            assert_eq!(find_reference(&model(tensor(1)), &|name| name != "w").unwrap(), None);
            assert_eq!(
                find_reference(&model(tensor(0)), &|_| true).unwrap(),
                None,
                "a tensor with its own bytes"
            );
        };
        for graph in [&[7][..], &[20, 1], &[20, 2], &[7, 1, 5, 6], &[25, 7, 5, 11], &[25, 11, 6]] {
            for tensor in
                [&[5][..], &[15, 1], &[15, 2], &[1, 5, 5], &[1, 5, 10], &[1, 5, 22, 1], &[1, 5, 23, 2]]
            {
                check(&[graph, tensor].concat(), Some("w"));
            }
        }
        check(&[7, 11], None);
        check(&[8, 5], None);
    }

    #[test]
    fn binaries_of_contexts_are_references() {
        let check = |embed_mode: i64, op: &str, expect: Option<&str>| {
            let mut b = Builder::new("g", &[("", 20), (MICROSOFT, 1)]);
            let x = b.input("x", DType::F32, &[1usize.into()]);
            let attributes = [
                ("embed_mode", Attribute::Int(embed_mode)),
                ("ep_cache_context", Attribute::String("c.bin".to_owned())),
            ];
            let inputs = [x.as_str()];
            let y = b.node(NodeSpec {
                name: "n",
                op,
                domain: MICROSOFT,
                inputs: &inputs,
                attributes: &attributes,
            });
            b.output(&y, DType::F32, &[1usize.into()]);
            let graph = b.finish();
            let found = find_reference(&graph.encode(), &|_| true).unwrap();
            assert_eq!(found.as_deref(), expect);
            assert_eq!(graph.context_binaries().next(), expect);
        };
        check(0, CONTEXT_OP, Some("c.bin"));
        check(1, CONTEXT_OP, None);
        check(0, "Other", None);
    }

    #[test]
    fn malformed_bytes_are_errors() {
        let mut b = Builder::new("g", &[("", 20)]);
        let w = b.external("w", DType::U8, &[8], External { file: "m.data", offset: 0, length: 8 });
        b.output(&w, DType::U8, &[8usize.into()]);
        let bytes = b.finish().encode();
        assert_eq!(find_reference(&bytes, &|_| true).unwrap().as_deref(), Some("m.data"));
        assert!(find_reference(&bytes[..bytes.len() - 1], &|_| false).is_err());
        let deep = (0..60).fold(Vec::<u8>::new(), |bytes, _| field(1, &field(5, &field(6, &bytes))));
        assert!(find_reference(&field(7, &deep), &|_| true).is_err());
        let not_text = field(13, &[field(1, b"location"), field(2, &[0xFF])].concat());
        let tensor = [not_text, number(14, 1)].concat();
        assert!(find_reference(&field(7, &field(5, &tensor)), &|_| true).is_err());
    }
}
