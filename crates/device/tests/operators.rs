//! Operators of Narthex against those of ONNX Runtime that they replace, in real sessions.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::fs;

use half::f16;
use narthex_device::single_run::{CpuOperators, CpuRun, run_with};
use narthex_graph::{Attribute, Builder, Bytes, Graph, Initializer, InitializerData, Node, graph::MICROSOFT};
use narthex_spec::{DType, Elements, Feed, Fetch, Scheme};
use support::{Package, runtime};

/// A sequence of pseudorandom numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.next() >> 32) as u8).collect()
    }

    /// A number from -1 to 1.
    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// Storage of a product's weights.
#[derive(Debug, Clone, Copy)]
struct Storage {
    bits: usize,
    block: usize,
    zeros: bool,
    bias: bool,
    half_scales: bool,
}

/// A product `[rows, inputs]` by `[outputs, inputs]`.
#[derive(Debug, Clone, Copy)]
struct Product {
    rows: usize,
    inputs: usize,
    outputs: usize,
    storage: Storage,
}

fn constant(graph: &mut Graph, name: &str, dtype: DType, shape: &[usize], bytes: Vec<u8>) {
    let data = InitializerData::Inline(Bytes::from(bytes));
    graph.initializers.push(Initializer {
        name: name.into(),
        dtype: dtype.into(),
        shape: shape.into(),
        data,
    });
}

fn floats_to_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Adds a `MatMulNBits` of `x` called `name`, whose value has this name too.
fn add_product(graph: &mut Graph, random: &mut Random, x: &str, name: &str, product: Product) {
    let Product { inputs, outputs, storage: Storage { bits, block, zeros, bias, half_scales }, .. } = product;
    let blocks = inputs.div_ceil(block);
    let named = |part: &str| format!("{name}.{part}");
    let quants = random.bytes(outputs * blocks * block * bits / 8);
    constant(graph, &named("quants"), DType::U8, &[outputs, blocks, block * bits / 8], quants);
    let scales: Vec<f32> = (0..outputs * blocks).map(|_| 0.01 + 0.01 * random.float().abs()).collect();
    let mut operands = vec![x.to_owned(), named("quants"), named("scales")];
    if half_scales {
        let half = scales.iter().flat_map(|&scale| f16::from_f32(scale).to_le_bytes()).collect();
        constant(graph, &named("half"), DType::F16, &[outputs, blocks], half);
        graph.nodes.push(Node {
            name: named("cast"),
            op: "Cast".into(),
            domain: String::new(),
            inputs: vec![named("half")],
            outputs: vec![named("scales")],
            attributes: vec![("to".into(), Attribute::Int(1))],
        });
    } else {
        constant(graph, &named("scales"), DType::F32, &[outputs, blocks], floats_to_bytes(&scales));
    }
    if zeros {
        let row = (blocks * bits).div_ceil(8);
        let zeros = random.bytes(outputs * row);
        constant(graph, &named("zeros"), DType::U8, &[outputs, row], zeros);
    }
    operands.push(if zeros { named("zeros") } else { String::new() });
    operands.push(String::new());
    if bias {
        let bias = random.floats(outputs);
        constant(graph, &named("bias"), DType::F32, &[outputs], floats_to_bytes(&bias));
    }
    operands.push(if bias { named("bias") } else { String::new() });
    let ints = [("K", inputs), ("N", outputs), ("bits", bits), ("block_size", block), ("accuracy_level", 4)];
    graph.nodes.push(Node {
        name: name.into(),
        op: "MatMulNBits".into(),
        domain: MICROSOFT.into(),
        inputs: operands,
        outputs: vec![name.into()],
        attributes: ints.map(|(key, value)| (key.to_owned(), Attribute::from(value))).to_vec(),
    });
}

/// The outputs of a graph of one input `x` with the operators of ONNX Runtime and with those of Narthex.
fn run_both(graph: &Graph, x: &[f32], shape: &[usize], outputs: &[Fetch]) -> [Vec<Vec<f32>>; 2] {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("graph.onnx");
    fs::write(&file, graph.encode()).unwrap();
    [CpuOperators::OnnxRuntime, CpuOperators::Narthex].map(|operators| {
        let feed = Feed { name: "x".into(), shape: shape.to_vec(), elements: Elements::F32(x.to_vec()) };
        run_with(runtime(), &file, CpuRun { threads: 2, operators }, vec![feed], outputs).unwrap()
    })
}

/// Fails where two outputs differ by more than a share of their greatest magnitude.
fn assert_close(expected: &[f32], found: &[f32], share: f32, of: &dyn std::fmt::Debug) {
    let peak = expected.iter().fold(0f32, |peak, x| peak.max(x.abs()));
    let furthest = expected.iter().zip(found).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(furthest <= share * peak, "{furthest} of {peak} apart: {of:?}");
    assert!(peak > 0.0 && found.iter().all(|x| x.is_finite()), "{of:?}");
}

#[test]
fn products_are_those_of_onnx_runtime() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let plain = Storage { bits: 4, block: 32, zeros: false, bias: false, half_scales: true };
    let check = |random: &mut Random, rows: usize, inputs: usize, outputs: usize, storage: Storage| {
        let product = Product { rows, inputs, outputs, storage };
        let mut b = Builder::new("g", &[("", 21), (MICROSOFT, 1)]);
        b.input("x", DType::F32, &["rows".into(), inputs.into()]);
        b.output("y", DType::F32, &["rows".into(), outputs.into()]);
        let mut graph = b.finish();
        add_product(&mut graph, random, "x", "y", product);
        let x = random.floats(product.rows * inputs);
        let fetch = [Fetch { name: "y".into(), shape: vec![rows, outputs] }];
        let [expected, found] = run_both(&graph, &x, &[rows, inputs], &fetch);
        assert_close(&expected[0], &found[0], 0.003, &product);
    };
    for bits in [4, 8] {
        for (rows, inputs, outputs) in [
            (1, 64, 48),
            (1, 576, 1000),
            (2, 40, 33),
            (3, 96, 5),
            (13, 200, 100),
            (61, 33, 17),
            (200, 64, 70),
        ] {
            check(&mut random, rows, inputs, outputs, Storage { bits, ..plain });
        }
        for block in [16, 64, 128] {
            check(&mut random, 5, 300, 50, Storage { bits, block, ..plain });
        }
        check(&mut random, 7, 100, 40, Storage { bits, zeros: true, ..plain });
        check(&mut random, 100, 100, 40, Storage { bits, bias: true, half_scales: false, ..plain });
        check(&mut random, 1, 100, 40, Storage { bits, zeros: true, bias: true, ..plain });
    }
}

/// A node of ONNX that makes the value of its name.
fn add_node(graph: &mut Graph, name: &str, op: &str, inputs: &[&str]) {
    graph.nodes.push(Node {
        name: name.into(),
        op: op.into(),
        domain: String::new(),
        inputs: inputs.iter().map(|&input| input.to_owned()).collect(),
        outputs: vec![name.into()],
        attributes: Vec::new(),
    });
}

#[test]
fn gated_networks_are_those_of_onnx_runtime() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let check = |random: &mut Random, rows: usize, width: usize, hidden: usize, bits: usize| {
        let storage = Storage { bits, block: 32, zeros: true, bias: false, half_scales: true };
        let mut b = Builder::new("g", &[("", 21), (MICROSOFT, 1)]);
        b.input("x", DType::F32, &["rows".into(), width.into()]);
        b.output("y", DType::F32, &["rows".into(), width.into()]);
        let mut graph = b.finish();
        let into = Product { rows, inputs: width, outputs: hidden, storage };
        add_product(&mut graph, random, "x", "gate", into);
        add_product(
            &mut graph,
            random,
            "x",
            "up",
            Product { storage: Storage { bias: true, ..storage }, ..into },
        );
        add_node(&mut graph, "sigmoid", "Sigmoid", &["gate"]);
        add_node(&mut graph, "silu", "Mul", &["gate", "sigmoid"]);
        add_node(&mut graph, "hidden", "Mul", &["up", "silu"]);
        add_product(&mut graph, random, "hidden", "y", Product { inputs: hidden, outputs: width, ..into });
        let x = random.floats(into.rows * width);
        let fetch = [Fetch { name: "y".into(), shape: vec![rows, width] }];
        let [expected, found] = run_both(&graph, &x, &[rows, width], &fetch);
        assert_close(&expected[0], &found[0], 0.01, &into);
    };
    for bits in [4, 8] {
        for (rows, width, hidden) in [(1, 96, 300), (3, 33, 50), (20, 64, 700), (130, 40, 530)] {
            check(&mut random, rows, width, hidden, bits);
        }
    }
}

#[test]
fn decoders_run_on_operators_of_narthex() {
    for scheme in [Scheme::W4, Scheme::W8] {
        let package = Package::llama(scheme);
        let placements = package.executor().placements();
        let count = |op: &str| {
            placements.iter().flat_map(|graph| &graph.placement.nodes).filter(|node| node.op == op).count()
        };
        let layers = package.manifest.graphs[0].kv.len();
        // Queries, keys and values, the output of attention, and the head.
        assert_eq!((count("Linear"), count("GatedMlp")), (2 * layers + 1, layers), "{scheme:?}");
        assert_eq!((count("MatMulNBits"), count("Sigmoid")), (0, 0), "{scheme:?}");
    }
}
