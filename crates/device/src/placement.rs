//! The placement of a session's nodes on execution providers, as ONNX Runtime records it.

use std::{
    collections::BTreeMap,
    ffi::{CStr, c_char},
    ptr, slice,
};

use narthex_spec::Ep;
use ort::AsPointer;

use crate::error::DeviceError;

/// The nodes of a session by execution provider.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    /// Each node's provider, operator type and name.
    pub nodes: Vec<PlacedNode>,
    /// Parts of the graph that one provider runs as a whole, per provider.
    pub subgraphs: BTreeMap<Ep, usize>,
}

/// Placement of a graph of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphPlacement {
    /// The graph's file in the package, whichever form of it was loaded.
    pub graph: String,
    /// Placement of its nodes. One node `EPContext` stands for a graph that was compiled ahead of time.
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

impl Placement {
    /// Number of nodes per provider.
    pub fn nodes_per_ep(&self) -> BTreeMap<Ep, usize> {
        let mut counts = BTreeMap::new();
        for node in &self.nodes {
            *counts.entry(node.ep).or_default() += 1;
        }
        counts
    }

    /// Number of nodes per provider and operator type.
    pub fn ops_per_ep(&self) -> BTreeMap<Ep, BTreeMap<&str, usize>> {
        let mut counts: BTreeMap<Ep, BTreeMap<&str, usize>> = BTreeMap::new();
        for node in &self.nodes {
            *counts.entry(node.ep).or_default().entry(&node.op).or_default() += 1;
        }
        counts
    }
}

fn check(status: ort_sys::OrtStatusPtr) -> Result<(), DeviceError> {
    // SAFETY: the status was just returned by the C API and is handed over to `ort`, which releases it.
    unsafe { ort::Error::result_from_status(status) }.map_err(|error| DeviceError::Ort {
        what: "report the placement",
        message: error.message().to_owned(),
    })
}

/// The list behind an out-pointer and its length.
///
/// # Safety
/// `list` must point to `length` pointers that live as long as the session, or be null.
unsafe fn list<'a, T>(list: *const *const T, length: usize) -> &'a [*const T] {
    if list.is_null() {
        return &[];
    }
    // SAFETY: by this function's own promise.
    unsafe { slice::from_raw_parts(list, length) }
}

/// # Safety
/// `text` must be a C string that lives as long as the session, or null.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by this function's own promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The placement that a session recorded when it was made.
pub(crate) fn of(session: &ort::session::Session) -> Result<Placement, DeviceError> {
    let api = ort::api();
    let mut placement = Placement::default();
    let (mut subgraphs, mut count) = (ptr::null(), 0);
    // SAFETY: the session is alive, it was made with recording switched on, every out-pointer is valid, and what the
    // calls give belongs to the session.
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
            let (mut nodes, mut count) = (ptr::null(), 0);
            check((api.EpAssignedSubgraph_GetNodes)(subgraph, &raw mut nodes, &raw mut count))?;
            for &node in list(nodes, count) {
                let (mut op, mut path) = (ptr::null(), ptr::null());
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
    fn nodes_are_counted_by_provider_and_operator() {
        let node = |ep, op: &str| PlacedNode { ep, op: op.to_owned(), name: String::new() };
        let nodes =
            vec![node(Ep::Cpu, "Add"), node(Ep::Qnn, "MatMul"), node(Ep::Cpu, "Mul"), node(Ep::Cpu, "Add")];
        let placement = Placement { nodes, ..Placement::default() };
        assert_eq!(placement.nodes_per_ep(), BTreeMap::from([(Ep::Cpu, 3), (Ep::Qnn, 1)]));
        let cpu = BTreeMap::from([("Add", 2), ("Mul", 1)]);
        assert_eq!(
            placement.ops_per_ep(),
            BTreeMap::from([(Ep::Cpu, cpu), (Ep::Qnn, BTreeMap::from([("MatMul", 1)]))])
        );
    }
}
