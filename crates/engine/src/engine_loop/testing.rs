//! Steps without a thread, and copies of the state, for tests.

use super::EngineLoop;
use crate::{
    executor::Executor,
    request::{Request, SequenceHandle, SubmitError},
    sequence::Sequence,
    snapshot::{RunningSequence, Snapshot},
    wake::WakeSignal,
};

impl EngineLoop {
    /// Queues a request. The queue has no limit here; [`Engine`](crate::worker::Engine) enforces it.
    ///
    /// # Errors
    /// The errors of [`Self::check`].
    pub fn submit(&mut self, request: Request) -> Result<SequenceHandle, SubmitError> {
        Self::check(self.device.limits(), self.device.media_width(), &request)?;
        // The caller runs the steps itself, so there is no thread to wake.
        let handle = SequenceHandle::new(WakeSignal::default());
        self.enqueue(Sequence::new(0, request, self.device.limits().longest(), handle.clone()));
        Ok(handle)
    }

    /// Returns a copy of the state, for checks of invariants.
    pub fn snapshot(&self) -> Snapshot {
        let running = |s: &Sequence| RunningSequence {
            number: s.number,
            slot: s.slot,
            cached: s.cached,
            tokens: s.tokens.len(),
            footprint: s.footprint(),
        };
        Snapshot {
            slots: self.slots.states().to_vec(),
            running: self.running.iter().map(running).collect(),
            queue: self.queue.iter().map(|s| s.number).collect(),
            max_running: self.config.max_running,
            submitted: self.submitted,
            finished: self.finished,
            stats: self.stats(),
        }
    }
}
