//! The loop of a session: events of its client, work for it, and its end.

use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, close_code};
use futures::{
    Sink, SinkExt, Stream, StreamExt,
    future::{BoxFuture, OptionFuture},
};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite;

use super::{
    audio_input::AudioInput,
    events::{ClientEvent, EventContent, ServerEvent},
    session::Session,
    speech::{Detect, RecognisedSegment, SpeechService},
};
use crate::{error::ApiError, jobs::Jobs};

/// Interval between two attempts to prepare the model of a session.
const PREPARATION_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum time for the last messages of a connection.
const CLOSING: Duration = Duration::from_secs(2);

/// Limits on the time of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionTimes {
    /// Interval of the pings that detect disconnected clients.
    pub(super) ping: Duration,
    /// Maximum time without any message, pongs included.
    pub(super) silence: Duration,
    /// Maximum time without an event.
    pub(super) idle: Duration,
}

impl SessionTimes {
    /// Times of a server.
    pub(super) const STANDARD: Self = Self {
        ping: Duration::from_secs(20),
        silence: Duration::from_secs(60),
        idle: Duration::from_secs(15 * 60),
    };
}

/// Reason of the end of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SessionEnd {
    /// The client has closed the connection, or is gone.
    Client,
    /// The server closes the connection.
    Server { code: u16, reason: String },
}

impl SessionEnd {
    fn closing(code: u16, reason: impl Into<String>) -> Self {
        Self::Server { code, reason: reason.into() }
    }

    /// End at the server's shutdown.
    pub(super) fn shutdown() -> Self {
        Self::closing(close_code::AWAY, "the server is shutting down")
    }

    /// End of a session whose connection is evicted.
    pub(super) fn evicted() -> Self {
        Self::closing(close_code::AGAIN, "the server needs this connection for another client")
    }
}

/// Connection to a client.
pub(super) trait Socket:
    Stream<Item = Result<Message, axum::Error>> + Sink<Message, Error = axum::Error> + Send + Unpin
{
}

impl<S: Stream<Item = Result<Message, axum::Error>> + Sink<Message, Error = axum::Error> + Send + Unpin>
    Socket for S
{
}

/// Serves a session until its client leaves it or `closing` returns a reason. Returns the reason of its end.
pub(super) async fn serve(
    socket: impl Socket,
    session: Session,
    speech: impl SpeechService,
    jobs: Jobs,
    times: SessionTimes,
    closing: impl Future<Output = SessionEnd>,
) -> SessionEnd {
    let now = Instant::now();
    let mut driver = Driver {
        socket,
        session,
        speech,
        jobs,
        times,
        input: None,
        detector: None,
        recognition: None,
        preparation: None,
        prepared_at: None,
        heard_at: now,
        event_at: now,
        ping_at: now + times.ping,
    };

    let end = tokio::select! {
        end = driver.run() => end,
        end = closing => end,
    };
    driver.finish(&end).await;
    end
}

/// A session with its connection and its work.
struct Driver<S, R> {
    socket: S,
    session: Session,
    speech: R,
    jobs: Jobs,
    times: SessionTimes,
    /// Decoder of audio. A job has it meanwhile.
    input: Option<AudioInput>,
    detector: Option<Detect>,
    recognition: Option<RunningRecognition>,
    preparation: Option<BoxFuture<'static, Result<Option<Detect>, ApiError>>>,
    /// Start of the last preparation. `None` until the client has sent audio or settings, which may name the model.
    prepared_at: Option<Instant>,
    /// Arrival of the last message.
    heard_at: Instant,
    /// Arrival of the last event.
    event_at: Instant,
    ping_at: Instant,
}

/// A recognition in progress. Dropping it cancels it.
struct RunningRecognition {
    item_id: String,
    is_final: bool,
    /// Number of samples.
    length: usize,
    result: BoxFuture<'static, Result<Vec<RecognisedSegment>, ApiError>>,
}

impl<S: Socket, R: SpeechService> Driver<S, R> {
    async fn run(&mut self) -> SessionEnd {
        loop {
            self.begin_recognition();
            if self.send_events().await.is_err() {
                return SessionEnd::Client;
            }

            let is_working = self.recognition.is_some() || self.preparation.is_some();
            // Work that makes room goes on while the client waits.
            let reads = self.session.has_room() || !is_working;
            if !reads {
                self.heard_at = Instant::now();
                self.event_at = self.heard_at;
            }
            let recognised = OptionFuture::from(self.recognition.as_mut().map(|running| &mut running.result));
            let prepared = OptionFuture::from(self.preparation.as_mut());
            tokio::select! {
                // Results come before further messages: a client that sends faster than it speaks must not delay its text.
                biased;
                Some(outcome) = recognised => self.take_result(outcome),
                Some(outcome) = prepared => self.take_preparation(outcome).await,
                () = sleep_until(self.ping_at) => {
                    if let Some(end) = self.check_client().await {
                        return end;
                    }
                }
                message = self.socket.next(), if reads => {
                    if let Some(end) = self.receive(message).await {
                        return end;
                    }
                }
            }
        }
    }

    /// Waits for the model of the session, and for the detector of speech if its settings need it.
    fn prepare(&mut self) {
        self.detector = None;
        self.preparation = None;
        self.prepared_at = Some(Instant::now());
        let settings = self.session.settings();
        let needs_detector = settings.turn_detection.is_some();
        if needs_detector || settings.transcription.is_some() {
            let model = settings.transcription.clone().unwrap_or_default().model;
            self.preparation = Some(self.speech.prepare(model, needs_detector));
        }
    }

    /// Prepares the session for its first audio, or again if the last preparation has failed some time ago.
    fn prepare_again(&mut self) {
        if let Some(prepared_at) = self.prepared_at {
            // The client has received the error, and audio would wait until the buffer is full.
            self.session.discard();
            if prepared_at.elapsed() < PREPARATION_INTERVAL {
                return;
            }
        }
        self.prepare();
    }

    async fn take_preparation(&mut self, outcome: Result<Option<Detect>, ApiError>) {
        self.preparation = None;
        match outcome {
            Ok(detector) => {
                self.detector = detector;
                if let Err(error) = self.detect().await {
                    self.session.send(EventContent::error(error, None));
                }
            }
            Err(error) => {
                // The audio has not been examined.
                if self.session.settings().turn_detection.is_some() {
                    self.session.discard();
                }
                let error = error
                    .renamed("model", "session.audio.input.transcription.model")
                    .renamed("vad", "session.audio.input.turn_detection");
                self.session.send(EventContent::error(error, None));
            }
        }
    }

    /// Begins the next recognition, unless one is running that is of use.
    fn begin_recognition(&mut self) {
        if let Some(running) = &self.recognition
            && !running.is_final
            && !self.session.is_open(&running.item_id)
        {
            self.recognition = None;
        }
        if self.recognition.is_none() {
            self.recognition = self.session.next_recognition().map(|recognition| RunningRecognition {
                item_id: recognition.item_id.clone(),
                is_final: recognition.is_final,
                length: recognition.samples.len(),
                result: self.speech.recognise(recognition),
            });
        }
    }

    fn take_result(&mut self, outcome: Result<Vec<RecognisedSegment>, ApiError>) {
        let Some(RunningRecognition { is_final, length, .. }) = self.recognition.take() else { return };
        if is_final {
            let renamed = |error: ApiError| error.renamed("model", "session.audio.input.transcription.model");
            self.session.complete(outcome.map_err(renamed));
        } else {
            self.session.observe(outcome, length);
        }
    }

    /// Sends the events of the session, and charges its tokens. Waits for a slow client.
    async fn send_events(&mut self) -> Result<(), axum::Error> {
        self.charge();
        for event in self.session.take_events() {
            // Serialising strings and numbers to JSON cannot fail.
            let json = serde_json::to_string(&ServerEvent::from(event)).unwrap_or_default();
            self.socket.feed(Message::Text(json.into())).await?;
        }
        self.socket.flush().await
    }

    fn charge(&mut self) {
        let tokens = self.session.take_tokens();
        if tokens > 0 {
            self.speech.charge(tokens);
        }
    }

    /// Sends a ping, unless the client is gone or has sent no event for a long time.
    async fn check_client(&mut self) -> Option<SessionEnd> {
        let SessionTimes { ping, silence, idle } = self.times;
        if self.heard_at.elapsed() >= silence {
            return Some(SessionEnd::Client);
        }
        if self.event_at.elapsed() >= idle {
            let reason = format!("no event for {} seconds", idle.as_secs());
            return Some(SessionEnd::closing(close_code::POLICY, reason));
        }
        self.ping_at = Instant::now() + ping;
        self.socket.send(Message::Ping(Vec::new().into())).await.err().map(|_| SessionEnd::Client)
    }

    /// Takes a message. Returns the reason if it ends the session.
    async fn receive(&mut self, message: Option<Result<Message, axum::Error>>) -> Option<SessionEnd> {
        self.heard_at = Instant::now();
        match message {
            None | Some(Ok(Message::Close(_))) => Some(SessionEnd::Client),
            Some(Err(error)) => Some(end_of(error)),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => None,
            Some(Ok(Message::Text(json))) => {
                self.event_at = self.heard_at;
                self.handle(&json).await;
                None
            }
            Some(Ok(Message::Binary(_))) => {
                let error =
                    ApiError::bad_request("type", "expected events as text messages, found a binary one");
                self.session.send(EventContent::error(error.with_code("invalid_event"), None));
                None
            }
        }
    }

    /// Handles an event. An invalid one is answered with an event, and the session continues.
    async fn handle(&mut self, json: &str) {
        let (outcome, event_id) = match ClientEvent::read(json) {
            Err(error) => (Err(error), None),
            Ok(event) => {
                let ClientEvent { r#type, event_id, audio } = event;
                let outcome = match r#type.as_str() {
                    "input_audio_buffer.append" => self.append(audio).await,
                    "input_audio_buffer.commit" => self.session.commit(),
                    "input_audio_buffer.clear" => {
                        self.session.clear();
                        Ok(())
                    }
                    "session.update" => self.update(json),
                    other => Err(unknown_event(other)),
                };
                (outcome, event_id)
            }
        };
        if let Err(error) = outcome {
            self.session.send(EventContent::error(error, event_id));
        }
    }

    fn update(&mut self, json: &str) -> Result<(), ApiError> {
        let before = self.session.settings().clone();
        self.session.update(json)?;
        let settings = self.session.settings();
        if settings.format != before.format {
            self.input = None;
        }
        let model = settings.transcription.as_ref().map(|settings| &settings.model);
        let model_before = before.transcription.as_ref().map(|settings| &settings.model);
        let is_other = model != model_before || settings.turn_detection != before.turn_detection;
        if is_other || self.prepared_at.is_none() {
            self.prepare();
        }
        Ok(())
    }

    async fn append(&mut self, audio: Option<String>) -> Result<(), ApiError> {
        let audio = audio.ok_or_else(|| ApiError::required("audio"))?;
        let format = self.session.settings().format;
        let mut input = self.input.take().unwrap_or_else(|| AudioInput::new(format));
        let read = move || {
            let samples = input.read(&audio);
            Ok::<_, ApiError>((input, samples))
        };
        let (input, samples) = self.jobs.run(read).await?;
        self.input = Some(input);
        self.session.append(&samples?)?;
        self.detect().await
    }

    /// Finds the speech in the audio that was not examined.
    async fn detect(&mut self) -> Result<(), ApiError> {
        let Some(frames) = self.session.unexamined_frames() else { return Ok(()) };
        let Some(mut detector) = self.detector.take() else {
            if self.preparation.is_none() {
                self.prepare_again();
            }
            return Ok(());
        };
        let (detector, probabilities) = self
            .jobs
            .run(move || {
                let probabilities = detector(&frames)?;
                Ok::<_, narthex_gateway::Error>((detector, probabilities))
            })
            .await?;
        self.detector = Some(detector);
        self.session.examine(&probabilities);
        Ok(())
    }

    /// Ends the session and its connection.
    async fn finish(&mut self, end: &SessionEnd) {
        self.recognition = None;
        self.preparation = None;
        self.session.end();
        self.charge();
        if let SessionEnd::Server { code, reason } = end {
            let frame = CloseFrame { code: *code, reason: reason.as_str().into() };
            let _ = timeout(CLOSING, self.socket.send(Message::Close(Some(frame)))).await;
        }
        // The answer to a close is sent while the end of the connection is awaited.
        let _ = timeout(CLOSING, async { while let Some(Ok(_)) = self.socket.next().await {} }).await;
    }
}

/// Returns the end of a session whose client has broken the protocol or the connection.
fn end_of(error: axum::Error) -> SessionEnd {
    let inner = error.into_inner();
    match inner.downcast_ref() {
        Some(tungstenite::Error::Capacity(reason)) => {
            SessionEnd::closing(close_code::SIZE, reason.to_string())
        }
        Some(tungstenite::Error::Utf8(_)) => SessionEnd::closing(close_code::INVALID, "a text is not UTF-8"),
        Some(tungstenite::Error::Protocol(reason)) => {
            SessionEnd::closing(close_code::PROTOCOL, reason.to_string())
        }
        _ => SessionEnd::Client,
    }
}

/// Events of sessions of the type `realtime`, by the beginnings of their names.
const OF_ANSWERS: [&str; 3] = ["response.", "conversation.item.", "output_audio_buffer."];

fn unknown_event(name: &str) -> ApiError {
    let message = if name == "transcription_session.update" {
        "transcription_session.update is of the beta of this API; send session.update with a session of the type \
         transcription"
            .to_owned()
    } else if OF_ANSWERS.iter().any(|start| name.starts_with(start)) {
        format!("{name} is for sessions of the type realtime; this is a session of the type transcription")
    } else {
        format!(
            "expected session.update, input_audio_buffer.append, input_audio_buffer.commit or \
             input_audio_buffer.clear, found {name:?}"
        )
    };
    ApiError::bad_request("type", message).with_code("unknown_event")
}
