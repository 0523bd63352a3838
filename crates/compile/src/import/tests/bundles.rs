//! Bundles of compiled contexts, and exports for one kind of device.

use narthex_graph::{Builder, build::NodeSpec, context::CONTEXT_OP, graph::MICROSOFT};
use narthex_spec::Ep;

use super::*;

/// Returns a graph in the form that a vendor's compiler produces.
fn context(source: &str) -> Graph {
    let mut b = Builder::new("g", &[("", 17), (MICROSOFT, 1)]);
    let x = b.input("past_key_0_in", DType::F16, &[2_usize.into(), "n".into()]);
    let text = |text: &str| Attribute::String(text.to_owned());
    let attributes = [("source", text(source)), ("ep_sdk_version", text("2.51"))];
    let spec =
        NodeSpec { name: "c", op: CONTEXT_OP, domain: MICROSOFT, inputs: &[&x], attributes: &attributes };
    let y = b.node(spec);
    b.output(&y, DType::F32, &["n".into()]);
    b.finish()
}

/// Returns a graph of fixed shapes in the form that Qualcomm's compiler produces: `tokens` new tokens after a past of
/// 12, two heads of four 8-bit elements. Heads come before the batch, and the elements of keys before the tokens.
fn stage(tokens: usize, edit: &dyn Fn(&mut Graph)) -> Graph {
    let mut b = Builder::new("g", &[("", 21), (MICROSOFT, 1)]);
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
    let (inputs, domain) = (inputs.each_ref().map(String::as_str), MICROSOFT);
    let spec = NodeSpec { name: "part", op: CONTEXT_OP, domain, inputs: &inputs, attributes: &attributes };
    let outputs = ["logits", "past_key_0_out", "past_value_0_out"];
    b.node_to(spec, &outputs);
    b.output(outputs[0], DType::F32, &shape(&[1, tokens, 256]));
    b.output(outputs[1], DType::U8, &shape(&[2, 1, 4, tokens]));
    b.output(outputs[2], DType::U8, &shape(&[2, 1, tokens, 4]));
    let mut graph = b.finish();
    edit(&mut graph);
    graph
}

/// Writes a bundle of two such stages with these session options.
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
    // The provider's compatibility record states the chips more exactly than the options.
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
        super::check(folder.path(), expect);
    };
    check(&|graph| graph.inputs[0].shape[1] = "n".into(), "a fixed number of tokens");
    check(&|graph| graph.inputs[1].shape.push(1_usize.into()), "one row with a fixed number of columns");
    check(&|graph| graph.inputs[1].name = "other".to_owned(), "found other");
    check(
        &|graph| graph.inputs[2].shape[0] = 3_usize.into(),
        "a past of one sequence, 2 heads and 4 elements",
    );
    check(
        &|graph| graph.inputs[3].shape[3] = 5_usize.into(),
        "a past of one sequence, 2 heads and 4 elements",
    );
    check(&|graph| graph.outputs[1].shape[3] = 2_usize.into(), "new tokens, alone or after the past");
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
    check(&source, "runs only on Intel's devices, through OpenVINO;");
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
        "0 context binaries for Qualcomm's Genie (genie_config.json), which runs only on the NPU of Snapdragon 8 Elite",
        "qnn:8-elite",
    );
    let options = json!({"custom_ops_library": "onnx_custom_ops.dll", "provider_options": []});
    let hybrid = json!({"model": {"type": "llama", "decoder": {"session_options": options}}});
    check(
        &[("genai_config.json", hybrid)],
        "operators from onnx_custom_ops.dll, which runs only on an AMD Ryzen AI NPU",
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
    edit(&folder.path().join("model.onnx"), &|graph| {
        graph.opsets.push(("com.ryzenai".to_owned(), 1));
        let product = graph.nodes.iter_mut().find(|node| node.op == "MatMulNBits").unwrap();
        "com.ryzenai".clone_into(&mut product.domain);
    });
    let bound = import(folder.path()).unwrap().bound.unwrap();
    assert_eq!((bound.ep, bound.holds.as_str()), (Ep::VitisAi, "a graph with com.ryzenai:MatMulNBits"));
    // Weights that only AMD's operators read are copied with the graph.
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
    check(folder.path(), "a compiled context (made with SDK 2.51), which runs only on a Snapdragon's NPU;");
    // The provider's compatibility record states the chips more exactly.
    let key = "ep_compatibility_info.QNNExecutionProvider";
    let stated = |info: &str, expect: &str| {
        let metadata = vec![(key.to_owned(), info.to_owned())];
        write(&Graph { metadata, ..graph.clone() });
        check(folder.path(), expect);
    };
    stated("v2:6:2.51.0:5.51.0:79:69:8:0", "runs only on the NPU of Snapdragon 8 Elite (8-elite);");
    stated(
        "v2:6:2.51.0:5.51.0:73,79:60,69:8,8:0",
        "X Plus (x-elite), the NPU of Snapdragon 8 Elite (8-elite);",
    );
    stated("v2:6:2.51.0:5.51.0:73:0:8:0", "runs only on the NPU of Snapdragon X Elite, X Plus (x-elite);");
    for unknown in ["v3:6:2.51.0:5.51.0:79:69:8:0", "v2:6", "v2:6:a:b:c:d:e", ""] {
        stated(unknown, "runs only on a Snapdragon's NPU;");
    }
}
