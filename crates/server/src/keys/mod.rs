//! API keys of a server: the sender of a request, and the limits of a key. Start at [`KeyRing::caller`].
//!
//! Keys come from the store's key file, which is read again when it changes, and from the server's options. Secrets are
//! compared by their hashes, in constant time and with every key.

mod rate;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use axum::http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use narthex_gateway::{
    AutoPull, Error, ErrorKind, Gateway, Rights,
    keys::{ApiKey, KeyFileStamp, KeyHash, KeyRole},
};
use parking_lot::Mutex;

pub(crate) use self::rate::{KeyState, Permit};
use crate::{current_gateway::CurrentGateway, error::ApiError};

/// The sender of a request.
#[derive(Clone)]
pub(crate) enum Caller {
    /// Any program that can connect, if no key is required; with the role of all such callers.
    Anonymous(KeyRole),
    /// The holder of a key.
    Key(Arc<KeyState>),
    /// Caller without a required key.
    Unauthenticated,
}

impl Caller {
    /// Returns whether the caller may read the metrics of the server and unload models.
    pub(crate) fn is_admin(&self) -> bool {
        match self {
            Self::Anonymous(role) => *role == KeyRole::Admin,
            Self::Key(key) => key.role() == KeyRole::Admin,
            Self::Unauthenticated => false,
        }
    }

    /// Returns whether the caller may read the state of models.
    pub(crate) fn is_known(&self) -> bool {
        !matches!(self, Self::Unauthenticated)
    }

    /// Returns the hash of the caller's key.
    pub(crate) fn key_hash(&self) -> Option<KeyHash> {
        match self {
            Self::Key(key) => Some(key.hash()),
            Self::Anonymous(_) | Self::Unauthenticated => None,
        }
    }

    /// Counts more answers of a running request, until the returned permit is dropped.
    ///
    /// # Errors
    /// 429 if the answers would exceed the limit of concurrent answers of the caller's key.
    pub(crate) fn add_answers(&self, answers: usize) -> Result<Option<Permit>, ApiError> {
        match self {
            Self::Key(key) => key.add_answers(u32::try_from(answers).unwrap_or(u32::MAX)).map(Some),
            Self::Anonymous(_) | Self::Unauthenticated => Ok(None),
        }
    }

    /// Checks that the caller may spend tokens.
    ///
    /// # Errors
    /// 429 if the caller's key has spent those of the minute.
    pub(crate) fn check_tokens(&self) -> Result<(), ApiError> {
        match self {
            Self::Key(key) => key.check_tokens(Instant::now()),
            Self::Anonymous(_) | Self::Unauthenticated => Ok(()),
        }
    }

    /// Charges tokens to the caller's key.
    pub(crate) fn charge(&self, tokens: usize) {
        if let Self::Key(key) = self {
            key.charge(tokens, Instant::now());
        }
    }
}

/// Requests that need a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyPolicy {
    /// All requests.
    Always,
    /// All requests once a key exists, even if every key is removed later.
    IfConfigured,
    /// No request. Requests with a key have its rights.
    Never,
}

/// The keys of a server.
pub(crate) struct KeyRing {
    gateway: CurrentGateway,
    policy: KeyPolicy,
    /// Role of callers without a key, if none is required.
    keyless: KeyRole,
    /// Downloads and compiles that requests of callers without admin rights may start.
    auto_pull: AutoPull,
    fixed: Vec<Arc<KeyState>>,
    file: Mutex<FileKeys>,
    /// Set once there is a key. A key file that is lost must not open the server.
    had_key: AtomicBool,
}

/// Keys of the key file when it was last read.
struct FileKeys {
    stamp: Option<KeyFileStamp>,
    keys: Vec<Arc<KeyState>>,
}

impl KeyRing {
    /// Reads the key file.
    pub(crate) fn open(
        gateway: CurrentGateway,
        fixed: Vec<ApiKey>,
        policy: KeyPolicy,
        keyless: KeyRole,
        auto_pull: AutoPull,
    ) -> Result<Self, Error> {
        let opened = gateway.get();
        let stamp = opened.key_file_stamp();
        let now = Instant::now();
        let keys: Vec<_> = opened.keys()?.into_iter().map(|key| new_state(key, auto_pull, now)).collect();
        let fixed: Vec<_> = fixed.into_iter().map(|key| new_state(key, auto_pull, now)).collect();
        let had_key = AtomicBool::new(!keys.is_empty() || !fixed.is_empty());
        let file = Mutex::new(FileKeys { stamp, keys });
        Ok(Self { gateway, policy, keyless, auto_pull, fixed, file, had_key })
    }

    /// Returns the sender of a request.
    ///
    /// # Errors
    /// 401 if a key is required and the request has no valid one.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let keys = self.current();
        let mut presented = secrets(headers).map(KeyHash::of).peekable();
        let has_secret = presented.peek().is_some();
        for hash in presented {
            let mut found = None;
            for key in &keys {
                // Every key is compared, so that the time does not reveal the position of a match.
                if key.hash() == hash {
                    found = Some(key.clone());
                }
            }
            if let Some(key) = found {
                return Ok(Caller::Key(key));
            }
        }

        match self.policy {
            KeyPolicy::Never => Ok(Caller::Anonymous(self.keyless)),
            KeyPolicy::IfConfigured if !self.had_key.load(Ordering::Relaxed) => {
                Ok(Caller::Anonymous(self.keyless))
            }
            KeyPolicy::Always | KeyPolicy::IfConfigured if has_secret => {
                Err(ApiError::unauthorized("the API key is unknown; `narthex key add NAME` creates one"))
            }
            KeyPolicy::Always | KeyPolicy::IfConfigured => Ok(Caller::Unauthenticated),
        }
    }

    /// Returns the gateway with the rights of a caller.
    pub(crate) fn gateway(&self, caller: &Caller) -> Gateway {
        let rights = match caller {
            Caller::Key(key) => key.rights(),
            Caller::Anonymous(_) => Arc::new(Rights { auto_pull: self.auto_pull, ..Rights::default() }),
            Caller::Unauthenticated => Arc::new(Rights { auto_pull: AutoPull::Never, ..Rights::default() }),
        };
        self.gateway.get().with_rights(rights)
    }

    /// Returns every key. Reads the key file again if it has changed; unchanged keys keep their counts. If the file
    /// cannot be read, the keys stay as they are.
    fn current(&self) -> Vec<Arc<KeyState>> {
        let mut file = self.file.lock();
        let gateway = self.gateway.get();
        let stamp = gateway.key_file_stamp();
        if stamp != file.stamp {
            let is_final = match gateway.keys() {
                Ok(keys) => {
                    let is_last_gone = self.fixed.is_empty() && keys.is_empty() && !file.keys.is_empty();
                    if is_last_gone && self.policy != KeyPolicy::Never {
                        tracing::warn!(
                            "all API keys were removed, and requests still require one; `narthex key add NAME` creates one"
                        );
                    }
                    file.keys = self.with_counts(keys, &file.keys);
                    true
                }
                Err(error) => {
                    tracing::error!("the API keys cannot be read again and remain unchanged: {error}");
                    error.kind() == ErrorKind::Malformed
                }
            };
            // After an error that may pass, the next request reads the file again.
            if is_final {
                file.stamp = stamp;
            }
        }

        let keys: Vec<_> = self.fixed.iter().chain(&file.keys).cloned().collect();
        if !keys.is_empty() {
            self.had_key.store(true, Ordering::Relaxed);
        }
        keys
    }

    fn with_counts(&self, keys: Vec<ApiKey>, before: &[Arc<KeyState>]) -> Vec<Arc<KeyState>> {
        let now = Instant::now();
        let states = keys.into_iter().map(|key| match before.iter().find(|known| known.is_of(&key)) {
            Some(known) => known.clone(),
            None => new_state(key, self.auto_pull, now),
        });
        states.collect()
    }
}

/// Returns the state of a key without requests.
fn new_state(key: ApiKey, auto_pull: AutoPull, now: Instant) -> Arc<KeyState> {
    let rights = rights(&key, auto_pull);
    Arc::new(KeyState::new(key, rights, now))
}

fn rights(key: &ApiKey, auto_pull: AutoPull) -> Rights {
    let auto_pull = match key.limits.role {
        KeyRole::User => auto_pull,
        KeyRole::Admin => AutoPull::Always,
    };
    Rights { models: key.limits.models.clone(), auto_pull }
}

/// Prefix of a WebSocket subprotocol that carries a key. A page that opens a WebSocket can set no other header.
const KEY_PROTOCOL: &str = "openai-insecure-api-key.";

/// Returns the secrets that a request presents, in the headers of OpenAI, Anthropic and Azure.
fn secrets(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, secret) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(secret.trim())
    });
    let protocols = text("sec-websocket-protocol").into_iter().flat_map(|names| names.split(','));
    let of_protocols = protocols.filter_map(|name| name.trim().strip_prefix(KEY_PROTOCOL));
    [bearer, text("x-api-key"), text("api-key")].into_iter().flatten().chain(of_protocols)
}

/// Returns the error of a caller without a required key.
pub(crate) fn key_missing() -> ApiError {
    ApiError::unauthorized("this server needs an API key; send it as Authorization: Bearer KEY")
}

/// Returns the error of a caller without admin rights.
pub(crate) fn admins_only(path: &str) -> ApiError {
    let message = format!("{path} needs the key of an admin; `narthex key add NAME --admin` creates one");
    ApiError::plain(StatusCode::FORBIDDEN, message).with_code("admin_only")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use narthex_gateway::{Cancel, Config, keys::KeyLimits};

    use super::*;

    #[test]
    fn secrets_are_read_from_every_header() {
        let check = |name: &'static str, value: &'static str, expect: &[&str]| {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            assert_eq!(secrets(&headers).collect::<Vec<_>>(), expect, "{name}: {value}");
        };
        check("authorization", "bearer  a ", &["a"]);
        check("authorization", "Basic a", &[]);
        check("x-api-key", "a", &["a"]);
        check("api-key", "a", &["a"]);
        check("sec-websocket-protocol", "realtime, openai-insecure-api-key.a,b", &["a"]);
        check("sec-websocket-protocol", "realtime", &[]);
    }

    #[test]
    fn a_key_file_that_is_lost_does_not_open_the_server() {
        let home = tempfile::tempdir().unwrap();
        let config = Config { home: Some(home.path().to_owned()), ..Config::standard() };
        let gateway = Gateway::open(config).unwrap();
        let open = |policy| {
            KeyRing::open(gateway.clone().into(), Vec::new(), policy, KeyRole::Admin, AutoPull::Never)
                .unwrap()
        };
        let without_key = |ring: &KeyRing| ring.caller(&HeaderMap::new()).unwrap();
        let ring = open(KeyPolicy::IfConfigured);
        assert!(without_key(&ring).is_admin());
        gateway.add_key("app", KeyLimits::default(), &Cancel::new()).unwrap();
        let late = open(KeyPolicy::IfConfigured);
        assert!(!without_key(&ring).is_known());
        fs::remove_file(home.path().join("keys.json")).unwrap();
        // Both the ring that saw the key arrive and the one that had it at its start still need a key.
        for ring in [&ring, &late] {
            assert!(!without_key(ring).is_known() && ring.current().is_empty());
        }
        assert!(without_key(&open(KeyPolicy::IfConfigured)).is_admin(), "a new server has no key");
    }
}
