//! The emitted graphs read exactly the weights that an architecture states.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use narthex_checkpoint::{CheckpointError, Encoding, Weight, WeightSource};
use narthex_graph::onnx::external::ExternalWriter;
use narthex_spec::{
    DType, Recipe, Scheme,
    arch::Architecture,
    progress::{Quiet, Stage, Unit},
    recipe::FixedShapes,
};
use narthex_testkit::architecture as example;
use parking_lot::Mutex;

use super::lower;
use crate::{
    emit::{Emitter, RoundedWeights, WeightSink, WrittenTensors, new_graph},
    package::{DATA_FILE, PackageWriter},
    quant::{ActivationRanges, Plan, Scaling},
};

/// Zeros for the weights of an architecture, and the names of those that were read.
struct StatedWeights {
    shapes: BTreeMap<String, Vec<usize>>,
    read: Mutex<BTreeSet<String>>,
}

impl WeightSource for StatedWeights {
    fn weight(&self, name: &str) -> Result<Weight<'_>, CheckpointError> {
        self.read.lock().insert(name.to_owned());
        let Some(shape) = self.shapes.get(name) else {
            let path = PathBuf::from("the architecture");
            return Err(CheckpointError::MissingTensor { path, name: name.to_owned() });
        };
        let bytes = vec![0; shape.iter().product::<usize>() * 4];
        Weight::new(name, shape.clone(), Encoding::F32, bytes)
    }

    fn has(&self, name: &str) -> bool {
        self.shapes.contains_key(name)
    }
}

/// Lowers an architecture and returns the names of the weights that it states, and of those that were read.
fn names(architecture: &Architecture, recipe: &Recipe) -> [Vec<String>; 2] {
    let shapes = architecture.weights().into_iter().map(|weight| (weight.name.to_string(), weight.shape));
    let weights = StatedWeights { shapes: shapes.collect(), read: Mutex::default() };
    let plan = Plan::new(architecture, recipe);
    let folder = tempfile::tempdir().unwrap();
    let package = PackageWriter::new(folder.path());
    let stage = Stage::start(&Quiet, "test", Unit::Nothing, None);
    let mut emitter = Emitter {
        graph: new_graph("test"),
        weights: &weights,
        plan: &plan,
        scaling: &Scaling::default(),
        rounded: &RoundedWeights::default(),
        ranges: &ActivationRanges::default(),
        recipe,
        data_file: DATA_FILE,
        data: ExternalWriter::new(WeightSink::File(package.create(DATA_FILE).unwrap())),
        stage: &stage,
        cancel: &AtomicBool::new(false),
        written: WrittenTensors::default(),
        compute: DType::F32,
    };
    lower(&mut emitter, architecture).unwrap_or_else(|error| panic!("{error}"));
    emitter.close().unwrap();
    let read = weights.read.into_inner().into_iter().collect();
    [weights.shapes.into_keys().collect(), read]
}

/// Folders of tiny checkpoints.
fn checkpoints() -> Vec<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let goldens = ["checkpoint/tests/goldens", "checkpoint/tests/goldens/families"];
    let more = ["device/tests/goldens/encoders", "device/tests/goldens/embedders"];
    let folders =
        goldens.into_iter().chain(more).flat_map(|goldens| crates.join(goldens).read_dir().unwrap());
    let mut folders: Vec<_> = folders.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("model.safetensors").is_file());
    folders.sort_unstable();
    folders
}

#[test]
fn graphs_read_the_weights_of_their_architecture() {
    let folders = checkpoints();
    assert!(folders.len() > 30, "{folders:?}");
    for folder in folders {
        let architecture = narthex_checkpoint::architecture(&folder);
        let architecture = architecture.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for scheme in [Scheme::F32, Scheme::W8] {
            let [stated, read] = names(&architecture, &Recipe::new(scheme));
            assert_eq!(read, stated, "{} in {scheme}", folder.display());
        }
    }
}

#[test]
fn both_variants_read_the_sinks_of_attention() {
    let mut arch = example::llama();
    arch.attentions_mut().for_each(|attention| attention.sinks = true);
    let architecture = Architecture::Decoder(arch);
    let shapes = FixedShapes { context: 48, shorter: vec![], prefill: vec![4], buckets: vec![] };
    for fixed in [None, Some(shapes)] {
        let [stated, read] = names(&architecture, &Recipe { fixed, ..Recipe::new(Scheme::F16) });
        assert!(stated.contains(&"layers.0.attn.sinks.weight".to_owned()), "{stated:?}");
        assert_eq!(read, stated);
    }
}
