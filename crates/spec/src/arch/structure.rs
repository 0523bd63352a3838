//! The model of a package: a complete architecture if Narthex compiled it, basic properties if its graph was imported.

use serde::{Deserialize, Serialize};
use strum::VariantArray;

use super::{Architecture, DecoderArch, EmbedderArch, EncoderArch, EncoderHead, SpeechArch};

/// The model of a package.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Structure {
    /// A causal language model that Narthex compiled.
    Decoder(DecoderArch),
    /// An encoder that Narthex compiled.
    Encoder(EncoderArch),
    /// An embedding model or a classifier with the layers of a decoder, which Narthex compiled.
    Embedder(EmbedderArch),
    /// A model that transcribes speech, which Narthex compiled.
    Speech(SpeechArch),
    /// A causal language model with an imported graph.
    ImportedDecoder(ImportedDecoder),
    /// An encoder with an imported graph.
    ImportedEncoder(ImportedEncoder),
    /// A voice with an imported graph.
    ImportedVoice(ImportedVoice),
    /// A model that transcribes speech, with imported graphs.
    ImportedTranscriber(ImportedTranscriber),
}

/// An imported model that transcribes speech. Its graphs read a window of sound of any length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedTranscriber {
    /// Number of vocabulary entries.
    pub vocab: usize,
    /// Family, which decides the graphs and their decoding.
    pub family: TranscriberFamily,
}

/// Family of an imported model that transcribes speech.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, VariantArray)]
#[serde(rename_all = "snake_case")]
pub enum TranscriberFamily {
    /// NeMo's encoder with connectionist temporal classification: probabilities of every token and of a blank for each row
    /// (Graves et al. 2006).
    NemoCtc,
    /// NeMo's encoder with a transducer (Graves 2012, arXiv:1211.3711).
    NemoRnnt,
    /// NeMo's encoder with a transducer that also predicts the duration of each token (Xu et al. 2023, arXiv:2304.06795).
    NemoTdt,
    /// Moonshine: an encoder of samples, and a decoder of tokens (Jeffries et al. 2024, arXiv:2410.15608).
    Moonshine,
}

impl TranscriberFamily {
    /// All families.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the name for users.
    pub fn title(self) -> &'static str {
        match self {
            Self::NemoCtc => "NeMo CTC",
            Self::NemoRnnt => "NeMo RNN-T",
            Self::NemoTdt => "NeMo TDT",
            Self::Moonshine => "Moonshine",
        }
    }
}

/// An imported voice, whose graph reads phonemes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedVoice {
    /// Samples per second.
    pub sample_rate: u32,
    /// Family, which decides the inputs and outputs of the graph.
    pub family: VoiceFamily,
}

/// Family of a voice: the inputs and outputs of its graph, and the notation of its phonemes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VoiceFamily {
    /// Hibari: the graph computes a spectrum in frames, from which the host computes samples.
    Hibari,
    /// Kokoro: the graph computes samples in the style of a speaker, which depends on the number of phonemes.
    Kokoro,
    /// Piper: the graph computes samples from phonemes with pads between them, and scales of its noise.
    Piper,
}

/// An imported decoder, whose graph reads tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedDecoder {
    /// Number of vocabulary entries.
    pub vocab: usize,
    /// Number of new tokens that the graph accepts after past tokens.
    pub steps: Steps,
}

/// Number of new tokens that a graph accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steps {
    /// Any number, with or without past tokens.
    Any,
    /// Any number at the start of a sequence, one after past tokens.
    OneAfterPast,
}

/// An imported encoder, whose graph reads tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImportedEncoder {
    /// Number of vocabulary entries.
    pub vocab: usize,
    /// Width of the output.
    pub width: usize,
    /// True if the graph itself makes the vector of an embedding model, so that `head` does not state how.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pooled_by_graph: bool,
    /// Head over the rows.
    #[serde(flatten)]
    pub head: EncoderHead,
}

impl Structure {
    /// Returns true for causal language models.
    pub fn is_decoder(&self) -> bool {
        matches!(self, Self::Decoder(_) | Self::ImportedDecoder(_))
    }

    /// Returns the head of an encoder; `None` for other models.
    pub fn head(&self) -> Option<&EncoderHead> {
        match self {
            Self::Encoder(arch) => Some(&arch.head),
            Self::Embedder(arch) => Some(&arch.head),
            Self::ImportedEncoder(imported) => Some(&imported.head),
            Self::Decoder(_)
            | Self::ImportedDecoder(_)
            | Self::Speech(_)
            | Self::ImportedVoice(_)
            | Self::ImportedTranscriber(_) => None,
        }
    }

    /// Returns the architecture of a compiled model; `None` for imported ones.
    pub fn architecture(&self) -> Option<Architecture> {
        match self {
            Self::Decoder(arch) => Some(Architecture::Decoder(arch.clone())),
            Self::Encoder(arch) => Some(Architecture::Encoder(arch.clone())),
            Self::Embedder(arch) => Some(Architecture::Embedder(arch.clone())),
            Self::Speech(arch) => Some(Architecture::Speech(arch.clone())),
            Self::ImportedDecoder(_)
            | Self::ImportedEncoder(_)
            | Self::ImportedVoice(_)
            | Self::ImportedTranscriber(_) => None,
        }
    }
}

impl Architecture {
    /// Returns a description: `28 layers, width 3072, vocabulary 128256`.
    pub fn describe(&self) -> String {
        match self {
            Self::Decoder(arch) => {
                let experts = arch.layers.iter().find_map(|layer| layer.feed_forward.experts());
                let experts = experts.map_or(String::new(), |experts| {
                    format!(", {} of {} experts for each token", experts.per_token, experts.count)
                });
                let layers = arch.layers.len();
                format!("{layers} layers, width {}, vocabulary {}{experts}", arch.hidden, arch.vocab)
            }
            Self::Encoder(arch) => {
                format!("{} layers, width {}, {}", arch.layers, arch.hidden, arch.gives())
            }
            Self::Embedder(arch) => {
                let DecoderArch { layers, hidden, .. } = &arch.decoder;
                format!("{} layers, width {hidden}, {}", layers.len(), arch.head.gives(arch.width()))
            }
            Self::Speech(arch) => {
                let SpeechArch { encoder, decoder, hidden, vocab, bins, .. } = arch;
                format!(
                    "{} layers over {bins} mel bands and {} layers over tokens, width {hidden}, vocabulary {vocab}",
                    encoder.layers, decoder.layers
                )
            }
        }
    }
}

impl From<Architecture> for Structure {
    fn from(architecture: Architecture) -> Self {
        match architecture {
            Architecture::Decoder(arch) => Self::Decoder(arch),
            Architecture::Encoder(arch) => Self::Encoder(arch),
            Architecture::Embedder(arch) => Self::Embedder(arch),
            Architecture::Speech(arch) => Self::Speech(arch),
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
        for (head, pooled_by_graph) in heads.into_iter().zip([true, false]) {
            let encoder = ImportedEncoder { vocab: 9, width: 8, pooled_by_graph, head };
            check(Structure::ImportedEncoder(encoder), "imported_encoder");
        }
        for family in [VoiceFamily::Hibari, VoiceFamily::Kokoro, VoiceFamily::Piper] {
            let voice = ImportedVoice { sample_rate: 24_000, family };
            check(Structure::ImportedVoice(voice), "imported_voice");
        }
        for &family in TranscriberFamily::ALL {
            let transcriber = ImportedTranscriber { vocab: 9, family };
            check(Structure::ImportedTranscriber(transcriber), "imported_transcriber");
        }
    }
}
