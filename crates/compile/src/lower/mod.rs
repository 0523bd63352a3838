//! Architecture to graph, one file per target family.

pub mod dynamic;
mod encoder;
pub mod fixed;
mod io;
pub(crate) mod parts;

use narthex_graph::Graph;
use narthex_spec::manifest::{GraphEntry, HostTable};

/// A lowered model: its graphs, how the serve half binds them, and the tables that the host reads.
pub struct Lowered {
    /// Each graph with its inputs, outputs and cache.
    pub graphs: Vec<(Graph, GraphEntry)>,
    /// Tables for the host.
    pub tables: Vec<HostTable>,
}
