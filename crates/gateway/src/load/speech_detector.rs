//! The graph that finds speech in sound: probabilities of speech in frames of 512 samples, with the state of one sound.

use narthex_audio::activity::FRAME_SAMPLES;
use narthex_catalog::{speech_detector, store::Store};
use narthex_device::{cpu_graph::CpuGraph, runtime::Runtime};
use narthex_engine::executor::StepError;
use narthex_spec::{Elements, Feed};

use crate::{error::Error, load::request::LoadRequest};

/// Samples of the frame before that precede a frame.
const CONTEXT_SAMPLES: usize = 64;

/// Elements of each of the two states.
const STATE: usize = 128;

/// Maximum number of frames in a run, which bounds its memory.
const MAX_FRAMES: usize = 512;

/// The place from which the graph is opened, if a request needs it.
pub(crate) struct DetectorSource {
    store: Store,
    runtime: &'static Runtime,
}

impl DetectorSource {
    pub(crate) fn of(request: &LoadRequest<'_>) -> Self {
        Self { store: request.store.clone(), runtime: request.runtime }
    }

    /// Opens the graph at the start of a sound.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not installed.
    pub(crate) fn open(&self) -> Result<SpeechDetector, Error> {
        let path = speech_detector::locate(&self.store).ok_or_else(detector_not_installed)?;
        // A graph of this size runs fastest on one thread.
        let graph = CpuGraph::open(self.runtime, &path, 1)?;
        let states = [vec![0.0; STATE], vec![0.0; STATE]];
        Ok(SpeechDetector { graph, context: vec![0.0; CONTEXT_SAMPLES], states })
    }
}

/// Returns the error of a request that needs the graph.
pub(crate) fn detector_not_installed() -> Error {
    let message = "the detector of speech is not installed, and this request may not download it; \
                   `narthex transcribe --vad FILE` installs it";
    Error::invalid("vad", message)
}

/// Detector of speech in one sound, from [`ReadyModel::open_speech_detector`](crate::ReadyModel::open_speech_detector).
pub struct SpeechDetector {
    graph: CpuGraph,
    /// Last samples of the frame before.
    context: Vec<f32>,
    /// States of the recurrent layer.
    states: [Vec<f32>; 2],
}

impl SpeechDetector {
    /// Returns the probability of speech in each frame of 512 of the samples that follow, which have 16,000 Hz. They consist
    /// of whole frames, except at the end of the sound, where silence is added.
    pub fn probabilities(&mut self, samples: &[f32]) -> Result<Vec<f32>, Error> {
        let mut found = Vec::with_capacity(samples.len().div_ceil(FRAME_SAMPLES));
        for block in samples.chunks(MAX_FRAMES * FRAME_SAMPLES) {
            found.extend(self.run(block)?);
        }
        Ok(found)
    }

    fn run(&mut self, samples: &[f32]) -> Result<Vec<f32>, Error> {
        let frames = samples.len().div_ceil(FRAME_SAMPLES);
        let mut input = Vec::with_capacity(frames * (CONTEXT_SAMPLES + FRAME_SAMPLES));
        for frame in samples.chunks(FRAME_SAMPLES) {
            input.extend_from_slice(&self.context);
            input.extend_from_slice(frame);
            input.resize(input.len() + FRAME_SAMPLES - frame.len(), 0.0);
            self.context = input[input.len() - CONTEXT_SAMPLES..].to_vec();
        }

        let feed = |name: &str, shape: &[usize], elements: Vec<f32>| Feed {
            name: name.to_owned(),
            shape: shape.to_vec(),
            elements: Elements::F32(elements),
        };
        let [hidden, cell] = std::mem::take(&mut self.states);
        let inputs = vec![
            feed("input", &[frames, CONTEXT_SAMPLES + FRAME_SAMPLES], input),
            feed("h", &[1, 1, STATE], hidden),
            feed("c", &[1, 1, STATE], cell),
        ];
        let outputs = self.graph.run(inputs, &["speech_probs", "hn", "cn"])?;
        let values = outputs.into_iter().filter_map(|output| match output.elements {
            Elements::F32(values) => Some(values),
            _ => None,
        });
        match <[Vec<f32>; 3]>::try_from(values.collect::<Vec<_>>()) {
            Ok([found, hidden, cell])
                if found.len() == frames && [hidden.len(), cell.len()] == [STATE; 2] =>
            {
                self.states = [hidden, cell];
                Ok(found)
            }
            _ => {
                let message =
                    format!("expected the probabilities of {frames} frames from the detector of speech");
                Err(StepError::Device { message }.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use narthex_catalog::runtimes;
    use narthex_device::runtime::disable_telemetry;

    use super::*;

    /// The same sound as in `tests/goldens/speech_detector.py`.
    fn sound(seconds: u32) -> Vec<f32> {
        let rate = f64::from(narthex_audio::SPEECH_RATE);
        let circle = std::f64::consts::TAU;
        let formants = [(700.0, 250.0), (1200.0, 300.0), (2600.0, 400.0)];
        let at = |sample: u32| {
            let time = f64::from(sample) / rate;
            let pitch = circle * (140.0 * time - 20.0 / 3.0 * (3.0 * time).cos());
            let overtones = (1..25).map(|overtone| {
                let overtone = f64::from(overtone);
                let weight =
                    |(formant, width): (f64, f64)| (-((140.0 * overtone - formant) / width).powi(2)).exp();
                let weight: f64 = formants.into_iter().map(weight).sum();
                (0.2 + weight) * (overtone * pitch).sin() / 8.0
            });
            let sounds = if (time as u64).is_multiple_of(3) { 0.0 } else { 1.0 };
            (overtones.sum::<f64>() * (circle * 2.0 * time).sin().max(0.0) * sounds) as f32
        };
        (0..seconds * narthex_audio::SPEECH_RATE).map(at).collect()
    }

    #[test]
    fn probabilities_are_those_of_silero() {
        disable_telemetry();
        let store = Store::open(None).unwrap();
        let library = runtimes::core_library(&store).unwrap();
        let runtime = Runtime::load(&library.expect("ORT_DYLIB_PATH, or `cargo xtask test --only store`"));
        let source = DetectorSource { store, runtime: runtime.unwrap() };
        let golden: Vec<f32> =
            serde_json::from_str(include_str!("../../tests/goldens/speech_detector.json")).unwrap();
        let sound = sound(6);
        for frames in [1, 7, MAX_FRAMES] {
            let mut detector = source.open().expect("`cargo xtask test --only store` installs the detector");
            let pieces = sound[..sound.len() - 100].chunks(frames * FRAME_SAMPLES);
            let found: Vec<f32> = pieces.flat_map(|piece| detector.probabilities(piece).unwrap()).collect();
            assert_eq!(found.len(), golden.len());
            let farthest = found.iter().zip(&golden).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(farthest < 2e-3, "{farthest} in pieces of {frames} frames");
        }
    }

    #[test]
    fn a_missing_detector_is_named_with_the_next_step() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(Some(folder.path().to_owned())).unwrap();
        disable_telemetry();
        let library = runtimes::core_library(&Store::open(None).unwrap()).unwrap().unwrap();
        let source = DetectorSource { store, runtime: Runtime::load(&library).unwrap() };
        let error = source.open().err().unwrap().to_string();
        assert!(error.contains("narthex transcribe --vad FILE"), "{error}");
    }
}
