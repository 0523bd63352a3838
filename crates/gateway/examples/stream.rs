//! Prints an answer while it is generated, then its device and speed: `cargo run --example stream -p narthex-gateway`.

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::{
    error::Error,
    io::{Write, stdout},
    ops::ControlFlow,
    sync::mpsc,
};

use narthex_gateway::{
    Cancel, Config, Gateway, Quiet,
    request::{CompletionRequest, Echo, GenerateOptions, GenerationEvent, GenerationSink, Prompt, Summary},
};

/// Prints text on the engine's thread, and sends the summary or the error at the end of the answer.
struct Printer(mpsc::Sender<Result<Summary, String>>);

impl GenerationSink for Printer {
    fn event(&mut self, event: GenerationEvent) -> ControlFlow<()> {
        let end = match event {
            GenerationEvent::Text { text, .. } => {
                let mut stdout = stdout().lock();
                // Without a reader of the output the answer stops.
                return match write!(stdout, "{text}").and_then(|()| stdout.flush()) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                };
            }
            GenerationEvent::Done(summary) => Ok(summary),
            GenerationEvent::Failed { message, .. } => Err(message),
            _ => return ControlFlow::Continue(()),
        };
        // The receiver may have left.
        let _ = self.0.send(end);
        ControlFlow::Break(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let gateway = Gateway::open(Config::standard())?;
    let model = gateway.load("smollm2:135m", &Quiet, &Cancel::new())?;
    let request = CompletionRequest {
        prompt: Prompt::Text("A ferry leaves the harbour at dawn, and".to_owned()),
        echo: Echo::PromptAndCompletion,
        options: GenerateOptions { max_tokens: Some(24), ..GenerateOptions::api_defaults() },
    };
    let (sender, end) = mpsc::channel();
    let _generation = gateway.complete(&model.id(), request, Box::new(Printer(sender)))?;
    let summary = end.recv()??;
    let device = model.device().map_or_else(|| "no device".to_owned(), |device| device.to_string());
    let tokens = summary.completion_tokens;
    let speed = summary.times.map_or(0.0, |times| times.decode_rate(tokens));
    println!("\n{tokens} tokens on {device}, {speed:.1} tokens/s");
    Ok(())
}
