//! Voices of hibari: a folder with the graph, the ids of its phonemes, and the files of the English pronunciation.

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use narthex_spec::{
    DType,
    arch::{ImportedVoice, VoiceFamily},
    manifest::{Slot, Speaker, VoiceEntry},
};
use serde::Deserialize;

use super::{NamedSlot, VoiceParts, english, graph_entry, read, write_graph};
use crate::{error::Result, import::refused, package::PackageWriter};

/// Speakers and their graphs.
const SPEAKERS: &str = "voices.json";
/// Ids of phonemes.
const ALPHABET: &str = "vocab.json";

/// Maximum number of phonemes that the graph reads at once.
const MAX_PHONEMES: usize = 400;

/// Samples per second.
const SAMPLE_RATE: u32 = 24_000;

/// Inputs and outputs of the graph.
const NAMES: [NamedSlot; 8] = [
    ("ids", Slot::Phonemes, DType::I64),
    ("speed", Slot::Speed, DType::F32),
    ("lh", Slot::HarmonicMagnitude, DType::F32),
    ("theta", Slot::HarmonicPhase, DType::F32),
    ("ln", Slot::NoiseMagnitude, DType::F32),
    ("lr", Slot::RestMagnitude, DType::F32),
    ("phi", Slot::RestPhase, DType::F32),
    ("f0", Slot::Pitch, DType::F32),
];

/// A speaker, as the folder states it.
#[derive(Deserialize)]
struct StatedSpeaker {
    language: String,
    file: String,
}

/// Returns whether a folder holds a voice of hibari.
pub(super) fn is_layout(folder: &Path) -> bool {
    [SPEAKERS, ALPHABET, english::TAGGER].iter().all(|file| folder.join(file).is_file())
}

/// Returns the path of the graph `file`, or of that of the first speaker.
pub(super) fn graph(folder: &Path, file: Option<&str>) -> Result<PathBuf> {
    Ok(folder.join(speaker(folder, file)?.1.file))
}

/// Writes the files of the voice whose graph is `file`, or of the first one.
pub(super) fn write(
    folder: &Path,
    file: Option<&str>,
    package: &PackageWriter,
    cancel: &AtomicBool,
) -> Result<VoiceParts> {
    let (name, speaker) = speaker(folder, file)?;
    let graph = write_graph(&folder.join(&speaker.file), package, cancel)?;
    package.write("phonemes.json", &read(folder, ALPHABET)?)?;

    let language = speaker.language;
    let pronunciations = english::write(folder, &[&language], package, cancel)?;
    Ok(VoiceParts {
        voice: ImportedVoice { sample_rate: SAMPLE_RATE, family: VoiceFamily::Hibari },
        entry: VoiceEntry {
            alphabet: "phonemes.json".to_owned(),
            styles: None,
            noise: None,
            speakers: vec![Speaker { name, language, number: 0 }],
            pronunciations,
        },
        graph: graph_entry(&graph, &speaker.file, &NAMES, NAMES.len())?,
        max_phonemes: MAX_PHONEMES,
    })
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
