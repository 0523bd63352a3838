//! Hybrid precision: in a package of 4 bits, the layers that lose most for each byte keep 8 bits.

use serde::Serialize;

/// A linear layer with weights of 4 bits, which may have 8.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NarrowLayer {
    /// Path of the layer: `/layers.3/mlp/up_proj`.
    pub path: String,
    /// Canonical names of its weights.
    pub weights: Vec<String>,
    /// Squared change of its outputs by 4 bits over the calibration text, relative to the square of the outputs; `None` if
    /// it was not measured.
    pub loss: Option<f64>,
    /// Additional size in 8 bits.
    pub bytes: u64,
    /// True if it has 8 bits.
    pub is_wide: bool,
}

impl NarrowLayer {
    fn loss(&self) -> f64 {
        self.loss.unwrap_or(0.0)
    }
}

/// Returns the indices of the layers, the largest loss for each byte first.
fn by_density(layers: &[NarrowLayer]) -> Vec<usize> {
    let density = |layer: &NarrowLayer| layer.loss() / layer.bytes.max(1) as f64;
    let mut order: Vec<usize> = (0..layers.len()).collect();
    order.sort_by(|&a, &b| density(&layers[b]).total_cmp(&density(&layers[a])));
    order
}

/// Gives 8 bits to the layers that lose most for each byte, within `budget` additional bytes.
pub fn widen(layers: &mut [NarrowLayer], budget: u64) {
    let mut rest = budget;
    for index in by_density(layers) {
        let layer = &mut layers[index];
        if let Some(after) = rest.checked_sub(layer.bytes) {
            layer.is_wide = true;
            rest = after;
        }
    }
}

/// Gives 8 bits to as few layers as possible, so that the others lose at most `most` together.
pub fn widen_to_loss(layers: &mut [NarrowLayer], most: f64) {
    layers.iter_mut().for_each(|layer| layer.is_wide = false);
    for index in by_density(layers) {
        if remaining_loss(layers) <= most {
            return;
        }
        layers[index].is_wide = true;
    }
}

/// Returns the sum of the losses of layers with 4 bits.
pub fn remaining_loss(layers: &[NarrowLayer]) -> f64 {
    layers.iter().filter(|layer| !layer.is_wide).map(NarrowLayer::loss).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers() -> [NarrowLayer; 4] {
        [(0.5, 100), (0.1, 10), (0.2, 100), (0.0, 5)].map(|(loss, bytes)| NarrowLayer {
            path: String::new(),
            weights: Vec::new(),
            loss: Some(loss),
            bytes,
            is_wide: false,
        })
    }

    #[test]
    fn layers_that_lose_most_for_each_byte_are_wide() {
        let check = |budget, expected: [bool; 4]| {
            let mut layers = layers();
            widen(&mut layers, budget);
            assert_eq!(layers.map(|layer| layer.is_wide), expected, "{budget}");
        };
        check(0, [false; 4]);
        check(10, [false, true, false, false]);
        // The second does not fit, a later one does.
        check(109, [false, true, false, true]);
        check(110, [true, true, false, false]);
        check(210, [true, true, true, false]);
        check(u64::MAX, [true; 4]);
    }

    #[test]
    fn as_few_layers_are_wide_as_a_loss_allows() {
        let check = |most, expected: [bool; 4], rest: f64| {
            let mut layers = layers();
            layers[3].is_wide = true;
            widen_to_loss(&mut layers, most);
            assert_eq!(layers.each_ref().map(|layer| layer.is_wide), expected, "{most}");
            assert!((remaining_loss(&layers) - rest).abs() < 1e-12);
        };
        check(0.8, [false; 4], 0.8);
        check(0.75, [false, true, false, false], 0.7);
        check(0.3, [true, true, false, false], 0.2);
        check(0.0, [true, true, true, false], 0.0);
        check(-1.0, [true; 4], 0.0);
    }
}
