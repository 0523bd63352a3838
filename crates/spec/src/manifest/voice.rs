//! Voices of a package: speakers, and the files that turn a text into phonemes.

use serde::{Deserialize, Serialize};

use super::{Contradiction, Manifest, Slot, paths};
use crate::arch::{ImportedVoice, VoiceFamily};

/// Maximum number of speakers of a package. Kokoro has 54; some Piper voices have a thousand.
const MAX_SPEAKERS: usize = 4096;

/// Highest sample rate of a voice, in Hz.
const MAX_SAMPLE_RATE: u32 = 192_000;

/// Speakers of a voice, and their pronunciations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoiceEntry {
    /// Ids of phonemes: a JSON object from a phoneme to its id, relative to the package.
    #[serde(deserialize_with = "paths::path")]
    pub alphabet: String,
    /// The speakers; the first is the default.
    pub speakers: Vec<Speaker>,
    /// Pronunciations of the speakers' languages.
    pub pronunciations: Vec<Pronunciation>,
}

/// A speaker of a voice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Speaker {
    /// Name in requests.
    pub name: String,
    /// Language as a tag of BCP 47, such as `en-US`.
    pub language: String,
}

/// Pronunciation of a language.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pronunciation {
    /// Language as a tag of BCP 47. English tags other than `en-GB` are read as American.
    pub language: String,
    /// Origin of the phonemes.
    pub source: PhonemeSource,
}

/// Origin of phonemes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum PhonemeSource {
    /// Dictionaries and rules for English.
    English(EnglishPronunciation),
}

/// Files of an English pronunciation, relative to the package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnglishPronunciation {
    /// Dictionary of checked pronunciations.
    #[serde(deserialize_with = "paths::path")]
    pub gold: String,
    /// Dictionary of derived pronunciations.
    #[serde(deserialize_with = "paths::path")]
    pub silver: String,
    /// Weights of the part-of-speech tagger.
    #[serde(deserialize_with = "paths::path")]
    pub tagger: String,
    /// Texts that are divided into tokens differently than the rules divide them.
    #[serde(deserialize_with = "paths::path")]
    pub exceptions: String,
    /// Graph that reads the letters of unknown words.
    #[serde(deserialize_with = "paths::path")]
    pub letters_graph: String,
    /// Letters and phonemes of that graph.
    #[serde(deserialize_with = "paths::path")]
    pub letters: String,
}

impl VoiceEntry {
    /// Returns the graphs besides those of [`Manifest::graphs`].
    pub fn graphs(&self) -> impl Iterator<Item = &String> {
        self.pronunciations.iter().map(|pronunciation| match &pronunciation.source {
            PhonemeSource::English(english) => &english.letters_graph,
        })
    }

    /// Returns the files that the entry names.
    pub(super) fn files(&self) -> impl Iterator<Item = &String> {
        let pronunciations =
            self.pronunciations.iter().flat_map(|pronunciation| match &pronunciation.source {
                PhonemeSource::English(english) => {
                    let EnglishPronunciation { gold, silver, tagger, exceptions, letters_graph, letters } =
                        english;
                    [gold, silver, tagger, exceptions, letters_graph, letters]
                }
            });
        std::iter::once(&self.alphabet).chain(pronunciations)
    }

    /// Returns the pronunciation of a language.
    pub fn pronunciation(&self, language: &str) -> Option<&Pronunciation> {
        self.pronunciations.iter().find(|pronunciation| pronunciation.language == language)
    }
}

/// Fails if the parts of a voice contradict each other.
pub(super) fn check(manifest: &Manifest, voice: &ImportedVoice) -> Result<(), Contradiction> {
    if !(1..=MAX_SAMPLE_RATE).contains(&voice.sample_rate) {
        let expected = format!("a sample rate of 1 to {MAX_SAMPLE_RATE} Hz");
        return Err(Contradiction::new(expected, voice.sample_rate));
    }
    let Some(entry) = &manifest.voice else {
        return Err(Contradiction::new("the speakers of a voice", "none"));
    };
    let speakers = entry.speakers.len();
    if !(1..=MAX_SPEAKERS).contains(&speakers) {
        return Err(Contradiction::new(format!("1 to {MAX_SPEAKERS} speakers"), speakers));
    }
    for (index, Speaker { name, language }) in entry.speakers.iter().enumerate() {
        if entry.pronunciation(language).is_none() {
            return Err(Contradiction::new(format!("a pronunciation of {language} for {name}"), "none"));
        }
        let first = entry.speakers.iter().position(|speaker| speaker.name == *name);
        if name.is_empty() || first != Some(index) {
            return Err(Contradiction::new("a name for each speaker", format!("{name:?}")));
        }
    }

    let [graph] = manifest.graphs.as_slice() else {
        return Err(Contradiction::new("one graph of a voice", manifest.graphs.len()));
    };
    let (inputs, outputs) = match voice.family {
        VoiceFamily::Hibari => ([Slot::Phonemes, Slot::Speed], Slot::SPECTRUM),
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
