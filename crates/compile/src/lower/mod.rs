//! Lowering of architectures to graphs: `dynamic` writes variant A, `static_shapes` variant B. Both share the layers.
//! `speech` writes the graphs of models that transcribe speech, `vision` those of vision towers.

mod decoder;
pub(crate) mod dynamic;
mod encoder;
mod io;
mod mobilenet;
pub(crate) mod parts;
mod speech;
mod static_encoder;
mod static_shapes;
mod static_speech;
mod vision;

use narthex_graph::Graph;
use narthex_spec::{
    arch::Architecture,
    manifest::{GraphEntry, HostTable},
};

use crate::{emit::Emitter, error::Result};

pub(crate) struct LoweredModel {
    /// Each graph with its inputs, outputs and cache.
    pub(crate) graphs: Vec<(Graph, GraphEntry)>,
    pub(crate) tables: Vec<HostTable>,
    /// Graphs of the vision tower.
    pub(crate) vision: Vec<(Graph, GraphEntry)>,
}

/// Lowers an architecture to variant A, and to variant B if the recipe has shapes for it.
pub(crate) fn lower(e: &mut Emitter<'_>, architecture: &Architecture) -> Result<LoweredModel> {
    let mut lowered = match architecture {
        Architecture::Decoder(arch) => dynamic::decoder(e, arch)?,
        Architecture::Encoder(arch) => dynamic::encoder(e, arch)?,
        Architecture::Speech(arch) => speech::dynamic(e, arch)?,
    };
    if let Some(shapes) = &e.recipe.fixed {
        let fixed = static_shapes::lower(e, architecture, shapes)?;
        lowered.graphs.extend(fixed.graphs);
        lowered.tables.extend(fixed.tables);
    }
    if let Architecture::Decoder(arch) = architecture
        && let Some(tower) = &arch.vision
    {
        lowered.vision = vision::graphs(e, arch, tower)?;
    }
    Ok(lowered)
}
