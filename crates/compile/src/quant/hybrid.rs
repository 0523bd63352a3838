//! Hybrid precision: the layers of a package of 4 bits that keep 8 bits are those that lose most for each byte.

use serde::Serialize;

/// Loss of a linear layer in 4 bits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerLoss {
    /// Path of the layer: `/layers.3/mlp/up_proj`.
    pub path: String,
    /// Canonical names of its weights.
    pub weights: Vec<String>,
    /// Squared change of its outputs over the calibration text, relative to the square of the outputs.
    pub loss: f64,
    /// Additional size in 8 bits.
    pub bytes: u64,
    /// True if it keeps 8 bits.
    pub is_wide: bool,
}

/// Lets layers keep 8 bits that take at most `budget` more bytes together.
pub fn widen(layers: &mut [LayerLoss], budget: u64) {
    let mut order: Vec<usize> = (0..layers.len()).collect();
    let density = |layer: &LayerLoss| layer.loss / layer.bytes.max(1) as f64;
    order.sort_by(|&a, &b| density(&layers[b]).total_cmp(&density(&layers[a])));
    let mut rest = budget;
    for index in order {
        let layer = &mut layers[index];
        if let Some(after) = rest.checked_sub(layer.bytes) {
            layer.is_wide = true;
            rest = after;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_lose_most_for_each_byte_are_wide() {
        let check =
            |budget, expected: [bool; 4]| {
                let mut layers = [(0.5, 100), (0.1, 10), (0.2, 100), (0.0, 5)].map(|(loss, bytes)| {
                    LayerLoss { path: String::new(), weights: Vec::new(), loss, bytes, is_wide: false }
                });
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
}
