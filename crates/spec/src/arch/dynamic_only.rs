//! Layers that have no graphs with fixed shapes, which NPUs need.

use std::fmt;

use super::{Architecture, DecoderArch, Structure};

/// A part of a model that runs in graphs with symbolic shapes alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DynamicOnly {
    /// The part.
    pub part: String,
    /// The reason.
    pub reason: &'static str,
}

impl fmt::Display for DynamicOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, reason } = self;
        write!(
            f,
            "{part} with fixed shapes cannot be lowered for this target: {reason}; compile it for the CPU"
        )
    }
}

impl DecoderArch {
    /// Returns the first part of the layers that has no graphs with fixed shapes; `None` if all layers have them.
    pub fn dynamic_only(&self) -> Option<DynamicOnly> {
        self.layers.iter().enumerate().find_map(|(index, layer)| {
            if let Some(recurrence) = layer.recurrence() {
                let part = format!("the {} of layer {index}", recurrence.title());
                return Some(DynamicOnly { part, reason: "NPUs have no operator for its recurrence" });
            }
            layer.feed_forward.experts().map(|_| DynamicOnly {
                part: "a mixture of experts".to_owned(),
                reason: "its experts are selected when it runs, and an NPU would compute all of them",
            })
        })
    }
}

impl Architecture {
    /// Returns the first part that has no graphs with fixed shapes, as [`DecoderArch::dynamic_only`].
    pub fn dynamic_only(&self) -> Option<DynamicOnly> {
        match self {
            Self::Decoder(arch) => arch.dynamic_only(),
            Self::Embedder(arch) => arch.decoder.dynamic_only(),
            Self::Encoder(_) | Self::Speech(_) => None,
        }
    }
}

impl Structure {
    /// Returns the first part that has no graphs with fixed shapes, as [`DecoderArch::dynamic_only`].
    pub fn dynamic_only(&self) -> Option<DynamicOnly> {
        match self {
            Self::Decoder(arch) => arch.dynamic_only(),
            Self::Embedder(arch) => arch.decoder.dynamic_only(),
            Self::Encoder(_)
            | Self::Speech(_)
            | Self::ImportedDecoder(_)
            | Self::ImportedEncoder(_)
            | Self::ImportedVoice(_)
            | Self::ImportedTranscriber(_) => None,
        }
    }
}
