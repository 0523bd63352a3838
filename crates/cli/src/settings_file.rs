//! The settings file `narthex.toml`, and settings from environment variables. Options of the command line come first,
//! then variables, then the file.

mod change;
mod document;
mod stated;
mod tables;

use std::{env, ffi::OsString, io, path::PathBuf};

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use narthex_gateway::{Error, settings_file};

use crate::{
    args::{Args, Command, StoreArgs},
    input_file,
};

pub(crate) use change::{
    CustomModel, add_custom_model, add_name, answer_entries, has_name, pin, remove_name, set_default_model,
};
pub(crate) use document::{BadSettings, Settings, read};
pub(crate) use stated::StatedSettings;
pub(crate) use tables::{ANSWERS, Setting, SettingValue, TABLES};

/// Variable with the path of the settings file.
pub(crate) const FILE_VARIABLE: &str = "NARTHEX_CONFIG";

/// Returns the path that the command line or the environment states.
fn stated_path(store: &StoreArgs) -> Option<PathBuf> {
    let stated = store.config.clone().or_else(|| env::var_os(FILE_VARIABLE).map(PathBuf::from));
    stated.filter(|path| !path.as_os_str().is_empty())
}

fn is_absent(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
}

/// Returns the path of the settings file, which may not exist.
pub(crate) fn path(store: &StoreArgs) -> Result<PathBuf, Error> {
    match stated_path(store) {
        Some(path) => Ok(path),
        None => settings_file(store.home.clone()),
    }
}

/// Reads the settings file and the settings of `--setting` and `NARTHEX_SETTING`. The file may be absent, unless the user named
/// it.
pub(crate) fn load(store: &StoreArgs) -> anyhow::Result<Settings> {
    let path = path(store)?;
    let text = match input_file::text(&path) {
        // Without a name from the user, there may be no file, and no folder either.
        Err(error) if stated_path(store).is_none() && is_absent(&error) => String::new(),
        text => text?,
    };
    let settings = read(&text).map_err(|faults| BadSettings { path, faults })?;
    let stated = StatedSettings::find(store)?;
    if stated.is_empty() { Ok(settings) } else { Ok(stated::merge(&text, &stated)?) }
}

/// Returns the settings that environment variables state, as in `NARTHEX_SLOTS=4`. An empty variable states nothing.
pub(crate) fn from_environment(get: &dyn Fn(&str) -> Option<OsString>) -> Result<Vec<Setting>, Error> {
    let mut settings = Vec::new();
    for key in tables::keys() {
        let variable = variable(key);
        let Some(value) = get(&variable).filter(|value| !value.is_empty()) else { continue };
        let bad = |reason: String| Error::Invalid {
            param: "environment",
            message: format!("{variable}: {reason}"),
        };
        let value = value.into_string().map_err(|_| bad("expected UTF-8, found other bytes".to_owned()))?;
        let setting = Setting { key: key.to_owned(), value: tables::value_from_text(key, value) };
        setting.check("serve").map_err(bad)?;
        settings.push(setting);
    }
    Ok(settings)
}

/// Returns the name of the variable of a setting.
pub(crate) fn variable(key: &str) -> String {
    format!("NARTHEX_{}", key.to_ascii_uppercase())
}

/// Parses a command line, and completes it with the settings of the environment and of the file.
pub(crate) fn complete(line: &[OsString]) -> Result<CompletedLine, ParseError> {
    let matches = Args::command().try_get_matches_from(line).map_err(ParseError::Usage)?;
    let args = Args::from_arg_matches(&matches).map_err(ParseError::Usage)?;
    let Some((name, stated)) = matches.subcommand().filter(|_| reads_settings(&args)) else {
        return Ok(CompletedLine { args, settings: Settings::default() });
    };
    let mut settings = load(&args.store).map_err(ParseError::Settings)?;
    if !tables::takes_settings(name) {
        return Ok(CompletedLine { args, settings });
    }

    let variables =
        from_environment(&|name| env::var_os(name)).map_err(|error| ParseError::Settings(error.into()))?;
    settings.options.retain(|setting| variables.iter().all(|variable| variable.key != setting.key));
    settings.options.extend(variables);
    forget_stated(&mut settings, stated);
    let root = Args::command();
    settings.options = match root.find_subcommand(name) {
        Some(command) => tables::applicable(&settings.options, command, stated).cloned().collect(),
        None => Vec::new(),
    };
    let arguments: Vec<String> = settings.options.iter().flat_map(Setting::arguments).collect();
    if arguments.is_empty() {
        return Ok(CompletedLine { args, settings });
    }
    let line = insert(line, arguments);
    let completed = Args::try_parse_from(&line).map_err(ParseError::Contradiction)?;
    Ok(CompletedLine { args: completed.stated_by(&args), settings })
}

/// A command line with the settings of the environment and of the file. Their options are those that apply to it.
pub(crate) struct CompletedLine {
    pub(crate) args: Args,
    pub(crate) settings: Settings,
}

/// Reason why a command line and its settings cannot be used.
pub(crate) enum ParseError {
    /// The command line is wrong.
    Usage(clap::Error),
    /// The settings are wrong.
    Settings(anyhow::Error),
    /// The settings contradict each other.
    Contradiction(clap::Error),
}

/// Returns whether a command uses the settings. Those that change or diagnose them must run with wrong ones too.
fn reads_settings(args: &Args) -> bool {
    !matches!(
        args.command,
        None | Some(
            Command::Config(_)
                | Command::Create(_)
                | Command::Completions { .. }
                | Command::Man { .. }
                | Command::Service(_)
                | Command::Doctor(_)
        )
    )
}

/// Removes settings of single models for which the command line has an option.
fn forget_stated(settings: &mut Settings, stated: &ArgMatches) {
    let is_stated = |id: &str| {
        stated.ids().any(|known| known.as_str() == id)
            && stated.value_source(id) == Some(clap::parser::ValueSource::CommandLine)
    };
    for model in settings.models.values_mut() {
        let load = &mut model.load;
        load.scheme = load.scheme.filter(|_| !is_stated("scheme"));
        let is_placed = ["providers", "place", "device_map"].into_iter().any(is_stated);
        load.providers = load.providers.take().filter(|_| !is_placed);
        load.place = load.place.filter(|_| !is_placed);
        load.device_map = load.device_map.take().filter(|_| !is_placed);
        load.context = load.context.filter(|_| !is_stated("context"));
        load.kv_budget = load.kv_budget.filter(|_| !is_stated("kv_budget"));
        load.kv_cache_dtype = load.kv_cache_dtype.filter(|_| !is_stated("kv_cache_dtype"));
    }
}

/// Inserts arguments after the name of the command. The name is the first word before which there is no command.
fn insert(line: &[OsString], arguments: Vec<String>) -> Vec<OsString> {
    let mut root = Args::command();
    let command = (1..line.len()).find(|&at| {
        let is_name = root.find_subcommand(line[at].to_string_lossy().as_ref()).is_some();
        is_name && root.try_get_matches_from_mut(&line[..at]).is_ok()
    });
    let at = command.map_or(line.len(), |command| command + 1);
    let mut complete = line[..at].to_vec();
    complete.extend(arguments.into_iter().map(OsString::from));
    complete.extend_from_slice(&line[at..]);
    complete
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_inserted_after_the_command() {
        let check = |line: &str, expect: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let complete = insert(&words, vec!["--slots=2".to_owned()]);
            let complete: Vec<_> = complete.iter().map(|word| word.to_string_lossy()).collect();
            assert_eq!(complete.join(" "), expect);
        };
        check("narthex chat hello -- serve", "narthex chat --slots=2 hello -- serve");
        check("narthex --home chat chat hello", "narthex --home chat chat --slots=2 hello");
        check("narthex -v ls", "narthex -v ls --slots=2");
    }

    #[test]
    fn variables_are_checked_as_options() {
        let read = |name: &'static str, value: &'static str| {
            from_environment(&move |wanted| (wanted == name).then(|| value.into()))
        };
        let slots = Setting { key: "slots".to_owned(), value: SettingValue::One("4".to_owned()) };
        assert_eq!(read("NARTHEX_SLOTS", "4").unwrap(), [slots]);
        assert_eq!(read("NARTHEX_SLOTS", "").unwrap(), []);
        let truncate = Setting { key: "truncate".to_owned(), value: SettingValue::Switch(true) };
        assert_eq!(read("NARTHEX_TRUNCATE", "true").unwrap(), [truncate]);
        let formats = vec!["hermes".to_owned(), "qwen3:0.6b=mistral".to_owned()];
        let several = Setting { key: "tool_format".to_owned(), value: SettingValue::Several(formats) };
        assert_eq!(read("NARTHEX_TOOL_FORMAT", "hermes,qwen3:0.6b=mistral").unwrap(), [several]);
        let error = read("NARTHEX_SLOTS", "0").unwrap_err().to_string();
        assert!(error.contains("NARTHEX_SLOTS: expected a number of at least 1, found \"0\""), "{error}");
    }
}
