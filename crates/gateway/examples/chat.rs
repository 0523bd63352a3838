//! Asks a model one question: `cargo run --example chat -p narthex-gateway -- "What is the capital of France?"`.

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::{error::Error, sync::mpsc};

use narthex_gateway::{
    Cancel, Config, Gateway,
    request::{
        ChatRequest, GenerateOptions, GenerationEvent, HistoryOverflow, Message, ReasoningSettings, Role,
        ToolSettings,
    },
};
use narthex_spec::progress::Quiet;

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
        overflow: HistoryOverflow::Refuse,
        options: GenerateOptions {
            temperature: 0.0,
            max_tokens: Some(64),
            ..GenerateOptions::api_defaults()
        },
    };
    let (sender, events) = mpsc::channel();
    let _generation = gateway.chat(&model.id(), request, Box::new(sender))?;
    let mut answer = String::new();
    for event in events {
        match event {
            GenerationEvent::Text { text, .. } => answer.push_str(&text),
            GenerationEvent::Failed { message, .. } => return Err(message.into()),
            GenerationEvent::Done(_) => break,
            _ => {}
        }
    }
    println!("{answer}");
    Ok(())
}
