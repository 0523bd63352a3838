//! Limits on the time, connections and memory that clients may use.

use std::time::Duration;

/// Minimum number of file descriptors that connections leave for models, packages and downloads.
#[cfg(unix)]
const RESERVED_DESCRIPTORS: usize = 64;

/// Maximum number of connections if the system does not limit them.
const MAX_CONNECTIONS: usize = 4096;

/// Maximum time that a client may read nothing of its answer.
pub(crate) const MAX_UNREAD: Duration = Duration::from_secs(30);

/// Limits on the clients of a server.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum time for the head of a request, from its first byte or from the start of the connection.
    pub head: Duration,
    /// Maximum time between two parts of a body.
    pub body: Duration,
    /// Maximum time between an answer and the next request of a connection.
    pub idle: Duration,
    /// Maximum time that a client may read nothing of its answer.
    pub write: Duration,
    /// Maximum number of connections.
    pub connections: usize,
    /// Maximum time that a request waits for memory that other requests hold.
    pub memory: Duration,
}

impl Limits {
    /// Returns the limits of `narthex serve`. The number of connections leaves file descriptors free for other files.
    pub fn standard() -> Self {
        Self {
            head: Duration::from_secs(10),
            body: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            write: MAX_UNREAD,
            connections: connections(),
            memory: Duration::from_secs(15),
        }
    }
}

#[cfg(unix)]
fn connections() -> usize {
    use rustix::process::{Resource, getrlimit};
    connections_within(getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize))
}

/// Returns the maximum number of connections of a process with this limit of open files.
#[cfg(unix)]
fn connections_within(descriptors: usize) -> usize {
    let reserved = RESERVED_DESCRIPTORS.max(descriptors / 4);
    descriptors.saturating_sub(reserved).clamp(1, MAX_CONNECTIONS)
}

#[cfg(not(unix))]
fn connections() -> usize {
    MAX_CONNECTIONS
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_other_files() {
        let check =
            |descriptors, expect| assert_eq!(connections_within(descriptors), expect, "{descriptors}");
        check(0, 1);
        check(65, 1);
        check(200, 136);
        check(256, 192);
        check(1024, 768);
        check(5461, 4096);
        check(usize::MAX, MAX_CONNECTIONS);
    }
}
