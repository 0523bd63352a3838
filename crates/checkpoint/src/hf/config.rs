//! `config.json`: a model's class and its keys, which the families interpret.

use std::path::{Path, PathBuf};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{CONFIG, folder::Folder};
use crate::{
    error::{CheckpointError, Result},
    limits::malformed,
    packed::PackedFormat,
};

/// A folder's `config.json`.
#[derive(Debug)]
pub struct Config {
    path: PathBuf,
    keys: Value,
    class: ClassKeys,
}

/// Keys of `config.json` that do not depend on the model's class.
#[derive(Debug, Deserialize)]
struct ClassKeys {
    architectures: Option<Vec<String>>,
    model_type: Option<String>,
    #[serde(alias = "compression_config")]
    quantization_config: Option<Value>,
    #[serde(flatten)]
    ids: TokenIds,
}

/// Ids of special tokens, in `config.json` and `generation_config.json`.
#[derive(Debug, Default, Clone, Deserialize)]
pub struct TokenIds {
    /// `bos_token_id`.
    pub bos_token_id: Option<OneOrMore>,
    /// `eos_token_id`.
    pub eos_token_id: Option<OneOrMore>,
    /// `pad_token_id`.
    pub pad_token_id: Option<OneOrMore>,
}

/// One id or several. They are signed because some files write -1 for "no token".
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum OneOrMore {
    /// One id.
    One(i64),
    /// Several ids.
    More(Vec<i64>),
}

impl OneOrMore {
    /// Returns the ids that are valid token ids.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        let ids = match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::More(ids) => ids,
        };
        ids.iter().filter_map(|&id| u32::try_from(id).ok())
    }
}

impl Config {
    /// Reads `config.json`.
    pub fn read(folder: &mut Folder) -> Result<Self> {
        let path = folder.file(CONFIG);
        match folder.json(CONFIG, EXPECTED)? {
            Some(keys) => Self::new(path, keys),
            None => Err(CheckpointError::Read { path, source: std::io::ErrorKind::NotFound.into() }),
        }
    }

    /// Creates the configuration from the keys of the file at `path`.
    pub fn new(path: PathBuf, keys: Value) -> Result<Self> {
        match ClassKeys::deserialize(&keys) {
            Ok(class) => Ok(Self { path, keys, class }),
            Err(error) => Err(malformed(&path, EXPECTED, error)),
        }
    }

    /// Returns the path of the file, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the configuration with `changes` applied to its keys.
    pub(crate) fn with(&self, changes: Value) -> Result<Self> {
        let mut keys = self.keys.clone();
        if let (Value::Object(keys), Value::Object(changes)) = (&mut keys, changes) {
            keys.extend(changes);
        }
        Self::new(self.path.clone(), keys)
    }

    /// Returns the ids of special tokens, for tokenizers that do not state them.
    pub fn ids(&self) -> &TokenIds {
        &self.class.ids
    }

    /// Returns `model_type`, if the file states it.
    pub(crate) fn model_type(&self) -> Option<&str> {
        self.class.model_type.as_deref()
    }

    /// Returns the format of packed weights, if the file states one.
    ///
    /// # Errors
    /// The error for a format that is not read.
    pub(crate) fn packed_format(&self) -> Result<Option<PackedFormat>> {
        let format = self.class.quantization_config.as_ref().map(PackedFormat::of).transpose();
        format.map_err(|error| error.in_file(&self.path))
    }

    /// Returns the model's class, if the file states it.
    pub fn class(&self) -> Option<&str> {
        self.class.architectures.as_ref()?.first().map(String::as_str)
    }

    /// Deserializes the keys that a family reads.
    pub fn keys<T: DeserializeOwned>(&self) -> Result<T> {
        T::deserialize(&self.keys).map_err(|error| {
            let error = error.to_string();
            match error.strip_prefix("missing field ") {
                Some(key) => malformed(&self.path, format!("the key {}", key.replace('`', "")), "none"),
                None => malformed(&self.path, EXPECTED, error),
            }
        })
    }

    /// Returns the configuration of a part of the file, or `None` if the file has no such part.
    pub(crate) fn section(&self, name: &str) -> Result<Option<Self>> {
        let Some(keys) = self.keys.get(name).filter(|keys| keys.is_object()) else { return Ok(None) };
        Self::new(self.path.clone(), keys.clone()).map(Some)
    }

    /// Returns the configuration of a part of the file, such as a multimodal model's text part. If the file has no such
    /// part, the whole file is used. `defaults` has values for keys that published files leave out.
    pub fn part(&self, name: &str, defaults: Value) -> Result<Self> {
        let mut keys = defaults;
        let stated = self.keys.get(name).unwrap_or(&self.keys);
        if let (Value::Object(keys), Value::Object(stated)) = (&mut keys, stated) {
            keys.extend(stated.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        Self::new(self.path.clone(), keys)
    }
}

#[cfg(test)]
impl Config {
    /// Returns a configuration with some keys changed.
    pub fn changed(mut keys: Value, changes: &Value) -> Result<Self> {
        if let (Value::Object(keys), Value::Object(changes)) = (&mut keys, changes) {
            keys.extend(changes.clone());
        }
        Self::new("config.json".into(), keys)
    }
}

/// Expected content of `config.json`, for errors.
const EXPECTED: &str = "the configuration of a language model or encoder";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_come_alone_or_in_lists() {
        let check = |value: Value, expect: &[u32]| {
            let found: OneOrMore = serde_json::from_value(value).unwrap();
            assert_eq!(found.ids().collect::<Vec<_>>(), expect);
        };
        check(json!(2), &[2]);
        check(json!([2, 3]), &[2, 3]);
        check(json!(-1), &[]);
    }
}
