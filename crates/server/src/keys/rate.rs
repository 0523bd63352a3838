//! Limits of a key: requests and tokens per minute as token buckets, and concurrent answers.
//!
//! The capacity of a bucket is the budget of one minute, and it refills evenly. Tokens are charged when an answer ends,
//! so a long answer can make the level of its bucket negative; the next request then waits until the level is positive
//! again. Crates for rate limits, such as `governor`, have no negative levels.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use narthex_gateway::{
    Rights,
    keys::{ApiKey, KeyHash, KeyLimits, KeyRole},
};
use parking_lot::Mutex;

use crate::error::ApiError;

/// Time in seconds in which an empty bucket fills.
const MINUTE: f64 = 60.0;

/// A budget per minute.
#[derive(Debug, Clone)]
struct Bucket {
    capacity: f64,
    level: f64,
    /// Time at which `level` was computed.
    at: Instant,
}

impl Bucket {
    fn full(capacity: NonZeroU32, now: Instant) -> Self {
        let capacity = f64::from(capacity.get());
        Self { capacity, level: capacity, at: now }
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        self.level = (self.level + elapsed * self.capacity / MINUTE).min(self.capacity);
        self.at = self.at.max(now);
    }

    /// Returns the time until the bucket reaches `level`; `None` if it has reached it.
    fn wait_for(&self, level: f64) -> Option<Duration> {
        let missing = level.min(self.capacity) - self.level;
        (missing > 0.0).then(|| Duration::from_secs_f64(missing * MINUTE / self.capacity))
    }

    fn remaining(&self) -> u64 {
        self.level.max(0.0) as u64
    }

    /// Returns the time until the bucket is full, rounded up to seconds, in the format of the headers: `12s`.
    fn reset(&self) -> String {
        let wait = self.wait_for(self.capacity).unwrap_or_default();
        format!("{}s", wait.as_secs_f64().ceil())
    }
}

/// A key and its counts.
pub(crate) struct KeyState {
    key: ApiKey,
    rights: Arc<Rights>,
    counts: Mutex<KeyCounts>,
}

struct KeyCounts {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    /// Number of running answers. A request without an answer counts as one.
    running: u32,
}

impl KeyCounts {
    /// Fails if the tokens of the minute are spent.
    fn check_tokens(&mut self, limits: &KeyLimits, now: Instant) -> Result<(), ApiError> {
        let (Some(limit), Some(tokens)) = (limits.tokens_per_minute, &mut self.tokens) else {
            return Ok(());
        };
        tokens.refill(now);
        tokens.wait_for(1.0).map_or(Ok(()), |wait| Err(refused(limit, "tokens per minute", wait)))
    }
}

/// Answers of a key that count as running until the permit is dropped.
pub(crate) struct Permit {
    key: Arc<KeyState>,
    answers: u32,
}

/// Returns the error of a key that has reached a limit.
fn refused(limit: NonZeroU32, what: &str, wait: Duration) -> ApiError {
    ApiError::rate_limited(format!("this key may have {limit} {what}; wait and send the request again"), wait)
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.key.counts.lock();
        counts.running = counts.running.saturating_sub(self.answers);
    }
}

impl KeyState {
    /// Creates the state of a key without requests.
    pub(crate) fn new(key: ApiKey, rights: Rights, now: Instant) -> Self {
        let bucket = |limit: Option<NonZeroU32>| limit.map(|limit| Bucket::full(limit, now));
        let (requests, tokens) =
            (bucket(key.limits.requests_per_minute), bucket(key.limits.tokens_per_minute));
        let counts = Mutex::new(KeyCounts { requests, tokens, running: 0 });
        Self { key, rights: Arc::new(rights), counts }
    }

    pub(crate) fn role(&self) -> KeyRole {
        self.key.limits.role
    }

    pub(crate) fn hash(&self) -> KeyHash {
        self.key.hash
    }

    pub(crate) fn rights(&self) -> Arc<Rights> {
        self.rights.clone()
    }

    /// Returns whether this is the state of `key` with the same limits.
    pub(crate) fn is_of(&self, key: &ApiKey) -> bool {
        self.key == *key
    }

    /// Counts a request and its first answer.
    ///
    /// # Errors
    /// 429 with the wait if a limit is reached. A refused request is not counted.
    pub(crate) fn start(self: &Arc<Self>, now: Instant) -> Result<Permit, ApiError> {
        let limits = &self.key.limits;
        let mut counts = self.counts.lock();
        if let Some(limit) = limits.concurrency.filter(|limit| counts.running >= limit.get()) {
            return Err(refused(limit, "concurrent answers", Duration::from_secs(1)));
        }
        counts.check_tokens(limits, now)?;
        if let (Some(limit), Some(bucket)) = (limits.requests_per_minute, &mut counts.requests) {
            bucket.refill(now);
            if let Some(wait) = bucket.wait_for(1.0) {
                return Err(refused(limit, "requests per minute", wait));
            }
            bucket.level -= 1.0;
        }
        counts.running += 1;
        Ok(Permit { key: self.clone(), answers: 1 })
    }

    /// Counts more answers of a running request.
    ///
    /// # Errors
    /// 429 if the answers would exceed the key's limit of concurrent answers.
    pub(crate) fn add_answers(self: &Arc<Self>, answers: u32) -> Result<Permit, ApiError> {
        let mut counts = self.counts.lock();
        let running = counts.running.saturating_add(answers);
        if let Some(limit) = self.key.limits.concurrency.filter(|limit| running > limit.get()) {
            let message = format!(
                "this key may have {limit} concurrent answers, and each choice for each prompt of a request counts as \
                 one; request fewer, or wait and send the request again"
            );
            return Err(ApiError::rate_limited(message, Duration::from_secs(1)));
        }
        counts.running = running;
        Ok(Permit { key: self.clone(), answers })
    }

    /// Checks that the key may spend tokens.
    ///
    /// # Errors
    /// 429 with the wait if it has spent those of the minute.
    pub(crate) fn check_tokens(&self, now: Instant) -> Result<(), ApiError> {
        self.counts.lock().check_tokens(&self.key.limits, now)
    }

    /// Charges the tokens of an answer.
    pub(crate) fn charge(&self, tokens: usize, now: Instant) {
        if let Some(bucket) = &mut self.counts.lock().tokens {
            bucket.refill(now);
            bucket.level -= tokens as f64;
        }
    }

    /// Adds OpenAI's `x-ratelimit` headers for the limits of the key.
    pub(crate) fn write_headers(&self, now: Instant, headers: &mut HeaderMap) {
        let mut counts = self.counts.lock();
        let KeyCounts { requests, tokens, .. } = &mut *counts;
        let limits = &self.key.limits;
        let requests = (
            limits.requests_per_minute,
            requests,
            ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
        );
        let tokens = (
            limits.tokens_per_minute,
            tokens,
            ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
        );

        for (limit, bucket, names) in [requests, tokens] {
            let (Some(limit), Some(bucket)) = (limit, bucket) else { continue };
            bucket.refill(now);
            let values = [limit.to_string(), bucket.remaining().to_string(), bucket.reset()];
            for (name, value) in names.into_iter().zip(values) {
                if let Ok(value) = HeaderValue::from_str(&value) {
                    headers.insert(HeaderName::from_static(name), value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_can_be_checked_without_a_request() {
        let start = Instant::now();
        let limits = KeyLimits { tokens_per_minute: NonZeroU32::new(60), ..KeyLimits::default() };
        let key = state(limits, start);
        key.check_tokens(start).unwrap();
        key.charge(62, start);
        assert_eq!(key.check_tokens(start).unwrap_err().retry_after(), Some(3));
        key.check_tokens(start + Duration::from_secs(3)).unwrap();
        state(KeyLimits::default(), start).check_tokens(start).unwrap();
    }

    fn state(limits: KeyLimits, now: Instant) -> Arc<KeyState> {
        let key = ApiKey {
            limits,
            ..ApiKey::from_secret("k", "a secret of a key".replace(' ', "-").as_str(), KeyRole::User).unwrap()
        };
        Arc::new(KeyState::new(key, Rights::default(), now))
    }

    /// Returns the wait of a refused request in seconds.
    fn wait(outcome: Result<Permit, ApiError>) -> u64 {
        outcome.err().unwrap().retry_after().unwrap()
    }

    #[test]
    fn requests_refill_evenly() {
        let start = Instant::now();
        let key = state(KeyLimits { requests_per_minute: NonZeroU32::new(2), ..KeyLimits::default() }, start);
        let at = |seconds| start + Duration::from_secs(seconds);
        drop((key.start(start).unwrap(), key.start(start).unwrap()));
        assert_eq!(wait(key.start(start)), 30);
        assert_eq!(wait(key.start(at(10))), 20);
        key.start(at(30)).unwrap();
        assert_eq!(wait(key.start(at(31))), 29);
        // However long the key was unused, the bucket holds at most the budget of one minute.
        drop((key.start(at(1000)).unwrap(), key.start(at(1000)).unwrap()));
        assert_eq!(wait(key.start(at(1000))), 30);
    }

    #[test]
    fn tokens_are_charged_when_an_answer_ends() {
        let start = Instant::now();
        let key = state(KeyLimits { tokens_per_minute: NonZeroU32::new(60), ..KeyLimits::default() }, start);
        let at = |seconds| start + Duration::from_secs(seconds);
        key.start(start).unwrap();
        key.charge(90, start);
        assert_eq!(wait(key.start(start)), 31);
        assert_eq!(wait(key.start(at(30))), 1);
        key.start(at(31)).unwrap();
    }

    #[test]
    fn concurrency_ends_with_the_permit() {
        let now = Instant::now();
        let limits = KeyLimits {
            concurrency: NonZeroU32::new(1),
            requests_per_minute: NonZeroU32::new(2),
            ..KeyLimits::default()
        };
        let key = state(limits, now);
        let running = key.start(now).unwrap();
        assert_eq!(wait(key.start(now)), 1);
        drop(running);
        // The refused request was not counted.
        key.start(now).unwrap();
    }

    #[test]
    fn each_answer_of_a_request_is_counted() {
        let now = Instant::now();
        let key = state(KeyLimits { concurrency: NonZeroU32::new(3), ..KeyLimits::default() }, now);
        let _request = key.start(now).unwrap();
        let more = key.add_answers(2).unwrap();
        assert_eq!((wait(key.add_answers(1)), wait(key.start(now))), (1, 1));
        drop(more);
        assert_eq!(wait(key.add_answers(3)), 1);
        let _more = key.add_answers(1).unwrap();
        let _other = key.start(now).unwrap();
        key.add_answers(0).unwrap();
    }

    #[test]
    fn headers_state_what_is_left() {
        let now = Instant::now();
        let limits = KeyLimits {
            requests_per_minute: NonZeroU32::new(10),
            tokens_per_minute: NonZeroU32::new(60),
            ..KeyLimits::default()
        };
        let key = state(limits, now);
        key.start(now).unwrap();
        key.charge(100, now);
        let mut headers = HeaderMap::new();
        key.write_headers(now, &mut headers);
        let text = |name: &str| headers.get(name).unwrap().to_str().unwrap();
        assert_eq!(text("x-ratelimit-limit-requests"), "10");
        assert_eq!(text("x-ratelimit-remaining-requests"), "9");
        assert_eq!(text("x-ratelimit-reset-requests"), "6s");
        assert_eq!(text("x-ratelimit-remaining-tokens"), "0");
        assert_eq!(text("x-ratelimit-reset-tokens"), "100s");
        let mut none = HeaderMap::new();
        state(KeyLimits::default(), now).write_headers(now, &mut none);
        assert!(none.is_empty());
    }
}
