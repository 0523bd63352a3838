//! The program espeak-ng, which pronounces texts as a process with bounds on its time and output. It is never linked.

use std::{
    env,
    ffi::OsString,
    io::{self, Read, Write},
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use narthex_catalog::keys::SECRET_VARIABLES;
use narthex_speech::espeak::Notation;

use crate::{
    child_process::{ChildProcess, WaitError},
    config::Config,
    error::Error,
};

/// Environment variable that names the program.
const VARIABLE: &str = "NARTHEX_ESPEAK";

/// Maximum time for a clause, which usually takes a few milliseconds.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Maximum bytes of the phonemes of a clause.
const OUTPUT_LIMIT: u64 = 1 << 20;

/// Maximum bytes of the program's messages.
const MESSAGE_LIMIT: u64 = 4 << 10;

/// Interval at which the end of the process is checked.
const POLL: Duration = Duration::from_millis(1);

/// The program with a voice.
pub(super) struct Espeak {
    program: PathBuf,
    voice: String,
    notation: Notation,
    time_limit: Duration,
}

impl Espeak {
    pub(super) fn new(config: &Config, voice: &str, notation: Notation) -> Self {
        Self { program: program(config), voice: voice.to_owned(), notation, time_limit: TIME_LIMIT }
    }

    pub(super) fn notation(&self) -> Notation {
        self.notation
    }

    /// Returns the arguments, which do not depend on the text.
    fn arguments(&self) -> Vec<&str> {
        let mut arguments = vec!["-q", "--ipa", "-b", "1", "--stdin", "-v", self.voice.as_str()];
        if self.notation == Notation::Kokoro {
            arguments.push("--tie=^");
        }
        arguments
    }

    /// Runs the program with a text on its standard input.
    pub(super) fn run(&self, text: &str) -> Result<String, Error> {
        let mut command = Command::new(&self.program);
        command.args(self.arguments());
        for name in SECRET_VARIABLES {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let start = Instant::now();
        let child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => self.failed("is not installed".to_owned(), true),
            _ => self.failed(format!("cannot be started: {error}"), false),
        })?;
        let mut process = ChildProcess(child);

        let input = process.0.stdin.take();
        let bytes = text.as_bytes().to_vec();
        self.spawn(move || {
            // A program that does not read its input fails, and its message says why.
            let _ = input.map(|mut input| input.write_all(&bytes));
        })?;
        let output = self.collect(process.0.stdout.take(), OUTPUT_LIMIT)?;
        let messages = self.collect(process.0.stderr.take(), MESSAGE_LIMIT)?;

        let rest = |limit: Duration| limit.saturating_sub(start.elapsed());
        let output = output.recv_timeout(rest(self.time_limit)).map_err(|_| self.too_slow())?;
        if output.len() as u64 > OUTPUT_LIMIT {
            return Err(self.failed(format!("wrote more than {OUTPUT_LIMIT} bytes for a clause"), false));
        }
        let status = process.wait(start + self.time_limit, POLL, None).map_err(|error| match error {
            WaitError::TooSlow => self.too_slow(),
            WaitError::Cancelled(error) => error,
            WaitError::System(error) => self.failed(error.to_string(), false),
        })?;
        if !status.success() {
            let message = messages.recv_timeout(rest(self.time_limit)).unwrap_or_default();
            let message = String::from_utf8_lossy(&message);
            return Err(self.failed(format!("failed ({status}): {}", message.trim()), false));
        }
        String::from_utf8(output).map_err(|_| self.failed("wrote text that is not UTF-8".to_owned(), false))
    }

    /// Reads a pipe to its end on another thread, up to one byte beyond the limit.
    fn collect(
        &self,
        pipe: Option<impl Read + Send + 'static>,
        limit: u64,
    ) -> Result<mpsc::Receiver<Vec<u8>>, Error> {
        let (sender, receiver) = mpsc::channel();
        self.spawn(move || {
            let mut bytes = Vec::new();
            // An error ends the output, and the process has its own status.
            let _ = pipe.map(|pipe| pipe.take(limit + 1).read_to_end(&mut bytes));
            // Nobody waits for the output after the time limit.
            let _ = sender.send(bytes);
        })?;
        Ok(receiver)
    }

    fn spawn(&self, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let thread = thread::Builder::new().name("espeak-ng".to_owned()).spawn(work);
        thread.map(drop).map_err(|error| self.failed(format!("needs a thread: {error}"), false))
    }

    fn too_slow(&self) -> Error {
        self.failed(format!("took longer than {:?} for a clause", self.time_limit), false)
    }

    fn failed(&self, reason: String, is_missing: bool) -> Error {
        Error::Espeak { program: self.program.display().to_string(), reason, is_missing }
    }
}

/// Fails if the program is not installed.
///
/// # Errors
/// [`Error::Espeak`].
pub(crate) fn check_installed(config: &Config) -> Result<(), Error> {
    match Espeak::new(config, "en", Notation::Ipa).run("") {
        Err(error @ Error::Espeak { is_missing: true, .. }) => Err(error),
        _ => Ok(()),
    }
}

/// Returns the program: that of the settings, that of the environment, or `espeak-ng`.
fn program(config: &Config) -> PathBuf {
    let stated = env::var_os(VARIABLE).filter(|program| !program.is_empty());
    let usual = || installed_elsewhere().unwrap_or_else(|| "espeak-ng".into());
    config.espeak.clone().or_else(|| stated.map(PathBuf::from)).unwrap_or_else(usual)
}

/// Returns the program where its installer for Windows puts it, which is not in a folder of `PATH`.
fn installed_elsewhere() -> Option<PathBuf> {
    let programs: OsString = if cfg!(windows) { env::var_os("ProgramFiles")? } else { return None };
    let path = PathBuf::from(programs).join("eSpeak NG").join("espeak-ng.exe");
    path.is_file().then_some(path)
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, path::Path};

    use super::*;

    /// Writes a script in place of the program.
    fn script(folder: &Path, body: &str) -> Espeak {
        let program = folder.join("espeak");
        fs::write(&program, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let config = Config { espeak: Some(program), ..Config::standard() };
        Espeak::new(&config, "fr-fr", Notation::Kokoro)
    }

    #[test]
    fn the_text_is_passed_on_standard_input() {
        let folder = tempfile::tempdir().unwrap();
        let espeak = script(folder.path(), "echo \"$@\"; cat");
        let text = "-v; $(touch x) `y` \"z\"";
        let expect = format!("-q --ipa -b 1 --stdin -v fr-fr --tie=^\n{text}");
        assert_eq!(espeak.run(text).unwrap(), expect);
    }

    #[test]
    fn failures_of_the_program_are_stated() {
        let folder = tempfile::tempdir().unwrap();
        let check = |espeak: &Espeak, expect: &str| {
            let error = espeak.run("a").unwrap_err();
            let text = format!("{error}; {}", error.hint().unwrap_or_default());
            assert!(text.contains(expect), "{text}");
        };
        check(&script(folder.path(), "echo no such voice >&2; exit 3"), "(exit status: 3): no such voice");
        check(&script(folder.path(), "printf '\\377'"), "not UTF-8");
        check(&script(folder.path(), "exec yes"), "wrote more than 1048576 bytes");
        let mut slow = script(folder.path(), "exec sleep 60");
        slow.time_limit = Duration::from_millis(50);
        check(&slow, "took longer than 50ms");

        let config = Config { espeak: Some(folder.path().join("none")), ..Config::standard() };
        check(&Espeak::new(&config, "de", Notation::Ipa), "apt install espeak-ng");
        assert!(check_installed(&config).is_err());
        let present = Config { espeak: Some(folder.path().join("espeak")), ..Config::standard() };
        script(folder.path(), "exit 1");
        assert!(check_installed(&present).is_ok());
    }
}
