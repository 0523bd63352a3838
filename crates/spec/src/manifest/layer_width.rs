//! Widths of the linear layers of packages with weights of 4 bits.

use serde::{Deserialize, Serialize};

/// Width of a linear layer of a decoder whose scheme has weights of 4 bits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerWidth {
    /// Path of the layer: `/layers.3/mlp/up_proj`.
    pub path: String,
    /// Width of its weights, 4 or 8.
    pub bits: u8,
    /// Squared change of its outputs by weights of 4 bits over the calibration text, relative to the square of the outputs;
    /// `None` if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
}

impl LayerWidth {
    /// Returns `true` if the layer has more bits than the scheme.
    pub fn is_wide(&self) -> bool {
        self.bits > 4
    }

    /// Returns the paths and the losses of the layers with 4 bits that lose most, at most `count`, the largest loss first.
    pub fn lossiest(layers: &[Self], count: usize) -> impl Iterator<Item = (&str, f64)> {
        let narrow = layers.iter().filter(|layer| !layer.is_wide());
        let mut losses: Vec<(&str, f64)> =
            narrow.filter_map(|layer| Some((layer.path.as_str(), layer.loss?))).collect();
        losses.sort_by(|a, b| b.1.total_cmp(&a.1));
        losses.into_iter().take(count)
    }
}
