//! Functions that start programs, wait for them and read their output.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Output, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use xtask_workspace::terminal;

use crate::usage;

/// Number of last lines of a failed program's output in its error.
const LAST_LINES: usize = 6;

/// Time between two samples of a program's memory.
const SAMPLING: Duration = Duration::from_millis(20);

/// Output of a program.
#[derive(Debug)]
pub struct ProgramOutput {
    /// Text of the standard output.
    pub stdout: String,
    /// Text of the standard error.
    pub stderr: String,
}

/// Runs a program to its end and captures its output. If it fails, the error contains the last lines.
pub fn output(command: &mut Command) -> anyhow::Result<ProgramOutput> {
    let name = name(command);
    let output = command.stdin(Stdio::null()).output();
    printed(&name, output.with_context(|| format!("{name} cannot be started"))?)
}

/// Runs a program as [`output`] does. Also returns the peak of its resident memory in bytes, if the system reports it.
pub fn output_with_peak(command: &mut Command) -> anyhow::Result<(ProgramOutput, Option<u64>)> {
    let name = name(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().with_context(|| format!("{name} cannot be started"))?;
    let process = child.id();
    let (running, ended) = mpsc::channel::<()>();
    let (output, peak) = thread::scope(|scope| {
        let sampler = scope.spawn(move || sample_peak(process, &ended));
        let output = child.wait_with_output();
        drop(running);
        (output, sampler.join().unwrap_or_default())
    });
    Ok((printed(&name, output?)?, peak))
}

/// Samples the peak of a process until the other end of a channel is dropped. The system keeps the peak, so only memory
/// of the last moments can be missed.
fn sample_peak(process: u32, ended: &Receiver<()>) -> Option<u64> {
    let mut peak = None;
    loop {
        peak = peak.max(usage::peak_resident(process));
        if ended.recv_timeout(SAMPLING) != Err(RecvTimeoutError::Timeout) {
            return peak;
        }
    }
}

/// Returns the file name of a command's program.
fn name(command: &Command) -> String {
    let path = command.get_program().to_string_lossy();
    path.rsplit(['/', '\\']).next().unwrap_or(&path).to_owned()
}

/// Returns what a program printed if it succeeded.
fn printed(name: &str, output: Output) -> anyhow::Result<ProgramOutput> {
    let printed = ProgramOutput {
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    if output.status.success() {
        return Ok(printed);
    }
    bail!("{name} ended with {}: {}", output.status, printed.last_lines())
}

impl ProgramOutput {
    /// Parses the last line of standard output as JSON.
    pub fn answer(&self) -> anyhow::Result<serde_json::Value> {
        let line = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(line).with_context(|| format!("expected a line of JSON, found {line:?}"))
    }

    fn last_lines(&self) -> String {
        let text = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join(" | ")
    }
}

/// Runs a program whose output goes to the terminal.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    terminal::line(format!("$ {}", shown(command)));
    let status = command.status().with_context(|| format!("`{}` cannot be started", shown(command)))?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs a program and calls `look` with each line of its standard output.
pub fn each_line(command: &mut Command, mut look: impl FnMut(&str)) -> anyhow::Result<()> {
    terminal::line(format!("$ {}", shown(command)));
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("`{}` cannot be started", shown(command)))?;
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        let mut line = Vec::new();
        while stdout.read_until(b'\n', &mut line)? > 0 {
            look(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']));
            line.clear();
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// Returns true if a program can be started and succeeds. Its output is discarded.
pub fn works(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Formats a command as a user would type it.
fn shown(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let name = program.file_stem().unwrap_or(command.get_program()).to_string_lossy().into_owned();
    let arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
    std::iter::once(name).chain(arguments).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask_workspace::workspace::cargo;

    #[test]
    fn a_failure_has_its_reason() {
        let error = output(Command::new(cargo()).arg("--no-such-flag")).unwrap_err().to_string();
        assert!(error.starts_with("cargo ended with") && error.contains("--no-such-flag"), "{error}");
        let error = output(&mut Command::new("no-such-program-anywhere")).unwrap_err().to_string();
        assert_eq!(error, "no-such-program-anywhere cannot be started");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_peak_of_a_program_is_sampled() {
        let (running, ended) = mpsc::channel();
        drop(running);
        assert!(sample_peak(std::process::id(), &ended).unwrap() > 0);
        assert_eq!(sample_peak(u32::MAX, &ended), None);
        let (printed, _) = output_with_peak(Command::new(cargo()).arg("--version")).unwrap();
        assert!(printed.stdout.starts_with("cargo "), "{printed:?}");
        let error = output_with_peak(Command::new(cargo()).arg("--no-such-flag")).unwrap_err().to_string();
        assert!(error.starts_with("cargo ended with"), "{error}");
    }

    #[test]
    fn the_answer_is_the_last_line() {
        let printed = |stdout: &str| ProgramOutput { stdout: stdout.to_owned(), stderr: String::new() };
        assert_eq!(printed("a warning\n{\"a\": 1}\n").answer().unwrap()["a"], 1);
        let error = printed("{\"a\": 1}\nbye\n").answer().unwrap_err().to_string();
        assert_eq!(error, "expected a line of JSON, found \"bye\"");
    }

    #[test]
    fn lines_are_read_and_failures_reported() {
        let mut lines = Vec::new();
        each_line(Command::new(cargo()).arg("--version"), |line| lines.push(line.to_owned())).unwrap();
        assert!(lines.len() == 1 && lines[0].starts_with("cargo "), "{lines:?}");
        let error =
            each_line(Command::new(cargo()).arg("--no-such-flag").stderr(Stdio::null()), |_| ()).unwrap_err();
        assert!(error.to_string().starts_with("`cargo --no-such-flag` ended with"), "{error}");
        assert!(!works(&mut Command::new("no-such-program-anywhere")));
    }
}
