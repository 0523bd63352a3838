//! Weights that all sides run. Each model has one GGUF file.

use std::{fs, path::PathBuf};

use anyhow::Context;
use xtask_tools::{process, terminal};

use crate::{
    llama::Llama,
    setup::{CHECKPOINT, MODEL, Setup},
};

/// Packages for the generator of random weights.
const GENERATOR: &[&str] = &["numpy==2.4.6", "gguf==0.17.1"];

/// Sizes of a Llama with random weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct LlamaShape {
    /// Name of the model in Narthex's store.
    name: &'static str,
    layers: usize,
    hidden: usize,
    intermediate: usize,
    heads: usize,
    kv_heads: usize,
}

/// The shapes of Qwen 2.5 0.5B and of Llama 3.2 1B, with the vocabulary of SmolLM2.
pub(super) const SHAPES: [LlamaShape; 2] = [
    LlamaShape { name: "random-0.5b", layers: 24, hidden: 896, intermediate: 4864, heads: 14, kv_heads: 2 },
    LlamaShape { name: "random-1b", layers: 16, hidden: 2048, intermediate: 8192, heads: 32, kv_heads: 8 },
];

/// Weights of one model in the forms of all sides.
pub(super) struct Weights {
    /// Name of the model in Narthex's store and in the record.
    pub(super) model: &'static str,
    /// GGUF file from which llama.cpp's files are quantised.
    pub(super) checkpoint: PathBuf,
    /// GGUF file in Q4_1, which OpenVINO GenAI runs.
    pub(super) q4_1: PathBuf,
}

impl Weights {
    /// Returns the weights of SmolLM2, for which packages are compiled if they are missing.
    pub(super) fn published(setup: &Setup<'_>) -> anyhow::Result<Self> {
        for scheme in ["w8", "w4"] {
            setup.compile(scheme)?;
        }
        let checkpoint = setup.checkpoint(MODEL, CHECKPOINT)?;
        Ok(Self { model: MODEL, q4_1: checkpoint.clone(), checkpoint })
    }

    /// Generates random weights of a shape, if this has not been done, and compiles Narthex's packages.
    pub(super) fn random(setup: &Setup<'_>, shape: LlamaShape) -> anyhow::Result<Self> {
        let checkpoint = setup.folder.join(format!("{}.gguf", shape.name));
        if !checkpoint.is_file() {
            setup.install("gguf", GENERATOR)?;
            let part = checkpoint.with_extension("part");
            let mut script = setup.script("random_llama.py");
            script.arg(setup.checkpoint(MODEL, CHECKPOINT)?).arg(&part);
            for (option, size) in [
                ("--layers", shape.layers),
                ("--hidden", shape.hidden),
                ("--intermediate", shape.intermediate),
                ("--heads", shape.heads),
                ("--kv-heads", shape.kv_heads),
            ] {
                script.args([option, &size.to_string()]);
            }
            process::output(&mut script)?;
            fs::rename(&part, &checkpoint).with_context(|| checkpoint.display().to_string())?;
        }
        for scheme in ["w8", "w4"] {
            if !setup.package(shape.name, scheme).is_dir() {
                terminal::line(format!("compiling {} in {scheme}", shape.name));
                let mut compile = setup.session.command(&setup.narthex);
                compile.arg("compile").arg(&checkpoint);
                process::output(compile.args(["--name", shape.name, "--scheme", scheme]))?;
            }
        }
        let weights = Self { model: shape.name, q4_1: checkpoint.clone(), checkpoint };
        let q4_1 = weights.quantized(&Llama::prepare(setup)?, setup, "Q4_1")?;
        Ok(Self { q4_1, ..weights })
    }

    /// Returns llama.cpp's file in another type, which is quantised if it is missing.
    pub(super) fn quantized(
        &self,
        llama: &Llama<'_>,
        setup: &Setup<'_>,
        kind: &str,
    ) -> anyhow::Result<PathBuf> {
        let file = self.derived(setup, &format!("{kind}.gguf"));
        if !file.is_file() {
            llama.quantize(&self.checkpoint, kind, &file)?;
        }
        Ok(file)
    }

    /// Returns the path of a derived file or folder under `target/peers`.
    pub(super) fn derived(&self, setup: &Setup<'_>, ending: &str) -> PathBuf {
        setup.folder.join(format!("{}-{ending}", self.model.replace(':', "-")))
    }
}
