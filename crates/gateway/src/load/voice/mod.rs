//! A voice in memory: its graph and the pronunciations of its languages.
//!
//! Voices run on the CPU: their graphs have shapes that depend on the text. `graph` runs the graph of each family,
//! `pronunciation` has the phonemes of a language, and `espeak` runs the program espeak-ng.

pub(crate) mod espeak;
mod graph;
mod pronunciation;

use std::ops::RangeInclusive;

use narthex_spec::{
    arch::{Structure, VoiceFamily},
    manifest::{Manifest, Speaker},
};
use narthex_speech::{espeak::Notation, phonemes};

use self::{graph::VoiceGraph, pronunciation::SpokenLanguage};
use crate::{
    cancel::Cancel,
    error::Error,
    library::package::bad_package,
    load::{
        cpu_model::{self, check_cpu},
        request::LoadRequest,
    },
    report::placement::PlacementReport,
};

pub(crate) use self::pronunciation::{accent, is_english};

/// Reason of the placement.
const ON_CPU: &str = "voices run on the CPU";

/// Marks of a phoneme on the letter before them.
const COMBINING: RangeInclusive<char> = '\u{300}'..='\u{36f}';

/// Number of phonemes of a trial run.
const TRIED_PHONEMES: usize = 8;

/// A voice whose graphs are open.
pub(crate) struct OpenVoice {
    pub(crate) voice: Voice,
    pub(crate) report: PlacementReport,
}

/// A voice that speaks sentences.
pub(crate) struct Voice {
    graph: VoiceGraph,
    pronunciations: Vec<SpokenLanguage>,
    /// Maximum number of phonemes of a run.
    max_phonemes: usize,
}

/// Settings of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) speaker: &'a Speaker,
    /// Factor of the speed.
    pub(crate) speed: f32,
    /// Seed of the noise.
    pub(crate) seed: u64,
}

/// Opens a voice on the CPU.
///
/// # Errors
/// [`Error::NoDevice`] if the CPU is not one of the configured devices; [`Error::BadPackage`] for files that cannot be
/// read.
pub(crate) fn open(request: &LoadRequest<'_>) -> Result<OpenVoice, Error> {
    check_cpu(request, ON_CPU)?;
    let manifest = request.manifest();
    let key = &request.package.key;
    let (Structure::ImportedVoice(imported), Some(entry)) = (&manifest.architecture, &manifest.voice) else {
        return Err(bad_package(key, "it is not a voice"));
    };
    let graph = VoiceGraph::open(request, imported)?;
    let report = cpu_model::report(request, &[&graph.graph], ON_CPU)?;

    let notation = match imported.family {
        VoiceFamily::Hibari | VoiceFamily::Kokoro => Notation::Kokoro,
        VoiceFamily::Piper => Notation::Ipa,
    };
    let pronunciations =
        entry.pronunciations.iter().map(|entry| SpokenLanguage::open(request, entry, notation));
    let voice = Voice {
        graph,
        pronunciations: pronunciations.collect::<Result<_, _>>()?,
        max_phonemes: manifest.max_length,
    };
    Ok(OpenVoice { voice, report })
}

impl Voice {
    /// Returns the samples of a normalised sentence, in -1 to 1. Ends with [`Error::Cancelled`] once `cancel` is set.
    pub(crate) fn speak(&mut self, sentence: &str, run: Run<'_>, cancel: &Cancel) -> Result<Vec<f32>, Error> {
        let language = &run.speaker.language;
        let spoken = self.pronunciations.iter_mut().find(|spoken| spoken.language == *language);
        let Some(spoken) = spoken else { return Ok(Vec::new()) };
        let mut phonemes = spoken.phonemes(sentence, cancel)?;
        // Without punctuation, the last word would sound cut off.
        if phonemes.ends_with(|c: char| c.is_alphabetic() || COMBINING.contains(&c)) {
            phonemes.push('.');
        }

        // Slow speech takes more frames for a phoneme.
        let limit = (self.max_phonemes as f32 * run.speed.min(1.0)) as usize;
        let mut samples = Vec::new();
        for (part, place) in phonemes::divide(&phonemes, limit.max(1)).into_iter().zip(0u64..) {
            cancel.check()?;
            let seed = run.seed.wrapping_add(place << 32);
            samples.extend(self.graph.samples(part, Run { seed, ..run })?);
        }
        Ok(samples)
    }

    /// Runs the graph once with a few phonemes. No pronunciation is needed.
    pub(crate) fn try_out(&mut self, speaker: &Speaker) -> Result<(), Error> {
        let letters: String = self.graph.letters().chars().take(TRIED_PHONEMES).collect();
        self.graph.samples(&letters, Run { speaker, speed: 1.0, seed: 0 }).map(drop)
    }
}

/// Returns the speaker of a name, or the default one without a name.
pub(crate) fn speaker<'a>(manifest: &'a Manifest, name: Option<&str>) -> Option<&'a Speaker> {
    let speakers = &manifest.voice.as_ref()?.speakers;
    match name {
        None => speakers.first(),
        Some(name) => speakers.iter().find(|speaker| speaker.name == name),
    }
}
