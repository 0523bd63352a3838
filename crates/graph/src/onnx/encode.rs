//! Encoding of graphs as ONNX files.

use narthex_spec::dtype::Dim;
use prost::Message;

use super::messages::{
    AttributeProto, DimensionProto, DimensionValue, EXTERNAL, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto,
    ValueInfoProto, attribute_type,
};
use crate::graph::{Attribute, Graph, Initializer, InitializerData, Node, Value};

/// ONNX intermediate-representation version of the written files: that of ONNX 1.16.
const IR_VERSION: i64 = 10;

impl Graph {
    /// Returns the bytes of an ONNX file. External constants are stored as references to their file.
    pub fn encode(&self) -> Vec<u8> {
        let model = ModelProto {
            ir_version: IR_VERSION,
            producer_name: "narthex".to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            opset_import: self
                .opsets
                .iter()
                .map(|(domain, version)| OperatorSetIdProto { domain: domain.clone(), version: *version })
                .collect(),
            metadata_props: self
                .metadata
                .iter()
                .map(|(key, value)| StringStringEntryProto { key: key.clone(), value: value.clone() })
                .collect(),
            graph: Some(graph(self)),
            ..ModelProto::default()
        };
        model.encode_to_vec()
    }
}

fn graph(graph: &Graph) -> GraphProto {
    GraphProto {
        name: graph.name.clone(),
        node: graph.nodes.iter().map(node).collect(),
        initializer: graph.initializers.iter().map(tensor).collect(),
        input: value_infos(&graph.inputs, graph),
        output: value_infos(&graph.outputs, graph),
        value_info: value_infos(&graph.values, graph),
        ..GraphProto::default()
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
        Attribute::Int(v) => (proto.r#type, proto.i) = (attribute_type::INT, Some(*v)),
        Attribute::Float(v) => (proto.r#type, proto.f) = (attribute_type::FLOAT, Some(*v)),
        Attribute::String(v) => (proto.r#type, proto.s) = (attribute_type::STRING, Some(v.clone().into())),
        Attribute::Ints(v) => (proto.r#type, proto.ints) = (attribute_type::INTS, v.clone()),
        Attribute::Floats(v) => (proto.r#type, proto.floats) = (attribute_type::FLOATS, v.clone()),
        Attribute::Bytes(v) => (proto.r#type, proto.s) = (attribute_type::STRING, Some(v.clone())),
        Attribute::Strings(v) => {
            proto.r#type = attribute_type::STRINGS;
            proto.strings = v.iter().map(|text| text.clone().into()).collect();
        }
        Attribute::Tensor(v) => {
            (proto.r#type, proto.t) = (attribute_type::TENSOR, Some(Box::new(tensor(v))));
        }
        Attribute::Graph(v) => (proto.r#type, proto.g) = (attribute_type::GRAPH, Some(Box::new(graph(v)))),
    }
    proto
}

fn tensor(constant: &Initializer) -> TensorProto {
    let mut proto = TensorProto {
        name: constant.name.clone(),
        dims: constant.shape.iter().map(|&extent| extent as i64).collect(),
        data_type: constant.dtype.code(),
        ..TensorProto::default()
    };
    match &constant.data {
        InitializerData::Inline(bytes) => proto.raw_data.clone_from(bytes),
        InitializerData::External { file, offset, length } => {
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

fn value_info(value: &Value, unranked: &[String]) -> ValueInfoProto {
    let shape = (!unranked.contains(&value.name))
        .then(|| TensorShapeProto { dim: value.shape.iter().map(dimension).collect() });
    let tensor_type = TensorTypeProto { elem_type: value.dtype.code(), shape };
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

fn value_infos(values: &[Value], graph: &Graph) -> Vec<ValueInfoProto> {
    values.iter().map(|value| value_info(value, &graph.unranked)).collect()
}

fn entry(key: &str, value: String) -> StringStringEntryProto {
    StringStringEntryProto { key: key.to_owned(), value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_and_an_empty_text_are_written() {
        // Some readers assume their own default for an absent value: the provider for Qualcomm's NPUs treats an absent
        // `embed_mode` as 1.
        assert_eq!(attribute("embed_mode", &Attribute::Int(0)).encode_to_vec().len(), 17);
        assert_eq!(attribute("x", &Attribute::Float(0.0)).f, Some(0.0));
        assert_eq!(attribute("x", &Attribute::String(String::new())).s, Some(prost::bytes::Bytes::new()));
        let read = AttributeProto::decode(attribute("x", &Attribute::Int(0)).encode_to_vec().as_slice());
        assert_eq!(read.unwrap().i, Some(0));
    }
}
