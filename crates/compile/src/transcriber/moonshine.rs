//! Moonshine in the layout of its own package and of transformers.js: `encoder_model.onnx` and
//! `decoder_model_merged.onnx`, in the folder or in `onnx`, and `tokenizer.json` beside or above them. Variants such as
//! `encoder_model_int8.onnx` have other names.

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use narthex_spec::{
    DType,
    arch::{ImportedTranscriber, TranscriberFamily},
    manifest::{GraphEntry, MoonshineEntry, Part, Slot, TokenizerEntry, TranscriberEntry},
};
use narthex_text::tokenizer::{Tokenizer, package_json};

use super::{ModelGraph, TranscriberParts, choose, copy_graphs, extent, open_beside, variants};
use crate::{
    error::Result,
    import::refused,
    imported_graph::{NamedSlot, read_file},
    package::{PackageWriter, TOKENIZER_FILE},
};

/// Stems of the graphs.
const ENCODER: &str = "encoder_model";
const DECODER: &str = "decoder_model_merged";

/// Folder of the graphs on hubs.
const ONNX_FOLDER: &str = "onnx";

/// Input that tells Moonshine's encoder from those of other models.
const SAMPLES: &str = "input_values";

/// Tokens at the start and at the end of a transcript.
const START: u32 = 1;
const END: u32 = 2;

/// Maximum number of tokens of a transcript.
const MAX_TOKENS: usize = 192;

/// Inputs and outputs of the encoder. Some exports have no mask.
const ENCODER_NAMES: [NamedSlot<'static>; 3] = [
    (SAMPLES, Slot::Samples, DType::F32),
    ("attention_mask", Slot::SampleMask, DType::I64),
    ("last_hidden_state", Slot::EncoderRows, DType::F32),
];

/// Inputs and outputs of the decoder beside its cache. Some exports have no mask.
const DECODER_NAMES: [NamedSlot<'static>; 5] = [
    ("input_ids", Slot::Tokens, DType::I64),
    ("encoder_hidden_states", Slot::EncoderRows, DType::F32),
    ("encoder_attention_mask", Slot::SampleMask, DType::I64),
    ("use_cache_branch", Slot::ReadsCache, DType::Bool),
    ("logits", Slot::Logits, DType::F32),
];

/// Heads and their width for the published numbers of layers, where the graph does not state them.
const PUBLISHED: [(usize, [usize; 2]); 2] = [(6, [8, 36]), (8, [8, 52])];

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoonshineFiles {
    /// Folder of the graphs.
    folder: PathBuf,
    /// Name of the encoder's graph, if it was chosen.
    file: Option<String>,
}

impl MoonshineFiles {
    /// Returns the files of a folder; `None` if they are not those of Moonshine.
    pub(super) fn find(folder: &Path, file: Option<&str>) -> Option<Self> {
        let folders = [folder.to_owned(), folder.join(ONNX_FOLDER)];
        let folder = folders.into_iter().find(|folder| !variants(folder, DECODER).is_empty())?;
        let variants = variants(&folder, ENCODER);
        let encoder = ModelGraph::open(folder.join(format!("{ENCODER}{}.onnx", variants.first()?))).ok()?;
        encoder.has_input(SAMPLES).then(|| Self { folder, file: file.map(str::to_owned) })
    }

    /// Writes the files of the model.
    pub(super) fn write(&self, package: &PackageWriter, cancel: &AtomicBool) -> Result<TranscriberParts> {
        let Self { folder, file } = self;
        let variant = choose(folder, ENCODER, file.as_deref())?;
        let encoder = format!("{ENCODER}{variant}.onnx");
        let decoder = open_beside(folder, &format!("{DECODER}{variant}.onnx"), &encoder)?;
        let encoder = ModelGraph::open(folder.join(encoder))?;
        let tokenizer = package_json(&read_file(&self.tokenizer()?)?)?;
        let tokens = Tokenizer::from_json(&tokenizer)?.vocab_size();

        // The masks are the only inputs that a graph may lack.
        let count = ENCODER_NAMES.len() - usize::from(!encoder.has_input("attention_mask"));
        let encoder_entry = encoder.entry(Part::Encoder, &ENCODER_NAMES, count)?;
        let layers = layers(&decoder)?;
        let cache = cache_names(layers);
        let names: Vec<NamedSlot<'_>> = cache
            .iter()
            .map(|(name, slot)| (name.as_str(), *slot, DType::F32))
            .chain(DECODER_NAMES)
            .collect();
        let count = names.len() - usize::from(!decoder.has_input("encoder_attention_mask"));
        let decoder_entry = decoder.entry(Part::Decoder, &names, count)?;
        let [heads, head_size] = head_shape(&decoder_entry, layers)?;
        let vocab = vocab(&decoder_entry, tokens)?;

        copy_graphs(&[&encoder, &decoder], package, cancel)?;
        package.write(TOKENIZER_FILE, &tokenizer)?;
        Ok(TranscriberParts {
            model: ImportedTranscriber { vocab, family: TranscriberFamily::Moonshine },
            entry: TranscriberEntry::Moonshine(MoonshineEntry {
                start: START,
                end: END,
                layers,
                heads,
                head_size,
            }),
            graphs: vec![encoder_entry, decoder_entry],
            tokenizer: Some(TokenizerEntry {
                file: TOKENIZER_FILE.to_owned(),
                bos: Some(START),
                stop: vec![END],
                pad: None,
                mask: None,
            }),
            max_length: MAX_TOKENS,
        })
    }

    /// Returns the path of the tokenizer.
    fn tokenizer(&self) -> Result<PathBuf> {
        let folders = [Some(self.folder.as_path()), self.folder.parent()];
        let paths = folders.into_iter().flatten().map(|folder| folder.join(TOKENIZER_FILE));
        paths.into_iter().find(|path| path.is_file()).ok_or_else(|| {
            let expected = format!(
                "{TOKENIZER_FILE} beside the graphs; the Python package useful-moonshine-onnx has it"
            );
            refused(format!("files of {}", self.folder.display()), expected, "none")
        })
    }
}

/// Returns the number of layers of the decoder.
fn layers(decoder: &ModelGraph) -> Result<usize> {
    let layers = (0..=MoonshineEntry::MAX_LAYERS).take_while(|layer| {
        let name = format!("past_key_values.{layer}.decoder.key");
        decoder.graph.inputs.iter().any(|input| input.name == name)
    });
    match layers.count() {
        0 => Err(refused(format!("inputs of {}", decoder.name()), "past_key_values.0.decoder.key", "none")),
        layers => Ok(layers),
    }
}

/// Returns the names of the inputs and outputs of the cache with their slots.
fn cache_names(layers: usize) -> Vec<(String, Slot)> {
    let names = (0..layers).flat_map(|layer| {
        [
            (format!("past_key_values.{layer}.decoder.key"), Slot::PastKey { layer }),
            (format!("past_key_values.{layer}.decoder.value"), Slot::PastValue { layer }),
            (format!("past_key_values.{layer}.encoder.key"), Slot::CrossKey { layer }),
            (format!("past_key_values.{layer}.encoder.value"), Slot::CrossValue { layer }),
            (format!("present.{layer}.decoder.key"), Slot::PresentKey { layer }),
            (format!("present.{layer}.decoder.value"), Slot::PresentValue { layer }),
            (format!("present.{layer}.encoder.key"), Slot::CrossKey { layer }),
            (format!("present.{layer}.encoder.value"), Slot::CrossValue { layer }),
        ]
    });
    names.collect()
}

/// Returns the number of heads and their width.
fn head_shape(decoder: &GraphEntry, layers: usize) -> Result<[usize; 2]> {
    let slot = Slot::PastKey { layer: 0 };
    let stated = extent(decoder, slot, 1).zip(extent(decoder, slot, 3)).map(|(heads, width)| [heads, width]);
    let published = PUBLISHED.into_iter().find_map(|(count, shape)| (count == layers).then_some(shape));
    stated.or(published).ok_or_else(|| {
        let expected = "a fixed number of heads and a fixed width of a head";
        refused(format!("input past_key_values.0.decoder.key of {}", decoder.file), expected, "symbols")
    })
}

/// Returns the number of the decoder's vocabulary entries, which are at least those of the tokenizer.
fn vocab(decoder: &GraphEntry, tokens: usize) -> Result<usize> {
    match extent(decoder, Slot::Logits, 2) {
        Some(vocab) if vocab < tokens => {
            let expected = format!("values of the {tokens} tokens of {TOKENIZER_FILE}");
            Err(refused(format!("output logits of {}", decoder.file), expected, vocab))
        }
        vocab => Ok(vocab.unwrap_or(tokens)),
    }
}
