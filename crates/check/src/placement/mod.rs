//! Placement of single nodes: whether the NPU runs one, and the problem that keeps it off. Start at
//! [`placed_graph::PlacedGraph`]; `operators` decides for one node.

pub(crate) mod answers;
pub(crate) mod operator_forms;
pub(crate) mod operators;
pub(crate) mod placed_graph;
pub(crate) mod problem;
pub(crate) mod rewrites;
