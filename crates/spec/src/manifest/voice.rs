//! Voices of a package: speakers, and the files that turn a text into phonemes.

use serde::{Deserialize, Serialize};

use super::{Contradiction, Manifest, Slot, paths};
use crate::arch::{ImportedVoice, VoiceFamily};

/// Highest sample rate of a voice, in Hz.
const MAX_SAMPLE_RATE: u32 = 192_000;

/// Maximum length of the name of a voice of espeak-ng.
const MAX_ESPEAK_NAME: usize = 64;

/// Speakers of a voice, and their pronunciations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VoiceEntry {
    /// Ids of phonemes: a JSON object from a phoneme to its id, or to several ids, relative to the package.
    #[serde(deserialize_with = "paths::path")]
    pub alphabet: String,
    /// Styles of the speakers in the order of their numbers, relative to the package: for each number of phonemes up to the
    /// maximum length, a row of little-endian f32. For voices of Kokoro.
    #[serde(default, deserialize_with = "paths::optional", skip_serializing_if = "Option::is_none")]
    pub styles: Option<String>,
    /// Scales of the noise, for voices of Piper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<NoiseScales>,
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
    /// Number of the speaker in the graph or in the styles.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub number: usize,
}

/// Returns whether a number is the default.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Scales of the noise of a voice of Piper.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NoiseScales {
    /// Scale of the noise of the sound.
    pub sound: f32,
    /// Scale of the durations of phonemes, at the usual speed.
    pub duration: f32,
    /// Scale of the noise of the durations.
    pub duration_noise: f32,
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
    /// The program espeak-ng.
    Espeak {
        /// Name of its voice, such as `fr-fr`.
        voice: String,
    },
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
    /// Maximum number of speakers of a package. Kokoro has 54; some Piper voices have a thousand.
    pub const MAX_SPEAKERS: usize = 4096;

    /// Returns the graphs besides those of [`Manifest::graphs`].
    pub fn graphs(&self) -> impl Iterator<Item = &String> {
        self.english().map(|english| &english.letters_graph)
    }

    /// Returns the files that the entry names.
    pub(super) fn files(&self) -> impl Iterator<Item = &String> {
        let pronunciations = self.english().flat_map(|english| {
            let EnglishPronunciation { gold, silver, tagger, exceptions, letters_graph, letters } = english;
            [gold, silver, tagger, exceptions, letters_graph, letters]
        });
        std::iter::once(&self.alphabet).chain(&self.styles).chain(pronunciations)
    }

    fn english(&self) -> impl Iterator<Item = &EnglishPronunciation> {
        self.pronunciations.iter().filter_map(|pronunciation| match &pronunciation.source {
            PhonemeSource::English(english) => Some(english),
            PhonemeSource::Espeak { .. } => None,
        })
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
    if !(1..=VoiceEntry::MAX_SPEAKERS).contains(&speakers) {
        return Err(Contradiction::new(format!("1 to {} speakers", VoiceEntry::MAX_SPEAKERS), speakers));
    }
    for (index, Speaker { name, language, .. }) in entry.speakers.iter().enumerate() {
        if entry.pronunciation(language).is_none() {
            return Err(Contradiction::new(format!("a pronunciation of {language} for {name}"), "none"));
        }
        let first = entry.speakers.iter().position(|speaker| speaker.name == *name);
        if name.is_empty() || first != Some(index) {
            return Err(Contradiction::new("a name for each speaker", format!("{name:?}")));
        }
    }

    for Pronunciation { source, .. } in &entry.pronunciations {
        if let PhonemeSource::Espeak { voice } = source
            && !is_espeak_name(voice)
        {
            return Err(Contradiction::new("the name of a voice of espeak-ng", format!("{voice:?}")));
        }
    }
    check_graph(manifest, entry, voice.family)
}

/// Returns whether a text is the name of a voice of espeak-ng, and not an option or a path.
pub fn is_espeak_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-+_".contains(c);
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.len() <= MAX_ESPEAK_NAME
        && name.chars().all(is_part)
}

/// Fails if the graph of a voice lacks an input or output of its family.
fn check_graph(manifest: &Manifest, entry: &VoiceEntry, family: VoiceFamily) -> Result<(), Contradiction> {
    let [graph] = manifest.graphs.as_slice() else {
        return Err(Contradiction::new("one graph of a voice", manifest.graphs.len()));
    };
    let (inputs, outputs): (&[Slot], &[Slot]) = match family {
        VoiceFamily::Hibari => (&[Slot::Phonemes, Slot::Speed], &Slot::SPECTRUM),
        VoiceFamily::Kokoro => (&[Slot::Phonemes, Slot::Style, Slot::Speed], &[Slot::Samples]),
        VoiceFamily::Piper => (&[Slot::Phonemes, Slot::PhonemeCount, Slot::NoiseScales], &[Slot::Samples]),
    };
    if let Some(missing) = inputs.iter().find(|slot| graph.input(**slot).is_none()) {
        return Err(Contradiction::new(format!("an input for {missing:?} in {}", graph.file), "none"));
    }
    if let Some(missing) = outputs.iter().find(|slot| graph.output(**slot).is_none()) {
        return Err(Contradiction::new(format!("an output for {missing:?} in {}", graph.file), "none"));
    }
    match family {
        VoiceFamily::Kokoro if entry.styles.is_none() => {
            Err(Contradiction::new("a file with the styles of the speakers", "none"))
        }
        VoiceFamily::Piper if entry.noise.is_none() => Err(Contradiction::new("scales of the noise", "none")),
        VoiceFamily::Hibari | VoiceFamily::Kokoro | VoiceFamily::Piper => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voices_of_espeak_are_names_and_no_options_or_paths() {
        let check = |name: &str, expect: bool| assert_eq!(is_espeak_name(name), expect, "{name:?}");
        for name in ["en-us", "pt-br", "zh", "en-gb-x-rp", "en+f3", "cmn_latn"] {
            check(name, true);
        }
        for name in ["", "-v", "--path=x", "a b", "../x", "a/b", "en\n"] {
            check(name, false);
        }
        check(&"a".repeat(65), false);
    }
}
