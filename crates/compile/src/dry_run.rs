//! Compiles without weights: produces the graphs, and every offset in the weights file as in a real compile, from the
//! architecture alone. No weight is read and no file is written.
//!
//! A dry run uses the lowering of the compile itself, so its sizes and operators are those of the package. Only the
//! result of calibration is unknown before a model has run. Calibration adds at most eight columns to a head that
//! shares its weight with the token table.

use std::{collections::BTreeMap, path::PathBuf, sync::atomic::AtomicBool};

use narthex_checkpoint::{CheckpointError, Weight, WeightSource};
use narthex_graph::{Graph, onnx::external::ExternalWriter};
use narthex_spec::{
    DType, Recipe, Scheme, Target, Variant,
    arch::Architecture,
    manifest::{GraphEntry, HostTable, Part},
    progress::{Quiet, Stage, Unit},
    recipe::FixedShapes,
};

use crate::{
    emit::{Emitter, RoundedWeights, WeightSink, WrittenTensors, new_graph},
    error::Result,
    lower::{self, LoweredModel, parts},
    package::DATA_FILE,
    quant::{ActivationRanges, Plan, Scaling},
};

/// The graphs and sizes that a compile would produce.
pub struct DryRun {
    /// Each graph with its inputs, outputs and cache. The file with their weights does not exist.
    pub graphs: Vec<(Graph, GraphEntry)>,
    /// Graphs of the towers, likewise.
    pub towers: Vec<(Graph, GraphEntry)>,
    /// Host tables, in the same file.
    pub tables: Vec<HostTable>,
    /// Size of the weights file in bytes.
    pub data_bytes: u64,
    /// Weights of each linear layer of the graphs, by its path.
    pub(crate) products: BTreeMap<String, Vec<String>>,
}

impl DryRun {
    /// Compiles an architecture without weights.
    ///
    /// # Errors
    /// [`CompileError::Unsupported`](crate::CompileError::Unsupported) if the architecture cannot have the shapes of
    /// the recipe.
    pub fn new(name: &str, architecture: &Architecture, recipe: &Recipe) -> Result<Self> {
        Self::of_plan(name, architecture, recipe, &Plan::new(architecture, recipe))
    }

    /// Compiles an architecture without weights, in the storage of a plan.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn of_plan(
        name: &str,
        architecture: &Architecture,
        recipe: &Recipe,
        plan: &Plan,
    ) -> Result<Self> {
        let stage = Stage::start(&Quiet, "dry run", Unit::Nothing, None);
        let cancel = AtomicBool::new(false);
        let mut emitter = Emitter {
            graph: new_graph(name),
            weights: &NoWeights,
            plan,
            scaling: &Scaling::default(),
            rounded: &RoundedWeights::default(),
            ranges: &ActivationRanges::default(),
            recipe,
            data_file: DATA_FILE,
            data: ExternalWriter::new(WeightSink::Discard),
            stage: &stage,
            cancel: &cancel,
            written: WrittenTensors::default(),
            compute: DType::F32,
        };

        let lowered = lower::lower(&mut emitter, architecture)?;
        let products = std::mem::take(&mut emitter.written.products);
        let data_bytes = emitter.close()?;
        let LoweredModel { graphs, tables, towers } = lowered;
        Ok(Self { graphs, towers, tables, data_bytes, products })
    }

    /// Compiles an architecture without weights, with the default static shapes for a target.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_static_shapes(architecture: &Architecture, scheme: Scheme, target: &Target) -> Result<Self> {
        let shapes = FixedShapes::new(FixedShapes::USUAL_CONTEXT);
        let recipe = Recipe { fixed: Some(shapes), ..Recipe::new(scheme) };
        let recipe = recipe.for_targets(vec![target.clone()], None);
        let fixed = parts::shapes(architecture, &recipe, architecture.longest());
        Self::new("model", architecture, &Recipe { fixed, ..recipe })
    }

    /// Returns the graphs with static shapes, those of the towers last.
    pub fn static_graphs(&self) -> impl Iterator<Item = &(Graph, GraphEntry)> {
        self.graphs.iter().chain(&self.towers).filter(|(_, entry)| entry.variant == Variant::Static)
    }

    /// Returns the number of bytes that one token takes in the KV cache of the static graphs, over all parts of the
    /// layers.
    pub fn token_bytes(&self) -> u64 {
        self.static_graphs()
            .filter(|(_, entry)| matches!(entry.part, Part::Layers { tokens: 1, .. }))
            .flat_map(|(_, entry)| &entry.kv)
            .map(|layer| layer.bytes_per_token() as u64)
            .sum()
    }
}

/// A weight source without weights, for dry runs, which never read it.
pub(crate) struct NoWeights;

impl WeightSource for NoWeights {
    fn weight(&self, name: &str) -> Result<Weight<'_>, CheckpointError> {
        Err(CheckpointError::MissingTensor { path: PathBuf::from("a dry run"), name: name.to_owned() })
    }

    fn has(&self, _: &str) -> bool {
        false
    }
}
