//! A command as a tool. It receives the arguments as JSON on standard input, and its standard output is the result.

use std::time::Duration;

use narthex_gateway::{Cancel, request::ExactJson};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    task::JoinHandle,
    time::timeout,
};

use super::{MAX_RESULT, ToolResult, cancelled, process::ToolProcess};

/// Maximum time to read the remaining output of a command that has ended. A process that it started may keep the pipe
/// open.
const REST: Duration = Duration::from_millis(500);

/// Maximum number of bytes of standard error that are kept.
const MAX_LOG: usize = 4 << 10;

#[derive(Debug)]
pub(super) struct CommandTool {
    pub(super) program: String,
    pub(super) arguments: Vec<String>,
    /// Time limit.
    pub(super) limit: Duration,
}

impl CommandTool {
    /// Runs the command.
    pub(super) async fn call(&self, arguments: &ExactJson, cancel: &Cancel) -> ToolResult {
        self.run(arguments, cancel).await.unwrap_or_else(ToolResult::failed)
    }

    async fn run(&self, arguments: &ExactJson, cancel: &Cancel) -> Result<ToolResult, String> {
        let mut process = ToolProcess::start(&self.program, &self.arguments)
            .map_err(|error| format!("{} cannot be started: {error}", self.program))?;
        if let Some(mut input) = process.child.stdin.take() {
            let text = format!("{arguments}\n");
            // A command may end without reading its arguments.
            tokio::spawn(async move { drop(input.write_all(text.as_bytes()).await) });
        }

        let output = read(process.child.stdout.take(), MAX_RESULT + 1);
        let log = read(process.child.stderr.take(), MAX_LOG);
        let ended = tokio::select! {
            ended = timeout(self.limit, process.child.wait()) => ended,
            () = cancelled(cancel) => return Err("the user interrupted the call".to_owned()),
        };
        let status = ended
            .map_err(|_| format!("the command did not end within {} seconds", self.limit.as_secs()))?
            .map_err(|error| error.to_string())?;
        let output = timeout(REST, output).await;
        let log = timeout(REST, log).await.map(Result::unwrap_or_default).unwrap_or_default();
        drop(process);
        let output =
            output.map_err(|_| "a process that the command started keeps its output open".to_owned())?;
        let output = output.unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        if status.success() {
            return Ok(ToolResult::done(&output));
        }

        let failed = ToolResult::done(&format!("{output}{}", String::from_utf8_lossy(&log)));
        Err(format!("{status}\n{}", failed.text))
    }
}

/// Reads a pipe to its end in a task, and keeps its first bytes.
fn read(pipe: Option<impl AsyncRead + Send + Unpin + 'static>, most: usize) -> JoinHandle<Vec<u8>> {
    tokio::spawn(async move {
        let mut kept = Vec::new();
        if let Some(mut pipe) = pipe {
            // A pipe that fails ends.
            let _ = (&mut pipe).take(most as u64).read_to_end(&mut kept).await;
            let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
        }
        kept
    })
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::json;

    use super::*;
    use crate::toolbox::ToolOutcome;

    fn shell(script: &str) -> CommandTool {
        let arguments = ["-c", script].map(str::to_owned).to_vec();
        CommandTool { program: "sh".to_owned(), arguments, limit: Duration::from_secs(30) }
    }

    #[tokio::test]
    async fn arguments_come_by_standard_input_and_results_by_standard_output() {
        let check = async |script: &str, outcome, expect: &str| {
            let result = shell(script).call(&json!({"a": 1}).into(), &Cancel::new()).await;
            assert_eq!(result.outcome, outcome, "{result:?}");
            assert!(result.text.contains(expect), "{result:?}");
        };
        check("cat; echo hidden >&2", ToolOutcome::Done, "{\"a\":1}\n").await;
        check("echo out; echo why >&2; exit 3", ToolOutcome::Failed, "exit status: 3\nout\nwhy").await;
        // The data exceeds the capacity of a pipe in both directions.
        check("yes | head -c 1000000", ToolOutcome::Done, "[The result was cut after 65536 bytes.]").await;
        check("printf 'a\\377b'", ToolOutcome::Done, "a\u{fffd}b").await;
        check("sleep 1000 & exit 0", ToolOutcome::Failed, "a process that the command started").await;
        let missing = CommandTool { program: "/no/such".to_owned(), ..shell("") };
        let result = missing.call(&json!({}).into(), &Cancel::new()).await;
        assert!(result.text.starts_with("/no/such cannot be started"), "{result:?}");
    }

    #[tokio::test]
    async fn time_and_the_user_end_a_command_with_its_children() {
        let folder = std::env::temp_dir().join(format!("narthex-command-{}", std::process::id()));
        let started = Instant::now();
        let script = format!("(sleep 1000; touch {}) & wait", folder.display());
        let slow = CommandTool { limit: Duration::from_millis(100), ..shell(&script) };
        let result = slow.call(&json!({}).into(), &Cancel::new()).await;
        assert!(result.text.contains("did not end within"), "{result:?}");
        let cancel = Cancel::new();
        let (slow, json) = (shell("sleep 1000"), json!({}).into());
        let (result, ()) = tokio::join!(slow.call(&json, &cancel), async { cancel.cancel() });
        assert_eq!(result, ToolResult::failed("the user interrupted the call"));
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}
