//! Lines of JSON to and from an MCP server. They are those of rmcp, except that integers beyond 64 bits in the arguments of a
//! call keep their digits.

use std::{collections::BTreeMap, io, sync::Arc};

use narthex_gateway::request::ExactJson;
use rmcp::{
    RoleClient,
    model::{CallToolRequestParams, MetaObject, RequestMetaObject},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::{Transport, async_rw::AsyncRwTransport},
};
use serde_json::{Value, value::RawValue};
use tokio::{
    io::{AsyncWriteExt, Sink, sink},
    process::{ChildStdin, ChildStdout},
    sync::Mutex,
};

/// Field of a call's metadata with the text of its arguments, which replaces them and is not sent.
const ARGUMENTS: &str = "narthex/arguments";

/// Pipes of a server.
pub(super) struct ServerPipes {
    output: AsyncRwTransport<RoleClient, ChildStdout, Sink>,
    /// `None` once it is closed.
    input: Arc<Mutex<Option<ChildStdin>>>,
}

impl ServerPipes {
    pub(super) fn new(output: ChildStdout, input: ChildStdin) -> Self {
        let output = AsyncRwTransport::new(output, sink());
        Self { output, input: Arc::new(Mutex::new(Some(input))) }
    }
}

impl Transport<RoleClient> for ServerPipes {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let input = self.input.clone();
        async move {
            let line = line(&message)? + "\n";
            let mut input = input.lock().await;
            let input = input.as_mut().ok_or(io::ErrorKind::NotConnected)?;
            input.write_all(line.as_bytes()).await?;
            input.flush().await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        self.output.receive().await
    }

    async fn close(&mut self) -> io::Result<()> {
        drop(self.input.lock().await.take());
        Ok(())
    }
}

/// Returns the parameters of a call.
pub(super) fn call(name: &str, arguments: &ExactJson) -> CallToolRequestParams {
    let fields = arguments.as_object().cloned().unwrap_or_default();
    let mut call = CallToolRequestParams::new(name.to_owned()).with_arguments(fields);
    if arguments.source_bytes() > 0 {
        let meta = [(ARGUMENTS.to_owned(), Value::from(arguments.to_string()))];
        call.meta = Some(RequestMetaObject(MetaObject(meta.into_iter().collect())));
    }
    call
}

/// Returns a message as JSON.
fn line(message: &TxJsonRpcMessage<RoleClient>) -> serde_json::Result<String> {
    let text = serde_json::to_string(message)?;
    if !text.contains(ARGUMENTS) {
        return Ok(text);
    }
    let mut message: BTreeMap<&str, Box<RawValue>> = serde_json::from_str(&text)?;
    let Some(params) = message.get("params") else { return Ok(text) };
    let mut params: BTreeMap<String, Box<RawValue>> = serde_json::from_str(params.get())?;
    let Some(meta) = params.get("_meta") else { return Ok(text) };
    let mut meta: BTreeMap<String, Value> = serde_json::from_str(meta.get())?;
    let Some(Value::String(arguments)) = meta.remove(ARGUMENTS) else { return Ok(text) };

    params.insert("arguments".to_owned(), RawValue::from_string(arguments)?);
    params.insert("_meta".to_owned(), serde_json::value::to_raw_value(&meta)?);
    message.insert("params", serde_json::value::to_raw_value(&params)?);
    serde_json::to_string(&message)
}
