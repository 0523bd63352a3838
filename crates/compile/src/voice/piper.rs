//! Voices of Piper: a graph, and beside it a file with the ids of its phonemes, the same name and `.json` after it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use narthex_spec::{
    DType,
    arch::{ImportedVoice, VoiceFamily},
    manifest::{NoiseScales, PhonemeSource, Pronunciation, Slot, Speaker, VoiceEntry, is_espeak_name},
};
use serde::Deserialize;

use super::{NamedSlot, VoiceParts, graph_entry, read_file, write_graph};
use crate::{error::Result, import::refused, package::PackageWriter};

/// Maximum number of phonemes that the graph reads at once.
const MAX_PHONEMES: usize = 500;

/// Phonemes that every voice must have: the beginning and the end of a text, and the pad.
const FRAME: [&str; 3] = ["^", "$", "_"];

/// Inputs and outputs of the graph of one speaker.
const NAMES: [NamedSlot; 4] = [
    ("input", Slot::Phonemes, DType::I64),
    ("input_lengths", Slot::PhonemeCount, DType::I64),
    ("scales", Slot::NoiseScales, DType::F32),
    ("output", Slot::Samples, DType::F32),
];

/// Input of the graph of several speakers.
const SPEAKER: NamedSlot = ("sid", Slot::SpeakerNumber, DType::I64);

/// The files of a voice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PiperFiles {
    graph: PathBuf,
    /// Path of the settings.
    file: PathBuf,
    settings: serde_json::Value,
}

/// Settings of a voice.
#[derive(Deserialize)]
struct PiperSettings {
    audio: Audio,
    espeak: Option<Espeak>,
    #[serde(default)]
    inference: Inference,
    #[serde(default = "espeak")]
    phoneme_type: String,
    #[serde(default)]
    phoneme_map: serde_json::Map<String, serde_json::Value>,
    phoneme_id_map: BTreeMap<String, Vec<i64>>,
    #[serde(default)]
    speaker_id_map: BTreeMap<String, usize>,
    num_speakers: Option<usize>,
    language: Option<Language>,
    dataset: Option<String>,
}

#[derive(Deserialize)]
struct Audio {
    sample_rate: u32,
}

#[derive(Deserialize)]
struct Espeak {
    voice: String,
}

#[derive(Deserialize)]
struct Language {
    code: String,
}

#[derive(Deserialize)]
#[serde(default)]
struct Inference {
    noise_scale: f32,
    length_scale: f32,
    noise_w: f32,
}

impl Default for Inference {
    /// The scales of Piper.
    fn default() -> Self {
        Self { noise_scale: 0.667, length_scale: 1.0, noise_w: 0.8 }
    }
}

fn espeak() -> String {
    "espeak".to_owned()
}

impl PiperFiles {
    /// Returns the files of a graph, or of the graph of a folder that `file` names or that is its only one; `None` if they
    /// are no voice of Piper.
    pub(super) fn find(path: &Path, file: Option<&str>) -> Option<Self> {
        if path.is_file() {
            return Self::of_graph(path);
        }
        if let Some(file) = file {
            narthex_spec::manifest::check_path(file).ok()?;
            return Self::of_graph(&path.join(file));
        }
        let entries = fs::read_dir(path).ok()?.filter_map(std::result::Result::ok);
        let mut voices = entries.filter_map(|entry| Self::of_graph(&entry.path()));
        let voice = voices.next()?;
        voices.next().is_none().then_some(voice)
    }

    /// Returns the path of the graph.
    pub(super) fn graph(&self) -> &Path {
        &self.graph
    }

    fn of_graph(graph: &Path) -> Option<Self> {
        let name = graph.file_name()?.to_string_lossy().into_owned();
        let is_graph = graph.extension().is_some_and(|found| found.eq_ignore_ascii_case("onnx"));
        if !is_graph || !graph.is_file() {
            return None;
        }
        let file = graph.with_file_name(format!("{name}.json"));
        let settings: serde_json::Value = serde_json::from_slice(&read_file(&file).ok()?).ok()?;
        settings.get("phoneme_id_map")?;
        Some(Self { graph: graph.to_owned(), file, settings })
    }

    /// Returns the name of the voice, which is that of its graph.
    pub(super) fn name(&self) -> String {
        self.graph.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Writes the files of the voice.
    pub(super) fn write(&self, package: &PackageWriter, cancel: &AtomicBool) -> Result<VoiceParts> {
        let file = self.file.display().to_string();
        let settings = PiperSettings::deserialize(&self.settings)
            .map_err(|error| refused(&*file, "the settings of a voice of Piper", error))?;
        settings.check(&file)?;
        // espeak-ng writes single characters, so that no other phonemes occur.
        let ids: BTreeMap<&String, &Vec<i64>> =
            settings.phoneme_id_map.iter().filter(|(phoneme, _)| phoneme.chars().count() == 1).collect();
        let ids = serde_json::to_vec(&ids).map_err(|error| refused(&*file, "ids of phonemes", error))?;
        package.write("phonemes.json", &ids)?;

        let speakers = settings.speakers();
        let graph = write_graph(&self.graph, package, cancel)?;
        let mut names = NAMES.to_vec();
        if graph.inputs.iter().any(|input| input.name == SPEAKER.0) {
            names.push(SPEAKER);
        } else if speakers.len() > 1 {
            let expected = format!("an input sid for {} speakers", speakers.len());
            return Err(refused(self.graph.display().to_string(), expected, "none"));
        }
        let graph = graph_entry(&graph, &self.graph.display().to_string(), &names, names.len())?;
        let language = settings.language();
        let voice = settings.espeak_voice(&file)?.to_owned();
        let Inference { noise_scale, length_scale, noise_w } = settings.inference;
        Ok(VoiceParts {
            voice: ImportedVoice { sample_rate: settings.audio.sample_rate, family: VoiceFamily::Piper },
            entry: VoiceEntry {
                alphabet: "phonemes.json".to_owned(),
                styles: None,
                noise: Some(NoiseScales {
                    sound: noise_scale,
                    duration: length_scale,
                    duration_noise: noise_w,
                }),
                speakers,
                pronunciations: vec![Pronunciation { language, source: PhonemeSource::Espeak { voice } }],
            },
            graph,
            max_phonemes: MAX_PHONEMES,
        })
    }
}

impl PiperSettings {
    /// Fails for settings that this version does not support.
    fn check(&self, file: &str) -> Result<()> {
        if self.phoneme_type != espeak() {
            return Err(refused(format!("phoneme_type of {file}"), "espeak", &self.phoneme_type));
        }
        if let Some((phoneme, _)) = self.phoneme_map.iter().next() {
            return Err(refused(format!("phoneme_map of {file}"), "no replacements of phonemes", phoneme));
        }
        if let Some(count) = self.num_speakers.filter(|count| *count > VoiceEntry::MAX_SPEAKERS) {
            let expected = format!("at most {}", VoiceEntry::MAX_SPEAKERS);
            return Err(refused(format!("num_speakers of {file}"), expected, count));
        }
        let ids = &self.phoneme_id_map;
        if let Some(missing) = FRAME.into_iter().find(|phoneme| ids.get(*phoneme).is_none_or(Vec::is_empty)) {
            return Err(refused(format!("phoneme_id_map of {file}"), format!("an id of {missing}"), "none"));
        }
        Ok(())
    }

    /// Returns the voice of espeak-ng.
    fn espeak_voice(&self, file: &str) -> Result<&str> {
        let name = self.espeak.as_ref().map(|espeak| espeak.voice.as_str()).unwrap_or_default();
        if is_espeak_name(name) {
            return Ok(name);
        }
        Err(refused(
            format!("espeak.voice of {file}"),
            "the name of a voice of espeak-ng",
            format!("{name:?}"),
        ))
    }

    /// Returns the language as a tag of BCP 47: that of the settings, or else that of the voice of espeak-ng.
    fn language(&self) -> String {
        let stated = self.language.as_ref().map(|language| language.code.as_str());
        let espeak = self.espeak.as_ref().map(|espeak| espeak.voice.as_str());
        let code = stated.or(espeak).unwrap_or_default().replace('_', "-");
        match code.split_once('-') {
            Some((language, region)) if region.len() == 2 => {
                format!("{}-{}", language.to_lowercase(), region.to_uppercase())
            }
            _ => code,
        }
    }

    /// Returns the speakers in the order of their numbers.
    fn speakers(&self) -> Vec<Speaker> {
        let language = self.language();
        let speaker = |name: String, number| Speaker { name, language: language.clone(), number };
        if self.speaker_id_map.is_empty() {
            let count = self.num_speakers.unwrap_or(1);
            if count <= 1 {
                let name = self.dataset.clone().filter(|name| !name.is_empty());
                return vec![speaker(name.unwrap_or_else(|| "default".to_owned()), 0)];
            }
            return (0..count).map(|number| speaker(number.to_string(), number)).collect();
        }
        let mut speakers: Vec<Speaker> =
            self.speaker_id_map.iter().map(|(name, number)| speaker(name.clone(), *number)).collect();
        speakers.sort_by_key(|speaker| speaker.number);
        speakers
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(changes: serde_json::Value) -> PiperSettings {
        let mut settings = json!({
            "audio": {"sample_rate": 22050},
            "espeak": {"voice": "en-us"},
            "phoneme_id_map": {"_": [0], "^": [1], "$": [2], "a": [14]},
        });
        for (name, value) in changes.as_object().unwrap() {
            settings[name] = value.clone();
        }
        serde_json::from_value(settings).unwrap()
    }

    #[test]
    fn speakers_and_languages_are_those_of_the_settings() {
        let check = |changes, expect: &[(&str, usize)], language: &str| {
            let settings = settings(changes);
            let speakers = settings.speakers();
            let found: Vec<(&str, usize)> =
                speakers.iter().map(|speaker| (speaker.name.as_str(), speaker.number)).collect();
            assert_eq!((found.as_slice(), settings.language().as_str()), (expect, language));
        };
        check(json!({}), &[("default", 0)], "en-US");
        check(json!({"dataset": "joe", "language": {"code": "en_GB"}}), &[("joe", 0)], "en-GB");
        check(json!({"num_speakers": 2, "espeak": {"voice": "de"}}), &[("0", 0), ("1", 1)], "de");
        let map = json!({"speaker_id_map": {"ann": 1, "bob": 0}, "num_speakers": 2});
        check(map, &[("bob", 0), ("ann", 1)], "en-US");
    }

    #[test]
    fn settings_without_support_are_named() {
        let check = |changes, expect: &str| {
            let settings = settings(changes);
            let error = settings.check("v.json").and_then(|()| settings.espeak_voice("v.json").map(drop));
            let message = error.unwrap_err().to_string();
            assert!(message.contains(expect), "{message}");
        };
        check(json!({"phoneme_type": "text"}), "phoneme_type of v.json: found text, expected espeak");
        check(json!({"phoneme_map": {"a": ["b"]}}), "found a, expected no replacements of phonemes");
        check(json!({"phoneme_id_map": {"_": [0], "^": [1]}}), "found none, expected an id of $");
        check(json!({"num_speakers": 5000}), "found 5000, expected at most 4096");
        check(json!({"espeak": {"voice": "--path=/tmp"}}), "expected the name of a voice of espeak-ng");
    }
}
