//! An imported model that transcribes speech, in memory: its graphs, and the decoding of their outputs.
//!
//! These models run on the CPU: their graphs have shapes that depend on the sound. `nemo` has the models of NeMo with the
//! decoding of their rows in `ctc` and `transducer`, and `moonshine` has Moonshine.

mod ctc;
mod moonshine;
mod nemo;
mod transducer;

use std::ops::Range;

use narthex_audio::SPEECH_RATE;
use narthex_device::cpu_graph::OutputTensor;
use narthex_engine::{executor::StepError, supervise::SupervisedSpeech};
use narthex_spec::{
    Elements, TokenId,
    arch::Structure,
    manifest::{Manifest, TranscriberEntry},
};

use self::{moonshine::Moonshine, nemo::Nemo};
use crate::{
    error::Error,
    library::package::bad_package,
    load::{
        cpu_model::{self, check_cpu},
        request::LoadRequest,
    },
    report::placement::PlacementReport,
    turn_queue::TurnQueue,
};

/// Reason of the placement.
const ON_CPU: &str = "imported models that transcribe run on the CPU";

/// A model whose graphs are open.
pub(crate) struct OpenTranscriber {
    pub(crate) transcriber: Transcriber,
    pub(crate) report: PlacementReport,
}

/// A model that transcribes windows of sound.
pub(crate) enum Transcriber {
    Nemo(Box<Nemo>),
    Moonshine(Box<Moonshine>),
}

/// Queue of a model that transcribes speech.
pub(crate) enum Recognizer<'a> {
    Whisper(&'a TurnQueue<SupervisedSpeech>),
    Imported(&'a TurnQueue<Transcriber>),
}

/// A token of a transcript.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RecognizedToken {
    pub(crate) id: TokenId,
    /// Logarithm of its probability.
    pub(crate) log_probability: f32,
    /// Samples of the window in which it is spoken; those of the whole window if the model does not state them.
    pub(crate) samples: Range<usize>,
}

/// Opens a model on the CPU.
///
/// # Errors
/// [`Error::NoDevice`] if the CPU is not one of the configured devices; [`Error::BadPackage`] for files that cannot be
/// read.
pub(crate) fn open(request: &LoadRequest<'_>) -> Result<OpenTranscriber, Error> {
    check_cpu(request, ON_CPU)?;
    let Manifest { architecture, transcriber, .. } = request.manifest();
    let Structure::ImportedTranscriber(model) = architecture else {
        return Err(bad_package(&request.package.key, "it does not transcribe"));
    };
    let (transcriber, report) = match transcriber {
        Some(TranscriberEntry::Nemo(entry)) => {
            let nemo = Nemo::open(request, model, entry)?;
            let report = cpu_model::report(request, &nemo.graphs(), ON_CPU)?;
            (Transcriber::Nemo(Box::new(nemo)), report)
        }
        Some(TranscriberEntry::Moonshine(entry)) => {
            let moonshine = Moonshine::open(request, model, *entry)?;
            let report = cpu_model::report(request, &moonshine.graphs(), ON_CPU)?;
            (Transcriber::Moonshine(Box::new(moonshine)), report)
        }
        None => return Err(bad_package(&request.package.key, "its decoding is not stated")),
    };
    Ok(OpenTranscriber { transcriber, report })
}

impl Transcriber {
    /// Returns the tokens of a window of mono samples with [`SPEECH_RATE`]. `on_token` is called before every step.
    pub(crate) fn recognize(
        &mut self,
        window: &[f32],
        on_token: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Vec<RecognizedToken>, Error> {
        match self {
            Self::Nemo(nemo) => nemo.recognize(window, on_token),
            Self::Moonshine(moonshine) => moonshine.recognize(window, on_token),
        }
    }

    /// Returns the text of tokens.
    pub(crate) fn text(&self, tokens: &[TokenId]) -> String {
        match self {
            Self::Nemo(nemo) => nemo.text(tokens),
            Self::Moonshine(moonshine) => moonshine.text(tokens),
        }
    }

    /// Returns whether a token starts a word.
    pub(crate) fn starts_word(&self, token: TokenId) -> bool {
        match self {
            Self::Nemo(nemo) => nemo.starts_word(token),
            Self::Moonshine(_) => false,
        }
    }

    /// Transcribes a second of noise, so that outputs of wrong shapes are found.
    pub(crate) fn try_out(&mut self) -> Result<(), Error> {
        let mut state = 1u32;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        });
        let window: Vec<f32> = noise.take(SPEECH_RATE as usize).collect();
        self.recognize(&window, &mut || Ok(())).map(drop)
    }
}

/// Returns the elements of an output in single precision, whose shape has the extents that are stated here.
fn floats(
    tensor: OutputTensor,
    name: &str,
    shape: &[Option<usize>],
) -> Result<(Vec<usize>, Vec<f32>), Error> {
    let OutputTensor { shape: found, elements } = tensor;
    let fits = found.len() == shape.len()
        && found.iter().zip(shape).all(|(found, stated)| stated.is_none_or(|stated| *found == stated));
    match elements {
        Elements::F32(values) if fits && values.len() == found.iter().product::<usize>() => {
            Ok((found, values))
        }
        _ => {
            let stated =
                shape.iter().map(|extent| extent.map_or("any".to_owned(), |extent| extent.to_string()));
            let message = format!(
                "expected {name} of the shape {} in single precision, found {}",
                stated.collect::<Vec<_>>().join(" × "),
                found.iter().map(usize::to_string).collect::<Vec<_>>().join(" × ")
            );
            Err(StepError::Device { message }.into())
        }
    }
}

/// Returns the index of the largest value, the first of several.
fn largest(values: &[f32]) -> usize {
    let mut best = 0;
    for (at, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = at;
        }
    }
    best
}
