//! Bundles of graphs of fixed shapes, with the stages and names of AI Hub: an embedding and a position processor on the
//! CPU, layers for prompts and for single tokens with a past in the NPU's own dimension order, and a head. As plain
//! graphs they run on the CPU; as contexts compiled by Qualcomm's compiler, under HTP emulation.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{fs, ops::ControlFlow};

use narthex_device::{
    dynamic::DynamicExecutor,
    ep::{Device, QnnOptions},
    precompile::{FallbackPolicy, Job, Weights, precompile},
    static_shapes::Form,
};
use narthex_graph::{
    Attribute, Builder, Graph, Initializer, InitializerData, Node, Value, context::CONTEXT_OP,
};
use narthex_spec::{
    DType, Ep, Scheme, Target,
    dtype::Dim,
    manifest::{Part, TableEncoding, TableRole},
    target::QnnChip,
};
use serde_json::json;
use support::{
    OPTIONS, Package,
    fixed::{agree, logits, open, plugin, shapes},
    prompt, relative, runtime,
};

/// Maximum relative L2 distance between HTP emulation and the CPU.
const EMULATED: f32 = 0.01;

/// Maximum relative L2 distance between a past in 8 bits and one in half precision.
const QUANTISED: f32 = 0.05;

/// Number of past columns, and step size of a quantised past.
const PAST: usize = 32;
const STEP: f32 = 1.0 / 32.0;

/// Element type of the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Past {
    Half,
    /// 8-bit numbers with zero point 128.
    Quantised,
}

/// Returns a table of the package as a constant.
fn table(package: &Package, role: TableRole, name: &str) -> Initializer {
    let table = package.manifest.tables.iter().find(|table| table.role == role).unwrap();
    let TableEncoding::Plain { dtype, data } = &table.encoding else { panic!("{role:?} is not plain") };
    let bytes = fs::read(package.folder.path().join(&data.file)).unwrap();
    let range = data.offset as usize..(data.offset + data.length) as usize;
    Initializer {
        name: name.to_owned(),
        dtype: (*dtype).into(),
        shape: vec![table.rows, table.cols],
        data: InitializerData::Inline(bytes[range].to_vec().into()),
    }
}

/// Returns a graph from `input_ids` to embedding rows.
fn embeddings(package: &Package) -> Graph {
    let mut b = Builder::new("embeddings", &[("", 17)]);
    let ids = b.input("input_ids", DType::I32, &[1_usize.into(), "sequence".into()]);
    let rows = b.op("/embed", "Gather", &["table", &ids]);
    b.rename(&rows, "embeds");
    b.output("embeds", DType::F16, &[1_usize.into(), "sequence".into(), 64_usize.into()]);
    let mut graph = b.finish();
    graph.initializers.push(table(package, TableRole::Token, "table"));
    graph
}

/// Returns a graph from a mask of columns and from positions to the values added to scores and to the angles.
fn processor(package: &Package, count: usize) -> Graph {
    let columns = PAST + count;
    let mut b = Builder::new("position-processor", &[("", 19)]);
    let mask = b.input("attention_mask", DType::I32, &[1_usize.into(), columns.into()]);
    let positions = b.input("position_ids", DType::I32, &[1_usize.into(), count.into()]);
    let half = [("to", Attribute::Int(10))];
    for (part, shape) in [("cos", "shape"), ("sin", "shape")] {
        let rows = b.op(&format!("/{part}"), "Gather", &[&format!("{part}_table"), &positions]);
        let shaped = b.ints(&[4], &[1, 1, count as i64, 8]);
        let rows = b.op(&format!("/{part}/{shape}"), "Reshape", &[&rows, &shaped]);
        let rows = b.op_with(&format!("/{part}"), "Cast", &[&rows], &half);
        b.rename(&rows, part);
    }
    let list: Vec<i64> = (0..columns as i64).map(|column| column - PAST as i64).collect();
    let rows: Vec<i64> = (0..count as i64).collect();
    let (list, rows) = (b.ints(&[1, 1, 1, columns], &list), b.ints(&[1, 1, count, 1], &rows));
    let later = b.op("/mask/later", "Greater", &[&list, &rows]);
    let earlier = b.op("/mask", "Not", &[&later]);
    let real = b.op_with("/mask/real", "Cast", &[&mask], &[("to", Attribute::Int(9))]);
    let seen = b.op("/mask/seen", "And", &[&earlier, &real]);
    let (zero, hidden) = (b.scalar(0.0), b.scalar(-1000.0));
    let added = b.op("/mask", "Where", &[&seen, &zero, &hidden]);
    let added = b.op_with("/mask/half", "Cast", &[&added], &half);
    b.rename(&added, "mask");
    b.output("cos", DType::F16, &[1_usize.into(), 1_usize.into(), count.into(), 8_usize.into()]);
    b.output("sin", DType::F16, &[1_usize.into(), 1_usize.into(), count.into(), 8_usize.into()]);
    b.output("mask", DType::F16, &[1_usize.into(), 1_usize.into(), count.into(), columns.into()]);
    let mut graph = b.finish();
    graph.initializers.push(table(package, TableRole::Cos, "cos_table"));
    graph.initializers.push(table(package, TableRole::Sin, "sin_table"));
    graph
}

fn node(op: &str, inputs: &[&str], output: &str, attribute: (&str, Attribute)) -> Node {
    Node {
        name: format!("/{op}/{output}"),
        op: op.to_owned(),
        domain: String::new(),
        inputs: inputs.iter().map(|&input| input.to_owned()).collect(),
        outputs: vec![output.to_owned()],
        attributes: vec![(attribute.0.to_owned(), attribute.1)],
    }
}

/// Moves the heads before the batch in the past of a graph of layers, and quantises the past to 8 bits if `past`
/// requires it.
fn layers(mut graph: Graph, past: Past) -> Graph {
    let mut nodes = Vec::new();
    let turn = || ("perm", Attribute::from([1_i64, 0, 2, 3]));
    let to = |code: i64| ("to", Attribute::Int(code));
    let axis = || ("axis", Attribute::Int(0));
    let renamed = |value: &mut Value| {
        value.shape.swap(0, 1);
        let inner = std::mem::take(&mut value.name);
        value.name = inner.replace('.', "_");
        if past == Past::Quantised {
            value.dtype = DType::U8.into();
        }
        (inner, value.name.clone())
    };
    for value in graph.inputs.iter_mut().filter(|value| value.name.starts_with("past.")) {
        let (inner, mut outer) = renamed(value);
        if past == Past::Quantised {
            let (single, half) = (format!("{outer}/f32"), format!("{outer}/f16"));
            nodes.push(node("DequantizeLinear", &[&outer, "step", "zero"], &single, axis()));
            nodes.push(node("Cast", &[&single], &half, to(10)));
            outer = half;
        }
        nodes.push(node("Transpose", &[&outer], &inner, turn()));
    }
    nodes.append(&mut graph.nodes);
    for value in graph.outputs.iter_mut().filter(|value| value.name.starts_with("new.")) {
        let (inner, outer) = renamed(value);
        if past == Past::Half {
            nodes.push(node("Transpose", &[&inner], &outer, turn()));
            continue;
        }
        let (half, single) = (format!("{outer}/f16"), format!("{outer}/f32"));
        nodes.push(node("Transpose", &[&inner], &half, turn()));
        nodes.push(node("Cast", &[&half], &single, to(1)));
        nodes.push(node("QuantizeLinear", &[&single, "step", "zero"], &outer, axis()));
    }
    let constant = |name: &str, dtype: DType, bytes: Vec<u8>| Initializer {
        name: name.to_owned(),
        dtype: dtype.into(),
        shape: Vec::new(),
        data: InitializerData::Inline(bytes.into()),
    };
    if past == Past::Quantised {
        graph.initializers.push(constant("step", DType::F32, STEP.to_le_bytes().to_vec()));
        graph.initializers.push(constant("zero", DType::U8, vec![128]));
    }
    Graph { nodes, ..graph }
}

/// Returns the head for `rows` rows.
fn head(mut graph: Graph, rows: usize) -> Graph {
    for value in graph.inputs.iter_mut().chain(&mut graph.outputs) {
        value.shape[1] = Dim::Fixed(rows as u64);
    }
    for shape in graph.initializers.iter_mut().filter(|constant| constant.dtype == DType::I64) {
        let InitializerData::Inline(bytes) = &shape.data else { continue };
        let mut extents: Vec<u8> = bytes.to_vec();
        // The shapes are `[rows, hidden]` and `[1, rows, vocab]`.
        let at = extents.len() - 16;
        extents[at..at + 8].copy_from_slice(&(rows as i64).to_le_bytes());
        shape.data = InitializerData::Inline(extents.into());
    }
    graph
}

/// Writes the bundle of a package's fixed graphs. With a compiler, the NPU's graphs are written as contexts.
fn bundle(package: &Package, past: Past, compiler: Option<&Device>) -> tempfile::TempDir {
    let (source, folder) = (package.folder.path(), tempfile::tempdir().unwrap());
    let mut stages = serde_json::Map::new();
    let mut stage = |name: &str, prompts: bool, tokens: bool| {
        let runs =
            json!({"filename": format!("{name}.onnx"), "run_on_prompt": prompts, "run_on_token_gen": tokens});
        stages.insert(name.to_owned(), runs);
    };
    let write = |name: &str, graph: Graph| fs::write(folder.path().join(name), graph.encode()).unwrap();
    write("embeddings.onnx", embeddings(package));
    stage("embeddings", true, true);
    let read = |file: &str| Graph::decode(&fs::read(source.join(file)).unwrap()).unwrap();
    let (mut own, mut head_file) = (Vec::new(), "");
    for entry in &package.manifest.graphs {
        match entry.part {
            Part::Layers { tokens, .. } => own.push((tokens, entry.file.as_str())),
            Part::Head { .. } => head_file = &entry.file,
            _ => {}
        }
    }
    let mut made = Vec::new();
    for (tokens, file) in own {
        let kind = if tokens > 1 { "prompt" } else { "token" };
        let processor_name = format!("position-processor-{kind}");
        write(&format!("{processor_name}.onnx"), processor(package, tokens));
        stage(&processor_name, tokens > 1, tokens == 1);
        let parts = [layers(read(file), past), head(read(head_file), tokens)];
        for (part, graph) in (1..).zip(parts) {
            let name = format!("{kind}_{part}_of_2");
            stage(&name, tokens > 1, tokens == 1);
            fs::write(source.join(format!("{name}.onnx")), graph.encode()).unwrap();
            made.push(format!("{name}.onnx"));
        }
    }
    let paths: Vec<_> = made.iter().map(|name| (source.join(name), folder.path().join(name))).collect();
    match compiler {
        Some(device) => {
            let jobs: Vec<_> = paths.iter().map(|(graph, context)| Job { graph, context }).collect();
            let mut done = |_| ControlFlow::Continue(());
            precompile(runtime(), device, &jobs, Weights::Separate, FallbackPolicy::Refused, &mut done)
                .unwrap();
        }
        None => {
            for (from, to) in &paths {
                fs::copy(from, to).unwrap();
            }
            fs::copy(source.join("model.onnx.data"), folder.path().join("model.onnx.data")).unwrap();
        }
    }
    fs::copy(source.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    let decoder = json!({
        "head_size": 16, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "inputs": {"past_key_names": "past_%d_key", "past_value_names": "past_%d_value"},
        "outputs": {"present_key_names": "new_%d_key", "present_value_names": "new_%d_value"},
        "sliding_window": {"window_size": 8, "pad_value": 128},
        "pipeline": [stages],
    });
    let model = json!({
        "type": "decoder-pipeline", "context_length": 64, "vocab_size": 300, "eos_token_id": 0, "decoder": decoder
    });
    fs::write(folder.path().join("genai_config.json"), json!({ "model": model }).to_string()).unwrap();
    folder
}

fn executor(package: &Package, device: &Device) -> DynamicExecutor {
    DynamicExecutor::open(runtime(), package.folder.path(), &package.manifest, device, &OPTIONS)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn source() -> (Package, Vec<u32>, Vec<Vec<f32>>) {
    let package = Package::fixed_llama(Scheme::F16, shapes());
    let tokens = prompt(6, 13);
    let expected = logits(&mut open(&package, &Device::Cpu, Form::Graph).unwrap(), &tokens);
    (package, tokens, expected)
}

#[test]
fn stages_of_fixed_shapes_give_the_source_s_logits_in_any_chunks() {
    let (package, tokens, expected) = source();
    for (past, bound) in [(Past::Half, 5e-3), (Past::Quantised, QUANTISED)] {
        let bundle = bundle(&package, past, None);
        let imported = Package::imported(bundle.path());
        assert_eq!((imported.manifest.graphs.len(), &imported.manifest.bound), (2, &None));
        assert_eq!(imported.manifest.max_length, PAST + 1);
        let mut executor = executor(&imported, &Device::Cpu);
        // A prompt in whole windows and parts of one, twice; the second time the caches have old contents.
        for _ in 0..2 {
            for (row, expected) in logits(&mut executor, &tokens).iter().zip(&expected) {
                let distance = relative(row, expected);
                assert!(distance <= bound, "{past:?}: {distance}");
            }
        }
    }
}

#[test]
fn compiled_contexts_run_under_htp_emulation_and_nowhere_else() {
    let library = plugin(Ep::Qnn);
    runtime().register(Ep::Qnn, &library).unwrap();
    let device = Device::Qnn(QnnOptions::new(&library, &[QnnChip::XElite]));
    let (package, tokens, expected) = source();
    let bundle = bundle(&package, Past::Half, Some(&device));
    let imported = Package::imported(bundle.path());
    let bound = imported.manifest.bound.as_ref().unwrap();
    assert_eq!((bound.ep, &bound.target), (Ep::Qnn, &Some(Target::Qnn(vec![QnnChip::XElite]))));
    assert!(imported.manifest.files.keys().any(|file| file.ends_with(".bin")), "no binary");
    let mut emulated = executor(&imported, &device);
    agree(&logits(&mut emulated, &tokens), &expected, EMULATED);
    let contexts = |placement: &narthex_device::placement::Placement| {
        placement.nodes.iter().filter(|node| node.op == CONTEXT_OP && node.ep == Ep::Qnn).count()
    };
    let found: Vec<usize> = emulated.placements().iter().map(|graph| contexts(&graph.placement)).collect();
    assert_eq!(found, [2, 2]);
    let folder = imported.folder.path();
    let refused = DynamicExecutor::open(runtime(), folder, &imported.manifest, &Device::Cpu, &OPTIONS).err();
    let refused = refused.unwrap().to_string();
    assert!(refused.contains("runs only on the NPU of Snapdragon X Elite, X Plus (x-elite)"), "{refused}");
}
