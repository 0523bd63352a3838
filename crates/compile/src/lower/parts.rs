//! Division of a decoder's layers into parts, each of which fits into one compiled context of an NPU.

use narthex_spec::{
    Recipe,
    arch::{Architecture, Component, DecoderArch, SpeechArch},
    manifest::LayerRange,
    recipe::FixedShapes,
};

use crate::quant::Plan;

/// Lengths of the prefill graphs. The last tokens of a prompt run in the shortest graph that is long enough.
const LENGTHS: [usize; 2] = [32, 128];

/// Length of the only prefill graph if a second one costs too much.
const ONE_LENGTH: [usize; 1] = [64];

/// Minimum bytes of a layer's weights for a second prefill graph. In a context that shares weights, Qualcomm's compiler
/// (2.51) adds a third of a megabyte per layer for each further graph: less than three percent of a layer of this size.
const LARGE_LAYER: u64 = 12 << 20;

/// Returns the shapes of a recipe, for a model whose sequences have at most `longest` tokens. Prefill lengths that the
/// recipe leaves open are chosen for the model.
pub(crate) fn shapes(architecture: &Architecture, recipe: &Recipe, longest: usize) -> Option<FixedShapes> {
    let plan = Plan::new(architecture, recipe);
    let lengths = match architecture {
        Architecture::Decoder(arch) => {
            prefill(&layer_bytes(Component::Text, arch.layers.len(), &plan, recipe))
        }
        Architecture::Speech(arch) => {
            prefill(&layer_bytes(Component::SpeechDecoder, arch.decoder.layers, &plan, recipe))
        }
        Architecture::Encoder(_) | Architecture::Embedder(_) => &[],
    };
    Some(recipe.fixed.clone()?.or_prefill(lengths).within(longest))
}

/// Returns the number of new tokens of each prefill graph, for layers with these bytes.
fn prefill(bytes: &[u64]) -> &'static [usize] {
    let mean = bytes.iter().sum::<u64>().checked_div(bytes.len() as u64).unwrap_or(0);
    if mean >= LARGE_LAYER { &LENGTHS } else { &ONE_LENGTH }
}

/// Returns the layers of each part; `None` stands for all layers. The head of a divided model is a separate graph and
/// is not counted.
pub(super) fn parts(arch: &DecoderArch, plan: &Plan, recipe: &Recipe) -> Vec<Option<LayerRange>> {
    let layers = layer_bytes(Component::Text, arch.layers.len(), plan, recipe);
    divided(&units(arch), &layers, recipe)
}

/// Returns the layers of each part of the decoder of a model that transcribes speech; `None` stands for all layers.
pub(super) fn speech_parts(arch: &SpeechArch, plan: &Plan, recipe: &Recipe) -> Vec<Option<LayerRange>> {
    let layers = layer_bytes(Component::SpeechDecoder, arch.decoder.layers, plan, recipe);
    let units: Vec<LayerRange> =
        (0..layers.len()).map(|first| LayerRange { first, end: first + 1 }).collect();
    divided(&units, &layers, recipe)
}

/// Returns the bytes of the encoder's linear weights of a model that transcribes speech.
pub(super) fn speech_encoder_bytes(arch: &SpeechArch, plan: &Plan, recipe: &Recipe) -> u64 {
    layer_bytes(Component::SpeechEncoder, arch.encoder.layers, plan, recipe).iter().sum()
}

/// Divides runs of layers with these bytes into parts.
fn divided(units: &[LayerRange], layers: &[u64], recipe: &Recipe) -> Vec<Option<LayerRange>> {
    let bytes: Vec<u64> =
        units.iter().map(|unit| layers.iter().take(unit.end).skip(unit.first).sum()).collect();
    match even(&bytes, recipe.part_bytes).as_slice() {
        [] | [_] => vec![None],
        several => several
            .iter()
            .map(|run| Some(LayerRange { first: units[run.first].first, end: units[run.end - 1].end }))
            .collect(),
    }
}

/// Returns the runs of layers that must stay together: layers that share keys and values, and those between them.
fn units(arch: &DecoderArch) -> Vec<LayerRange> {
    let mut units: Vec<LayerRange> = Vec::new();
    for (index, layer) in arch.layers.iter().enumerate() {
        let mut unit = LayerRange { first: index, end: index + 1 };
        if let Some(source) = layer.shared_entry() {
            while let Some(before) = units.pop_if(|before| before.end > source) {
                unit.first = before.first;
            }
        }
        units.push(unit);
    }
    units
}

/// Returns the bytes of the linear weights of each of a component's `count` layers. Norms and biases are negligible.
fn layer_bytes(component: Component, count: usize, plan: &Plan, recipe: &Recipe) -> Vec<u64> {
    let mut bytes = vec![0u64; count];
    for weight in plan.weights.iter().filter(|weight| weight.component == component) {
        if let Some(sum) = weight.layer.and_then(|layer| bytes.get_mut(layer)) {
            *sum += weight.bytes(recipe.block);
        }
    }
    bytes
}

/// Returns the fewest runs of at most `limit` bytes, or of a single layer, divided as evenly as possible.
fn even(bytes: &[u64], limit: u64) -> Vec<LayerRange> {
    let fewest = runs(bytes, limit);
    let mut low = 0;
    let mut high = limit;
    while low < high {
        let middle = low + (high - low) / 2;
        if runs(bytes, middle).len() > fewest.len() { low = middle + 1 } else { high = middle }
    }
    runs(bytes, high)
}

/// Groups layers into runs up to the limit, in order.
fn runs(bytes: &[u64], limit: u64) -> Vec<LayerRange> {
    let mut runs: Vec<LayerRange> = Vec::new();
    let mut filled = 0u64;
    for (layer, &own) in bytes.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if filled.saturating_add(own) <= limit => {
                run.end = layer + 1;
                filled += own;
            }
            _ => {
                runs.push(LayerRange { first: layer, end: layer + 1 });
                filled = own;
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use narthex_spec::{
        Scheme,
        arch::{Activation, Architecture, Attention, DecoderLayer, KvSource, Mlp, Residual},
    };
    use narthex_testkit::architecture as example;

    use super::*;

    #[test]
    fn layers_are_divided_evenly_into_as_few_parts_as_hold_them() {
        let check = |bytes: &[u64], limit, expected: &[(usize, usize)]| {
            let found: Vec<_> = even(bytes, limit).iter().map(|range| (range.first, range.end)).collect();
            assert_eq!(found, expected, "{bytes:?} in {limit}");
        };
        check(&[10; 6], 100, &[(0, 6)]);
        check(&[10; 6], 60, &[(0, 6)]);
        // Five and one would also fit.
        check(&[10; 6], 50, &[(0, 3), (3, 6)]);
        check(&[10; 7], 30, &[(0, 3), (3, 6), (6, 7)]);
        check(&[50, 10, 10, 10], 60, &[(0, 1), (1, 4)]);
        // A layer larger than the limit is a part of its own.
        check(&[10, 99, 10], 20, &[(0, 1), (1, 2), (2, 3)]);
        check(&[10; 2], 0, &[(0, 1), (1, 2)]);
        check(&[], 10, &[]);
    }

    #[test]
    fn large_layers_have_two_lengths_of_prefill() {
        let check = |heads: [usize; 3], inner, scheme, expected: &[usize]| {
            let [heads, kv, size] = heads;
            let mlp = Mlp { inner, activation: Activation::Silu, gated: true, bias: false, cutoff: None };
            let attention = Attention::plain(heads, kv, size);
            let arch = DecoderArch {
                hidden: inner / 3 / 64 * 64,
                layers: vec![DecoderLayer::dense(attention, mlp); 4],
                ..example::llama()
            };
            let recipe = Recipe::new(scheme);
            let plan = Plan::new(&Architecture::Decoder(arch.clone()), &recipe);
            let bytes = layer_bytes(Component::Text, arch.layers.len(), &plan, &recipe);
            assert_eq!(prefill(&bytes), expected, "{heads} heads in {scheme}");
        };
        check([9, 3, 64], 1536, Scheme::W8, &[64]);
        check([16, 8, 128], 3072, Scheme::W8, &[32, 128]);
        check([16, 8, 128], 3072, Scheme::W4, &[64]);
    }

    #[test]
    fn layers_that_share_keys_and_values_stay_together() {
        let check = |shared: &[(usize, usize)], part_bytes, expected: &[(usize, usize)]| {
            let mlp = Mlp { inner: 96, activation: Activation::Silu, gated: true, bias: false, cutoff: None };
            let attention = Attention::plain(4, 2, 16);
            let layer = DecoderLayer { residual: Residual::Sandwich, ..DecoderLayer::dense(attention, mlp) };
            let mut arch = DecoderArch { layers: vec![layer; 6], ..example::llama() };
            for &(layer, source) in shared {
                arch.layers[layer].attention_mut().unwrap().kv = KvSource::Layer(source);
            }
            let recipe = Recipe { part_bytes, ..Recipe::new(Scheme::W8) };
            let plan = Plan::new(&Architecture::Decoder(arch.clone()), &recipe);
            let found: Vec<_> = parts(&arch, &plan, &recipe)
                .iter()
                .map(|range| range.map_or((0, 6), |range| (range.first, range.end)))
                .collect();
            assert_eq!(found, expected, "{shared:?} in {part_bytes}");
        };
        check(&[], 1, &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]);
        check(&[(4, 2), (5, 3)], 1 << 30, &[(0, 6)]);
        check(&[(4, 2), (5, 3)], 1, &[(0, 1), (1, 2), (2, 6)]);
        check(&[(3, 2), (5, 4)], 1, &[(0, 1), (1, 2), (2, 4), (4, 6)]);
        check(&[(5, 0)], 1, &[(0, 6)]);
    }
}
