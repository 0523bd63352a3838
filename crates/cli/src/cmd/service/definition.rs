//! A service as a value: its settings, its file, and the calls of the init system.

use std::path::{Path, PathBuf};

/// A system that runs services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InitSystem {
    Systemd,
    Launchd,
    /// Windows' Task Scheduler.
    Tasks,
}

impl InitSystem {
    /// Returns the one of this operating system.
    pub(super) fn of_this_system() -> Self {
        if cfg!(windows) {
            Self::Tasks
        } else if cfg!(target_os = "macos") {
            Self::Launchd
        } else {
            Self::Systemd
        }
    }
}

/// The users of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServiceScope {
    User,
    System,
}

#[derive(Debug, Clone)]
pub(super) struct ServiceSettings {
    pub(super) init: InitSystem,
    pub(super) scope: ServiceScope,
    /// Path of `narthex`.
    pub(super) program: PathBuf,
    /// Arguments of `serve`.
    pub(super) arguments: Vec<String>,
    /// Folder for models and runtimes, if it is not the default.
    pub(super) store: Option<PathBuf>,
    pub(super) user_home: PathBuf,
    /// Folder for the settings of the user, if it is not the default.
    pub(super) config: Option<PathBuf>,
    /// Groups of this machine whose members may use GPUs and NPUs.
    pub(super) groups: Vec<&'static str>,
}

impl ServiceSettings {
    /// Returns the command of the service, as words.
    pub(super) fn command(&self, store: Option<&Path>) -> Vec<String> {
        let mut words = vec![self.program.display().to_string(), "serve".to_owned()];
        if let Some(store) = store {
            words.extend(["--home".to_owned(), store.display().to_string()]);
        }
        words.extend(self.arguments.iter().cloned());
        words
    }
}

/// A service: its file, and the calls that start and stop it.
#[derive(Debug)]
pub(super) struct ServiceDefinition {
    pub(super) name: &'static str,
    /// Kind of service in the words of the init system.
    pub(super) kind: &'static str,
    pub(super) file: PathBuf,
    /// Content of the file.
    pub(super) text: String,
    /// Program of the init system; the fields that follow are arguments of its calls.
    pub(super) program: &'static str,
    /// Succeeds if the init system answers.
    pub(super) probe: Vec<String>,
    /// Ends a running service, if the calls of `start` and `stop` do not. It may fail, because the service need not run.
    pub(super) end: Option<Vec<String>>,
    /// Starts the service, also in place of an earlier one.
    pub(super) start: Vec<Vec<String>>,
    /// Stops the service before its file is removed.
    pub(super) stop: Vec<Vec<String>>,
    /// Forgets the service after its file is removed.
    pub(super) forget: Vec<Vec<String>>,
    pub(super) state: StateCall,
    /// Advice to print after an installation.
    pub(super) advice: Option<&'static str>,
}

/// Call that reports the state of a service.
#[derive(Debug)]
pub(super) struct StateCall {
    pub(super) program: &'static str,
    pub(super) arguments: Vec<String>,
    pub(super) output: StateOutput,
}

/// Meaning of the output of a call that reports the state.
#[derive(Debug, Clone, Copy)]
pub(super) enum StateOutput {
    /// The first line is the state, and the call succeeds if the service runs.
    State,
    /// The service runs if the call succeeds and a line begins with this text.
    RunsWith(&'static str),
}

impl StateOutput {
    /// Returns whether the service runs, and its state in words.
    pub(super) fn state(self, succeeded: bool, output: &str) -> (bool, String) {
        let mut lines = output.lines().map(str::trim).filter(|line| !line.is_empty());
        let (runs, printed) = match self {
            Self::State => (succeeded, lines.next()),
            Self::RunsWith(text) => (succeeded && lines.any(|line| line.starts_with(text)), None),
        };
        let fallback = if runs { "running" } else { "stopped" };
        (runs, printed.unwrap_or(fallback).to_owned())
    }
}

/// Returns a call as words.
pub(super) fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Escapes text for XML.
pub(super) fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_runs_only_if_the_output_says_so() {
        let check = |output: StateOutput, succeeded, text: &str, runs, state: &str| {
            assert_eq!(output.state(succeeded, text), (runs, state.to_owned()), "{text}");
        };
        check(StateOutput::State, true, "active\n", true, "active");
        check(StateOutput::State, false, "failed\n", false, "failed");
        check(StateOutput::State, false, "", false, "stopped");
        // A task of Windows exists, but waits for the next login.
        check(StateOutput::RunsWith("Running"), true, "Ready\r\n", false, "stopped");
        check(StateOutput::RunsWith("Running"), true, "Running\r\n", true, "running");
        check(StateOutput::RunsWith("Running"), false, "", false, "stopped");
        // An agent of launchd is loaded, but its program has ended.
        let ended = "{\n\t\"LastExitStatus\" = 0;\n\t\"Label\" = \"org.narthex.serve\";\n};\n";
        check(StateOutput::RunsWith("\"PID\""), true, ended, false, "stopped");
        let running = ended.replace("\"LastExitStatus\" = 0", "\"PID\" = 812");
        check(StateOutput::RunsWith("\"PID\""), true, &running, true, "running");
    }
}
