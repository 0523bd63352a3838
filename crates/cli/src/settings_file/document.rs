//! Reading of the settings file, with the position of every fault.

mod keys;
mod upstreams;

use std::{collections::BTreeMap, fmt, ops::Range, path::PathBuf};

use narthex_gateway::{AnswerSettings, KeepAlive, LoadSettings, ModelSettings};
use narthex_spec::{ToolFormat, manifest::PublishedSampling};
use toml_edit::{Document, Item, Table, TableLike, Value};

use self::{keys::StatedKey, upstreams::StatedUpstream};
use super::tables::{self, Setting, SettingValue, TABLES};
use crate::settings::bytes;

/// Keys of a model that are not options of the command line.
const OTHER_MODEL_KEYS: &[&str] = &["from", "system", "pin", "preload", "upstream", "upstream_when"];

/// Tables whose keys are names.
const OTHER_TABLES: [&str; 4] = ["aliases", "models", "upstreams", "keys"];

/// Content of the settings file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    /// Options of the command line.
    pub(crate) options: Vec<Setting>,
    /// Additional names, each with the name of a model.
    pub(crate) aliases: BTreeMap<String, String>,
    /// Settings of single models.
    pub(crate) models: BTreeMap<String, ModelSettings>,
    /// Formats of tool calls of single models.
    pub(crate) tool_formats: BTreeMap<String, ToolFormat>,
    /// Models that `serve` loads when it starts.
    pub(crate) preloaded: Vec<String>,
    /// Other servers that answer requests.
    pub(crate) upstreams: BTreeMap<String, StatedUpstream>,
    /// Keys that clients of a server may send.
    pub(crate) keys: BTreeMap<String, StatedKey>,
}

/// A fault of the settings file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Line, from 1.
    pub(crate) line: usize,
    /// Column in characters, from 1.
    pub(crate) column: usize,
    /// Path of the key, such as `limits.slots`; empty for a fault of the syntax.
    pub(crate) key: String,
    /// Reason, with the expected and the found value.
    pub(crate) reason: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.key.is_empty() { "" } else { ": " };
        write!(f, "{}:{}: {}{separator}{}", self.line, self.column, self.key, self.reason)
    }
}

/// Faults of a settings file.
#[derive(Debug)]
pub(crate) struct BadSettings {
    pub(crate) path: PathBuf,
    pub(crate) faults: Vec<Fault>,
}

impl fmt::Display for BadSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{}:{fault}", self.path.display())?;
        }
        Ok(())
    }
}

impl std::error::Error for BadSettings {}

/// Reads the settings.
///
/// # Errors
/// Every fault, in the order of the file.
pub(crate) fn read(text: &str) -> Result<Settings, Vec<Fault>> {
    let document = Document::parse(text).map_err(|error| {
        let position = position(text, error.span());
        let reason = error.message().trim().replace('\n', ", ");
        vec![Fault { line: position.line, column: position.column, key: String::new(), reason }]
    })?;
    let mut reader = Reader { text, settings: Settings::default(), faults: Vec::new() };
    reader.root(document.as_table());
    reader.faults.sort_by_key(|fault| (fault.line, fault.column));
    if reader.faults.is_empty() { Ok(reader.settings) } else { Err(reader.faults) }
}

/// A position in a text, each number from 1.
struct Position {
    line: usize,
    column: usize,
}

fn position(text: &str, span: Option<Range<usize>>) -> Position {
    let start = span.map_or(0, |span| span.start).min(text.len());
    let before = text.get(..start).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    Position { line, column }
}

struct Reader<'a> {
    text: &'a str,
    settings: Settings,
    faults: Vec<Fault>,
}

/// A key with its value and their place in the file.
#[derive(Clone, Copy)]
struct Entry<'a> {
    table: &'a str,
    key: &'a str,
    item: &'a Item,
    key_span: Option<&'a Range<usize>>,
}

impl Reader<'_> {
    fn fault(&mut self, entry: Entry<'_>, span: Option<Range<usize>>, reason: impl Into<String>) {
        let Position { line, column } = position(self.text, span.or_else(|| entry.key_span.cloned()));
        let separator = if entry.table.is_empty() { "" } else { "." };
        let key = format!("{}{separator}{}", entry.table, entry.key);
        self.faults.push(Fault { line, column, key, reason: reason.into() });
    }

    fn root(&mut self, root: &Table) {
        for (name, item) in root.iter() {
            let span = root.key(name).and_then(|key| key.span());
            let entry = Entry { table: "", key: name, item, key_span: span.as_ref() };
            let keys = TABLES.iter().find(|(table, _)| *table == name).map(|(_, keys)| *keys);
            if keys.is_none() && !OTHER_TABLES.contains(&name) {
                let tables = TABLES.iter().map(|(table, _)| *table).chain(OTHER_TABLES);
                let names: Vec<String> = tables.map(|table| format!("[{table}]")).collect();
                let table = TABLES.iter().find(|(_, keys)| keys.contains(&name));
                let hint = table.map(|(table, _)| format!("; `{name}` belongs in [{table}]"));
                let reason = format!(
                    "expected one of {}, found `{name}`{}",
                    names.join(", "),
                    hint.unwrap_or_default()
                );
                self.fault(entry, None, reason);
                continue;
            }

            let Some(table) = item.as_table_like() else {
                self.fault(entry, None, format!("expected a table, found {}", kind(item)));
                continue;
            };
            match (name, keys) {
                (_, Some(keys)) => self.options(name, table, keys),
                ("aliases", None) => self.aliases(table),
                ("upstreams", None) => self.upstreams(table),
                ("keys", None) => self.keys(table),
                _ => self.models(table),
            }
        }
    }

    fn options(&mut self, name: &str, table: &dyn TableLike, keys: &[&str]) {
        for (key, item) in table.iter() {
            let span = table.key(key).and_then(|key| key.span());
            let entry = Entry { table: name, key, item, key_span: span.as_ref() };
            if !keys.contains(&key) {
                self.unknown_key(entry, keys);
                continue;
            }
            if let Some(setting) = self.setting(entry, "serve") {
                self.settings.options.push(setting);
            }
        }
    }

    fn unknown_key(&mut self, entry: Entry<'_>, keys: &[&str]) {
        let table = TABLES.iter().find(|(table, keys)| *table != entry.table && keys.contains(&entry.key));
        let hint = table.map(|(table, _)| format!("; it belongs in [{table}]")).unwrap_or_default();
        let reason = format!("expected one of {}, found `{}`{hint}", keys.join(", "), entry.key);
        self.fault(entry, None, reason);
    }

    /// Reads a key that is an option of a command.
    fn setting(&mut self, entry: Entry<'_>, command: &str) -> Option<Setting> {
        let Some(value) = setting_value(entry.item) else {
            let reason =
                format!("expected a text, a number, true, false or a list, found {}", kind(entry.item));
            self.fault(entry, entry.item.span(), reason);
            return None;
        };
        let setting = Setting { key: entry.key.to_owned(), value };
        match setting.check(command) {
            Ok(()) => Some(setting),
            Err(reason) => {
                self.fault(entry, entry.item.span(), reason);
                None
            }
        }
    }

    fn aliases(&mut self, table: &dyn TableLike) {
        for (name, item) in table.iter() {
            let span = table.key(name).and_then(|key| key.span());
            let entry = Entry { table: "aliases", key: name, item, key_span: span.as_ref() };
            if let Some(model) = self.text_of(entry, "the name of a model") {
                self.settings.aliases.insert(name.to_owned(), model);
            }
        }
    }

    fn text_of(&mut self, entry: Entry<'_>, expected: &str) -> Option<String> {
        let text = entry.item.as_str().map(str::trim).filter(|text| !text.is_empty());
        if text.is_none() {
            let reason = format!("expected {expected}, found {}", kind(entry.item));
            self.fault(entry, entry.item.span(), reason);
        }
        text.map(str::to_owned)
    }

    fn models(&mut self, table: &dyn TableLike) {
        for (name, item) in table.iter() {
            let span = table.key(name).and_then(|key| key.span());
            let entry = Entry { table: "models", key: name, item, key_span: span.as_ref() };
            match item.as_table_like() {
                Some(table) => self.model(name, table),
                None => self.fault(entry, item.span(), format!("expected a table, found {}", kind(item))),
            }
        }
    }

    fn model(&mut self, name: &str, table: &dyn TableLike) {
        let path = format!("models.\"{name}\"");
        let has_source = table.contains_key("from");
        let mut settings = ModelSettings::default();
        let mut loading = Vec::new();
        let mut answers = Vec::new();

        for (key, item) in table.iter() {
            let span = table.key(key).and_then(|key| key.span());
            let entry = Entry { table: &path, key, item, key_span: span.as_ref() };
            let of_model = ["pin", "preload", "upstream", "upstream_when"];
            let belongs_to_model = tables::LOADING.contains(&key) || of_model.contains(&key);
            if belongs_to_model && has_source {
                let reason = "expected only `from`, `system` and sampling in a custom model, found a setting of loading; \
                              set it for the model that answers";
                self.fault(entry, None, reason);
                continue;
            }
            match key {
                "from" => settings.from = self.text_of(entry, "the name of a model"),
                "system" => settings.answers.system = self.text_of(entry, "a text"),
                "pin" => settings.residence.pinned = self.switch(entry),
                "preload" if self.switch(entry) => self.settings.preloaded.push(name.to_owned()),
                "preload" | "upstream" | "upstream_when" => {}
                _ if tables::LOADING.contains(&key) => loading.extend(self.setting(entry, "serve")),
                _ if tables::ANSWERS.contains(&key) => answers.extend(self.setting(entry, "chat")),
                _ => {
                    let keys = [OTHER_MODEL_KEYS, tables::ANSWERS, tables::LOADING].concat();
                    self.unknown_key(entry, &keys);
                }
            }
        }

        if !has_source {
            settings.upstream = self.rule(&path, table);
        }
        let span = table.iter().next().and_then(|(key, _)| table.key(key).and_then(|key| key.span()));
        let entry = Entry { table: "models", key: name, item: &Item::None, key_span: span.as_ref() };
        match load_settings(&loading) {
            Ok(loaded) => {
                settings.load = loaded.load;
                settings.residence.keep_alive = loaded.keep_alive;
                self.settings.tool_formats.extend(loaded.tool_format.map(|format| (name.to_owned(), format)));
            }
            Err(reason) => self.fault(entry, None, reason),
        }
        match answer_settings(&answers) {
            Ok(stated) => settings.answers = AnswerSettings { system: settings.answers.system, ..stated },
            Err(reason) => self.fault(entry, None, reason),
        }
        self.settings.models.insert(name.to_owned(), settings);
    }

    fn switch(&mut self, entry: Entry<'_>) -> bool {
        let value = entry.item.as_bool();
        if value.is_none() {
            self.fault(
                entry,
                entry.item.span(),
                format!("expected true or false, found {}", kind(entry.item)),
            );
        }
        value.unwrap_or_default()
    }
}

/// Settings for loading a model, as options of `serve` state them.
struct StatedLoading {
    load: LoadSettings,
    keep_alive: Option<KeepAlive>,
    tool_format: Option<ToolFormat>,
}

fn load_settings(settings: &[Setting]) -> Result<StatedLoading, String> {
    let serve = tables::serve_args(settings)?;
    let is_stated = |key: &str| settings.iter().any(|setting| setting.key == key);
    Ok(StatedLoading {
        keep_alive: serve.keep_alive,
        tool_format: serve.tool_format.first().map(|one| one.format),
        load: LoadSettings {
            scheme: serve.load.load.scheme,
            providers: is_stated("providers").then_some(serve.load.load.providers),
            place: serve.load.place,
            device_map: serve.load.load.device_map,
            context: serve.load.context,
            kv_budget: serve.load.kv_budget.map(bytes),
            kv_cache_dtype: is_stated("kv_cache_dtype").then_some(serve.load.kv_cache_dtype),
        },
    })
}

fn answer_settings(settings: &[Setting]) -> Result<AnswerSettings, String> {
    let stated = tables::sampling_args(settings)?;
    let sampling = PublishedSampling {
        temperature: stated.temperature,
        top_p: stated.top_p,
        top_k: stated.top_k,
        min_p: stated.min_p,
        repetition_penalty: stated.repeat_penalty,
    };
    if sampling != sampling.within_ranges() {
        return Err(
            "expected a temperature from 0 to 2, top_p above 0 to 1, min_p from 0 to 1 and repeat_penalty from \
                    0.01 to 100, found a value outside"
                .to_owned(),
        );
    }
    Ok(AnswerSettings { system: None, sampling, stop: stated.stop })
}

fn setting_value(item: &Item) -> Option<SettingValue> {
    match item.as_value()? {
        Value::Boolean(switch) => Some(SettingValue::Switch(*switch.value())),
        Value::Array(values) => values.iter().map(scalar).collect::<Option<_>>().map(SettingValue::Several),
        value => scalar(value).map(SettingValue::One),
    }
}

/// Returns the text of a string or a number.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.value().clone()),
        Value::Integer(number) => Some(number.value().to_string()),
        Value::Float(number) => Some(number.value().to_string()),
        _ => None,
    }
}

/// Returns the kind of a value, for messages.
fn kind(item: &Item) -> &'static str {
    match item {
        Item::None => "nothing",
        Item::Table(_) | Item::Value(Value::InlineTable(_)) => "a table",
        Item::ArrayOfTables(_) => "a list of tables",
        Item::Value(Value::String(text)) if text.value().trim().is_empty() => "an empty text",
        Item::Value(Value::String(_)) => "a text",
        Item::Value(Value::Integer(_) | Value::Float(_)) => "a number",
        Item::Value(Value::Boolean(_)) => "true or false",
        Item::Value(Value::Datetime(_)) => "a date",
        Item::Value(Value::Array(_)) => "a list",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use narthex_gateway::ResidenceSettings;
    use narthex_spec::Scheme;

    use super::*;

    #[test]
    fn a_whole_file_is_read() {
        let settings = read(
            "[server]\nport = 9000\ncors_origin = [\"https://a.example\"]\ntruncate = true\n\
             [limits]\nslots = 2\nkeep_alive = \"5m\"\n\
             [aliases]\n\"gpt-4o\" = \"smollm2:135m\"\n\
             [models.\"smollm2:135m\"]\nscheme = \"w4\"\ncontext = 512\npin = true\npreload = true\n\
             tool_format = \"hermes\"\nkeep_alive = 90\n\
             [models.pirate]\nfrom = \"smollm2:135m\"\nsystem = \"You are a pirate.\"\ntemperature = 0.8\n\
             stop = [\"Arr\"]\n",
        )
        .unwrap();
        assert_eq!(settings.options.len(), 5);
        assert_eq!(settings.aliases["gpt-4o"], "smollm2:135m");
        let model = &settings.models["smollm2:135m"];
        assert_eq!((model.load.scheme, model.load.context), (Some(Scheme::W4), Some(512)));
        assert_eq!((model.load.providers.clone(), model.load.kv_cache_dtype), (None, None));
        let residence =
            ResidenceSettings { pinned: true, keep_alive: Some(KeepAlive::For(Duration::from_secs(90))) };
        assert_eq!(model.residence, residence);
        assert_eq!(settings.tool_formats["smollm2:135m"], ToolFormat::Hermes);
        assert_eq!(settings.preloaded, ["smollm2:135m"]);
        let pirate = &settings.models["pirate"];
        assert_eq!(pirate.from.as_deref(), Some("smollm2:135m"));
        assert_eq!(pirate.answers.sampling.temperature, Some(0.8));
        assert_eq!(pirate.answers.stop, ["Arr"]);
    }

    #[test]
    fn every_wrong_value_and_misplaced_key_is_named() {
        let mut count = 0;
        let mut check = |table: &str, key: &str, value: &str| {
            let text = format!("# settings\n[{table}]\n{key} = {value}\n");
            let faults = read(&text).err().unwrap_or_else(|| panic!("{text} was accepted"));
            assert_eq!(faults.len(), 1, "{text}: {faults:?}");
            let Fault { line, key: path, reason, .. } = &faults[0];
            assert_eq!((*line, path.as_str()), (3, format!("{table}.{key}").as_str()), "{text}");
            assert!(reason.contains("expected") && reason.contains("found"), "{text}: {reason}");
            count += 1;
        };
        let model = [tables::ANSWERS, tables::LOADING, OTHER_MODEL_KEYS].concat();
        let tables = TABLES.iter().copied().chain([("models.\"smollm2:135m\"", model.as_slice())]);
        for (table, keys) in tables {
            for key in keys {
                for wrong in ["{ a = 1 }", "1979-05-27", "[[1]]"] {
                    check(table, key, wrong);
                }
                check(table, &format!("{key}s"), "1");
                if !["models.\"smollm2:135m\"", "server"].contains(&table) {
                    check("server", key, "1");
                }
            }
        }
        assert!(count >= 200, "{count} files");
    }

    #[test]
    fn faults_name_line_key_expected_and_found() {
        let check = |text: &str, expect: &[&str]| {
            let faults: Vec<String> = read(text).unwrap_err().iter().map(ToString::to_string).collect();
            assert_eq!(faults.len(), expect.len(), "{faults:?}");
            for (fault, expect) in faults.iter().zip(expect) {
                assert!(fault.starts_with(expect), "{fault}");
            }
        };
        check("[limits]\nslots = 0\n", &["2:9: limits.slots: expected a number of at least 1, found \"0\""]);
        check(
            "[models.\"smollm2:135m\"]\ncontext = \"many\"\n",
            &[
                "2:11: models.\"smollm2:135m\".context: expected a number of tokens of at least 16, found \"many\"",
            ],
        );
        check("slots = 3\n", &["1:1: slots: expected one of [server], [devices]"]);
        check("[server]\nslots = 3\n", &["2:1: server.slots: expected one of host, port"]);
        check("[limits\n", &["1:8: "]);
        check(
            "[models.a]\nfrom = \"smollm2:135m\"\ncontext = 64\n",
            &["3:1: models.\"a\".context: expected only `from`"],
        );
        check("[models.a]\ntemperature = 9\n", &["2:1: models.a: expected a temperature from 0 to 2"]);
        check("[aliases]\na = 1\nb = \"\"\n", &["2:5: aliases.a: expected", "3:5: aliases.b: expected"]);
        check(
            "[models]\na = 1\n[[server]]\n",
            &["2:5: models.a: expected a table", "3:3: server: expected a table"],
        );
        check("[server]\ntruncate = 1\n", &["2:12: server.truncate: expected true or false"]);
        check("[server]\nport = { a = 1 }\n", &["2:8: server.port: expected a text, a number"]);
    }
}
