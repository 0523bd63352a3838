//! The user's own pip, run as a process because it is configured for the user's index, mirrors and proxies.
//!
//! No index address appears here. Platform, interpreter and ABI tags are fixed, so that every Python downloads the same
//! pinned file.

use std::{
    env,
    ffi::OsString,
    fmt,
    io::{self, Read},
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use narthex_files::environment;
use narthex_spec::progress::Stage;

use crate::{
    CancelFlag, check_cancel, error::Error, files, keys::SECRET_VARIABLES, redact::redact_addresses,
};

/// Interval at which the process, the cancel flag and the sizes of the files are checked. The sizes are polled because
/// pip reports no progress.
const POLL: Duration = Duration::from_millis(100);

/// Maximum time in which pip states its version.
const VERSION_TIME: Duration = Duration::from_secs(20);

/// Python's message about a full disk, the same on every system.
const FULL: &str = "No space left on device";

/// Beginning of the output of a pip without a connection.
const NO_CONNECTION: &str = "no connection";

/// Maximum number of bytes kept of pip's stderr.
const STDERR_LIMIT: usize = 8 << 10;

/// The environment variable that names the Python to use.
const PYTHON_VARIABLE: &str = "NARTHEX_PYTHON";

/// Environment variables with the address of a proxy, in any case, or of an index. pip's errors may repeat parts of
/// them.
const ADDRESSES: [&str; 5] = ["http_proxy", "https_proxy", "all_proxy", "PIP_PROXY", "PIP_INDEX_URL"];

/// Environment variables with several addresses, separated by white space.
const LISTS: [&str; 2] = ["PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"];

/// Program that runs pip and ends it together with Narthex. Nothing is written to its standard input, a pipe that
/// closes when Narthex ends, even if it is killed. pip and its children are a process group. Modules are not loaded
/// from the working folder, which may be that of a downloaded model.
const PIP_RUNNER: &str = r#"
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
import os, runpy, signal, threading
def watch():
    os.read(0, 1)
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
threading.Thread(target=watch, daemon=True).start()
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"#;

/// One exact file of a package index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requirement<'a> {
    /// The package.
    pub package: &'a str,
    /// Its exact version.
    pub version: &'a str,
    /// The platform tag: `manylinux_2_28_x86_64`, `win_amd64`, …; `any` for wheels without binaries.
    pub platform: &'a str,
}

/// A Python that has pip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pip {
    /// The program and its first arguments: `["py", "-3"]`.
    command: Vec<String>,
}

/// Displays the command, such as `python3 -m pip`.
impl fmt::Display for Pip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -m pip", self.command.join(" "))
    }
}

impl Pip {
    /// Finds a Python with pip: only `NARTHEX_PYTHON` if it is set, otherwise `python3`, `python` and, on Windows, `py
    /// -3`.
    ///
    /// # Errors
    /// [`Error::NoPip`] lists the commands that were tried; [`Error::Cancelled`] if `cancel` is set.
    pub fn find(wanted: Requirement<'_>, cancel: &CancelFlag) -> Result<Self, Error> {
        let chosen = env::var(PYTHON_VARIABLE).ok().filter(|value| !value.is_empty());
        let candidates: Vec<Vec<String>> = match chosen {
            Some(python) => vec![vec![python]],
            None => {
                let usual: &[&str] =
                    if cfg!(windows) { &["python3", "python", "py -3"] } else { &["python3", "python"] };
                usual.iter().map(|command| command.split(' ').map(str::to_owned).collect()).collect()
            }
        };
        Self::first_of(candidates, wanted, cancel)
    }

    /// Returns true if the user named the Python to use.
    pub(super) fn is_named() -> bool {
        env::var(PYTHON_VARIABLE).is_ok_and(|python| !python.is_empty())
    }

    /// Returns the first of some commands that has pip.
    fn first_of(
        candidates: Vec<Vec<String>>,
        wanted: Requirement<'_>,
        cancel: &CancelFlag,
    ) -> Result<Self, Error> {
        let tried = candidates.iter().map(|command| command.join(" ")).collect();
        for pip in candidates.into_iter().map(Self::from_command) {
            if pip.works(VERSION_TIME, cancel)? {
                return Ok(pip);
            }
        }
        Err(Error::NoPip { package: wanted.package.to_owned(), version: wanted.version.to_owned(), tried })
    }

    /// Uses this program with these first arguments, without checking that it has pip.
    pub(super) fn from_command(command: Vec<String>) -> Self {
        Self { command }
    }

    /// Returns whether pip states its version within `limit`. A process that does not is killed.
    fn works(&self, limit: Duration, cancel: &CancelFlag) -> Result<bool, Error> {
        check_cancel(cancel)?;
        let Some(mut command) = self.start() else { return Ok(false) };
        command.arg("--version").stderr(Stdio::null());
        // An error means that there is no such program.
        let Ok(mut child) = PipProcess::spawn(command, &self.command.join(" ")) else { return Ok(false) };
        let start = Instant::now();
        let status = child.wait(cancel, || {
            if start.elapsed() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if status.is_none() {
            tracing::warn!("`{self} --version` did not end within {limit:?}, so it is not used");
        }
        Ok(status.is_some_and(|status| status.success()))
    }

    /// Returns a command that runs pip as a group of processes, which ends with Narthex.
    fn start(&self) -> Option<Command> {
        let (program, arguments) = self.command.split_first()?;
        let mut command = Command::new(program);
        command.args(arguments).args(["-c", PIP_RUNNER]);
        for name in SECRET_VARIABLES {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Some(command)
    }

    /// Downloads one wheel into `folder`, which must be empty, and returns its path. Its digest is not checked here.
    ///
    /// Reports the bytes on disk to `stage`. If `cancel` is set, the process and its children are killed.
    pub fn download(
        &self,
        wanted: Requirement<'_>,
        folder: &Path,
        stage: &Stage<'_>,
        cancel: &CancelFlag,
    ) -> Result<PathBuf, Error> {
        let scratch = folder.join("pip");
        let out = folder.join("wheel");
        for path in [&scratch, &out] {
            std::fs::create_dir_all(path).map_err(Error::io("create", path))?;
        }
        let mut child =
            PipProcess::spawn(self.command_line(wanted, &scratch, &out)?, &self.command.join(" "))?;
        let Some(status) = child.wait(cancel, || {
            stage.advance(files::tree_bytes(&scratch).max(files::tree_bytes(&out)));
            ControlFlow::Continue(())
        })?
        else {
            return Err(Error::Cancelled);
        };

        let stderr = child.error_output();
        if !status.success() {
            if let Some(limit) = limit(&stderr) {
                return Err(Error::io("write to", folder)(limit));
            }
            let package = wanted.package.to_owned();
            let version = wanted.version.to_owned();
            return Err(Error::PipFailed { package, version, status: status.to_string(), stderr });
        }
        only_wheel(&out, wanted)
    }

    fn command_line(&self, wanted: Requirement<'_>, scratch: &Path, out: &Path) -> Result<Command, Error> {
        let mut command = self.start().ok_or_else(|| Error::NoPip {
            package: wanted.package.to_owned(),
            version: wanted.version.to_owned(),
            tried: Vec::new(),
        })?;
        command.args(["download", "--no-deps", "--only-binary=:all:", "--no-input"]);
        command.args(["--disable-pip-version-check", "--progress-bar", "off"]);
        command.args(["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312"]);
        command.args(["--platform", wanted.platform]).arg("-d").arg(out);
        command.arg(format!("{}=={}", wanted.package, wanted.version));
        // pip unpacks to its temporary folder first; inside ours, the files of a killed download are removed with it.
        command.env("TMPDIR", scratch).env("TEMP", scratch).env("TMP", scratch);
        command.stderr(Stdio::piped());
        Ok(command)
    }
}

/// A process that is killed when it is dropped before its end.
struct PipProcess {
    child: Child,
    ended: bool,
    stderr: Option<JoinHandle<Vec<u8>>>,
    name: PathBuf,
}

impl PipProcess {
    fn spawn(mut command: Command, name: &str) -> Result<Self, Error> {
        let name = PathBuf::from(name);
        let mut child = command.spawn().map_err(Error::io("run", &name))?;
        let stderr = child.stderr.take();
        let mut process = Self { child, ended: false, stderr: None, name };
        if let Some(pipe) = stderr {
            let thread = thread::Builder::new().name("pip".to_owned()).spawn(move || tail(pipe));
            // A process would wait if its messages were not read; it is killed here.
            process.stderr = Some(thread.map_err(Error::io("start a thread for", &process.name))?);
        }
        Ok(process)
    }

    fn poll(&mut self) -> Result<Option<ExitStatus>, Error> {
        let status = self.child.try_wait().map_err(Error::io("wait for", &self.name))?;
        self.ended = status.is_some();
        Ok(status)
    }

    /// Waits for the end of the process, and calls `check` repeatedly. Returns `None` when `check` returns `Break`.
    fn wait(
        &mut self,
        cancel: &CancelFlag,
        mut check: impl FnMut() -> ControlFlow<()>,
    ) -> Result<Option<ExitStatus>, Error> {
        loop {
            check_cancel(cancel)?;
            let status = self.poll()?;
            if status.is_some() || check().is_break() {
                return Ok(status);
            }
            thread::sleep(POLL);
        }
    }

    fn error_output(&mut self) -> String {
        let bytes = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        redact_addresses(
            &error_output(&String::from_utf8_lossy(&bytes)),
            &addresses(&|name| env::var_os(name)),
        )
    }

    fn kill(&mut self) {
        #[cfg(unix)]
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for PipProcess {
    fn drop(&mut self) {
        if !self.ended {
            self.kill();
        }
    }
}

/// Returns the lines of stderr with the cause of a failure: the last line of a traceback, or else the lines starting
/// with pip's first error, or else all. A failed connection, of which pip only warns, comes first.
fn error_output(stderr: &str) -> String {
    let stderr = stderr.trim();
    let text = match stderr.find("Traceback (most recent call last)") {
        Some(_) => stderr.lines().last().unwrap_or_default(),
        None => stderr.find("ERROR:").and_then(|at| stderr.get(at..)).unwrap_or(stderr),
    };
    match connection_failure(stderr) {
        Some(cause) => format!("{NO_CONNECTION}, {cause}; {}", text.trim()),
        None => text.trim().to_owned(),
    }
}

/// Returns the error of the system in pip's output, if it is a limit of the environment: Python writes its number, as in
/// `OSError: [Errno 28] No space left on device` and `OSError(27, 'File too large')`.
fn limit(stderr: &str) -> Option<io::Error> {
    if stderr.contains(FULL) {
        return Some(io::Error::new(io::ErrorKind::StorageFull, FULL));
    }
    // On Windows, Python's numbers are not those of the system.
    if !cfg!(unix) || stderr.starts_with(NO_CONNECTION) {
        return None;
    }
    let numbers = ["[Errno ", "OSError("].into_iter().flat_map(|mark| stderr.split(mark).skip(1));
    let numbers = numbers.filter_map(|text| {
        let digits = text.find(|char: char| !char.is_ascii_digit()).and_then(|end| text.get(..end));
        digits?.parse().ok()
    });
    numbers.map(io::Error::from_raw_os_error).find(environment::is_limit)
}

/// Returns the cause in pip's last warning about a connection, without the addresses of Python's objects:
/// `ProxyError('Cannot connect to proxy.', …)`.
fn connection_failure(stderr: &str) -> Option<String> {
    let (_, warning) = stderr.rsplit_once("connection broken by '")?;
    let cause = warning.lines().next()?;
    let mut cause = cause.rsplit_once("': /").map_or(cause, |(cause, _)| cause).to_owned();
    while let Some(start) = cause.find('<')
        && let Some(length) = cause.get(start..)?.find(">: ")
    {
        cause.replace_range(start..start + length + ">: ".len(), "");
    }
    Some(cause)
}

/// Returns the addresses of proxies and indexes in environment variables.
fn addresses(get: &dyn Fn(&str) -> Option<OsString>) -> Vec<String> {
    let names = ADDRESSES.iter().flat_map(|name| [(*name).to_owned(), name.to_ascii_uppercase()]);
    let mut addresses: Vec<String> =
        names.filter_map(|name| get(&name)).map(|value| value.to_string_lossy().into_owned()).collect();
    for list in LISTS.iter().filter_map(|name| get(name)) {
        addresses.extend(list.to_string_lossy().split_whitespace().map(str::to_owned));
    }
    addresses
}

/// Reads a pipe to its end and keeps the last bytes.
fn tail(mut pipe: impl Read) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut buffer = [0; 1024];
    while let Ok(count) = pipe.read(&mut buffer) {
        let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else { break };
        kept.extend_from_slice(chunk);
        let surplus = kept.len().saturating_sub(STDERR_LIMIT);
        kept.drain(..surplus);
    }
    kept
}

fn only_wheel(folder: &Path, wanted: Requirement<'_>) -> Result<PathBuf, Error> {
    let entries = std::fs::read_dir(folder).map_err(Error::io("list", folder))?;
    let mut wheels: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .collect();
    match (wheels.pop(), wheels.len()) {
        (Some(wheel), 0) => Ok(wheel),
        (last, others) => Err(Error::PipLeftNoWheel {
            package: wanted.package.to_owned(),
            version: wanted.version.to_owned(),
            found: others + usize::from(last.is_some()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Requirement<'_> = Requirement { package: "p", version: "1", platform: "any" };

    #[test]
    fn of_a_traceback_the_last_line_stays() {
        let check = |stderr: &str, expect: &str| assert_eq!(error_output(stderr), expect);
        check(
            "WARNING: x\nERROR: no such version\nERROR: none found\n",
            "ERROR: no such version\nERROR: none found",
        );
        let traceback = "ERROR: Exception:\nTraceback (most recent call last):\n  File \"x\", line 1\n\
            OSError: [Errno 28] No space left on device\n";
        check(traceback, "OSError: [Errno 28] No space left on device");
        check("odd\n", "odd");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn limits_of_the_system_are_found() {
        let check = |stderr: &str, expect: Option<io::ErrorKind>| {
            assert_eq!(limit(stderr).map(|error| error.kind()), expect, "{stderr}");
        };
        check("OSError: [Errno 28] No space left on device", Some(io::ErrorKind::StorageFull));
        check("OSError: [Errno 122] Disk quota exceeded", Some(io::ErrorKind::QuotaExceeded));
        let large = "ProtocolError: (\"Connection broken: OSError(27, 'File too large')\", OSError(27, 'File too large'))";
        check(large, Some(io::ErrorKind::FileTooLarge));
        check("PermissionError: [Errno 13] Permission denied: '/x'", Some(io::ErrorKind::PermissionDenied));
        check("no connection, NewConnectionError('[Errno 13] Permission denied'); ERROR: none", None);
        check("ConnectionRefusedError: [Errno 111] Connection refused", None);
        check("ERROR: No matching distribution found for p==1", None);
    }

    #[test]
    fn the_cause_of_a_failed_connection_comes_first() {
        let check = |cause: &str, expect: &str| {
            let warning = |total| {
                format!(
                    "WARNING: Retrying (Retry(total={total}, connect=None)) after connection broken by '{cause}': /simple/p/\n"
                )
            };
            let stderr =
                format!("{}{}ERROR: No matching distribution found for p==1\n", warning(1), warning(0));
            let expect = format!("no connection, {expect}; ERROR: No matching distribution found for p==1");
            assert_eq!(error_output(&stderr), expect);
        };
        check(
            "ProxyError('Cannot connect to proxy.', NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection \
             object at 0x7f90>: Failed to establish a new connection: [Errno 111] Connection refused'))",
            "ProxyError('Cannot connect to proxy.', NewConnectionError('Failed to establish a new connection: [Errno 111] \
             Connection refused'))",
        );
        let certificate = "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed'))";
        check(certificate, certificate);
    }

    #[test]
    fn credentials_of_proxies_and_indexes_are_hidden() {
        let check = |name: &str, value: &str, stderr: &str, expect: &str| {
            let get = |asked: &str| (asked == name).then(|| value.into());
            assert_eq!(redact_addresses(stderr, &addresses(&get)), expect, "{name}");
        };
        let failed = "Failed to parse: http://user:a#SECRET@h:9, fragment SECRET";
        for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "PIP_PROXY", "PIP_INDEX_URL"] {
            check(name, "http://user:a#SECRET@h:9", failed, "Failed to parse: http://***@h:9, fragment ***");
        }
        let lists = "https://h/a https://user:SECRET@i/b";
        check("PIP_EXTRA_INDEX_URL", lists, "bad SECRET of https://h/a", "bad *** of https://h/a");
        check("OTHER", "", "cannot fetch https://u:secret@index/p", "cannot fetch https://***@index/p");
    }

    #[test]
    fn without_pip_the_message_names_what_was_tried() {
        let candidates =
            vec![vec!["no-such-python".to_owned()], vec!["nor-this".to_owned(), "-3".to_owned()]];
        let error = Pip::first_of(candidates, WANTED, &CancelFlag::new(false)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "p 1 cannot be downloaded: none of these commands has pip: no-such-python, nor-this -3"
        );
        let hint = error.hint().unwrap();
        assert!(hint.contains("python3-pip") && hint.contains("--from FILE.whl"), "{hint}");
    }

    #[test]
    fn pip_is_not_loaded_from_the_working_folder() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("pip");
        std::fs::create_dir(&own).unwrap();
        for file in ["__init__.py", "__main__.py"] {
            std::fs::write(own.join(file), "open('loaded', 'w').close()").unwrap();
        }
        let mut pip = Pip::from_command(vec!["python3".to_owned()]).start().unwrap();
        let mut child = pip.arg("--version").current_dir(folder.path()).spawn().unwrap();
        // The input stays open, as it is while Narthex runs.
        let _input = child.stdin.take();
        child.wait().unwrap();
        assert!(!folder.path().join("loaded").exists());
    }

    /// Returns a Python that writes its process id to a file and then sleeps.
    #[cfg(unix)]
    fn sleeping(folder: &Path) -> Vec<String> {
        let script = folder.join("python3");
        let text =
            format!("echo $$ > {0}.new\nmv {0}.new {0}\nexec sleep 120\n", folder.join("id").display());
        std::fs::write(&script, text).unwrap();
        vec!["/bin/sh".to_owned(), script.display().to_string()]
    }

    /// Returns whether the process of [`sleeping`] runs.
    #[cfg(unix)]
    fn runs(folder: &Path) -> bool {
        let Ok(id) = std::fs::read_to_string(folder.join("id")) else { return false };
        let id = rustix::process::Pid::from_raw(id.trim().parse().unwrap()).unwrap();
        rustix::process::test_kill_process(id).is_ok()
    }

    #[cfg(unix)]
    #[test]
    fn a_python_that_sleeps_is_left_when_cancelled() {
        let folder = tempfile::tempdir().unwrap();
        let started = folder.path().join("id");
        let cancel = CancelFlag::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let begun = Instant::now();
                while !started.exists() && begun.elapsed() < Duration::from_secs(60) {
                    thread::sleep(Duration::from_millis(5));
                }
                cancel.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            let candidates = vec![sleeping(folder.path()), vec!["no-such-python".to_owned()]];
            let begun = Instant::now();
            let found = Pip::first_of(candidates, WANTED, &cancel);
            assert!(matches!(found, Err(Error::Cancelled)), "{found:?}");
            assert!(begun.elapsed() < VERSION_TIME);
        });
        assert!(!runs(folder.path()), "the process lives on");
    }

    #[cfg(unix)]
    #[test]
    fn a_python_that_sleeps_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let pip = Pip::from_command(sleeping(folder.path()));
        assert!(!pip.works(Duration::from_secs(1), &CancelFlag::new(false)).unwrap());
        assert!(!runs(folder.path()), "the process lives on");
    }

    #[test]
    fn the_tail_of_a_long_stream_is_kept() {
        let mut text = vec![b'a'; STDERR_LIMIT * 3];
        text.extend_from_slice(b"the end");
        let kept = tail(text.as_slice());
        assert_eq!(kept.len(), STDERR_LIMIT);
        assert!(kept.ends_with(b"the end"));
    }
}
