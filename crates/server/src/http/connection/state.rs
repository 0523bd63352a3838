//! The state of a connection, which its stream, its requests and its deadline share.

use std::{collections::BTreeMap, sync::Arc};

use axum::http::{Extensions, Version};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, watch},
    time::{Duration, Instant, timeout_at},
};

use crate::http::limits::Limits;

/// Time to send the last bytes of an answer after its request has ended, when the server stops.
const FLUSH: Duration = Duration::from_secs(1);

/// Share of the maximum time that a client may read nothing, as a divisor, after which its connection can be evicted.
const STALL_DIVISOR: u32 = 10;

/// State of a connection. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionState(Arc<SharedConnectionState>);

#[derive(Debug)]
struct SharedConnectionState {
    limits: Limits,
    /// Becomes true at shutdown.
    stopped: watch::Receiver<bool>,
    locked: Mutex<LockedState>,
    /// Signals that the deadline has changed.
    changed: Notify,
    /// Signals the end of the session of another protocol.
    upgrade_ended: Notify,
}

#[derive(Debug)]
struct LockedState {
    /// Number of requests whose answers are not complete.
    active: usize,
    /// Time at which the connection ends, unless a request is active.
    deadline: Instant,
    /// Number of requests so far.
    requests: u64,
    /// Active requests whose bodies have not arrived completely, by their numbers, with the arrival of their heads.
    incomplete_requests: BTreeMap<u64, Instant>,
    /// HTTP/2 answers whose next bytes exist and were not taken, by the numbers of their requests, with the start of
    /// the wait.
    ready_since: BTreeMap<u64, Instant>,
    /// Start of a pending write.
    blocked: Option<Instant>,
    is_evicted: bool,
    /// True while a session of another protocol, which a request has begun, has the connection.
    is_upgraded: bool,
    /// True if no byte of the next request has arrived.
    awaits_first_byte: bool,
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
        let locked = LockedState {
            active: 0,
            deadline: Instant::now() + limits.head,
            requests: 0,
            incomplete_requests: BTreeMap::new(),
            ready_since: BTreeMap::new(),
            blocked: None,
            is_evicted: false,
            is_upgraded: false,
            awaits_first_byte: true,
            is_multiplexed: false,
            is_complete: false,
            is_answered: false,
            is_stopping: false,
        };
        Self(Arc::new(SharedConnectionState {
            limits,
            stopped,
            locked: Mutex::new(locked),
            changed: Notify::new(),
            upgrade_ended: Notify::new(),
        }))
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Returns at the server's shutdown.
    pub(super) async fn stopped(&self) {
        if self.0.stopped.clone().wait_for(|stopped| *stopped).await.is_err() {
            // The sender was dropped, so no shutdown can be signalled.
            std::future::pending::<()>().await;
        }
    }

    /// Records a request whose head has arrived, until the returned value is dropped.
    pub(crate) fn begin(&self, version: Version, has_body: bool) -> ActiveRequest {
        let mut locked = self.0.locked.lock();
        locked.active += 1;
        let is_multiplexed = version == Version::HTTP_2;
        locked.is_multiplexed |= is_multiplexed;
        locked.requests += 1;
        let number = locked.requests;
        if has_body {
            locked.incomplete_requests.insert(number, Instant::now());
        }
        locked.is_complete = !has_body;
        locked.is_answered = false;
        drop(locked);
        self.0.changed.notify_one();
        ActiveRequest { connection: RequestConnection { state: self.clone(), number }, is_multiplexed }
    }

    /// Records that bytes have arrived.
    pub(super) fn bytes_received(&self) {
        let mut locked = self.0.locked.lock();
        locked.is_complete = false;
        if locked.active == 0 && locked.awaits_first_byte && !locked.is_multiplexed {
            locked.awaits_first_byte = false;
            locked.deadline = locked.deadline.min(Instant::now() + self.0.limits.head);
            drop(locked);
            self.0.changed.notify_one();
        }
    }

    /// Returns true if a request has no complete answer yet.
    pub(super) fn has_active(&self) -> bool {
        self.0.locked.lock().active > 0
    }

    /// Returns true if the request of an HTTP/1 connection has no complete answer yet.
    pub(super) fn is_active(&self) -> bool {
        let locked = self.0.locked.lock();
        locked.active > 0 && !locked.is_multiplexed
    }

    /// Returns true if the current request has arrived completely.
    pub(super) fn is_complete(&self) -> bool {
        self.0.locked.lock().is_complete
    }

    /// Returns true if no byte of the answer to the current request exists yet.
    pub(super) fn is_unanswered(&self) -> bool {
        let locked = self.0.locked.lock();
        locked.active > 0 && !locked.is_answered
    }

    /// Shortens the deadline of a connection without an active request to the time for its last bytes.
    pub(super) fn stop(&self) {
        let mut locked = self.0.locked.lock();
        locked.is_stopping = true;
        locked.deadline = Instant::now() + FLUSH;
        drop(locked);
        self.0.changed.notify_one();
    }

    /// Records that a write waits for the client, or no longer does.
    pub(super) fn set_blocked(&self, is_blocked: bool) {
        self.0.locked.lock().blocked = is_blocked.then(Instant::now);
    }

    /// Ends the connection.
    pub(crate) fn evict(&self) {
        self.0.locked.lock().is_evicted = true;
        self.0.changed.notify_one();
    }

    /// Returns the time at which the connection ends if its client does nothing; `None` while a request is active,
    /// unless the client does not read an answer.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let locked = self.0.locked.lock();
        if locked.is_evicted {
            return Some(Instant::now());
        }
        if locked.active == 0 {
            return Some(locked.deadline);
        }
        locked.ready_since.values().min().map(|since| *since + self.0.limits.write)
    }

    /// Returns the deadline of a connection that can be evicted: one without an active request, or one whose client has
    /// taken nothing of an answer for a while.
    pub(crate) fn eviction_deadline(&self) -> Option<Instant> {
        let write = self.0.limits.write;
        let locked = self.0.locked.lock();
        if locked.active == 0 {
            return Some(locked.deadline);
        }
        let since = *locked.ready_since.values().chain(&locked.blocked).min()?;
        (since.elapsed() >= write / STALL_DIVISOR).then_some(since + write)
    }

    /// Returns the arrival of the oldest head if no active request of the connection has arrived completely. Such a
    /// connection can be evicted if no other can.
    pub(crate) fn incomplete_since(&self) -> Option<Instant> {
        let locked = self.0.locked.lock();
        let is_incomplete = locked.incomplete_requests.len() == locked.active;
        locked.incomplete_requests.values().min().copied().filter(|_| is_incomplete)
    }

    /// Returns when the deadline has passed.
    pub(super) async fn expired(&self) {
        loop {
            let changed = self.0.changed.notified();
            // An answer that stalls after this point has a later deadline, so it need not signal a change.
            let next = self.deadline().unwrap_or_else(|| Instant::now() + self.0.limits.write);
            let is_over = timeout_at(next, changed).await.is_err();
            if is_over && self.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
                return;
            }
        }
    }

    /// Waits for the end of a session of another protocol, if there is one.
    pub(super) async fn upgrade_ended(&self) {
        loop {
            let ended = self.0.upgrade_ended.notified();
            if !self.0.locked.lock().is_upgraded {
                return;
            }
            ended.await;
        }
    }
}

/// The connection of a request, for the reader of its body.
#[derive(Debug, Clone)]
pub(crate) struct RequestConnection {
    state: ConnectionState,
    /// Number of the request in its connection.
    number: u64,
}

impl RequestConnection {
    /// Returns the connection of a request; `None` for a router without a listener, as in tests.
    pub(crate) fn of(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    pub(crate) fn limits(&self) -> &Limits {
        self.state.limits()
    }

    /// Returns at the server's shutdown.
    pub(crate) async fn stopped(&self) {
        self.state.stopped().await;
    }

    /// Records that the body has arrived completely.
    pub(crate) fn request_received(&self) {
        let mut locked = self.locked();
        locked.is_complete = true;
        locked.incomplete_requests.remove(&self.number);
    }

    /// Records that a session of another protocol, such as a WebSocket, takes over the connection. It is active until the
    /// returned value is dropped.
    pub(crate) fn upgraded(&self) -> UpgradedConnection {
        let mut locked = self.locked();
        locked.is_upgraded = true;
        locked.active += 1;
        UpgradedConnection(self.state.clone())
    }

    fn locked(&self) -> MutexGuard<'_, LockedState> {
        self.state.0.locked.lock()
    }
}

/// Reason why a session of another protocol must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    /// The server shuts down.
    Stopped,
    /// The connection was evicted.
    Expired,
}

/// A connection with a session of another protocol than HTTP.
#[derive(Debug)]
pub(crate) struct UpgradedConnection(ConnectionState);

impl UpgradedConnection {
    /// Waits until the session must end.
    pub(crate) async fn ended(&self) -> ConnectionEnd {
        tokio::select! {
            () = self.0.stopped() => ConnectionEnd::Stopped,
            () = self.0.expired() => ConnectionEnd::Expired,
        }
    }
}

impl Drop for UpgradedConnection {
    fn drop(&mut self) {
        let mut locked = self.0.0.locked.lock();
        locked.is_upgraded = false;
        locked.active -= 1;
        drop(locked);
        self.0.0.upgrade_ended.notify_one();
    }
}

/// An active request, from the arrival of its head to the end of its answer.
pub(crate) struct ActiveRequest {
    connection: RequestConnection,
    /// True for HTTP/2.
    is_multiplexed: bool,
}

impl ActiveRequest {
    /// Returns the connection for the request's handlers.
    pub(crate) fn connection(&self) -> RequestConnection {
        self.connection.clone()
    }

    /// Records that the answer has begun.
    pub(super) fn record_answer_begun(&self) {
        let mut locked = self.connection.locked();
        locked.is_answered = true;
        locked.incomplete_requests.remove(&self.connection.number);
        drop(locked);
        self.record_bytes_ready();
    }

    /// Records that the next bytes of an HTTP/2 answer exist. Over HTTP/1, the time limit on writes suffices.
    pub(super) fn record_bytes_ready(&self) {
        if self.is_multiplexed {
            self.connection.locked().ready_since.insert(self.connection.number, Instant::now());
        }
    }

    /// Records that the client has taken the answer so far.
    pub(super) fn record_bytes_taken(&self) {
        self.connection.locked().ready_since.remove(&self.connection.number);
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let SharedConnectionState { limits, locked, changed, .. } = &*self.connection.state.0;
        let mut locked = locked.lock();
        locked.ready_since.remove(&self.connection.number);
        locked.incomplete_requests.remove(&self.connection.number);
        locked.active -= 1;
        locked.awaits_first_byte = true;
        let left = if locked.is_stopping { FLUSH } else { limits.idle };
        locked.deadline = Instant::now() + left;
        drop(locked);
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

    #[tokio::test]
    async fn a_connection_whose_client_takes_nothing_has_a_deadline() {
        let (_stop, stopped) = watch::channel(false);
        let limits = Limits { write: Duration::ZERO, ..Limits::standard() };
        let state = ConnectionState::new(limits, stopped);
        let request = state.begin(Version::HTTP_2, false);
        let other = state.begin(Version::HTTP_2, false);
        assert_eq!((state.deadline(), state.eviction_deadline()), (None, None));
        request.record_answer_begun();
        assert!(state.deadline().is_some() && state.eviction_deadline().is_some());
        state.expired().await;
        request.record_bytes_taken();
        assert_eq!((state.deadline(), state.eviction_deadline()), (None, None));
        request.record_bytes_ready();
        state.expired().await;
        drop(request);
        assert_eq!((state.deadline(), state.eviction_deadline()), (None, None));
        // A pending write has a limit of its own in the stream.
        state.set_blocked(true);
        assert!(state.deadline().is_none() && state.eviction_deadline().is_some());
        state.set_blocked(false);
        assert_eq!(state.eviction_deadline(), None);
        drop(other);
    }

    #[tokio::test]
    async fn a_connection_ends_by_eviction_although_a_request_has_just_begun() {
        let (state, _stop) = state();
        state.evict();
        let _request = state.begin(Version::HTTP_11, false);
        state.expired().await;
    }

    #[test]
    fn answers_over_http_1_are_limited_by_their_writes() {
        let (_stop, stopped) = watch::channel(false);
        let limits = Limits { write: Duration::ZERO, ..Limits::standard() };
        let state = ConnectionState::new(limits, stopped);
        let request = state.begin(Version::HTTP_11, false);
        request.record_answer_begun();
        assert_eq!((state.deadline(), state.eviction_deadline()), (None, None));
    }

    #[tokio::test]
    async fn a_session_of_another_protocol_has_the_connection_until_its_end() {
        let (state, stop) = state();
        state.upgrade_ended().await;
        let request = state.begin(Version::HTTP_11, false);
        let session = request.connection().upgraded();
        request.record_answer_begun();
        drop(request);
        assert_eq!((state.deadline(), state.eviction_deadline()), (None, None));
        assert!(futures::poll!(std::pin::pin!(state.upgrade_ended())).is_pending());
        assert!(futures::poll!(std::pin::pin!(session.ended())).is_pending());
        // A client that reads nothing can lose its session.
        state.evict();
        assert_eq!(session.ended().await, ConnectionEnd::Expired);
        drop(session);
        state.upgrade_ended().await;

        let session = state.begin(Version::HTTP_11, false).connection().upgraded();
        state.0.locked.lock().is_evicted = false;
        stop.send(true).unwrap();
        assert_eq!(session.ended().await, ConnectionEnd::Stopped);
    }

    #[test]
    fn an_answer_is_awaited_once_its_request_is_complete() {
        let (state, _stop) = state();
        assert!(!state.is_active());
        let request = state.begin(Version::HTTP_11, true);
        assert!(state.is_active() && !state.is_complete());
        request.connection().request_received();
        assert!(state.is_complete() && state.is_unanswered());
        request.record_answer_begun();
        assert!(state.is_active() && !state.is_unanswered());
        drop(request);
        assert!(!state.is_active());
        let _multiplexed = state.begin(Version::HTTP_2, false);
        assert!(!state.is_active());
    }

    #[test]
    fn a_connection_is_incomplete_while_all_its_requests_are() {
        let (state, _stop) = state();
        assert_eq!(state.incomplete_since(), None);
        let begun = [true, true].map(|has_body| state.begin(Version::HTTP_2, has_body));
        assert!(state.incomplete_since().unwrap() <= Instant::now());
        // A request that has arrived, and one that is refused before it has.
        let whole = state.begin(Version::HTTP_2, false);
        assert_eq!(state.incomplete_since(), None);
        drop(whole);
        assert!(state.incomplete_since().is_some());
        begun[0].connection().request_received();
        assert_eq!(state.incomplete_since(), None);
        let [first, second] = begun;
        drop(first);
        assert!(state.incomplete_since().is_some());
        second.record_answer_begun();
        assert_eq!(state.incomplete_since(), None);
        drop(second);
        assert_eq!(state.incomplete_since(), None);
    }
}
