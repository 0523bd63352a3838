//! The process of Intel's compiler, with bounds on its time and output.

use std::{
    ffi::OsString,
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use narthex_catalog::keys::SECRET_VARIABLES;
use narthex_check::ProcessEnd;

use super::{
    answer::{CompilerAnswer, CompilerOutcome},
    unusable,
};
use crate::{
    cancel::Cancel,
    child_process::{ChildProcess, WaitError, signalled_end},
    error::Error,
};

/// Maximum bytes that are kept of the beginning of the output, and as many of its end.
const OUTPUT_LIMIT: usize = 256 << 10;

/// Interval at which the end of the process is checked.
const POLL: Duration = Duration::from_millis(20);

/// A program that compiles one graph for each run. See `driver.c` for its arguments and its answer.
#[derive(Debug, Clone)]
pub(super) struct CompilerProgram {
    pub(super) path: PathBuf,
    /// First arguments.
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(&'static str, OsString)>,
    /// Maximum time of a run.
    pub(super) time_limit: Duration,
}

impl CompilerProgram {
    /// Compiles a graph for a platform into the file `blob` of a folder, which is the working folder of the process. `graph`
    /// is written as the program reads it.
    pub(super) fn run(
        &self,
        graph: &str,
        folder: &Path,
        blob: &str,
        platform: u32,
        cancel: &Cancel,
    ) -> Result<CompilerAnswer, Error> {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).arg(graph).arg(blob).arg(platform.to_string()).current_dir(folder);
        for name in SECRET_VARIABLES {
            command.env_remove(name);
        }
        command.envs(self.environment.iter().cloned());
        // The program ends when its input closes, even if this process is killed.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn().map_err(Error::io("start", &self.path))?;
        let mut process = ChildProcess(child);

        let output = process.0.stdout.take();
        let reader = thread::Builder::new()
            .name("intel-compiler".to_owned())
            .spawn(move || output.map(read_ends).unwrap_or_default())
            .map_err(Error::io("start a thread for", &self.path))?;
        let ended = match process.wait(Instant::now() + self.time_limit, POLL, Some(cancel)) {
            Ok(status) => Some(status),
            Err(WaitError::TooSlow) => None,
            Err(WaitError::Cancelled(error)) => return Err(error),
            Err(WaitError::System(error)) => return Err(Error::io("wait for", &self.path)(error)),
        };
        // A killed process must not leave the reader waiting.
        drop(process);
        let log = String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned();
        answer(ended, log)
    }
}

/// Returns the answer in the output of a process that ended, or was killed after the time limit.
fn answer(status: Option<ExitStatus>, log: String) -> Result<CompilerAnswer, Error> {
    let outcome = match status {
        None => CompilerOutcome::Ended(ProcessEnd::TimedOut),
        Some(status) => {
            if let Some(reason) = answer_at(&log, "failed ") {
                return Err(unusable(reason));
            }
            match (answer_at(&log, "compiled\n"), answer_at(&log, "refused "), answer_at(&log, "openvino ")) {
                (Some(_), ..) if status.success() => CompilerOutcome::Compiled,
                (_, Some(message), _) => CompilerOutcome::Refused(message),
                (_, None, Some(_)) => {
                    let how = signalled_end(status);
                    CompilerOutcome::Ended(how.unwrap_or_else(|| ProcessEnd::Crashed(status.to_string())))
                }
                (_, None, None) => return Err(unusable(format!("it ended without an answer ({status})"))),
            }
        }
    };
    Ok(CompilerAnswer { outcome, log })
}

/// Returns the text after a word in the last line that starts with it, up to the end of the output.
fn answer_at(log: &str, word: &str) -> Option<String> {
    let starts =
        log.match_indices(word).filter(|(at, _)| log[..*at].is_empty() || log[..*at].ends_with('\n'));
    starts.last().map(|(at, _)| log[at + word.len()..].trim().to_owned())
}

/// Reads a pipe to its end. Returns its beginning and its end; what lies between is dropped.
fn read_ends(mut pipe: impl Read) -> Vec<u8> {
    let mut first = Vec::new();
    // An error ends the output, and the process has its own status.
    let _ = pipe.by_ref().take(OUTPUT_LIMIT as u64).read_to_end(&mut first);
    let mut last = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        match pipe.read(&mut piece) {
            Ok(0) => break,
            Ok(bytes) => last.extend_from_slice(&piece[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        if last.len() > 2 * OUTPUT_LIMIT {
            last.drain(..last.len() - OUTPUT_LIMIT);
        }
    }
    let surplus = last.len().saturating_sub(OUTPUT_LIMIT);
    first.extend_from_slice(&last[surplus..]);
    first
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    /// Writes a script in place of the compiler.
    fn script(folder: &Path, body: &str) -> CompilerProgram {
        let path = folder.join("compiler");
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        CompilerProgram {
            path,
            arguments: vec!["library.dll".into()],
            environment: vec![("COMPILER_MODE", "test".into())],
            time_limit: Duration::from_secs(20),
        }
    }

    fn run(program: &CompilerProgram) -> Result<CompilerAnswer, Error> {
        program.run("Z:\\m.onnx", program.path.parent().unwrap(), "m.blob", 4000, &Cancel::new())
    }

    #[test]
    fn a_graph_is_compiled_into_the_working_folder() {
        let folder = tempfile::tempdir().unwrap();
        let body = "echo openvino 2026.4.1\necho \"$@\" $COMPILER_MODE > m.blob\necho compiled";
        let answer = run(&script(folder.path(), body)).unwrap();
        assert_eq!(answer.outcome, CompilerOutcome::Compiled);
        let given = fs::read_to_string(folder.path().join("m.blob")).unwrap();
        assert_eq!(given, "library.dll Z:\\m.onnx m.blob 4000 test\n");
    }

    #[test]
    fn a_refusal_has_the_message_and_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let body = "echo openvino 2026.4.1\necho '[ERROR] Failed Pass FeasibleAllocation on Operation x'\n\
                    printf '\\nrefused compile: first\\nsecond\\n'\nexit 1";
        let answer = run(&script(folder.path(), body)).unwrap();
        assert_eq!(answer.outcome, CompilerOutcome::Refused("compile: first\nsecond".to_owned()));
        assert!(answer.log.contains("Failed Pass FeasibleAllocation"), "{}", answer.log);
        let result = answer.result(3);
        let narthex_check::CompilerResult::Failed { message, .. } = result else { panic!("{result:?}") };
        assert_eq!(message, "Intel's compiler fails in the pass FeasibleAllocation");
    }

    #[test]
    fn an_end_without_an_answer_is_a_crash_once_openvino_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let end = |body: &str| run(&script(folder.path(), body)).map(|answer| answer.outcome);
        let crashed = end("echo openvino 2026.4.1\nexit 5").unwrap();
        assert!(
            matches!(&crashed, CompilerOutcome::Ended(ProcessEnd::Crashed(status)) if status.contains('5')),
            "{crashed:?}"
        );
        assert_eq!(end("echo openvino 1\nkill -9 $$").unwrap(), CompilerOutcome::Ended(ProcessEnd::Killed));
        // The word in a line of the log is no answer.
        assert!(matches!(
            end("echo openvino 1\necho is compiled\nexit 3").unwrap(),
            CompilerOutcome::Ended(_)
        ));
        for (body, expect) in [
            ("exit 1", "ended without an answer"),
            ("printf '\\nfailed the library cannot be loaded\\n'", "the library cannot be loaded"),
        ] {
            let error = end(body).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        }
    }

    #[test]
    fn time_and_output_have_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let slow = CompilerProgram {
            time_limit: Duration::from_millis(300),
            ..script(folder.path(), "echo openvino 1\nexec sleep 60")
        };
        let start = Instant::now();
        assert_eq!(run(&slow).unwrap().outcome, CompilerOutcome::Ended(ProcessEnd::TimedOut));
        assert!(start.elapsed() < Duration::from_secs(30));

        let body = "echo openvino 1\nhead -c 5000000 /dev/zero | tr '\\0' 'x'\nprintf '\\ncompiled\\n'";
        let answer = run(&script(folder.path(), body)).unwrap();
        assert_eq!(answer.outcome, CompilerOutcome::Compiled);
        assert!(answer.log.len() <= 2 * OUTPUT_LIMIT, "{}", answer.log.len());
    }

    #[test]
    fn cancelling_ends_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let program = script(folder.path(), "exec sleep 60");
        let cancel = Cancel::new();
        cancel.cancel();
        let error = program.run("m.onnx", folder.path(), "m.blob", 4000, &cancel).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
    }
}
