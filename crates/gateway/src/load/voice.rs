//! A voice in memory: its graph and the pronunciations of its languages.
//!
//! Voices run on the CPU: their graphs have shapes that depend on the text, and a sentence takes a few milliseconds.

use narthex_device::{cpu_graph::CpuGraph, placement::GraphPlacement};
use narthex_engine::executor::StepError;
use narthex_spec::{
    DeviceName, Elements, Feed, NpuPolicy,
    arch::Structure,
    manifest::{EnglishPronunciation, Manifest, PhonemeSource, Pronunciation, Slot, Speaker},
};
use narthex_speech::{
    english::{Accent, English, EnglishFiles, LetterModel},
    phonemes::{self, Alphabet},
    vocoder::{SAMPLE_RATE, Spectrum, Vocoder},
};

use crate::{
    error::Error,
    library::package::{self, bad_package},
    load::{
        placement,
        request::{DeviceAssignment, LoadRequest},
    },
    report::{fallback::FallbackNodes, models::DeviceRefusal, placement::PlacementReport},
};

/// A voice whose graphs are open.
pub(crate) struct OpenVoice {
    pub(crate) voice: Voice,
    pub(crate) report: PlacementReport,
}

/// A voice that speaks sentences.
pub(crate) struct Voice {
    graph: CpuGraph,
    names: SlotNames,
    vocoder: Vocoder,
    alphabet: Alphabet,
    pronunciations: Vec<SpokenLanguage>,
    /// Maximum number of phonemes of a run.
    max_phonemes: usize,
}

/// Names of the graph's inputs and outputs.
struct SlotNames {
    phonemes: String,
    speed: String,
    spectrum: Vec<String>,
}

/// Pronunciation of a language, with the graph for unknown words.
struct SpokenLanguage {
    language: String,
    english: English,
    letters: LetterGraph,
}

/// Graph that spells the pronunciation of a word from its letters.
struct LetterGraph {
    graph: CpuGraph,
    input: String,
    output: String,
}

/// Settings of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpeechSettings<'a> {
    /// Language of the speaker.
    pub(crate) language: &'a str,
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
    check_cpu(request)?;
    let manifest = request.manifest();
    let key = &request.package.key;
    let (Structure::ImportedVoice(imported), Some(entry)) = (&manifest.architecture, &manifest.voice) else {
        return Err(bad_package(key, "it is not a voice"));
    };
    let [graph_entry] = manifest.graphs.as_slice() else { return Err(bad_package(key, "it has no graph")) };
    if imported.sample_rate != SAMPLE_RATE {
        let found = imported.sample_rate;
        return Err(bad_package(key, format!("expected a spectrum for {SAMPLE_RATE} Hz, found {found} Hz")));
    }

    let graph = open_graph(request, &graph_entry.file)?;
    let placement = GraphPlacement { graph: graph_entry.file.clone(), placement: graph.placement().clone() };
    let mut report = placement::report(request, &DeviceAssignment::cpu(), &[placement], Vec::new())?;
    report.why = Some("voices run on the CPU".to_owned());
    let name = |slot: Slot| {
        let binding = graph_entry.input(slot).or_else(|| graph_entry.output(slot));
        binding
            .map(|binding| binding.name.clone())
            .ok_or_else(|| bad_package(key, format!("its graph has no {slot:?}")))
    };
    let names = SlotNames {
        phonemes: name(Slot::Phonemes)?,
        speed: name(Slot::Speed)?,
        spectrum: Slot::SPECTRUM.into_iter().map(name).collect::<Result<_, _>>()?,
    };

    let alphabet = package::read(&request.package.folder, &entry.alphabet)?;
    let pronunciations = entry.pronunciations.iter().map(|entry| SpokenLanguage::open(request, entry));
    let voice = Voice {
        graph,
        names,
        vocoder: Vocoder::default(),
        alphabet: Alphabet::from_json(&alphabet).map_err(|error| bad_package(key, error.to_string()))?,
        pronunciations: pronunciations.collect::<Result<_, _>>()?,
        max_phonemes: manifest.max_length,
    };
    Ok(OpenVoice { voice, report })
}

/// Fails if the settings exclude the CPU.
fn check_cpu(request: &LoadRequest<'_>) -> Result<(), Error> {
    let config = &request.config;
    let has_cpu = config.providers.devices().contains(&DeviceName::Cpu);
    if has_cpu && config.npu != NpuPolicy::Require {
        return Ok(());
    }
    let refusal = DeviceRefusal {
        device: DeviceName::Cpu,
        reason: "voices run on the CPU, which the settings exclude".to_owned(),
        fix: Some("allow the CPU: --npu prefer, and `cpu` in --providers".to_owned()),
        announced: true,
        fallback: FallbackNodes::default(),
    };
    let name = request.manifest().name.clone();
    Err(Error::NoDevice { name, policy: config.npu, passed_over: vec![refusal] })
}

fn open_graph(request: &LoadRequest<'_>, file: &str) -> Result<CpuGraph, Error> {
    let path = request.package.folder.join(file);
    Ok(CpuGraph::open(request.runtime, &path, request.config.threads)?)
}

impl Voice {
    /// Returns the samples of a normalised sentence, in -1 to 1.
    pub(crate) fn speak(&mut self, sentence: &str, settings: SpeechSettings<'_>) -> Result<Vec<f32>, Error> {
        let language = self.pronunciations.iter_mut().find(|known| known.language == settings.language);
        let Some(spoken) = language else { return Ok(Vec::new()) };
        let mut phonemes = spoken.english.phonemes(sentence, &mut spoken.letters)?;
        // Without punctuation, the last word would sound cut off.
        if phonemes.ends_with(char::is_alphabetic) {
            phonemes.push('.');
        }

        // Slow speech takes more frames for a phoneme.
        let limit = (self.max_phonemes as f32 * settings.speed.min(1.0)) as usize;
        let mut samples = Vec::new();
        for (part, place) in phonemes::divide(&phonemes, limit.max(1)).into_iter().zip(0..) {
            let ids = self.alphabet.ids(part);
            if !ids.is_empty() {
                samples.extend(self.synthesize(ids, settings, place)?);
            }
        }
        Ok(samples)
    }

    /// Returns the samples of phonemes.
    fn synthesize(
        &mut self,
        ids: Vec<i64>,
        settings: SpeechSettings<'_>,
        place: u64,
    ) -> Result<Vec<f32>, Error> {
        let ids: Vec<i64> = std::iter::once(0).chain(ids).chain([0]).collect();
        let phonemes = Feed {
            name: self.names.phonemes.clone(),
            shape: vec![1, ids.len()],
            elements: Elements::I64(ids),
        };
        let speed = Feed {
            name: self.names.speed.clone(),
            shape: vec![1],
            elements: Elements::F32(vec![settings.speed]),
        };
        let outputs: Vec<&str> = self.names.spectrum.iter().map(String::as_str).collect();
        let tensors = self.graph.run(vec![phonemes, speed], &outputs)?;

        let parts: Vec<&[f32]> = tensors
            .iter()
            .map(|tensor| match &tensor.elements {
                Elements::F32(elements) => elements.as_slice(),
                Elements::I32(_) | Elements::I64(_) => &[],
            })
            .collect();
        let [harmonic_magnitude, harmonic_phase, noise_magnitude, rest_magnitude, rest_phase, pitch] =
            parts[..]
        else {
            return Ok(Vec::new());
        };
        let spectrum = Spectrum {
            harmonic_magnitude,
            harmonic_phase,
            noise_magnitude,
            rest_magnitude,
            rest_phase,
            pitch,
        };
        let samples = self.vocoder.samples(spectrum, settings.seed.wrapping_add(place << 32));
        let samples = samples.map_err(|error| StepError::Device { message: error.to_string() })?;
        let samples = samples.into_iter();
        Ok(samples.map(|sample| if sample.is_finite() { sample.clamp(-1.0, 1.0) } else { 0.0 }).collect())
    }
}

impl SpokenLanguage {
    fn open(request: &LoadRequest<'_>, pronunciation: &Pronunciation) -> Result<Self, Error> {
        let Pronunciation { language, source: PhonemeSource::English(files) } = pronunciation;
        let EnglishPronunciation { gold, silver, tagger, exceptions, letters_graph, letters } = files;
        let read = |file: &String| package::read(&request.package.folder, file);
        let english = English::new(
            accent(language),
            EnglishFiles {
                gold: &read(gold)?,
                silver: &read(silver)?,
                tagger: &read(tagger)?,
                exceptions: &read(exceptions)?,
                letters: &read(letters)?,
            },
        );

        let graph = open_graph(request, letters_graph)?;
        let names = [graph.inputs().first().copied(), graph.outputs().first().copied()];
        let [input, output] = names.map(|name| name.unwrap_or_default().to_owned());
        Ok(Self {
            language: language.clone(),
            english: english.map_err(|error| bad_package(&request.package.key, error.to_string()))?,
            letters: LetterGraph { graph, input, output },
        })
    }
}

/// Returns the accent of a language tag.
pub(crate) fn accent(language: &str) -> Accent {
    if language == "en-GB" { Accent::British } else { Accent::American }
}

/// Returns the speaker of a name, or the default one without a name.
pub(crate) fn speaker<'a>(manifest: &'a Manifest, name: Option<&str>) -> Option<&'a Speaker> {
    let speakers = &manifest.voice.as_ref()?.speakers;
    match name {
        None => speakers.first(),
        Some(name) => speakers.iter().find(|speaker| speaker.name == name),
    }
}

impl LetterModel for LetterGraph {
    type Error = Error;

    fn run(&mut self, letters: &[i64]) -> Result<Vec<i64>, Error> {
        let letters = Feed {
            name: self.input.clone(),
            shape: vec![1, letters.len()],
            elements: Elements::I64(letters.to_vec()),
        };
        let tensors = self.graph.run(vec![letters], &[&self.output])?;
        Ok(match tensors.into_iter().next().map(|tensor| tensor.elements) {
            Some(Elements::I64(classes)) => classes,
            Some(Elements::I32(classes)) => classes.into_iter().map(i64::from).collect(),
            Some(Elements::F32(_)) | None => Vec::new(),
        })
    }
}
