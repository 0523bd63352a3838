//! Limits on the number of concurrent sessions of live transcripts.

use std::{collections::HashMap, sync::Arc, time::Duration};

use narthex_gateway::keys::KeyHash;
use parking_lot::Mutex;

use crate::error::ApiError;

/// Maximum number of sessions of a server. Each may hold two minutes of audio and an event of the maximum size.
const MAX_SESSIONS: usize = 32;

/// Maximum number of sessions of one key, and of all callers without a key together.
const MAX_SESSIONS_PER_KEY: usize = 16;

/// Delay before a client should try again.
const RETRY: Duration = Duration::from_secs(5);

/// The sessions of a server. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct LiveSessions(Arc<Mutex<HashMap<Option<KeyHash>, usize>>>);

/// Place of a session. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct LivePlace {
    key: Option<KeyHash>,
    places: LiveSessions,
}

impl LiveSessions {
    /// Takes a place for a session of a key, or of a caller without one.
    ///
    /// # Errors
    /// 429 if all places are taken.
    pub(crate) fn take(&self, key: Option<KeyHash>) -> Result<LivePlace, ApiError> {
        let mut sessions = self.0.lock();
        let total: usize = sessions.values().sum();
        if total >= MAX_SESSIONS {
            let message =
                format!("{MAX_SESSIONS} live sessions are open, which is the maximum of this server");
            return Err(ApiError::overloaded(&message, RETRY));
        }
        let of_key = sessions.entry(key).or_default();
        if *of_key >= MAX_SESSIONS_PER_KEY {
            let message = format!(
                "{MAX_SESSIONS_PER_KEY} live sessions of this caller are open, which is the maximum; close one first"
            );
            return Err(ApiError::overloaded(&message, RETRY));
        }
        *of_key += 1;
        Ok(LivePlace { key, places: self.clone() })
    }
}

impl Drop for LivePlace {
    fn drop(&mut self) {
        let mut sessions = self.places.0.lock();
        if let Some(count) = sessions.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                sessions.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_limited_for_each_key_and_in_total() {
        let places = LiveSessions::default();
        let keys = ["a", "b", "c"].map(|secret| Some(KeyHash::of(secret)));
        let take_all = |key| -> Vec<LivePlace> { std::iter::from_fn(|| places.take(key).ok()).collect() };
        let first = take_all(keys[0]);
        let mut second = take_all(keys[1]);
        assert_eq!((first.len(), second.len()), (MAX_SESSIONS_PER_KEY, MAX_SESSIONS_PER_KEY));
        let refused = |key| places.take(key).unwrap_err();
        assert!(refused(keys[2]).message().contains("of this server"));
        second.pop();
        assert!(refused(keys[0]).message().contains("of this caller"));
        let other = places.take(None).unwrap();
        assert_eq!(refused(keys[2]).retry_after(), Some(5));
        drop((first, second, other));
        assert!(places.0.lock().is_empty());
    }
}
