//! Samples of phonemes: the graph of a voice, with the inputs and outputs of its family.

use narthex_device::cpu_graph::OutputTensor;
use narthex_engine::executor::StepError;
use narthex_files::MappedFile;
use narthex_graph::noise::SEEDS;
use narthex_spec::{
    Elements,
    arch::{ImportedVoice, VoiceFamily},
    dtype::Dim,
    manifest::{GraphEntry, NoiseScales, Slot, VoiceEntry},
};
use narthex_speech::{
    phonemes::Alphabet,
    vocoder::{SAMPLE_RATE, Spectrum, Vocoder},
};

use super::Run;
use crate::{
    error::Error,
    library::package::{self, bad_package},
    load::{
        cpu_model::{SlotFeed, SlotGraph},
        request::LoadRequest,
    },
};

/// Smallest peak by which the samples of a sentence are divided, so that silence stays silent.
const MIN_PEAK: f32 = 0.01;

/// The graph of a voice on the CPU.
pub(super) struct VoiceGraph {
    pub(super) graph: SlotGraph,
    alphabet: Alphabet,
    family: FamilyState,
}

/// State of a family beside its graph.
enum FamilyState {
    Hibari(Box<Vocoder>),
    Kokoro(Styles),
    Piper(NoiseScales),
}

/// Styles of speakers, with a row for each number of phonemes.
struct Styles {
    file: MappedFile,
    rows: usize,
    width: usize,
}

impl VoiceGraph {
    pub(super) fn open(request: &LoadRequest<'_>, voice: &ImportedVoice) -> Result<Self, Error> {
        let key = &request.package.key;
        let manifest = request.manifest();
        let Some(entry) = &manifest.voice else { return Err(bad_package(key, "it has no speakers")) };
        let [graph_entry] = manifest.graphs.as_slice() else {
            return Err(bad_package(key, "it has no graph"));
        };
        let family = match voice.family {
            VoiceFamily::Hibari if voice.sample_rate != SAMPLE_RATE => {
                let found = voice.sample_rate;
                let reason = format!("expected a spectrum for {SAMPLE_RATE} Hz, found {found} Hz");
                return Err(bad_package(key, reason));
            }
            VoiceFamily::Hibari => FamilyState::Hibari(Box::default()),
            VoiceFamily::Kokoro => FamilyState::Kokoro(Styles::open(request, entry, graph_entry)?),
            VoiceFamily::Piper => match entry.noise {
                Some(scales) => FamilyState::Piper(scales),
                None => return Err(bad_package(key, "it has no scales of the noise")),
            },
        };

        let alphabet = package::read(&request.package.folder, &entry.alphabet)?;
        Ok(Self {
            graph: SlotGraph::open(request, graph_entry)?,
            alphabet: Alphabet::from_json(&alphabet).map_err(|error| bad_package(key, error.to_string()))?,
            family,
        })
    }

    /// Returns the letters of the voice's phonemes.
    pub(super) fn letters(&self) -> String {
        self.alphabet.letters()
    }

    /// Returns the samples of phonemes, in -1 to 1. Phonemes that the voice does not know are left out.
    pub(super) fn samples(&mut self, phonemes: &str, run: Run<'_>) -> Result<Vec<f32>, Error> {
        let ids = match self.family {
            FamilyState::Hibari(_) | FamilyState::Kokoro(_) => self.alphabet.ids(phonemes),
            FamilyState::Piper(_) => self.alphabet.ids_with_pads(phonemes),
        };
        if ids.is_empty() {
            return Ok(Vec::new());
        }

        let speed = (Slot::Speed, vec![1], Elements::F32(vec![run.speed]));
        let samples = match &self.family {
            FamilyState::Hibari(vocoder) => {
                let inputs = vec![between_zeros(ids), speed];
                let tensors = run_graph(&mut self.graph, inputs, run, &Slot::SPECTRUM)?;
                spectrum_samples(vocoder, &tensors, run.seed)?
            }
            FamilyState::Kokoro(styles) => {
                let style = styles.row(run.speaker.number, ids.len());
                let style = (Slot::Style, vec![1, style.len()], Elements::F32(style));
                let inputs = vec![between_zeros(ids), style, speed];
                let tensors = run_graph(&mut self.graph, inputs, run, &[Slot::Samples])?;
                tensors.iter().flat_map(elements).copied().collect()
            }
            FamilyState::Piper(scales) => {
                let NoiseScales { sound, duration, duration_noise } = *scales;
                let scales = vec![sound, duration / run.speed, duration_noise];
                let count = ids.len();
                let inputs = vec![
                    (Slot::Phonemes, vec![1, count], Elements::I64(ids)),
                    (Slot::PhonemeCount, vec![1], Elements::I64(vec![count as i64])),
                    (Slot::NoiseScales, vec![3], Elements::F32(scales)),
                    (Slot::SpeakerNumber, vec![1], Elements::I64(vec![run.speaker.number as i64])),
                ];
                let tensors = run_graph(&mut self.graph, inputs, run, &[Slot::Samples])?;
                loud(tensors.iter().flat_map(elements).copied().collect())
            }
        };
        let samples = samples.into_iter();
        Ok(samples.map(|sample| if sample.is_finite() { sample.clamp(-1.0, 1.0) } else { 0.0 }).collect())
    }
}

impl Styles {
    fn open(request: &LoadRequest<'_>, entry: &VoiceEntry, graph: &GraphEntry) -> Result<Self, Error> {
        let key = &request.package.key;
        let Some(name) = &entry.styles else { return Err(bad_package(key, "it has no styles")) };
        let shape = graph.input(Slot::Style).map(|style| style.shape.as_slice()).unwrap_or_default();
        let Some(Dim::Fixed(width)) = shape.last() else {
            return Err(bad_package(key, "expected a fixed width of the styles, found none"));
        };
        let path = request.package.folder.join(name);
        let file = narthex_files::map(&path).map_err(Error::io("read", &path))?;
        let width = usize::try_from(*width).unwrap_or(usize::MAX);
        let rows = request.manifest().max_length;
        let speakers = entry.speakers.iter().map(|speaker| speaker.number).max().unwrap_or(0);
        let expected = speakers.checked_add(1).and_then(|count| count.checked_mul(rows));
        let expected = expected.and_then(|count| count.checked_mul(width)?.checked_mul(size_of::<f32>()));
        if width == 0 || rows == 0 || expected.is_none_or(|expected| expected > file.len()) {
            let reason = format!(
                "expected styles of {} speakers with {rows} rows of {width} numbers, found {} bytes",
                speakers.saturating_add(1),
                file.len()
            );
            return Err(bad_package(key, reason));
        }
        Ok(Self { file, rows, width })
    }

    /// Returns the style of a speaker for a number of phonemes, which is at least 1.
    fn row(&self, speaker: usize, phonemes: usize) -> Vec<f32> {
        let row = speaker * self.rows + phonemes.clamp(1, self.rows) - 1;
        let bytes = self.width * size_of::<f32>();
        let (numbers, _) = self.file[row * bytes..][..bytes].as_chunks::<4>();
        numbers.iter().map(|number| f32::from_le_bytes(*number)).collect()
    }
}

/// Returns the input with the ids of phonemes between two zeros.
fn between_zeros(ids: Vec<i64>) -> SlotFeed {
    let ids: Vec<i64> = std::iter::once(0).chain(ids).chain([0]).collect();
    (Slot::Phonemes, vec![1, ids.len()], Elements::I64(ids))
}

/// Returns samples with a peak of 1, as Piper plays them.
fn loud(mut samples: Vec<f32>) -> Vec<f32> {
    let peak = samples.iter().fold(MIN_PEAK, |peak, sample| peak.max(sample.abs()));
    samples.iter_mut().for_each(|sample| *sample /= peak);
    samples
}

/// Runs a graph with the inputs that it has, and with the seed of its noise. Returns the outputs of these slots.
fn run_graph(
    graph: &mut SlotGraph,
    mut inputs: Vec<SlotFeed>,
    run: Run<'_>,
    outputs: &[Slot],
) -> Result<Vec<OutputTensor>, Error> {
    let seed = run.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    inputs.push((Slot::Seed, vec![1], Elements::I64(vec![seed as i64 % SEEDS])));
    graph.run(inputs, outputs)
}

/// Returns the elements of an output; none for integers.
fn elements(tensor: &OutputTensor) -> &[f32] {
    match &tensor.elements {
        Elements::F32(elements) => elements,
        Elements::I32(_) | Elements::I64(_) | Elements::Bool(_) => &[],
    }
}

/// Returns the samples of a spectrum.
fn spectrum_samples(vocoder: &Vocoder, tensors: &[OutputTensor], seed: u64) -> Result<Vec<f32>, Error> {
    let parts: Vec<&[f32]> = tensors.iter().map(elements).collect();
    let [harmonic_magnitude, harmonic_phase, noise_magnitude, rest_magnitude, rest_phase, pitch] = parts[..]
    else {
        return Ok(Vec::new());
    };
    let spectrum =
        Spectrum { harmonic_magnitude, harmonic_phase, noise_magnitude, rest_magnitude, rest_phase, pitch };
    let samples = vocoder.samples(spectrum, seed);
    Ok(samples.map_err(|error| StepError::Device { message: error.to_string() })?)
}
