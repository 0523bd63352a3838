//! A connection to an MCP server, which runs as a child process.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use narthex_gateway::{
    Cancel, redact,
    request::{ExactJson, Tool},
};
use parking_lot::Mutex;
use rmcp::{
    RoleClient,
    model::{
        CallToolResult, ClientCapabilities, ClientConfig, ContentBlock, Implementation,
        PaginatedRequestParams, ResourceContents,
    },
    service::{ClientInitializeError, RunningService},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::timeout,
};

use super::{
    CALL_TIME, END_TIME, MAX_TOOLS, START_TIME, ToolResult, ToolboxError, cancelled, cut, definition,
    process::ToolProcess,
    transport::{self, ServerPipes},
};

/// Maximum time to wait for the end of a server that has failed, and for the rest of its log.
const REST: Duration = Duration::from_millis(200);

/// Maximum number of bytes of a server's log that are kept.
const MAX_LOG: usize = 2 << 10;

/// Maximum number of bytes of a line of a server's log. The rest of a longer line is dropped.
const MAX_LINE: usize = 8 << 10;

/// Maximum size of a server's tools as JSON, in MiB.
const MAX_TOOLS_MIB: usize = 4;

/// Maximum bytes of a description.
const MAX_DESCRIPTION: usize = 4 << 10;

#[derive(Debug)]
pub(super) struct ServerCommand {
    line: String,
    program: String,
    arguments: Vec<String>,
}

/// Reads a command line by the rules of a POSIX shell. No shell runs it.
pub(super) fn command_line(line: &str) -> Result<ServerCommand, ToolboxError> {
    let wrong = |reason| ToolboxError::CommandLine { found: line.to_owned(), reason };
    if line.starts_with("http://") || line.starts_with("https://") {
        return Err(wrong("servers over HTTP need a program such as `npx mcp-remote URL`"));
    }
    let words = shlex::split(line).ok_or_else(|| wrong("a quotation mark is not closed"))?;
    let mut words = words.into_iter();
    let program = words.next().filter(|program| !program.is_empty()).ok_or_else(|| wrong("it is empty"))?;
    Ok(ServerCommand { line: line.to_owned(), program, arguments: words.collect() })
}

/// Divides a server's log into lines and hides their credentials, which may be divided between two pieces.
#[derive(Debug, Default)]
struct LogLines {
    /// The line that has not ended, up to [`MAX_LINE`].
    line: Vec<u8>,
    is_cut: bool,
}

impl LogLines {
    /// Adds a piece of the log. Returns the lines that end in it, each with its line break.
    fn push(&mut self, piece: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            let room = MAX_LINE - self.line.len();
            self.line.extend(text.iter().take(room));
            self.is_cut |= text.len() > room;
            if ends {
                lines.push(self.end());
            }
        }
        lines
    }

    /// Ends the line.
    fn end(&mut self) -> String {
        let bytes = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&bytes);
        let mut line = &*text;
        if std::mem::take(&mut self.is_cut) {
            // The last word may be the beginning of a credential that continues.
            line = line.rsplit_once(char::is_whitespace).map_or("", |(words, _)| words);
        }
        format!("{}\n", redact(line))
    }
}

/// The last bytes of a server's log, without credentials.
#[derive(Debug, Clone, Default)]
struct LogTail(Arc<Mutex<VecDeque<u8>>>);

impl LogTail {
    async fn fill(self, mut pipe: impl AsyncRead + Unpin) {
        let mut lines = LogLines::default();
        let mut piece = [0; 512];
        while let Ok(count @ 1..) = pipe.read(&mut piece).await {
            for line in lines.push(&piece[..count]) {
                self.add(&line);
            }
        }
        self.add(&lines.end());
    }

    fn add(&self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        tracing::debug!("{}", line.trim_end());
        let mut kept = self.0.lock();
        kept.extend(line.as_bytes());
        let excess = kept.len().saturating_sub(MAX_LOG);
        kept.drain(..excess);
    }

    fn text(&self) -> String {
        let kept = self.0.lock();
        let bytes: Vec<u8> = kept.iter().copied().collect();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }
}

/// A server that answers.
pub(super) struct McpClient {
    line: String,
    process: ToolProcess,
    service: RunningService<RoleClient, ClientConfig>,
    tools: Vec<rmcp::model::Tool>,
}

/// Describes why a server did not start. The messages of rmcp contain names of Rust types.
fn start_failure(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::ConnectionClosed(_) | ClientInitializeError::TransportError { .. } => {
            "it ended before it answered".to_owned()
        }
        ClientInitializeError::JsonRpcError(error) => error.message.to_string(),
        _ => "its first answer is not a valid MCP response".to_owned(),
    }
}

/// Starts a server and reads its tools.
pub(super) async fn start(command: ServerCommand, cancel: &Cancel) -> Result<McpClient, ToolboxError> {
    let ServerCommand { line, program, arguments } = command;
    let mut process = ToolProcess::start(&program, &arguments)
        .map_err(|source| ToolboxError::Start { server: line.clone(), source })?;
    let log = LogTail::default();
    let log_task = process.child.stderr.take().map(|pipe| tokio::spawn(log.clone().fill(pipe)));
    let failed = |reason: String| {
        let log = log.text();
        let reason = if log.is_empty() { reason } else { format!("{reason}; its log ends with:\n{log}\n") };
        ToolboxError::Protocol { server: line.clone(), reason }
    };

    let (Some(output), Some(input)) = (process.child.stdout.take(), process.child.stdin.take()) else {
        return Err(failed("it has no pipes".to_owned()));
    };

    let answers = async {
        let pipes = ServerPipes::new(output, input);
        let service = rmcp::serve_client(identity(), pipes).await.map_err(|error| start_failure(&error))?;
        let tools = list(&service).await?;
        Ok::<_, String>((service, tools))
    };

    let answered = tokio::select! {
        answered = timeout(START_TIME, answers) => answered,
        () = cancelled(cancel) => return Err(ToolboxError::Cancelled),
    };
    let answered = match answered {
        Ok(answered) => answered,
        Err(_) => Err(format!("it did not answer within {} seconds", START_TIME.as_secs())),
    };

    match answered {
        Ok((service, tools)) => Ok(McpClient { line, process, service, tools }),
        Err(reason) => {
            // The last output of a program that has just ended may not have been read yet.
            let rest = async {
                let _ = process.child.wait().await;
                if let Some(log_task) = log_task {
                    let _ = log_task.await;
                }
            };
            let _ = timeout(REST, rest).await;
            Err(failed(reason))
        }
    }
}

fn identity() -> ClientConfig {
    ClientConfig::new(
        ClientCapabilities::default(),
        Implementation::new("narthex", env!("CARGO_PKG_VERSION")),
    )
}

/// Lists the tools of a server, page by page.
async fn list(service: &RunningService<RoleClient, ClientConfig>) -> Result<Vec<rmcp::model::Tool>, String> {
    let mut tools = Vec::new();
    let mut bytes = 0_usize;
    let mut page = PaginatedRequestParams::default();
    for _ in 0..MAX_TOOLS {
        let found = service.list_tools(Some(page)).await.map_err(|error| error.to_string())?;
        let size = serde_json::to_vec(&found.tools).map_err(|error| error.to_string())?.len();
        bytes = bytes.saturating_add(size);
        if bytes > MAX_TOOLS_MIB << 20 {
            return Err(format!("expected at most {MAX_TOOLS_MIB} MiB of tools, found more"));
        }
        tools.extend(found.tools);
        if tools.len() > MAX_TOOLS {
            return Err(format!("expected at most {MAX_TOOLS} tools, found more"));
        }
        match found.next_cursor {
            Some(next) => page = PaginatedRequestParams::default().with_cursor(Some(next)),
            None => return Ok(tools),
        }
    }
    Err(format!("expected at most {MAX_TOOLS} pages of tools, found more"))
}

impl McpClient {
    /// Returns the tools for requests, each with its name at the server.
    pub(super) fn tools(&self) -> Vec<(Tool, String)> {
        let tools = self.tools.iter().map(|tool| {
            let name = tool.name.to_string();
            let description = tool.description.as_deref().map(|text| {
                let end = text.floor_char_boundary(MAX_DESCRIPTION);
                text[..end].to_owned()
            });
            (definition(name.clone(), description, tool.schema_as_json_value().into()), name)
        });
        tools.collect()
    }

    /// Calls a tool.
    pub(super) async fn call(&self, name: &str, arguments: &ExactJson, cancel: &Cancel) -> ToolResult {
        let request = transport::call(name, arguments);
        let answered = tokio::select! {
            answered = timeout(CALL_TIME, self.service.call_tool(request)) => answered,
            () = cancelled(cancel) => return ToolResult::failed("the user interrupted the call"),
        };
        match answered {
            Ok(Ok(result)) => text(&result),
            Ok(Err(error)) => ToolResult::failed(cut(&format!("{} failed: {error}", self.line))),
            Err(_) => ToolResult::failed(format!(
                "{} did not answer within {} seconds",
                self.line,
                CALL_TIME.as_secs()
            )),
        }
    }

    /// Ends the server: closes its input, and kills it if it does not end by itself. Processes that it started are
    /// killed with it or after it.
    pub(super) async fn end(mut self) {
        let _ = self.service.close_with_timeout(END_TIME).await;
        if timeout(END_TIME, self.process.child.wait()).await.is_err() {
            self.process.kill().await;
        }
    }
}

/// Returns the result of a call as text. Contents that are not text are named.
fn text(result: &CallToolResult) -> ToolResult {
    let parts: Vec<String> = result.content.iter().map(content).collect();
    let text = match &result.structured_content {
        Some(value) if parts.is_empty() => value.to_string(),
        _ => parts.join("\n"),
    };
    match result.is_error {
        Some(true) => ToolResult::failed(cut(&text)),
        Some(false) | None => ToolResult::done(&text),
    }
}

fn content(part: &ContentBlock) -> String {
    match part {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => media("an image", &image.mime_type),
        ContentBlock::Audio(audio) => media("audio", &audio.mime_type),
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            _ => media("a file", "unknown"),
        },
        ContentBlock::ResourceLink(link) => format!("[a link: {}]", link.uri),
        _ => "[a part of an unknown kind]".to_owned(),
    }
}

/// Returns the text that replaces an image, audio or a file.
fn media(kind: &str, r#type: &str) -> String {
    format!("[{kind} of type {type}, which a text model cannot see]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_read_as_a_shell_does() {
        let command = command_line("npx -y 'a b' c\\ d").unwrap();
        assert_eq!(
            (command.program.as_str(), &command.arguments[..]),
            ("npx", &["-y", "a b", "c d"].map(str::to_owned)[..])
        );
        for (line, expect) in [("", "it is empty"), ("a 'b", "not closed"), ("https://x", "mcp-remote")] {
            let error = command_line(line).unwrap_err();
            assert!(error.is_usage() && error.to_string().contains(expect), "{error}");
        }
    }

    #[test]
    fn credentials_between_two_pieces_of_a_log_are_hidden() {
        let log = "first\nfetching https://user:secret@host/?token=secret\nthe end";
        for middle in 0..=log.len() {
            let (before, after) = log.as_bytes().split_at(middle);
            let mut lines = LogLines::default();
            let mut text = lines.push(before).concat();
            text.push_str(&lines.push(after).concat());
            text.push_str(&lines.end());
            assert_eq!(text, "first\nfetching https://***@host/?token=***\nthe end\n");
        }
        let mut lines = LogLines::default();
        let long = format!("a {}\nb", "secret".repeat(MAX_LINE));
        assert_eq!(lines.push(long.as_bytes()), ["a\n"]);
        assert_eq!(lines.end(), "b\n");
    }

    #[tokio::test]
    async fn a_tail_of_a_log_does_not_begin_within_a_credential() {
        let log = format!("https://user:{}@host\n{}", "secret".repeat(50), "x".repeat(MAX_LOG - 100));
        let tail = LogTail::default();
        tail.clone().fill(log.as_bytes()).await;
        let text = tail.text();
        assert!(text.starts_with("https://***@host\nx"), "{text}");
    }

    #[test]
    fn contents_become_text() {
        let image = ContentBlock::image("AAAA", "image/png");
        let result = CallToolResult::success(vec![ContentBlock::text("a"), image]);
        assert_eq!(text(&result).text, "a\n[an image of type image/png, which a text model cannot see]");
        let result = CallToolResult::error(vec![ContentBlock::text("no")]);
        assert_eq!(text(&result), ToolResult::failed("no"));
        let mut result = CallToolResult::structured(serde_json::json!({"a": 1}));
        result.content.clear();
        assert_eq!(text(&result).text, "{\"a\":1}");
    }
}
