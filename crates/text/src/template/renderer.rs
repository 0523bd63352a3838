//! The thread on which one template is rendered, for as long as the template lives.
//!
//! Rendering needs a deep stack, which takes longer to set up than a conversation takes to render; and what the template
//! compiles to borrows its source, which the thread's own stack can hold beside it.

use std::{
    collections::BTreeMap,
    sync::mpsc::{self, Receiver, Sender, SyncSender},
    thread,
};

use minijinja::{
    AutoEscape, Environment, Value, context,
    machinery::{self, CodeGenerator, Instructions},
    value::Serde,
};

use super::{
    FUEL, GenerationPrompt, Message, RenderOptions, TemplateError, environment, guard, python, syntax,
};
use crate::barrier::contain;

/// Bytes of stack for a template. minijinja walks nested values by recursion, with up to 512 bytes a level (measured,
/// in minijinja 3.0.5), and a step nests one level at most.
const STACK: usize = FUEL as usize * 1024;

/// A template that waits for conversations.
#[derive(Debug)]
pub(super) struct Renderer {
    jobs: Sender<Job>,
}

struct Job {
    messages: Vec<Message>,
    options: RenderOptions,
    answer: SyncSender<Result<String, TemplateError>>,
}

/// What a template compiles to: its own instructions, and those of its blocks by name.
type Compiled<'a> = (Instructions<'a>, BTreeMap<&'a str, Instructions<'a>>);

impl Renderer {
    /// Compiles a template on a thread of its own.
    pub(super) fn start(
        source: String,
        special_tokens: BTreeMap<String, String>,
    ) -> Result<Self, TemplateError> {
        let (jobs, waiting) = mpsc::channel();
        let (ready, compiled) = mpsc::sync_channel(1);
        thread::Builder::new()
            .name("chat-template".to_owned())
            .stack_size(STACK)
            .spawn(move || work(&source, &Value::from(Serde(&special_tokens)), &ready, &waiting))
            .map_err(|error| failed(format!("expected a thread to render on, found: {error}")))?;
        compiled.recv().unwrap_or_else(|_| Err(panicked()))?;
        Ok(Self { jobs })
    }

    /// Renders one conversation.
    pub(super) fn render(
        &self,
        messages: Vec<Message>,
        options: RenderOptions,
    ) -> Result<String, TemplateError> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.jobs.send(Job { messages, options, answer }).map_err(|_| panicked())?;
        answered.recv().unwrap_or_else(|_| Err(panicked()))
    }
}

/// Compiles the template, says whether that went well, and renders until nobody can ask any more. A panic of the
/// template engine is an error of the conversation that it met.
fn work(
    source: &str,
    special_tokens: &Value,
    ready: &SyncSender<Result<(), TemplateError>>,
    jobs: &Receiver<Job>,
) {
    let malformed = |error: minijinja::Error| TemplateError::Malformed { reason: format!("{error:#}") };
    let compiled = match contain(|| compile(source)) {
        Ok(Ok(compiled)) => compiled,
        Ok(Err(error)) => return drop(ready.send(Err(malformed(error)))),
        Err(_) => return drop(ready.send(Err(panicked()))),
    };
    if ready.send(Ok(())).is_err() {
        return;
    }
    for Job { messages, options, answer } in jobs {
        let text = contain(|| render(&compiled, &messages, &options, special_tokens));
        // Whoever asked may have gone.
        let _ = answer.send(text.unwrap_or_else(|_| Err(panicked())));
    }
}

/// Parses a template and compiles it with its guard.
fn compile(source: &str) -> Result<Compiled<'_>, minijinja::Error> {
    const NAME: &str = "chat template";
    let tree = machinery::parse(source, NAME, syntax()?)?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&guard::statement(&tree));
    Ok(generator.finish())
}

fn render(
    (instructions, blocks): &Compiled<'_>,
    messages: &[Message],
    options: &RenderOptions,
    special_tokens: &Value,
) -> Result<String, TemplateError> {
    let failed = |error: minijinja::Error| match python::refusal(&error) {
        Some(message) => TemplateError::Refused { message },
        None => failed(format!("{error:#}")),
    };
    let env: Environment<'_> = environment(options.date).map_err(failed)?;
    let values = context! {
        messages => Value::from(Serde(messages)),
        add_generation_prompt => options.generation_prompt == GenerationPrompt::Add,
        // Templates ask whether these are none, which what is not there is not.
        tools => (!options.tools.is_empty()).then(|| Value::from(Serde(&options.tools))),
        documents => Value::from(()),
        ..special_tokens.clone(),
    };
    let mut text = String::new();
    let mut output = machinery::make_string_output(&mut text);
    machinery::eval(&env, instructions, values, blocks, &mut output, AutoEscape::None)
        .map(drop)
        .map_err(failed)?;
    Ok(text)
}

fn failed(reason: String) -> TemplateError {
    TemplateError::Failed { reason }
}

fn panicked() -> TemplateError {
    failed("the template engine panicked".to_owned())
}
