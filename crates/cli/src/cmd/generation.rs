//! A generation that is printed while it runs, for `chat` and `complete`.

use std::{
    ops::ControlFlow,
    path::Path,
    sync::mpsc::{self, Receiver, Sender},
    time::{Duration, Instant},
};

use narthex_gateway::{
    Error, Gateway, Generation,
    models::ModelStatus,
    request::{
        ChatRequest, FinishReason, GenerateOptions, GenerationEvent, GenerationSink, Grammar,
        HistoryOverflow, Message, ReadDocument, ReadSource, Reading, ReadingSettings, ReasoningSettings,
        Repetition, RequestGrammar, Summary, ToolCallDelta, ToolCallStart, ToolSettings,
    },
};
use narthex_mcp::rounds::WrittenCall;
use serde::Serialize;
use serde_json::Value;

use super::question_files;
use crate::{
    answer_text::AnswerText,
    args::GenerateArgs,
    hidden_typing::HiddenTyping,
    input_file, interrupt, output, render,
    running_server::{ServedAnswer, ServedModel},
};

/// An answer that was printed.
pub(super) struct PrintedAnswer {
    pub(super) text: String,
    pub(super) reasoning: String,
    pub(super) calls: Vec<WrittenCall>,
    /// Reason of the end, unless the answer was interrupted.
    finish: Option<FinishReason>,
    /// Token counts and times. An interrupted answer has none if the engine did not stop in time.
    pub(super) summary: Option<Summary>,
    /// The part of a text that is the answer of a question-answering model.
    reading: Option<Box<Reading>>,
}

impl PrintedAnswer {
    /// Returns whether Ctrl-C stopped the answer.
    pub(super) fn is_interrupted(&self) -> bool {
        self.finish.is_none()
    }

    /// Returns the answer as one that Ctrl-C stopped, as during its tool calls.
    pub(super) fn interrupted(self) -> Self {
        Self { finish: None, ..self }
    }

    /// Notes why the answer has no complete end.
    fn note_end(&self) {
        match self.finish {
            Some(FinishReason::Length) if self.calls.is_empty() => {
                output::note("The answer was cut off at --max-tokens or at the end of the model's context.")
            }
            Some(FinishReason::Length) => {
                output::note("The tool calls were cut off at the token limit; increase --max-tokens.");
            }
            Some(FinishReason::Repetition) => output::note(
                "The answer repeats itself and was stopped; --max-tokens states a length instead.",
            ),
            _ => {}
        }
    }
}

/// The output of `--json`.
#[derive(Serialize)]
struct AnswerJson<'a> {
    model: String,
    device: Option<String>,
    text: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reasoning: &'a str,
    finish_reason: &'static str,
    usage: UsageJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    reading: Option<ReadingJson<'a>>,
    /// Times in milliseconds, unless software stood in for an NPU.
    times: Option<TimesJson>,
}

/// Where the answer of a question-answering model stands, in characters.
#[derive(Serialize)]
struct ReadingJson<'a> {
    answered: bool,
    no_answer_score: f64,
    text: Option<&'a str>,
    score: Option<f64>,
    start: Option<usize>,
    end: Option<usize>,
    /// Title of the document.
    document: Option<&'a str>,
}

impl<'a> ReadingJson<'a> {
    fn new(reading: &'a Reading) -> Self {
        let answer = reading.span.as_ref().map(|span| &span.answer);
        let document = match reading.span.as_ref().map(|span| &span.source) {
            Some(ReadSource::Document { title, .. }) => title.as_deref(),
            _ => None,
        };
        Self {
            answered: reading.is_answered,
            no_answer_score: reading.no_answer,
            text: answer.map(|answer| answer.text.as_str()),
            score: answer.map(|answer| answer.score),
            start: answer.map(|answer| answer.chars.start),
            end: answer.map(|answer| answer.chars.end),
            document,
        }
    }
}

#[derive(Serialize)]
struct UsageJson {
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    reasoning_tokens: usize,
}

#[derive(Serialize)]
struct TimesJson {
    first_token_ms: f64,
    total_ms: f64,
    tokens_per_second: f64,
}

impl<'a> AnswerJson<'a> {
    fn new(status: &ModelStatus, answer: &'a PrintedAnswer) -> Self {
        let summary = answer.summary.unwrap_or_default();

        Self {
            model: status.id(),
            device: status.placement.as_ref().map(|placement| placement.name()),
            text: &answer.text,
            reasoning: &answer.reasoning,
            finish_reason: match answer.finish {
                Some(FinishReason::Stop | FinishReason::StopString { .. }) => "stop",
                Some(FinishReason::ToolCalls | FinishReason::MixedCalls) => "tool_calls",
                Some(FinishReason::MalformedCall) => "malformed_tool_call",
                Some(FinishReason::Length) => "length",
                Some(FinishReason::Repetition) => "repetition",
                Some(FinishReason::Cancelled) | None => "cancelled",
            },
            usage: UsageJson {
                prompt_tokens: summary.prompt_tokens,
                cached_tokens: summary.cached_tokens,
                completion_tokens: summary.completion_tokens,
                reasoning_tokens: summary.reasoning_tokens,
            },
            reading: answer.reading.as_deref().map(ReadingJson::new),
            times: summary.times.map(|times| TimesJson {
                first_token_ms: times.first_token.as_secs_f64() * 1e3,
                total_ms: times.total.as_secs_f64() * 1e3,
                tokens_per_second: times.decode_rate(summary.completion_tokens),
            }),
        }
    }
}

/// Maximum time for the engine to end an interrupted answer, so that its tokens are counted.
const LAST_STEP: Duration = Duration::from_millis(300);

/// A loaded model and the options of its answers.
pub(super) struct ChatModel<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) args: &'a GenerateArgs,
    /// Name of the model in requests.
    pub(super) name: &'a str,
    pub(super) status: &'a ModelStatus,
    /// The model, if a running server has it in memory instead of this process.
    pub(super) served: Option<&'a ServedModel>,
    /// Texts that a question-answering model reads.
    pub(super) documents: &'a [ReadDocument],
}

/// An answer that is being generated, by this process or by a running server.
pub(super) enum RunningAnswer {
    Own(Generation),
    Served(ServedAnswer),
}

impl RunningAnswer {
    fn cancel(&self) {
        match self {
            Self::Own(generation) => generation.cancel(),
            Self::Served(answer) => answer.cancel(),
        }
    }

    /// Returns the part of a text that is the answer of a question-answering model.
    fn reading(&self) -> Option<Box<Reading>> {
        match self {
            Self::Own(generation) => generation.reading.clone(),
            Self::Served(_) => None,
        }
    }

    fn omitted_messages(&self) -> usize {
        match self {
            Self::Own(generation) => generation.omitted_messages,
            Self::Served(_) => 0,
        }
    }
}

/// Prints the answer to a conversation while it is generated.
pub(super) fn print_chat(
    model: &ChatModel<'_>,
    messages: Vec<Message>,
    tools: ToolSettings,
) -> anyhow::Result<PrintedAnswer> {
    let ChatModel { gateway, args, name, status, served, documents } = model;
    let request = ChatRequest {
        messages,
        tools,
        reasoning: ReasoningSettings::default(),
        overflow: HistoryOverflow::OmitOldest,
        reading: ReadingSettings { documents: documents.to_vec(), min_score: None },
        options: options(args)?,
    };
    match served {
        Some(served) => {
            let mut request = request;
            // A server's default is another one.
            if !gateway.manifest(&status.id()).is_ok_and(|manifest| manifest.sampling.temperature.is_some()) {
                request.options.temperature.get_or_insert(request.options.default_temperature);
            }
            print(|sink| Ok(RunningAnswer::Served(served.chat(&request, sink)?)), args)
        }
        None => print(|sink| Ok(RunningAnswer::Own(gateway.chat(name, request, sink)?)), args),
    }
}

/// Event for the thread that prints an answer.
enum PrintEvent {
    Generation(GenerationEvent),
    /// The generation has no more events.
    End,
    /// Ctrl-C was pressed.
    Interrupt,
}

/// Sink that sends the events of a generation to the thread that prints it.
struct PrintSink(Sender<PrintEvent>);

impl GenerationSink for PrintSink {
    fn event(&mut self, event: GenerationEvent) -> ControlFlow<()> {
        match self.0.send(PrintEvent::Generation(event)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

impl Drop for PrintSink {
    fn drop(&mut self) {
        // The printing may have ended.
        let _ = self.0.send(PrintEvent::End);
    }
}

/// Prints a generation while it runs, unless its output is JSON.
pub(super) fn print(
    start: impl FnOnce(Box<dyn GenerationSink>) -> anyhow::Result<RunningAnswer>,
    args: &GenerateArgs,
) -> anyhow::Result<PrintedAnswer> {
    let (sender, events) = mpsc::channel();
    let job = interrupt::job();
    let interrupts = sender.clone();
    let _callback = job.on_cancel(move || drop(interrupts.send(PrintEvent::Interrupt)));
    let turn = start(Box::new(PrintSink(sender)))?;
    let omitted = turn.omitted_messages();
    if omitted > 0 {
        output::note(format!(
            "The conversation is too long for the model, so the oldest {omitted} messages are omitted."
        ));
    }

    let mut answer = PrintedAnswer {
        text: String::new(),
        reasoning: String::new(),
        calls: Vec::new(),
        finish: None,
        summary: None,
        reading: turn.reading(),
    };
    let _hidden = HiddenTyping::start();
    let mut shown = AnswerText::for_stdout(args.markdown);
    let mut write = |text: &str| if args.json { Ok(()) } else { output::styled_text(&shown.push(text)) };
    while answer.summary.is_none() {
        let event = match events.recv() {
            Ok(PrintEvent::Generation(event)) if !job.is_cancelled() => event,
            Ok(PrintEvent::End) | Err(_) => {
                anyhow::bail!("the engine stopped before the answer was complete")
            }
            Ok(PrintEvent::Interrupt | PrintEvent::Generation(_)) => {
                turn.cancel();
                write("\n")?;
                return Ok(PrintedAnswer { finish: None, summary: last_summary(&events), ..answer });
            }
        };
        match event {
            GenerationEvent::Started { .. } => {}
            GenerationEvent::Reasoning { text, .. } => {
                answer.reasoning.push_str(&text);
                write(&text)?;
            }
            GenerationEvent::Text { text, .. } => {
                if !answer.reasoning.is_empty() && answer.text.is_empty() {
                    write("\n\n")?;
                }
                answer.text.push_str(&text);
                write(&text).inspect_err(|_| turn.cancel())?;
            }
            GenerationEvent::ToolCall { delta, .. } => add_call(&mut answer.calls, delta),
            GenerationEvent::Finished { reason, .. } => answer.finish = Some(reason),
            GenerationEvent::Done(summary) => answer.summary = Some(summary),
            GenerationEvent::Failed { message, .. } => anyhow::bail!("the answer failed: {message}"),
        }
    }

    if answer.calls.is_empty() || !answer.text.is_empty() || !answer.reasoning.is_empty() {
        write("\n")?;
    }
    if !args.quiet {
        answer.note_end();
        answer.reading.as_deref().and_then(question_files::place).into_iter().for_each(output::note);
    }
    // The text has a call that is cut or malformed.
    if !matches!(answer.finish, Some(FinishReason::ToolCalls | FinishReason::MixedCalls)) {
        answer.calls.clear();
    }
    Ok(answer)
}

/// Returns the token counts of a cancelled generation, if it ends in time.
fn last_summary(events: &Receiver<PrintEvent>) -> Option<Summary> {
    let deadline = Instant::now() + LAST_STEP;
    loop {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()? {
            PrintEvent::Generation(GenerationEvent::Done(summary)) => return Some(summary),
            PrintEvent::End => return None,
            PrintEvent::Generation(_) | PrintEvent::Interrupt => {}
        }
    }
}

/// Adds a part of a call.
fn add_call(calls: &mut Vec<WrittenCall>, delta: ToolCallDelta) {
    if let Some(ToolCallStart { id, name }) = delta.start {
        calls.push(WrittenCall { id, name, arguments: String::new() });
    }
    if let Some(call) = calls.last_mut() {
        call.arguments.push_str(&delta.arguments);
    }
}

/// Returns the gateway's options.
pub(super) fn options(args: &GenerateArgs) -> anyhow::Result<GenerateOptions> {
    let grammar = args.format.as_deref().map(grammar).transpose()?;
    // A user who states a length wants that length, and a schema decides where its text ends.
    let is_free = args.max_tokens.is_none() && grammar.is_none();
    Ok(GenerateOptions {
        max_tokens: args.max_tokens,
        temperature: args.sampling.temperature,
        default_temperature: 0.0,
        top_p: args.sampling.top_p,
        top_k: args.sampling.top_k,
        min_p: args.sampling.min_p,
        repetition_penalty: args.sampling.repeat_penalty,
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        seed: args.seed,
        stop: args.sampling.stop.clone(),
        grammar: grammar.map(|grammar| RequestGrammar { grammar, field: "--format" }),
        repetition: if is_free { Repetition::End } else { Repetition::Allow },
        ..GenerateOptions::api_defaults()
    })
}

/// Reads `--format`: `json`, a schema, or the path of a file with one.
fn grammar(format: &str) -> anyhow::Result<Grammar> {
    if format == "json" {
        return Ok(Grammar::json_object());
    }
    let schema = if format.trim_start().starts_with('{') {
        format.to_owned()
    } else {
        input_file::text(Path::new(format))?
    };
    match serde_json::from_str(&schema) {
        Ok(schema @ Value::Object(_)) => Ok(Grammar::JsonSchema(schema)),
        Ok(_) => Err(Error::invalid("format", "expected a JSON schema, found another JSON value").into()),
        Err(error) => {
            Err(Error::invalid("format", format!("expected a JSON schema, found malformed JSON: {error}"))
                .into())
        }
    }
}

/// Ends an answer: prints it as JSON if that was asked for, and its device and speed. Fails if it was interrupted.
pub(super) fn finish(
    args: &GenerateArgs,
    status: &ModelStatus,
    answer: &PrintedAnswer,
) -> anyhow::Result<()> {
    if answer.is_interrupted() {
        return Err(Error::Cancelled.into());
    }
    if args.json {
        output::json(&AnswerJson::new(status, answer))?;
    }
    print_speed(args, status, answer);
    Ok(())
}

/// Prints the device and the speed of an answer, and whether it was stopped. A server does not tell the speed of an answer
/// that was stopped.
pub(super) fn print_speed(args: &GenerateArgs, status: &ModelStatus, answer: &PrintedAnswer) {
    if args.quiet || args.json {
        return;
    }
    let speed = answer.summary.map(|summary| render::answer_line(status, &summary));
    let stopped = answer.is_interrupted().then(|| "stopped".to_owned());
    let parts: Vec<String> = speed.into_iter().chain(stopped).collect();
    if !parts.is_empty() {
        output::note(parts.join(" · "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_schemas_and_files_with_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("schema.json");
        let schema = r#"{"type": "object"}"#;
        std::fs::write(&file, schema).unwrap();
        let expect = Grammar::JsonSchema(serde_json::json!({"type": "object"}));
        assert_eq!(grammar(&format!(" {schema}")).unwrap(), expect);
        assert_eq!(grammar(file.to_str().unwrap()).unwrap(), expect);
        assert_eq!(grammar("json").unwrap(), Grammar::json_object());
        std::fs::write(&file, "[]").unwrap();
        for (format, expect) in [
            (file.to_str().unwrap(), "found another JSON value"),
            ("{\"type\"", "found malformed JSON"),
            ("no/such/file", "cannot read no/such/file"),
        ] {
            let error = format!("{:#}", grammar(format).unwrap_err());
            assert!(error.contains(expect), "{error}");
        }
    }
}
