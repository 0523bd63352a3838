//! The tables `[keys.NAME]`, and the places of keys. The settings file never has a key itself, so that it can be shown.

use std::{env, num::NonZeroU32, path::PathBuf};

use anyhow::{Context, anyhow};
use narthex_gateway::{
    Error,
    keys::{self, ApiKey, KeyLimits, KeyRole},
};
use toml_edit::TableLike;

use super::{Entry, Reader, kind};
use crate::input_file;

/// Keys of a table of an API key.
const KEYS: &[&str] =
    &["key_env", "key_file", "admin", "models", "requests_per_minute", "tokens_per_minute", "concurrency"];

/// Place of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeySource {
    Variable(String),
    File(PathBuf),
}

/// A key, and the path of the setting that states its place.
pub(super) struct PlacedKey {
    pub(super) place: String,
    pub(super) text: String,
}

impl KeySource {
    /// Reads the key of a table such as `upstreams.box`.
    ///
    /// # Errors
    /// The place of the key, without its contents.
    pub(super) fn read(&self, table: &str) -> anyhow::Result<PlacedKey> {
        match self {
            Self::Variable(variable) => {
                let place = format!("{table}.key_env");
                let text = env::var(variable)
                    .map_err(|_| anyhow!("{place}: expected a key in the variable {variable}, found none"))?;
                Ok(PlacedKey { place, text })
            }
            Self::File(path) => {
                let place = format!("{table}.key_file");
                let text = input_file::text(path).with_context(|| place.clone())?;
                Ok(PlacedKey { place, text })
            }
        }
    }
}

/// A key that clients may send, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatedKey {
    source: KeySource,
    limits: KeyLimits,
}

impl StatedKey {
    /// Returns the key.
    ///
    /// # Errors
    /// The place of the key, without its contents.
    pub(crate) fn api_key(&self, name: &str) -> anyhow::Result<ApiKey> {
        let PlacedKey { place, text } = self.source.read(&format!("keys.{name}"))?;
        let key = ApiKey::from_secret(&place, text.trim(), self.limits.role).map_err(Error::from)?;
        Ok(ApiKey { name: name.to_owned(), limits: self.limits.clone(), ..key })
    }
}

impl Reader<'_> {
    pub(super) fn keys(&mut self, table: &dyn TableLike) {
        for (name, item) in table.iter() {
            let span = table.key(name).and_then(|key| key.span());
            let entry = Entry { table: "keys", key: name, item, key_span: span.as_ref() };
            if let Err(error) = keys::check_name(name) {
                self.fault(entry, None, error.to_string());
                continue;
            }
            match item.as_table_like() {
                Some(table) => self.api_key(entry, table),
                None => self.fault(entry, item.span(), format!("expected a table, found {}", kind(item))),
            }
        }
    }

    fn api_key(&mut self, key: Entry<'_>, table: &dyn TableLike) {
        let path = format!("keys.{}", key.key);
        let faults = self.faults.len();
        let mut source = None;
        let mut limits = KeyLimits::default();

        for (name, item) in table.iter() {
            let span = table.key(name).and_then(|key| key.span());
            let entry = Entry { table: &path, key: name, item, key_span: span.as_ref() };
            match name {
                "key_env" | "key_file" => self.key_source(entry, &mut source),
                "admin" if self.switch(entry) => limits.role = KeyRole::Admin,
                "admin" => {}
                "models" => {
                    let names = item.as_array().map(|list| {
                        list.iter().map(|name| name.as_str()?.parse().ok()).collect::<Option<_>>()
                    });
                    match names.flatten() {
                        Some(models) => limits.models = models,
                        None => {
                            let reason = format!("expected a list of names of models, found {}", kind(item));
                            self.fault(entry, item.span(), reason);
                        }
                    }
                }
                "requests_per_minute" => limits.requests_per_minute = self.limit(entry),
                "tokens_per_minute" => limits.tokens_per_minute = self.limit(entry),
                "concurrency" => limits.concurrency = self.limit(entry),
                _ => self.unknown_key(entry, KEYS),
            }
        }

        match source {
            Some(source) => {
                self.settings.keys.insert(key.key.to_owned(), StatedKey { source, limits });
            }
            None if self.faults.len() == faults => {
                self.fault(
                    key,
                    None,
                    "expected `key_env` or `key_file`, the place of the key, found neither",
                );
            }
            None => {}
        }
    }

    /// Reads the place of a key, of which a table has one.
    pub(super) fn key_source(&mut self, entry: Entry<'_>, source: &mut Option<KeySource>) {
        if source.is_some() {
            self.fault(entry, None, "expected only one of key_env and key_file, found both");
        } else if entry.key == "key_env" {
            *source = self.text_of(entry, "the name of a variable").map(KeySource::Variable);
        } else {
            *source = self.text_of(entry, "the path of a file").map(|path| KeySource::File(path.into()));
        }
    }

    /// Reads a number of at least one.
    fn limit(&mut self, entry: Entry<'_>) -> Option<NonZeroU32> {
        let count = entry.item.as_integer().and_then(|count| u32::try_from(count).ok()?.try_into().ok());
        if count.is_none() {
            let number = entry.item.as_integer().map(|count| count.to_string());
            let found = number.unwrap_or_else(|| kind(entry.item).to_owned());
            let reason = format!("expected a number of at least 1, found {found}");
            self.fault(entry, entry.item.span(), reason);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use narthex_gateway::keys::KeyHash;

    use super::{super::read, *};

    #[test]
    fn keys_have_places_rights_and_limits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "a-secret-of-sixteen\n").unwrap();
        let text = format!(
            "[keys.app]\nkey_file = {path:?}\nadmin = true\nmodels = [\"smollm2:135m\"]\n\
             requests_per_minute = 5\ntokens_per_minute = 6\nconcurrency = 7\n\
             [keys.other]\nkey_env = \"NARTHEX_NO_SUCH_KEY\"\n"
        );
        let settings = read(&text).unwrap();
        let key = settings.keys["app"].api_key("app").unwrap();
        assert_eq!((key.name.as_str(), key.hash), ("app", KeyHash::of("a-secret-of-sixteen")));
        let limits = KeyLimits {
            role: KeyRole::Admin,
            models: ["smollm2:135m".parse().unwrap()].into(),
            requests_per_minute: NonZeroU32::new(5),
            tokens_per_minute: NonZeroU32::new(6),
            concurrency: NonZeroU32::new(7),
        };
        assert_eq!(key.limits, limits);
        let missing = settings.keys["other"].api_key("other").unwrap_err().to_string();
        assert!(missing.starts_with("keys.other.key_env: expected a key in the variable"), "{missing}");
        std::fs::write(&path, "short").unwrap();
        let weak = settings.keys["app"].api_key("app").unwrap_err().to_string();
        assert!(weak.contains("keys.app.key_file") && !weak.contains("short"), "{weak}");
    }

    #[test]
    fn faults_of_keys_are_named_and_never_show_a_key() {
        let check = |text: &str, expect: &str| {
            let faults: Vec<String> = read(text).unwrap_err().iter().map(ToString::to_string).collect();
            assert_eq!(faults.len(), 1, "{faults:?}");
            assert!(faults[0].starts_with(expect) && !faults[0].contains("secret"), "{}", faults[0]);
        };
        check("[keys.app]\nkey = \"secret\"\n", "2:1: keys.app.key: expected one of key_env, key_file");
        check("[keys.app]\nadmin = true\n", "1:7: keys.app: expected `key_env` or `key_file`");
        check("[keys.app]\nkey_env = \"A\"\nkey_file = \"b\"\n", "3:1: keys.app.key_file: expected only one");
        check("[keys]\napp = \"secret\"\n", "2:7: keys.app: expected a table");
        check("[keys.\"a b\"]\nkey_env = \"A\"\n", "1:7: keys.a b: \"a b\" is not the name of a key");
        check("[keys.-a]\nkey_env = \"A\"\n", "1:7: keys.-a: \"-a\" is not the name of a key");
        let app = "[keys.app]\nkey_env = \"A\"\n";
        for (wrong, expect) in [
            ("admin = 1", "3:9: keys.app.admin: expected true or false"),
            ("models = [\"A b\"]", "3:10: keys.app.models: expected a list of names"),
            ("concurrency = 0", "3:15: keys.app.concurrency: expected a number of at least 1, found 0"),
            (
                "tokens_per_minute = \"many\"",
                "3:21: keys.app.tokens_per_minute: expected a number of at least 1",
            ),
        ] {
            check(&format!("{app}{wrong}\n"), expect);
        }
    }
}
