//! The state of a connection, which its stream, its requests and its deadline share.

use std::sync::Arc;

use axum::http::{Extensions, Version};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::{Duration, Instant, timeout_at},
};

use crate::limits::Limits;

/// Time to send the last bytes of an answer after its request has ended, when the server stops.
const FLUSH: Duration = Duration::from_secs(1);

/// State of a connection. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionState(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: Limits,
    /// Becomes true at shutdown.
    stopped: watch::Receiver<bool>,
    phase: Mutex<Phase>,
    /// Signals that the deadline has changed.
    changed: Notify,
}

#[derive(Debug)]
struct Phase {
    /// Number of requests whose answers are not complete.
    active: usize,
    /// Time at which the connection ends, unless a request is active.
    deadline: Instant,
    /// True if no byte of the next request has arrived.
    is_quiet: bool,
    /// True if requests and answers overlap (HTTP/2).
    is_multiplexed: bool,
    /// True if the last request has arrived completely.
    is_complete: bool,
    /// True if the answer to the last request has begun.
    is_answered: bool,
    is_stopping: bool,
}

impl ConnectionState {
    /// Creates the state of a new connection.
    pub(crate) fn new(limits: Limits, stopped: watch::Receiver<bool>) -> Self {
        let phase = Phase {
            active: 0,
            deadline: Instant::now() + limits.head,
            is_quiet: true,
            is_multiplexed: false,
            is_complete: false,
            is_answered: false,
            is_stopping: false,
        };
        Self(Arc::new(Shared { limits, stopped, phase: Mutex::new(phase), changed: Notify::new() }))
    }

    /// Returns the state of a request's connection; `None` for a router without a listener, as in tests.
    pub(crate) fn of(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Returns at the server's shutdown.
    pub(crate) async fn stopped(&self) {
        if self.0.stopped.clone().wait_for(|stopped| *stopped).await.is_err() {
            // The sender was dropped, so no shutdown can be signalled.
            std::future::pending::<()>().await;
        }
    }

    /// Records a request whose head has arrived, until the returned value is dropped.
    pub(super) fn begin(&self, version: Version, has_body: bool) -> ActiveRequest {
        let mut phase = self.0.phase.lock();
        phase.active += 1;
        phase.is_multiplexed |= version == Version::HTTP_2;
        phase.is_complete = !has_body;
        phase.is_answered = false;
        drop(phase);
        self.0.changed.notify_one();
        ActiveRequest(self.clone())
    }

    /// Records that the body of the current request has arrived completely.
    pub(crate) fn request_received(&self) {
        self.0.phase.lock().is_complete = true;
    }

    /// Records that bytes have arrived.
    pub(super) fn bytes_received(&self) {
        let mut phase = self.0.phase.lock();
        phase.is_complete = false;
        if phase.active == 0 && phase.is_quiet && !phase.is_multiplexed {
            phase.is_quiet = false;
            phase.deadline = phase.deadline.min(Instant::now() + self.0.limits.head);
            drop(phase);
            self.0.changed.notify_one();
        }
    }

    /// Returns true if the request of an HTTP/1 connection has no complete answer yet.
    pub(super) fn is_active(&self) -> bool {
        let phase = self.0.phase.lock();
        phase.active > 0 && !phase.is_multiplexed
    }

    /// Returns true if the current request has arrived completely.
    pub(super) fn is_complete(&self) -> bool {
        self.0.phase.lock().is_complete
    }

    /// Returns true if no byte of the answer to the current request exists yet.
    pub(super) fn is_unanswered(&self) -> bool {
        let phase = self.0.phase.lock();
        phase.active > 0 && !phase.is_answered
    }

    /// Shortens the deadline of a connection without an active request to the time for its last bytes.
    pub(super) fn stop(&self) {
        let mut phase = self.0.phase.lock();
        phase.is_stopping = true;
        phase.deadline = Instant::now() + FLUSH;
        drop(phase);
        self.0.changed.notify_one();
    }

    /// Ends a connection without an active request.
    pub(crate) fn evict(&self) {
        self.0.phase.lock().deadline = Instant::now();
        self.0.changed.notify_one();
    }

    /// Returns the time at which the connection ends without another request; `None` while a request is active.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let phase = self.0.phase.lock();
        (phase.active == 0).then_some(phase.deadline)
    }

    /// Returns when the deadline has passed.
    pub(super) async fn expired(&self) {
        loop {
            let changed = self.0.changed.notified();
            match self.deadline() {
                None => changed.await,
                Some(deadline) => {
                    if timeout_at(deadline, changed).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// An active request, from the arrival of its head to the end of its answer.
pub(super) struct ActiveRequest(ConnectionState);

impl ActiveRequest {
    /// Records that the answer has begun.
    pub(super) fn answer(&self) {
        self.0.0.phase.lock().is_answered = true;
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let Shared { limits, phase, changed, .. } = &*self.0.0;
        let mut phase = phase.lock();
        phase.active -= 1;
        phase.is_quiet = true;
        let left = if phase.is_stopping { FLUSH } else { limits.idle };
        phase.deadline = Instant::now() + left;
        drop(phase);
        changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> (ConnectionState, watch::Sender<bool>) {
        let (stop, stopped) = watch::channel(false);
        (ConnectionState::new(Limits::standard(), stopped), stop)
    }

    /// Returns the remaining time of a connection.
    fn left(state: &ConnectionState) -> Option<Duration> {
        state.deadline().map(|deadline| deadline - Instant::now())
    }

    #[test]
    fn a_connection_has_a_deadline_unless_a_request_is_active() {
        let (state, _stop) = state();
        let Limits { head, idle, .. } = *state.limits();
        let first = state.deadline().unwrap();
        assert!(left(&state) <= Some(head));
        // Further bytes of the head do not extend its deadline.
        state.bytes_received();
        assert_eq!(state.deadline(), Some(first));
        let request = state.begin(Version::HTTP_11, false);
        assert_eq!(state.deadline(), None);
        drop(request);
        let after = left(&state);
        assert!(Some(head) < after && after <= Some(idle));
        state.bytes_received();
        let next = state.deadline().unwrap();
        assert!(left(&state) <= Some(head));
        state.bytes_received();
        assert_eq!(state.deadline(), Some(next));
    }

    #[tokio::test]
    async fn a_connection_that_stops_ends_soon_after_its_last_answer() {
        let (state, _stop) = state();
        let request = state.begin(Version::HTTP_2, false);
        state.stop();
        assert_eq!(state.deadline(), None);
        drop(request);
        assert!(left(&state) <= Some(FLUSH));
        state.evict();
        state.expired().await;
    }

    #[test]
    fn an_answer_is_awaited_once_its_request_is_complete() {
        let (state, _stop) = state();
        assert!(!state.is_active());
        let request = state.begin(Version::HTTP_11, true);
        assert!(state.is_active() && !state.is_complete());
        state.request_received();
        assert!(state.is_complete() && state.is_unanswered());
        request.answer();
        assert!(state.is_active() && !state.is_unanswered());
        drop(request);
        assert!(!state.is_active());
        let _multiplexed = state.begin(Version::HTTP_2, false);
        assert!(!state.is_active());
    }
}
