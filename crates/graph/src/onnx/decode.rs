//! The bytes of an ONNX file as a graph. The bytes come from outside: whatever they hold gives an error, never a panic.

use narthex_spec::{DType, dtype::Dim};
use prost::Message;

use super::messages::{
    AttributeProto, DimensionValue, EXTERNAL, ModelProto, NodeProto, TensorProto, ValueInfoProto,
    attribute_type,
};
use crate::graph::{Attribute, Graph, Initializer, InitializerData, Node, Value};

/// Why bytes are not a graph that Narthex reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not a protobuf message.
    #[error("not an ONNX file: {reason}")]
    NotOnnx {
        /// The decoder's reason.
        reason: String,
    },
    /// A part of the model is missing or out of range.
    #[error("{what} is malformed: expected {expected}, found {found}")]
    Malformed {
        /// Which part.
        what: String,
        /// What the specification says.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
}

fn malformed(what: impl Into<String>, expected: &'static str, found: impl ToString) -> DecodeError {
    DecodeError::Malformed { what: what.into(), expected, found: found.to_string() }
}

impl Graph {
    /// Reads the bytes of an ONNX file.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let model =
            ModelProto::decode(bytes).map_err(|error| DecodeError::NotOnnx { reason: error.to_string() })?;
        let graph = model.graph.ok_or_else(|| malformed("model", "a graph", "none"))?;
        Ok(Self {
            name: graph.name,
            opsets: model.opset_import.into_iter().map(|set| (set.domain, set.version)).collect(),
            inputs: graph.input.into_iter().map(value).collect::<Result<_, _>>()?,
            outputs: graph.output.into_iter().map(value).collect::<Result<_, _>>()?,
            initializers: graph.initializer.into_iter().map(initializer).collect::<Result<_, _>>()?,
            nodes: graph.node.into_iter().map(node).collect::<Result<_, _>>()?,
            metadata: model.metadata_props.into_iter().map(|entry| (entry.key, entry.value)).collect(),
        })
    }
}

fn dtype(what: &str, code: i32) -> Result<DType, DecodeError> {
    let all =
        [DType::F32, DType::U8, DType::I8, DType::I32, DType::I64, DType::Bool, DType::F16, DType::Bf16];
    all.into_iter()
        .find(|&dtype| super::encode::data_type(dtype) == code)
        .ok_or_else(|| malformed(what, "element type f32, f16, bf16, u8, i8, i32, i64 or bool", code))
}

fn value(proto: ValueInfoProto) -> Result<Value, DecodeError> {
    let tensor = proto
        .r#type
        .and_then(|kind| kind.tensor_type)
        .ok_or_else(|| malformed(&proto.name, "a tensor type", "another type"))?;
    let dims = tensor.shape.map(|shape| shape.dim).unwrap_or_default();
    let shape = dims
        .into_iter()
        .enumerate()
        .map(|(axis, dim)| match dim.value {
            Some(DimensionValue::DimValue(extent)) => {
                let extent =
                    u64::try_from(extent).map_err(|_| malformed(&proto.name, "extents from 0", extent));
                extent.map(Dim::Fixed)
            }
            Some(DimensionValue::DimParam(name)) => Ok(Dim::Symbol(name)),
            None => Ok(Dim::Symbol(format!("{}_{axis}", proto.name))),
        })
        .collect::<Result<_, _>>()?;
    Ok(Value { dtype: dtype(&proto.name, tensor.elem_type)?, name: proto.name, shape })
}

fn initializer(proto: TensorProto) -> Result<Initializer, DecodeError> {
    let dtype = dtype(&proto.name, proto.data_type)?;
    let shape = proto
        .dims
        .iter()
        .map(|&extent| usize::try_from(extent).map_err(|_| malformed(&proto.name, "extents from 0", extent)))
        .collect::<Result<Vec<_>, _>>()?;
    let data = if proto.data_location == EXTERNAL { external(&proto)? } else { inline(&proto, dtype) };
    Ok(Initializer { name: proto.name, dtype, shape, data })
}

fn inline(proto: &TensorProto, dtype: DType) -> InitializerData {
    let bytes = match dtype {
        _ if !proto.raw_data.is_empty() => proto.raw_data.clone(),
        DType::F32 => proto.float_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::I64 => proto.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::I32 => proto.int32_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        // Narrow types lie one to an int32.
        _ => proto.int32_data.iter().flat_map(|v| v.to_le_bytes().into_iter().take(dtype.size())).collect(),
    };
    InitializerData::Inline(bytes)
}

fn external(proto: &TensorProto) -> Result<InitializerData, DecodeError> {
    let entry = |key: &str| proto.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
    let number = |key: &str| {
        entry(key).map_or(Ok(0), |text| {
            text.parse::<u64>().map_err(|_| malformed(&proto.name, "a number of bytes", text))
        })
    };
    let file = entry("location").ok_or_else(|| malformed(&proto.name, "a location", "none"))?;
    Ok(InitializerData::External {
        file: file.to_owned(),
        offset: number("offset")?,
        length: number("length")?,
    })
}

fn node(proto: NodeProto) -> Result<Node, DecodeError> {
    let attributes = proto
        .attribute
        .into_iter()
        .map(|attribute| decode_attribute(&proto.name, attribute))
        .collect::<Result<_, _>>()?;
    Ok(Node {
        name: proto.name,
        op: proto.op_type,
        domain: proto.domain,
        inputs: proto.input,
        outputs: proto.output,
        attributes,
    })
}

fn decode_attribute(node: &str, proto: AttributeProto) -> Result<(String, Attribute), DecodeError> {
    let value = match proto.r#type {
        attribute_type::INT => Attribute::Int(proto.i),
        attribute_type::FLOAT => Attribute::Float(proto.f),
        attribute_type::STRING => Attribute::String(String::from_utf8_lossy(&proto.s).into_owned()),
        attribute_type::INTS => Attribute::Ints(proto.ints),
        attribute_type::FLOATS => Attribute::Floats(proto.floats),
        other => {
            let what = format!("attribute {:?} of node {node:?}", proto.name);
            return Err(malformed(what, "an int, float, string, or a list of ints or floats", other));
        }
    };
    Ok((proto.name, value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::build::{Builder, External, NodeSpec};

    fn sample() -> Graph {
        let mut b = Builder::new("sample", &[("", 20), ("com.microsoft", 1)]);
        let x = b.input("x", DType::F32, &["batch".into(), 4usize.into()]);
        let w = b.external("w", DType::U8, &[4, 2], External { file: "m.data", offset: 64, length: 8 });
        let shape = b.ints(&[2], &[-1, 4]);
        let y = b.op("/a", "Reshape", &[&x, &shape]);
        let attributes = [("bits", Attribute::Int(8)), ("eps", 1e-5f32.into()), ("perm", [0, 2, 1].into())];
        let inputs = [y.as_str(), "", w.as_str()];
        let z = b.node(NodeSpec {
            name: "/a/N",
            op: "N",
            domain: "com.microsoft",
            inputs: &inputs,
            attributes: &attributes,
        });
        b.output(&z, DType::F32, &["batch".into()]);
        b.metadata("k", "v");
        b.finish()
    }

    #[test]
    fn a_graph_survives_the_round_trip() {
        let graph = sample();
        graph.check().unwrap();
        assert_eq!(Graph::decode(&graph.encode()).unwrap(), graph);
    }

    #[test]
    fn the_dump_is_stable() {
        insta::assert_snapshot!(sample().dump());
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(at in 0usize..400, byte: u8, cut in 0usize..400) {
            let mut bytes = sample().encode();
            let length = bytes.len();
            bytes[at % length] = byte;
            bytes.truncate(length - cut % length);
            if let Ok(graph) = Graph::decode(&bytes) {
                let _ = graph.check();
                graph.dump();
            }
        }
    }
}
