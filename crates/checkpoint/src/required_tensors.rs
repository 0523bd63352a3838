//! The check that a checkpoint has exactly the weights of its architecture.
//!
//! The check runs once when a checkpoint is opened, so later stages need not handle missing weights or wrong shapes.

use std::collections::HashSet;

use narthex_spec::arch::{Architecture, Family, KvSource, Table, WeightRole, WeightSpec};

use crate::{error::Result, limits::unsupported, tensors::Tensors};

/// Fails unless every weight of `architecture` is present with the right shape and a supported encoding, and every
/// weight of a layer is used.
pub(super) fn check(tensors: &Tensors, architecture: &Architecture) -> Result<()> {
    let mut used = HashSet::new();
    for weight in architecture.weights() {
        let name = weight.name.to_string();
        let mut shape = weight.shape;
        // A single segment may be stored as a vector.
        if weight.role == WeightRole::Table(Table::Segments)
            && shape[0] == 1
            && tensors.shape(&name)?.len() == 1
        {
            shape.remove(0);
        }
        tensors.check(&name, &shape)?;
        used.extend(tensors.find(&name).into_iter().flatten());
    }

    let idle = idle_weights(architecture);
    used.extend(idle.iter().filter_map(|weight| tensors.find(&weight.name.to_string())).flatten());
    let layers = layers_that_are_read(architecture);
    let mut left: Vec<_> = tensors
        .by_name
        .keys()
        .filter(|name| tensors.names.is_layer_weight(name) && !used.contains(*name))
        .filter(|name| tensors.names.layer_number(name).is_none_or(|layer| layer < layers))
        .collect();
    left.sort_unstable();

    match left.first() {
        Some(name) => {
            Err(unsupported("tensor", "only the weights that the architecture names in a layer", name))
        }
        None => Ok(()),
    }
}

/// Returns the number of layers after which files have layers that predict further tokens, which are not read; `usize::MAX` for
/// models without them.
fn layers_that_are_read(architecture: &Architecture) -> usize {
    match architecture {
        Architecture::Decoder(decoder) if decoder.family == Family::Qwen35 => decoder.layers.len(),
        _ => usize::MAX,
    }
}

/// Returns the weights that a file may have although they are not read: all of a decoder that shares keys and values, with
/// those of the layers that have none of their own.
pub(super) fn idle_weights(architecture: &Architecture) -> Vec<WeightSpec> {
    let Architecture::Decoder(decoder) = architecture else { return Vec::new() };
    if decoder.layers.iter().all(|layer| layer.shared_entry().is_none()) {
        return Vec::new();
    }
    let mut own = decoder.clone();
    own.attentions_mut().for_each(|attention| attention.kv = KvSource::Own);
    own.weights()
}

/// Returns the total number of elements in the weights of an architecture.
pub fn parameters(architecture: &Architecture) -> u64 {
    architecture.weights().iter().map(WeightSpec::elements).sum()
}
