//! Architecture to graph, one file per target family.

pub mod dynamic;

use narthex_graph::Graph;
use narthex_spec::manifest::{GraphEntry, HostTable};

/// A lowered model: the graph, how the serve half binds it, and the tables that the host reads.
pub struct Lowered {
    /// The graph.
    pub graph: Graph,
    /// Its inputs, outputs and cache.
    pub entry: GraphEntry,
    /// Tables for the host.
    pub tables: Vec<HostTable>,
}
