//! Names of a decoder graph's inputs and outputs, by role.

use std::ffi::CString;

use narthex_spec::{
    DType,
    dtype::Dim,
    manifest::{Binding, GraphEntry, KvContent, Slot},
};

use super::input::DecoderInput;
use crate::{error::DeviceError, package};

/// Names of the graph's inputs and outputs by role.
pub(super) struct DecoderNames {
    /// Input for embedded tokens, or for token numbers.
    pub(super) first: CString,
    /// Input for the rows of every layer, if the graph has one.
    pub(super) per_layer: Option<CString>,
    pub(super) seqlens_k: CString,
    pub(super) total_length: CString,
    pub(super) logits_rows: CString,
    pub(super) logits: CString,
    /// Inputs for cosines and sines, if the graph has them.
    pub(super) angles: Option<[CString; 2]>,
    /// Names for the keys and values of each entry of the cache that has them.
    pub(super) cache: Vec<[CacheNames; 2]>,
    /// Names for the rows of each short convolution.
    pub(super) convolutions: Vec<ConvolutionNames>,
    /// Names for the states of each layer that has one, and for the mask of its tokens.
    pub(super) states: Vec<StateNames>,
    pub(super) token_mask: Option<CString>,
    /// Form in which the graph returns keys and values.
    pub(super) cache_output: CacheOutput,
    /// The graph accepts only one row at a time.
    pub(super) one_row: bool,
}

/// Names for the keys or values of one entry of the cache: the input for the past, and the outputs for the present or
/// the new ones.
pub(super) struct CacheNames {
    pub(super) past: CString,
    pub(super) present: Vec<CString>,
}

/// Names for the rows of one short convolution: the input for those of the past, and the output for the new ones.
pub(super) struct ConvolutionNames {
    pub(super) past: CString,
    pub(super) new: CString,
}

/// Names for the two tensors of a layer's state: the inputs after the past, and the outputs after the new tokens.
pub(super) struct StateNames {
    pub(super) past: [CString; 2],
    pub(super) present: [CString; 2],
}

impl StateNames {
    fn new(entry: &GraphEntry, layer: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            past: [
                package::input(entry, Slot::PastState { layer })?,
                package::input(entry, Slot::PastConvolutionState { layer })?,
            ],
            present: [
                package::output(entry, Slot::PresentState { layer })?,
                package::output(entry, Slot::PresentConvolutionState { layer })?,
            ],
        })
    }
}

impl CacheNames {
    fn new(entry: &GraphEntry, past: Slot, present: Slot) -> Result<Self, DeviceError> {
        Ok(Self { past: package::input(entry, past)?, present: package::outputs(entry, present)? })
    }
}

/// Form in which a graph returns keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheOutput {
    /// The whole cache. The graph writes new keys and values to their places in the buffers of the past.
    Present,
    /// Only the new keys and values of one row. The executor copies them to their places after the past.
    New,
}

impl CacheOutput {
    fn of(entry: &GraphEntry) -> Self {
        let is_new = |binding: &Binding| matches!(binding.slot, Slot::NewKey { .. });
        if entry.outputs.iter().any(is_new) { Self::New } else { Self::Present }
    }

    fn key(self, layer: usize) -> Slot {
        match self {
            Self::Present => Slot::PresentKey { layer },
            Self::New => Slot::NewKey { layer },
        }
    }

    fn value(self, layer: usize) -> Slot {
        match self {
            Self::Present => Slot::PresentValue { layer },
            Self::New => Slot::NewValue { layer },
        }
    }
}

impl DecoderNames {
    pub(super) fn new(entry: &GraphEntry, feed: &DecoderInput) -> Result<Self, DeviceError> {
        if let Some(other) = entry.kv.iter().find(|layer| layer.dtype != DType::F32) {
            return Err(DeviceError::package("a cache of f32", format!("{:?}", other.dtype)));
        }

        let first = match feed {
            DecoderInput::Rows { .. } => Slot::Embeds,
            DecoderInput::Tokens { .. } => Slot::Tokens,
        };
        let cache_output = CacheOutput::of(entry);
        let mut cache = Vec::with_capacity(entry.kv.len());
        let mut convolutions = Vec::new();
        let mut states = Vec::new();
        for (layer, layout) in entry.kv.iter().enumerate() {
            match layout.content {
                KvContent::KeysAndValues => cache.push([
                    CacheNames::new(entry, Slot::PastKey { layer }, cache_output.key(layer))?,
                    CacheNames::new(entry, Slot::PastValue { layer }, cache_output.value(layer))?,
                ]),
                KvContent::ConvolutionInputs => convolutions.push(ConvolutionNames {
                    past: package::input(entry, Slot::PastConvolution { layer })?,
                    new: package::output(entry, Slot::NewConvolution { layer })?,
                }),
                KvContent::RecurrentState { .. } => states.push(StateNames::new(entry, layer)?),
            }
        }

        Ok(Self {
            first: package::input(entry, first)?,
            per_layer: match entry.input(Slot::PerLayerEmbeds) {
                Some(_) => Some(package::input(entry, Slot::PerLayerEmbeds)?),
                None => None,
            },
            seqlens_k: package::input(entry, Slot::SeqlensK)?,
            total_length: package::input(entry, Slot::TotalLength)?,
            logits_rows: package::input(entry, Slot::LogitsRows)?,
            logits: package::output(entry, Slot::Logits)?,
            angles: match entry.input(Slot::CosTable) {
                Some(_) => {
                    Some([package::input(entry, Slot::CosTable)?, package::input(entry, Slot::SinTable)?])
                }
                None => None,
            },
            cache,
            convolutions,
            token_mask: match entry.input(Slot::TokenMask) {
                Some(_) => Some(package::input(entry, Slot::TokenMask)?),
                None => None,
            },
            states,
            cache_output,
            one_row: cache_output == CacheOutput::New || declares_one_row(entry),
        })
    }
}

/// Returns whether a graph's cache is declared with one row.
fn declares_one_row(entry: &GraphEntry) -> bool {
    let past = entry.inputs.iter().find(|binding| matches!(binding.slot, Slot::PastKey { .. }));
    past.is_some_and(|past| past.shape.first() == Some(&Dim::Fixed(1)))
}
