//! Methods that answer requests with a model, which is loaded first.

use std::ops::ControlFlow;

use narthex_audio::AudioError;
use narthex_catalog::speech_detector;
use narthex_spec::{ProgressSink, progress::Quiet};

use super::Gateway;
use crate::{
    cancel::Cancel,
    compile::package_build::PullLimit,
    error::Error,
    load::speech_detector::detector_not_installed,
    serve::{
        answer_stream::AnswerStream,
        generation::Generation,
        request::{
            AnswerRequest, Answers, ChatRequest, Classifications, ClassifyRequest, CompletionRequest,
            DecisionRequest, Decisions, EmbedRequest, Embeddings, Fillings, GenerationSink,
            MaskPredictOutput, MaskRequest, Ranking, RefineRequest, RerankRequest, SpeechEvent,
            SpeechRequest, SpeechSummary, Transcript, TranscriptionEvent, TranscriptionRequest,
        },
    },
};

/// Requests.
impl Gateway {
    /// Starts a chat answer. Returns once it is queued.
    pub fn chat(
        &self,
        model: &str,
        request: ChatRequest,
        sink: Box<dyn GenerationSink>,
    ) -> Result<Generation, Error> {
        self.load_and_wait(model)?.chat(request, sink)
    }

    /// Starts a chat answer, whose text is read from the result. It has one choice.
    pub fn stream(&self, model: &str, mut request: ChatRequest) -> Result<AnswerStream, Error> {
        request.options.n = 1;
        AnswerStream::start(|sink| self.chat(model, request, sink))
    }

    /// Starts a text completion. Returns once it is queued.
    pub fn complete(
        &self,
        model: &str,
        request: CompletionRequest,
        sink: Box<dyn GenerationSink>,
    ) -> Result<Generation, Error> {
        self.load_and_wait(model)?.complete(request, sink)
    }

    /// Embeds texts. Ends with [`Error::Cancelled`] once `cancel` is set, as the following methods do.
    pub fn embed(&self, model: &str, request: &EmbedRequest, cancel: &Cancel) -> Result<Embeddings, Error> {
        self.load_and_wait(model)?.embed(request, cancel)
    }

    /// Sorts documents by relevance to a query.
    pub fn rerank(&self, model: &str, request: &RerankRequest, cancel: &Cancel) -> Result<Ranking, Error> {
        self.load_and_wait(model)?.rerank(request, cancel)
    }

    /// Classifies texts, or their tokens.
    pub fn classify(
        &self,
        model: &str,
        request: &ClassifyRequest,
        cancel: &Cancel,
    ) -> Result<Classifications, Error> {
        self.load_and_wait(model)?.classify(request, cancel)
    }

    /// Decides closed questions about a text with a chat model.
    pub fn decide(
        &self,
        model: &str,
        request: &DecisionRequest,
        cancel: &Cancel,
    ) -> Result<Decisions, Error> {
        self.load_and_wait(model)?.decide(request, cancel)
    }

    /// Finds the spans of a text that answer a question.
    pub fn answer(&self, model: &str, request: &AnswerRequest, cancel: &Cancel) -> Result<Answers, Error> {
        self.load_and_wait(model)?.answer(request, cancel)
    }

    /// Predicts the masked tokens of a text.
    pub fn fill(&self, model: &str, request: &MaskRequest, cancel: &Cancel) -> Result<Fillings, Error> {
        self.load_and_wait(model)?.fill(request, cancel)
    }

    /// Generates tokens with a masked language model by mask-predict (arXiv:1904.09324).
    pub fn refine(
        &self,
        model: &str,
        request: &RefineRequest,
        cancel: &Cancel,
    ) -> Result<MaskPredictOutput, Error> {
        self.load_and_wait(model)?.refine(request, cancel)
    }

    /// Transcribes audio: chunks of any length of mono samples with 16,000 Hz. Segments are passed to `on` as soon as they
    /// are final. Ends with [`Error::Cancelled`] once `on` returns `Break`.
    pub fn transcribe(
        &self,
        request: &TranscriptionRequest,
        audio: &mut dyn Iterator<Item = Result<Vec<f32>, AudioError>>,
        on: &mut dyn FnMut(TranscriptionEvent) -> ControlFlow<()>,
    ) -> Result<Transcript, Error> {
        self.load_and_wait(&request.model)?.transcribe(request, audio, on, &Cancel::new())
    }

    /// Downloads the detector of speech that [`TranscriptionRequest::vad`] needs, unless it is installed.
    pub fn fetch_speech_detector(&self, progress: &dyn ProgressSink, cancel: &Cancel) -> Result<(), Error> {
        speech_detector::fetch(&self.library.store, progress, cancel.flag())?;
        Ok(())
    }

    /// Downloads the detector of speech as [`Self::fetch_speech_detector`], for a request.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not installed and the caller may not download it, [`Error::TooManyBuilds`] if it is not
    /// installed and other requests take all permits for builds.
    pub fn fetch_speech_detector_for_request(&self, cancel: &Cancel) -> Result<(), Error> {
        if speech_detector::locate(&self.library.store).is_some() {
            return Ok(());
        }
        let is_allowed = match self.request_limit() {
            PullLimit::None => true,
            PullLimit::Installed => false,
            PullLimit::Bytes(limit) => speech_detector::download_bytes()? <= limit,
        };
        if !is_allowed {
            return Err(detector_not_installed());
        }
        let _permit = self.builds.take()?;
        self.fetch_speech_detector(&Quiet, cancel)
    }

    /// Speaks a text. Each sentence is passed to `on` as soon as it is computed. Ends with [`Error::Cancelled`] once `on`
    /// returns `Break`.
    pub fn speak(
        &self,
        request: &SpeechRequest,
        on: &mut dyn FnMut(SpeechEvent) -> ControlFlow<()>,
    ) -> Result<SpeechSummary, Error> {
        self.load_and_wait(&request.model)?.speak(request, on, &Cancel::new())
    }
}
