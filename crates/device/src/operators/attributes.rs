//! Attributes of a node, from ONNX Runtime for a node of its own, and from the graph for a member of a chain.

use narthex_graph::Node;
use ort::operator::KernelContext;

/// Attributes of a node.
pub(super) trait Attributes {
    /// Returns an integer.
    fn int(&self, name: &str) -> Option<i64>;

    /// Returns a single-precision number.
    fn float(&self, name: &str) -> Option<f32>;
}

impl Attributes for KernelContext<'_> {
    fn int(&self, name: &str) -> Option<i64> {
        self.get(name)
    }

    fn float(&self, name: &str) -> Option<f32> {
        self.get(name)
    }
}

impl Attributes for Node {
    fn int(&self, name: &str) -> Option<i64> {
        Self::int(self, name)
    }

    fn float(&self, name: &str) -> Option<f32> {
        Self::float(self, name)
    }
}
