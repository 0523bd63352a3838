//! The page of the book about the command line, generated from the definition of the arguments. It is generated only in
//! tests: one compares the page with the definition, another writes it.

use std::{fs, path::PathBuf};

use clap::{Arg, Command, CommandFactory};

use crate::args::{Args, EVERY_COMMAND, EXIT_CODES};

/// Options under one heading of the help, which several commands share. The page describes them once.
struct SharedOptions {
    heading: String,
    options: Vec<Arg>,
}

impl SharedOptions {
    /// Returns the options of all commands by heading.
    fn of(commands: &Command) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        let inner = commands.get_subcommands().flat_map(Command::get_arguments);
        for option in commands.get_arguments().chain(inner) {
            let Some(heading) = option.get_help_heading() else { continue };
            let at = groups.iter().position(|group| group.heading == heading).unwrap_or_else(|| {
                groups.push(Self { heading: heading.to_owned(), options: Vec::new() });
                groups.len() - 1
            });
            if !groups[at].options.iter().any(|known| known.get_id() == option.get_id()) {
                groups[at].options.push(option.clone());
            }
        }
        groups
    }

    fn is_in(&self, command: &Command) -> bool {
        command.get_arguments().any(|arg| arg.get_help_heading() == Some(self.heading.as_str()))
    }

    fn link(&self) -> String {
        format!("[{}](#{})", self.heading.to_lowercase(), self.heading.to_lowercase().replace(' ', "-"))
    }
}

fn page() -> String {
    let mut root = Args::command().disable_help_subcommand(true);
    root.build();
    let shared = SharedOptions::of(&root);
    let mut page = format!(
        "# Command line\n\n<!-- Written by `cargo xtask docs` from the program's own help. -->\n\n{}.\n\n\
         `narthex COMMAND --help` prints the same as this page, `narthex man DIR` writes manual pages, and\n\
         `narthex completions SHELL` prints completions.\n\n| Command | Purpose |\n|---|---|\n",
        root.get_about().map(ToString::to_string).unwrap_or_default().trim_end_matches('.'),
    );
    for command in root.get_subcommands() {
        let name = command.get_name();
        page.push_str(&format!("| [`{name}`](#narthex-{name}) | {} |\n", about(command)));
    }
    root.get_subcommands().for_each(|command| page.push_str(&section(command, "narthex", &shared)));
    for group in &shared {
        page.push_str(&format!("\n## {}\n\n{}", group.heading, table("Option", &group.options)));
    }
    let codes = EXIT_CODES.lines().skip(1).filter_map(|line| line.trim().split_once(' '));
    let codes = codes.map(|(code, meaning)| format!("| {code} | {} |\n", markdown(meaning.trim())));
    page + "\n## Exit codes\n\n| Code | Meaning |\n|---|---|\n" + &codes.collect::<String>()
}

/// Returns the section of a command and of its subcommands.
fn section(command: &Command, parent: &str, shared: &[SharedOptions]) -> String {
    let name = format!("{parent} {}", command.get_name());
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let mut text = format!("\n## {name}\n\n{}.\n\n```text\n{usage}\n```\n", about(command));
    let own = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !is_standard(arg) && arg.get_help_heading().is_none());
    let (arguments, options): (Vec<Arg>, Vec<Arg>) = own.cloned().partition(Arg::is_positional);
    for (title, list) in [("Argument", arguments), ("Option", options)] {
        if !list.is_empty() {
            text.push_str(&format!("\n{}", table(title, &list)));
        }
    }
    let groups = shared.iter().filter(|group| group.heading != EVERY_COMMAND && group.is_in(command));
    let links: Vec<String> = groups.map(SharedOptions::link).collect();
    if let Some((last, others)) = links.split_last() {
        let others =
            if others.is_empty() { String::new() } else { format!("{} and the ", others.join(", the ")) };
        text.push_str(&format!("\nIt also has the {others}{last}.\n"));
    }
    for inner in command.get_subcommands() {
        text.push_str(&section(inner, &name, shared));
    }
    text
}

fn table(title: &str, arguments: &[Arg]) -> String {
    let shown = arguments.iter().filter(|arg| !arg.is_hide_set() && !is_standard(arg));
    let rows = shown.map(|arg| format!("| `{}` | {} |\n", spelling(arg).replace('|', "\\|"), meaning(arg)));
    format!("| {title} | Meaning |\n|---|---|\n{}", rows.collect::<String>())
}

/// Returns true for the options that clap adds.
fn is_standard(arg: &Arg) -> bool {
    ["help", "version"].contains(&arg.get_id().as_str())
}

/// Returns an argument as it is typed: `-m, --model MODEL`.
fn spelling(arg: &Arg) -> String {
    let names: Vec<String> =
        [arg.get_short().map(|name| format!("-{name}")), arg.get_long().map(|name| format!("--{name}"))]
            .into_iter()
            .flatten()
            .collect();
    let takes_value = arg.get_action().takes_values();
    let value = takes_value.then(|| arg.get_value_names().unwrap_or_default().join(" "));
    let parts = [Some(names.join(", ")).filter(|names| !names.is_empty()), value];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Returns the help of an argument with its values and its default.
fn meaning(arg: &Arg) -> String {
    let mut text = arg.get_help().map(|help| markdown(&help.to_string())).unwrap_or_default();
    if !arg.get_action().takes_values() {
        return text;
    }
    let values: Vec<String> =
        arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    if !values.is_empty() {
        text.push_str(&format!(": {}", values.join(", ")));
    }
    let default: Vec<String> =
        arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    if !default.is_empty() {
        text.push_str(&format!(" (default: {})", default.join(", ")));
    }
    text
}

fn about(command: &Command) -> String {
    command.get_about().map(|about| markdown(&about.to_string())).unwrap_or_default()
}

/// Escapes a help text, except for text between backticks.
fn markdown(text: &str) -> String {
    let mut escaped = String::new();
    for (index, part) in text.split('`').enumerate() {
        match index % 2 {
            0 => part.chars().for_each(|c| match c {
                '|' | '*' | '_' | '[' | ']' => escaped.extend(['\\', c]),
                '<' => escaped.push_str("&lt;"),
                '>' => escaped.push_str("&gt;"),
                '\n' => escaped.push(' '),
                c => escaped.push(c),
            }),
            _ => escaped.push_str(&format!("`{}`", part.replace('|', "\\|"))),
        }
    }
    escaped
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/cli.md")
}

#[test]
fn the_page_about_the_command_line_is_current() {
    let written = fs::read_to_string(file()).unwrap_or_default();
    assert!(written == page(), "docs/src/cli.md is out of date: run `cargo xtask docs` to write it again");
}

#[test]
fn the_readme_names_every_command() {
    let readme = include_str!("../../../README.md");
    let (_, table) = readme.split_once("\n## Commands\n").unwrap();
    let table = table.split("\n## ").next().unwrap();
    for command in Args::command().get_subcommands().filter(|command| !command.is_hide_set()) {
        assert!(table.contains(&format!("`{}`", command.get_name())), "{}", command.get_name());
    }
}

#[test]
fn help_texts_become_markdown() {
    let check = |help: &str, expect: &str| assert_eq!(markdown(help), expect);
    check("as `a|b`, [MASK] or <mask>; * for all", "as `a\\|b`, \\[MASK\\] or &lt;mask&gt;; \\* for all");
    let arg = |name| {
        Args::command()
            .find_subcommand("serve")
            .unwrap()
            .clone()
            .get_arguments()
            .find(|arg| arg.get_id() == name)
            .unwrap()
            .clone()
    };
    assert_eq!(
        (spelling(&arg("model")).as_str(), spelling(&arg("truncate")).as_str()),
        ("-m, --model MODEL", "--truncate")
    );
    assert!(meaning(&arg("port")).ends_with("(default: `8000`)"));
}

/// Writes the page; ignored unless requested.
#[test]
#[ignore = "it writes docs/src/cli.md"]
fn write_the_page_about_the_command_line() {
    fs::write(file(), page()).unwrap();
}
