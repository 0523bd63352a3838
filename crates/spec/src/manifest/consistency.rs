//! Contradictions between the parts of a manifest. A package with one cannot be run, or would be run wrongly.

use std::fmt;

use super::{
    Contradiction, GraphEntry, KvContent, KvLayout, Manifest, Part, Slot, sampling, transcriber, voice,
};
use crate::arch::{
    Attention, DecoderArch, DecoderLayer, EmbedderArch, EncoderArch, EncoderHead, ImportedDecoder,
    ImportedEncoder, Mixer, PatchTower, Recurrence, Rope, SpeechArch, SpeechLayers, Structure, VisionArch,
};

/// Fails if a condition does not hold.
fn ensure(holds: bool, expected: impl Into<String>, found: impl fmt::Display) -> Result<(), Contradiction> {
    if holds { Ok(()) } else { Err(Contradiction::new(expected, found)) }
}

/// Checks a manifest as far as that is possible without its files.
pub fn check_consistency(manifest: &Manifest) -> Result<(), Contradiction> {
    ensure(!manifest.graphs.is_empty(), "at least one graph", "none")?;
    ensure(manifest.max_length > 0, "a maximum length of at least one token", 0)?;
    let vocab = match &manifest.architecture {
        Structure::Decoder(DecoderArch { vocab, .. })
        | Structure::Encoder(EncoderArch { vocab, .. })
        | Structure::Embedder(EmbedderArch { decoder: DecoderArch { vocab, .. }, .. })
        | Structure::Speech(SpeechArch { vocab, .. })
        | Structure::ImportedDecoder(ImportedDecoder { vocab, .. })
        | Structure::ImportedEncoder(ImportedEncoder { vocab, .. }) => *vocab,
        Structure::ImportedVoice(voice) => return voice::check(manifest, voice),
        Structure::ImportedTranscriber(transcriber) => return transcriber::check(manifest, *transcriber),
    };
    ensure(manifest.tokenizer.is_some(), "a tokenizer", "none")?;
    if let Some(bos) = manifest.bos() {
        ensure((bos as usize) < vocab, format!("a start token below the vocabulary size {vocab}"), bos)?;
    }
    sampling::check(&manifest.sampling)?;
    if let Some(classifier) = &manifest.classifier {
        classifier.check(manifest.architecture.head().and_then(EncoderHead::labels))?;
    }
    if let Some(pairs) = &manifest.pairs {
        pairs.check(manifest.architecture.head())?;
    }
    match &manifest.architecture {
        Structure::Decoder(arch) => {
            check_decoder(arch)?;
            check_vision(arch, manifest)?;
            check_audio(arch, manifest)?;
        }
        Structure::Embedder(arch) => check_embedder(arch)?,
        Structure::Speech(arch) => check_speech(arch, manifest)?,
        _ => {}
    }
    for graph in &manifest.graphs {
        check_graph(manifest, graph)?;
    }
    Ok(())
}

fn check_decoder(arch: &DecoderArch) -> Result<(), Contradiction> {
    ensure(!arch.layers.is_empty(), "at least one layer", "none")?;
    for (index, layer) in arch.layers.iter().enumerate() {
        let Some(&Attention { heads, kv_heads, head_size, .. }) = layer.attention() else { continue };
        let divides = kv_heads > 0 && heads > 0 && heads % kv_heads == 0 && head_size > 0;
        let expected = format!("attention heads of layer {index} in groups of equal size");
        ensure(divides, expected, format!("{heads} heads and {kv_heads} key/value heads"))?;
    }
    let contradiction = arch.convolution_contradiction().or_else(|| arch.recurrence_contradiction());
    if let Some([expected, found]) = contradiction {
        return Err(Contradiction::new(expected, found));
    }
    for Rope { theta, .. } in arch.rope.iter().chain(&arch.local_rope) {
        ensure(theta.is_finite() && *theta > 0.0, "a rotary base above zero", theta)?;
    }
    Ok(())
}

fn check_embedder(arch: &EmbedderArch) -> Result<(), Contradiction> {
    check_decoder(&arch.decoder)?;
    let other = arch.decoder.layers.iter().find_map(|layer| match layer.recurrence() {
        Some(recurrence) => Some(recurrence.title()),
        None => layer.convolution().map(|_| "short convolution"),
    });
    let expected = "attention in every layer of an embedding model";
    ensure(other.is_none(), expected, format!("a {}", other.unwrap_or_default()))?;
    let fits = match arch.head {
        EncoderHead::Embedding { .. } => arch.classifier.is_none(),
        EncoderHead::Score { dense: None, .. } | EncoderHead::Tokens { .. } => {
            arch.classifier.is_some() && arch.dense.is_empty()
        }
        _ => false,
    };
    let expected = "a vector of an embedding model, or scores with the layers of a classifier";
    ensure(fits, expected, format!("{:?}", arch.head))?;
    let expected = format!("widths of linear layers from 1 to {MAX_DENSE_WIDTH}");
    match arch.dense.iter().find(|width| !(1..=MAX_DENSE_WIDTH).contains(*width)) {
        Some(width) => Err(Contradiction::new(expected, width.to_string())),
        None => Ok(()),
    }
}

/// Largest width of a linear layer between pooling and vector.
const MAX_DENSE_WIDTH: usize = 1 << 20;

/// Largest extent of a vision tower. SigLIP has a side of 896.
const MAX_VISION_EXTENT: usize = 1 << 16;

/// Largest number of values of a picture, or of the rows of a medium.
const MAX_PICTURE_VALUES: usize = 1 << 26;

fn check_vision(arch: &DecoderArch, manifest: &Manifest) -> Result<(), Contradiction> {
    let Some(vision) = arch.vision.as_deref() else {
        return ensure(manifest.vision.is_none(), "a vision tower for pictures", "none");
    };
    let width = match vision {
        VisionArch::Patches(tower) => {
            check_patches(tower)?;
            tower.connector_width()
        }
        VisionArch::MobileNet(tower) => {
            if let Some([expected, found]) = tower.contradiction() {
                return Err(Contradiction::new(expected, found));
            }
            tower.hidden
        }
    };
    let values = vision.side().saturating_mul(vision.side()).saturating_mul(VisionArch::CHANNELS);
    let largest = values.max(vision.rows().saturating_mul(width.max(arch.hidden)));
    let expected = format!("a vision tower with at most {MAX_PICTURE_VALUES} values");
    ensure(largest <= MAX_PICTURE_VALUES, expected, largest)?;
    match &manifest.vision {
        Some(entry) => entry.check(vision, arch.vocab),
        None => Err(Contradiction::new("the tokens of pictures", "none")),
    }
}

fn check_audio(arch: &DecoderArch, manifest: &Manifest) -> Result<(), Contradiction> {
    let Some(audio) = arch.audio.as_deref() else {
        return ensure(manifest.audio.is_none(), "an audio tower for sounds", "none");
    };
    if let Some([expected, found]) = audio.contradiction() {
        return Err(Contradiction::new(expected, found));
    }
    let expected = format!("rows of a sound with at most {MAX_PICTURE_VALUES} values");
    let values = (audio.rows + 1).saturating_mul(arch.hidden);
    ensure(values <= MAX_PICTURE_VALUES, expected, values)?;
    match &manifest.audio {
        Some(entry) => entry.check(audio, arch.vocab),
        None => Err(Contradiction::new("the tokens of sounds", "none")),
    }
}

fn check_patches(tower: &PatchTower) -> Result<(), Contradiction> {
    let PatchTower { side, patch, hidden, layers, heads, inner, connector, .. } = tower;
    let square = &connector.square();
    for number in [side, patch, hidden, layers, heads, inner, square] {
        let expected = format!("numbers of a vision tower from 1 to {MAX_VISION_EXTENT}");
        ensure((1..=MAX_VISION_EXTENT).contains(number), expected, number)?;
    }
    ensure(hidden.is_multiple_of(*heads), format!("heads that divide the width {hidden}"), heads)?;
    ensure(side.is_multiple_of(*patch), format!("patches that divide the side {side}"), patch)?;
    let patches = tower.patches();
    ensure(patches.is_multiple_of(*square), format!("squares that divide {patches} patches"), square)
}

/// Largest extent of a model that transcribes speech. Whisper has a vocabulary of 52,000.
const MAX_SPEECH_EXTENT: usize = 1 << 20;

/// Largest product of two extents, such as that of the positions and the width of the encoder's rows.
const MAX_SPEECH_ELEMENTS: usize = 1 << 28;

fn check_speech(arch: &SpeechArch, manifest: &Manifest) -> Result<(), Contradiction> {
    let SpeechArch { vocab, hidden, bins, source_positions, target_positions, encoder, decoder, .. } = arch;
    let numbers = [*vocab, *hidden, *bins, *source_positions, *target_positions];
    let layers = [encoder, decoder].map(|SpeechLayers { layers, heads, inner }| [*layers, *heads, *inner]);
    let numbers = numbers.into_iter().chain(layers.into_iter().flatten());
    for number in numbers {
        let expected = format!("numbers of a model for speech from 1 to {MAX_SPEECH_EXTENT}");
        ensure((1..=MAX_SPEECH_EXTENT).contains(&number), expected, number)?;
    }
    for SpeechLayers { heads, .. } in [encoder, decoder] {
        ensure(hidden.is_multiple_of(*heads), format!("heads that divide the width {hidden}"), heads)?;
    }

    let positions = (*source_positions).max(*target_positions);
    let state = positions.saturating_mul(*hidden).saturating_mul(decoder.layers);
    let frames = arch.frames().saturating_mul(*bins);
    let expected = format!("a model for speech with a state of at most {MAX_SPEECH_ELEMENTS} elements");
    ensure(state.max(frames) <= MAX_SPEECH_ELEMENTS, expected, state.max(frames))?;
    let expected = format!("a length of at most {target_positions} tokens");
    ensure(manifest.max_length <= *target_positions, expected, manifest.max_length)?;
    for [layer, head] in &arch.alignment_heads {
        let expected = format!("alignment heads of {} layers of {} heads", decoder.layers, decoder.heads);
        let fits = *layer < decoder.layers && *head < decoder.heads;
        ensure(fits, expected, format!("head {head} of layer {layer}"))?;
    }
    match &manifest.speech {
        Some(entry) => entry.check(*vocab),
        None => Err(Contradiction::new("the control tokens of a model for speech", "none")),
    }
}

fn check_graph(manifest: &Manifest, graph: &GraphEntry) -> Result<(), Contradiction> {
    let file = &graph.file;
    let mixers = mixer_entries(&manifest.architecture);
    for (entry, layout) in graph.kv.iter().enumerate() {
        let KvLayout { heads, head_size, .. } = layout;
        let expected = format!("heads with elements in entry {entry} of the KV cache of {file}");
        ensure(*heads > 0 && *head_size > 0, expected, format!("{heads} heads of {head_size} elements"))?;
        let found = EntryShape::of_entry(layout);
        let is_known = found.content == KvContent::KeysAndValues || mixers.contains(&found);
        ensure(is_known, format!("entry {entry} of the KV cache of {file} to be that of a layer"), found)?;
    }

    // In a graph for a range of layers, slots refer to the entries of the whole cache.
    if !matches!(graph.part, Part::Layers { range: Some(_), .. }) {
        for binding in graph.inputs.iter().chain(&graph.outputs) {
            if let Slot::PastKey { layer }
            | Slot::PastValue { layer }
            | Slot::PresentKey { layer }
            | Slot::PresentValue { layer }
            | Slot::NewKey { layer }
            | Slot::NewValue { layer }
            | Slot::PastConvolution { layer }
            | Slot::NewConvolution { layer }
            | Slot::PastState { layer }
            | Slot::PresentState { layer }
            | Slot::PastConvolutionState { layer }
            | Slot::PresentConvolutionState { layer } = binding.slot
            {
                let entries = graph.kv.len();
                let expected =
                    format!("an entry below {entries} of the KV cache for {} of {file}", binding.name);
                ensure(layer < entries, expected, layer)?;
            }
        }
    }

    let Structure::Decoder(arch) = &manifest.architecture else { return Ok(()) };
    if !matches!(graph.part, Part::Whole | Part::Layers { range: None, .. }) {
        return Ok(());
    }

    let own = arch.layers.iter().filter(|layer| layer.shared_entry().is_none());
    let wanted: Vec<EntryShape> = own.map(|layer| EntryShape::of_layer(arch, layer)).collect();
    let found: Vec<EntryShape> = graph.kv.iter().map(EntryShape::of_entry).collect();
    let expected = format!("a KV cache of {} layers in {file}", wanted.len());
    ensure(found.len() == wanted.len(), expected, found.len())?;

    for (entry, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
        ensure(found == wanted, format!("{wanted} in entry {entry} of the KV cache of {file}"), found)?;
    }
    Ok(())
}

/// Returns the shapes of the entries of a model's convolutions and recurrences. Each is the same in all layers.
fn mixer_entries(architecture: &Structure) -> Vec<EntryShape> {
    let Structure::Decoder(arch) = architecture else { return Vec::new() };
    let convolution = arch.layers.iter().find(|layer| layer.convolution().is_some());
    let recurrence = arch.layers.iter().find(|layer| layer.recurrence().is_some());
    convolution.into_iter().chain(recurrence).map(|layer| EntryShape::of_layer(arch, layer)).collect()
}

/// Shape of an entry of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EntryShape {
    content: KvContent,
    heads: usize,
    head_size: usize,
    /// Number of rows that a step of a convolution reads, also of one before a recurrence.
    rows: Option<usize>,
}

impl EntryShape {
    fn of_layer(arch: &DecoderArch, layer: &DecoderLayer) -> Self {
        match &layer.mixer {
            Mixer::Attention(attention) => Self {
                content: KvContent::KeysAndValues,
                heads: attention.kv_heads,
                head_size: attention.head_size,
                rows: None,
            },
            Mixer::Convolution(convolution) => Self {
                content: KvContent::ConvolutionInputs,
                heads: 1,
                head_size: arch.hidden / 2,
                rows: Some(convolution.kernel.saturating_sub(1)),
            },
            Mixer::DeltaRule(rule) => Self::of_entry(&KvLayout::recurrence(Recurrence::DeltaRule(rule))),
            Mixer::Mamba2(mamba) => Self::of_entry(&KvLayout::recurrence(Recurrence::Mamba2(mamba))),
        }
    }

    fn of_entry(entry: &KvLayout) -> Self {
        let &KvLayout { content, heads, head_size, window, .. } = entry;
        Self { content, heads, head_size, rows: window.filter(|_| content != KvContent::KeysAndValues) }
    }
}

impl fmt::Display for EntryShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { heads, head_size, rows, .. } = self;
        match self.content {
            KvContent::KeysAndValues => write!(f, "{heads} heads of {head_size} elements"),
            KvContent::ConvolutionInputs => {
                let rows = rows.unwrap_or(0);
                write!(f, "{rows} rows of a convolution with {} elements", 2 * heads * head_size)
            }
            KvContent::RecurrentState { key_size, width } => {
                let rows = rows.unwrap_or(0);
                write!(
                    f,
                    "{heads} states of {key_size} × {head_size} elements and {rows} rows of {width} elements"
                )
            }
        }
    }
}
