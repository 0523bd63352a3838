//! Keys and values of the encoder's rows for one window of sound: the encoder's graph writes them, and the graphs of the
//! decoder's layers read them in every step. In each layer, keys are `[heads, size, positions]` and values `[heads,
//! positions, size]`.

use half::f16;
use narthex_spec::{DType, arch::SpeechArch, manifest::Slot};

use crate::{error::DeviceError, ort::Tensor};

/// Memory of a window.
pub(super) struct WindowCache {
    positions: usize,
    /// Elements of a head.
    size: usize,
    key_shape: [i64; 4],
    value_shape: [i64; 4],
    /// Keys and values of each layer.
    layers: Vec<[Vec<f16>; 2]>,
}

impl WindowCache {
    /// Allocates the memory. The manifest's consistency, which bounds the sizes, has been checked.
    pub(super) fn new(arch: &SpeechArch) -> Self {
        let [heads, size, positions] = [arch.decoder.heads, arch.head_size(), arch.source_positions];
        let elements = heads * size * positions;
        Self {
            positions,
            size,
            key_shape: [1, heads, size, positions].map(|extent| extent as i64),
            value_shape: [1, heads, positions, size].map(|extent| extent as i64),
            layers: (0..arch.decoder.layers).map(|_| [(); 2].map(|()| vec![f16::ZERO; elements])).collect(),
        }
    }

    /// Returns the memory of a slot; `None` for other slots than keys and values of a window.
    ///
    /// # Errors
    /// [`DeviceError::Package`] if the graph has another shape for it, or more layers than the model.
    pub(super) fn tensor(&mut self, slot: Slot, shape: &[i64]) -> Result<Option<Tensor<'_>>, DeviceError> {
        let (layer, part, expected) = match slot {
            Slot::CrossKey { layer } => (layer, 0, &self.key_shape),
            Slot::CrossValue { layer } => (layer, 1, &self.value_shape),
            _ => return Ok(None),
        };
        let memory = self.layers.get_mut(layer).filter(|_| shape == expected);
        let Some(parts) = memory else {
            let expected = format!("keys and values {expected:?} of a window");
            return Err(DeviceError::package(expected, format!("{shape:?} in layer {layer}")));
        };
        Ok(Some(Tensor::new(&mut parts[part], DType::F16, expected)))
    }

    /// Returns the keys of a head, `[positions, size]`.
    pub(super) fn head_keys(&self, layer: usize, head: usize) -> Vec<f32> {
        let Self { positions, size, .. } = *self;
        let [keys, _] = &self.layers[layer];
        let columns = &keys[head * size * positions..][..size * positions];
        let mut rows = vec![0.0; columns.len()];
        for (element, line) in columns.chunks_exact(positions).enumerate() {
            for (row, value) in rows.chunks_exact_mut(size).zip(line) {
                row[element] = value.to_f32();
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::arch::{Activation, Family, SpeechLayers};

    use super::*;

    #[test]
    fn keys_are_rows_of_a_head() {
        let layers = SpeechLayers { layers: 1, heads: 2, inner: 4 };
        let arch = SpeechArch {
            family: Family::Whisper,
            vocab: 4,
            hidden: 4,
            bins: 1,
            source_positions: 3,
            target_positions: 4,
            encoder: layers,
            decoder: layers,
            activation: Activation::Gelu,
            norm_epsilon: 1e-5,
            alignment_heads: Vec::new(),
        };
        let mut window = WindowCache::new(&arch);
        window.layers[0][0] = (0..12).map(|value| f16::from_f32(value as f32)).collect();
        assert_eq!(window.head_keys(0, 0), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(window.head_keys(0, 1), [6.0, 9.0, 7.0, 10.0, 8.0, 11.0]);

        let (key, value) = (Slot::CrossKey { layer: 0 }, Slot::CrossValue { layer: 0 });
        assert!(window.tensor(key, &[1, 2, 2, 3]).unwrap().is_some());
        assert!(window.tensor(Slot::Logits, &[1]).unwrap().is_none());
        for (slot, shape) in [(value, [1, 2, 2, 3]), (Slot::CrossKey { layer: 1 }, [1, 2, 2, 3])] {
            assert!(window.tensor(slot, &shape).is_err(), "{slot:?} {shape:?}");
        }
    }
}
