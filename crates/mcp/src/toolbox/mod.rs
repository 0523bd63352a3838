//! Tools of other programs for a local model: those of MCP servers (`client`, over `transport`), and commands of a file
//! (`file`, `command`). Both run as processes (`process`).
//!
//! Start at [`Toolbox`]. Everything that a tool returns is bounded in size and time, and its failure is a result for
//! the model.

mod client;
mod command;
mod file;
mod process;
mod transport;

use std::{collections::BTreeSet, time::Duration};

use narthex_gateway::{
    Cancel, check_threads,
    request::{ExactJson, Strictness, Tool},
};
use tokio::{runtime::Runtime, sync::oneshot};

pub use file::{ToolFile, ToolFileError};

use client::McpClient;
use command::CommandTool;

/// Maximum bytes of a result. A longer one is cut.
const MAX_RESULT: usize = 64 << 10;

/// Maximum number of tools of one server, and of the pages that list them.
const MAX_TOOLS: usize = 512;

/// Maximum length of a tool's name without the number that may follow it.
const MAX_NAME_START: usize = Tool::MAX_NAME - 8;

/// Time for an MCP server to start. Servers may be downloaded first, as with npx.
const START_TIME: Duration = Duration::from_secs(120);

/// Time for a call of an MCP server.
const CALL_TIME: Duration = Duration::from_secs(300);

/// Time for an MCP server to end by itself.
const END_TIME: Duration = Duration::from_secs(2);

/// Failure to prepare tools.
#[derive(Debug, thiserror::Error)]
pub enum ToolboxError {
    /// The text is not a command line.
    #[error("mcp: expected the command line of an MCP server, found {found:?}: {reason}")]
    CommandLine {
        /// Text.
        found: String,
        /// Reason.
        reason: &'static str,
    },
    /// The program cannot be started.
    #[error("the MCP server {server:?} cannot be started: {source}")]
    Start {
        /// Command line.
        server: String,
        /// Reason from the operating system.
        source: std::io::Error,
    },
    /// The program does not answer as an MCP server.
    #[error("{server:?} does not answer as an MCP server: {reason}; run it alone to see its messages")]
    Protocol {
        /// Command line.
        server: String,
        /// Reason, with the last lines of its log.
        reason: String,
    },
    /// The runtime for asynchronous work cannot be started.
    #[error("the connection to MCP servers cannot be prepared: {0}")]
    Runtime(#[from] std::io::Error),
    /// The user interrupted the start.
    #[error("interrupted")]
    Cancelled,
}

impl ToolboxError {
    /// Returns whether the text of an argument is wrong.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::CommandLine { .. })
    }
}

/// Result of a tool for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolResult {
    /// Text.
    pub text: String,
    /// Outcome.
    pub outcome: ToolOutcome,
}

/// Outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolOutcome {
    /// The tool succeeded.
    Done,
    /// The tool failed. The text contains the reason.
    Failed,
}

impl ToolResult {
    /// A failure.
    pub fn failed(text: impl Into<String>) -> Self {
        Self { text: text.into(), outcome: ToolOutcome::Failed }
    }

    /// A success, whose text is cut to its limit.
    fn done(text: &str) -> Self {
        Self { text: cut(text), outcome: ToolOutcome::Done }
    }
}

/// Origin of a tool.
enum Origin {
    /// A server, by its index, and the tool's name there.
    Server(usize, String),
    /// A command.
    Command(CommandTool),
}

/// A tool with the name that the model sees.
struct Entry {
    tool: Tool,
    origin: Origin,
}

/// The tools of a conversation. Dropping it ends the servers.
pub struct Toolbox {
    entries: Vec<Entry>,
    servers: Vec<McpClient>,
    /// `None` when the toolbox is dropped.
    runtime: Option<Runtime>,
}

impl Toolbox {
    /// Starts MCP servers by their command lines, and adds the tools of files. If a tool has the name of another one, a
    /// number is appended to its name.
    ///
    /// # Errors
    /// [`ToolboxError`] for a server that cannot be started or does not answer.
    pub fn open(servers: &[String], files: Vec<ToolFile>, cancel: &Cancel) -> Result<Self, ToolboxError> {
        // Tokio panics if it cannot start its worker.
        check_threads(1)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let handle = runtime.handle().clone();
        let mut toolbox = Self { entries: Vec::new(), servers: Vec::new(), runtime: Some(runtime) };
        for (tool, command) in files.into_iter().flat_map(|file| file.tools) {
            toolbox.add(tool, Origin::Command(command));
        }
        let commands =
            servers.iter().map(|line| client::command_line(line)).collect::<Result<Vec<_>, _>>()?;
        for command in commands {
            let client = handle.block_on(client::start(command, cancel))?;
            for (tool, name) in client.tools() {
                toolbox.add(tool, Origin::Server(toolbox.servers.len(), name));
            }
            toolbox.servers.push(client);
        }
        Ok(toolbox)
    }

    /// Returns the definitions of the tools.
    pub fn tools(&self) -> Vec<Tool> {
        self.entries.iter().map(|entry| entry.tool.clone()).collect()
    }

    /// Calls a tool and waits for its result.
    pub fn call(&self, name: &str, arguments: &ExactJson, cancel: &Cancel) -> ToolResult {
        let entry = self.entries.iter().find(|entry| entry.tool.name == name);
        let (Some(entry), Some(runtime)) = (entry, &self.runtime) else { return self.unknown(name) };
        match &entry.origin {
            Origin::Command(command) => runtime.block_on(command.call(arguments, cancel)),
            Origin::Server(index, name) => match self.servers.get(*index) {
                Some(client) => runtime.block_on(client.call(name, arguments, cancel)),
                None => self.unknown(name),
            },
        }
    }

    fn unknown(&self, name: &str) -> ToolResult {
        let names: Vec<&str> = self.entries.iter().map(|entry| entry.tool.name.as_str()).collect();
        ToolResult::failed(format!("no tool is named {name:?}; the tools are {}", names.join(", ")))
    }

    /// Adds a tool under a name that is free and that requests allow.
    fn add(&mut self, mut tool: Tool, origin: Origin) {
        let taken: BTreeSet<&str> = self.entries.iter().map(|entry| entry.tool.name.as_str()).collect();
        tool.name = free_name(&tool.name, &taken);
        self.entries.push(Entry { tool, origin });
    }
}

impl Drop for Toolbox {
    fn drop(&mut self) {
        let servers = std::mem::take(&mut self.servers);
        if let Some(runtime) = self.runtime.take() {
            runtime.block_on(async {
                for server in servers {
                    server.end().await;
                }
            });
            runtime.shutdown_background();
        }
    }
}

/// Waits until the user stops the work.
async fn cancelled(cancel: &Cancel) {
    let (sender, receiver) = oneshot::channel();
    let _callback = cancel.on_cancel(move || {
        // The receiver exists until this function returns.
        let _ = sender.send(());
    });
    let _ = receiver.await;
}

/// Returns a name that requests allow and that is not taken.
fn free_name(name: &str, taken: &BTreeSet<&str>) -> String {
    let mut base: String =
        name.chars().map(|c| if Tool::is_name_char(c) { c } else { '_' }).take(MAX_NAME_START).collect();
    if base.is_empty() {
        base.push_str("tool");
    }
    let numbered = (2..).map(|number| format!("{base}_{number}"));
    let mut names = std::iter::once(base.clone()).chain(numbered);
    names.find(|name| !taken.contains(name.as_str())).unwrap_or(base)
}

/// Returns a text cut to the limit of results, with a note.
fn cut(text: &str) -> String {
    if text.len() <= MAX_RESULT {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(MAX_RESULT);
    format!("{}\n[The result was cut after {end} bytes.]", &text[..end])
}

/// Returns a definition for requests.
fn definition(name: String, description: Option<String>, parameters: ExactJson) -> Tool {
    Tool { name, description, parameters, strictness: Strictness::BestEffort, text: None, field: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_unique() {
        let taken = ["read", "read_2"].into();
        assert_eq!(free_name("read", &taken), "read_3");
        assert_eq!(free_name("fs/read file", &taken), "fs_read_file");
        assert_eq!(free_name("", &taken), "tool");
        assert_eq!(free_name(&"a".repeat(500), &taken).len(), MAX_NAME_START);
    }

    #[test]
    fn long_results_are_cut_between_characters() {
        let text = "é".repeat(MAX_RESULT);
        let found = cut(&text);
        assert!(found.len() < MAX_RESULT + 100 && found.ends_with("[The result was cut after 65536 bytes.]"));
        assert_eq!(cut("short"), "short");
    }
}
