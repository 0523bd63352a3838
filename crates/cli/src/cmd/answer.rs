//! `narthex answer`: the part of a text that answers a question.

use std::path::Path;

use narthex_gateway::{
    Error, Gateway,
    models::ModelKind,
    request::{AnswerRequest, Answers, MAX_ANSWER_TEXT},
};
use serde::Serialize;

use crate::{args::AnswerArgs, bars::Bars, interrupt, output, standard_input};

/// Maximum size of a context.
const MAX_CONTEXT_BYTES: u64 = MAX_ANSWER_TEXT as u64;

#[derive(Serialize)]
struct AnswerOutput<'a> {
    model: &'a str,
    question: &'a str,
    answer: Option<&'a str>,
    no_answer_score: f64,
    answers: Vec<Span<'a>>,
}

/// Offsets are in characters.
#[derive(Serialize)]
struct Span<'a> {
    text: &'a str,
    start: usize,
    end: usize,
    score: f64,
}

/// Answers the question from the context.
pub(crate) fn run(gateway: &Gateway, args: &AnswerArgs) -> anyhow::Result<()> {
    super::check_texts("question", &[&args.question], "pass it as an argument")?;
    let context = read_context(&args.context, "Type the text that contains the answer")?;
    let status = super::load(gateway, &args.model, &[ModelKind::Answer], &Bars::new())?;
    let request = AnswerRequest { top_k: args.top_k, ..AnswerRequest::new(&args.question, context) };
    let found = gateway.answer(&status.id(), &request, interrupt::cancel())?;
    if args.json { report(args, &found) } else { lines(args, &found) }
}

/// Reads the text of a file, or that of standard input for `-`.
pub(super) fn read_context(path: &Path, prompt: &str) -> anyhow::Result<String> {
    let context = if path.as_os_str() == "-" {
        standard_input::text_up_to(prompt, MAX_CONTEXT_BYTES)?
    } else {
        let what = format!("cannot read the context {}", path.display());
        let text = narthex_files::read(path, MAX_CONTEXT_BYTES).and_then(narthex_files::user_text);
        text.map_err(|source| Error::Io { what, source })?
    };
    super::check_texts("context", &[&context], "name a file with the text")?;
    Ok(context)
}

fn report(args: &AnswerArgs, found: &Answers) -> anyhow::Result<()> {
    let spans = found.answers.iter().map(|answer| Span {
        text: &answer.text,
        start: answer.chars.start,
        end: answer.chars.end,
        score: answer.score,
    });
    output::json(&AnswerOutput {
        model: &args.model,
        question: &args.question,
        answer: found.best().map(|answer| answer.text.as_str()),
        no_answer_score: found.no_answer,
        answers: spans.collect(),
    })
}

fn lines(args: &AnswerArgs, found: &Answers) -> anyhow::Result<()> {
    if args.top_k == 1 {
        let answer = found.best().map_or("no answer", |answer| answer.text.as_str());
        return output::line(answer);
    }
    for answer in &found.answers {
        output::line(format!("{:.4}\t{:?}\t{}", answer.score, answer.chars, answer.text))?;
    }
    output::line(format!("{:.4}\t\tno answer", found.no_answer))
}
