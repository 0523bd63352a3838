//! A compile on paper: the graphs and every place in the data file as the compile would make them, out of an architecture
//! alone. No weight is read and no file is written.
//!
//! It is the lowering of the compile itself, so what it says of sizes and operators is what comes out. What calibration
//! adds is not known before a model has run: nothing but up to eight columns of a head that shares its weight with the
//! token table.

use std::{path::PathBuf, sync::atomic::AtomicBool};

use narthex_checkpoint::{CheckpointError, Weight, WeightSource};
use narthex_graph::{Builder, Graph, onnx::external::ExternalWriter};
use narthex_spec::{
    DType, Recipe, Scheme, Variant,
    arch::Architecture,
    manifest::{GraphEntry, HostTable, Part},
    progress::{Quiet, Stage, Unit},
    recipe::FixedShapes,
};

use crate::{
    emit::{Data, Emitter, Places},
    error::CompileError,
    lower::{self, dynamic::OPSETS, parts},
    pipeline::DATA_FILE,
    quant::{Plan, Scaling},
};

/// What a compile would make.
pub struct Paper {
    /// Each graph with its inputs, outputs and cache; their weights lie in a file that does not exist.
    pub graphs: Vec<(Graph, GraphEntry)>,
    /// Tables for the host, in the same file.
    pub tables: Vec<HostTable>,
    /// Bytes of that file.
    pub data_bytes: u64,
}

/// Compiles an architecture on paper.
///
/// # Errors
/// [`CompileError::Unsupported`] where the recipe asks for shapes that cannot be had of it.
pub fn compile(name: &str, architecture: &Architecture, recipe: &Recipe) -> Result<Paper, CompileError> {
    scaled(name, architecture, recipe, &Scaling::default())
}

/// As [`compile`], where channels are scaled.
pub(crate) fn scaled(
    name: &str,
    architecture: &Architecture,
    recipe: &Recipe,
    scaling: &Scaling,
) -> Result<Paper, CompileError> {
    let plan = Plan::new(architecture, recipe);
    let (stage, cancel) = (Stage::start(&Quiet, "on paper", Unit::Nothing, None), AtomicBool::new(false));
    let mut emitter = Emitter {
        graph: Builder::new(name, &OPSETS),
        weights: &Unread,
        plan: &plan,
        scaling,
        recipe,
        data_file: DATA_FILE,
        data: ExternalWriter::new(Data::Paper),
        stage: &stage,
        cancel: &cancel,
        places: Places::default(),
        compute: DType::F32,
    };
    let lowered = lower::lower(&mut emitter, architecture)?;
    let data_bytes = emitter.close()?;
    Ok(Paper { graphs: lowered.graphs, tables: lowered.tables, data_bytes })
}

/// Compiles an architecture on paper with the usual static shapes for NPUs.
///
/// # Errors
/// As [`compile`].
pub fn compile_static(architecture: &Architecture, scheme: Scheme) -> Result<Paper, CompileError> {
    let shapes = FixedShapes::new(FixedShapes::USUAL_CONTEXT);
    let recipe = Recipe { fixed: Some(shapes), ..Recipe::new(scheme) };
    let fixed = parts::shapes(architecture, &recipe, architecture.longest());
    compile("model", architecture, &Recipe { fixed, ..recipe })
}

impl Paper {
    /// Returns the graphs of static shape.
    pub fn static_graphs(&self) -> impl Iterator<Item = &(Graph, GraphEntry)> {
        self.graphs.iter().filter(|(_, entry)| entry.variant == Variant::Static)
    }

    /// Returns the bytes that one token takes in the KV cache of the static graphs, over all parts of the layers.
    pub fn token_bytes(&self) -> u64 {
        let decode = |entry: &GraphEntry| matches!(entry.part, Part::Layers { tokens: 1, .. });
        let layers = self.static_graphs().filter(|(_, entry)| decode(entry)).flat_map(|(_, entry)| &entry.kv);
        layers.map(|layer| layer.bytes_per_token() as u64).sum()
    }
}

/// Weights that nobody has.
pub(crate) struct Unread;

impl WeightSource for Unread {
    fn weight(&self, name: &str) -> Result<Weight<'_>, CheckpointError> {
        Err(CheckpointError::MissingTensor { path: PathBuf::from("a model on paper"), name: name.to_owned() })
    }

    fn has(&self, _: &str) -> bool {
        false
    }
}
