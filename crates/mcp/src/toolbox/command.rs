//! A command as a tool. It receives the arguments as JSON on standard input, and its standard output is the result.

use std::{
    io::{Read, Write},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{MAX_RESULT, Stop, ToolResult};

/// Interval between looks at a command that runs.
const INTERVAL: Duration = Duration::from_millis(10);

/// Maximum time to read the remaining output of a command that has ended. A process that it started may keep the pipe
/// open.
const REST: Duration = Duration::from_millis(500);

/// Maximum number of bytes of standard error that are kept.
const MAX_LOG: usize = 4 << 10;

/// A command that is a tool.
#[derive(Debug)]
pub(super) struct CommandTool {
    pub(super) program: String,
    pub(super) arguments: Vec<String>,
    /// Time limit.
    pub(super) limit: Duration,
}

/// A process that is killed, with the processes of its group, when it is dropped.
struct ToolProcess(Child);

impl Drop for ToolProcess {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw) {
            // The group is empty if every process has ended.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl CommandTool {
    /// Runs the command.
    pub(super) fn call(&self, arguments: &Value, is_stopped: Stop<'_>) -> ToolResult {
        self.run(arguments, is_stopped).unwrap_or_else(ToolResult::failed)
    }

    fn run(&self, arguments: &Value, is_stopped: Stop<'_>) -> Result<ToolResult, String> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child =
            command.spawn().map_err(|error| format!("{} cannot be started: {error}", self.program))?;
        let mut process = ToolProcess(child);
        if let Some(mut input) = process.0.stdin.take() {
            let text = format!("{arguments}\n");
            // A command may end without reading its arguments.
            spawn(move || drop(input.write_all(text.as_bytes())))?;
        }
        let output = read(process.0.stdout.take(), MAX_RESULT + 1)?;
        let log = read(process.0.stderr.take(), MAX_LOG)?;
        let deadline = Instant::now() + self.limit;
        let status = loop {
            if let Some(status) = process.0.try_wait().map_err(|error| error.to_string())? {
                break status;
            }
            if is_stopped() {
                return Err("the user interrupted the call".to_owned());
            }
            if Instant::now() >= deadline {
                return Err(format!("the command did not end within {} seconds", self.limit.as_secs()));
            }
            thread::sleep(INTERVAL);
        };
        let output = output.recv_timeout(REST);
        let log = log.recv_timeout(REST).unwrap_or_default();
        drop(process);
        let output =
            output.map_err(|_| "the command left a process behind that keeps its output open".to_owned())?;
        let output = String::from_utf8_lossy(&output);
        if status.success() {
            return Ok(ToolResult::done(&output));
        }
        let failed = ToolResult::done(&format!("{output}{}", String::from_utf8_lossy(&log)));
        Err(format!("{status}\n{}", failed.text))
    }
}

/// Reads a pipe to its end on a thread, and keeps its first bytes.
fn read(pipe: Option<impl Read + Send + 'static>, most: usize) -> Result<Receiver<Vec<u8>>, String> {
    let (sender, receiver) = mpsc::channel();
    spawn(move || {
        let mut kept = Vec::new();
        if let Some(mut pipe) = pipe {
            // A pipe that fails ends.
            let _ = pipe.by_ref().take(most as u64).read_to_end(&mut kept);
            let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        }
        // The call may have ended at its time limit.
        let _ = sender.send(kept);
    })?;
    Ok(receiver)
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let thread = thread::Builder::new().name("tool".to_owned()).spawn(work);
    thread.map(drop).map_err(|error| format!("cannot start a thread for the command: {error}"))
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::toolbox::ToolOutcome;

    fn shell(script: &str) -> CommandTool {
        let arguments = ["-c", script].map(str::to_owned).to_vec();
        CommandTool { program: "sh".to_owned(), arguments, limit: Duration::from_secs(30) }
    }

    #[test]
    fn arguments_come_by_standard_input_and_results_by_standard_output() {
        let check = |script: &str, outcome, expect: &str| {
            let result = shell(script).call(&json!({"a": 1}), &|| false);
            assert_eq!(result.outcome, outcome, "{result:?}");
            assert!(result.text.contains(expect), "{result:?}");
        };
        check("cat; echo hidden >&2", ToolOutcome::Done, "{\"a\":1}\n");
        check("echo out; echo why >&2; exit 3", ToolOutcome::Failed, "exit status: 3\nout\nwhy");
        // The data exceeds the capacity of a pipe in both directions.
        check("yes | head -c 1000000", ToolOutcome::Done, "[The result was cut after 65536 bytes.]");
        check("printf 'a\\377b'", ToolOutcome::Done, "a\u{fffd}b");
        check("sleep 1000 & exit 0", ToolOutcome::Failed, "left a process behind");
        let missing = CommandTool { program: "/no/such".to_owned(), ..shell("") };
        let result = missing.call(&json!({}), &|| false);
        assert!(result.text.starts_with("/no/such cannot be started"), "{result:?}");
    }

    #[test]
    fn time_and_the_user_end_a_command_with_its_children() {
        let folder = std::env::temp_dir().join(format!("narthex-command-{}", std::process::id()));
        let started = Instant::now();
        let script = format!("(sleep 1000; touch {}) & wait", folder.display());
        let slow = CommandTool { limit: Duration::from_millis(100), ..shell(&script) };
        let result = slow.call(&json!({}), &|| false);
        assert!(result.text.contains("did not end within"), "{result:?}");
        let result = shell("sleep 1000").call(&json!({}), &|| true);
        assert_eq!(result, ToolResult::failed("the user interrupted the call"));
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}
