//! Sessions over a connection in memory, with a recogniser whose text follows from the audio.

use std::{
    collections::BTreeMap,
    mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    extract::ws::{Message, close_code},
    http::StatusCode,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use futures::{
    Sink, SinkExt, Stream, StreamExt,
    channel::{mpsc, oneshot},
    future::BoxFuture,
};
use narthex_audio::activity::FRAME_SAMPLES;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::timeout};

use super::{
    SECOND,
    session::Session,
    settings::SessionSettings,
    socket::{SessionEnd, SessionTimes, serve},
    speech::{Detect, RecognisedSegment, Recognition, SpeechService},
};
use crate::{error::ApiError, jobs::Jobs};

/// Time within which every event must come.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time after which nothing more is expected to happen.
const QUIET: Duration = Duration::from_millis(100);

/// Server's side of a connection in memory.
struct TestSocket {
    received: mpsc::UnboundedReceiver<Message>,
    sent: mpsc::Sender<Message>,
}

impl Stream for TestSocket {
    type Item = Result<Message, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.received.poll_next_unpin(context).map(|message| message.map(Ok))
    }
}

impl Sink<Message> for TestSocket {
    type Error = axum::Error;

    fn poll_ready(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        self.sent.poll_ready_unpin(context).map_err(axum::Error::new)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), axum::Error> {
        self.sent.start_send_unpin(message).map_err(axum::Error::new)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        self.sent.poll_flush_unpin(context).map_err(axum::Error::new)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        self.sent.poll_close_unpin(context).map_err(axum::Error::new)
    }
}

/// What the recogniser of a test does.
#[derive(Clone, Default)]
struct TestSpeech {
    /// Errors of the next preparations and recognitions.
    failures: Arc<Mutex<Vec<ApiError>>>,
    /// If present, each recognition waits until its sender is used. Dropped recognitions close theirs.
    waiting: Option<Arc<Mutex<Vec<oneshot::Sender<()>>>>>,
    begun: Arc<AtomicUsize>,
    /// Models of the recognitions.
    models: Arc<Mutex<Vec<String>>>,
    charged: Arc<AtomicUsize>,
}

impl TestSpeech {
    /// Returns a recogniser whose recognitions wait.
    fn waiting() -> Self {
        Self { waiting: Some(Arc::default()), ..Self::default() }
    }

    /// Waits until this number of recognitions has begun.
    async fn begins(&self, count: usize) {
        let begins = async {
            while self.begun.load(Ordering::Relaxed) < count {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, begins).await.expect("a recognition");
    }

    /// Ends the recognitions that wait.
    fn release(&self) {
        self.waiting.iter().flat_map(|waiting| mem::take(&mut *waiting.lock())).for_each(|sender| {
            // A cancelled recognition has dropped its receiver.
            let _ = sender.send(());
        });
    }

    fn fail_next(&self, message: &str) {
        self.failures.lock().push(ApiError::plain(StatusCode::SERVICE_UNAVAILABLE, message));
    }
}

/// Returns one segment for each second that has begun of loud audio, with a number. The last word is another one until its
/// second has ended.
fn text_of(recognition: &Recognition) -> Vec<RecognisedSegment> {
    let before = recognition.context.split_whitespace().count();
    let loud: Vec<usize> =
        (0..recognition.samples.len()).filter(|at| recognition.samples[*at].abs() > 0.1).collect();
    let seconds = loud.chunks(SECOND).enumerate();
    let segments = seconds.map(|(at, second)| RecognisedSegment {
        text: match second.len() {
            SECOND => format!(" w{}", before + at),
            _ => format!(" begun{}", second.len()),
        },
        end: second[second.len() - 1] + 1,
        tokens: 1,
    });
    segments.collect()
}

impl SpeechService for TestSpeech {
    fn prepare(
        &self,
        _: String,
        needs_detector: bool,
    ) -> BoxFuture<'static, Result<Option<Detect>, ApiError>> {
        let failure = self.failures.lock().pop();
        Box::pin(async move {
            if let Some(error) = failure {
                return Err(error);
            }
            let detect: Detect = Box::new(|samples: &[f32]| {
                let frames = samples.chunks(FRAME_SAMPLES);
                Ok(frames.map(|frame| if frame[0].abs() > 0.1 { 0.9 } else { 0.0 }).collect())
            });
            Ok(needs_detector.then_some(detect))
        })
    }

    fn recognise(
        &self,
        recognition: Recognition,
    ) -> BoxFuture<'static, Result<Vec<RecognisedSegment>, ApiError>> {
        self.models.lock().push(recognition.settings.model.clone());
        let failure = self.failures.lock().pop();
        let wait = self.waiting.as_ref().map(|waiting| {
            let (sender, receiver) = oneshot::channel();
            waiting.lock().push(sender);
            receiver
        });
        self.begun.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            if let Some(wait) = wait {
                wait.await.unwrap();
            }
            failure.map_or_else(|| Ok(text_of(&recognition)), Err)
        })
    }

    fn charge(&self, tokens: usize) {
        self.charged.fetch_add(tokens, Ordering::Relaxed);
    }
}

/// A client of a session.
struct Client {
    sender: mpsc::UnboundedSender<Message>,
    receiver: mpsc::Receiver<Message>,
    close: Option<oneshot::Sender<SessionEnd>>,
    end: JoinHandle<SessionEnd>,
    /// Texts of the deltas by item.
    deltas: BTreeMap<String, String>,
}

impl Client {
    fn new(speech: TestSpeech, times: SessionTimes) -> Self {
        let (sender, received) = mpsc::unbounded();
        let (sent, receiver) = mpsc::channel(0);
        let (close, closing) = oneshot::channel();
        let socket = TestSocket { received, sent };
        let end = tokio::spawn(async move {
            let closing = async { closing.await.unwrap_or_else(|_| SessionEnd::shutdown()) };
            serve(socket, Session::new(SessionSettings::new(None)), speech, Jobs::new(), times, closing).await
        });
        Self { sender, receiver, close: Some(close), end, deltas: BTreeMap::new() }
    }

    /// Starts a session, and changes its settings: PCM with 16 kHz, and these.
    async fn with_settings(speech: TestSpeech, input: Value) -> Self {
        let mut client = Self::new(speech, SessionTimes::STANDARD);
        assert_eq!(client.next().await["type"], "session.created");
        let mut input = input;
        input["format"] = json!({"type": "audio/pcm", "rate": 16_000});
        let session = json!({"type": "transcription", "audio": {"input": input}});
        client.send(json!({"type": "session.update", "session": session}));
        assert_eq!(client.next().await["type"], "session.updated");
        client
    }

    fn send(&self, event: Value) {
        self.sender.unbounded_send(Message::Text(event.to_string().into())).unwrap();
    }

    /// Sends audio of this duration in events of up to 0.1 seconds.
    fn append(&self, seconds: f64, amplitude: i16) {
        let samples = (seconds * SECOND as f64) as usize;
        let bytes = amplitude.to_le_bytes().repeat(samples);
        for part in bytes.chunks(SECOND / 5) {
            self.send(json!({"type": "input_audio_buffer.append", "audio": STANDARD.encode(part)}));
        }
    }

    fn say(&self, seconds: f64) {
        self.append(seconds, 8_000);
    }

    fn pause(&self, seconds: f64) {
        self.append(seconds, 0);
    }

    /// Returns the next message that is no ping.
    async fn message(&mut self) -> Option<Message> {
        loop {
            match timeout(PATIENCE, self.receiver.next()).await.expect("a message") {
                Some(Message::Ping(_)) => {}
                other => return other,
            }
        }
    }

    /// Returns the next event.
    async fn next(&mut self) -> Value {
        let Some(Message::Text(json)) = self.message().await else { panic!("the session has ended") };
        let event: Value = serde_json::from_str(&json).unwrap();
        assert!(event["event_id"].as_str().is_some_and(|id| id.starts_with("event_")), "{event}");
        let item = event["item_id"].as_str().unwrap_or_default().to_owned();
        if let Some(delta) = event["delta"].as_str() {
            *self.deltas.entry(item).or_default() += delta;
        } else if let Some(transcript) = event["transcript"].as_str() {
            assert_eq!(self.deltas.remove(&item).unwrap_or_default(), transcript);
        }
        event
    }

    /// Returns the next event of this type. Events of other types than deltas are not expected before it.
    async fn expect(&mut self, kind: &str) -> Value {
        loop {
            let event = self.next().await;
            if event["type"] == kind {
                return event;
            }
            assert_eq!(event["type"], DELTA, "{event} before {kind}");
        }
    }

    /// Expects the events of a turn that ends, before its transcript.
    async fn item(&mut self) {
        for kind in ["input_audio_buffer.committed", "conversation.item.added", "conversation.item.done"] {
            self.expect(kind).await;
        }
    }

    /// Expects the events of a turn that ends, and returns its transcript.
    async fn transcript(&mut self) -> String {
        self.item().await;
        self.expect(COMPLETED).await["transcript"].as_str().unwrap().to_owned()
    }

    /// Closes the connection, and returns the end of the session.
    async fn leave(self) -> SessionEnd {
        let Self { sender, receiver, end, .. } = self;
        drop((sender, receiver));
        timeout(PATIENCE, end).await.unwrap().unwrap()
    }
}

const DELTA: &str = "conversation.item.input_audio_transcription.delta";
const COMPLETED: &str = "conversation.item.input_audio_transcription.completed";
const FAILED: &str = "conversation.item.input_audio_transcription.failed";

fn manual() -> Value {
    json!({"turn_detection": null})
}

#[tokio::test]
async fn turns_are_found_and_their_text_comes_while_they_are_spoken() {
    let speech = TestSpeech::default();
    let mut client = Client::with_settings(speech.clone(), json!({})).await;
    client.pause(1.0);
    client.say(1.5);
    let started = client.expect("input_audio_buffer.speech_started").await;
    // The first whole frame of speech begins at 1,024 ms, and 300 ms before it belong to the turn.
    assert_eq!(started["audio_start_ms"], 724);
    // Two results with the same word are needed.
    client.say(1.0);
    let delta = client.expect(DELTA).await;
    assert_eq!((&delta["delta"], &delta["item_id"]), (&json!("w0"), &started["item_id"]));
    client.pause(1.0);
    let stopped = client.expect("input_audio_buffer.speech_stopped").await;
    let end = stopped["audio_end_ms"].as_u64().unwrap();
    assert!((4_000..4_100).contains(&end) && stopped["item_id"] == started["item_id"], "{stopped}");

    let committed = client.expect("input_audio_buffer.committed").await;
    assert_eq!((&committed["item_id"], &committed["previous_item_id"]), (&started["item_id"], &Value::Null));
    for kind in ["conversation.item.added", "conversation.item.done"] {
        let item = &client.expect(kind).await["item"];
        assert_eq!((&item["id"], &item["content"][0]["type"]), (&started["item_id"], &json!("input_audio")));
    }
    let completed = client.expect(COMPLETED).await;
    let transcript = completed["transcript"].as_str().unwrap();
    assert!(transcript.starts_with("w0 w1 begun"), "{transcript}");
    assert_eq!(completed["usage"], json!({"type": "duration", "seconds": 4}));
    assert_eq!(speech.charged.load(Ordering::Relaxed), 3);

    client.say(1.0);
    client.pause(1.0);
    let second = client.expect("input_audio_buffer.speech_started").await;
    client.expect("input_audio_buffer.speech_stopped").await;
    let committed = client.expect("input_audio_buffer.committed").await;
    assert_eq!(
        (&committed["item_id"], &committed["previous_item_id"]),
        (&second["item_id"], &started["item_id"])
    );
    assert_eq!(client.leave().await, SessionEnd::Client);
}

#[tokio::test]
async fn clients_can_end_turns_themselves() {
    let mut client = Client::with_settings(TestSpeech::default(), manual()).await;
    client.say(2.0);
    client.pause(3.0);
    client.send(json!({"type": "input_audio_buffer.commit"}));
    assert_eq!(client.transcript().await, "w0 w1");

    let commit_fails = async |client: &mut Client, found: &str| {
        client.send(json!({"type": "input_audio_buffer.commit", "event_id": "mine"}));
        let error = client.expect("error").await["error"].clone();
        assert_eq!(
            (&error["code"], &error["event_id"]),
            (&json!("input_audio_buffer_commit_empty"), &json!("mine"))
        );
        assert!(error["message"].as_str().unwrap().contains(found), "{error}");
    };
    commit_fails(&mut client, "found 0 ms").await;
    client.say(0.05);
    commit_fails(&mut client, "found 50 ms").await;
    client.say(1.0);
    client.send(json!({"type": "input_audio_buffer.clear"}));
    client.expect("input_audio_buffer.cleared").await;
    commit_fails(&mut client, "found 0 ms").await;
    client.say(1.0);
    client.send(json!({"type": "input_audio_buffer.commit"}));
    assert_eq!(client.transcript().await, "w0");
}

#[tokio::test]
async fn turns_of_any_length_have_whole_transcripts() {
    let mut client = Client::with_settings(TestSpeech::default(), manual()).await;
    for _ in 0..8 {
        client.say(5.0);
        // The text follows the audio.
        client.expect(DELTA).await;
    }
    client.send(json!({"type": "input_audio_buffer.commit"}));
    let expect: Vec<String> = (0..40).map(|second| format!("w{second}")).collect();
    assert_eq!(client.transcript().await, expect.join(" "));
}

#[tokio::test]
async fn invalid_events_do_not_end_the_session() {
    let mut client = Client::with_settings(TestSpeech::default(), manual()).await;
    let append = |audio: &str| json!({"type": "input_audio_buffer.append", "audio": audio});
    let update = |session: Value| json!({"type": "session.update", "session": session});
    let cases = [
        (json!([1]), "invalid_event", "JSON object"),
        (json!({"event_id": "a"}), "invalid_event", "missing field `type`"),
        (append("no base64"), "invalid_audio", "expected base64"),
        (append("AAAA"), "invalid_audio", "found 3 bytes"),
        (json!({"type": "input_audio_buffer.append"}), "", "audio is required"),
        (json!({"type": "response.create"}), "unknown_event", "sessions of the type realtime"),
        (json!({"type": "transcription_session.update"}), "unknown_event", "send session.update"),
        (json!({"type": "hello"}), "unknown_event", "found \"hello\""),
        (update(json!({"type": "realtime"})), "unsupported_parameter", "speech with speech"),
        (
            update(json!({"type": "transcription", "audio": {"input": {"format": 3}}})),
            "",
            "expected an object",
        ),
    ];
    for (event, code, expect) in cases {
        let mut event = event;
        if event.is_object() {
            event["event_id"] = json!("e");
        }
        client.send(event.clone());
        let error = client.expect("error").await["error"].clone();
        assert!(error["message"].as_str().unwrap().contains(expect), "{error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["code"].as_str().unwrap_or_default(), code, "{error}");
        let expect_id = if code == "invalid_event" { Value::Null } else { json!("e") };
        assert_eq!(error["event_id"], expect_id, "{event}");
    }
    for message in [Message::Text("{".into()), Message::Binary(vec![1].into())] {
        client.sender.unbounded_send(message).unwrap();
        assert_eq!(client.expect("error").await["error"]["code"], "invalid_event");
    }
    client.send(json!({"type": "hello", "event_id": "é".repeat(300)}));
    assert_eq!(client.expect("error").await["error"]["event_id"].as_str().unwrap().len(), 128);

    client.say(1.0);
    client.send(json!({"type": "input_audio_buffer.commit"}));
    assert_eq!(client.transcript().await, "w0");
}

#[tokio::test]
async fn a_failed_transcript_does_not_end_the_session() {
    let speech = TestSpeech::default();
    let mut client = Client::with_settings(speech.clone(), manual()).await;
    client.say(0.5);
    speech.fail_next("no memory");
    client.send(json!({"type": "input_audio_buffer.commit"}));
    client.item().await;
    let failed = client.expect(FAILED).await;
    assert_eq!((&failed["error"]["message"], &failed["content_index"]), (&json!("no memory"), &json!(0)));
    client.say(1.0);
    client.send(json!({"type": "input_audio_buffer.commit"}));
    assert_eq!(client.transcript().await, "w0");
}

#[tokio::test]
async fn a_model_that_cannot_be_prepared_is_reported() {
    let speech = TestSpeech::default();
    speech.fail_next("unknown model");
    let mut client = Client::new(speech, SessionTimes::STANDARD);
    client.expect("session.created").await;
    // Without the detector, audio is discarded.
    client.say(1.0);
    assert_eq!(client.expect("error").await["error"]["message"], "unknown model");
    let transcription =
        json!({"transcription": {"model": "other"}, "format": {"type": "audio/pcm", "rate": 16_000}});
    client.send(json!({"type": "session.update", "session": {"type": "transcription", "audio": {"input": transcription}}}));
    client.expect("session.updated").await;
    client.say(1.0);
    client.pause(1.0);
    client.expect("input_audio_buffer.speech_started").await;
    client.expect("input_audio_buffer.speech_stopped").await;
    assert_eq!(client.transcript().await, "w0");
}

#[tokio::test]
async fn audio_has_no_transcript_if_it_is_switched_off() {
    let speech = TestSpeech::default();
    let settings = json!({"turn_detection": null, "transcription": null});
    let mut client = Client::with_settings(speech.clone(), settings).await;
    client.say(119.0);
    client.send(json!({"type": "hello"}));
    client.expect("error").await;
    // Nothing makes room, so more audio is refused.
    client.say(1.2);
    let error = client.expect("error").await["error"].clone();
    assert_eq!(error["code"], "input_audio_buffer_full");
    client.expect("error").await;
    client.send(json!({"type": "input_audio_buffer.commit"}));
    client.item().await;
    assert_eq!(speech.begun.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_not_served() {
    let speech = TestSpeech::default();
    let mut client = Client::new(speech.clone(), SessionTimes::STANDARD);
    // The session waits until its first event is read.
    client.say(20.0);
    client.send(json!({"type": "input_audio_buffer.commit"}));
    tokio::time::sleep(QUIET).await;
    assert_eq!(speech.begun.load(Ordering::Relaxed), 0);
    client.expect("session.created").await;
    // 24 kHz: 320,000 samples are 13.3 seconds.
    client.expect("input_audio_buffer.speech_started").await;
    assert!(client.transcript().await.starts_with("w0 w1"));
}

#[tokio::test]
async fn audio_waits_at_the_client_while_the_recogniser_is_slow() {
    let waiting = Arc::new(Mutex::new(Vec::new()));
    let speech = TestSpeech { waiting: Some(waiting.clone()), ..TestSpeech::default() };
    let mut client = Client::with_settings(speech.clone(), manual()).await;
    client.say(0.5);
    client.send(json!({"type": "input_audio_buffer.commit"}));
    client.item().await;
    client.say(150.0);
    client.send(json!({"type": "hello"}));
    assert!(timeout(QUIET, client.receiver.next()).await.is_err(), "the last event was read");
    // The session has one recognition at a time.
    assert_eq!((speech.begun.load(Ordering::Relaxed), waiting.lock().len()), (1, 1));
    let finish = tokio::spawn(async move {
        loop {
            waiting.lock().drain(..).for_each(|sender| _ = sender.send(()));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    loop {
        let event = client.next().await;
        if event["type"] == "error" {
            assert_eq!(event["error"]["code"], "unknown_event");
            break;
        }
    }
    finish.abort();
}

#[tokio::test]
async fn a_turn_that_ends_cancels_the_recognition_of_its_beginning() {
    let waiting = Arc::new(Mutex::new(Vec::new()));
    let speech = TestSpeech { waiting: Some(waiting.clone()), ..TestSpeech::default() };
    let mut client = Client::with_settings(speech, manual()).await;
    client.say(1.0);
    while waiting.lock().is_empty() {
        tokio::task::yield_now().await;
    }
    client.send(json!({"type": "input_audio_buffer.commit"}));
    client.expect("input_audio_buffer.committed").await;
    while waiting.lock().len() < 2 {
        tokio::task::yield_now().await;
    }
    let mut senders = waiting.lock().drain(..).collect::<Vec<_>>().into_iter();
    assert!(senders.next().unwrap().is_canceled());
    senders.next().unwrap().send(()).unwrap();
    client.expect("conversation.item.added").await;
    client.expect("conversation.item.done").await;
    assert_eq!(client.expect(COMPLETED).await["transcript"], "w0");
}

#[tokio::test]
async fn a_turn_keeps_the_settings_of_its_end() {
    let speech = TestSpeech::waiting();
    let mut client = Client::with_settings(speech.clone(), manual()).await;
    for _ in 0..2 {
        client.say(0.5);
        client.send(json!({"type": "input_audio_buffer.commit"}));
        client.item().await;
    }
    // The second turn waits for the first one.
    for transcription in [Value::Null, json!({"model": "other"})] {
        let session = json!({"type": "transcription", "audio": {"input": {"transcription": transcription}}});
        client.send(json!({"type": "session.update", "session": session}));
        client.expect("session.updated").await;
    }
    for turn in 1..=2 {
        speech.begins(turn).await;
        speech.release();
        client.expect(COMPLETED).await;
    }
    assert_eq!(*speech.models.lock(), ["whisper:base", "whisper:base"]);
}

#[tokio::test]
async fn text_without_a_transcript_is_charged_at_the_end() {
    let check = async |commits: bool| {
        let speech = TestSpeech::waiting();
        let client = Client::with_settings(speech.clone(), manual()).await;
        client.say(1.0);
        speech.begins(1).await;
        speech.release();
        // The second recognition begins after the result of the first one.
        client.say(1.0);
        speech.begins(2).await;
        if commits {
            client.send(json!({"type": "input_audio_buffer.commit"}));
            speech.begins(3).await;
        }
        client.leave().await;
        assert_eq!(speech.charged.load(Ordering::Relaxed), 1, "{commits}");
    };
    check(false).await;
    check(true).await;
}

#[tokio::test]
async fn a_session_ends_with_a_reason() {
    let mut client = Client::new(TestSpeech::default(), SessionTimes::STANDARD);
    client.expect("session.created").await;
    client.close.take().unwrap().send(SessionEnd::shutdown()).unwrap();
    let Some(Message::Close(Some(frame))) = client.message().await else { panic!("no reason") };
    assert_eq!((frame.code, frame.reason.as_str()), (close_code::AWAY, "the server is shutting down"));

    let times = SessionTimes {
        ping: Duration::from_millis(5),
        idle: Duration::from_millis(20),
        ..SessionTimes::STANDARD
    };
    let mut client = Client::new(TestSpeech::default(), times);
    client.expect("session.created").await;
    let Some(Message::Close(Some(frame))) = client.message().await else { panic!("no reason") };
    assert_eq!(frame.code, close_code::POLICY);

    // A client that answers no ping is gone.
    let times = SessionTimes {
        ping: Duration::from_millis(5),
        silence: Duration::from_millis(20),
        ..SessionTimes::STANDARD
    };
    let mut client = Client::new(TestSpeech::default(), times);
    client.expect("session.created").await;
    let reads = tokio::spawn(async move {
        while client.receiver.next().await.is_some() {}
        client.end.await.unwrap()
    });
    assert_eq!(timeout(PATIENCE, reads).await.unwrap().unwrap(), SessionEnd::Client);
}
