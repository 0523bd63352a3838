//! Into which parts a decoder's layers are divided, so that each fits into one compiled context of an NPU.

use narthex_spec::{Recipe, arch::DecoderArch, manifest::LayerRange};

use crate::quant::Plan;

/// Which layers a graph has; all of them where they are not many. Where a model has to be divided, its head, which is a
/// graph of its own, is not counted.
pub(super) fn parts(arch: &DecoderArch, plan: &Plan, recipe: &Recipe) -> Vec<Option<LayerRange>> {
    let mut bytes = vec![0u64; arch.layers.len()];
    for weight in &plan.weights {
        let layer = weight.name.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
        if let Some(sum) = layer.and_then(|layer: usize| bytes.get_mut(layer)) {
            *sum += weight.bytes(recipe.block);
        }
    }
    match even(&bytes, recipe.part_bytes).as_slice() {
        [] | [_] => vec![None],
        several => several.iter().copied().map(Some).collect(),
    }
}

/// As few runs of layers as hold at most `limit` bytes each, or one layer, and those as even as they can be.
fn even(bytes: &[u64], limit: u64) -> Vec<LayerRange> {
    let fewest = runs(bytes, limit);
    let (mut low, mut high) = (0, limit);
    while low < high {
        let middle = low + (high - low) / 2;
        if runs(bytes, middle).len() > fewest.len() { low = middle + 1 } else { high = middle }
    }
    runs(bytes, high)
}

/// Runs of layers, each filled up to the limit in its turn.
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
    use super::*;

    #[test]
    fn layers_are_divided_evenly_into_as_few_parts_as_hold_them() {
        let check = |bytes: &[u64], limit, expected: &[(usize, usize)]| {
            let found: Vec<_> = even(bytes, limit).iter().map(|range| (range.first, range.end)).collect();
            assert_eq!(found, expected, "{bytes:?} in {limit}");
        };
        check(&[10; 6], 100, &[(0, 6)]);
        check(&[10; 6], 60, &[(0, 6)]);
        // Five and one would do, too.
        check(&[10; 6], 50, &[(0, 3), (3, 6)]);
        check(&[10; 7], 30, &[(0, 3), (3, 6), (6, 7)]);
        check(&[50, 10, 10, 10], 60, &[(0, 1), (1, 4)]);
        // A layer that is larger than a part is a part by itself.
        check(&[10, 99, 10], 20, &[(0, 1), (1, 2), (2, 3)]);
        check(&[10; 2], 0, &[(0, 1), (1, 2)]);
        check(&[], 10, &[]);
    }
}
