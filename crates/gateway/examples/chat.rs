//! Asks a model one question: `cargo run --example chat -p narthex-gateway -- "What is the capital of France?"`.

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use narthex_gateway::{Cancel, Config, Error, Gateway, Quiet, request::ChatRequest};

fn main() -> Result<(), Error> {
    let question = std::env::args().nth(1).unwrap_or_else(|| "What is the capital of France?".to_owned());
    let gateway = Gateway::open(Config::standard())?;
    // The first load downloads and compiles the model.
    let model = gateway.load("smollm2:135m", &Quiet, &Cancel::new())?;
    let mut request = ChatRequest::user(question);
    request.options.temperature = Some(0.0);
    request.options.max_tokens = Some(64);
    println!("{}", gateway.stream(&model.id(), request)?.text()?);
    Ok(())
}
