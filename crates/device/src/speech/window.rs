//! The window of a model for speech: its features, and the keys and values of the encoder's rows.

use std::ffi::CString;

use narthex_engine::executor::StepError;
use narthex_spec::{
    DType,
    arch::SpeechArch,
    manifest::{GraphEntry, Slot},
};

use crate::{
    error::DeviceError,
    ort::{Binding, Tensor},
    package,
};

/// Memory for the longest window. A shorter window has its beginning.
pub(super) struct SpeechWindow {
    features: Vec<f32>,
    /// Index of each row of the encoder. Graphs of older packages, whose windows are whole, have no input for them.
    positions: Option<Positions>,
    layers: Vec<CrossLayer>,
    /// Number of rows of the window that is bound.
    rows: usize,
    features_name: CString,
    bins: usize,
    /// Number of heads and their size.
    heads: [usize; 2],
}

struct Positions {
    name: CString,
    indices: Vec<i64>,
}

/// Keys and values of the window in a layer of the decoder, `[heads, rows, head_size]`.
struct CrossLayer {
    keys: CrossBuffer,
    values: CrossBuffer,
}

struct CrossBuffer {
    elements: Vec<f32>,
    /// Name of the encoder's output.
    output: CString,
    /// Name of the decoder's input.
    input: CString,
}

impl CrossBuffer {
    fn new(
        arch: &SpeechArch,
        encoder: &GraphEntry,
        decoder: &GraphEntry,
        slot: Slot,
    ) -> Result<Self, DeviceError> {
        let elements = vec![0.0; arch.source_positions * arch.hidden];
        Ok(Self { elements, output: package::output(encoder, slot)?, input: package::input(decoder, slot)? })
    }
}

impl SpeechWindow {
    /// Creates an empty window. The manifest's consistency, which bounds the sizes, has been checked.
    pub(super) fn new(
        arch: &SpeechArch,
        encoder: &GraphEntry,
        decoder: &GraphEntry,
    ) -> Result<Self, DeviceError> {
        let buffer = |slot| CrossBuffer::new(arch, encoder, decoder, slot);
        let layers = (0..arch.decoder.layers)
            .map(|layer| {
                let keys = buffer(Slot::CrossKey { layer })?;
                Ok(CrossLayer { keys, values: buffer(Slot::CrossValue { layer })? })
            })
            .collect::<Result<_, DeviceError>>()?;
        let positions = match encoder.input(Slot::Positions) {
            None => None,
            Some(_) => Some(Positions {
                name: package::input(encoder, Slot::Positions)?,
                indices: (0..arch.source_positions as i64).collect(),
            }),
        };
        Ok(Self {
            features: vec![0.0; arch.bins * arch.frames()],
            positions,
            layers,
            rows: 0,
            features_name: package::input(encoder, Slot::Features)?,
            bins: arch.bins,
            heads: [arch.decoder.heads, arch.head_size()],
        })
    }

    /// Returns whether a window may be shorter than the model's.
    pub(super) fn takes_short_windows(&self) -> bool {
        self.positions.is_some()
    }

    /// Number of rows of the window.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Sets the features of a window with the number of rows that is bound.
    pub(super) fn set_features(&mut self, features: &[f32]) {
        self.features[..features.len()].copy_from_slice(features);
    }

    /// Returns the keys of a head of a layer, `[rows, head_size]`.
    pub(super) fn head_keys(&self, layer: usize, head: usize) -> &[f32] {
        let size = self.rows * self.heads[1];
        &self.layers[layer].keys.elements[head * size..][..size]
    }

    /// Binds a window with a number of rows to the encoder and to the decoder.
    ///
    /// # Safety
    /// The value must live as long as the bindings, which no other thread may run meanwhile.
    pub(super) unsafe fn bind(
        &mut self,
        rows: usize,
        encoder: &mut Binding,
        decoder: &mut Binding,
    ) -> Result<(), StepError> {
        if rows == self.rows {
            return Ok(());
        }
        self.rows = 0;
        let frames = rows * SpeechArch::FRAMES_PER_ROW;
        let features = &mut self.features[..self.bins * frames];
        let shape = [1, self.bins, frames].map(|extent| extent as i64);
        // SAFETY: the caller guarantees that the memory outlives the bindings. Its vectors are never resized, moving them
        // does not move their elements, and nothing accesses these while a session runs.
        unsafe { encoder.input(&self.features_name, Tensor::new(features, DType::F32, &shape))? };
        if let Some(Positions { name, indices }) = &mut self.positions {
            let indices = &mut indices[..rows];
            // SAFETY: as above.
            unsafe { encoder.input(name, Tensor::new(indices, DType::I64, &[1, rows as i64]))? };
        }

        let [heads, size] = self.heads;
        let shape = [1, heads, rows, size].map(|extent| extent as i64);
        for CrossLayer { keys, values } in &mut self.layers {
            for CrossBuffer { elements, output, input } in [keys, values] {
                let elements = &mut elements[..heads * rows * size];
                // SAFETY: as above. The decoder runs after the encoder.
                unsafe {
                    encoder.output(output, Tensor::new(elements, DType::F32, &shape))?;
                    decoder.input(input, Tensor::new(elements, DType::F32, &shape))?;
                }
            }
        }
        self.rows = rows;
        Ok(())
    }
}
