//! Whole compiles of tiny checkpoints: every package is checked against its own manifest, and graphs against goldens.
#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use narthex_compile::{
    CompileError,
    pipeline::{self, CompileJob},
};
use narthex_graph::{Graph, InitializerData};
use narthex_spec::{
    DType, Progress, Recipe, Scheme, Sha256, Variant,
    arch::Structure,
    dtype::Dim,
    manifest::{FileRange, GraphEntry, MANIFEST_FILE, Manifest, Slot, TableEncoding, TableRole},
    progress::Quiet,
    recipe::FixedShapes,
};
use narthex_testkit::checkpoint::{self, GgufType};

use crate::support;

const DATA: &str = "model.onnx.data";

/// A compiled tiny model.
struct Package {
    folder: tempfile::TempDir,
    manifest: Manifest,
}

fn job<'a>(checkpoint: &'a Path, scheme: Scheme, out: &'a Path) -> CompileJob<'a> {
    support::job(checkpoint, Recipe::new(scheme), out)
}

fn compile(checkpoint: &Path, scheme: Scheme) -> Package {
    let folder = tempfile::tempdir().unwrap();
    let manifest =
        pipeline::compile(job(checkpoint, scheme, folder.path()), &Quiet, &AtomicBool::new(false)).unwrap();
    Package { folder, manifest }
}

fn llama_gguf(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("tiny.gguf");
    fs::write(&path, checkpoint::tiny_llama_gguf(7)).unwrap();
    path
}

impl Package {
    fn read(&self, file: &str) -> Vec<u8> {
        fs::read(self.folder.path().join(file)).unwrap()
    }

    fn graph(&self) -> Graph {
        Graph::decode(&self.read(&self.manifest.graphs[0].file)).unwrap()
    }

    /// Checks the invariants of any package.
    fn check(&self) {
        let manifest = &self.manifest;
        let written: Manifest = serde_json::from_slice(&self.read(MANIFEST_FILE)).unwrap();
        assert_eq!(&written, manifest);
        let mut names: Vec<String> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != MANIFEST_FILE)
            .collect();
        names.sort();
        assert_eq!(names, manifest.files.keys().cloned().collect::<Vec<_>>());
        for (name, entry) in &manifest.files {
            let bytes = self.read(name);
            assert_eq!(entry.bytes, bytes.len() as u64, "{name}");
            assert_eq!(entry.sha256, Sha256::of(&bytes), "{name}");
        }
        let graph = self.graph();
        graph.check().unwrap();
        check_bindings(&graph, &manifest.graphs[0]);
        for constant in &graph.initializers {
            if let InitializerData::External { file, offset, length } = &constant.data {
                assert_eq!(offset % 64, 0, "{}", constant.name);
                self.check_range(&FileRange { file: file.clone(), offset: *offset, length: *length });
            }
        }
        for table in &manifest.tables {
            let (rows, cols) = (table.rows as u64, table.cols as u64);
            match &table.encoding {
                TableEncoding::Plain { dtype, data } => {
                    assert_eq!(data.length, rows * cols * dtype.size() as u64);
                    self.check_range(data);
                }
                TableEncoding::W8 { block, quants, scales } => {
                    assert_eq!(
                        (quants.length, scales.length),
                        (rows * cols, rows * cols / *block as u64 * 2)
                    );
                    self.check_range(quants);
                    self.check_range(scales);
                }
            }
        }
    }

    fn check_range(&self, range: &FileRange) {
        assert_eq!(range.file, DATA);
        assert!(range.offset + range.length <= self.manifest.files[DATA].bytes);
    }

    /// Returns one row of a host table, decoded as the manifest states.
    fn row(&self, role: TableRole, row: usize) -> Vec<f32> {
        let data = self.read(DATA);
        let part = |range: &FileRange, width: usize, at: usize, n: usize| {
            let start = range.offset as usize + at * width;
            data[start..start + n * width].to_vec()
        };
        let halves = |bytes: Vec<u8>| -> Vec<f32> {
            bytes.chunks(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
        };
        let table = self.manifest.tables.iter().find(|table| table.role == role).unwrap();
        let cols = table.cols;
        match &table.encoding {
            TableEncoding::Plain { dtype: DType::F16, data } => halves(part(data, 2, row * cols, cols)),
            TableEncoding::Plain { data, .. } => part(data, 4, row * cols, cols)
                .chunks(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            TableEncoding::W8 { block, quants, scales } => {
                let scales = halves(part(scales, 2, row * cols / block, cols / block));
                let quants = part(quants, 1, row * cols, cols);
                quants.iter().enumerate().map(|(i, q)| (f32::from(*q) - 128.0) * scales[i / block]).collect()
            }
        }
    }
}

fn check_ports(graph: &Graph, entry: &GraphEntry) {
    let sides = [(&graph.inputs, &entry.inputs), (&graph.outputs, &entry.outputs)];
    for (values, bindings) in sides {
        let values: BTreeMap<_, _> =
            values.iter().map(|v| (v.name.clone(), (v.dtype, v.shape.clone()))).collect();
        let bound: BTreeMap<_, _> =
            bindings.iter().map(|b| (b.name.clone(), (b.dtype.into(), b.shape.clone()))).collect();
        assert_eq!(values, bound);
    }
}

fn check_bindings(graph: &Graph, entry: &GraphEntry) {
    check_ports(graph, entry);
    let decoder = entry.input(Slot::SeqlensK).is_some();
    let expected = if decoder { Slot::Logits } else { Slot::Embedding };
    assert!(entry.input(Slot::Embeds).is_some() && entry.output(expected).is_some());
    for layer in 0..entry.kv.len() {
        assert!(entry.input(Slot::PastKey { layer }).is_some());
        assert!(entry.output(Slot::PresentValue { layer }).is_some());
    }
}

#[test]
fn llama_packages_keep_their_promises() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama_gguf(source.path());
    let hf = source.path().join("hf");
    fs::create_dir(&hf).unwrap();
    checkpoint::tiny_llama_safetensors(&hf, 7).unwrap();
    for scheme in Scheme::ALL {
        for path in [&gguf, &hf] {
            let package = compile(path, scheme);
            package.check();
            assert_eq!(package.manifest.graphs[0].kv.len(), checkpoint::LAYERS);
            assert_eq!(package.manifest.max_length, checkpoint::LLAMA_CONTEXT);
            assert!(package.manifest.chat.is_some());
        }
    }
}

/// Returns the elements of a linear weight of a graph, decoded by the definition of `MatMulNBits` and of its offsets.
fn decoded(package: &Package, graph: &Graph, name: &str, [rows, cols]: [usize; 2]) -> Vec<f32> {
    let data = package.read(DATA);
    let part = |part: &str| {
        let constant =
            graph.initializers.iter().find(|constant| constant.name == format!("{name}/{part}"))?;
        let InitializerData::External { offset, length, .. } = &constant.data else { return None };
        Some(data[*offset as usize..(offset + length) as usize].to_vec())
    };
    let halves = |bytes: Vec<u8>| -> Vec<f32> {
        bytes.chunks(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
    };
    let quants = part("quants").unwrap_or_else(|| panic!("{name} has no integers"));
    let scales = halves(part("scales").unwrap());
    let zeros = part("zeros");
    let offsets = part("offsets").map(halves);
    let four_bits = quants.len() == rows * cols / 2;
    let blocks = cols / 32;
    let element = |at: usize| {
        let (row, block) = (at / cols, at % cols / 32);
        let quant = if four_bits { quants[at / 2] >> (4 * (at % 2)) & 15 } else { quants[at] };
        let zero = match (&zeros, four_bits) {
            (None, true) => 8,
            (None, false) => 128,
            (Some(zeros), true) => zeros[row * blocks.div_ceil(2) + block / 2] >> (4 * (block % 2)) & 15,
            (Some(zeros), false) => zeros[row * blocks + block],
        };
        let offset = offsets.as_ref().map_or(0.0, |offsets| offsets[block * rows + row]);
        (f32::from(quant) - f32::from(zero)) * scales[row * blocks + block] + offset
    };
    (0..rows * cols).map(element).collect()
}

#[test]
fn blocks_of_a_four_bit_checkpoint_are_not_rounded_again() {
    let source = tempfile::tempdir().unwrap();
    let path = source.path().join("tiny.gguf");
    let mut gguf = checkpoint::tiny_llama(7);
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    // Random integers, and scales and minimums that no integer zero point represents.
    for tensor in &mut gguf.tensors {
        let (block, halves) = match tensor.kind {
            kind if kind == GgufType::Q4_0 as u32 => (18, 1),
            kind if kind == GgufType::Q4_1 as u32 => (20, 2),
            kind if kind == GgufType::Q5_0 as u32 => (22, 1),
            kind if kind == GgufType::Q5_1 as u32 => (24, 2),
            _ => continue,
        };
        for block in tensor.bytes.chunks_exact_mut(block) {
            block.iter_mut().for_each(|byte| *byte = next() as u8);
            let scale = half::f16::from_f32(0.01 + (next() % 1000) as f32 * 1e-5);
            let minimum = half::f16::from_f32(-0.05 - (next() % 1000) as f32 * 1e-4);
            block[..2].copy_from_slice(&scale.to_le_bytes());
            block[2..2 * halves].copy_from_slice(&minimum.to_le_bytes()[..2 * (halves - 1)]);
        }
    }
    fs::write(&path, gguf.to_bytes()).unwrap();
    let checkpoint = narthex_checkpoint::open(&path).unwrap();
    for scheme in [Scheme::W4, Scheme::W4A16] {
        let package = compile(&path, scheme);
        package.check();
        let graph = package.graph();
        let (mut copied, mut rounded) = (0, 0);
        for name in checkpoint::tiny_llama_weights(7).into_iter().map(|weight| weight.name) {
            let Some(layer) = name.strip_suffix(".weight").filter(|name| name.contains("_proj")) else {
                continue;
            };
            let weight = checkpoint.weights.weight(&name).unwrap();
            let path = format!("/{}", layer.replacen(".attn", "/attn", 1).replacen(".mlp", "/mlp", 1));
            let path = path.replacen("attn.", "attn/", 1).replacen("mlp.", "mlp/", 1);
            let expected = weight.to_f32();
            let found = decoded(&package, &graph, &path, [weight.rows_len(), weight.cols()]);
            // Keys are balanced, by powers of two.
            let errors =
                found.chunks(weight.cols()).zip(expected.chunks(weight.cols())).map(|(found, expected)| {
                    let peak = |row: &[f32]| row.iter().fold(0f32, |peak, x| peak.max(x.abs()));
                    let factor = (peak(found) / peak(expected)).log2().round().exp2();
                    let errors =
                        found.iter().zip(expected).map(|(found, expected)| (found / factor - expected).abs());
                    errors.fold(0f32, f32::max) / peak(expected)
                });
            let error = errors.fold(0f32, f32::max);
            if weight.encoding.bits() == 16 {
                rounded += 1;
                assert!(error < 0.5 / 127.0, "{name}: {error}");
            } else {
                copied += 1;
                assert!(error < 1.0 / 2048.0, "{name}, {}: {error}", weight.encoding.name());
            }
        }
        assert_eq!((copied, rounded), (5 * checkpoint::LAYERS, 2 * checkpoint::LAYERS));
    }

    // Graphs of `w4` for NPUs have integer zero points in every block.
    let folder = tempfile::tempdir().unwrap();
    let shapes = FixedShapes { context: 24, shorter: vec![], prefill: vec![8], buckets: vec![8] };
    let recipe = Recipe { fixed: Some(shapes), ..Recipe::new(Scheme::W4) };
    let job = support::job(&path, recipe, folder.path());
    let manifest = pipeline::compile(job, &Quiet, &AtomicBool::new(false)).unwrap();
    let graph = Graph::decode(&fs::read(folder.path().join(&manifest.graphs[0].file)).unwrap()).unwrap();
    let has = |part: &str| graph.initializers.iter().any(|constant| constant.name.ends_with(part));
    assert!(has("/qkv_proj/zeros") && !has("/offsets") && !has("/v_proj/quants"));
}

#[test]
fn bert_packages_keep_their_promises() {
    let source = tempfile::tempdir().unwrap();
    checkpoint::tiny_bert_safetensors(source.path(), 7).unwrap();
    for scheme in Scheme::ALL {
        let package = compile(source.path(), scheme);
        package.check();
        assert!(package.manifest.graphs[0].kv.is_empty());
        let roles: Vec<_> = package.manifest.tables.iter().map(|table| table.role).collect();
        assert_eq!(roles, [TableRole::Token, TableRole::Position, TableRole::TokenType]);
        assert_eq!(package.manifest.max_length, checkpoint::BERT_MAX_LENGTH);
    }
}

#[test]
fn table_rows_are_the_checkpoints() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama_gguf(source.path());
    let exact = compile(&gguf, Scheme::F32);
    let package = compile(&gguf, Scheme::W8);
    for row in [0, 7, checkpoint::LLAMA_VOCAB - 1] {
        let (expect, found) = (exact.row(TableRole::Token, row), package.row(TableRole::Token, row));
        let peak = expect.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
        assert!(peak > 0.0);
        for (x, y) in expect.iter().zip(&found) {
            assert!((x - y).abs() <= peak / 127.0 * 0.51, "row {row}: {x} {y}");
        }
    }
}

#[test]
fn a_tied_head_and_the_token_table_share_their_bytes() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama_gguf(source.path());
    for scheme in Scheme::ALL {
        let package = compile(&gguf, scheme);
        let graph = package.graph();
        let place = |suffix: &str| {
            let name = format!("/head/{suffix}");
            let constant = graph.initializers.iter().find(|constant| constant.name == name).unwrap();
            match &constant.data {
                InitializerData::External { file, offset, length } => {
                    FileRange { file: file.clone(), offset: *offset, length: *length }
                }
                InitializerData::Inline(_) => panic!("{name} is inline"),
            }
        };
        match &package.manifest.tables[0].encoding {
            TableEncoding::Plain { data, .. } => {
                assert!(matches!(scheme, Scheme::F32 | Scheme::F16), "{scheme}");
                assert_eq!(data, &place("weight"));
            }
            TableEncoding::W8 { quants, scales, .. } => {
                assert_eq!((quants, scales), (&place("quants"), &place("scales")));
            }
        }
    }
}

#[test]
fn graphs_are_as_reviewed() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama_gguf(source.path());
    let bert = tempfile::tempdir().unwrap();
    checkpoint::tiny_bert_safetensors(bert.path(), 7).unwrap();
    for scheme in Scheme::OF_WEIGHTS {
        insta::assert_snapshot!(format!("llama_{scheme}"), compile(&gguf, scheme).graph().dump());
        insta::assert_snapshot!(format!("bert_{scheme}"), compile(bert.path(), scheme).graph().dump());
    }
}

fn compile_fixed(checkpoint: &Path, scheme: Scheme) -> Package {
    let folder = tempfile::tempdir().unwrap();
    let shapes = FixedShapes { context: 32, shorter: vec![], prefill: vec![4], buckets: vec![8] };
    let recipe = Recipe { fixed: Some(shapes), ..Recipe::new(scheme) };
    let job = support::job(checkpoint, recipe, folder.path());
    let manifest = pipeline::compile(job, &Quiet, &AtomicBool::new(false)).unwrap();
    Package { folder, manifest }
}

#[test]
fn fixed_graphs_are_as_reviewed() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama_gguf(source.path());
    let bert = tempfile::tempdir().unwrap();
    checkpoint::tiny_bert_safetensors(bert.path(), 7).unwrap();
    for path in [gguf.as_path(), bert.path()] {
        let package = compile_fixed(path, Scheme::W8);
        package.check();
        for entry in &package.manifest.graphs[1..] {
            assert_eq!(entry.variant, Variant::Static);
            let graph = Graph::decode(&package.read(&entry.file)).unwrap();
            graph.check().unwrap();
            check_ports(&graph, entry);
            let fixed = |dim: &Dim| matches!(dim, Dim::Fixed(_));
            assert!(graph.inputs.iter().chain(&graph.outputs).all(|value| value.shape.iter().all(fixed)));
            insta::assert_snapshot!(entry.file.trim_end_matches(".onnx").to_owned(), graph.dump());
        }
    }
}

#[test]
fn both_variants_read_the_same_weights() {
    let source = tempfile::tempdir().unwrap();
    // In `w4`, the blocks of a 4-bit checkpoint are not those of a package for NPUs.
    checkpoint::tiny_llama_safetensors(source.path(), 7).unwrap();
    for scheme in [Scheme::W8, Scheme::W4] {
        let (dynamic, both) = (compile(source.path(), scheme), compile_fixed(source.path(), scheme));
        let bytes = |package: &Package| package.manifest.files[DATA].bytes;
        // Only norms and biases are written again, in half precision.
        let more = bytes(&both) - bytes(&dynamic);
        assert!(more > 0 && more < 4096, "{scheme}: {more}");
    }
}

#[test]
fn single_precision_is_refused_for_npus() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama_gguf(source.path());
    let out = tempfile::tempdir().unwrap();
    let recipe = Recipe { fixed: Some(FixedShapes::new(64)), ..Recipe::new(Scheme::F32) };
    let job = support::job(&gguf, recipe, out.path());
    let error = pipeline::compile(job, &Quiet, &AtomicBool::new(false)).unwrap_err();
    assert!(error.to_string().contains("--scheme w8"), "{error}");
}

#[test]
fn stages_are_kept_where_asked() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama_gguf(source.path());
    let (out, stages) = (tempfile::tempdir().unwrap(), source.path().join("stages"));
    let job = CompileJob { keep_stages: Some(&stages), ..job(&gguf, Scheme::W8, out.path()) };
    let manifest = pipeline::compile(job, &Quiet, &AtomicBool::new(false)).unwrap();
    let text = fs::read(stages.join("architecture.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Structure>(&text).unwrap(), manifest.architecture);
    assert!(fs::read_to_string(stages.join("plan.json")).unwrap().contains("\"w8zeros\""));
    assert!(fs::read_to_string(stages.join("graph.txt")).unwrap().starts_with("graph tiny"));
}

#[test]
fn a_cancelled_compile_leaves_no_manifest() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama_gguf(source.path());
    for at in [0, 1, 10] {
        let out = tempfile::tempdir().unwrap();
        let cancel = AtomicBool::new(at == 0);
        let stop = |event: Progress| {
            if matches!(event, Progress::Advanced { done, .. } if done >= at) {
                cancel.store(true, Ordering::Relaxed);
            }
        };
        let result = pipeline::compile(job(&gguf, Scheme::W8, out.path()), &stop, &cancel);
        assert!(matches!(result, Err(CompileError::Cancelled)), "{at}");
        assert!(!out.path().join(MANIFEST_FILE).exists());
    }
}

#[test]
fn values_that_are_no_numbers_are_refused_with_their_tensor_and_file() {
    let names =
        ["embed.weight", "norm.weight", "layers.1.attn.k_proj.weight", "layers.0.mlp.down_proj.weight"];
    let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let there = [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
    ];
    for (((name, there), bad), scheme) in names
        .iter()
        .zip(there)
        .zip(bad)
        .flat_map(|case| [Scheme::W8, Scheme::W4, Scheme::F32].map(|s| (case, s)))
    {
        let (source, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        checkpoint::tiny_llama_safetensors(source.path(), 7).unwrap();
        let mut weights = checkpoint::tiny_llama_weights(7);
        let weight = weights.iter_mut().find(|weight| weight.name == *name).unwrap();
        *weight.values.last_mut().unwrap() = bad;
        let file = source.path().join("model.safetensors");
        fs::write(&file, checkpoint::safetensors_bytes(&checkpoint::hf_tensors(&weights))).unwrap();
        let made = pipeline::compile(job(source.path(), scheme, out.path()), &Quiet, &AtomicBool::new(false));
        let error = made.err().map(|error| error.to_string());
        let expected = format!(
            "{}: tensor {name} (named {there} in this file) contains {bad}: expected finite",
            file.display()
        );
        assert!(error.as_ref().is_some_and(|error| error.starts_with(&expected)), "{scheme} {error:?}");
        assert!(!out.path().join(MANIFEST_FILE).exists());
    }
}

#[test]
fn refusals_name_the_file_and_a_next_step_that_leads_somewhere() {
    let (source, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    checkpoint::tiny_llama_safetensors(source.path(), 7).unwrap();
    let config = source.path().join("config.json");
    let settings = fs::read_to_string(&config).unwrap();
    let refused = || {
        let made =
            pipeline::compile(job(source.path(), Scheme::W8, out.path()), &Quiet, &AtomicBool::new(false));
        made.err().unwrap()
    };
    let check = |from: &str, to: &str, expect: &str, hint: &str| {
        assert!(settings.contains(from), "{settings}");
        fs::write(&config, settings.replace(from, to)).unwrap();
        let error = refused();
        let text = error.to_string();
        assert!(text.starts_with(&format!("{}: {expect}", config.display())), "{text}");
        assert!(error.hint().is_some_and(|found| found.contains(hint)), "{:?}", error.hint());
    };
    check(
        "\"silu\"",
        "\"mish\"",
        "unsupported hidden_act: found mish, expected silu, ",
        "another checkpoint",
    );
    let class = "unsupported architecture: found LlamaForQuestionAnswering, expected one of LlamaForCausalLM";
    check("LlamaForCausalLM", "LlamaForQuestionAnswering", class, "narthex list --available");
    fs::write(&config, &settings).unwrap();
    let mut tensors = checkpoint::hf_tensors(&checkpoint::tiny_llama_weights(7));
    let norm = tensors.iter_mut().find(|tensor| tensor.name == "model.norm.weight").unwrap();
    assert_eq!(norm.dtype, "F32");
    norm.dtype = "I32";
    let file = source.path().join("model.safetensors");
    fs::write(&file, checkpoint::safetensors_bytes(&tensors)).unwrap();
    let text = refused().to_string();
    let expect = format!("{}: unsupported type of tensor model.norm.weight: found I32", file.display());
    assert!(text.starts_with(&expect), "{text}");
}
