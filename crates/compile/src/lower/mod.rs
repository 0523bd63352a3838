//! Architecture to graph, one file per target family.

pub mod dynamic;
mod encoder;
pub mod fixed;
mod fixed_encoder;
mod io;
pub(crate) mod parts;

use narthex_graph::Graph;
use narthex_spec::{
    arch::Architecture,
    manifest::{GraphEntry, HostTable},
};

use crate::{emit::Emitter, error::CompileError};

/// A lowered model: its graphs, how the serve half binds them, and the tables that the host reads.
pub struct Lowered {
    /// Each graph with its inputs, outputs and cache.
    pub graphs: Vec<(Graph, GraphEntry)>,
    /// Tables for the host.
    pub tables: Vec<HostTable>,
}

/// Lowers an architecture to variant A, and to variant B where the recipe has shapes for it.
pub(crate) fn lower(e: &mut Emitter<'_>, architecture: &Architecture) -> Result<Lowered, CompileError> {
    let mut lowered = match architecture {
        Architecture::Decoder(arch) => dynamic::decoder(e, arch)?,
        Architecture::Encoder(arch) => dynamic::encoder(e, arch)?,
    };
    if let Some(shapes) = &e.recipe.fixed {
        let fixed = fixed::lower(e, architecture, shapes)?;
        lowered.graphs.extend(fixed.graphs);
        lowered.tables.extend(fixed.tables);
    }
    Ok(lowered)
}
