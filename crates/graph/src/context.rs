//! Compiled contexts: nodes that contain the output of a vendor's compiler (ONNX Runtime's EP context cache).

use crate::graph::{Graph, Node};

/// Operator of such a node, in [`MICROSOFT`](crate::graph::MICROSOFT)'s domain.
pub const CONTEXT_OP: &str = "EPContext";

impl Graph {
    /// Returns the nodes with compiled contexts.
    pub fn contexts(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.op == CONTEXT_OP)
    }

    /// Returns the file names of the contexts' binaries, relative to the model. Contexts with an embedded binary are
    /// skipped.
    pub fn context_binaries(&self) -> impl Iterator<Item = &str> {
        let apart = self.contexts().filter(|node| node.int("embed_mode") == Some(0));
        apart.filter_map(|node| node.text("ep_cache_context")).filter(|name| !name.is_empty())
    }
}
