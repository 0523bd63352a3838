//! Samples of phonemes: the graph of a voice, with the inputs and outputs of its family.

use narthex_device::cpu_graph::{CpuGraph, OutputTensor};
use narthex_engine::executor::StepError;
use narthex_spec::{
    Elements, Feed,
    arch::{ImportedVoice, VoiceFamily},
    manifest::{GraphEntry, Slot},
};
use narthex_speech::{
    phonemes::Alphabet,
    vocoder::{SAMPLE_RATE, Spectrum, Vocoder},
};

use super::{Run, open_graph};
use crate::{
    error::Error,
    library::package::{self, bad_package},
    load::request::LoadRequest,
};

/// The graph of a voice on the CPU.
pub(super) struct VoiceGraph {
    pub(super) graph: CpuGraph,
    entry: GraphEntry,
    alphabet: Alphabet,
    family: FamilyState,
}

/// What a family needs beside its graph.
enum FamilyState {
    Hibari(Box<Vocoder>),
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
        };
        let alphabet = package::read(&request.package.folder, &entry.alphabet)?;
        Ok(Self {
            graph: open_graph(request, &graph_entry.file)?,
            entry: graph_entry.clone(),
            alphabet: Alphabet::from_json(&alphabet).map_err(|error| bad_package(key, error.to_string()))?,
            family,
        })
    }

    /// Returns the samples of phonemes, in -1 to 1. Phonemes that the voice does not know are left out.
    pub(super) fn samples(&mut self, phonemes: &str, run: Run<'_>) -> Result<Vec<f32>, Error> {
        let ids = self.alphabet.ids(phonemes);
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let samples = match &self.family {
            FamilyState::Hibari(vocoder) => {
                let ids: Vec<i64> = std::iter::once(0).chain(ids).chain([0]).collect();
                let inputs = [
                    (Slot::Phonemes, vec![1, ids.len()], Elements::I64(ids)),
                    (Slot::Speed, vec![1], Elements::F32(vec![run.speed])),
                ];
                let tensors = run_graph(&mut self.graph, &self.entry, inputs, &Slot::SPECTRUM)?;
                spectrum_samples(vocoder, &tensors, run.seed)?
            }
        };
        let samples = samples.into_iter();
        Ok(samples.map(|sample| if sample.is_finite() { sample.clamp(-1.0, 1.0) } else { 0.0 }).collect())
    }
}

/// Runs a graph, and returns the outputs of these slots.
fn run_graph(
    graph: &mut CpuGraph,
    entry: &GraphEntry,
    inputs: impl IntoIterator<Item = (Slot, Vec<usize>, Elements)>,
    outputs: &[Slot],
) -> Result<Vec<OutputTensor>, Error> {
    // The manifest was checked: the graph has these slots.
    let feeds = inputs.into_iter().filter_map(|(slot, shape, elements)| {
        Some(Feed { name: entry.input(slot)?.name.clone(), shape, elements })
    });
    let outputs: Vec<&str> =
        outputs.iter().filter_map(|slot| Some(entry.output(*slot)?.name.as_str())).collect();
    Ok(graph.run(feeds.collect(), &outputs)?)
}

/// Returns the elements of an output; none for integers.
fn elements(tensor: &OutputTensor) -> &[f32] {
    match &tensor.elements {
        Elements::F32(elements) => elements,
        Elements::I32(_) | Elements::I64(_) => &[],
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
