//! Compiled contexts: nodes that stand for what a vendor's compiler made of a graph (ONNX Runtime's EP context cache).

use crate::graph::{Graph, Node};

/// The operator of such a node, in [`MICROSOFT`](crate::graph::MICROSOFT)'s domain.
pub const CONTEXT_OP: &str = "EPContext";

impl Graph {
    /// The nodes that stand for what a vendor's compiler made.
    pub fn contexts(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.op == CONTEXT_OP)
    }

    /// The binaries that the contexts name, relative to the model; nothing of contexts that hold theirs.
    pub fn context_binaries(&self) -> impl Iterator<Item = &str> {
        let apart = self.contexts().filter(|node| node.int("embed_mode") == Some(0));
        apart.filter_map(|node| node.text("ep_cache_context")).filter(|name| !name.is_empty())
    }
}
