//! A graph as the bytes of an ONNX file.

use narthex_spec::{DType, dtype::Dim};
use prost::Message;

use super::messages::{
    AttributeProto, DimensionProto, DimensionValue, EXTERNAL, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto,
    ValueInfoProto, attribute_type,
};
use crate::graph::{Attribute, Graph, Initializer, InitializerData, Node, Value};

/// The ONNX intermediate-representation version written: ONNX 1.16's.
const IR_VERSION: i64 = 10;

/// `TensorProto.DataType` of an element type.
pub(super) fn data_type(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::Bf16 => 16,
    }
}

impl Graph {
    /// The bytes of an ONNX file; external constants are named, not read.
    pub fn encode(&self) -> Vec<u8> {
        let entry = |(key, value): &(String, String)| StringStringEntryProto {
            key: key.clone(),
            value: value.clone(),
        };
        let model = ModelProto {
            ir_version: IR_VERSION,
            producer_name: "narthex".to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            opset_import: self
                .opsets
                .iter()
                .map(|(domain, version)| OperatorSetIdProto { domain: domain.clone(), version: *version })
                .collect(),
            metadata_props: self.metadata.iter().map(entry).collect(),
            graph: Some(GraphProto {
                name: self.name.clone(),
                node: self.nodes.iter().map(node).collect(),
                initializer: self.initializers.iter().map(tensor).collect(),
                input: self.inputs.iter().map(value_info).collect(),
                output: self.outputs.iter().map(value_info).collect(),
            }),
        };
        model.encode_to_vec()
    }
}

fn node(node: &Node) -> NodeProto {
    NodeProto {
        name: node.name.clone(),
        op_type: node.op.clone(),
        domain: node.domain.clone(),
        input: node.inputs.clone(),
        output: node.outputs.clone(),
        attribute: node.attributes.iter().map(|(name, value)| attribute(name, value)).collect(),
    }
}

fn attribute(name: &str, value: &Attribute) -> AttributeProto {
    let mut proto = AttributeProto { name: name.to_owned(), ..AttributeProto::default() };
    match value {
        Attribute::Int(v) => (proto.r#type, proto.i) = (attribute_type::INT, *v),
        Attribute::Float(v) => (proto.r#type, proto.f) = (attribute_type::FLOAT, *v),
        Attribute::String(v) => (proto.r#type, proto.s) = (attribute_type::STRING, v.clone().into_bytes()),
        Attribute::Ints(v) => (proto.r#type, proto.ints) = (attribute_type::INTS, v.clone()),
        Attribute::Floats(v) => (proto.r#type, proto.floats) = (attribute_type::FLOATS, v.clone()),
    }
    proto
}

fn tensor(constant: &Initializer) -> TensorProto {
    let mut proto = TensorProto {
        name: constant.name.clone(),
        dims: constant.shape.iter().map(|&extent| extent as i64).collect(),
        data_type: data_type(constant.dtype),
        ..TensorProto::default()
    };
    match &constant.data {
        InitializerData::Inline(bytes) => proto.raw_data.clone_from(bytes),
        InitializerData::External { file, offset, length } => {
            let entry = |key: &str, value: String| StringStringEntryProto { key: key.to_owned(), value };
            proto.data_location = EXTERNAL;
            proto.external_data = vec![
                entry("location", file.clone()),
                entry("offset", offset.to_string()),
                entry("length", length.to_string()),
            ];
        }
    }
    proto
}

fn value_info(value: &Value) -> ValueInfoProto {
    let dim = value.shape.iter().map(dimension).collect();
    let tensor_type =
        TensorTypeProto { elem_type: data_type(value.dtype), shape: Some(TensorShapeProto { dim }) };
    ValueInfoProto { name: value.name.clone(), r#type: Some(TypeProto { tensor_type: Some(tensor_type) }) }
}

fn dimension(dim: &Dim) -> DimensionProto {
    DimensionProto {
        value: Some(match dim {
            Dim::Fixed(extent) => DimensionValue::DimValue(*extent as i64),
            Dim::Symbol(name) => DimensionValue::DimParam(name.clone()),
        }),
    }
}
