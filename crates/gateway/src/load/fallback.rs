//! Nodes that run on another device than their graph was loaded on: each with the reason and what helps. The device says
//! which nodes and in what words the provider refused them; the compiler's rules say why and what to do.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
};

use narthex_check::{
    self as check, Reason,
    qnn_errors::{code_in, explain},
};
use narthex_device::{DeviceError, RefusedNode, ep::Device};
use narthex_graph::onnx::files::open_files;
use narthex_spec::{Ep, Target, target::QnnChip};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The most nodes that are listed.
const MOST: usize = 32;

/// The most nodes that a sentence names, each with another reason.
const NAMED: usize = 3;

/// The nodes of a model that do not run on the device that its graphs were loaded on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallen {
    /// How many there are.
    pub count: usize,
    /// The first of them.
    pub nodes: Vec<FallenNode>,
}

/// A node that does not run on the device that its graph was loaded on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FallenNode {
    /// The graph's file.
    pub graph: String,
    /// The node's path.
    pub path: String,
    /// Operator type.
    pub op: String,
    /// Why.
    pub why: String,
    /// The next step, where one is known.
    pub fix: Option<String>,
}

impl Fallen {
    /// Whether every node is where it should be.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a node, listed while there is room.
    pub(crate) fn push(&mut self, node: FallenNode) {
        self.count += 1;
        if self.nodes.len() < MOST {
            self.nodes.push(node);
        }
    }

    /// These and those.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.count += other.count;
        self.nodes.extend(other.nodes);
        self.nodes.truncate(MOST);
        self
    }

    /// What helps: the fix of each reason that is named, once.
    pub fn fix(&self) -> Option<String> {
        let fixes = self.named().filter_map(|node| node.fix.as_deref());
        let mut told = BTreeSet::new();
        let fixes: Vec<&str> = fixes.filter(|fix| told.insert(*fix)).collect();
        (!fixes.is_empty()).then(|| fixes.join("; "))
    }

    /// The first node of each reason.
    fn named(&self) -> impl Iterator<Item = &FallenNode> {
        let mut told = BTreeSet::new();
        self.nodes.iter().filter(move |node| told.insert((&node.op, &node.why))).take(NAMED)
    }
}

impl fmt::Display for Fallen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut named = 0;
        for FallenNode { path, op, why, .. } in self.named() {
            let comma = if named > 0 { "; " } else { "" };
            write!(f, "{comma}{path} ({op}): {why}")?;
            named += 1;
        }
        match self.count - named {
            0 => Ok(()),
            1 => f.write_str("; and 1 more node"),
            more => write!(f, "; and {more} more nodes"),
        }
    }
}

/// An error about a graph of the package in `folder`, with the reasons of the nodes that a device refused, or with the
/// number in words by which its vendor's compiler failed; `next` says how the nodes at fault are found for a target.
pub(crate) fn explained(
    folder: &Path,
    device: &Device,
    error: Error,
    next: impl FnOnce(&Target) -> String,
) -> Error {
    match error {
        Error::Device(DeviceError::Ort { what, message }) => {
            let number = if device.ep() == Ep::Qnn { code_in(&message).and_then(explain) } else { None };
            let error = DeviceError::Ort { what, message };
            match (number, target(device)) {
                (Some(number), Some(target)) => {
                    Error::Numbered(error, format!("{number}. {}", next(&target)))
                }
                _ => error.into(),
            }
        }
        Error::Device(DeviceError::NotWhole { graph, ep, nodes, refused }) => {
            let fallen = fallen(folder, &graph, (ep, target(device).as_ref()), &refused);
            Error::NotWhole { graph, ep, nodes, fallen }
        }
        other => other,
    }
}

/// Why a device's provider did not take these nodes of a graph.
pub(crate) fn fallen(
    folder: &Path,
    graph: &str,
    (ep, target): (Ep, Option<&Target>),
    refused: &[RefusedNode],
) -> Fallen {
    let rules = target.map(|target| rules(&folder.join(graph), target)).unwrap_or_default();
    let mut fallen = Fallen::default();
    for node in refused {
        let rule = rules.get(&node.name);
        let said = node.reason.as_ref().map(|reason| format!("the {ep} provider says: {reason}"));
        let told: Vec<String> = rule.map(|rule| rule.why.clone()).into_iter().chain(said).collect();
        let why = if told.is_empty() {
            format!("the {ep} provider left it to another one without a reason")
        } else {
            told.join("; ")
        };
        let fix = rule.and_then(|rule| rule.fix.as_ref()).map(|fix| fix.text.clone());
        let (path, op) = (node.name.clone(), node.op.clone());
        fallen.push(FallenNode { graph: graph.to_owned(), path, op, why, fix });
    }
    fallen
}

/// What the rules say of a graph's nodes; nothing where the graph cannot be read, which its load tells.
fn rules(graph: &Path, target: &Target) -> BTreeMap<String, Reason> {
    let parts = open_files(&[graph.to_owned()]).unwrap_or_default();
    parts.iter().flat_map(|part| check::reasons(part, target)).collect()
}

/// What a device is in the rules; `None` where there are none for it.
pub(crate) fn target(device: &Device) -> Option<Target> {
    match device {
        // A chip that is not known goes by the rules of the one that was asked.
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
    fn each_reason_is_told_once_and_the_rest_is_counted() {
        let mut fallen = Fallen::default();
        let node = |path: &str, why: &str, fix: Option<&str>| FallenNode {
            graph: "g.onnx".to_owned(),
            path: path.to_owned(),
            op: "Op".to_owned(),
            why: why.to_owned(),
            fix: fix.map(str::to_owned),
        };
        fallen.push(node("/a", "it is odd", Some("mend it")));
        assert_eq!(fallen.to_string(), "/a (Op): it is odd");
        for index in 0..MOST {
            fallen.push(node(&format!("/b.{index}"), "it is even", Some("mend it")));
        }
        assert_eq!((fallen.count, fallen.nodes.len()), (MOST + 1, MOST));
        assert_eq!(fallen.to_string(), "/a (Op): it is odd; /b.0 (Op): it is even; and 31 more nodes");
        assert_eq!(fallen.fix().as_deref(), Some("mend it"));
        assert_eq!(Fallen::default().fix(), None);
    }

    #[test]
    fn a_node_that_no_rule_knows_has_the_provider_s_words() {
        let refused = |reason: Option<&str>| RefusedNode {
            name: "/a".to_owned(),
            op: "Op".to_owned(),
            reason: reason.map(str::to_owned),
        };
        let check = |reason, expected: &str| {
            let found = fallen(Path::new("absent"), "g.onnx", (Ep::Qnn, None), &[refused(reason)]);
            assert_eq!(found.nodes[0].why, expected);
        };
        check(Some("Cannot get shape"), "the qnn provider says: Cannot get shape");
        check(None, "the qnn provider left it to another one without a reason");
    }
}
