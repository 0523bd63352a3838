//! What is known of a package's model: all of it where Narthex compiled it, little where its graph came ready-made.

use serde::{Deserialize, Serialize};

use super::{Architecture, DecoderArch, EncoderArch, EncoderHead};

/// What a package's model is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Structure {
    /// A causal language model that Narthex compiled.
    Decoder(DecoderArch),
    /// An encoder that Narthex compiled.
    Encoder(EncoderArch),
    /// A causal language model whose graph somebody else made.
    ImportedDecoder(ImportedDecoder),
    /// An encoder whose graph somebody else made.
    ImportedEncoder(ImportedEncoder),
}

/// What is known of a decoder whose graph came ready-made; its graph takes tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedDecoder {
    /// Vocabulary entries.
    pub vocab: usize,
    /// New tokens that the graph takes after a past.
    pub steps: Steps,
}

/// How many new tokens a graph takes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steps {
    /// Any number, with a past and without.
    Any,
    /// Any number as the beginning of a sequence, and one after a past.
    OneAfterPast,
}

/// What is known of an encoder whose graph came ready-made; its graph takes tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImportedEncoder {
    /// Vocabulary entries.
    pub vocab: usize,
    /// Elements of what it gives.
    pub width: usize,
    /// What it gives of its rows.
    #[serde(flatten)]
    pub head: EncoderHead,
}

impl Structure {
    /// Whether it is a causal language model.
    pub fn is_decoder(&self) -> bool {
        matches!(self, Self::Decoder(_) | Self::ImportedDecoder(_))
    }

    /// What an encoder gives of its rows; nothing for decoders.
    pub fn head(&self) -> Option<&EncoderHead> {
        match self {
            Self::Encoder(arch) => Some(&arch.head),
            Self::ImportedEncoder(imported) => Some(&imported.head),
            Self::Decoder(_) | Self::ImportedDecoder(_) => None,
        }
    }

    /// What Narthex compiled; nothing for what was imported.
    pub fn architecture(&self) -> Option<Architecture> {
        match self {
            Self::Decoder(arch) => Some(Architecture::Decoder(arch.clone())),
            Self::Encoder(arch) => Some(Architecture::Encoder(arch.clone())),
            Self::ImportedDecoder(_) | Self::ImportedEncoder(_) => None,
        }
    }
}

impl From<Architecture> for Structure {
    fn from(architecture: Architecture) -> Self {
        match architecture {
            Architecture::Decoder(arch) => Self::Decoder(arch),
            Architecture::Encoder(arch) => Self::Encoder(arch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Pooling;

    #[test]
    fn structures_are_read_as_they_are_written() {
        let check = |structure: Structure, kind: &str| {
            let text = serde_json::to_string(&structure).unwrap();
            assert!(text.contains(&format!("\"kind\":\"{kind}\"")), "{text}");
            assert_eq!(serde_json::from_str::<Structure>(&text).unwrap(), structure);
            assert_eq!(structure.architecture(), None);
        };
        for steps in [Steps::Any, Steps::OneAfterPast] {
            check(Structure::ImportedDecoder(ImportedDecoder { vocab: 9, steps }), "imported_decoder");
        }
        let heads = [
            EncoderHead::Embedding { pooling: Pooling::Cls, normalize: false },
            EncoderHead::Score { labels: 1, dense: None },
        ];
        for head in heads {
            let encoder = ImportedEncoder { vocab: 9, width: 8, head };
            check(Structure::ImportedEncoder(encoder), "imported_encoder");
        }
    }
}
