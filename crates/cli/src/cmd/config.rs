//! `narthex config`: the settings file.

use std::{env, path::Path, process::Command};

use anyhow::Context;
use narthex_gateway::{Error, Gateway};
use toml_edit::{DocumentMut, Item, Key, TableLike};

use crate::{
    args::{ConfigCommand, StoreArgs},
    input_file, output,
    running_server::{self, ServerNotes},
    settings::config,
    settings_file::{self, BadSettings, SettingValue, StatedSettings, TABLES},
};

/// Text of a new settings file.
const TEMPLATE: &str = "# Settings of Narthex. Options of the command line come first, then variables such as NARTHEX_PORT, then this file.
# `narthex config check` lists faults; https://toml.io describes the format.

# [server]
# port = 8000

# [limits]
# keep_alive = \"30m\"

# [aliases]
# \"gpt-4o\" = \"smollm2:135m\"

# [models.\"smollm2:135m\"]
# context = 4096
# temperature = 0.7
";

/// Checks, shows, or edits the settings.
pub(crate) fn run(store: &StoreArgs, command: ConfigCommand) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Path => output::line(settings_file::path(store)?.display()),
        ConfigCommand::Check { file } => match file {
            Some(file) => check(&file),
            None => check(&settings_file::path(store)?),
        },
        ConfigCommand::Show => show(store),
        ConfigCommand::Reload => reload(store),
        ConfigCommand::Edit => edit(&settings_file::path(store)?),
    }
}

/// Lets every running server of the store read its settings again, and prints their remarks.
fn reload(store: &StoreArgs) -> anyhow::Result<()> {
    let gateway = Gateway::open(config(store, None))?;
    let reloaded = running_server::reload(&gateway)?;
    if reloaded.is_empty() {
        output::note(running_server::NO_SERVER);
    }
    for ServerNotes { address, notes } in reloaded {
        notes.iter().for_each(|note| output::note(format!("{address}: {note}")));
    }
    Ok(())
}

fn check(path: &Path) -> anyhow::Result<()> {
    match settings_file::read(&input_file::text(path)?) {
        Ok(_) => {
            output::note(format!("{} is correct", path.display()));
            Ok(())
        }
        Err(faults) => Err(BadSettings { path: path.to_owned(), faults }.into()),
    }
}

/// Prints the settings that apply, with the variable or the file that states each. What is not printed has its default.
fn show(store: &StoreArgs) -> anyhow::Result<()> {
    let path = settings_file::path(store)?;
    let settings = settings_file::load(store)?;
    let variables = settings_file::from_environment(&|name| env::var_os(name))?;
    let mut lines = Vec::new();
    for (table, keys) in TABLES {
        let stated = keys.iter().filter_map(|key| {
            let variable = variables.iter().find(|setting| setting.key == *key);
            let origin = match variable {
                Some(_) => settings_file::variable(key),
                None => path.display().to_string(),
            };
            let setting = variable.or_else(|| settings.options.iter().find(|setting| setting.key == *key))?;
            Some(format!("{key} = {} # {origin}", shown(&setting.value)))
        });
        let stated: Vec<String> = stated.collect();
        if !stated.is_empty() {
            lines.push(format!("[{table}]\n{}\n", stated.join("\n")));
        }
    }

    let aliases: Vec<String> =
        settings.aliases.iter().map(|(name, model)| format!("{name:?} = {model:?}")).collect();
    if !aliases.is_empty() {
        lines.push(format!("[aliases]\n{}\n", aliases.join("\n")));
    }
    if path.exists() {
        lines.extend(named_tables(&input_file::text(&path)?, &path));
    }
    for StatedSettings { origin, text } in StatedSettings::find(store)? {
        lines.push(format!("# {origin}\n{}\n", text.trim()));
    }

    if lines.is_empty() {
        output::note(format!(
            "{} states nothing, and no variable does; every setting has its default.",
            path.display()
        ));
        return Ok(());
    }
    output::report(lines.join("\n"))
}

/// Returns the tables of upstreams, single models and keys as the file states them.
fn named_tables(text: &str, path: &Path) -> Vec<String> {
    let Ok(document) = text.parse::<DocumentMut>() else { return Vec::new() };
    let mut shown = Vec::new();
    for group in ["upstreams", "models", "keys"] {
        let tables = document.get(group).and_then(Item::as_table_like);
        for (name, item) in tables.into_iter().flat_map(TableLike::iter) {
            let entries = item.as_table_like().into_iter().flat_map(TableLike::iter);
            let values = entries.filter_map(|(key, item)| {
                let value = item.clone().into_value().ok()?.decorated("", "");
                Some(format!("{} = {value}\n", Key::new(key)))
            });
            let values: String = values.collect();
            shown.push(format!("[{group}.{}] # {}\n{values}", Key::new(name), path.display()));
        }
    }
    shown
}

fn shown(value: &SettingValue) -> String {
    match value {
        SettingValue::One(text) if text.parse::<f64>().is_ok() => text.clone(),
        SettingValue::One(text) => format!("{text:?}"),
        SettingValue::Several(texts) => format!("{texts:?}"),
        SettingValue::Switch(switch) => switch.to_string(),
    }
}

/// Opens the file in the user's editor, and checks it afterwards.
fn edit(path: &Path) -> anyhow::Result<()> {
    if !path.exists() {
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(path, TEMPLATE))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let editor = ["VISUAL", "EDITOR"]
        .iter()
        .find_map(|name| env::var(name).ok().filter(|editor| !editor.trim().is_empty()));
    let standard = if cfg!(windows) { "notepad" } else { "vi" };
    let editor = editor.unwrap_or_else(|| standard.to_owned());
    let mut words = editor.split_whitespace();
    let program = words.next().unwrap_or(standard);
    let status = Command::new(program).args(words).arg(path).status();
    let status = status.with_context(|| {
        format!("cannot start the editor `{program}`; set EDITOR, or open {} yourself", path.display())
    })?;
    if !status.success() {
        let message = format!("expected the editor `{program}` to end without an error, found {status}");
        return Err(Error::Invalid { param: "editor", message }.into());
    }
    check(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_with_names_are_shown_whole() {
        let text = "[models.\"smollm2:135m\"] # mine\npin = true # kept\nstop = [\"a\"]\n[models.pirate]\nfrom = \"x\"\n\
                    [upstreams.box]\nurl = \"http://box\"\n[upstreams.box.models]\nbig = \"b\"\n[keys.app]\nkey_env = \"APP\"\n";
        let expect = "[upstreams.box] # f\nurl = \"http://box\"\nmodels = { big = \"b\" }\n\
                      [models.\"smollm2:135m\"] # f\npin = true\nstop = [\"a\"]\n[models.pirate] # f\nfrom = \"x\"\n\
                      [keys.app] # f\nkey_env = \"APP\"\n";
        assert_eq!(named_tables(text, Path::new("f")).concat(), expect);
    }

    #[test]
    fn the_template_is_correct_with_and_without_its_examples() {
        settings_file::read(TEMPLATE).unwrap();
        let examples: Vec<&str> =
            TEMPLATE.lines().skip(2).map(|line| line.trim_start_matches("# ")).collect();
        let settings = settings_file::read(&examples.join("\n")).unwrap();
        assert_eq!((settings.options.len(), settings.aliases.len(), settings.models.len()), (2, 1, 1));
    }
}
