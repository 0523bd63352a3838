//! ONNX files.

use narthex_graph::{Attribute, Builder, Graph, build::External, build::NodeSpec};
use narthex_spec::DType;

use super::Input;

pub(super) fn onnx() -> Vec<Input> {
    let graph = sample();
    let mut plain = Builder::new("plain", &[("", 20)]);
    let x = plain.input("x", DType::F32, &["n".into(), 4usize.into()]);
    let y = plain.op("/relu", "Relu", &[&x]);
    plain.output(&y, DType::F32, &["n".into(), 4usize.into()]);
    vec![
        Input::valid("sample", graph.encode()),
        Input::valid("plain", plain.finish().encode()),
        Input::bomb(
            "shape",
            with(|graph| graph.initializers.iter_mut().for_each(|i| i.shape = vec![usize::MAX >> 1; 8])),
        ),
        Input::bomb("dimensions", with(|graph| graph.initializers[0].shape = vec![1; 20_000])),
        Input::bomb("length", [&field(7)[..], &varint(u64::MAX >> 1), b"x"].concat()),
        Input::bomb("nodes", message(7, &message(1, &[]).repeat(8_000))),
        Input::bomb("initializers", message(7, &message(5, &[]).repeat(8_000))),
        // A deprecated protobuf group that is opened repeatedly and never closed.
        Input::bomb("groups", varint(99 << 3 | 3).repeat(5000)),
    ]
}

/// Returns a graph with a node for each kind of attribute and with every form of constant.
fn sample() -> Graph {
    let mut b = Builder::new("sample", &[("", 20), ("com.microsoft", 1)]);
    let x = b.input("x", DType::F32, &["batch".into(), 4usize.into()]);
    let w = b.external("w", DType::U8, &[4, 2], External { file: "m.data", offset: 64, length: 8 });
    let shape = b.ints(&[2], &[-1, 4]);
    let two = b.scalar(2.0);
    let y = b.op("/a", "Reshape", &[&x, &shape]);
    let y = b.op("/b", "Mul", &[&y, &two]);
    let attributes = [
        ("bits", Attribute::Int(8)),
        ("eps", 1e-5f32.into()),
        ("perm", [0, 2, 1].into()),
        ("mode", Attribute::String("s".into())),
        ("scales", Attribute::Floats(vec![0.5, 2.0])),
    ];
    let inputs = [y.as_str(), "", w.as_str()];
    let spec =
        NodeSpec { name: "/c/N", op: "N", domain: "com.microsoft", inputs: &inputs, attributes: &attributes };
    let z = b.node(spec);
    b.output(&z, DType::F32, &["batch".into()]);
    let mut graph = b.finish();
    graph.metadata.push(("k".to_owned(), "v".to_owned()));
    graph
}

fn with(change: impl FnOnce(&mut Graph)) -> Vec<u8> {
    let mut graph = sample();
    change(&mut graph);
    graph.encode()
}

/// Encodes a number as a varint of protobuf.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Encodes the key of a length-delimited field.
fn field(number: u64) -> Vec<u8> {
    varint(number << 3 | 2)
}

fn message(number: u64, bytes: &[u8]) -> Vec<u8> {
    [&field(number)[..], &varint(bytes.len() as u64), bytes].concat()
}
