//! `narthex` without a command.

use crate::output;

const WELCOME: &str = r#"Narthex runs language models on the NPU, GPU and CPU of this machine.

Ask a small model a question. The first run downloads it, about 100 MB:
  narthex run smollm2:135m "What is the capital of France?"

See which models suit this machine:
  narthex list --available

Chat, and install models, in a page of the browser:
  narthex serve --open

Serve the OpenAI API on http://127.0.0.1:8000/v1:
  narthex serve

`narthex --help` lists all commands."#;

/// Prints the first steps.
pub(crate) fn run() -> anyhow::Result<()> {
    output::line(WELCOME)
}
