//! The tables `[upstreams.NAME]`, and the rules of models for them.

use std::time::Duration;

use anyhow::anyhow;
use narthex_gateway::{KeepAlive, UpstreamRule, UpstreamSettings};
use narthex_spec::ModelName;
use toml_edit::TableLike;

use super::{
    Entry, Reader,
    keys::{KeySource, PlacedKey},
    kind, scalar,
};

/// Keys of an upstream.
pub(super) const KEYS: &[&str] =
    &["url", "key_env", "key_file", "models", "connect_timeout", "timeout", "max_concurrent"];

/// An upstream of the settings file, without its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatedUpstream {
    pub(crate) settings: UpstreamSettings,
    pub(crate) key: Option<KeySource>,
}

impl StatedUpstream {
    /// Returns the settings with the key.
    ///
    /// # Errors
    /// The place of the key, without its contents.
    pub(crate) fn with_key(&self, name: &str) -> anyhow::Result<UpstreamSettings> {
        let Some(source) = &self.key else { return Ok(self.settings.clone()) };
        let PlacedKey { place, text } = source.read(&format!("upstreams.{name}"))?;
        let key = text.parse().map_err(|reason| anyhow!("{place}: {reason}"))?;
        Ok(UpstreamSettings { key: Some(key), ..self.settings.clone() })
    }
}

impl Reader<'_> {
    pub(super) fn upstreams(&mut self, table: &dyn TableLike) {
        for (name, item) in table.iter() {
            let span = table.key(name).and_then(|key| key.span());
            let entry = Entry { table: "upstreams", key: name, item, key_span: span.as_ref() };
            let parsed = name.parse::<ModelName>().ok();
            if !parsed.is_some_and(|parsed| parsed.as_str() == name && !name.contains(['/', ':'])) {
                let reason = "expected a name of the characters a-z 0-9 . _ -, found another one";
                self.fault(entry, None, reason);
                continue;
            }
            match item.as_table_like() {
                Some(table) => self.upstream(entry, table),
                None => self.fault(entry, item.span(), format!("expected a table, found {}", kind(item))),
            }
        }
    }

    fn upstream(&mut self, upstream: Entry<'_>, table: &dyn TableLike) {
        let path = format!("upstreams.{}", upstream.key);
        let faults = self.faults.len();
        let mut url = None;
        let mut key = None;
        let placeholder = "http://localhost".parse();
        let Ok(mut settings) = placeholder.map(UpstreamSettings::new) else { return };

        for (name, item) in table.iter() {
            let span = table.key(name).and_then(|key| key.span());
            let entry = Entry { table: &path, key: name, item, key_span: span.as_ref() };
            match name {
                "url" => {
                    let text = self.text_of(entry, "an address as in http://box.lan:8000/v1");
                    url = text.and_then(|text| self.parsed(entry, text.parse()));
                }
                "key_env" | "key_file" => self.key_source(entry, &mut key),
                "models" => self.upstream_models(entry, &mut settings),
                "connect_timeout" => self.time(entry, &mut settings.connect_timeout),
                "timeout" => self.time(entry, &mut settings.timeout),
                "max_concurrent" => {
                    let count = item.as_integer().and_then(|count| usize::try_from(count).ok());
                    match count.filter(|count| *count > 0) {
                        Some(count) => settings.max_concurrent = count,
                        None => self.fault(
                            entry,
                            item.span(),
                            format!("expected a number of at least 1, found {}", kind(item)),
                        ),
                    }
                }
                _ => self.unknown_key(entry, KEYS),
            }
        }

        match url {
            Some(url) => {
                let settings = UpstreamSettings { url, ..settings };
                self.settings.upstreams.insert(upstream.key.to_owned(), StatedUpstream { settings, key });
            }
            None if self.faults.len() == faults => {
                self.fault(upstream, None, "expected `url`, the address of the server's API, found none");
            }
            None => {}
        }
    }

    /// Reads names of models: a list, or a table with the upstream's own names.
    fn upstream_models(&mut self, entry: Entry<'_>, settings: &mut UpstreamSettings) {
        let listed = entry.item.as_array().and_then(|list| {
            let names = list.iter().map(|name| name.as_str().map(|name| (name.to_owned(), name.to_owned())));
            names.collect::<Option<_>>()
        });
        let mapped = entry.item.as_table_like().and_then(|table| {
            let names = table.iter().map(|(name, item)| Some((name.to_owned(), item.as_str()?.to_owned())));
            names.collect::<Option<_>>()
        });
        match listed.or(mapped) {
            Some(models) => settings.models = models,
            None => {
                let reason = format!(
                    "expected a list of names, or a table as in {{ big = \"llama3.1:70b\" }}, found {}",
                    kind(entry.item)
                );
                self.fault(entry, entry.item.span(), reason);
            }
        }
    }

    /// Reads a time that is longer than none.
    fn time(&mut self, entry: Entry<'_>, time: &mut Duration) {
        let text = entry.item.as_value().and_then(scalar);
        match text.and_then(|text| text.parse().ok()) {
            Some(KeepAlive::For(found)) if !found.is_zero() => *time = found,
            _ => {
                let reason = format!("expected a time as in 90s or 5m, found {}", kind(entry.item));
                self.fault(entry, entry.item.span(), reason);
            }
        }
    }

    /// Reads a rule of a model: `upstream` and `upstream_when`.
    pub(super) fn rule(&mut self, path: &str, table: &dyn TableLike) -> Option<UpstreamRule> {
        let faults = self.faults.len();
        let entry = |key| {
            let (found, item) = table.get_key_value(key)?;
            Some((found.span(), item))
        };
        let model = entry("upstream").and_then(|(span, item)| {
            let entry = Entry { table: path, key: "upstream", item, key_span: span.as_ref() };
            self.text_of(entry, "a model of an upstream, as in NAME/MODEL")
        });
        let conditions = entry("upstream_when");
        let when = conditions.clone().and_then(|(span, item)| {
            let entry = Entry { table: path, key: "upstream_when", item, key_span: span.as_ref() };
            let texts = item.as_array().map(|list| list.iter().map(scalar).collect::<Option<Vec<_>>>());
            let texts = texts.unwrap_or_else(|| item.as_str().map(|one| vec![one.to_owned()]));
            let parsed = texts.and_then(|texts| texts.iter().map(|text| text.parse().ok()).collect());
            if parsed.is_none() {
                let reason =
                    format!("expected busy, too-long, tools or unavailable in a list, found {}", kind(item));
                self.fault(entry, item.span(), reason);
            }
            parsed
        });

        if let (Some(model), Some(when)) = (&model, when) {
            return Some(UpstreamRule { model: model.clone(), when });
        }
        let one = entry("upstream").map(|found| ("upstream", found));
        if let Some((key, (span, item))) = one.or_else(|| conditions.map(|found| ("upstream_when", found)))
            && self.faults.len() == faults
        {
            let entry = Entry { table: path, key, item, key_span: span.as_ref() };
            self.fault(entry, None, "expected both `upstream` and `upstream_when`, found only one of them");
        }
        None
    }

    fn parsed<T>(&mut self, entry: Entry<'_>, parsed: Result<T, String>) -> Option<T> {
        parsed.map_err(|reason| self.fault(entry, entry.item.span(), reason)).ok()
    }
}

#[cfg(test)]
mod tests {
    use narthex_gateway::UpstreamCondition;

    use super::{super::read, *};

    #[test]
    fn upstreams_and_rules_are_read() {
        let settings = read(
            "[upstreams.box]\nurl = \"http://box.lan:8000/v1\"\nkey_env = \"BOX_KEY\"\n\
             models = { big = \"llama3.1:70b\" }\ntimeout = \"90s\"\nconnect_timeout = 2\nmax_concurrent = 3\n\
             [upstreams.cloud]\nurl = \"https://api.example/v1\"\nkey_file = \"/run/key\"\nmodels = [\"gpt-4o\"]\n\
             [models.\"smollm2:135m\"]\nupstream = \"box/big\"\nupstream_when = [\"busy\", \"too-long\"]\n",
        )
        .unwrap();
        let upstream = &settings.upstreams["box"];
        assert_eq!(upstream.key, Some(KeySource::Variable("BOX_KEY".to_owned())));
        let UpstreamSettings { url, models, connect_timeout, timeout, max_concurrent, key } =
            upstream.settings.clone();
        assert_eq!((url.to_string().as_str(), key), ("http://box.lan:8000/v1", None));
        assert_eq!((models["big"].as_str(), max_concurrent), ("llama3.1:70b", 3));
        assert_eq!((timeout.as_secs(), connect_timeout.as_secs()), (90, 2));
        assert_eq!(settings.upstreams["cloud"].settings.models["gpt-4o"], "gpt-4o");
        let when = [UpstreamCondition::Busy, UpstreamCondition::TooLong].into();
        let rule = UpstreamRule { model: "box/big".to_owned(), when };
        assert_eq!(settings.models["smollm2:135m"].upstream, Some(rule));
    }

    #[test]
    fn faults_of_upstreams_are_named_and_never_show_a_key() {
        let check = |text: &str, expect: &str| {
            let faults: Vec<String> = read(text).unwrap_err().iter().map(ToString::to_string).collect();
            assert_eq!(faults.len(), 1, "{faults:?}");
            assert!(faults[0].starts_with(expect) && !faults[0].contains("secret"), "{}", faults[0]);
        };
        check(
            "[upstreams.box]\nkey = \"secret\"\nurl = \"http://box\"\n",
            "2:1: upstreams.box.key: expected one of",
        );
        check(
            "[upstreams.box]\nurl = \"http://u:secret@box\"\n",
            "2:7: upstreams.box.url: expected an address",
        );
        check("[upstreams.box]\nmodels = []\n", "1:12: upstreams.box: expected `url`");
        check("[upstreams.\"a/b\"]\nurl = \"http://box\"\n", "1:12: upstreams.a/b: expected a name");
        check("[upstreams]\nbox = \"http://box\"\n", "2:7: upstreams.box: expected a table");
        check(
            "[upstreams.box]\nurl = \"http://box\"\nkey_env = \"A\"\nkey_file = \"b\"\n",
            "4:1: upstreams.box.key_file: expected only one",
        );
        let model = "[models.\"smollm2:135m\"]\n";
        check(
            &format!("{model}upstream = \"box/big\"\n"),
            "2:1: models.\"smollm2:135m\".upstream: expected both",
        );
        check(
            &format!("{model}upstream = \"box/big\"\nupstream_when = [\"never\"]\n"),
            "3:17: models.\"smollm2:135m\".upstream_when: expected busy",
        );
    }

    #[test]
    fn keys_come_from_files_and_variables() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "secret-1\n").unwrap();
        let settings = UpstreamSettings::new("http://box".parse().unwrap());
        let stated = |key| StatedUpstream { settings: settings.clone(), key: Some(key) };
        let read = stated(KeySource::File(path.clone())).with_key("box").unwrap();
        assert_eq!(read.key.as_ref().unwrap().secret(), "secret-1");
        assert!(!format!("{read:?}").contains("secret-1"));

        std::fs::write(&path, "secret 1").unwrap();
        for key in [KeySource::File(path), KeySource::Variable("NARTHEX_NO_SUCH_KEY".to_owned())] {
            let error = format!("{:#}", stated(key).with_key("box").unwrap_err());
            assert!(error.starts_with("upstreams.box.key_") && !error.contains("secret"), "{error}");
        }
    }
}
