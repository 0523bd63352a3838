//! The channel from the engine's thread to a request's task.
//!
//! The channel is unbounded because the engine must not wait for a slow client. The memory of its events, and of the whole
//! answer that is made of them, is part of the budget for generated parts. The request of a client that does not read is
//! cancelled.

use std::{
    mem,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use narthex_gateway::{
    AnsweringDevice, Cancel, Error, ErrorKind, Generation, ReadyModel,
    request::{GenerationEvent, GenerationSink, TokenAlternative, TokenInfo, UsedSampling},
};
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{
    blocking::{WholeText, run_generation},
    reading::ReadingObject,
};
use crate::{
    app::{App, Meter},
    error::{ApiError, public_text},
    http::{budget::AnswerMemory, limits::MAX_UNREAD},
    keys::Permit,
    reports::metrics::ModelMetrics,
};

/// Sending end of the channel, on the engine's thread.
struct ChannelSink {
    sender: UnboundedSender<GenerationEvent>,
    backlog: Arc<Mutex<Backlog>>,
    memory: AnswerMemory,
    model: ModelMetrics,
    /// Cancels the work before the answer starts. It is also set once the call that starts the answer has returned.
    cancel: Cancel,
}

/// Memory of an event in the channel, without its contents.
const EVENT_BYTES: usize = 2 * size_of::<GenerationEvent>();

/// Memory that the system takes for a string in addition to its bytes.
const STRING_BYTES: usize = 16;

/// Returns the memory of an event's contents, which become part of a whole answer.
fn content_bytes(event: &GenerationEvent) -> usize {
    match event {
        GenerationEvent::Text { text, tokens, .. } => {
            text.len() + tokens.iter().map(token_bytes).sum::<usize>()
        }
        GenerationEvent::Reasoning { text, .. } => text.len(),
        GenerationEvent::ToolCall { delta, .. } => {
            let start = delta.start.as_ref().map_or(0, |start| start.id.len() + start.name.len());
            delta.arguments.len() + start
        }
        GenerationEvent::Started { .. }
        | GenerationEvent::Finished { .. }
        | GenerationEvent::Done(_)
        | GenerationEvent::Failed { .. } => 0,
    }
}

fn token_bytes(token: &TokenInfo) -> usize {
    let alternatives =
        token.top.iter().map(|one| size_of::<TokenAlternative>() + string_bytes(&one.text, &one.bytes));
    size_of::<TokenInfo>() + string_bytes(&token.text, &token.bytes) + alternatives.sum::<usize>()
}

fn string_bytes(text: &str, bytes: &[u8]) -> usize {
    text.len() + bytes.len() + 2 * STRING_BYTES
}

/// Returns the number of tokens that a client is charged for an event if the answer does not reach its end.
fn tokens(event: &GenerationEvent) -> usize {
    match event {
        GenerationEvent::Started { prompt_tokens } => *prompt_tokens,
        GenerationEvent::Text { .. }
        | GenerationEvent::Reasoning { .. }
        | GenerationEvent::ToolCall { .. } => 1,
        GenerationEvent::Finished { .. } | GenerationEvent::Done(_) | GenerationEvent::Failed { .. } => 0,
    }
}

/// State of the channel that both ends share.
struct Backlog {
    /// Number of events that were not received yet.
    events: usize,
    /// Time at which the first of these events was sent or the last event was received, whichever is later.
    since: Instant,
    /// Maximum time without a received event. Answers that are not streamed have no limit, because the server collects
    /// them itself.
    limit: Option<Duration>,
    /// Number of tokens of all events so far, received or not; 0 once the request was charged.
    uncharged: usize,
}

impl GenerationSink for ChannelSink {
    fn event(&mut self, mut event: GenerationEvent) -> ControlFlow<()> {
        let content = content_bytes(&event);
        let tokens = tokens(&event);
        // The end of an answer is delivered in any case.
        let refusal = self.memory.add_generated(EVENT_BYTES + content).err().filter(|_| content > 0);
        if let Some(message) = refusal {
            tracing::debug!(message, "an answer ends early");
            event = GenerationEvent::Failed { kind: ErrorKind::Unavailable, message: message.to_owned() };
        }
        let mut backlog = self.backlog.lock();
        backlog.uncharged += tokens;
        if backlog.events == 0 {
            backlog.since = Instant::now();
        } else if backlog.limit.is_some_and(|limit| backlog.since.elapsed() >= limit) {
            tracing::debug!("a client did not read its stream within the time limit");
            return ControlFlow::Break(());
        }
        backlog.events += 1;
        drop(backlog);
        match self.sender.send(event) {
            Ok(()) if refusal.is_none() => ControlFlow::Continue(()),
            // The part was refused, or the client disconnected, which dropped the receiver.
            Ok(()) | Err(_) => ControlFlow::Break(()),
        }
    }

    fn token_gap(&mut self, gap: Duration) {
        self.model.token_gap(gap);
    }

    fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }
}

/// Creates a channel for an answer of this model with this memory, and returns both ends. `cancel` ends the work before the
/// answer starts.
fn channel(memory: AnswerMemory, model: ModelMetrics, cancel: Cancel) -> (ChannelSink, EventReceiver) {
    let (sender, receiver) = unbounded_channel();
    let backlog = Backlog { events: 0, since: Instant::now(), limit: None, uncharged: 0 };
    let backlog = Arc::new(Mutex::new(backlog));
    let sink = ChannelSink { sender, backlog: backlog.clone(), memory: memory.clone(), model, cancel };
    (sink, EventReceiver { receiver, backlog, memory, retains: false, taken: 0 })
}

/// Receiving end of the channel, in the request's task.
struct EventReceiver {
    receiver: UnboundedReceiver<GenerationEvent>,
    backlog: Arc<Mutex<Backlog>>,
    memory: AnswerMemory,
    /// Set if a stream repeats its answer at its end.
    retains: bool,
    /// Memory of the last event of a stream, which its connection may still hold.
    taken: usize,
}

impl EventReceiver {
    /// Sets the maximum time without a received event.
    fn limit(&self, limit: Duration) {
        let mut backlog = self.backlog.lock();
        backlog.since = Instant::now();
        backlog.limit = Some(limit);
    }

    /// Returns the number of tokens that were not charged yet. They count as charged afterwards.
    fn take_uncharged(&self) -> usize {
        mem::take(&mut self.backlog.lock().uncharged)
    }

    /// Returns the next event. The text of an error is short and without credentials, for every protocol.
    async fn next(&mut self) -> Option<GenerationEvent> {
        self.memory.remove_generated(mem::take(&mut self.taken));
        let mut event = self.receiver.recv().await?;
        let content = content_bytes(&event);
        if let GenerationEvent::Failed { message, .. } = &mut event {
            *message = public_text(message);
        }
        let mut backlog = self.backlog.lock();
        backlog.events -= 1;
        backlog.since = Instant::now();
        let is_stream = backlog.limit.is_some();
        drop(backlog);
        self.memory.remove_generated(EVENT_BYTES);
        if is_stream && !self.retains {
            self.taken = content;
        }
        Some(event)
    }
}

/// Cancels a request when it is dropped. Otherwise the engine would notice a disconnected client only at the next
/// token, and a queued request would keep its place.
struct CancelOnDisconnect(Generation);

impl Drop for CancelOnDisconnect {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Events of a running request. Its tokens are charged at the end. Dropping the events cancels the request.
pub(crate) struct Events {
    receiver: EventReceiver,
    generation: CancelOnDisconnect,
    meter: Meter,
    model: ModelMetrics,
    /// Answers of the caller's key in addition to the first one.
    _more_answers: Option<Permit>,
}

impl Drop for Events {
    fn drop(&mut self) {
        // If the client disconnected, the tokens so far are charged.
        self.meter.tokens(self.receiver.take_uncharged());
    }
}

impl Events {
    /// Returns the next event; `None` if the engine ended without one.
    pub(crate) async fn next(&mut self) -> Option<GenerationEvent> {
        let event = self.receiver.next().await;
        if let Some(GenerationEvent::Done(summary)) = &event {
            self.receiver.take_uncharged();
            self.meter.generation(summary, &self.model, &self.generation.0.ran_on);
        }
        event
    }

    /// Cancels the request once its client has read nothing of the stream for [`MAX_UNREAD`].
    pub(crate) fn limit_unread(&self) {
        self.receiver.limit(MAX_UNREAD);
    }

    /// Keeps the memory of received events reserved, because the stream repeats its answer at its end.
    pub(crate) fn retain(&mut self) {
        self.receiver.retains = true;
    }

    /// Returns whether the model may reason before it answers.
    pub(crate) fn reasons(&self) -> bool {
        self.generation.0.reasons
    }

    /// Returns the number of messages that were omitted because the conversation was too long.
    pub(crate) fn omitted_messages(&self) -> usize {
        self.generation.0.omitted_messages
    }

    /// Returns the sampling of the answers.
    pub(crate) fn sampling(&self) -> UsedSampling {
        self.generation.0.sampling
    }

    /// Returns the part of a text that is the answer of a question-answering model.
    pub(crate) fn reading(&self) -> Option<ReadingObject> {
        self.generation.0.reading.clone().map(|reading| ReadingObject::from(*reading))
    }

    /// Returns the device that the request runs on.
    pub(crate) fn ran_on(&self) -> AnsweringDevice {
        self.generation.0.ran_on.clone()
    }
}

/// Starts a request once its model is in memory. The memory of its body is reserved until the call returns.
/// `more_answers` is the permit for its answers in addition to the first one. Models that read texts tokenize all of
/// `body`, which has texts of that length.
pub(crate) async fn start(
    app: &App,
    model: &str,
    body: impl Into<WholeText>,
    more_answers: Option<Permit>,
    call: impl FnOnce(&ReadyModel, Box<dyn GenerationSink>) -> Result<Generation, Error> + Send + 'static,
) -> Result<Events, ApiError> {
    let memory = app.answer.clone();
    let metrics = app.meter.metrics.clone();
    let started = run_generation(app, model, body.into(), move |model, cancel| {
        let of_model = metrics.of_model(model);
        let (sink, receiver) = channel(memory, of_model.clone(), cancel.clone());
        Ok((receiver, of_model, CancelOnDisconnect(call(model, Box::new(sink))?)))
    });
    let (receiver, model, generation) = started.await?;
    Ok(Events { receiver, generation, meter: app.meter.clone(), model, _more_answers: more_answers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{http::budget::BodyBudget, reports::metrics::Metrics};

    fn model() -> ModelMetrics {
        Metrics::new().of_labels("tiny", "w8")
    }

    fn memory() -> AnswerMemory {
        AnswerMemory::new(&BodyBudget::new(Duration::ZERO))
    }

    #[tokio::test]
    async fn unread_events_have_a_budget() {
        const PART: usize = 20 << 20;
        let part = || GenerationEvent::Text { choice: 0, text: "a".repeat(PART), tokens: Vec::new() };
        for (is_stream, retains) in [(true, false), (true, true), (false, false)] {
            let (mut sink, mut receiver) = channel(memory(), model(), Cancel::new());
            receiver.retains = retains;
            if is_stream {
                receiver.limit(MAX_UNREAD);
            }
            // Six parts fit, and a stream releases those that its client has taken.
            for _ in 0..6 {
                assert!(sink.event(part()).is_continue());
            }
            for _ in 0..3 {
                receiver.next().await.unwrap();
            }
            let more: Vec<bool> = (0..4).map(|_| sink.event(part()).is_continue()).collect();
            let expected = if is_stream && !retains { [true, true, false, false] } else { [false; 4] };
            assert_eq!(more, expected, "{is_stream}, {retains}");
            let mut last = receiver.next().await;
            while let Some(GenerationEvent::Text { .. }) = last {
                last = receiver.next().await;
            }
            let Some(GenerationEvent::Failed { message, .. }) = last else { panic!("{last:?}") };
            assert!(message.contains("takes more memory"), "{message}");
        }
    }

    #[tokio::test]
    async fn events_that_were_not_received_are_charged() {
        let (mut sink, mut receiver) = channel(memory(), model(), Cancel::new());
        assert!(sink.event(GenerationEvent::Started { prompt_tokens: 7 }).is_continue());
        for _ in 0..2 {
            let text = GenerationEvent::Text { choice: 0, text: "a".to_owned(), tokens: Vec::new() };
            assert!(sink.event(text).is_continue());
        }
        receiver.next().await.unwrap();
        assert_eq!([receiver.take_uncharged(), receiver.take_uncharged()], [9, 0]);
    }

    #[tokio::test]
    async fn alternatives_count() {
        let top = TokenAlternative { text: "a".to_owned(), bytes: b"a".to_vec(), logprob: 0.0 };
        let token =
            TokenInfo { text: "a".to_owned(), bytes: b"a".to_vec(), logprob: None, top: vec![top; 20] };
        let event = GenerationEvent::Text { choice: 0, text: String::new(), tokens: vec![token; 10] };
        assert!(content_bytes(&event) > 10 * 20 * 80, "{}", content_bytes(&event));
    }

    #[tokio::test]
    async fn failures_are_short_and_without_credentials() {
        let (mut sink, mut receiver) = channel(memory(), model(), Cancel::new());
        let message = format!("cannot read https://user:secret@host/?token=secret: {}", "é".repeat(20_000));
        assert!(sink.event(GenerationEvent::Failed { kind: ErrorKind::Unavailable, message }).is_continue());
        let Some(GenerationEvent::Failed { message, .. }) = receiver.next().await else {
            panic!("it failed")
        };
        assert!(message.starts_with("cannot read https://***@host/?token=***"), "{message}");
        assert!(message.len() < 1100, "{}", message.len());
    }

    #[tokio::test]
    async fn a_request_ends_when_its_client_reads_nothing() {
        let started = || GenerationEvent::Started { prompt_tokens: 1 };
        let (mut sink, mut receiver) = channel(memory(), model(), Cancel::new());
        for _ in 0..3 {
            assert!(sink.event(started()).is_continue());
        }
        for _ in 0..3 {
            receiver.next().await.unwrap();
        }
        receiver.limit(Duration::ZERO);
        for _ in 0..3 {
            assert!(sink.event(started()).is_continue());
            receiver.next().await.unwrap();
        }
        assert!(sink.event(started()).is_continue());
        assert!(sink.event(started()).is_break());
    }
}
