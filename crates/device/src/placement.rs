//! Placement of a session's nodes on execution providers, as recorded by ONNX Runtime.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{CStr, c_char},
    ptr, slice,
};

use narthex_spec::Ep;
use ort::AsPointer;

use crate::error::DeviceError;

/// Nodes of a session by execution provider.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    /// Provider, operator type and name of each node.
    pub nodes: Vec<PlacedNode>,
    /// Number of parts of the graph that a provider runs as a whole, for each provider.
    pub subgraphs: BTreeMap<Ep, usize>,
}

/// Placement of a graph of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphPlacement {
    /// File of the graph in the package, also if another form of it was loaded.
    pub graph: String,
    /// Placement of its nodes. A graph that was compiled ahead of time has a single node `EPContext`.
    pub placement: Placement,
}

/// A node and its provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedNode {
    /// The provider.
    pub ep: Ep,
    /// Operator type.
    pub op: String,
    /// The node's path.
    pub name: String,
}

/// A node of a session that computes several nodes of its graph.
#[derive(Debug)]
pub(crate) struct ChainNode {
    /// The node's path.
    pub(crate) name: String,
    /// Operator type and path of each node that it computes.
    pub(crate) nodes: Vec<(String, String)>,
}

impl Placement {
    /// Replaces chains by the nodes that they compute.
    pub(crate) fn replace_chains(&mut self, chains: &[ChainNode]) {
        let chains: HashMap<&str, &ChainNode> =
            chains.iter().map(|chain| (chain.name.as_str(), chain)).collect();
        let placed = std::mem::take(&mut self.nodes).into_iter();
        self.nodes = placed
            .flat_map(|node| match chains.get(node.name.as_str()) {
                Some(chain) => {
                    let nodes = chain.nodes.iter();
                    nodes
                        .map(|(op, name)| (op.clone(), name.clone()))
                        .map(|(op, name)| PlacedNode { ep: node.ep, op, name })
                        .collect()
                }
                None => vec![node],
            })
            .collect();
    }

    /// Returns the number of nodes for each provider and operator type.
    pub fn ops_per_ep(&self) -> BTreeMap<Ep, BTreeMap<&str, usize>> {
        let mut counts: BTreeMap<Ep, BTreeMap<&str, usize>> = BTreeMap::new();
        for node in &self.nodes {
            *counts.entry(node.ep).or_default().entry(&node.op).or_default() += 1;
        }
        counts
    }
}

fn check(status: ort_sys::OrtStatusPtr) -> Result<(), DeviceError> {
    // SAFETY: the C API has just returned the status; `ort` takes ownership of it and releases it.
    unsafe { ort::Error::result_from_status(status) }.map_err(|error| DeviceError::Ort {
        what: "report the placement",
        message: error.message().to_owned(),
    })
}

/// Returns the list at an out-pointer, which has `length` elements.
///
/// # Safety
/// `list` must be null, or point to `length` pointers that live as long as the session.
unsafe fn list<'a, T>(list: *const *const T, length: usize) -> &'a [*const T] {
    if list.is_null() {
        return &[];
    }
    // SAFETY: the caller guarantees it.
    unsafe { slice::from_raw_parts(list, length) }
}

/// # Safety
/// `text` must be null, or a C string that lives as long as the session.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller guarantees it.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Returns the placement that a session recorded when it was created.
pub(crate) fn of(session: &ort::session::Session) -> Result<Placement, DeviceError> {
    let api = ort::api();
    let mut placement = Placement::default();
    let mut subgraphs = ptr::null();
    let mut count = 0;

    // SAFETY: the session is alive and was created with recording enabled, every out-pointer is valid, and all results
    // belong to the session.
    unsafe {
        check((api.Session_GetEpGraphAssignmentInfo)(session.ptr(), &raw mut subgraphs, &raw mut count))?;
        for &subgraph in list(subgraphs, count) {
            let mut name = ptr::null();
            check((api.EpAssignedSubgraph_GetEpName)(subgraph, &raw mut name))?;
            let name = text(name);
            let ep = Ep::from_ort_name(&name).ok_or_else(|| DeviceError::Ort {
                what: "report the placement",
                message: format!("unknown execution provider {name:?}"),
            })?;
            *placement.subgraphs.entry(ep).or_default() += 1;
            let mut nodes = ptr::null();
            let mut count = 0;
            check((api.EpAssignedSubgraph_GetNodes)(subgraph, &raw mut nodes, &raw mut count))?;
            for &node in list(nodes, count) {
                let mut op = ptr::null();
                let mut path = ptr::null();
                check((api.EpAssignedNode_GetOperatorType)(node, &raw mut op))?;
                check((api.EpAssignedNode_GetName)(node, &raw mut path))?;
                placement.nodes.push(PlacedNode { ep, op: text(op), name: text(path) });
            }
        }
    }
    Ok(placement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_reported_as_their_nodes() {
        let node =
            |op: &str, name: &str| PlacedNode { ep: Ep::Cpu, op: op.to_owned(), name: name.to_owned() };
        let nodes = vec![node("Cast", "/a"), node("Chain", "c.0"), node("Add", "/b"), node("Chain", "c.1")];
        let chain = |name: &str, nodes: &[(&str, &str)]| {
            let own = |&(op, name): &(&str, &str)| (op.to_owned(), name.to_owned());
            ChainNode { name: name.to_owned(), nodes: nodes.iter().map(own).collect() }
        };
        let first = [("Linear", "/0/qkv"), ("Attention", "/0")];
        let chains = [chain("c.1", &[("GatedMlp", "/1")]), chain("c.0", &first)];
        let mut placement = Placement { nodes, ..Placement::default() };
        placement.replace_chains(&chains);
        let expected = [
            node("Cast", "/a"),
            node("Linear", "/0/qkv"),
            node("Attention", "/0"),
            node("Add", "/b"),
            node("GatedMlp", "/1"),
        ];
        assert_eq!(placement.nodes, expected);
    }

    #[test]
    fn nodes_are_counted_by_provider_and_operator() {
        let node = |ep, op: &str| PlacedNode { ep, op: op.to_owned(), name: String::new() };
        let nodes =
            vec![node(Ep::Cpu, "Add"), node(Ep::Qnn, "MatMul"), node(Ep::Cpu, "Mul"), node(Ep::Cpu, "Add")];
        let placement = Placement { nodes, ..Placement::default() };
        let cpu = BTreeMap::from([("Add", 2), ("Mul", 1)]);
        assert_eq!(
            placement.ops_per_ep(),
            BTreeMap::from([(Ep::Cpu, cpu), (Ep::Qnn, BTreeMap::from([("MatMul", 1)]))])
        );
    }
}
