//! Operators of Narthex compared with the operators of ONNX Runtime that they replace, in real sessions.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;

use half::f16;
use narthex_device::single_run::{CpuOperators, CpuRun, run_with};
use narthex_graph::{Attribute, Builder, Bytes, Graph, Initializer, InitializerData, Node, graph::MICROSOFT};
use narthex_spec::{DType, Elements, Feed, Fetch, KvPrecision, Scheme};

use crate::support::{Package, runtime};

/// A generator of pseudo-random numbers.
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

    /// Returns a number from -1 to 1.
    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// Storage format of a product's weights.
#[derive(Debug, Clone, Copy)]
struct Storage {
    bits: usize,
    block: usize,
    zeros: bool,
    bias: bool,
    half_scales: bool,
    /// The blocks have offsets.
    offsets: bool,
}

/// A product of `[rows, inputs]` by `[outputs, inputs]`.
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

/// Adds a `MatMulNBits` of `x`. The node and its output are called `name`, unless the blocks have offsets: then the sum of
/// the product and the offsets' part is called so.
fn add_product(graph: &mut Graph, random: &mut Random, x: &str, name: &str, product: Product) {
    if product.storage.offsets {
        let storage = Storage { offsets: false, ..product.storage };
        let alone = format!("{name}.product");
        add_product(graph, random, x, &alone, Product { storage, ..product });
        return add_offsets(graph, random, [x, &alone, name], product);
    }
    let Product { inputs, outputs, storage, .. } = product;
    let Storage { bits, block, zeros, bias, half_scales, .. } = storage;
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

/// Adds the sums of the blocks of `x`, multiplied by offsets, to the value `alone`. The sum is called `name`.
fn add_offsets(graph: &mut Graph, random: &mut Random, [x, alone, name]: [&str; 3], product: Product) {
    let Product { inputs, outputs, storage: Storage { block, .. }, .. } = product;
    let blocks = inputs / block;
    let named = |part: &str| format!("{name}.{part}");
    let offsets =
        random.floats(blocks * outputs).iter().flat_map(|&x| f16::from_f32(0.05 * x).to_le_bytes()).collect();
    constant(graph, &named("half_offsets"), DType::F16, &[blocks, outputs], offsets);
    let ints = |values: &[i64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    constant(graph, &named("shape"), DType::I64, &[3], ints(&[0, blocks as i64, block as i64]));
    constant(graph, &named("axis"), DType::I64, &[1], ints(&[-1]));
    add_node(graph, &named("offsets"), "Cast", &[&named("half_offsets")]);
    graph.nodes.last_mut().unwrap().attributes.push(("to".into(), Attribute::Int(1)));
    add_node(graph, &named("blocks"), "Reshape", &[x, &named("shape")]);
    add_node(graph, &named("sums"), "ReduceSum", &[&named("blocks"), &named("axis")]);
    graph.nodes.last_mut().unwrap().attributes.push(("keepdims".into(), Attribute::Int(0)));
    add_node(graph, &named("part"), "MatMul", &[&named("sums"), &named("offsets")]);
    add_node(graph, name, "Add", &[alone, &named("part")]);
}

/// Returns a single-precision input.
fn feed(name: &str, shape: &[usize], values: Vec<f32>) -> Feed {
    Feed { name: name.into(), shape: shape.to_vec(), elements: Elements::F32(values) }
}

/// Returns the outputs of a graph with the operators of ONNX Runtime and with those of Narthex.
fn run_both(graph: &Graph, feeds: &[Feed], outputs: &[Fetch]) -> [Vec<Vec<f32>>; 2] {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("graph.onnx");
    fs::write(&file, graph.encode()).unwrap();
    [CpuOperators::OnnxRuntime, CpuOperators::Narthex].map(|operators| {
        run_with(runtime(), &file, CpuRun { threads: 2, operators }, feeds.to_vec(), outputs).unwrap()
    })
}

/// Fails if two outputs differ by more than the share `share` of their greatest magnitude.
fn assert_close(expected: &[f32], found: &[f32], share: f32, of: &dyn std::fmt::Debug) {
    let peak = expected.iter().fold(0f32, |peak, x| peak.max(x.abs()));
    let furthest = expected.iter().zip(found).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(furthest <= share * peak, "{furthest} of {peak} apart: {of:?}");
    assert!(peak > 0.0 && found.iter().all(|x| x.is_finite()), "{of:?}");
}

#[test]
fn products_are_those_of_onnx_runtime() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let plain = Storage { bits: 4, block: 32, zeros: false, bias: false, half_scales: true, offsets: false };
    let check = |random: &mut Random, rows: usize, inputs: usize, outputs: usize, storage: Storage| {
        let product = Product { rows, inputs, outputs, storage };
        let mut b = Builder::new("g", &[("", 21), (MICROSOFT, 1)]);
        b.input("x", DType::F32, &["rows".into(), inputs.into()]);
        b.output("y", DType::F32, &["rows".into(), outputs.into()]);
        let mut graph = b.finish();
        add_product(&mut graph, random, "x", "y", product);
        let x = random.floats(product.rows * inputs);
        let fetch = [Fetch { name: "y".into(), shape: vec![rows, outputs] }];
        let [expected, found] = run_both(&graph, &[feed("x", &[rows, inputs], x)], &fetch);
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
        for rows in [1, 5, 20, 64, 200] {
            check(&mut random, rows, 96, 50, Storage { bits, bias: rows == 5, offsets: true, ..plain });
        }
    }
}

#[test]
fn concatenated_products_are_those_of_onnx_runtime() {
    let mut random = Random(0x6a09_e667_f3bc_c908);
    let plain = Storage { bits: 4, block: 32, zeros: false, bias: false, half_scales: true, offsets: false };
    let storages = [
        plain,
        Storage { offsets: true, bias: true, ..plain },
        Storage { bits: 8, zeros: true, bias: true, ..plain },
    ];
    // The second width is not a whole number of tiles, so these products stay separate.
    for widths in [[64, 32, 19], [64, 19, 32]] {
        for (rows, norm) in [(1, false), (1, true), (9, true), (70, false), (150, true)] {
            let inputs = 96;
            let outputs: usize = widths.iter().sum();
            let mut b = Builder::new("g", &[("", 21), (MICROSOFT, 1)]);
            b.input("x", DType::F32, &["rows".into(), inputs.into()]);
            b.output("y", DType::F32, &["rows".into(), outputs.into()]);
            let mut graph = b.finish();
            let x = if norm { "normed" } else { "x" };
            if norm {
                add_node(&mut graph, "branch", "Sigmoid", &["x"]);
                constant(&mut graph, "gain", DType::F32, &[inputs], floats_to_bytes(&random.floats(inputs)));
                graph.nodes.push(Node {
                    name: "norm".into(),
                    op: "SkipSimplifiedLayerNormalization".into(),
                    domain: MICROSOFT.into(),
                    inputs: ["x", "branch", "gain"].map(str::to_owned).to_vec(),
                    outputs: vec![x.to_owned()],
                    attributes: vec![("epsilon".into(), Attribute::Float(1e-3))],
                });
            }
            let names = ["q", "k", "v"];
            for ((name, outputs), storage) in names.into_iter().zip(widths).zip(storages) {
                add_product(&mut graph, &mut random, x, name, Product { rows, inputs, outputs, storage });
            }
            add_node(&mut graph, "y", "Concat", &names);
            graph.nodes.last_mut().unwrap().attributes.push(("axis".into(), Attribute::Int(-1)));
            let fetch = [Fetch { name: "y".into(), shape: vec![rows, outputs] }];
            let feeds = [feed("x", &[rows, inputs], random.floats(rows * inputs))];
            let [expected, found] = run_both(&graph, &feeds, &fetch);
            assert_close(&expected[0], &found[0], 0.01, &(rows, norm, widths));
        }
    }
}

/// Adds a node of standard ONNX. The node and its output are called `name`.
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
        let storage = Storage {
            bits,
            block: 32,
            zeros: true,
            bias: false,
            half_scales: true,
            offsets: bits == 4 && width.is_multiple_of(32) && hidden.is_multiple_of(32),
        };
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
        let [expected, found] = run_both(&graph, &[feed("x", &[rows, width], x)], &fetch);
        assert_close(&expected[0], &found[0], 0.01, &into);
    };
    for bits in [4, 8] {
        for (rows, width, hidden) in [(1, 96, 300), (3, 33, 50), (20, 64, 704), (130, 40, 530)] {
            check(&mut random, rows, width, hidden, bits);
        }
    }
}

/// Adds the weights `[count, rows, cols]` of all experts in one projection, and returns their names: integers, scales and
/// zero points.
fn add_experts(
    graph: &mut Graph,
    random: &mut Random,
    name: &str,
    [count, rows, cols]: [usize; 3],
    (bits, block): (usize, usize),
) -> [String; 3] {
    let names = ["quants", "scales", "zeros"].map(|part| format!("{name}.{part}"));
    let half = format!("{name}.half");
    let blocks = cols / block;
    let quants = random.bytes(count * rows * cols * bits / 8);
    constant(graph, &names[0], DType::U8, &[count, rows, cols * bits / 8], quants);
    let scales = (0..count * rows * blocks).map(|_| 0.01 + 0.01 * random.float().abs());
    let scales = scales.flat_map(|scale| f16::from_f32(scale / bits as f32).to_le_bytes()).collect();
    constant(graph, &half, DType::F16, &[count, rows, blocks], scales);
    add_node(graph, &names[1], "Cast", &[&half]);
    graph.nodes.last_mut().unwrap().attributes.push(("to".into(), Attribute::Int(1)));
    let row = (blocks * bits).div_ceil(8);
    constant(graph, &names[2], DType::U8, &[count, rows, row], random.bytes(count * rows * row));
    names
}

/// Returns a mixture of experts over rows of `width` elements. Those in 8 bits have biases and bounds.
fn mixture(
    random: &mut Random,
    count: usize,
    per_token: usize,
    [width, inner]: [usize; 2],
    bits: usize,
) -> Graph {
    let mut b = Builder::new("g", &[("", 21), (MICROSOFT, 1)]);
    b.input("x", DType::F32, &["rows".into(), width.into()]);
    b.input("logits", DType::F32, &["rows".into(), count.into()]);
    b.output("y", DType::F32, &["rows".into(), width.into()]);
    let mut graph = b.finish();
    let form = (bits, 32);
    let [gate_up, scales, zeros] =
        add_experts(&mut graph, random, "gate_up", [count, 2 * inner, width], form);
    let [down, down_scales, down_zeros] =
        add_experts(&mut graph, random, "down", [count, width, inner], form);
    let has_more = bits == 8;
    if has_more {
        for (name, rows) in [("gate_up.bias", 2 * inner), ("down.bias", width)] {
            let bias = floats_to_bytes(&random.floats(count * rows));
            constant(&mut graph, name, DType::F32, &[count, rows], bias);
        }
    }
    let [bias, down_bias] = if has_more { ["gate_up.bias", "down.bias"] } else { [""; 2] };
    let inputs = ["x", "logits", &gate_up, &scales, bias, &down, &down_scales, down_bias];
    let inputs = inputs.into_iter().chain(["", "", "", &zeros, &down_zeros]);
    let ints = [
        ("k", per_token),
        ("swiglu_fusion", 1),
        ("normalize_routing_weights", 1),
        ("expert_weight_bits", bits),
        ("block_size", 32),
        ("accuracy_level", 4),
    ];
    let mut attributes = ints.map(|(key, value)| (key.to_owned(), Attribute::from(value))).to_vec();
    attributes.push(("activation_type".to_owned(), Attribute::String("swiglu".to_owned())));
    let floats: &[(&str, f32)] = if has_more {
        &[("activation_alpha", 1.702), ("activation_beta", 1.0), ("swiglu_limit", 0.5)]
    } else {
        &[("activation_alpha", 1.0)]
    };
    attributes.extend(floats.iter().map(|&(name, value)| (name.to_owned(), Attribute::Float(value))));
    graph.nodes.push(Node {
        name: "y".into(),
        op: "QMoE".into(),
        domain: MICROSOFT.into(),
        inputs: inputs.map(str::to_owned).collect(),
        outputs: vec!["y".into()],
        attributes,
    });
    graph
}

#[test]
fn experts_are_those_of_onnx_runtime() {
    let mut random = Random(0x1234_5678_9abc_def1);
    for bits in [4, 8] {
        for (rows, count, per_token, widths) in
            [(1, 8, 2, [64, 96]), (3, 40, 8, [96, 64]), (20, 4, 1, [64, 320]), (300, 6, 3, [128, 64])]
        {
            let [width, _] = widths;
            let graph = mixture(&mut random, count, per_token, widths, bits);
            let fetch = [Fetch { name: "y".into(), shape: vec![rows, width] }];
            let x = random.floats(rows * width);
            let logits: Vec<f32> = (0..rows * count).map(|_| 4.0 * random.float()).collect();
            let feeds = |rows: usize| {
                let part =
                    |name, values: &[f32], width| feed(name, &[rows, width], values[..rows * width].to_vec());
                [part("x", &x, width), part("logits", &logits, count)]
            };
            let [expected, found] = run_both(&graph, &feeds(rows), &fetch);
            assert_close(&expected[0], &found[0], 0.01, &(bits, rows, count, widths));

            // A row gives the same bits alone, when its columns are divided between threads.
            let alone = [Fetch { name: "y".into(), shape: vec![1, width] }];
            let [_, alone] = run_both(&graph, &feeds(1), &alone);
            assert!(alone[0][..] == found[0][..width], "{bits} bits, {rows} rows");
        }
    }
}

#[test]
fn layers_and_norms_after_them_are_those_of_onnx_runtime() {
    let mut random = Random(0x1357_9bdf_0246_8ace);
    let storage = Storage { bits: 8, block: 32, zeros: true, bias: true, half_scales: true, offsets: false };
    // A layer alone, or two with an activation function between them.
    let functions =
        [None, Some(("Gelu", "none")), Some(("Gelu", "tanh")), Some(("Relu", "")), Some(("Tanh", ""))];
    for (rows, width, inner) in [(1, 64, 96), (7, 40, 300), (60, 33, 530), (200, 48, 64)] {
        for function in functions {
            let mut b = Builder::new("g", &[("", 21), (MICROSOFT, 1)]);
            b.input("x", DType::F32, &["rows".into(), width.into()]);
            b.output("y", DType::F32, &["rows".into(), width.into()]);
            let mut graph = b.finish();
            add_node(&mut graph, "residual", "Sigmoid", &["x"]);
            let into = Product { rows, inputs: width, outputs: inner, storage };
            let down = Product { outputs: width, ..into };
            match function {
                Some((op, approximate)) => {
                    add_product(&mut graph, &mut random, "x", "up", into);
                    add_node(&mut graph, "hidden", op, &["up"]);
                    if let (Some(node), "Gelu") = (graph.nodes.last_mut(), op) {
                        node.attributes.push(("approximate".into(), Attribute::String(approximate.into())));
                    }
                    add_product(&mut graph, &mut random, "hidden", "down", Product { inputs: inner, ..down });
                }
                None => add_product(&mut graph, &mut random, "x", "down", down),
            }
            for name in ["gain", "bias"] {
                constant(&mut graph, name, DType::F32, &[width], floats_to_bytes(&random.floats(width)));
            }
            graph.nodes.push(Node {
                name: "norm".into(),
                op: "SkipLayerNormalization".into(),
                domain: MICROSOFT.into(),
                inputs: ["residual", "down", "gain", "bias"].map(str::to_owned).to_vec(),
                outputs: vec!["y".into()],
                attributes: vec![("epsilon".into(), Attribute::Float(1e-3))],
            });
            let x = random.floats(rows * width);
            let fetch = [Fetch { name: "y".into(), shape: vec![rows, width] }];
            let [expected, found] = run_both(&graph, &[feed("x", &[rows, width], x)], &fetch);
            assert_close(&expected[0], &found[0], 0.01, &(rows, width, function));
        }
    }
}

#[test]
fn norms_of_sums_become_parts_of_products() {
    let mut random = Random(0x0f1e_2d3c_4b5a_6978);
    let storage =
        Storage { bits: 8, block: 32, zeros: false, bias: false, half_scales: true, offsets: false };
    for (rows, gated) in [(1, false), (1, true), (7, false), (7, true), (100, false), (100, true)] {
        let (width, hidden) = (72, 90);
        let mut b = Builder::new("g", &[("", 21), (MICROSOFT, 1)]);
        b.input("x", DType::F32, &["rows".into(), width.into()]);
        b.output("y", DType::F32, &["rows".into(), if gated { width.into() } else { hidden.into() }]);
        b.output("sum", DType::F32, &["rows".into(), width.into()]);
        let mut graph = b.finish();
        add_node(&mut graph, "branch", "Sigmoid", &["x"]);
        constant(&mut graph, "gain", DType::F32, &[width], floats_to_bytes(&random.floats(width)));
        graph.nodes.push(Node {
            name: "norm".into(),
            op: "SkipSimplifiedLayerNormalization".into(),
            domain: MICROSOFT.into(),
            inputs: ["x", "branch", "gain"].map(str::to_owned).to_vec(),
            outputs: ["normed", "", "", "sum"].map(str::to_owned).to_vec(),
            attributes: vec![("epsilon".into(), Attribute::Float(1e-3))],
        });
        let into = Product { rows, inputs: width, outputs: hidden, storage };
        if gated {
            add_product(&mut graph, &mut random, "normed", "gate", into);
            add_product(&mut graph, &mut random, "normed", "up", into);
            add_node(&mut graph, "sigmoid", "Sigmoid", &["gate"]);
            add_node(&mut graph, "silu", "Mul", &["gate", "sigmoid"]);
            add_node(&mut graph, "hidden", "Mul", &["up", "silu"]);
            let down = Product { inputs: hidden, outputs: width, ..into };
            add_product(&mut graph, &mut random, "hidden", "y", down);
        } else {
            add_product(&mut graph, &mut random, "normed", "y", into);
        }
        let columns = if gated { width } else { hidden };
        let fetch = [
            Fetch { name: "y".into(), shape: vec![rows, columns] },
            Fetch { name: "sum".into(), shape: vec![rows, width] },
        ];
        let x = feed("x", &[rows, width], random.floats(rows * width));
        let [expected, found] = run_both(&graph, &[x], &fetch);
        assert_close(&expected[0], &found[0], 0.01, &(rows, gated));
        assert_close(&expected[1], &found[1], 1e-6, &(rows, gated));
    }
}

/// A test case of attention over a cache.
#[derive(Debug, Clone)]
struct AttentionCase {
    heads: usize,
    kv_heads: usize,
    size: usize,
    /// Number of new tokens of each sequence.
    sequence: usize,
    /// Number of past tokens of each sequence.
    pasts: Vec<usize>,
    /// Number of tokens for which the past has room.
    capacity: usize,
    packed: bool,
    rotary_pairs: Option<usize>,
    sinks: bool,
    more: Vec<(&'static str, Attribute)>,
}

/// Returns a graph with one `GroupQueryAttention`.
fn attention_graph(case: &AttentionCase) -> Graph {
    let (kv_width, width) = (case.kv_heads * case.size, case.heads * case.size);
    let mut b = Builder::new("g", &[("", 21), (MICROSOFT, 1)]);
    let query = if case.packed { width + 2 * kv_width } else { width };
    b.input("query", DType::F32, &["b".into(), "s".into(), query.into()]);
    for name in ["key", "value"] {
        b.input(name, DType::F32, &["b".into(), "s".into(), kv_width.into()]);
    }
    for name in ["past_key", "past_value"] {
        let shape = ["b".into(), case.kv_heads.into(), "past".into(), case.size.into()];
        b.input(name, DType::F32, &shape);
    }
    b.input("lengths", DType::I32, &["b".into()]);
    b.input("total", DType::I32, &[]);
    for name in ["cos", "sin"] {
        b.input(name, DType::F32, &["positions".into(), "pairs".into()]);
    }
    b.input("sinks", DType::F32, &[case.heads.into()]);
    b.output("y", DType::F32, &["b".into(), "s".into(), width.into()]);
    for name in ["present_key", "present_value"] {
        let shape = ["b".into(), case.kv_heads.into(), "present".into(), case.size.into()];
        b.output(name, DType::F32, &shape);
    }
    let mut graph = b.finish();
    let named = |name: &str, is: bool| if is { name.to_owned() } else { String::new() };
    let rotates = case.rotary_pairs.is_some();
    let mut inputs = vec!["query".to_owned(), named("key", !case.packed), named("value", !case.packed)];
    inputs.extend(["past_key", "past_value", "lengths", "total"].map(str::to_owned));
    inputs.extend(["cos", "sin"].map(|name| named(name, rotates)));
    inputs.extend(["", ""].map(str::to_owned));
    inputs.push(named("sinks", case.sinks));
    let mut attributes = vec![
        ("num_heads".to_owned(), Attribute::from(case.heads)),
        ("kv_num_heads".to_owned(), case.kv_heads.into()),
        ("do_rotary".to_owned(), i64::from(rotates).into()),
        ("rotary_interleaved".to_owned(), 0i64.into()),
    ];
    attributes.extend(case.more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    graph.nodes.push(Node {
        name: "attention".into(),
        op: "GroupQueryAttention".into(),
        domain: MICROSOFT.into(),
        inputs,
        outputs: ["y", "present_key", "present_value"].map(str::to_owned).to_vec(),
        attributes,
    });
    graph
}

fn check_attention(random: &mut Random, case: &AttentionCase) {
    let (batch, sequence) = (case.pasts.len(), case.sequence);
    let total = case.pasts.iter().max().unwrap() + sequence;
    let (kv_width, width) = (case.kv_heads * case.size, case.heads * case.size);
    let query = if case.packed { width + 2 * kv_width } else { width };
    let pairs = case.rotary_pairs.unwrap_or(1);
    let mut floats = |name: &str, shape: &[usize]| feed(name, shape, random.floats(shape.iter().product()));
    let ints = |name: &str, shape: &[usize], values: Vec<i32>| Feed {
        name: name.into(),
        shape: shape.to_vec(),
        elements: Elements::I32(values),
    };
    let past = [batch, case.kv_heads, case.capacity, case.size];
    let lengths = case.pasts.iter().map(|past| (past + sequence - 1) as i32).collect();
    let feeds = [
        floats("query", &[batch, sequence, query]),
        floats("key", &[batch, sequence, kv_width]),
        floats("value", &[batch, sequence, kv_width]),
        floats("past_key", &past),
        floats("past_value", &past),
        ints("lengths", &[batch], lengths),
        ints("total", &[], vec![total as i32]),
        floats("cos", &[total, pairs]),
        floats("sin", &[total, pairs]),
        floats("sinks", &[case.heads]),
    ];
    let room = case.capacity.max(total);
    let present = vec![batch, case.kv_heads, room, case.size];
    let fetch = [
        Fetch { name: "y".into(), shape: vec![batch, sequence, width] },
        Fetch { name: "present_key".into(), shape: present.clone() },
        Fetch { name: "present_value".into(), shape: present },
    ];
    let [expected, found] = run_both(&attention_graph(case), &feeds, &fetch);
    assert_close(&expected[0], &found[0], 1e-5, case);
    for (expected, found) in expected[1..].iter().zip(&found[1..]) {
        let heads = expected.chunks(room * case.size).zip(found.chunks(room * case.size));
        for (head, (expected, found)) in heads.enumerate() {
            let held = (case.pasts[head / case.kv_heads] + sequence) * case.size;
            assert_close(&expected[..held], &found[..held], 1e-6, case);
        }
    }
}

#[test]
fn attention_is_that_of_onnx_runtime() {
    let mut random = Random(0x1234_5678_9abc_def1);
    let plain = AttentionCase {
        heads: 6,
        kv_heads: 2,
        size: 32,
        sequence: 1,
        pasts: vec![5],
        capacity: 8,
        packed: true,
        rotary_pairs: Some(16),
        sinks: false,
        more: Vec::new(),
    };
    let window = ("local_window_size", Attribute::Int(9));
    let cases = [
        plain.clone(),
        AttentionCase { pasts: vec![5, 0, 7, 2], ..plain.clone() },
        // Keys in several blocks, and more sequences than one thread writes.
        AttentionCase {
            pasts: vec![600, 255, 256],
            capacity: 700,
            size: 16,
            rotary_pairs: None,
            ..plain.clone()
        },
        AttentionCase { pasts: (0..20).collect(), capacity: 24, packed: false, ..plain.clone() },
        AttentionCase {
            pasts: vec![400],
            capacity: 512,
            heads: 14,
            more: vec![window.clone()],
            ..plain.clone()
        },
        AttentionCase {
            pasts: vec![300],
            capacity: 301,
            heads: 9,
            kv_heads: 1,
            size: 24,
            rotary_pairs: None,
            ..plain.clone()
        },
        // A first prompt, a later one, and one that exceeds the room of the past.
        AttentionCase { sequence: 70, pasts: vec![0], capacity: 128, ..plain.clone() },
        AttentionCase { sequence: 150, pasts: vec![90], capacity: 300, packed: false, ..plain.clone() },
        AttentionCase { sequence: 9, pasts: vec![0], capacity: 0, ..plain.clone() },
        AttentionCase { sequence: 2, pasts: vec![8], capacity: 8, ..plain.clone() },
        AttentionCase { sequence: 40, pasts: vec![30], capacity: 70, more: vec![window], ..plain.clone() },
        AttentionCase {
            rotary_pairs: Some(8),
            more: vec![("scale", Attribute::Float(0.3))],
            ..plain.clone()
        },
        AttentionCase {
            sequence: 6,
            more: vec![("softcap", Attribute::Float(0.2))],
            capacity: 64,
            ..plain.clone()
        },
        AttentionCase { sinks: true, pasts: vec![5, 0, 7, 2], ..plain.clone() },
        AttentionCase { sinks: true, sequence: 70, pasts: vec![0], capacity: 128, ..plain.clone() },
        AttentionCase { sinks: true, pasts: vec![600], capacity: 700, rotary_pairs: None, ..plain },
    ];
    cases.iter().for_each(|case| check_attention(&mut random, case));
}

/// Adds the norm of a residual stream and a branch. The node and its first output are called `name`.
fn add_norm(graph: &mut Graph, random: &mut Random, name: &str, sum: [&str; 2], width: usize) {
    let gain = format!("{name}.gain");
    constant(graph, &gain, DType::F32, &[width], floats_to_bytes(&random.floats(width)));
    let [stream, branch] = sum.map(str::to_owned);
    graph.nodes.push(Node {
        name: name.into(),
        op: "SkipSimplifiedLayerNormalization".into(),
        domain: MICROSOFT.into(),
        inputs: vec![stream, branch, gain],
        outputs: vec![name.into(), String::new(), String::new(), format!("{name}.sum")],
        attributes: vec![("epsilon".into(), Attribute::Float(1e-5))],
    });
}

/// Returns a decoder of two layers. If it is `divided`, a node of ONNX Runtime stands between any two operators.
fn decoder_graph(random: &mut Random, width: usize, hidden: usize, divided: bool) -> Graph {
    let [heads, kv_heads, size]: [usize; 3] = [4, 2, 16];
    let mut b = Builder::new("g", &[("", 21), (MICROSOFT, 1)]);
    b.input("x", DType::F32, &["b".into(), "s".into(), width.into()]);
    b.input("lengths", DType::I32, &["b".into()]);
    b.input("total", DType::I32, &[]);
    let parts = ["key", "value"].iter().flat_map(|kind| (0..2).map(move |layer| format!("{kind}{layer}")));
    let parts: Vec<String> = parts.collect();
    for name in parts.iter().map(|part| format!("{part}.past")) {
        b.input(&name, DType::F32, &["b".into(), kv_heads.into(), "past".into(), size.into()]);
    }
    for name in parts.iter().map(|part| format!("{part}.present")) {
        b.output(&name, DType::F32, &["b".into(), kv_heads.into(), "present".into(), size.into()]);
    }
    for name in ["y", "z"] {
        b.output(name, DType::F32, &["b".into(), "s".into(), width.into()]);
    }
    let mut graph = b.finish();
    let storage = Storage { bits: 4, block: 32, zeros: true, bias: true, half_scales: true, offsets: false };
    let product = |inputs, outputs| Product { rows: 0, inputs, outputs, storage };
    let apart = |graph: &mut Graph, name: String| {
        if !divided {
            return name;
        }
        let copy = format!("{name}.copy");
        add_node(graph, &copy, "Identity", &[&name]);
        copy
    };
    add_node(&mut graph, "branch", "Sigmoid", &["x"]);
    let (mut stream, mut branch) = ("x".to_owned(), "branch".to_owned());
    for layer in 0..2 {
        let named = |part: &str| format!("{part}{layer}");
        add_norm(&mut graph, random, &named("in"), [&stream, &branch], width);
        add_product(
            &mut graph,
            random,
            &named("in"),
            &named("qkv"),
            product(width, (heads + 2 * kv_heads) * size),
        );
        let qkv = apart(&mut graph, named("qkv"));
        let sum = apart(&mut graph, format!("{}.sum", named("in")));
        let [past, present] =
            ["past", "present"].map(|part| ["key", "value"].map(|kind| format!("{kind}{layer}.{part}")));
        let inputs = [qkv, String::new(), String::new()].into_iter().chain(past);
        let inputs = inputs.chain(["lengths", "total"].map(str::to_owned)).collect();
        graph.nodes.push(Node {
            name: named("attention"),
            op: "GroupQueryAttention".into(),
            domain: MICROSOFT.into(),
            inputs,
            outputs: [named("attention")].into_iter().chain(present).collect(),
            attributes: vec![("num_heads".into(), heads.into()), ("kv_num_heads".into(), kv_heads.into())],
        });
        let attended = apart(&mut graph, named("attention"));
        add_product(&mut graph, random, &attended, &named("o"), product(heads * size, width));
        let attended = apart(&mut graph, named("o"));
        add_norm(&mut graph, random, &named("mid"), [&sum, &attended], width);
        add_product(&mut graph, random, &named("mid"), &named("gate"), product(width, hidden));
        add_product(&mut graph, random, &named("mid"), &named("up"), product(width, hidden));
        add_node(&mut graph, &named("sigmoid"), "Sigmoid", &[&named("gate")]);
        add_node(&mut graph, &named("silu"), "Mul", &[&named("gate"), &named("sigmoid")]);
        add_node(&mut graph, &named("hidden"), "Mul", &[&named("up"), &named("silu")]);
        add_product(&mut graph, random, &named("hidden"), &named("down"), product(hidden, width));
        stream = apart(&mut graph, format!("{}.sum", named("mid")));
        branch = apart(&mut graph, named("down"));
    }
    add_node(&mut graph, "y", "Add", &[&stream, &branch]);
    add_node(&mut graph, "z", "Tanh", &[&branch]);
    graph
}

#[test]
fn chains_give_the_bits_of_single_operators() {
    let folder = tempfile::tempdir().unwrap();
    let (width, hidden) = (72, 90);
    let files = [false, true].map(|divided| {
        let graph = decoder_graph(&mut Random(0x51ab_77c3_0f2e_9d41), width, hidden, divided);
        let file = folder.path().join(format!("{divided}.onnx"));
        fs::write(&file, graph.encode()).unwrap();
        file
    });
    let mut random = Random(0x1357_9bdf_0246_8ace);
    for (batch, sequence, past) in [(1, 1, 5), (3, 1, 300), (1, 7, 12), (1, 150, 0)] {
        let total = past + sequence;
        let cache = [batch, 2, past, 16];
        let ints = |name: &str, shape: &[usize], values| Feed {
            name: name.into(),
            shape: shape.to_vec(),
            elements: Elements::I32(values),
        };
        let mut feeds = vec![
            feed("x", &[batch, sequence, width], random.floats(batch * sequence * width)),
            ints("lengths", &[batch], vec![total as i32 - 1; batch]),
            ints("total", &[], vec![total as i32]),
        ];
        let mut fetches: Vec<Fetch> =
            ["y", "z"].map(|name| Fetch { name: name.into(), shape: vec![batch, sequence, width] }).into();
        for name in ["key0", "value0", "key1", "value1"] {
            let values = random.floats(cache.iter().product());
            feeds.push(feed(&format!("{name}.past"), &cache, values));
            fetches.push(Fetch { name: format!("{name}.present"), shape: vec![batch, 2, total, 16] });
        }
        for threads in [1, 2, 3] {
            let settings = CpuRun { threads, operators: CpuOperators::Narthex };
            let [whole, divided] = files
                .each_ref()
                .map(|file| run_with(runtime(), file, settings, feeds.clone(), &fetches).unwrap());
            assert!(whole == divided, "{batch} x {sequence} after {past}, {threads} threads");
            assert!(whole[0].iter().all(|x| x.is_finite()) && whole[0].iter().any(|&x| x != 0.0));
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
        // The combined projection of queries, keys and values, the output projection, and the head.
        assert_eq!((count("Linear"), count("GatedMlp")), (2 * layers + 1, layers), "{scheme:?}");
        assert_eq!((count("MatMulNBits"), count("Sigmoid")), (0, 0), "{scheme:?}");
        assert_eq!((count("Attention"), count("GroupQueryAttention")), (layers, 0), "{scheme:?}");
        assert_eq!(count("SkipSimplifiedLayerNormalization"), 0, "{scheme:?}");
        let others = [(KvPrecision::F16, "HalfCacheAttention"), (KvPrecision::I8, "IntegerCacheAttention")];
        for (precision, attention) in others {
            let placements = Package::llama(scheme).with_cache(precision).executor().placements();
            let nodes = placements.iter().flat_map(|graph| &graph.placement.nodes);
            assert_eq!(nodes.filter(|node| node.op == attention).count(), layers, "{scheme:?}");
        }
    }
}
