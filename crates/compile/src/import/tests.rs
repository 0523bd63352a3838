//! What is refused and how, and what hostile files do. Logits of imports are compared where ONNX Runtime is: in `device`.

use std::{fs, sync::atomic::AtomicBool};

use narthex_graph::{Builder, InitializerData, build::NodeSpec};
use narthex_spec::{Ep, Variant, manifest::Slot, progress::Quiet};
use serde_json::json;

use super::*;

fn exports(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/import").join(name)
}

/// A copy of a tiny export, to be spoilt.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut sources = vec![(exports(name), folder.path().to_owned())];
    while let Some((from, to)) = sources.pop() {
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(from).unwrap().flatten() {
            let to = to.join(entry.file_name());
            if entry.path().is_dir() {
                sources.push((entry.path(), to));
            } else {
                fs::copy(entry.path(), to).unwrap();
            }
        }
    }
    folder
}

/// Imports a folder into another.
fn import(folder: &Path) -> Result<narthex_spec::manifest::Manifest, CompileError> {
    let out = tempfile::tempdir().unwrap();
    let job = ImportJob {
        name: "tiny".parse().unwrap(),
        out: out.path(),
        source: "test".to_owned(),
        compiler: "test".to_owned(),
    };
    open(folder, None)?.write(job, &Quiet, &AtomicBool::new(false))
}

fn refusal(folder: &Path) -> (String, Option<String>) {
    let error = import(folder).expect_err("it was imported");
    (error.to_string(), error.hint())
}

#[track_caller]
fn check(folder: &Path, expect: &str) {
    let (error, _) = refusal(folder);
    assert!(error.contains(expect), "{error} lacks {expect}");
}

/// A graph that stands for what a vendor's compiler made.
fn context(source: &str) -> Graph {
    let mut b = Builder::new("g", &[("", 17), ("com.microsoft", 1)]);
    let x = b.input("past_key_0_in", DType::F16, &[2_usize.into(), "n".into()]);
    let text = |text: &str| Attribute::String(text.to_owned());
    let attributes = [("source", text(source)), ("ep_sdk_version", text("2.51"))];
    let spec = NodeSpec {
        name: "c",
        op: "EPContext",
        domain: "com.microsoft",
        inputs: &[&x],
        attributes: &attributes,
    };
    let y = b.node(spec);
    b.output(&y, DType::F32, &["n".into()]);
    b.finish()
}

/// A graph of fixed shapes that stands for what Qualcomm's compiler made: `tokens` over a past of 12, 2 heads of 4, in 8 bits,
/// heads before the batch and keys with their elements before the tokens.
fn stage(tokens: usize, edit: &dyn Fn(&mut Graph)) -> Graph {
    let mut b = Builder::new("g", &[("", 21), ("com.microsoft", 1)]);
    let text = |text: &str| Attribute::String(text.to_owned());
    let shape = |shape: &[usize]| shape.iter().map(|&extent| Dim::from(extent)).collect::<Vec<_>>();
    let inputs = [
        b.input("input_ids", DType::I32, &shape(&[1, tokens])),
        b.input("attention_mask", DType::I32, &shape(&[1, 12 + tokens])),
        b.input("past_key_0_in", DType::U8, &shape(&[2, 1, 4, 12])),
        b.input("past_value_0_in", DType::U8, &shape(&[2, 1, 12, 4])),
    ];
    let attributes = [
        ("main_context", Attribute::Int(1)),
        ("embed_mode", Attribute::Int(0)),
        ("ep_cache_context", text("part.bin")),
        ("source", text("Qnn")),
        ("ep_sdk_version", text("2.51")),
    ];
    let (inputs, domain) = (inputs.each_ref().map(String::as_str), "com.microsoft");
    let spec = NodeSpec { name: "part", op: "EPContext", domain, inputs: &inputs, attributes: &attributes };
    let outputs = ["logits", "past_key_0_out", "past_value_0_out"];
    b.node_to(spec, &outputs);
    b.output(outputs[0], DType::F32, &shape(&[1, tokens, 256]));
    b.output(outputs[1], DType::U8, &shape(&[2, 1, 4, tokens]));
    b.output(outputs[2], DType::U8, &shape(&[2, 1, tokens, 4]));
    let mut graph = b.finish();
    edit(&mut graph);
    graph
}

/// A bundle of two such stages, with these options of their sessions.
fn bundle(options: &serde_json::Value, edit: &dyn Fn(&mut Graph)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut stages = serde_json::Map::new();
    for (name, tokens) in [("prompt", 8), ("token", 1)] {
        let file = format!("{name}_1_of_1.onnx");
        fs::write(folder.path().join(&file), stage(tokens, edit).encode()).unwrap();
        let stage = json!({
            "filename": file, "run_on_prompt": tokens > 1, "run_on_token_gen": tokens == 1,
            "session_options": {"provider_options": [options]},
        });
        stages.insert(name.to_owned(), stage);
    }
    fs::write(folder.path().join("part.bin"), "a binary").unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(exports("genai-cpu").join(file), folder.path().join(file)).unwrap();
    }
    let decoder = json!({
        "head_size": 4, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
        "inputs": {"past_key_names": "past_key_%d_in", "past_value_names": "past_value_%d_in"},
        "outputs": {"present_key_names": "past_key_%d_out", "present_value_names": "past_value_%d_out"},
        "sliding_window": {"window_size": 8, "pad_value": 128},
        "pipeline": [stages],
    });
    let model = json!({
        "type": "decoder-pipeline", "context_length": 64, "vocab_size": 256, "eos_token_id": 0, "decoder": decoder,
    });
    fs::write(folder.path().join("genai_config.json"), json!({ "model": model }).to_string()).unwrap();
    folder
}

#[test]
fn bundles_of_contexts_become_packages_for_their_device() {
    let check =
        |options: serde_json::Value, edit: &dyn Fn(&mut Graph), device: &str, target: Option<&str>| {
            let folder = bundle(&options, edit);
            let manifest = import(folder.path()).unwrap_or_else(|error| panic!("{options}: {error}"));
            let bound = manifest.bound.as_ref().unwrap();
            let found = bound.target.as_ref().map(ToString::to_string);
            assert_eq!((bound.ep, bound.device.as_str(), found.as_deref()), (Ep::Qnn, device, target));
            let holds = "a decoder-pipeline of 2 stages, 2 of them compiled contexts, made with SDK 2.51";
            assert_eq!(bound.holds, holds);
            assert!(manifest.files.contains_key("part.bin"));
            let parts: Vec<_> = manifest.graphs.iter().map(|graph| graph.part).collect();
            let chunk = |tokens| narthex_spec::manifest::Part::Chunk { tokens, past: 12 };
            assert_eq!((parts, manifest.max_length), (vec![chunk(1), chunk(8)], 13));
        };
    let elite = "the NPU of Snapdragon X Elite, X Plus (x-elite)";
    let as_is = |_: &mut Graph| {};
    check(json!({"qnn": {"soc_model": "60", "htp_arch": "73"}}), &as_is, elite, Some("qnn:x-elite"));
    check(json!({"QNN": {"soc_model": "0"}}), &as_is, "a Snapdragon's NPU", None);
    let unknown = "the NPU of the Snapdragon chip with soc_model 999";
    check(json!({"qnn": {"soc_model": "999"}}), &as_is, unknown, None);
    check(json!({}), &as_is, "a Snapdragon's NPU", None);
    // What the provider keeps of the chips says more than the options.
    let stated = |graph: &mut Graph| {
        let key = "ep_compatibility_info.QNNExecutionProvider".to_owned();
        graph.metadata.push((key, "v2:6:2.51.0:5.51.0:79:69:8:0".to_owned()));
    };
    check(json!({}), &stated, "the NPU of Snapdragon 8 Elite (8-elite)", Some("qnn:8-elite"));
}

#[test]
fn bundles_that_cannot_be_fed_are_refused_by_what_differs() {
    let check = |edit: &dyn Fn(&mut Graph), expect: &str| {
        let folder = bundle(&json!({"qnn": {}}), edit);
        super::tests::check(folder.path(), expect);
    };
    check(&|graph| graph.inputs[0].shape[1] = "n".into(), "a fixed number of tokens");
    check(&|graph| graph.inputs[1].shape.push(1_usize.into()), "one row of so many columns");
    check(&|graph| graph.inputs[1].name = "other".to_owned(), "\"other\"");
    check(
        &|graph| graph.inputs[2].shape[0] = 3_usize.into(),
        "a past of one sequence, 2 heads and 4 elements",
    );
    check(
        &|graph| graph.inputs[3].shape[3] = 5_usize.into(),
        "a past of one sequence, 2 heads and 4 elements",
    );
    check(&|graph| graph.outputs[1].shape[3] = 2_usize.into(), "new tokens, alone or behind the past");
    check(&|graph| graph.outputs[2].name = "gone".to_owned(), "past_value_0_out");
    check(&|graph| graph.outputs[0].shape[1] = 3_usize.into(), "logits of every token");
    check(&|graph| graph.outputs[0].dtype = DType::U8.into(), "f32 or f16");
    let binary = |name: &'static str| {
        move |graph: &mut Graph| graph.nodes[0].attributes[2].1 = Attribute::String(name.to_owned())
    };
    check(&binary("../part.bin"), "a .bin file beside its graph");
    check(&binary("tokenizer.json"), "a .bin file beside its graph");
    check(&binary("gone.bin"), "gone.bin");
    let source =
        |graph: &mut Graph| graph.nodes[0].attributes[3].1 = Attribute::String("OpenVINO".to_owned());
    check(&source, "runs on Intel's devices, through OpenVINO, alone");
}

#[test]
fn bundles_for_one_device_are_refused_with_the_device() {
    let check = |files: &[(&str, serde_json::Value)], expect: &str, target: &str| {
        let folder = tempfile::tempdir().unwrap();
        for (name, value) in files {
            fs::write(folder.path().join(name), value.to_string()).unwrap();
        }
        let (error, hint) = refusal(folder.path());
        assert!(error.contains(expect), "{error} lacks {expect}");
        assert!(hint.as_ref().is_some_and(|hint| hint.ends_with(target)), "{hint:?}");
    };
    let genie = json!({"devices": [{"soc_model": 69, "dsp_arch": "v79", "cores": []}]});
    check(
        &[("genie_config.json", json!({"dialog": {}})), ("htp_backend_ext_config.json", genie)],
        "0 context binaries for Qualcomm's Genie (genie_config.json), which runs on the NPU of Snapdragon 8 Elite",
        "qnn:8-elite",
    );
    let options = json!({"custom_ops_library": "onnx_custom_ops.dll", "provider_options": []});
    let hybrid = json!({"model": {"type": "llama", "decoder": {"session_options": options}}});
    check(
        &[("genai_config.json", hybrid)],
        "operators from onnx_custom_ops.dll, which runs on an AMD Ryzen AI NPU",
        "narthex compile DIR",
    );
}

#[test]
fn settings_for_amd_do_not_bar_a_graph_that_any_device_runs() {
    let folder = copy("genai-cpu");
    let path = folder.path().join("genai_config.json");
    let text = fs::read_to_string(&path).unwrap();
    let options = r#""provider_options": [{"RyzenAI": {"hybrid_opt_token_backend": "npu"}}]"#;
    fs::write(path, text.replace(r#""provider_options": []"#, options)).unwrap();
    assert!(fs::read_to_string(folder.path().join("genai_config.json")).unwrap().contains("RyzenAI"));
    let manifest = import(folder.path()).unwrap();
    assert_eq!(manifest.recipe.scheme, Scheme::W4);
    let path = folder.path().join("model.onnx");
    let mut graph = Graph::decode(&fs::read(&path).unwrap()).unwrap();
    graph.opsets.push(("com.ryzenai".to_owned(), 1));
    let product = graph.nodes.iter_mut().find(|node| node.op == "MatMulNBits").unwrap();
    "com.ryzenai".clone_into(&mut product.domain);
    fs::write(path, graph.encode()).unwrap();
    let bound = import(folder.path()).unwrap().bound.unwrap();
    assert_eq!((bound.ep, bound.holds.as_str()), (Ep::VitisAi, "a graph with com.ryzenai:MatMulNBits"));
    // Weights that AMD's operators alone read go with the graph.
    let path = folder.path().join("genai_config.json");
    let text = fs::read_to_string(&path).unwrap();
    let named = "\"external_data_file\": \"model_jit.pb.bin\", \"provider_options\"";
    fs::write(path, text.replacen("\"provider_options\"", named, 1)).unwrap();
    check(folder.path(), "model_jit.pb.bin");
    fs::write(folder.path().join("model_jit.pb.bin"), "weights").unwrap();
    assert!(import(folder.path()).unwrap().files.contains_key("model_jit.pb.bin"));
}

#[test]
fn a_compiled_context_is_refused_with_its_compiler() {
    let folder = copy("sentence");
    let graph = context("QNNExecutionProvider");
    let path = folder.path().join("onnx/model.onnx");
    let write = |graph: &Graph| fs::write(&path, graph.encode()).unwrap();
    write(&graph);
    check(folder.path(), "a compiled context (made with SDK 2.51), which runs on a Snapdragon's NPU alone");
    // What the provider keeps of the chips says more.
    let key = "ep_compatibility_info.QNNExecutionProvider";
    let stated = |info: &str, expect: &str| {
        let metadata = vec![(key.to_owned(), info.to_owned())];
        write(&Graph { metadata, ..graph.clone() });
        check(folder.path(), expect);
    };
    stated("v2:6:2.51.0:5.51.0:79:69:8:0", "the NPU of Snapdragon 8 Elite (8-elite) alone");
    stated(
        "v2:6:2.51.0:5.51.0:73,79:60,69:8,8:0",
        "X Plus (x-elite), the NPU of Snapdragon 8 Elite (8-elite) alone",
    );
    stated("v2:6:2.51.0:5.51.0:73:0:8:0", "Snapdragon X Elite, X Plus (x-elite) alone");
    for unknown in ["v3:6:2.51.0:5.51.0:79:69:8:0", "v2:6", "v2:6:a:b:c:d:e", ""] {
        stated(unknown, "a Snapdragon's NPU alone");
    }
}

#[test]
fn classifiers_are_refused_as_what_they_are() {
    let check = |name: &str, labels: serde_json::Value, edit: &dyn Fn(&mut Graph), expect: &str| {
        let folder = copy(name);
        let config = folder.path().join("config.json");
        let mut keys: serde_json::Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
        keys["id2label"] = labels;
        fs::write(config, keys.to_string()).unwrap();
        let path = folder.path().join("model.onnx");
        let mut graph = Graph::decode(&fs::read(&path).unwrap()).unwrap();
        edit(&mut graph);
        fs::write(path, graph.encode()).unwrap();
        check(folder.path(), expect);
    };
    let names = json!({"0": "negative", "1": "neutral", "2": "positive"});
    let open = |graph: &mut Graph| graph.outputs[0].shape[2] = "labels".into();
    let class = |graph: &mut Graph| graph.outputs[0].shape = vec!["batch".into(), 3_usize.into()];
    let tokens = |graph: &mut Graph| graph.outputs[0].shape[2] = 3_usize.into();
    let found = "a classifier of texts with 3 labels (negative, neutral, positive)";
    check("masked", names.clone(), &class, found);
    check("masked", json!({}), &class, "a classifier of texts with 3 labels\"");
    check("masked", names, &tokens, "a classifier of tokens with 3 labels (negative, neutral, positive)");
    // The class decides where the graph leaves open how many there are.
    let folder = copy("masked");
    let path = folder.path().join("model.onnx");
    let mut graph = Graph::decode(&fs::read(&path).unwrap()).unwrap();
    open(&mut graph);
    fs::write(path, graph.encode()).unwrap();
    let manifest = import(folder.path()).unwrap();
    assert_eq!(manifest.architecture.head(), Some(&EncoderHead::MaskedLm { activation: None }));
}

#[test]
fn what_is_missing_or_unknown_is_named() {
    let without = |name: &str, file: &str, expect: &str| {
        let folder = copy(name);
        fs::remove_file(folder.path().join(file)).unwrap();
        check(folder.path(), expect);
    };
    without("genai-cpu", "tokenizer.json", "expected tokenizer.json");
    without("genai-cpu", "model.onnx", "model.onnx");
    without("genai-cpu", "model.onnx.data", "model.onnx.data");
    without("transformers-js", "config.json", "the longest sequence of config.json");
    without("transformers-js", "onnx/embed_tokens.onnx", "inputs_embeds");
    without("optimum-two", "decoder_model.onnx", "decoder_with_past_model.onnx alone");
    let changed = |name: &str, file: &str, from: &str, to: &str, expect: &str| {
        let folder = copy(name);
        let path = folder.path().join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(path, text.replace(from, to)).unwrap();
        check(folder.path(), expect);
    };
    changed("masked", "tokenizer_config.json", "mask_token", "no_token", "mask_token of the tokenizer");
    let config = "genai_config.json";
    changed("genai-cpu", config, "\"model.onnx\"", "\"../model.onnx\"", "a file in the folder");
    changed(
        "genai-cpu",
        config,
        "\"attention_mask\": \"attention_mask\"",
        "\"attention_mask\": \"m\"",
        "\"attention_mask\"",
    );
    changed("genai-cpu", config, "present.%d.key", "gone.%d.key", "gone.0.key");
    changed("genai-cpu", config, "\"logits\": \"logits\"", "\"logits\": \"none\"", "\"none\"");
    changed("genai-cpu", config, "\"head_size\": 16", "\"head_size\": 0", "a head_size from 1");
    changed("genai-cpu", config, "\"decoder\": {", "\"vision\": {}, \"decoder\": {", "a decoder alone");
}

#[test]
fn stages_become_one_graph_where_shapes_alone_tell_them_apart() {
    /// A graph of the folder, changed.
    fn graph(folder: &Path, file: &str, edit: &dyn Fn(&mut Graph)) {
        let path = folder.join(file);
        let mut graph = Graph::decode(&fs::read(&path).unwrap()).unwrap();
        edit(&mut graph);
        fs::write(path, graph.encode()).unwrap();
    }
    /// The pipeline of the folder's configuration, changed.
    fn pipeline(folder: &Path, edit: &dyn Fn(&mut serde_json::Value)) {
        let path = folder.join("genai_config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        edit(&mut config["model"]["decoder"]["pipeline"]);
        fs::write(path, config.to_string()).unwrap();
    }
    /// Gives the stages for single tokens a data file of their own.
    fn apart(folder: &Path) {
        fs::copy(folder.join("transformer.onnx.data"), folder.join("other.data")).unwrap();
        graph(folder, "iterator.onnx", &|graph| {
            for constant in &mut graph.initializers {
                if let InitializerData::External { file, .. } = &mut constant.data {
                    "other.data".clone_into(file);
                }
            }
        });
    }
    let taken = |edit: &dyn Fn(&Path)| {
        let folder = copy("pipeline");
        edit(folder.path());
        let manifest = import(folder.path()).unwrap();
        let [entry] = &manifest.graphs[..] else { panic!("{} graphs", manifest.graphs.len()) };
        assert_eq!((entry.kv.len(), entry.variant), (2, Variant::Dynamic));
        entry.clone()
    };
    let entry = taken(&|_| {});
    // One buffer for past and present, of one sequence, as the stages declare it.
    let past = entry.input(Slot::PastKey { layer: 0 }).unwrap();
    assert_eq!(past.shape[0], Dim::Fixed(1));
    assert!(entry.output(Slot::PresentKey { layer: 0 }).is_some());
    // Stages without a list around them, a head of a fixed length, weights in two files, an output under another name.
    taken(&|folder| pipeline(folder, &|stages| *stages = stages[0].take()));
    taken(&|folder| graph(folder, "lm_head.onnx", &|graph| graph.outputs[0].shape[1] = 1_usize.into()));
    taken(&apart);
    taken(&|folder| {
        graph(folder, "lm_head.onnx", &|graph| {
            graph.inputs[0].name = "states".to_owned();
            let first = graph.nodes.iter_mut().flat_map(|node| &mut node.inputs);
            first.filter(|name| *name == "/final_norm/output").for_each(|name| *name = "states".to_owned());
        });
        pipeline(folder, &|stages| {
            for stage in ["context", "iterator"] {
                stages[0][stage]["output_names_forwarder"] = json!({"/final_norm/output": "states"});
            }
        });
    });
    let refused = |edit: &dyn Fn(&Path), expect: &str| {
        let folder = copy("pipeline");
        edit(folder.path());
        check(folder.path(), expect);
    };
    let epsilon = |graph: &mut Graph| graph.nodes[3].attributes.push(("x".to_owned(), Attribute::Int(1)));
    refused(&|folder| graph(folder, "iterator.onnx", &epsilon), "another node than /model/");
    let changed = |folder: &Path| {
        apart(folder);
        let path = folder.join("other.data");
        let mut bytes = fs::read(&path).unwrap();
        bytes[100] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    refused(&changed, "another constant 1/");
    refused(&|folder| pipeline(folder, &|stages| *stages = json!([])), "0 of them");
    refused(&|folder| pipeline(folder, &|stages| *stages = json!(7)), "7");
    let stage = |key: &'static str, value: serde_json::Value| {
        move |folder: &Path| pipeline(folder, &|stages| stages[0]["lm_head"][key] = value.clone())
    };
    refused(&stage("filename", json!("../lm_head.onnx")), "a file in the folder");
    refused(&stage("filename", json!(1)), "lm_head: invalid type");
    refused(&stage("run_on_prompt", json!(false)), " nodes\"");
}

#[test]
fn graphs_that_cannot_be_kept_are_refused() {
    let check = |edit: &dyn Fn(&mut Graph), expect: &str| {
        let folder = copy("genai-cpu");
        let path = folder.path().join("model.onnx");
        let mut graph = Graph::decode(&fs::read(&path).unwrap()).unwrap();
        edit(&mut graph);
        fs::write(path, graph.encode()).unwrap();
        check(folder.path(), expect);
    };
    let data = |graph: &mut Graph, edit: &dyn Fn(&mut String, &mut u64)| {
        let external = graph.initializers.iter_mut().find_map(|constant| match &mut constant.data {
            InitializerData::External { file, offset, .. } => Some((file, offset)),
            InitializerData::Inline(_) => None,
        });
        let (file, offset) = external.expect("a data file");
        edit(file, offset);
    };
    check(&|graph| data(graph, &|file, _| "../../etc/passwd".clone_into(file)), "lies outside");
    check(&|graph| data(graph, &|_, offset| *offset = u64::MAX - 1), "ends before the weight");
    check(&|graph| graph.opsets[0].1 = 9, "11 or newer");
    check(
        &|graph| graph.nodes[0].outputs[0] = "/import/x".to_owned(),
        "names that do not begin with /import/",
    );
    check(&|graph| graph.nodes.truncate(5), "well-formed");
    check(&|graph| graph.outputs[0].dtype = narthex_graph::Element::F64, "f32 or f16");
    check(&|graph| graph.outputs[0].shape[1] = 1_usize.into(), "logits of every token");
    check(&|graph| graph.inputs[2].shape.truncate(3), "4 dimensions");
}

#[test]
fn one_file_gives_what_its_folder_gives() {
    let written = |path: &Path, file: Option<&str>| {
        let out = tempfile::tempdir().unwrap();
        let job = ImportJob {
            name: "tiny".parse().unwrap(),
            out: out.path(),
            source: "test".to_owned(),
            compiler: "test".to_owned(),
        };
        let found = open(path, file).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        found.write(job, &Quiet, &AtomicBool::new(false)).unwrap()
    };
    for (name, file) in [
        ("genai-cpu", "model.onnx"),
        ("pipeline", "iterator.onnx"),
        ("optimum-merged", "decoder_model_merged.onnx"),
        ("transformers-js", "onnx/decoder_model_merged.onnx"),
        ("sentence", "onnx/model.onnx"),
    ] {
        let root = exports(name);
        let whole = written(&root, None);
        assert_eq!(written(&root.join(file), None), whole, "{name}/{file}");
        assert_eq!(written(&root, Some(file)), whole, "{name}, {file}");
        assert_eq!(folder(&root.join(file)).canonicalize().unwrap(), root.canonicalize().unwrap());
    }
    // Another quantisation beside the one of the configuration, and one that no stage of a pipeline is.
    let other = copy("genai-cpu");
    fs::rename(other.path().join("model.onnx"), other.path().join("model_q4.onnx")).unwrap();
    assert_eq!(written(&other.path().join("model_q4.onnx"), None).graphs.len(), 1);
    let stages = copy("pipeline");
    fs::copy(exports("genai-cpu/model.onnx"), stages.path().join("other.onnx")).unwrap();
    let error = open(&stages.path().join("other.onnx"), None).err().map(|error| error.to_string());
    assert!(
        error.as_ref().is_some_and(|error| error.contains("a stage of it: embeddings.onnx")),
        "{error:?}"
    );
}

#[test]
fn nodes_in_any_order_give_the_same_package() {
    let shuffled = copy("genai-cpu");
    let path = shuffled.path().join("model.onnx");
    let mut graph = Graph::decode(&fs::read(&path).unwrap()).unwrap();
    graph.nodes.reverse();
    fs::write(&path, graph.encode()).unwrap();
    let found = open(shuffled.path(), None).unwrap();
    assert_eq!(found.graphs[0].1, open(&exports("genai-cpu"), None).unwrap().graphs[0].1);
    found.graphs[0].0.check_values().unwrap();
}

#[test]
fn files_that_are_cut_off_give_errors() {
    for (name, file) in [
        ("genai-cpu", "model.onnx"),
        ("genai-cpu", "genai_config.json"),
        ("optimum-merged", "decoder_model_merged.onnx"),
    ] {
        let folder = copy(name);
        let path = folder.path().join(file);
        let whole = fs::read(&path).unwrap();
        for cut in 0..40 {
            fs::write(&path, &whole[..whole.len() * cut / 40]).unwrap();
            assert!(import(folder.path()).is_err(), "{file} cut to {cut} of 40 parts");
        }
    }
}

#[test]
fn weights_lie_in_one_file_and_the_head_behind_the_rows() {
    let out = tempfile::tempdir().unwrap();
    let job = ImportJob {
        name: "tiny".parse().unwrap(),
        out: out.path(),
        source: "local x".to_owned(),
        compiler: "test".to_owned(),
    };
    let found = open(&exports("genai-cpu"), None).unwrap();
    let manifest = found.write(job, &Quiet, &AtomicBool::new(false)).unwrap();
    let files: Vec<&str> = manifest.files.keys().map(String::as_str).collect();
    assert_eq!(files, ["chat_template.jinja", "model.onnx", "model.onnx.data", "tokenizer.json"]);
    assert_eq!(manifest.provenance.source, "local x, an export of onnxruntime-genai");
    assert_eq!((manifest.tokenizer.bos, &manifest.tokenizer.stop[..]), (None, &[0][..]));
    let graph = Graph::decode(&fs::read(out.path().join("model.onnx")).unwrap()).unwrap();
    let last: Vec<&str> = graph.nodes.iter().rev().take(3).map(|node| node.op.as_str()).collect();
    assert_eq!(last, ["Cast", "MatMulNBits", "Gather"]);
}
