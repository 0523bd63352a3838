//! API keys: their secrets, hashes, limits, and the file that lists them. [`crate::store::Store`] reads and writes the
//! file.
//! A secret has 192 random bits, so a plain BLAKE3 hash of it resists search. The file stores only the hash.

use std::{collections::BTreeSet, fmt, num::NonZeroU32, time::SystemTime};

use narthex_spec::ModelName;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::Error;

/// Variable with one key.
pub const KEY_VARIABLE: &str = "NARTHEX_API_KEY";

/// Variable with several keys, separated by commas or spaces.
pub const KEYS_VARIABLE: &str = "NARTHEX_API_KEYS";

/// Variable with the path of a file that has a key on each line.
pub const KEY_FILE_VARIABLE: &str = "NARTHEX_API_KEY_FILE";

/// Variable with the key of an admin.
pub const ADMIN_KEY_VARIABLE: &str = "NARTHEX_ADMIN_KEY";

/// Variables that hold secrets; subprocesses do not inherit them.
pub const SECRET_VARIABLES: [&str; 5] =
    [KEY_VARIABLE, KEYS_VARIABLE, ADMIN_KEY_VARIABLE, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];

/// Maximum size of a key file in bytes.
pub(crate) const FILE_LIMIT: u64 = 4 << 20;

/// Maximum number of keys in a file.
const MAX_KEYS: usize = 10_000;

/// Start of every secret that is created here.
const PREFIX: &str = "nx-";

/// Number of random bytes in a secret.
const SECRET_BYTES: usize = 24;

/// Minimum length in characters of a secret that a user chose.
const MIN_SECRET: usize = 16;

/// Maximum length of a secret in characters.
const MAX_SECRET: usize = 512;

/// Version of the file format.
const VERSION: u32 = 1;

/// Secret of a key, shown once.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// Creates a secret from the system's random numbers.
    ///
    /// # Errors
    /// [`Error::NoRandomness`] if the system has none.
    pub(crate) fn random() -> Result<Self, Error> {
        let mut bytes = [0; SECRET_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| Error::NoRandomness { reason: error.to_string() })?;
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        Ok(Self([PREFIX.to_owned()].into_iter().chain(digits).collect()))
    }

    /// Returns the text that a client sends.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// The BLAKE3 hash of a secret. Comparison takes constant time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(blake3::Hash);

impl KeyHash {
    /// Returns the hash of a secret.
    pub fn of(secret: &str) -> Self {
        Self(blake3::hash(secret.as_bytes()))
    }
}

impl Serialize for KeyHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_hex())
    }
}

impl<'de> Deserialize<'de> for KeyHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parsed = blake3::Hash::from_hex(&text);
        parsed.map(Self).map_err(|_| de::Error::custom("expected a hash of 64 hexadecimal digits"))
    }
}

/// Rights of a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyRole {
    /// Requests to models.
    #[default]
    User,
    /// Metrics, and requests that download and compile models, too.
    Admin,
}

/// Rights and limits of a key. An empty set of models allows every model; a missing limit means no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyLimits {
    /// Rights.
    #[serde(default)]
    pub role: KeyRole,
    /// Models that the key may use.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub models: BTreeSet<ModelName>,
    /// Maximum number of requests per minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<NonZeroU32>,
    /// Maximum number of prompt and generated tokens per minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<NonZeroU32>,
    /// Maximum number of concurrent answers. Each choice for each prompt of a request counts as one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<NonZeroU32>,
}

/// A key without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKey {
    /// Name that the user gave it.
    pub name: String,
    /// Hash of its secret.
    pub hash: KeyHash,
    /// Time of its creation in seconds since 1970.
    pub created: u64,
    /// Rights and limits.
    pub limits: KeyLimits,
}

impl ApiKey {
    /// Creates a key without limits for a secret that the user chose.
    ///
    /// # Errors
    /// [`Error::WeakSecret`] for fewer than 16 or more than 512 characters, or characters that a header cannot carry.
    pub fn from_secret(name: &str, secret: &str, role: KeyRole) -> Result<Self, Error> {
        let is_visible = secret.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_visible || !(MIN_SECRET..=MAX_SECRET).contains(&secret.len()) {
            return Err(Error::WeakSecret { origin: name.to_owned() });
        }
        let limits = KeyLimits { role, ..KeyLimits::default() };
        Ok(Self { name: name.to_owned(), hash: KeyHash::of(secret), created: 0, limits })
    }
}

/// State of the key file on disk, which changes whenever the file is replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFileStamp {
    pub(crate) modified: Option<SystemTime>,
    pub(crate) bytes: u64,
    pub(crate) inode: u64,
}

/// Checks that a string can name a key.
///
/// # Errors
/// The name is not 1 to 64 letters, digits, `.`, `_` and `-`: [`Error::BadKeyName`].
pub fn check_name(name: &str) -> Result<(), Error> {
    if (1..=64).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        && !name.starts_with('-')
    {
        return Ok(());
    }
    Err(Error::BadKeyName { found: name.chars().take(200).collect() })
}

/// The key file as JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireKeys {
    version: u32,
    keys: Vec<ApiKey>,
}

/// Reads the bytes of a key file.
///
/// # Errors
/// The reason if the bytes are not a key file.
pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<ApiKey>, String> {
    let file: WireKeys = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if file.version != VERSION {
        return Err(format!("expected version {VERSION}, found {}", file.version));
    }
    if file.keys.len() > MAX_KEYS {
        return Err(format!("expected at most {MAX_KEYS} keys, found {}", file.keys.len()));
    }
    let mut names = BTreeSet::new();
    for key in &file.keys {
        check_name(&key.name).map_err(|error| error.to_string())?;
        if !names.insert(key.name.as_str()) {
            return Err(format!("two keys are called {:?}", key.name));
        }
    }
    Ok(file.keys)
}

/// Returns the bytes of a key file.
pub(crate) fn encode(keys: Vec<ApiKey>) -> Vec<u8> {
    let file = WireKeys { version: VERSION, keys };
    // Serialising strings and numbers cannot fail.
    serde_json::to_vec_pretty(&file).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_long_random_and_hidden() {
        let [a, b] = [Secret::random().unwrap(), Secret::random().unwrap()];
        assert!(a != b && a.expose().starts_with("nx-") && a.expose().len() == 51, "{}", a.expose());
        assert!(!format!("{a:?}").contains(&a.expose()[3..]));
        ApiKey::from_secret("x", a.expose(), KeyRole::User).unwrap();
        assert_eq!(KeyHash::of(a.expose()), KeyHash::of(a.expose()));
        assert_ne!(KeyHash::of(a.expose()), KeyHash::of(b.expose()));
    }

    #[test]
    fn secrets_of_the_user_are_checked() {
        for secret in
            ["", "short", "fifteen-letters", "with a space in between", "n\u{f6}n-ascii-but-long-enough"]
        {
            let error = ApiKey::from_secret("NARTHEX_API_KEY", secret, KeyRole::User).unwrap_err();
            assert!(error.to_string().starts_with("NARTHEX_API_KEY"), "{error}");
            assert!(
                secret.is_empty() || !error.to_string().contains(secret),
                "the error shows the secret: {error}"
            );
        }
    }

    #[test]
    fn files_are_read_as_they_were_written() {
        let limits = KeyLimits {
            role: KeyRole::Admin,
            models: ["smollm2:135m".parse().unwrap()].into(),
            requests_per_minute: NonZeroU32::new(60),
            ..KeyLimits::default()
        };
        let hash = KeyHash::of("nx-0123456789abcdef");
        let keys = vec![
            ApiKey { name: "app".to_owned(), hash, created: 7, limits },
            ApiKey { name: "b.2".to_owned(), hash, created: 8, limits: KeyLimits::default() },
        ];
        let bytes = encode(keys.clone());
        assert!(!String::from_utf8(bytes.clone()).unwrap().contains("nx-0123456789abcdef"));
        assert_eq!(parse(&bytes).unwrap(), keys);
    }

    #[test]
    fn malformed_files_are_refused_with_a_reason() {
        let hash = "0".repeat(64);
        let key = |name: &str, rest: &str| {
            format!(r#"{{"name":"{name}","hash":"{hash}","created":1,"limits":{{{rest}}}}}"#)
        };
        let file =
            |version: u32, keys: &[String]| format!(r#"{{"version":{version},"keys":[{}]}}"#, keys.join(","));
        let check = |text: &str, expect: &str| {
            let reason = parse(text.as_bytes()).unwrap_err();
            assert!(reason.contains(expect), "{text}: {reason}");
        };
        parse(file(1, &[key("a", "")]).as_bytes()).unwrap();
        check("", "EOF");
        check("[]", "expected");
        check(&file(2, &[]), "expected version 1, found 2");
        check(&file(1, &[key("a", ""), key("a", "")]), "two keys are called \"a\"");
        check(&file(1, &[key("a b", "")]), "name of a key");
        check(&file(1, &[key("a", r#""role":"root""#)]), "unknown variant");
        check(&file(1, &[key("a", r#""requests_per_minute":0"#)]), "nonzero");
        check(&file(1, &[key("a", r#""model":[]"#)]), "unknown field");
        check(&file(1, &[key("a", r#""models":["../x"]"#)]), "not a model name");
        check(&file(1, &[key("a", "").replace(&hash, "00")]), "64 hexadecimal digits");
    }
}
