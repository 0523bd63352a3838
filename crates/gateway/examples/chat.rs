//! Asks a model one question: `cargo run --example chat -p narthex-gateway -- "What is the capital of France?"`.

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::{error::Error, sync::mpsc};

use narthex_gateway::{
    Cancel, Config, Gateway,
    request::{
        ChatRequest, GenerateOptions, GenerationEvent, GenerationSink, Message, ReasoningSettings, Role,
        ToolSettings,
    },
};
use narthex_spec::progress::Quiet;

/// Sends the events of an answer to another thread. Stops the answer if the receiver is gone.
struct Channel(mpsc::Sender<GenerationEvent>);

impl GenerationSink for Channel {
    fn event(&mut self, event: GenerationEvent) -> std::ops::ControlFlow<()> {
        match self.0.send(event) {
            Ok(()) => std::ops::ControlFlow::Continue(()),
            Err(_) => std::ops::ControlFlow::Break(()),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let question = std::env::args().nth(1).unwrap_or_else(|| "What is the capital of France?".to_owned());
    narthex_gateway::disable_telemetry();
    let gateway = Gateway::open(Config::standard())?;
    // The first load downloads and compiles the model.
    let model = gateway.load("smollm2:135m", &Quiet, &Cancel::new())?;
    let request = ChatRequest {
        messages: vec![Message::new(Role::User, question)],
        tools: ToolSettings::default(),
        reasoning: ReasoningSettings::default(),
        options: GenerateOptions {
            temperature: 0.0,
            max_tokens: Some(64),
            ..GenerateOptions::api_defaults()
        },
    };
    let (sender, events) = mpsc::channel();
    let _generation = gateway.chat(&model.id(), request, Box::new(Channel(sender)))?;
    let mut answer = String::new();
    for event in events {
        match event {
            GenerationEvent::Text { text, .. } => answer.push_str(&text),
            GenerationEvent::Failed { message } => return Err(message.into()),
            GenerationEvent::Done(_) => break,
            _ => {}
        }
    }
    println!("{answer}");
    Ok(())
}
