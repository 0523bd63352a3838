//! Weights of a checkpoint with the updates of adapters.
//!
//! An updated weight is decoded to `f32` when it is read, so that it is rounded once, with its update.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use narthex_spec::arch::{Architecture, WeightRole};
use rayon::prelude::*;

use super::{Adapter, AdapterFormat, LowRankUpdate};
use crate::{
    error::{CheckpointError, Result},
    limits::unsupported,
    names::TensorPart,
    required_tensors,
    tensors::Tensors,
    weight::{Weight, WeightSource},
};

/// Parts of the names of experts, whose weights are not updated.
const EXPERTS: [&str; 2] = [".experts", "_exps"];

/// Weights with updates.
struct AdaptedWeights {
    base: Tensors,
    adapters: Vec<Adapter>,
    /// Updates by the canonical name of their weight: the number of the adapter, and the update's name in it.
    updates: HashMap<String, Vec<(usize, String)>>,
}

/// Returns the weights of a checkpoint in this format with the updates of the adapters.
///
/// Fails for adapters in another format, and for updates of weights that the architecture does not have.
pub(crate) fn adapted(
    base: Tensors,
    architecture: &Architecture,
    format: AdapterFormat,
    adapters: &[Adapter],
) -> Result<Box<dyn WeightSource>> {
    if adapters.is_empty() {
        return Ok(Box::new(base));
    }
    for Adapter { files, .. } in adapters {
        if files.format != format {
            let expected = match format {
                AdapterFormat::Peft => "a folder of PEFT, as the model is in safetensors",
                AdapterFormat::Gguf => {
                    "a GGUF file, as the model is one; convert the adapter with convert_lora_to_gguf.py of llama.cpp, or take \
                     the model in safetensors"
                }
            };
            let found = files.path.display();
            return Err(unsupported("format of the adapter", expected, found));
        }
    }

    let mut weights = AdaptedWeights { base, adapters: adapters.to_vec(), updates: HashMap::new() };
    let mut unused: Vec<HashSet<&str>> =
        adapters.iter().map(|adapter| adapter.files.updates.keys().map(String::as_str).collect()).collect();
    for weight in architecture.weights().iter().filter(|weight| matches!(weight.role, WeightRole::Linear(_)))
    {
        let name = weight.name.to_string();
        for (index, adapter) in adapters.iter().enumerate() {
            if let Some(key) = weights.key(&name, adapter) {
                unused[index].remove(key.as_str());
                weights.updates.entry(name.clone()).or_default().push((index, key));
            }
        }
        weights.updates_of(&name, &weight.shape)?;
    }
    // Updates of weights that the model has and does not read change nothing.
    for weight in required_tensors::idle_weights(architecture) {
        for (unused, adapter) in unused.iter_mut().zip(adapters) {
            if let Some(key) = weights.key(&weight.name.to_string(), adapter) {
                unused.remove(key.as_str());
            }
        }
    }

    match unused.iter().zip(adapters).find_map(|(unused, adapter)| Some((unused.iter().min()?, adapter))) {
        None => Ok(Box::new(weights)),
        Some((name, Adapter { files, .. })) if EXPERTS.iter().any(|part| name.contains(part)) => {
            let expected = "updates of layers that are not experts; take an adapter of attention, or merge this one into \
                            the checkpoint with PEFT";
            Err(unsupported("update", expected, name).in_file(&files.path))
        }
        Some((name, Adapter { files, .. })) => {
            let expected = format!(
                "updates of the linear layers of this model, {}; take the model that the adapter was trained for",
                architecture.describe()
            );
            Err(unsupported("update", expected, name).in_file(&files.path))
        }
    }
}

/// Matrices of a weight's update.
struct WeightUpdate<'a> {
    /// `[rows, rank]`, in the canonical order of rows and with all factors.
    up: Weight<'a>,
    /// `[rank, cols]`.
    down: Weight<'a>,
}

/// Adds row `row` of the product of `up` and `down` to `out`.
fn add_row(up: &Weight<'_>, down: &[f32], row: usize, out: &mut [f32]) {
    let mut factors = vec![0.0; up.cols()];
    up.read_row(row, &mut factors);
    for (factor, down) in factors.iter().zip(down.chunks_exact(out.len().max(1))) {
        out.iter_mut().zip(down).for_each(|(out, down)| *out += factor * down);
    }
}

impl AdaptedWeights {
    /// Returns the name of a weight's update in an adapter.
    fn key(&self, name: &str, adapter: &Adapter) -> Option<String> {
        let names = self.base.names.file_names(name).into_iter();
        // A row for each head, or a matrix of a stack, is no linear layer of its own.
        let whole = names
            .filter(|file| !matches!(file.part, Some(TensorPart::PerHead | TensorPart::Matrix(_))))
            .map(|file| file.name);
        let keys = whole.filter_map(|file| adapter.files.format.key(&file).map(str::to_owned));
        let mut present = keys.filter(|key| adapter.files.updates.contains_key(key));
        present.next()
    }

    /// Returns the updates of a weight with the canonical shape `shape`.
    fn updates_of(&self, name: &str, shape: &[usize]) -> Result<Vec<WeightUpdate<'_>>> {
        let keys = self.updates.get(name).into_iter().flatten();
        keys.map(|(index, key)| {
            let Adapter { entry, files } = &self.adapters[*index];
            let LowRankUpdate { down, up, factor } = &files.updates[key];
            let read = || {
                let rows: usize = shape.iter().rev().skip(1).product();
                let cols = shape.last().copied().unwrap_or(0);
                let down = files.weight(name, down)?;
                down.expect_shape(&[down.rows_len(), cols])?;
                let part = self.base.names.part(name);
                let up = self.base.layout.canonical_rows(files.weight(name, up)?, part)?;
                up.expect_shape(&[rows, down.rows_len()])?;
                Ok(WeightUpdate { up: up.scaled(factor * entry.scale.get()), down })
            };
            read().map_err(|error: CheckpointError| error.of_tensor(key.clone()).in_file(&files.path))
        })
        .collect()
    }
}

impl WeightSource for AdaptedWeights {
    fn weight(&self, name: &str) -> Result<Weight<'_>> {
        let base = self.base.weight(name)?;
        if !self.updates.contains_key(name) {
            return Ok(base);
        }
        let updates = self.updates_of(name, &base.shape)?;
        let downs: Vec<Vec<f32>> = updates.iter().map(|update| update.down.to_f32()).collect();
        let cols = base.cols();
        let mut values = vec![0.0f32; base.rows_len() * cols];
        values.par_chunks_mut(cols.max(1)).enumerate().for_each(|(row, out)| {
            base.read_row(row, out);
            updates.iter().zip(&downs).for_each(|(update, down)| add_row(&update.up, down, row, out));
        });
        Weight::of_values(base.name, base.shape, &values)
    }

    fn has(&self, name: &str) -> bool {
        self.base.has(name)
    }

    fn file(&self, name: &str) -> Option<&Path> {
        self.base.file(name)
    }

    fn called(&self, name: &str) -> String {
        self.base.called(name)
    }
}
