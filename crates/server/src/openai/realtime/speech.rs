//! The interface of a session to the recogniser and to the detector of speech.

use std::{iter, ops::ControlFlow};

use futures::future::BoxFuture;
use narthex_gateway::{Cancel, Error, ReadyModel, request::TranscriptionRequest};

use super::{SECOND, settings::TranscriptionSettings};
use crate::{
    app::App,
    error::ApiError,
    protocol::{blocking::run_encoder, loading},
};

/// Returns the probability of speech in each frame of the samples that follow.
pub(super) type Detect = Box<dyn FnMut(&[f32]) -> Result<Vec<f32>, Error> + Send>;

/// Audio to recognise.
#[derive(Debug)]
pub(super) struct Recognition {
    /// Item of the audio.
    pub(super) item_id: String,
    pub(super) samples: Vec<f32>,
    pub(super) settings: TranscriptionSettings,
    /// Text before the audio.
    pub(super) context: String,
    /// True if the audio is the end of its item.
    pub(super) is_final: bool,
}

/// A part of the text of audio.
#[derive(Debug, Clone)]
pub(super) struct RecognisedSegment {
    /// Its text, with the space before it.
    pub(super) text: String,
    /// Number of samples before its end.
    pub(super) end: usize,
    /// Number of its tokens.
    pub(super) tokens: usize,
}

/// Recogniser of speech.
pub(super) trait SpeechService: Send + 'static {
    /// Waits for a model, and for the detector of speech if the session needs it.
    fn prepare(
        &self,
        model: String,
        needs_detector: bool,
    ) -> BoxFuture<'static, Result<Option<Detect>, ApiError>>;

    /// Recognises audio. Dropping the future cancels the recognition.
    fn recognise(
        &self,
        recognition: Recognition,
    ) -> BoxFuture<'static, Result<Vec<RecognisedSegment>, ApiError>>;

    /// Charges the tokens of a text to the caller.
    fn charge(&self, tokens: usize);
}

/// Returns the segments of the transcript of audio.
fn transcribe(
    model: &ReadyModel,
    request: &TranscriptionRequest,
    samples: Vec<f32>,
    cancel: &Cancel,
) -> Result<Vec<RecognisedSegment>, Error> {
    let mut audio = iter::once(Ok(samples));
    let transcript = model.transcribe(request, &mut audio, &mut |_| ControlFlow::Continue(()), cancel)?;
    let segments = transcript.segments.into_iter().map(|segment| RecognisedSegment {
        end: (segment.end * SECOND as f64) as usize,
        tokens: segment.tokens.len(),
        text: segment.text,
    });
    Ok(segments.collect())
}

/// The recogniser of the gateway, with the rights and limits of a caller.
pub(super) struct GatewaySpeech(pub(super) App);

impl SpeechService for GatewaySpeech {
    fn prepare(
        &self,
        model: String,
        needs_detector: bool,
    ) -> BoxFuture<'static, Result<Option<Detect>, ApiError>> {
        let app = self.0.clone();
        Box::pin(async move {
            let model = loading::wait(&app, &model).await?;
            if !needs_detector {
                return Ok(None);
            }
            let gateway = app.gateway.clone();
            let open = move || {
                gateway.fetch_speech_detector_for_request(&Cancel::new())?;
                model.open_speech_detector()
            };
            let mut detector = app.shared.jobs.run(open).await?;
            let detect: Detect = Box::new(move |samples| detector.probabilities(samples));
            Ok(Some(detect))
        })
    }

    fn recognise(
        &self,
        recognition: Recognition,
    ) -> BoxFuture<'static, Result<Vec<RecognisedSegment>, ApiError>> {
        let app = self.0.clone();
        Box::pin(async move {
            let Recognition { samples, settings, context, is_final, .. } = recognition;
            app.meter.caller.check_tokens()?;
            let body = app.shared.bodies.reserve(size_of_val(samples.as_slice())).await?;
            let request = TranscriptionRequest {
                language: settings.language,
                prompt: settings.prompt,
                context: Some(context),
                preliminary: !is_final,
                ..TranscriptionRequest::new(settings.model)
            };

            let model = request.model.clone();
            let run = move |model: &ReadyModel, cancel: &Cancel| transcribe(model, &request, samples, cancel);
            run_encoder(&app, &model, body.into(), |_| 0, run).await
        })
    }

    fn charge(&self, tokens: usize) {
        self.0.meter.tokens(tokens);
    }
}
