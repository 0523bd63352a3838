//! Reasons and fixes of nodes that a provider refused: the provider's own words joined with the compiler's rules.

use std::{collections::BTreeMap, path::Path};

use narthex_check::{
    self as check, Reason,
    qnn_errors::{code_in, explain as explain_code},
};
use narthex_device::{DeviceError, RefusedNode, ep::Device};
use narthex_graph::onnx::files::open_files;
use narthex_spec::{Ep, Target, target::QnnChip};

use crate::{
    error::Error,
    report::fallback::{FallbackNode, FallbackNodes},
};

/// Adds the reasons of refused nodes, or the meaning of a vendor's error code, to an error about a graph of the package
/// in `folder`. `next` returns the next step for finding the failing nodes.
pub(crate) fn explain(
    folder: &Path,
    device: &Device,
    error: Error,
    next: impl FnOnce(&Target) -> String,
) -> Error {
    match error {
        Error::Device(DeviceError::Ort { what, message }) => {
            let meaning =
                if device.ep() == Ep::Qnn { code_in(&message).and_then(explain_code) } else { None };
            let error = DeviceError::Ort { what, message };
            match (meaning, rules_target(device)) {
                (Some(meaning), Some(target)) => {
                    Error::VendorCompiler { error, hint: format!("{meaning}. {}", next(&target)) }
                }
                _ => error.into(),
            }
        }
        Error::Device(DeviceError::NotWhole { graph, ep, nodes, refused }) => {
            let fallback = explain_nodes(folder, &graph, device, ep, &refused);
            Error::NotWhole { graph, ep, nodes, fallback }
        }
        other => other,
    }
}

/// Returns the nodes of a graph that the provider refused, each with its reason and fix.
pub(crate) fn explain_nodes(
    folder: &Path,
    graph: &str,
    device: &Device,
    ep: Ep,
    refused: &[RefusedNode],
) -> FallbackNodes {
    let rules =
        rules_target(device).map(|target| rule_reasons(&folder.join(graph), &target)).unwrap_or_default();
    let mut nodes = FallbackNodes::default();
    for node in refused {
        let rule = rules.get(&node.name);
        let said = node.reason.as_ref().map(|reason| format!("the {ep} provider reports: {reason}"));
        let reasons: Vec<String> = rule.map(|rule| rule.why.clone()).into_iter().chain(said).collect();
        let why = if reasons.is_empty() {
            format!("the {ep} provider reports no reason")
        } else {
            reasons.join("; ")
        };
        let fix = rule.and_then(|rule| rule.fix.as_ref()).map(|fix| fix.text.clone());
        let path = node.name.clone();
        let op = node.op.clone();
        nodes.push(FallbackNode { graph: graph.to_owned(), path, op, why, fix });
    }
    nodes
}

/// Returns the rules that each node of a graph breaks; empty if the graph cannot be read, which its load reports.
fn rule_reasons(graph: &Path, target: &Target) -> BTreeMap<String, Reason> {
    let parts = open_files(&[graph.to_owned()]).unwrap_or_default();
    parts.iter().flat_map(|part| check::reasons(part, target)).collect()
}

/// Returns the target whose rules apply to a device; `None` for devices without rules.
fn rules_target(device: &Device) -> Option<Target> {
    match device {
        // An unknown chip is treated as the first one that was supported.
        Device::Qnn(options) if options.chips.is_empty() => Some(Target::Qnn(vec![QnnChip::XElite])),
        Device::Qnn(options) => Some(Target::Qnn(options.chips.clone())),
        Device::OpenVino(options) => Some(Target::OpenVino(options.device)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_no_rule_knows_has_the_provider_s_words() {
        let refused = |reason: Option<&str>| RefusedNode {
            name: "/a".to_owned(),
            op: "Op".to_owned(),
            reason: reason.map(str::to_owned),
        };
        let check = |reason, expected: &str| {
            let found =
                explain_nodes(Path::new("absent"), "g.onnx", &Device::Cpu, Ep::Qnn, &[refused(reason)]);
            assert_eq!(found.nodes[0].why, expected);
        };
        check(Some("Cannot get shape"), "the qnn provider reports: Cannot get shape");
        check(None, "the qnn provider reports no reason");
    }
}
