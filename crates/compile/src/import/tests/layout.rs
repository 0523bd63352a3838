//! Exports with other files, or another order of nodes, than the packages made from them.

use narthex_spec::{Variant, manifest::Slot};

use super::*;

#[test]
fn stages_that_differ_in_shapes_only_become_one_graph() {
    /// Changes the pipeline in the folder's configuration.
    fn pipeline(folder: &Path, change: &dyn Fn(&mut serde_json::Value)) {
        let path = folder.join("genai_config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut config["model"]["decoder"]["pipeline"]);
        fs::write(path, config.to_string()).unwrap();
    }
    /// Copies the data file, and makes the stages for single tokens read their weights from the copy.
    fn apart(folder: &Path) {
        fs::copy(folder.join("transformer.onnx.data"), folder.join("other.data")).unwrap();
        edit(&folder.join("iterator.onnx"), &|graph| {
            for constant in &mut graph.initializers {
                if let InitializerData::External { file, .. } = &mut constant.data {
                    "other.data".clone_into(file);
                }
            }
        });
    }
    let taken = |change: &dyn Fn(&Path)| {
        let folder = copy("pipeline");
        change(folder.path());
        let manifest = import(folder.path()).unwrap();
        let [entry] = &manifest.graphs[..] else { panic!("{} graphs", manifest.graphs.len()) };
        assert_eq!((entry.kv.len(), entry.variant), (2, Variant::Dynamic));
        entry.clone()
    };
    let entry = taken(&|_| {});
    // One buffer holds past and present of one sequence, as the stages declare.
    let past = entry.input(Slot::PastKey { layer: 0 }).unwrap();
    assert_eq!(past.shape[0], Dim::Fixed(1));
    assert!(entry.output(Slot::PresentKey { layer: 0 }).is_some());
    // Changed: stages without an enclosing list, a head of fixed length, weights in two files, an output with another
    // name.
    taken(&|folder| pipeline(folder, &|stages| *stages = stages[0].take()));
    taken(&|folder| edit(&folder.join("lm_head.onnx"), &|graph| graph.outputs[0].shape[1] = 1_usize.into()));
    taken(&apart);
    taken(&|folder| {
        edit(&folder.join("lm_head.onnx"), &|graph| {
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
    let refused = |change: &dyn Fn(&Path), expect: &str| {
        let folder = copy("pipeline");
        change(folder.path());
        check(folder.path(), expect);
    };
    let epsilon = |graph: &mut Graph| graph.nodes[3].attributes.push(("x".to_owned(), Attribute::Int(1)));
    refused(&|folder| edit(&folder.join("iterator.onnx"), &epsilon), "a node that differs from /model/");
    let changed = |folder: &Path| {
        apart(folder);
        let path = folder.join("other.data");
        let mut bytes = fs::read(&path).unwrap();
        bytes[100] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    refused(&changed, "a different constant 1/");
    refused(&|folder| pipeline(folder, &|stages| *stages = json!([])), "0 stages");
    refused(&|folder| pipeline(folder, &|stages| *stages = json!(7)), "7");
    let stage = |key: &'static str, value: serde_json::Value| {
        move |folder: &Path| pipeline(folder, &|stages| stages[0]["lm_head"][key] = value.clone())
    };
    refused(&stage("filename", json!("../lm_head.onnx")), "a file in the folder");
    refused(&stage("filename", json!(1)), "lm_head: invalid type");
    refused(&stage("run_on_prompt", json!(false)), " nodes, expected");
}

#[test]
fn a_file_and_its_folder_give_the_same_import() {
    let written = |path: &Path, file: Option<&str>| {
        let out = tempfile::tempdir().unwrap();
        write(path, file, out.path()).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
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
        assert_eq!(
            narthex_files::canonicalize(&folder(&root.join(file))).unwrap(),
            narthex_files::canonicalize(&root).unwrap()
        );
    }
    // Another quantisation next to the configured one, and a graph that is not a stage of the pipeline.
    let other = copy("genai-cpu");
    fs::rename(other.path().join("model.onnx"), other.path().join("model_q4.onnx")).unwrap();
    assert_eq!(written(&other.path().join("model_q4.onnx"), None).graphs.len(), 1);
    let stages = copy("pipeline");
    fs::copy(exports("genai-cpu/model.onnx"), stages.path().join("other.onnx")).unwrap();
    let error = open(&stages.path().join("other.onnx"), None, None).err().map(|error| error.to_string());
    assert!(
        error.as_ref().is_some_and(|error| error.contains("a stage of it: embeddings.onnx")),
        "{error:?}"
    );
}

#[test]
fn nodes_in_any_order_give_the_same_package() {
    let shuffled = copy("genai-cpu");
    edit(&shuffled.path().join("model.onnx"), &|graph| graph.nodes.reverse());
    let found = open(shuffled.path(), None, None).unwrap();
    assert_eq!(found.graphs[0].1, open(&exports("genai-cpu"), None, None).unwrap().graphs[0].1);
    found.graphs[0].0.check_values().unwrap();
}

#[test]
fn weights_lie_in_one_file_and_the_head_behind_the_rows() {
    let out = tempfile::tempdir().unwrap();
    let manifest = write(&exports("genai-cpu"), None, out.path()).unwrap();
    let files: Vec<&str> = manifest.files.keys().map(String::as_str).collect();
    assert_eq!(files, ["chat_template.jinja", "model.onnx", "model.onnx.data", "tokenizer.json"]);
    assert_eq!(manifest.provenance.source, "local x, an export of onnxruntime-genai");
    assert_eq!((manifest.bos(), manifest.stop_tokens()), (None, &[0][..]));
    let graph = Graph::decode(&fs::read(out.path().join("model.onnx")).unwrap()).unwrap();
    let last: Vec<&str> = graph.nodes.iter().rev().take(3).map(|node| node.op.as_str()).collect();
    assert_eq!(last, ["Cast", "MatMulNBits", "Gather"]);
}
