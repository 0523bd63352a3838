//! From the engine's thread to a request's task. The channel has no bound because the engine must not wait for a slow
//! client; what can queue up in it is bounded by the request's `max_tokens` and the context.

use std::ops::ControlFlow;

use narthex_gateway::request::{TurnEvent, TurnSink};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The engine's end.
pub(crate) struct ChannelSink(UnboundedSender<TurnEvent>);

/// A sink and the events that come out of it.
pub(crate) fn channel() -> (Box<ChannelSink>, UnboundedReceiver<TurnEvent>) {
    let (sender, receiver) = unbounded_channel();
    (Box::new(ChannelSink(sender)), receiver)
}

impl TurnSink for ChannelSink {
    fn event(&mut self, event: TurnEvent) -> ControlFlow<()> {
        match self.0.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            // The client has gone, and its receiver with it.
            Err(_) => ControlFlow::Break(()),
        }
    }
}
