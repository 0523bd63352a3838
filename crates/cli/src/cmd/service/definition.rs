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
    /// Starts the service, also in place of an earlier one.
    pub(super) start: Vec<Vec<String>>,
    /// Stops the service before its file is removed.
    pub(super) stop: Vec<Vec<String>>,
    /// Forgets the service after its file is removed.
    pub(super) forget: Vec<Vec<String>>,
    /// Succeeds if the service runs.
    pub(super) state: Vec<String>,
    /// Set if the first line of that call's output is the state.
    pub(super) prints_state: bool,
    /// Advice to print after an installation.
    pub(super) advice: Option<&'static str>,
}

/// Returns a call as words.
pub(super) fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Escapes text for XML.
pub(super) fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
