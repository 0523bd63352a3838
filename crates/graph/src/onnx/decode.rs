//! Decoding of ONNX files into graphs. The bytes are untrusted: malformed ones cause an error, never a panic.

use narthex_spec::dtype::Dim;
use prost::{Message, bytes::Bytes};

use super::{
    error::{DecodeError, malformed},
    limit::{self, Bounds},
    messages::{
        AttributeProto, DimensionValue, EXTERNAL, GraphProto, ModelProto, NodeProto, TensorProto,
        ValueInfoProto, attribute_type,
    },
};
use crate::{
    element::Element,
    graph::{Attribute, Graph, Initializer, InitializerData, Node, Value},
};

/// Maximum number of descriptions of parts that are not kept.
const MAX_UNREAD: usize = 64;

impl Graph {
    /// Decodes the bytes of an ONNX file.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        limit::check(bytes)?;
        model(ModelProto::decode(bytes))
    }

    /// Decodes as [`Graph::decode`], but constants inside the file remain views of its bytes.
    pub fn decode_shared(bytes: Bytes) -> Result<Self, DecodeError> {
        limit::check(&bytes)?;
        model(ModelProto::decode(bytes))
    }
}

fn model(decoded: Result<ModelProto, prost::DecodeError>) -> Result<Graph, DecodeError> {
    let model = decoded.map_err(|error| DecodeError::NotOnnx { reason: error.to_string() })?;
    let proto = model.graph.ok_or_else(|| malformed("model", "a graph", "none"))?;
    let mut graph = graph(proto, &mut Bounds::default())?;
    graph.opsets = model.opset_import.into_iter().map(|set| (domain(set.domain), set.version)).collect();
    graph.metadata = model.metadata_props.into_iter().map(|entry| (entry.key, entry.value)).collect();
    for (count, what) in [(model.functions.len(), "function"), (model.training_info.len(), "training graph")]
    {
        if count > 0 {
            graph.unread.push(format!("{count} {what}{}", if count == 1 { "" } else { "s" }));
        }
    }
    Ok(graph)
}

/// Maps the second spelling of ONNX's own domain, `ai.onnx`, to the empty one.
fn domain(name: String) -> String {
    if name == "ai.onnx" { String::new() } else { name }
}

fn graph(proto: GraphProto, bounds: &mut Bounds) -> Result<Graph, DecodeError> {
    let mut graph = Graph { name: proto.name, ..Graph::default() };
    for (protos, outputs) in [(proto.input, false), (proto.output, true)] {
        for proto in protos {
            let (value, shaped) = value(proto, bounds)?;
            if value.dtype == Element::NONE {
                note(&mut graph.unread, || format!("the type of {:?}, which is not a tensor", value.name));
            }
            if !shaped {
                graph.unranked.push(value.name.clone());
                limit::unranked(graph.unranked.len())?;
            }
            if outputs { &mut graph.outputs } else { &mut graph.inputs }.push(value);
        }
    }

    for proto in proto.value_info {
        let (value, shaped) = value(proto, bounds)?;
        if shaped {
            graph.values.push(value);
        }
    }

    graph.initializers = proto.initializer.into_iter().map(initializer).collect::<Result<_, _>>()?;
    if let Some(text) = graph.initializers.iter().find(|constant| constant.dtype == Element::STRING) {
        note(&mut graph.unread, || format!("the texts of {:?}", text.name));
    }
    if !proto.sparse_initializer.is_empty() {
        note(&mut graph.unread, || format!("{} sparse constants", proto.sparse_initializer.len()));
    }

    for proto in proto.node {
        let node = node(proto, &mut graph.unread, bounds)?;
        graph.nodes.push(node);
    }
    Ok(graph)
}

/// Adds a description of a part that is not kept, unless there are [`MAX_UNREAD`] already.
fn note(unread: &mut Vec<String>, what: impl FnOnce() -> String) {
    if unread.len() < MAX_UNREAD {
        unread.push(what());
    }
}

/// Returns a value, and whether its file declares a shape for it.
fn value(proto: ValueInfoProto, bounds: &mut Bounds) -> Result<(Value, bool), DecodeError> {
    limit::name(&proto.name)?;
    let Some(tensor) = proto.r#type.and_then(|kind| kind.tensor_type) else {
        return Ok((Value { name: proto.name, dtype: Element::NONE, shape: Vec::new() }, false));
    };
    let shaped = tensor.shape.is_some();
    let dims = tensor.shape.map(|shape| shape.dim).unwrap_or_default();
    limit::rank(dims.len())?;
    // Some exporters write an unknown extent as -1, or as a symbol without a name.
    let mut open = |axis: usize| {
        let symbol = format!("{}_{axis}", proto.name);
        bounds.add_symbol(&symbol).map(|()| Dim::Symbol(symbol))
    };
    let mut shape = Vec::with_capacity(dims.len());
    for (axis, dim) in dims.into_iter().enumerate() {
        shape.push(match dim.value {
            Some(DimensionValue::DimValue(extent)) => match u64::try_from(extent) {
                Ok(extent) => Dim::Fixed(extent),
                Err(_) => open(axis)?,
            },
            Some(DimensionValue::DimParam(name)) if !name.is_empty() => Dim::Symbol(name),
            _ => open(axis)?,
        });
    }
    Ok((Value { dtype: Element::from_code(tensor.elem_type), name: proto.name, shape }, shaped))
}

fn initializer(proto: TensorProto) -> Result<Initializer, DecodeError> {
    limit::name(&proto.name)?;
    limit::rank(proto.dims.len())?;
    let dtype = Element::from_code(proto.data_type);
    let shape = proto
        .dims
        .iter()
        .map(|&extent| usize::try_from(extent).map_err(|_| malformed(&proto.name, "extents from 0", extent)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut constant =
        Initializer { name: String::new(), dtype, shape, data: InitializerData::Inline(Bytes::new()) };
    constant.data = if proto.data_location == EXTERNAL {
        external(&proto, constant.expected_bytes())?
    } else {
        InitializerData::Inline(inline(&proto, dtype))
    };
    constant.name = proto.name;
    Ok(constant)
}

fn inline(proto: &TensorProto, dtype: Element) -> Bytes {
    if !proto.raw_data.is_empty() {
        return proto.raw_data.clone();
    }
    let floats = proto.float_data.iter().flat_map(|v| v.to_le_bytes());
    let doubles = proto.double_data.iter().flat_map(|v| v.to_le_bytes());
    let longs = proto.int64_data.iter().flat_map(|v| v.to_le_bytes());
    let unsigned = proto.uint64_data.iter().flat_map(|v| v.to_le_bytes());
    // Each int32 has one element of a narrow type. Types below a byte are packed.
    let width = dtype.bits().map_or(4, |bits| bits.div_ceil(8).min(4)) as usize;
    let narrow = proto.int32_data.iter().flat_map(|v| v.to_le_bytes().into_iter().take(width));
    floats.chain(doubles).chain(longs).chain(unsigned).chain(narrow).collect::<Vec<u8>>().into()
}

fn external(proto: &TensorProto, expected: Option<u64>) -> Result<InitializerData, DecodeError> {
    let entry = |key: &str| proto.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
    let number = |key: &str, absent: u64| {
        entry(key).map_or(Ok(absent), |text| {
            text.parse::<u64>().map_err(|_| malformed(&proto.name, "a number of bytes", text))
        })
    };
    let file = entry("location").ok_or_else(|| malformed(&proto.name, "a location", "none"))?;
    Ok(InitializerData::External {
        file: file.to_owned(),
        offset: number("offset", 0)?,
        // Some writers omit the length, which then follows from the shape.
        length: number("length", expected.unwrap_or(0))?,
    })
}

fn node(proto: NodeProto, unread: &mut Vec<String>, bounds: &mut Bounds) -> Result<Node, DecodeError> {
    limit::name(&proto.name)?;
    let mut attributes = Vec::with_capacity(proto.attribute.len());
    for attribute in proto.attribute {
        let name = attribute.name.clone();
        limit::name(&name)?;
        match decode_attribute(attribute, bounds)? {
            Some(value) => attributes.push((name, value)),
            None => note(unread, || format!("attribute {name:?} of node {:?}", proto.name)),
        }
    }
    if let Some((_, Attribute::Graph(body))) = attributes.iter().find(|(_, value)| has_unread(value)) {
        body.unread.iter().for_each(|what| note(unread, || what.clone()));
    }
    Ok(Node {
        name: proto.name,
        op: proto.op_type,
        domain: domain(proto.domain),
        inputs: proto.input,
        outputs: proto.output,
        attributes,
    })
}

fn has_unread(attribute: &Attribute) -> bool {
    matches!(attribute, Attribute::Graph(body) if !body.unread.is_empty())
}

/// Returns the attribute's value, or `None` for kinds that are not kept.
fn decode_attribute(proto: AttributeProto, bounds: &mut Bounds) -> Result<Option<Attribute>, DecodeError> {
    Ok(Some(match (proto.r#type, proto.t, proto.g) {
        (attribute_type::INT, ..) => Attribute::Int(proto.i.unwrap_or_default()),
        (attribute_type::FLOAT, ..) => Attribute::Float(proto.f.unwrap_or_default()),
        (attribute_type::STRING, ..) => {
            let bytes = proto.s.unwrap_or_default();
            String::from_utf8(bytes.to_vec()).map_or_else(|_| Attribute::Bytes(bytes), Attribute::String)
        }
        (attribute_type::INTS, ..) => Attribute::Ints(proto.ints),
        (attribute_type::FLOATS, ..) => Attribute::Floats(proto.floats),
        (attribute_type::STRINGS, ..) => {
            let texts = proto.strings.iter().map(|bytes| String::from_utf8(bytes.to_vec()));
            match texts.collect::<Result<Vec<_>, _>>() {
                Ok(texts) => Attribute::Strings(texts),
                Err(_) => return Ok(None),
            }
        }
        (attribute_type::TENSOR, Some(tensor), _) => Attribute::Tensor(Box::new(initializer(*tensor)?)),
        (attribute_type::GRAPH, _, Some(body)) => Attribute::Graph(Box::new(graph(*body, bounds)?)),
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use narthex_spec::DType;
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
        Graph { metadata: vec![("k".to_owned(), "v".to_owned())], ..b.finish() }
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
