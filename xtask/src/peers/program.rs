//! Starts a program, waits for it, and gives what it printed or why it failed.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Lines of a failed program's last words.
const LAST_WORDS: usize = 6;

/// What a program printed.
#[derive(Debug)]
pub(super) struct Printed {
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Runs a program to its end; fails with its last words if it does.
pub(super) fn output(command: &mut Command) -> anyhow::Result<Printed> {
    let name = command.get_program().to_string_lossy().into_owned();
    let name = name.rsplit(['/', '\\']).next().unwrap_or(&name).to_owned();
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("{name} cannot be started"))?;
    let printed = Printed {
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    if output.status.success() {
        return Ok(printed);
    }
    bail!("{name} ended with {}: {}", output.status, printed.last_words())
}

impl Printed {
    /// The last line of standard output, which holds a loop's answer.
    pub(super) fn answer(&self) -> anyhow::Result<serde_json::Value> {
        let line = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(line).with_context(|| format!("expected a line of JSON, found {line:?}"))
    }

    fn last_words(&self) -> String {
        let said = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(LAST_WORDS)..].join(" | ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::cargo;

    #[test]
    fn a_failure_says_why() {
        let error = output(Command::new(cargo()).arg("--no-such-flag")).unwrap_err().to_string();
        assert!(error.starts_with("cargo ended with") && error.contains("--no-such-flag"), "{error}");
        let error = output(&mut Command::new("no-such-program-anywhere")).unwrap_err().to_string();
        assert_eq!(error, "no-such-program-anywhere cannot be started");
    }

    #[test]
    fn the_answer_is_the_last_line() {
        let printed = |stdout: &str| Printed { stdout: stdout.to_owned(), stderr: String::new() };
        assert_eq!(printed("a warning\n{\"a\": 1}\n").answer().unwrap()["a"], 1);
        let error = printed("{\"a\": 1}\nbye\n").answer().unwrap_err().to_string();
        assert_eq!(error, "expected a line of JSON, found \"bye\"");
    }
}
