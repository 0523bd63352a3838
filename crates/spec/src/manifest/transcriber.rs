//! Decoding of imported models that transcribe speech.

use serde::{Deserialize, Serialize};

use super::{Contradiction, GraphEntry, Manifest, Part, Slot, paths};
use crate::{
    TokenId,
    arch::{ImportedTranscriber, TranscriberFamily},
};

/// Maximum number of vocabulary entries.
const MAX_VOCAB: usize = 1 << 20;

/// Maximum number of frames in a row of NeMo's encoder.
const MAX_SUBSAMPLING: usize = 64;

/// Maximum number of tokens in a row of a transducer's encoder.
const MAX_TOKENS_PER_ROW: usize = 1000;

/// Decoding of an imported model that transcribes speech.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TranscriberEntry {
    /// NeMo's models.
    Nemo(NemoEntry),
    /// Moonshine.
    Moonshine(MoonshineEntry),
}

/// Decoding of a NeMo model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NemoEntry {
    /// File with a token and its id in each line, relative to the package.
    #[serde(deserialize_with = "paths::path")]
    pub tokens: String,
    /// Token of a row, or of a step, without text.
    pub blank: TokenId,
    /// Number of mel bands of a frame.
    pub bins: usize,
    /// Number of frames in a row of the encoder.
    pub subsampling: usize,
    /// Maximum number of tokens in a row of a transducer's encoder.
    pub max_tokens_per_row: usize,
}

/// Decoding of Moonshine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoonshineEntry {
    /// Start of a transcript.
    pub start: TokenId,
    /// End of a transcript.
    pub end: TokenId,
    /// Number of the decoder's layers.
    pub layers: usize,
    /// Number of heads of their keys and values.
    pub heads: usize,
    /// Width of a head.
    pub head_size: usize,
}

impl TranscriberEntry {
    /// Returns the files that the entry names.
    pub(super) fn files(&self) -> Option<&String> {
        match self {
            Self::Nemo(nemo) => Some(&nemo.tokens),
            Self::Moonshine(_) => None,
        }
    }
}

impl Manifest {
    /// Returns the graph of a part.
    pub fn graph_of(&self, part: Part) -> Option<&GraphEntry> {
        self.graphs.iter().find(|graph| graph.part == part)
    }
}

/// Fails if the parts of a model that transcribes contradict each other.
pub(super) fn check(manifest: &Manifest, model: ImportedTranscriber) -> Result<(), Contradiction> {
    let ImportedTranscriber { vocab, family } = model;
    if !(2..=MAX_VOCAB).contains(&vocab) {
        return Err(Contradiction::new(format!("2 to {MAX_VOCAB} vocabulary entries"), vocab));
    }
    let tokens = match (&manifest.transcriber, family) {
        (Some(TranscriberEntry::Moonshine(entry)), TranscriberFamily::Moonshine) => {
            if manifest.tokenizer.is_none() {
                return Err(Contradiction::new("a tokenizer", "none"));
            }
            entry.check()?;
            [entry.start, entry.end]
        }
        (
            Some(TranscriberEntry::Nemo(entry)),
            TranscriberFamily::NemoCtc | TranscriberFamily::NemoRnnt | TranscriberFamily::NemoTdt,
        ) => {
            entry.check()?;
            [entry.blank; 2]
        }
        _ => return Err(Contradiction::new(format!("the decoding of {}", family.title()), "none")),
    };
    if let Some(token) = tokens.into_iter().find(|&token| token as usize >= vocab) {
        return Err(Contradiction::new(format!("tokens below the vocabulary size {vocab}"), token));
    }
    check_graphs(manifest, family)
}

impl NemoEntry {
    fn check(&self) -> Result<(), Contradiction> {
        let Self { bins, subsampling, max_tokens_per_row, .. } = *self;
        if !matches!(bins, 80 | 128) {
            return Err(Contradiction::new("80 or 128 mel bands", bins));
        }
        if !(1..=MAX_SUBSAMPLING).contains(&subsampling) {
            return Err(Contradiction::new(format!("1 to {MAX_SUBSAMPLING} frames in a row"), subsampling));
        }
        if !(1..=MAX_TOKENS_PER_ROW).contains(&max_tokens_per_row) {
            let expected = format!("1 to {MAX_TOKENS_PER_ROW} tokens in a row");
            return Err(Contradiction::new(expected, max_tokens_per_row));
        }
        Ok(())
    }
}

impl MoonshineEntry {
    /// Maximum number of layers.
    pub const MAX_LAYERS: usize = 64;

    /// Maximum number of elements of a token in one layer's keys.
    const MAX_WIDTH: usize = 1 << 14;

    fn check(&self) -> Result<(), Contradiction> {
        let Self { layers, heads, head_size, .. } = *self;
        let width = heads.saturating_mul(head_size);
        if (1..=Self::MAX_LAYERS).contains(&layers) && (1..=Self::MAX_WIDTH).contains(&width) {
            return Ok(());
        }
        let expected =
            format!("1 to {} layers with 1 to {} elements of a token", Self::MAX_LAYERS, Self::MAX_WIDTH);
        Err(Contradiction::new(expected, format!("{layers} layers with {width}")))
    }
}

/// Fails if a graph of a model that transcribes lacks an input or output of its family.
fn check_graphs(manifest: &Manifest, family: TranscriberFamily) -> Result<(), Contradiction> {
    const STATES: [Slot; 2] = [Slot::PredictionState { index: 0 }, Slot::PredictionState { index: 1 }];
    match family {
        TranscriberFamily::NemoCtc => {
            let inputs = [Slot::Features, Slot::FrameCount];
            has_slots(manifest, Part::Encoder, &inputs, &[Slot::TokenLogProbabilities])
        }
        TranscriberFamily::NemoRnnt | TranscriberFamily::NemoTdt => {
            let inputs = [Slot::Features, Slot::FrameCount];
            has_slots(manifest, Part::Encoder, &inputs, &[Slot::EncoderRows, Slot::EncoderRowCount])?;

            let inputs = [&[Slot::EncoderRows, Slot::Tokens, Slot::TokenCount][..], &STATES].concat();
            has_slots(manifest, Part::Decoder, &inputs, &[&[Slot::Logits][..], &STATES].concat())
        }
        TranscriberFamily::Moonshine => {
            has_slots(manifest, Part::Encoder, &[Slot::Samples], &[Slot::EncoderRows])?;

            let Some(TranscriberEntry::Moonshine(entry)) = &manifest.transcriber else { return Ok(()) };
            let layers = || 0..entry.layers;
            let past = layers().flat_map(|layer| [Slot::PastKey { layer }, Slot::PastValue { layer }]);
            let present =
                layers().flat_map(|layer| [Slot::PresentKey { layer }, Slot::PresentValue { layer }]);
            let sound = layers().flat_map(|layer| [Slot::CrossKey { layer }, Slot::CrossValue { layer }]);
            let inputs = [Slot::Tokens, Slot::EncoderRows, Slot::ReadsCache];
            let inputs: Vec<Slot> = inputs.into_iter().chain(past).chain(sound.clone()).collect();
            let outputs: Vec<Slot> = [Slot::Logits].into_iter().chain(present).chain(sound).collect();
            has_slots(manifest, Part::Decoder, &inputs, &outputs)
        }
    }
}

/// Fails unless the graph of a part has these inputs and outputs.
fn has_slots(
    manifest: &Manifest,
    part: Part,
    inputs: &[Slot],
    outputs: &[Slot],
) -> Result<(), Contradiction> {
    let Some(graph) = manifest.graph_of(part) else {
        return Err(Contradiction::new(format!("a graph of the part {part:?}"), "none"));
    };
    if let Some(missing) = inputs.iter().find(|slot| graph.input(**slot).is_none()) {
        return Err(Contradiction::new(format!("an input for {missing:?} in {}", graph.file), "none"));
    }
    match outputs.iter().find(|slot| graph.output(**slot).is_none()) {
        Some(missing) => {
            Err(Contradiction::new(format!("an output for {missing:?} in {}", graph.file), "none"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_has_bounds() {
        let nemo = NemoEntry {
            tokens: "vocab.txt".to_owned(),
            blank: 3,
            bins: 80,
            subsampling: 8,
            max_tokens_per_row: 10,
        };
        assert_eq!(nemo.check(), Ok(()));
        let refused = |nemo: NemoEntry, expect: &str| {
            assert!(nemo.check().unwrap_err().to_string().contains(expect), "{expect}");
        };
        refused(NemoEntry { bins: 64, ..nemo.clone() }, "80 or 128 mel bands");
        refused(NemoEntry { subsampling: 0, ..nemo.clone() }, "1 to 64 frames");
        refused(NemoEntry { max_tokens_per_row: 0, ..nemo }, "1 to 1000 tokens");

        let moonshine = MoonshineEntry { start: 1, end: 2, layers: 6, heads: 8, head_size: 36 };
        assert_eq!(moonshine.check(), Ok(()));
        let refused = |moonshine: MoonshineEntry| moonshine.check().unwrap_err().to_string();
        assert!(refused(MoonshineEntry { layers: 65, ..moonshine }).contains("1 to 64 layers"));
        assert!(
            refused(MoonshineEntry { head_size: usize::MAX, ..moonshine }).contains("elements of a token")
        );
    }
}
