//! Lowering of architectures to graphs: `dynamic` writes the dynamic variant, `static_shapes` the static variant. Both
//! share the layers.
//! `speech` writes the graphs of models that transcribe speech, `vision` those of vision towers, `conformer` those of audio
//! towers.

mod conformer;
mod decoder;
pub(crate) mod dynamic;
mod embedder;
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
    DType, Variant,
    arch::{Architecture, DecoderArch},
    manifest::{GraphEntry, HostTable},
};

use crate::{emit::Emitter, error::Result};

pub(crate) struct LoweredModel {
    /// Each graph with its inputs, outputs and cache.
    pub(crate) graphs: Vec<(Graph, GraphEntry)>,
    pub(crate) tables: Vec<HostTable>,
    /// Graphs of the towers.
    pub(crate) towers: Vec<(Graph, GraphEntry)>,
}

/// Lowers an architecture to the dynamic variant, and to the static variant if the recipe has shapes for it.
pub(crate) fn lower(e: &mut Emitter<'_>, architecture: &Architecture) -> Result<LoweredModel> {
    let mut lowered = match architecture {
        Architecture::Decoder(arch) => dynamic::decoder(e, arch)?,
        Architecture::Encoder(arch) => dynamic::encoder(e, arch)?,
        Architecture::Embedder(arch) => embedder::dynamic(e, arch)?,
        Architecture::Speech(arch) => speech::dynamic(e, arch)?,
    };
    if let Some(shapes) = &e.recipe.fixed {
        let fixed = static_shapes::lower(e, architecture, shapes)?;
        lowered.graphs.extend(fixed.graphs);
        lowered.tables.extend(fixed.tables);
    }
    if let Architecture::Decoder(arch) = architecture {
        lowered.towers = towers(e, arch)?;
    }
    Ok(lowered)
}

/// Lowers the towers of a decoder to the dynamic variant, and to the static variant if the recipe has shapes for it.
fn towers(e: &mut Emitter<'_>, arch: &DecoderArch) -> Result<Vec<(Graph, GraphEntry)>> {
    let mut variants = vec![(Variant::Dynamic, DType::F32, "")];
    if e.recipe.fixed.is_some() {
        variants.push((Variant::Static, DType::F16, "-fixed"));
    }
    let mut graphs = Vec::new();
    for (variant, dtype, suffix) in variants {
        e.compute = dtype;
        if let Some(tower) = &arch.vision {
            let name = format!("vision{suffix}");
            e.begin_graph(&name);
            let entry = vision::lower(e, arch, tower, variant, &format!("{name}.onnx"))?;
            graphs.push((e.finish_graph()?, entry));
        }
        if let Some(tower) = &arch.audio {
            let name = format!("audio{suffix}");
            e.begin_graph(&name);
            let entry = conformer::lower(e, arch, tower, variant, &format!("{name}.onnx"))?;
            graphs.push((e.finish_graph()?, entry));
        }
    }
    Ok(graphs)
}

#[cfg(test)]
mod tests;
