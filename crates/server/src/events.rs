//! The channel from the engine's thread to a request's task.
//!
//! It is unbounded because the engine must not wait for a slow client. The request's `max_tokens` and the context bound
//! what can queue up.

use std::ops::ControlFlow;

use narthex_gateway::{
    Cancel, Error, Gateway, Generation, RanOn,
    request::{GenerationEvent, GenerationSink},
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{
    app::{App, Meter},
    blocking::run_cancellable,
    budget::Reservation,
    error::ApiError,
};

/// The engine's end of the channel.
struct ChannelSink(UnboundedSender<GenerationEvent>);

impl GenerationSink for ChannelSink {
    fn event(&mut self, event: GenerationEvent) -> ControlFlow<()> {
        match self.0.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            // The client disconnected, which dropped the receiver.
            Err(_) => ControlFlow::Break(()),
        }
    }
}

/// Cancels a request when it is dropped. Its sink would notice a disconnected client only at the next token, and a queued
/// request would keep its place.
struct CancelOnDisconnect(Generation);

impl Drop for CancelOnDisconnect {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Events of a running request, whose tokens are counted at its end. Dropping them cancels the request.
pub(crate) struct Events {
    receiver: UnboundedReceiver<GenerationEvent>,
    generation: CancelOnDisconnect,
    meter: Meter,
    /// Tokens of the prompt and events with text until now; 0 once the request was counted.
    uncounted: usize,
}

impl Drop for Events {
    fn drop(&mut self) {
        // An answer that its client left is charged as far as it came.
        self.meter.tokens(self.uncounted);
    }
}

impl Events {
    /// Returns the next event; `None` if the engine ended without one.
    pub(crate) async fn next(&mut self) -> Option<GenerationEvent> {
        let event = self.receiver.recv().await;
        match &event {
            Some(GenerationEvent::Started { prompt_tokens }) => self.uncounted += prompt_tokens,
            Some(GenerationEvent::Text { .. }) => self.uncounted += 1,
            Some(GenerationEvent::Done(summary)) => {
                self.uncounted = 0;
                self.meter.generation(summary);
            }
            Some(GenerationEvent::Finished { .. } | GenerationEvent::Failed { .. }) | None => {}
        }
        event
    }

    /// Device that the request runs on.
    pub(crate) fn ran_on(&self) -> RanOn {
        self.generation.0.ran_on.clone()
    }
}

/// Starts a request once its model is in memory. The memory of its body is reserved until the call returns.
pub(crate) async fn start(
    app: &App,
    model: &str,
    body: Reservation,
    call: impl FnOnce(&Gateway, Box<dyn GenerationSink>) -> Result<Generation, Error> + Send + 'static,
) -> Result<Events, ApiError> {
    let (sender, receiver) = unbounded_channel();
    let sink = Box::new(ChannelSink(sender));
    let call = move |gateway: &Gateway, _: &Cancel| call(gateway, sink).map(CancelOnDisconnect);
    let generation = run_cancellable(app, model, body, call).await?;
    Ok(Events { receiver, generation, meter: app.meter.clone(), uncounted: 0 })
}
