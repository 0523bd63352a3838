//! Fenced Markdown blocks, the commands in them, and the output that they show.

use anyhow::bail;

/// Language of a block that can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    /// Lines for a shell.
    Shell,
    /// A transcript: commands after `$ `, and their output.
    Console,
    Python,
}

/// A block that can run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Line of the opening fence, from 1.
    pub(super) line: usize,
    pub(super) language: Language,
    /// `false` for a block that is marked with `no-run`.
    pub(super) runs: bool,
    pub(super) text: String,
}

/// A command of a block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A server with these arguments.
    Serve(Vec<String>),
    /// A command, with the lines that its output must contain.
    Command { text: String, output: Vec<String> },
}

/// Returns the blocks of a page.
pub(super) fn blocks(page: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<(usize, &str, Vec<&str>)> = None;
    for (number, line) in (1..).zip(page.lines()) {
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (None, Some(info)) => open = Some((number, info, Vec::new())),
            (Some((_, _, lines)), None) => lines.push(line),
            (Some((number, info, lines)), Some(_)) => {
                found.extend(block(*number, info, lines));
                open = None;
            }
            (None, None) => {}
        }
    }
    found
}

fn block(line: usize, info: &str, lines: &[&str]) -> Option<Block> {
    let mut words = info.split([' ', ',']).filter(|word| !word.is_empty());
    let language = match words.next()? {
        "sh" | "bash" | "shell" => Language::Shell,
        "console" => Language::Console,
        "python" => Language::Python,
        _ => return None,
    };
    let runs = !words.any(|word| word == "no-run");
    Some(Block { line, language, runs, text: lines.join("\n") })
}

impl Block {
    /// Returns the commands of a shell block or of a transcript.
    pub(super) fn lines(&self) -> anyhow::Result<Vec<Line>> {
        let mut found: Vec<Line> = Vec::new();
        let text = self.text.replace("\\\n", " ");
        for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
            let command = match self.language {
                Language::Console => line.strip_prefix("$ "),
                Language::Shell | Language::Python => Some(line),
            };
            match (command, found.last_mut()) {
                (Some(command), _) => found.push(Line::new(command)),
                (None, Some(Line::Command { output, .. })) => output.push(line.to_owned()),
                (None, _) => bail!("expected a transcript to begin with `$ `, found {line:?}"),
            }
        }
        Ok(found)
    }
}

impl Line {
    fn new(command: &str) -> Self {
        let command = command.replace("cargo run --release -- ", "narthex ");
        // A comment after a command is not an argument.
        let plain = command.split(" #").next().unwrap_or(&command);
        let mut words = plain.split_whitespace();
        if words.next() == Some("narthex") && words.next() == Some("serve") {
            return Self::Serve(words.map(str::to_owned).collect());
        }
        Self::Command { text: command, output: Vec::new() }
    }
}

/// Returns the first expected line that does not follow in the output after the lines before it. Numbers may differ.
pub(super) fn missing<'a>(expected: &'a [String], found: &str) -> Option<&'a str> {
    let found: Vec<String> = found.lines().map(without_numbers).collect();
    let mut rest = found.iter();
    expected.iter().map(String::as_str).find(|line| {
        let line = without_numbers(line);
        !rest.any(|found| *found == line)
    })
}

/// Replaces every number by the same character.
fn without_numbers(line: &str) -> String {
    let mut text = String::new();
    for c in line.trim().chars() {
        match c {
            '0'..='9' | '.' if text.ends_with('#') => {}
            '0'..='9' => text.push('#'),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(text: &str, output: &[&str]) -> Line {
        Line::Command { text: text.to_owned(), output: output.iter().map(|&line| line.to_owned()).collect() }
    }

    #[test]
    fn blocks_are_found_with_their_marks() {
        let page = "# A\n\n```sh\nnarthex list\n```\n\n```toml\na = 1\n```\n\n- x:\n\n  ```sh no-run\n  rm -r /\n  ```\n\
                    ```python\nprint(1)\n```\n";
        let found = blocks(page);
        let brief: Vec<_> = found.iter().map(|block| (block.line, block.language, block.runs)).collect();
        assert_eq!(
            brief,
            [(3, Language::Shell, true), (13, Language::Shell, false), (16, Language::Python, true)]
        );
        assert_eq!(found[0].text, "narthex list");
    }

    #[test]
    fn commands_of_shells_and_transcripts_are_told_apart_from_output() {
        let lines = |language, text: &str| {
            Block { line: 1, language, runs: true, text: text.to_owned() }.lines().map_err(|e| e.to_string())
        };
        assert_eq!(
            lines(Language::Shell, "narthex a \\\n  b\n\nnarthex serve --slots 2 # c\n"),
            Ok(vec![command("narthex a    b", &[]), Line::Serve(vec!["--slots".into(), "2".into()])])
        );
        assert_eq!(
            lines(Language::Console, "$ narthex a\nyes\nno\n$ cargo run --release -- b"),
            Ok(vec![command("narthex a", &["yes", "no"]), command("narthex b", &[])])
        );
        assert!(lines(Language::Console, "narthex a").unwrap_err().contains("begin with `$ `"));
    }

    #[test]
    fn output_may_differ_in_numbers_alone() {
        let expected = ["Paris.".to_owned(), "all 131 nodes · 78.7 tokens/s".to_owned()];
        let check =
            |found: &str, expect: Option<&str>| assert_eq!(missing(&expected, found), expect, "{found}");
        check("Paris.\nloading\nall 94 nodes · 9 tokens/s\n", None);
        check("all 94 nodes · 9 tokens/s\nParis.\n", Some("all 131 nodes · 78.7 tokens/s"));
        check("Paris.\n94 of 96 nodes · 9 tokens/s\n", Some("all 131 nodes · 78.7 tokens/s"));
        check("", Some("Paris."));
    }
}
