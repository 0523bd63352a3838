//! Folders of onnxruntime-genai for AMD's NPUs, with the settings of Ryzen AI. A graph with only ONNX Runtime's
//! operators is imported like any other. If `model_generate` inserted AMD's own operators (domains `com.ryzenai`,
//! `com.amd`), with weights that only they read (`.pb.bin`), the package is bound to AMD's NPU.

use std::path::Path;

use narthex_graph::Graph;
use narthex_spec::{Ep, manifest::BoundDevice};
use serde_json::Value;

use super::device_bundle;
use crate::error::{CompileError, Result};

/// Domains of ONNX Runtime's operators.
const OWN: [&str; 5] = ["", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"];

/// Domains of AMD's operators.
const AMD: [&str; 2] = ["com.ryzenai", "com.amd"];

/// Returns the device of graphs that only AMD's software runs: graphs with AMD's operators, or with other foreign
/// operators under settings that name that software.
///
/// # Errors
/// [`CompileError::Bound`] if the settings need such a graph and its file is missing.
pub(super) fn bound<'a>(
    folder: &Path,
    options: &Value,
    graphs: Option<impl IntoIterator<Item = &'a Graph>>,
) -> Result<Option<BoundDevice>> {
    let library = device_bundle::text(options, "custom_ops_library");
    let amd = device_bundle::provider(options).is_some_and(|device| device == device_bundle::RYZEN)
        || library.is_some();
    let mut foreign = None;
    let there = graphs.is_some();

    for graph in graphs.into_iter().flatten() {
        graph.for_each_node(&mut |node| {
            if foreign.is_none() && !OWN.contains(&node.domain.as_str()) {
                foreign = Some((node.domain.clone(), node.op.clone()));
            }
        });
    }

    let what = match (foreign, library) {
        (Some((domain, op)), Some(library)) => {
            format!("a graph of operators from {library}, {domain}:{op} first")
        }
        (Some((domain, op)), None) if amd || AMD.contains(&domain.as_str()) => {
            format!("a graph with {domain}:{op}")
        }
        (None, Some(library)) if !there => format!("a graph of operators from {library}"),
        (None, None) if amd && !there => "a graph".to_owned(),
        _ => return Ok(None),
    };

    let device = device_bundle::RYZEN.to_owned();
    if there {
        return Ok(Some(BoundDevice { ep: Ep::VitisAi, target: None, device, holds: what }));
    }

    Err(CompileError::Bound {
        path: folder.to_owned(),
        what,
        device,
        instead:
            "name a folder that also contains the graph; for other devices import what onnxruntime-genai's model builder makes \
             of the export that went into model_generate (narthex export MODEL --format quark DIR), or compile its \
             checkpoint: narthex compile DIR"
                .to_owned(),
    })
}

/// Returns the weight file of AMD's operators, if the settings name one.
pub(super) fn weights(options: &Value) -> Option<String> {
    device_bundle::text(options, "external_data_file").filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use narthex_graph::{Builder, build::NodeSpec};
    use narthex_spec::DType;
    use serde_json::json;

    use super::*;

    fn graph(domain: &str, op: &str) -> Graph {
        let mut b = Builder::new("g", &[("", 17), (domain, 1)]);
        let x = b.input("x", DType::F32, &["n".into()]);
        let y = b.node(NodeSpec { name: "n", op, domain, inputs: &[&x], attributes: &[] });
        b.output(&y, DType::F32, &["n".into()]);
        b.finish()
    }

    #[test]
    fn operators_decide_and_not_settings() {
        let check = |options: Value, graph: Option<Graph>, expect: Option<&str>| {
            let found = bound(Path::new("folder"), &options, graph.as_ref().map(|graph| [graph]));
            match (found, expect) {
                (Ok(None), None) => {}
                (Ok(Some(bound)), Some(expect)) => {
                    assert_eq!((bound.ep, bound.device.as_str()), (Ep::VitisAi, "an AMD Ryzen AI NPU"));
                    assert!(graph.is_some() && bound.holds.contains(expect), "{}", bound.holds);
                }
                (Err(error), Some(expect)) => {
                    let (text, hint) = (error.to_string(), error.hint().unwrap_or_default());
                    assert!(graph.is_none() && text.contains(expect), "{text}");
                    assert!(text.contains("runs only on an AMD Ryzen AI NPU"), "{text}");
                    assert!(hint.contains("--format quark"), "{hint}");
                }
                (found, _) => panic!("{options}: {found:?}"),
            }
        };
        let npu = json!({"provider_options": [{"RyzenAI": {"hybrid_opt_token_backend": "npu"}}]});
        let vitis = json!({"provider_options": [{"VitisAI": {"config_file": "vaip_llm.json"}}]});
        let hybrid = json!({
            "custom_ops_library": "onnx_custom_ops.dll",
            "external_data_file": "model_jit.pb.bin",
            "provider_options": [],
        });
        let ours = || Some(graph("com.microsoft", "MatMulNBits"));
        let theirs = || Some(graph("com.ryzenai", "MatMulNBitsBf"));
        for options in [&npu, &vitis, &hybrid, &json!({"provider_options": []})] {
            check(options.clone(), ours(), None);
        }
        check(npu.clone(), theirs(), Some("a graph with com.ryzenai:MatMulNBitsBf"));
        check(json!({}), theirs(), Some("a graph with com.ryzenai:MatMulNBitsBf"));
        check(json!({}), Some(graph("com.amd", "SSMLP")), Some("a graph with com.amd:SSMLP"));
        check(
            hybrid.clone(),
            theirs(),
            Some("operators from onnx_custom_ops.dll, com.ryzenai:MatMulNBitsBf first"),
        );
        check(hybrid, None, Some("operators from onnx_custom_ops.dll"));
        check(vitis, None, Some("folder contains a graph"));
        check(json!({"provider_options": [{"dml": {}}]}), None, None);
        // ONNX Runtime reports operators of other vendors itself.
        check(json!({}), Some(graph("org.example", "Op")), None);
    }
}
