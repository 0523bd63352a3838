//! From the engine's thread to a request's task. The channel has no bound because the engine must not wait for a slow
//! client; what can queue up in it is bounded by the request's `max_tokens` and the context.

use std::ops::ControlFlow;

use narthex_gateway::{
    Error, Generation, RanOn,
    request::{GenerationEvent, GenerationSink},
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{error::ApiError, routes::blocking};

/// The engine's end.
struct ChannelSink(UnboundedSender<GenerationEvent>);

impl GenerationSink for ChannelSink {
    fn event(&mut self, event: GenerationEvent) -> ControlFlow<()> {
        match self.0.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            // The client has gone, and its receiver with it.
            Err(_) => ControlFlow::Break(()),
        }
    }
}

/// A request that is cancelled when nobody wants its answer any more. Its sink would notice that only at the next
/// token, and one that waits in the queue would keep its place there.
struct Running(Generation);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// The task's end: what the request reports. Dropping it cancels the request.
pub(crate) struct Events {
    receiver: UnboundedReceiver<GenerationEvent>,
    running: Running,
}

impl Events {
    /// The next event; `None` where the engine has gone.
    pub(crate) async fn next(&mut self) -> Option<GenerationEvent> {
        self.receiver.recv().await
    }

    /// Where the request runs.
    pub(crate) fn ran_on(&self) -> RanOn {
        self.running.0.ran_on.clone()
    }
}

/// Starts a request, away from the tasks that serve, because it may wait for its model to load.
pub(crate) async fn start(
    call: impl FnOnce(Box<dyn GenerationSink>) -> Result<Generation, Error> + Send + 'static,
) -> Result<Events, ApiError> {
    let (sender, receiver) = unbounded_channel();
    let sink = Box::new(ChannelSink(sender));
    let running = blocking(move || call(sink).map(Running)).await?;
    Ok(Events { receiver, running })
}
