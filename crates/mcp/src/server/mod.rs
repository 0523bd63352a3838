//! Narthex's own tools for agents: an MCP server over standard input and output.
//!
//! Start at [`serve`]. `calls` has the arguments and the answers of each tool, `models` the choice and the load of a
//! model.

mod calls;
mod models;

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use narthex_gateway::{
    AutoPull, Cancel, Drain, Gateway, Rights, check::VendorCompiler, check_threads, redact,
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, JsonObject,
        ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ServerConfig,
        Tool, ToolAnnotations,
    },
    service::{RequestContext, ServerInitializeError},
    transport::io::stdio_pipes,
};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, interval},
};

use calls::{CALLS, CallError, CallSite, ToolAnswer};

/// Number of threads that serve the connection.
const WORKERS: usize = 2;

/// Maximum number of calls at once. Further calls are refused.
const MAX_CALLS: usize = 64;

/// Interval between progress notifications to a client that requested them.
const PROGRESS: Duration = Duration::from_secs(5);

/// Maximum bytes of the text of a failed call, which may quote a file or the call.
const MAX_FAILURE: usize = 1000;

/// Settings of the tools.
#[derive(Debug, Clone)]
pub struct McpOptions {
    /// Model of `chat`; `None` for the newest installed one.
    pub chat_model: Option<String>,
    /// Model of `embeddings`; `None` for the newest installed one.
    pub embedding_model: Option<String>,
    /// Model of `rerank`; `None` for the newest installed one.
    pub rerank_model: Option<String>,
    /// Downloads and compiles that calls may start. The models above are fetched in any case.
    pub auto_pull: AutoPull,
    /// Use of vendors' compilers by `check`.
    pub compiler: VendorCompiler,
}

/// Failure of the server.
#[derive(Debug, thiserror::Error)]
pub enum McpError {
    /// The runtime for asynchronous work cannot be started.
    #[error("the server cannot be started: {0}")]
    Runtime(#[from] std::io::Error),
    /// The client did not follow the MCP protocol.
    #[error("the client did not start with MCP's handshake: {0}; start `narthex mcp` from an MCP client")]
    Handshake(String),
}

/// Serves the tools over standard input and output until the input ends or `signal` does. Calls that run at the end of
/// the input have some seconds to finish; at the signal they are cancelled.
///
/// # Errors
/// [`McpError::Handshake`] for a client that does not begin with MCP's handshake.
pub fn serve(
    gateway: &Gateway,
    options: McpOptions,
    signal: impl Future<Output = ()>,
) -> Result<(), McpError> {
    // Tokio panics if it cannot start its workers.
    check_threads(WORKERS)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(MAX_CALLS + 4)
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(serve_until(gateway, options, signal));
    gateway.shutdown(Drain::Now);
    // Standard input may still be read, which nothing can interrupt.
    runtime.shutdown_background();
    outcome
}

async fn serve_until(
    gateway: &Gateway,
    options: McpOptions,
    signal: impl Future<Output = ()>,
) -> Result<(), McpError> {
    let (stop, stopped) = watch::channel(false);
    let tools = ToolServer::new(gateway, options, stopped);
    let mut signal = pin!(signal);
    let running = tokio::select! {
        running = rmcp::serve_server(tools, stdio_pipes()) => running,
        () = &mut signal => return Ok(()),
    };
    let running = match running {
        Ok(running) => running,
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(McpError::Handshake(error.to_string())),
    };

    let end = running.cancellation_token();
    let mut ended = pin!(running.waiting());
    tokio::select! {
        _ = &mut ended => {}
        () = &mut signal => {
            let _ = stop.send(true);
            end.cancel();
            let _ = ended.await;
        }
    }
    Ok(())
}

/// The handler of MCP's requests.
struct ToolServer {
    site: Arc<CallSite>,
    /// Permits for concurrent calls.
    permits: Arc<Semaphore>,
    /// Set when the server stops.
    stopped: watch::Receiver<bool>,
}

impl ToolServer {
    fn new(gateway: &Gateway, options: McpOptions, stopped: watch::Receiver<bool>) -> Self {
        let rights = Rights { auto_pull: options.auto_pull, ..Rights::default() };
        let gateway = gateway.with_rights(Arc::new(rights));
        let site = Arc::new(CallSite { gateway, options });
        Self { site, permits: Arc::new(Semaphore::new(MAX_CALLS)), stopped }
    }

    /// Runs a call on its own thread. The call is cancelled if the client cancels it or the server is shutting down.
    async fn run(
        &self,
        name: &str,
        arguments: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> CallToolResult {
        let Ok(permit) = self.permits.clone().try_acquire_owned() else {
            let message =
                format!("expected at most {MAX_CALLS} calls at once, found more; wait for an answer");
            return failed(message, None);
        };

        let cancel = Cancel::new();
        let site = self.site.clone();
        let name = name.to_owned();
        let job = {
            let cancel = cancel.clone();
            tokio::task::spawn_blocking(move || {
                let answer = site.call(&name, arguments, &cancel);
                drop(permit);
                answer
            })
        };

        let mut stopped = self.stopped.clone();
        // The sender lives as long as the server.
        let stopping = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
        let mut job = pin!(job);
        let mut stopping = pin!(stopping);
        let started = Instant::now();
        let mut progress = interval(PROGRESS);

        loop {
            tokio::select! {
                answer = &mut job => {
                    return answer.map_or_else(|_| failed("the call panicked; please report this".to_owned(), None), result);
                }
                () = context.ct.cancelled(), if !cancel.is_cancelled() => cancel.cancel(),
                () = &mut stopping, if !cancel.is_cancelled() => cancel.cancel(),
                _ = progress.tick() => {
                    if let Some(token) = context.meta.get_progress_token() {
                        let seconds = started.elapsed().as_secs_f64();
                        // A client that has left needs no progress.
                        let _ = context.peer.notify_progress(ProgressNotificationParam::new(token, seconds)).await;
                    }
                }
            }
        }
    }
}

impl ServerHandler for ToolServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("narthex", env!("CARGO_PKG_VERSION")).with_title("Narthex"))
            .with_instructions(
                "Language models of this machine. A call without `model` uses an installed one. The first call of a model \
                 takes longer, because it loads the model.",
            )
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools().into_iter().find(|tool| tool.name == name)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if CALLS.iter().all(|call| call.name != request.name) {
            let names: Vec<&str> = CALLS.iter().map(|call| call.name).collect();
            let name: String = request.name.chars().take(100).collect();
            let message = format!("expected one of the tools {}, found {name:?}", names.join(", "));
            return Err(ErrorData::invalid_params(message, None));
        }
        let arguments = request.arguments.unwrap_or_default();
        Ok(self.run(&request.name, arguments, &context).await.into())
    }
}

/// Returns the definitions of the tools.
fn tools() -> Vec<Tool> {
    let tools = CALLS.iter().map(|call| {
        let annotations = ToolAnnotations::new().read_only(true).destructive(false).open_world(false);
        let tool = Tool::new(call.name, call.description, Arc::new((call.input)())).annotate(annotations);
        match call.output {
            Some(output) => tool.with_raw_output_schema(Arc::new(output())),
            None => tool,
        }
    });
    tools.collect()
}

fn result(answer: Result<ToolAnswer, CallError>) -> CallToolResult {
    match answer {
        Ok(ToolAnswer { text, structured }) => {
            let mut result = CallToolResult::success(text.into_iter().map(ContentBlock::text).collect());
            result.structured_content = structured;
            result
        }
        Err(error) => failed(error.to_string(), error.hint()),
    }
}

fn failed(message: String, hint: Option<String>) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(failure_text(&message, hint.as_deref()))])
}

/// Returns the text of a failed call without credentials, cut to [`MAX_FAILURE`].
fn failure_text(message: &str, hint: Option<&str>) -> String {
    let hint = hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
    let text = format!("{message}{hint}");
    // A cut in the middle of a credential would hide it from the search, so the whole text is searched.
    let text = redact(&text);
    match text.len() {
        ..=MAX_FAILURE => text.into_owned(),
        _ => format!("{}…", &text[..text.floor_char_boundary(MAX_FAILURE)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_short_and_without_credentials() {
        let found = failure_text("cannot reach https://u:secret@h", Some("check the address"));
        assert_eq!(found, "cannot reach https://***@h\nhint: check the address");
        let padding = "é".repeat(MAX_FAILURE / 2 - 6);
        let found = failure_text(&format!("{padding}https://u:{}@h", "secret".repeat(1 << 20)), None);
        assert_eq!(found, format!("{padding}https://***@…"));
    }
}
