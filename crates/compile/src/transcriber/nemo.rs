//! Models of NeMo in the layout of onnx-asr: `config.json` with the kind of the model, `vocab.txt` with its tokens, and its
//! graphs: `model.onnx`, or `encoder-model.onnx` with `decoder_joint-model.onnx`. Variants such as `encoder-model.int8.onnx`
//! have other names.

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use narthex_spec::{
    DType,
    arch::{ImportedTranscriber, TranscriberFamily},
    manifest::{GraphEntry, NemoEntry, Part, Slot, TranscriberEntry},
};
use narthex_text::token_list::TokenList;
use serde::Deserialize;

use super::{ModelGraph, TranscriberParts, choose, copy_graphs, extent, open_beside, variants};
use crate::{
    error::Result,
    import::refused,
    imported_graph::{NamedSlot, read_file},
    package::PackageWriter,
};

/// File with the kind of the model.
const CONFIG: &str = "config.json";

/// File with the tokens.
const TOKENS: &str = "vocab.txt";

/// Stem of the graph of a model with connectionist temporal classification.
const CTC: &str = "model";

/// Stems of the graphs of a transducer.
const ENCODER: &str = "encoder-model";
const DECODER: &str = "decoder_joint-model";

/// Kinds of models, as `config.json` states them.
const CTC_TYPE: &str = "nemo-conformer-ctc";
const RNNT_TYPE: &str = "nemo-conformer-rnnt";
const TDT_TYPE: &str = "nemo-conformer-tdt";

/// Frames of 10 ms of the longest window.
const WINDOW_FRAMES: usize = 3000;

/// Maximum number of elements of a state of the network that reads tokens.
const MAX_STATE: usize = 1 << 20;

/// Inputs and outputs of the graph with probabilities of tokens.
const CTC_NAMES: [NamedSlot<'static>; 3] = [
    ("audio_signal", Slot::Features, DType::F32),
    ("length", Slot::FrameCount, DType::I64),
    ("logprobs", Slot::TokenLogProbabilities, DType::F32),
];

/// Inputs and outputs of a transducer's encoder.
const ENCODER_NAMES: [NamedSlot<'static>; 4] = [
    ("audio_signal", Slot::Features, DType::F32),
    ("length", Slot::FrameCount, DType::I64),
    ("outputs", Slot::EncoderRows, DType::F32),
    ("encoded_lengths", Slot::EncoderRowCount, DType::I64),
];

/// Inputs and outputs of a transducer's other graph. Integers have either width.
const DECODER_NAMES: [NamedSlot<'static>; 10] = [
    ("encoder_outputs", Slot::EncoderRows, DType::F32),
    ("targets", Slot::Tokens, DType::I32),
    ("targets", Slot::Tokens, DType::I64),
    ("target_length", Slot::TokenCount, DType::I32),
    ("target_length", Slot::TokenCount, DType::I64),
    ("input_states_1", Slot::PredictionState { index: 0 }, DType::F32),
    ("input_states_2", Slot::PredictionState { index: 1 }, DType::F32),
    ("outputs", Slot::Logits, DType::F32),
    ("output_states_1", Slot::PredictionState { index: 0 }, DType::F32),
    ("output_states_2", Slot::PredictionState { index: 1 }, DType::F32),
];

/// Number of them without the alternatives.
const DECODER_BOUND: usize = 8;

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NemoFiles {
    folder: PathBuf,
    /// Name of the graph, if it was chosen.
    file: Option<String>,
}

/// Settings in `config.json`, with the defaults of onnx-asr.
#[derive(Debug, Deserialize)]
struct NemoConfig {
    model_type: String,
    #[serde(default = "eighty")]
    features_size: usize,
    #[serde(default = "eight")]
    subsampling_factor: usize,
    #[serde(default = "ten")]
    max_tokens_per_step: usize,
}

fn eighty() -> usize {
    80
}

fn eight() -> usize {
    8
}

fn ten() -> usize {
    10
}

impl NemoFiles {
    /// Returns the files of a folder; `None` if they are no model of NeMo.
    pub(super) fn find(folder: &Path, file: Option<&str>) -> Option<Self> {
        // Other kinds of models also have a `vocab.txt` and a `model.onnx`.
        let is_nemo = !variants(folder, ENCODER).is_empty()
            || config(folder).is_ok_and(|config| config.model_type == CTC_TYPE);
        is_nemo.then(|| Self { folder: folder.to_owned(), file: file.map(str::to_owned) })
    }

    /// Writes the files of the model.
    pub(super) fn write(&self, package: &PackageWriter, cancel: &AtomicBool) -> Result<TranscriberParts> {
        let config = config(&self.folder)?;
        let family = family(&config)?;
        let vocabulary = read_file(&self.folder.join(TOKENS))?;
        let tokens = TokenList::parse(&vocabulary).map_err(|error| {
            refused(format!("{TOKENS} of {}", self.folder.display()), error.expected, error.found)
        })?;
        let Some(blank) = tokens.blank() else {
            return Err(refused(format!("{TOKENS} of {}", self.folder.display()), "the token <blk>", "none"));
        };

        let graphs = self.graphs(family)?;
        let entries = entries(&graphs, family)?;
        check_extents(&entries, family, &config, tokens.len())?;
        copy_graphs(&graphs.iter().collect::<Vec<_>>(), package, cancel)?;
        package.write(TOKENS, &vocabulary)?;
        Ok(TranscriberParts {
            model: ImportedTranscriber { vocab: tokens.len(), family },
            entry: TranscriberEntry::Nemo(NemoEntry {
                tokens: TOKENS.to_owned(),
                blank,
                bins: config.features_size,
                subsampling: config.subsampling_factor,
                max_tokens_per_row: config.max_tokens_per_step,
            }),
            graphs: entries,
            tokenizer: None,
            max_length: WINDOW_FRAMES.div_ceil(config.subsampling_factor.max(1)),
        })
    }

    /// Opens the graphs of a model: the encoder first.
    fn graphs(&self, family: TranscriberFamily) -> Result<Vec<ModelGraph>> {
        let Self { folder, file } = self;
        if family == TranscriberFamily::NemoCtc {
            let variant = choose(folder, CTC, file.as_deref())?;
            return Ok(vec![ModelGraph::open(folder.join(format!("{CTC}{variant}.onnx")))?]);
        }
        let variant = choose(folder, ENCODER, file.as_deref())?;
        let encoder = format!("{ENCODER}{variant}.onnx");
        let decoder = open_beside(folder, &format!("{DECODER}{variant}.onnx"), &encoder)?;
        Ok(vec![ModelGraph::open(folder.join(encoder))?, decoder])
    }
}

/// Reads the settings of a model.
fn config(folder: &Path) -> Result<NemoConfig> {
    let path = folder.join(CONFIG);
    if !path.is_file() {
        let expected = format!("{CONFIG} with a model_type such as {TDT_TYPE}");
        return Err(refused(format!("files of {}", folder.display()), expected, "none"));
    }
    serde_json::from_slice(&read_file(&path)?).map_err(|error| {
        refused(path.display().to_string(), format!("settings with a model_type such as {TDT_TYPE}"), error)
    })
}

/// Returns the family of a model.
fn family(config: &NemoConfig) -> Result<TranscriberFamily> {
    match config.model_type.as_str() {
        CTC_TYPE => Ok(TranscriberFamily::NemoCtc),
        RNNT_TYPE => Ok(TranscriberFamily::NemoRnnt),
        TDT_TYPE => Ok(TranscriberFamily::NemoTdt),
        other => {
            let found: String = other.chars().take(80).collect();
            let expected = format!("{CTC_TYPE}, {RNNT_TYPE} or {TDT_TYPE}");
            Err(refused(format!("model_type in {CONFIG}"), expected, format!("{found:?}")))
        }
    }
}

/// Returns the entries of a model's graphs.
fn entries(graphs: &[ModelGraph], family: TranscriberFamily) -> Result<Vec<GraphEntry>> {
    let is_ctc = family == TranscriberFamily::NemoCtc;
    let encoder: &[NamedSlot<'_>] = if is_ctc { &CTC_NAMES } else { &ENCODER_NAMES };
    let [first, rest @ ..] = graphs else { return Ok(Vec::new()) };
    let mut entries = vec![first.entry(Part::Encoder, encoder, encoder.len())?];
    for graph in rest {
        entries.push(graph.entry(Part::Decoder, &DECODER_NAMES, DECODER_BOUND)?);
    }
    Ok(entries)
}

/// Fails if an extent that a graph states contradicts the settings or the number of tokens.
fn check_extents(
    entries: &[GraphEntry],
    family: TranscriberFamily,
    config: &NemoConfig,
    vocab: usize,
) -> Result<()> {
    for entry in entries {
        let file = &entry.file;
        if let Some(bins) = extent(entry, Slot::Features, 1).filter(|bins| *bins != config.features_size) {
            let expected = format!("{} mel bands, as {CONFIG} states", config.features_size);
            return Err(refused(format!("input audio_signal of {file}"), expected, bins));
        }
        let probabilities = extent(entry, Slot::TokenLogProbabilities, 2);
        if let Some(found) = probabilities.or_else(|| extent(entry, Slot::Logits, 3)) {
            let fits = match family {
                TranscriberFamily::NemoTdt => found > vocab,
                _ => found == vocab,
            };
            if !fits {
                let durations = if family == TranscriberFamily::NemoTdt { ", and of durations" } else { "" };
                let expected = format!("values of the {vocab} tokens of {TOKENS}{durations}");
                return Err(refused(format!("outputs of {file}"), expected, found));
            }
        }
        for index in 0..2 {
            let slot = Slot::PredictionState { index };
            let Some(state) = entry.input(slot) else { continue };
            let layers = extent(entry, slot, 0).unwrap_or(0);
            let elements = layers.saturating_mul(extent(entry, slot, 2).unwrap_or(0));
            if state.shape.len() != 3 || !(1..=MAX_STATE).contains(&elements) {
                let expected = format!("fixed layers and width, together 1 to {MAX_STATE} elements");
                let shape: Vec<String> = state.shape.iter().map(ToString::to_string).collect();
                return Err(refused(format!("input {} of {file}", state.name), expected, shape.join(" × ")));
            }
        }
    }
    Ok(())
}
