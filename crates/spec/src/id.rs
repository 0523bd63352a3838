//! Newtypes for ids and names.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::Digest;

use crate::name::string_form;

/// Id of a token in a model's vocabulary.
pub type TokenId = u32;

/// A row of the KV cache, numbered from 0. One running sequence occupies one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlotId(pub u32);

impl SlotId {
    /// Returns the slot as an index into per-slot tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Name of a model as users type it: `smollm2:135m`, `all-minilm-l6-v2`. It is lower case and has only letters, digits
/// and `. _ - : /`, so that it is safe in a URL, and in a file name after `:` and `/` are replaced.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModelName(String);

/// A string that is not a [`ModelName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is not a model name: expected 1 to 200 of the characters a-z 0-9 . _ - : /, starting with a letter or digit"
)]
pub struct BadModelName {
    /// The string, shortened.
    pub found: String,
}

impl ModelName {
    /// Returns the name as typed, in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name with `:` and `/` replaced by `--`, for use as one path component on every platform. Names that
    /// Windows reserves for devices or shortens get underscores, with which no other name begins.
    pub fn file_stem(&self) -> String {
        let stem = self.0.replace([':', '/'], "--");
        match stem.ends_with('.') {
            true => format!("__{stem}_"),
            false if is_device_of_windows(&stem) => format!("_{stem}"),
            false => stem,
        }
    }
}

/// Returns true if Windows takes a file name in lower case for a device: `con`, `nul.txt`.
pub fn is_device_of_windows(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default();
    let number = stem.strip_prefix("com").or_else(|| stem.strip_prefix("lpt"));
    matches!(stem, "con" | "prn" | "aux" | "nul" | "conin$" | "conout$")
        || number.is_some_and(|number| matches!(number.as_bytes(), [b'0'..=b'9']))
}

impl FromStr for ModelName {
    type Err = BadModelName;

    fn from_str(text: &str) -> Result<Self, BadModelName> {
        let name = text.trim().to_ascii_lowercase();
        let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        if starts_well
            && name.len() <= 200
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-:/".contains(c))
            && !name.contains("..")
        {
            Ok(Self(name))
        } else {
            Err(BadModelName { found: text.chars().take(200).collect() })
        }
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A SHA-256 digest, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha256(pub [u8; 32]);

impl Sha256 {
    /// Returns the digest of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }
}

/// A string that is not a [`Sha256`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a SHA-256 digest: expected 64 hexadecimal digits")]
pub struct BadSha256 {
    /// The string, shortened.
    pub found: String,
}

impl BadSha256 {
    fn new(text: &str) -> Self {
        Self { found: text.chars().take(80).collect() }
    }
}

impl FromStr for Sha256 {
    type Err = BadSha256;

    fn from_str(text: &str) -> Result<Self, BadSha256> {
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(BadSha256::new(text));
        }
        let mut bytes = [0u8; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(pair).map_err(|_| BadSha256::new(text))?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| BadSha256::new(text))?;
        }
        Ok(Self(bytes))
    }
}

string_form!(ModelName);
string_form!(Sha256);

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_names_are_lower_cased_and_checked() {
        assert_eq!("SmolLM2:135M".parse::<ModelName>().unwrap().as_str(), "smollm2:135m");
        assert_eq!("a/b:c".parse::<ModelName>().unwrap().file_stem(), "a--b--c");
        for bad in ["", "-x", "../etc", "a b", "a\0", "é"] {
            assert!(bad.parse::<ModelName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn file_names_are_valid_on_windows() {
        let check =
            |name: &str, expect: &str| assert_eq!(name.parse::<ModelName>().unwrap().file_stem(), expect);
        check("con:nul", "con--nul");
        check("con", "_con");
        check("nul.txt", "_nul.txt");
        check("com1", "_com1");
        check("com10", "com10");
        check("console", "console");
        check("a.", "__a._");
        check("nul.", "__nul._");
        check("nul._", "_nul._");
    }

    #[test]
    fn digests_round_trip() {
        let text = "1f3dea47f2f0e5117c2404cea7d21fd253ae7836a3bf167a501cdfbb2600d536";
        assert_eq!(text.parse::<Sha256>().unwrap().to_string(), text);
        assert!("12".parse::<Sha256>().is_err());
        assert!(
            "+f3dea47f2f0e5117c2404cea7d21fd253ae7836a3bf167a501cdfbb2600d536".parse::<Sha256>().is_err()
        );
    }
}
