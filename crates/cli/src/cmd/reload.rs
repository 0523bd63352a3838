//! The settings of a running server: SIGHUP reads the settings file again, and requests of admins change it. What changed
//! applies at once, to models that are loaded from then on, or after a restart.

use std::{collections::BTreeSet, ffi::OsString, path::Path, thread};

use anyhow::bail;
use narthex_gateway::{Gateway, LoadSettings, ModelSettings};
use narthex_server::{AppliedSettings, CurrentGateway, SettingsChange};
use narthex_spec::progress::Quiet;

use super::{named_config, with_upstream_keys};
use crate::{
    args::{Command, StoreArgs},
    interrupt, output,
    settings::{check_serve, serve_config},
    settings_file::{self, CompletedLine, CustomModel, ParseError, Setting, Settings, TABLES},
};

/// Settings that apply to every request.
const AT_ONCE: &[&str] = &["default_model", "keep_alive"];

/// Settings that apply to models that are loaded later. The devices are not among them, because a process uses one
/// runtime library.
const AT_LOAD: &[&str] = &[
    "tool_format",
    "power",
    "scheme",
    "context",
    "kv_cache_dtype",
    "draft_model",
    "speculation",
    "slots",
    "kv_budget",
    "max_queue",
    "token_latency",
];

/// The settings of a running server.
pub(crate) struct ServerSettings {
    current: CurrentGateway,
    store: StoreArgs,
    /// Command line of the server.
    line: Vec<OsString>,
    applied: Settings,
}

impl ServerSettings {
    /// Creates the settings of a server that runs with this gateway, command line and settings.
    pub(crate) fn new(
        current: CurrentGateway,
        store: StoreArgs,
        line: Vec<OsString>,
        applied: Settings,
    ) -> Self {
        Self { current, store, line, applied }
    }

    /// Stores a change of the settings in their file, and applies it.
    ///
    /// # Errors
    /// The reason why the settings and the file stay as they are.
    pub(crate) fn change(&mut self, change: &SettingsChange) -> anyhow::Result<AppliedSettings> {
        if *change == SettingsChange::Reload {
            let notes = self.read()?.notes();
            return Ok(AppliedSettings { gateway: self.current.get(), notes });
        }
        let path = settings_file::path(&self.store)?;
        let gateway = self.current.get();
        let mut before = String::new();
        gateway.change_settings(
            &path,
            |text| {
                let changed = changed(&text, change, &path)?;
                before = text;
                anyhow::Ok(changed)
            },
            interrupt::cancel(),
        )?;

        let applied = self.read().and_then(|_| self.effective(change, &path));
        if applied.is_err() {
            gateway.change_settings(&path, |_| anyhow::Ok(before), interrupt::cancel())?;
        }
        applied.map(AppliedSettings::from)
    }

    /// Returns the gateway with a change that the settings file states.
    fn effective(&self, change: &SettingsChange, path: &Path) -> anyhow::Result<Gateway> {
        let gateway = self.current.get();
        match change {
            SettingsChange::DefaultModel { model } if *model != gateway.config().default_model => {
                let path = path.display();
                bail!("an option or a variable states the default model, which comes before that of {path}")
            }
            _ => Ok(gateway),
        }
    }

    /// Reads the settings again and reports the changes. Wrong settings change nothing.
    pub(crate) fn reload(&mut self) {
        match self.read() {
            Ok(changes) => changes.notes().into_iter().for_each(output::note),
            Err(error) => output::note(format!("warning: the settings stay as they were: {error:#}")),
        }
    }

    fn read(&mut self) -> anyhow::Result<Changes> {
        let CompletedLine { args, settings } = match settings_file::complete(&self.line) {
            Ok(line) => line,
            Err(ParseError::Settings(error)) => return Err(error),
            Err(ParseError::Usage(error) | ParseError::Contradiction(error)) => bail!("{error}"),
        };
        let Some(Command::Serve(serve)) = args.command else { bail!("expected the command line of serve") };
        check_serve(&serve)?;
        let config = with_upstream_keys(serve_config(&args.store, &serve), &settings)?;
        let config = named_config(config, &settings);
        self.current.replace(self.current.get().with_settings(config)?);

        let changes = Changes::between(&self.applied, &settings);
        preload(self.current.get(), new_preloads(&self.applied, &settings));
        self.applied = settings;
        Ok(changes)
    }
}

/// Returns the models that settings preload, and that the settings before did not.
fn new_preloads(before: &Settings, after: &Settings) -> Vec<String> {
    after.preloaded.iter().filter(|model| !before.preloaded.contains(model)).cloned().collect()
}

/// Loads models, one after another, while the server goes on.
fn preload(gateway: Gateway, models: Vec<String>) {
    if models.is_empty() {
        return;
    }
    let thread = thread::Builder::new().name("preload".to_owned()).spawn(move || {
        for model in &models {
            if let Err(error) = gateway.load(model, &Quiet, interrupt::cancel()) {
                output::note(format!("warning: {model} is not in memory: {error}"));
            }
        }
    });
    if let Err(error) = thread {
        output::note(format!("warning: no thread for the models to preload: {error}"));
    }
}

/// Returns the text of the settings file with a change.
fn changed(text: &str, change: &SettingsChange, path: &Path) -> anyhow::Result<String> {
    match change {
        SettingsChange::AddName { name, model } => {
            settings_file::add_name(&settings_file::remove_name(text, name)?, name, model)
        }
        SettingsChange::AddModel { name, from, answers } => {
            let custom = CustomModel {
                name,
                from,
                system: answers.system.as_deref(),
                answers: settings_file::answer_entries(answers),
            };
            settings_file::add_custom_model(&settings_file::remove_name(text, name)?, &custom)
        }
        SettingsChange::RemoveName { name } if !settings_file::has_name(text, name)? => {
            bail!("expected {name} in {}, found no such name there; an option may state it", path.display())
        }
        SettingsChange::RemoveName { name } => settings_file::remove_name(text, name),
        SettingsChange::Reload => Ok(text.to_owned()),
        SettingsChange::Pin { model, pinned } => settings_file::pin(text, model, *pinned),
        SettingsChange::DefaultModel { model } => settings_file::set_default_model(text, model.as_deref()),
    }
}

/// Keys of the settings file whose values changed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    /// Keys that apply now.
    at_once: BTreeSet<String>,
    /// Keys that apply to models that are loaded from now on.
    at_load: BTreeSet<String>,
    /// Keys that apply after a restart.
    at_restart: BTreeSet<String>,
}

impl Changes {
    fn between(before: &Settings, after: &Settings) -> Self {
        let mut changes = Self::default();
        for (table, keys) in TABLES {
            for key in *keys {
                if of_key(&before.options, key) == of_key(&after.options, key) {
                    continue;
                }
                let path = format!("{table}.{key}");
                match *key {
                    key if AT_ONCE.contains(&key) => changes.at_once.insert(path),
                    key if AT_LOAD.contains(&key) => changes.at_load.insert(path),
                    _ => changes.at_restart.insert(path),
                };
            }
        }

        if before.aliases != after.aliases {
            changes.at_once.insert("aliases".to_owned());
        }
        for name in before.upstreams.keys().chain(after.upstreams.keys()) {
            if before.upstreams.get(name) != after.upstreams.get(name) {
                changes.at_once.insert(format!("upstreams.{name}"));
            }
        }
        for name in before.keys.keys().chain(after.keys.keys()) {
            if before.keys.get(name) != after.keys.get(name) {
                changes.at_restart.insert(format!("keys.{name}"));
            }
        }
        for name in before.models.keys().chain(after.models.keys()) {
            let [old, new] =
                [before, after].map(|settings| settings.models.get(name).cloned().unwrap_or_default());
            changes.add_model(name, old, new);
        }
        for name in new_preloads(before, after) {
            changes.at_once.insert(format!("models.{name:?}"));
        }
        for name in new_preloads(after, before) {
            changes.at_restart.insert(format!("models.{name:?}"));
        }
        for name in before.tool_formats.keys().chain(after.tool_formats.keys()) {
            if before.tool_formats.get(name) != after.tool_formats.get(name) {
                changes.at_load.insert(format!("models.{name:?}"));
            }
        }
        changes
    }

    /// Adds the changes of one model's settings.
    fn add_model(&mut self, name: &str, old: ModelSettings, new: ModelSettings) {
        let path = format!("models.{name:?}");
        if old.load != new.load {
            self.at_load.insert(path.clone());
        }
        let without_load = |settings| ModelSettings { load: LoadSettings::default(), ..settings };
        if without_load(old) != without_load(new) {
            self.at_once.insert(path);
        }
    }

    /// Returns a line for each kind of change.
    fn notes(&self) -> Vec<String> {
        let kinds = [
            ("these settings apply now", &self.at_once),
            ("these settings apply to models that are loaded from now on", &self.at_load),
            ("these settings need a restart of the server", &self.at_restart),
        ];
        let changed = kinds.into_iter().filter(|(_, keys)| !keys.is_empty());
        let mut notes: Vec<String> = changed
            .map(|(text, keys)| format!("{text}: {}", keys.iter().cloned().collect::<Vec<_>>().join(", ")))
            .collect();
        if notes.is_empty() {
            notes.push("the settings are unchanged".to_owned());
        }
        notes
    }
}

fn of_key<'a>(options: &'a [Setting], key: &str) -> Option<&'a Setting> {
    options.iter().find(|setting| setting.key == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_state_when_they_apply() {
        let settings = |text: &str| settings_file::read(text).unwrap();
        let before = settings(
            "[server]\nport = 1\n[limits]\nslots = 2\nkeep_alive = \"5m\"\n[models.\"smollm2:135m\"]\npin = true\n",
        );
        let after = settings(
            "[server]\nport = 2\n[limits]\nslots = 3\n[devices]\nproviders = \"cpu\"\n[aliases]\na = \"smollm2:135m\"\n\
             [upstreams.box]\nurl = \"http://box\"\n\
             [models.\"smollm2:135m\"]\ncontext = 99\n[models.b]\npreload = true\n\
             [keys.app]\nkey_env = \"KEY\"\n",
        );
        let expect = [
            "these settings apply now: aliases, limits.keep_alive, models.\"b\", models.\"smollm2:135m\", upstreams.box",
            "these settings apply to models that are loaded from now on: limits.slots, models.\"smollm2:135m\"",
            "these settings need a restart of the server: devices.providers, keys.app, server.port",
        ];
        assert_eq!(Changes::between(&before, &after).notes(), expect);
        let later = Changes::between(&after, &before).at_restart;
        assert!(later.contains("models.\"b\""), "the model stays in memory: {later:?}");
        assert_eq!(Changes::between(&after, &after).notes(), ["the settings are unchanged"]);
    }

    #[test]
    fn every_key_is_classified_once() {
        let all: Vec<&str> = TABLES.iter().flat_map(|(_, keys)| keys.iter().copied()).collect();
        assert!(AT_ONCE.iter().chain(AT_LOAD).all(|key| all.contains(key)));
        assert!(AT_ONCE.iter().all(|key| !AT_LOAD.contains(key)));
    }
}
