//! The graphs that `narthex check --fix` writes compute the same as the originals, on ONNX Runtime's own kernels.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{collections::BTreeMap, fs, path::Path, sync::OnceLock};

use narthex_check::{CheckOptions, fix, write};
use narthex_device::runtime::disable_telemetry;
use narthex_graph::onnx::files;
use narthex_graph::{
    Attribute, Builder, Graph,
    build::{External, NodeSpec},
    graph::MICROSOFT,
};
use narthex_spec::{DType, dtype::Dim};
use ort::{
    environment::Environment,
    session::{Session, SessionInputValue, builder::GraphOptimizationLevel},
    value::Tensor,
};
use support::library;

/// Returns pseudo-random numbers between -1 and 1.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A graph under construction, and the file of its weights.
struct Model {
    b: Builder,
    data: Vec<u8>,
    inputs: Vec<(String, DType, Vec<usize>)>,
}

impl Model {
    fn new() -> Self {
        Self { b: Builder::new("g", &[("", 23), (MICROSOFT, 1)]), data: Vec::new(), inputs: Vec::new() }
    }

    fn input(&mut self, name: &str, dtype: DType, shape: &[usize]) -> String {
        self.inputs.push((name.to_owned(), dtype, shape.to_vec()));
        let dims: Vec<Dim> = shape.iter().map(|&extent| Dim::Fixed(extent as u64)).collect();
        self.b.input(name, dtype, &dims)
    }

    fn weight(&mut self, name: &str, dtype: DType, shape: &[usize], bytes: &[u8]) -> String {
        let at = External { file: "w.data", offset: self.data.len() as u64, length: bytes.len() as u64 };
        self.data.extend(bytes);
        self.b.external(name, dtype, shape, at)
    }

    fn floats(&mut self, name: &str, shape: &[usize]) -> String {
        let values = numbers(name.len() as u64 + 1, shape.iter().product());
        self.weight(name, DType::F32, shape, &bytes(&values))
    }

    fn contributed(&mut self, op: &str, inputs: &[&str], attributes: &[(&str, Attribute)]) -> String {
        let name = format!("/layers.0/{op}");
        self.b.node(NodeSpec { name: &name, op, domain: MICROSOFT, inputs, attributes })
    }
}

/// Returns an environment of ONNX Runtime without the product's restriction to one device.
fn environment() -> &'static Environment {
    static LOADED: OnceLock<Environment> = OnceLock::new();
    LOADED.get_or_init(|| {
        disable_telemetry();
        ort::init_from(library()).unwrap().with_telemetry(false).build().unwrap()
    })
}

/// Returns the outputs of a graph on the CPU for pseudo-random inputs.
fn run(path: &Path, inputs: &[(String, DType, Vec<usize>)]) -> Vec<Vec<f32>> {
    let mut session = Session::builder(environment())
        .unwrap()
        .with_optimization_level(GraphOptimizationLevel::Disable)
        .unwrap()
        .commit_from_file(path)
        .unwrap();
    let values: Vec<(String, SessionInputValue<'_>)> = inputs
        .iter()
        .enumerate()
        .map(|(index, (name, dtype, shape))| {
            let values = numbers(index as u64 + 40, shape.iter().product());
            let value: SessionInputValue<'_> = match dtype {
                DType::Bool => {
                    let values: Vec<bool> = values.iter().map(|value| *value > -0.5).collect();
                    Tensor::from_array((shape.clone(), values)).unwrap().into()
                }
                _ => Tensor::from_array((shape.clone(), values)).unwrap().into(),
            };
            (name.clone(), value)
        })
        .collect();
    let outputs = session.run(values).unwrap();
    outputs.values().map(|value| value.try_extract_tensor::<f32>().unwrap().1.to_vec()).collect()
}

/// Writes a model, fixes it, and compares the outputs of both.
fn check(model: Model, outputs: &[(&str, &[usize])], change: &str, bound: f32) {
    let Model { mut b, data, inputs } = model;
    for (name, shape) in outputs {
        let dims: Vec<Dim> = shape.iter().map(|&extent| Dim::Fixed(extent as u64)).collect();
        b.output(name, DType::F32, &dims);
    }
    let graph: Graph = b.finish();
    graph.check().unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("w.data"), data).unwrap();
    let path = folder.path().join("model.onnx");
    fs::write(&path, graph.encode()).unwrap();
    let options = CheckOptions { target: "qnn:x-elite".parse().unwrap(), extents: BTreeMap::new() };
    let (fixed, changes) = fix::fixed(&files::open(&path).unwrap(), &options).unwrap();
    assert_eq!(changes, [change]);
    let out = folder.path().join("out");
    write::write(&fixed, &out).unwrap();
    let (before, after) = (run(&path, &inputs), run(&out.join("model.onnx"), &inputs));
    assert_eq!(before.len(), outputs.len());
    for ((one, other), (name, _)) in before.iter().zip(&after).zip(outputs) {
        let far = one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far <= bound, "{change}: {name} is {far} away");
        let spread =
            one.iter().copied().fold(f32::MIN, f32::max) - one.iter().copied().fold(f32::MAX, f32::min);
        assert!(spread > 0.1, "{change}: {name} says nothing");
    }
}

#[test]
fn a_skip_norm_and_its_sum() {
    for bias in [false, true] {
        let mut m = Model::new();
        let (x, skip) = (m.input("x", DType::F32, &[1, 4, 16]), m.input("skip", DType::F32, &[1, 4, 16]));
        let gain = m.floats("gain", &[16]);
        let mut inputs = vec![x, skip, gain];
        if bias {
            inputs.push(m.floats("shift", &[16]));
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let spec = NodeSpec {
            name: "/norm",
            op: "SkipSimplifiedLayerNormalization",
            domain: MICROSOFT,
            inputs: &inputs,
            attributes: &[("epsilon", 1e-5f32.into())],
        };
        m.b.node_to(spec, &["y", "", "", "sum"]);
        let change = "replace SkipSimplifiedLayerNormalization with Add and SimplifiedLayerNormalization";
        check(m, &[("y", &[1, 4, 16]), ("sum", &[1, 4, 16])], change, 1e-5);
    }
}

#[test]
fn a_skip_norm_with_mean_and_bias() {
    let mut m = Model::new();
    let (x, skip) = (m.input("x", DType::F32, &[1, 4, 16]), m.input("skip", DType::F32, &[1, 4, 16]));
    let (gain, beta, bias) = (m.floats("gain", &[16]), m.floats("beta0", &[16]), m.floats("bias01", &[16]));
    let y = m.contributed(
        "SkipLayerNormalization",
        &[&x, &skip, &gain, &beta, &bias],
        &[("epsilon", 1e-5f32.into())],
    );
    check(m, &[(&y, &[1, 4, 16])], "replace SkipLayerNormalization with Add and LayerNormalization", 1e-5);
}

#[test]
fn a_flat_product() {
    for (shape, back, bias) in [
        (&[4, 64][..], &[4, 16][..], false),
        (&[2, 2, 3, 64], &[2, 2, 3, 16], true),
        (&[1, 4, 64], &[1, 4, 16], true),
    ] {
        let mut m = Model::new();
        let x = m.input("x", DType::F32, shape);
        let quants: Vec<u8> = (0..16 * 2 * 16).map(|i: u32| (i.wrapping_mul(37) >> 2) as u8).collect();
        let quants = m.weight("quants", DType::U8, &[16, 2, 16], &quants);
        let scales = m.floats("scales", &[16, 2]);
        let bias_name = if bias { m.floats("bias", &[16]) } else { String::new() };
        let mut inputs = vec![&*x, &*quants, &*scales];
        if bias {
            inputs.extend(["", "", &*bias_name]);
        }
        let attributes = [
            ("K", 64usize.into()),
            ("N", 16usize.into()),
            ("bits", 4usize.into()),
            ("block_size", 32usize.into()),
        ];
        let y = m.contributed("MatMulNBits", &inputs, &attributes);
        let change =
            if shape.len() == 3 { "add MatMulNBits's bias with Add" } else { "reshape around MatMulNBits" };
        check(m, &[(&y, back)], change, 1e-4);
    }
}

#[test]
fn a_boolean_mask() {
    let mut m = Model::new();
    let [q, k, v] = ["q", "k", "v"].map(|name| m.input(name, DType::F32, &[1, 2, 6, 16]));
    let mask = m.input("mask", DType::Bool, &[1, 1, 6, 6]);
    let y = m.b.op("/attn", "Attention", &[&q, &k, &v, &mask]);
    check(m, &[(&y, &[1, 2, 6, 16])], "convert a boolean mask to numbers", 1e-5);
}

#[test]
fn activations() {
    let mut m = Model::new();
    let (x, bias) = (m.input("x", DType::F32, &[1, 4, 16]), m.floats("bias", &[16]));
    let y = m.contributed("BiasGelu", &[&x, &bias], &[]);
    check(m, &[(&y, &[1, 4, 16])], "replace BiasGelu with Add and Gelu", 1e-5);
    let mut m = Model::new();
    let x = m.input("x", DType::F32, &[1, 4, 16]);
    let y = m.contributed("FastGelu", &[&x], &[]);
    check(m, &[(&y, &[1, 4, 16])], "replace FastGelu with Gelu", 1e-5);
}

#[test]
fn picked_elements() {
    let mut m = Model::new();
    let mask = m.input("mask", DType::Bool, &[2, 6]);
    let (seen, hidden) = (m.input("seen", DType::F32, &[1, 2, 3]), m.input("hidden", DType::F32, &[1, 2, 3]));
    // Negative indices count from the end.
    let places: [i64; 12] = [0, 0, 1, 5, -1, -6, 0, 3, -2, 2, 1, -1];
    let bytes: Vec<u8> = places.iter().flat_map(|place| place.to_le_bytes()).collect();
    let places = m.weight("places", DType::I64, &[1, 2, 3, 2], &bytes);
    let picked = m.b.op("/mask", "GatherND", &[&mask, &places]);
    let y = m.b.op("/mask", "Where", &[&picked, &seen, &hidden]);
    check(m, &[(&y, &[1, 2, 3])], "select elements with Gather instead of GatherND", 0.0);
}

#[test]
fn a_norm_that_breaks_the_compiler() {
    let mut m = Model::new();
    let x = m.input("x", DType::F32, &[1, 4, 16]);
    let weight = m.floats("weight", &[16]);
    let (two, tiny, axis) = (m.b.scalar(2.0), m.b.scalar(1e-6), m.b.ints(&[1], &[-1]));
    let square = m.b.op("/norm", "Pow", &[&x, &two]);
    let mean = m.b.op("/norm", "ReduceMean", &[&square, &axis]);
    let shifted = m.b.op("/norm", "Add", &[&mean, &tiny]);
    let root = m.b.op("/norm", "Sqrt", &[&shifted]);
    let scale = m.b.op("/norm", "Reciprocal", &[&root]);
    let scaled = m.b.op("/norm", "Mul", &[&x, &scale]);
    let y = m.b.op("/norm/weight", "Mul", &[&weight, &scaled]);
    check(m, &[(&y, &[1, 4, 16])], "make a norm's weight the second operand", 0.0);
}
