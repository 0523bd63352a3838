//! The tables of the settings file. Their keys are options of the command line, which check the values.

use clap::{
    ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::args::{Args, Command as Subcommand, SamplingArgs, ServeArgs};

/// Tables with options of `serve`, each with its keys. Other commands take from them the options that they have.
pub(crate) const TABLES: &[(&str, &[&str])] = &[
    (
        "server",
        &[
            "host",
            "port",
            "unix_socket",
            "tls_cert",
            "tls_key",
            "cors_origin",
            "allowed_host",
            "insecure_no_auth",
            "auto_pull",
            "allow_media_urls",
            "strict_parameters",
            "truncate",
            "default_model",
            "tool_format",
            "log_format",
            "otlp_traces_endpoint",
        ],
    ),
    ("devices", &["providers", "place", "device_map", "npu", "npu_share", "npu_option", "power", "threads"]),
    ("loading", &["scheme", "context", "kv_cache_dtype", "draft_model", "speculation"]),
    (
        "limits",
        &[
            "slots",
            "kv_budget",
            "kv_total",
            "max_models",
            "weights_total",
            "max_queue",
            "keep_alive",
            "token_latency",
            "prefix_cache_dir",
            "prefix_cache_size",
        ],
    ),
];

/// Commands that take options from the tables.
const COMMANDS: &[&str] = &[
    "run",
    "chat",
    "complete",
    "embed",
    "rerank",
    "classify",
    "decide",
    "answer",
    "fill",
    "transcribe",
    "say",
    "serve",
    "mcp",
    "bench",
];

/// Keys of a model for loading it.
pub(super) const LOADING: &[&str] = &[
    "scheme",
    "providers",
    "place",
    "device_map",
    "context",
    "kv_budget",
    "kv_cache_dtype",
    "tool_format",
    "keep_alive",
];

/// Keys of a model for its answers that are options of `chat`.
pub(crate) const ANSWERS: &[&str] = &["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "stop"];

/// Returns whether a command takes options from the tables.
pub(super) fn takes_settings(command: &str) -> bool {
    COMMANDS.contains(&command)
}

/// Returns the value of an environment variable: a list between commas if the option may be repeated.
pub(super) fn value_from_text(key: &str, text: String) -> SettingValue {
    let root = Args::command();
    let serve = root.find_subcommand("serve");
    let option = serve.and_then(|serve| serve.get_arguments().find(|option| option.get_id().as_str() == key));
    match (option.map(clap::Arg::get_action), text.to_ascii_lowercase().as_str()) {
        (Some(ArgAction::SetTrue), "1" | "true" | "yes" | "on") => SettingValue::Switch(true),
        (Some(ArgAction::SetTrue), "0" | "false" | "no" | "off") => SettingValue::Switch(false),
        (Some(ArgAction::Append), _) => {
            SettingValue::Several(text.split(',').map(|part| part.trim().to_owned()).collect())
        }
        _ => SettingValue::One(text),
    }
}

/// Returns every key of the tables.
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    TABLES.iter().flat_map(|(_, keys)| keys.iter().copied())
}

/// A setting: an option of the command line with its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    /// Name of the option, with underscores.
    pub(crate) key: String,
    pub(crate) value: SettingValue,
}

/// The value of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SettingValue {
    One(String),
    Several(Vec<String>),
    Switch(bool),
}

impl Setting {
    /// Returns the arguments of the command line with the same effect.
    pub(super) fn arguments(&self) -> Vec<String> {
        let name = self.key.replace('_', "-");
        match &self.value {
            SettingValue::One(value) => vec![format!("--{name}={value}")],
            SettingValue::Several(values) => values.iter().map(|value| format!("--{name}={value}")).collect(),
            SettingValue::Switch(true) => vec![format!("--{name}")],
            SettingValue::Switch(false) => Vec::new(),
        }
    }

    /// Checks the value as the option of `command` does.
    ///
    /// # Errors
    /// The reason, with what was expected and what was found.
    pub(super) fn check(&self, command: &str) -> Result<(), String> {
        let mut root = Args::command();
        let option = root
            .find_subcommand(command)
            .and_then(|command| command.get_arguments().find(|option| option.get_id().as_str() == self.key))
            .ok_or_else(|| format!("`{command}` has no option of this name"))?;
        let takes_several = matches!(option.get_action(), ArgAction::Append);
        match (&self.value, option.get_action()) {
            (SettingValue::Switch(_), ArgAction::SetTrue) => return Ok(()),
            (_, ArgAction::SetTrue) => return Err("expected true or false, found another value".to_owned()),
            (SettingValue::Switch(found), _) => {
                return Err(format!("expected a text or a number, found {found}"));
            }
            (SettingValue::Several(_), _) if !takes_several => {
                return Err("expected one value, found a list".to_owned());
            }
            _ => {}
        }
        let arguments = ["narthex".to_owned(), command.to_owned()].into_iter().chain(self.arguments());
        match root.try_get_matches_from_mut(arguments) {
            Ok(_) => Ok(()),
            // Other settings complete it.
            Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => Ok(()),
            Err(error) => Err(reason(&error)),
        }
    }
}

/// Returns what an option expected and found, without its name.
fn reason(error: &clap::Error) -> String {
    if let Some(source) = std::error::Error::source(error) {
        return source.to_string();
    }
    let texts = [ContextKind::ValidValue, ContextKind::InvalidValue].map(|kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    });
    match texts {
        [Some(expected), Some(found)] => format!("expected one of {expected}, found {found:?}"),
        _ => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    }
}

/// Returns the options of `serve` with these settings.
pub(super) fn serve_args(settings: &[Setting]) -> Result<ServeArgs, String> {
    match parsed("serve", settings)? {
        Subcommand::Serve(serve) => Ok(serve),
        _ => Err("expected options of `serve`, found those of another command".to_owned()),
    }
}

/// Returns the options of sampling with these settings.
pub(super) fn sampling_args(settings: &[Setting]) -> Result<SamplingArgs, String> {
    match parsed("chat", settings)? {
        Subcommand::Chat(chat) => Ok(chat.generate.sampling),
        _ => Err("expected options of `chat`, found those of another command".to_owned()),
    }
}

fn parsed(command: &str, settings: &[Setting]) -> Result<Subcommand, String> {
    let arguments = settings.iter().flat_map(Setting::arguments);
    let arguments = ["narthex".to_owned(), command.to_owned()].into_iter().chain(arguments);
    let matches = Args::command().try_get_matches_from(arguments).map_err(|error| reason(&error))?;
    let args = Args::from_arg_matches(&matches).map_err(|error| reason(&error))?;
    args.command.ok_or_else(|| format!("expected options of `{command}`, found none"))
}

/// Returns the settings that apply to a command: those whose option it has, unless the command line states the option,
/// or another that excludes it.
pub(super) fn applicable<'a>(
    settings: &'a [Setting],
    command: &'a Command,
    stated: &'a ArgMatches,
) -> impl Iterator<Item = &'a Setting> {
    let is_stated = |id: &str| stated.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
    settings.iter().filter(move |setting| {
        let option = command.get_arguments().find(|option| option.get_id().as_str() == setting.key);
        option.is_some_and(|option| {
            let excludes = command.get_arguments().filter(|other| is_stated(other.get_id().as_str()));
            let mut excludes = excludes.filter(|other| {
                command.get_arg_conflicts_with(option).contains(other)
                    || command.get_arg_conflicts_with(other).contains(&option)
            });
            !is_stated(&setting.key) && excludes.next().is_none()
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_option_of_serve_is_a_setting() {
        let mut root = Args::command();
        root.build();
        let serve = root.find_subcommand("serve").unwrap();
        // The others choose files, or belong to one run.
        let of_one_run = [
            "help", "version", "verbose", "home", "offline", "config", "setting", "model", "alias",
            "upstream", "open",
        ];
        let options = serve.get_arguments().filter(|option| !option.is_hide_set());
        let options: BTreeSet<&str> = options.map(|option| option.get_id().as_str()).collect();
        let expected: BTreeSet<&str> = options.into_iter().filter(|id| !of_one_run.contains(id)).collect();
        assert_eq!(keys().collect::<BTreeSet<_>>(), expected);
        for command in COMMANDS {
            assert!(root.find_subcommand(command).is_some(), "{command}");
        }
    }

    fn setting(key: &str, value: SettingValue) -> Setting {
        Setting { key: key.to_owned(), value }
    }

    #[test]
    fn values_are_checked_as_those_of_the_command_line() {
        let check = |key: &str, value: SettingValue, expect: &str| {
            let error = setting(key, value).check("serve").unwrap_err();
            assert!(error.contains(expect), "{key}: {error}");
        };
        let one = |text: &str| SettingValue::One(text.to_owned());
        check("context", one("many"), "expected a number of tokens of at least 16, found \"many\"");
        check("slots", one("0"), "expected a number of at least 1, found \"0\"");
        check("slots", SettingValue::Several(vec!["1".to_owned()]), "expected one value, found a list");
        check("truncate", one("yes"), "expected true or false");
        check("scheme", one("w2"), "expected w8, w4, f16, f32, w8a16, w8a8 or w4a16");
        check("power", SettingValue::Switch(true), "expected a text or a number, found true");
        setting("tls_cert", one("a.pem")).check("serve").unwrap();
        setting("cors_origin", SettingValue::Several(vec!["https://a.example".to_owned()]))
            .check("serve")
            .unwrap();
    }

    #[test]
    fn options_of_the_command_line_come_first() {
        let root = Args::command();
        let command = root.find_subcommand("serve").unwrap();
        let applied = |words: &str, settings: &[Setting]| {
            let matches = Args::command().try_get_matches_from(words.split(' ')).unwrap();
            let (_, stated) = matches.subcommand().unwrap();
            applicable(settings, command, stated).map(|setting| setting.key.clone()).collect::<Vec<_>>()
        };
        let one = |key: &str, value: &str| setting(key, SettingValue::One(value.to_owned()));
        let settings = [one("port", "9"), one("slots", "2"), one("temperature", "1")];
        assert_eq!(applied("narthex serve", &settings), ["port", "slots"]);
        assert_eq!(applied("narthex serve --slots 4", &settings), ["port"]);
        assert_eq!(applied("narthex serve --unix-socket x", &settings), ["slots"]);
    }
}
