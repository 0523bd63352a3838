//! Imports of voices as packages. The graphs are copied, and dictionaries are decompressed.
//!
//! A voice of hibari is a folder with its graph, the ids of its phonemes, and the dictionaries, the tagger and the model for
//! unknown words of its language.

use std::{
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use flate2::read::GzDecoder;
use narthex_graph::{
    Graph, Value,
    onnx::files::{OnnxFile, OnnxFileError, open_files},
};
use narthex_spec::{
    DType, ModelName, Recipe, Scheme, Variant,
    arch::{ImportedVoice, Structure, VoiceOutput},
    manifest::{
        Binding, EnglishPronunciation, FORMAT, GraphEntry, Manifest, Part, PhonemeSource, Prompts,
        Pronunciation, Provenance, PublishedSampling, Slot, Speaker, VoiceEntry,
    },
};
use serde::Deserialize;

use crate::{
    error::Result,
    import::refused,
    package::{GRAPH_FILE, PackageWriter},
};

/// Speakers and their graphs.
const SPEAKERS: &str = "voices.json";
/// Ids of phonemes.
const ALPHABET: &str = "vocab.json";
/// Tagger of the words.
const TAGGER: &str = "tagger.json.gz";
/// Texts that are divided into tokens differently.
const EXCEPTIONS: &str = "tokenizer_exceptions.json";

/// Maximum size in bytes of a file that is read or decompressed.
const MAX_BYTES: u64 = 64 << 20;

/// Maximum number of phonemes that the graph reads at once.
const MAX_PHONEMES: usize = 400;

/// Samples per second.
const SAMPLE_RATE: u32 = 24_000;

/// Inputs and outputs of the graph.
const NAMES: [(&str, Slot, DType); 8] = [
    ("ids", Slot::Phonemes, DType::I64),
    ("speed", Slot::Speed, DType::F32),
    ("lh", Slot::HarmonicMagnitude, DType::F32),
    ("theta", Slot::HarmonicPhase, DType::F32),
    ("ln", Slot::NoiseMagnitude, DType::F32),
    ("lr", Slot::RestMagnitude, DType::F32),
    ("phi", Slot::RestPhase, DType::F32),
    ("f0", Slot::Pitch, DType::F32),
];

/// A voice to import.
#[derive(Debug, Clone)]
pub struct VoiceJob<'a> {
    /// Folder of the voice.
    pub folder: &'a Path,
    /// Name of the graph's file, if it is not that of the first speaker.
    pub file: Option<&'a str>,
    /// Name of the package.
    pub name: ModelName,
    /// An empty folder; on success it contains the package.
    pub out: &'a Path,
    /// Origin of the voice.
    pub provenance: Provenance,
}

/// A speaker, as the folder states it.
#[derive(Deserialize)]
struct StatedSpeaker {
    language: String,
    file: String,
}

/// Returns whether a folder holds a voice.
pub fn is_voice(folder: &Path) -> bool {
    [SPEAKERS, ALPHABET, TAGGER].iter().all(|file| folder.join(file).is_file())
}

/// Writes the package of a voice.
///
/// # Errors
/// [`CompileError::Open`](crate::CompileError::Open) for files that cannot be read,
/// [`CompileError::Foreign`](crate::CompileError::Foreign) for a voice of another kind,
/// [`CompileError::Write`](crate::CompileError::Write), [`CompileError::Cancelled`](crate::CompileError::Cancelled).
pub fn import(job: VoiceJob<'_>, cancel: &AtomicBool) -> Result<Manifest> {
    let folder = job.folder;
    let (name, speaker) = speaker(folder, job.file)?;
    let graph = read_graph(&folder.join(&speaker.file))?;
    let package = PackageWriter::new(job.out);
    package.copy(GRAPH_FILE, &folder.join(&speaker.file), cancel)?;
    package.write("phonemes.json", &read(folder, ALPHABET)?)?;

    let accent = if speaker.language == "en-GB" { "gb" } else { "us" };
    let letters = if accent == "gb" { "oov_gb" } else { "oov" };
    for (to, from) in [("gold.json", "gold"), ("silver.json", "silver")] {
        package.write(to, &decompressed(folder, &format!("lexicon_{accent}_{from}.json.gz"))?)?;
    }
    package.write("tagger.json", &decompressed(folder, TAGGER)?)?;
    package.write("exceptions.json", &read(folder, EXCEPTIONS)?)?;
    package.write("letters.json", &read(folder, &format!("{letters}.json"))?)?;
    let letters_graph = folder.join(format!("{letters}.onnx"));
    read_graph(&letters_graph)?;
    package.copy("letters.onnx", &letters_graph, cancel)?;

    let english = EnglishPronunciation {
        gold: "gold.json".to_owned(),
        silver: "silver.json".to_owned(),
        tagger: "tagger.json".to_owned(),
        exceptions: "exceptions.json".to_owned(),
        letters_graph: "letters.onnx".to_owned(),
        letters: "letters.json".to_owned(),
    };
    let language = speaker.language;
    let voice = VoiceEntry {
        alphabet: "phonemes.json".to_owned(),
        speakers: vec![Speaker { name, language: language.clone() }],
        pronunciations: vec![Pronunciation { language, source: PhonemeSource::English(english) }],
    };
    let mut manifest = Manifest {
        format: FORMAT,
        name: job.name,
        architecture: Structure::ImportedVoice(ImportedVoice {
            sample_rate: SAMPLE_RATE,
            output: VoiceOutput::Spectrum,
        }),
        recipe: Recipe::new(Scheme::W8),
        max_length: MAX_PHONEMES,
        graphs: vec![entry(&graph, &speaker.file)?],
        contexts: Vec::new(),
        bound: None,
        tables: Vec::new(),
        kept_tokens: None,
        tokenizer: None,
        chat: None,
        speech: None,
        vision: None,
        audio: None,
        voice: Some(voice),
        sampling: PublishedSampling::default(),
        prompts: Prompts::default(),
        source_weights: Vec::new(),
        layer_widths: Vec::new(),
        quality: None,
        loss: None,
        certificate: None,
        files: BTreeMap::new(),
        provenance: job.provenance,
    };
    package.finish(&mut manifest)?;
    Ok(manifest)
}

/// Returns the speaker whose graph is `file`, or the first one whose graph is in the folder.
fn speaker(folder: &Path, file: Option<&str>) -> Result<(String, StatedSpeaker)> {
    let speakers: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&read(folder, SPEAKERS)?)
            .map_err(|error| refused(SPEAKERS, "an object with speakers", error))?;
    for (name, stated) in speakers {
        let stated = StatedSpeaker::deserialize(stated)
            .map_err(|error| refused(format!("{name} of {SPEAKERS}"), "a language and a file", error))?;
        let is_inside = narthex_spec::manifest::check_path(&stated.file).is_ok();
        let is_chosen = file.is_none_or(|file| file == stated.file);
        if is_inside && is_chosen && folder.join(&stated.file).is_file() {
            return Ok((name, stated));
        }
    }
    let expected = format!("the graph of a speaker of {SPEAKERS} in {}", folder.display());
    Err(refused("voice", expected, file.unwrap_or("none")))
}

/// Reads a graph without data files.
fn read_graph(path: &Path) -> Result<Graph> {
    let mut files = open_files(&[path.to_owned()])?;
    let what = || path.display().to_string();
    match files.pop() {
        Some(OnnxFile { graph, data_files, .. }) if data_files.is_empty() => Ok(graph),
        Some(file) => {
            let names: Vec<&str> = file.data_files.keys().map(String::as_str).collect();
            Err(refused(what(), "a graph in one file", names.join(", ")))
        }
        None => Err(refused(what(), "a graph", "none")),
    }
}

/// Returns the entry of the graph, with its inputs and outputs.
fn entry(graph: &Graph, file: &str) -> Result<GraphEntry> {
    let [inputs, outputs] = [&graph.inputs, &graph.outputs].map(|values| bindings(values));
    let bound = inputs.len() + outputs.len();
    if inputs.len() != graph.inputs.len() || bound != NAMES.len() {
        let found = graph.inputs.iter().chain(&graph.outputs).map(|value| value.name.as_str());
        let expected = NAMES.map(|(name, ..)| name).join(", ");
        return Err(refused(format!("tensors of {file}"), expected, found.collect::<Vec<_>>().join(", ")));
    }
    Ok(GraphEntry {
        file: GRAPH_FILE.to_owned(),
        variant: Variant::Dynamic,
        part: Part::Whole,
        inputs,
        outputs,
        kv: Vec::new(),
    })
}

/// Returns the bindings of the values with a known name and type.
fn bindings(values: &[Value]) -> Vec<Binding> {
    let known = values.iter().filter_map(|value| {
        let (_, slot, dtype) = NAMES.iter().find(|(name, ..)| *name == value.name)?;
        (value.dtype.dtype() == Some(*dtype)).then(|| Binding {
            slot: *slot,
            name: value.name.clone(),
            dtype: *dtype,
            shape: value.shape.clone(),
        })
    });
    known.collect()
}

fn read(folder: &Path, file: &str) -> Result<Vec<u8>> {
    let path: PathBuf = folder.join(file);
    Ok(narthex_files::read(&path, MAX_BYTES).map_err(|source| OnnxFileError::Read { path, source })?)
}

/// Reads a file and decompresses it.
fn decompressed(folder: &Path, file: &str) -> Result<Vec<u8>> {
    let compressed = read(folder, file)?;
    let mut bytes = Vec::new();
    let mut decoder = GzDecoder::new(compressed.as_slice()).take(MAX_BYTES + 1);
    decoder.read_to_end(&mut bytes).map_err(|error| refused(file, "a gzip file", error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(refused(file, format!("at most {MAX_BYTES} bytes"), "more"));
    }
    Ok(bytes)
}
