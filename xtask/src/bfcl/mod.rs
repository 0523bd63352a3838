//! `cargo xtask bfcl`: the simple, multiple and parallel questions of the Berkeley Function Calling Leaderboard, asked of
//! a server on a free port: with calls that the model chooses to make, the same with strict tools, and with required
//! calls.
//!
//! The questions are those of the package `bfcl-eval`. Every complete call of a strict tool and every required call must
//! be valid under its schema, whichever model runs. The share of correct calls, by the leaderboard's rules, is a property
//! of the model and is only reported.

mod check;
mod data;

use std::{thread, time::Duration};

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::{Value, json};
use strum::VariantArray;
use xtask_tools::{
    http::{self, Answer, Disconnect, Request},
    pypi::PinnedPackage,
    record,
    server::Server,
    terminal,
    workspace::Workspace,
};

use crate::test;

use data::{CATEGORIES, Call, Question};

/// The package with the questions.
const PACKAGE: PinnedPackage = PinnedPackage {
    name: "bfcl-eval",
    version: "2026.3.23",
    sha256: "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
    file: "bfcl_eval-2026.3.23-py3-none-any.whl",
    unpacker: "zipfile",
    inside: "bfcl_eval/data",
};

/// Maximum number of tokens of an answer.
const MAX_TOKENS: usize = 512;

/// Maximum number of attempts at a request while the model loads, and the time between them.
const ATTEMPTS: usize = 60;
const PAUSE: Duration = Duration::from_secs(2);

/// Options of `cargo xtask bfcl`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct BfclArgs {
    /// The model, which must be installed.
    #[arg(long)]
    model: String,
    /// Number of questions of each category [default: all].
    #[arg(long)]
    limit: Option<usize>,
    /// Record the result with the sources, in conformance/runs.
    #[arg(long)]
    record: bool,
}

/// Choice between calls and text.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, VariantArray)]
enum Mode {
    /// The model chooses.
    #[default]
    Auto,
    /// The model chooses, and the tools have `strict: true`.
    AutoStrict,
    /// At least one call.
    Required,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::AutoStrict => "auto, strict",
            Self::Required => "required",
        }
    }
}

/// Counts of a category in a mode.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Score {
    mode: Mode,
    category: &'static str,
    questions: usize,
    /// Number of answers whose calls the leaderboard's rules accept.
    right: usize,
    /// Number of complete calls.
    calls: usize,
    /// Number of complete calls that are valid under their schemas.
    valid: usize,
    /// Number of answers without calls.
    texts: usize,
    /// Number of answers that reached the token limit.
    cut: usize,
    /// Number of questions whose schemas were refused.
    refused: usize,
}

/// Asks the questions. Fails if a complete call is not valid under its schema.
pub(crate) fn run(workspace: &Workspace, args: &BfclArgs) -> anyhow::Result<()> {
    let (commit, session) = test::prepare(workspace)?;
    let folder = PACKAGE.fetch(&session, &workspace.target.join(format!("bfcl-{}", PACKAGE.version)))?;
    let log = workspace.target.join("bfcl-server.log");
    let server = Server::start(&session, &log, &["--auto-pull", "never"])?;
    let (mut scores, mut findings) = (Vec::new(), Vec::new());
    for &mode in Mode::VARIANTS {
        for category in CATEGORIES {
            let mut questions = data::read(&folder, category)?;
            questions.truncate(args.limit.unwrap_or(usize::MAX));
            let mut score = Score { mode, category: category.name, ..Score::default() };
            for question in &questions {
                let asked =
                    ask(&server.address, &args.model, question, category.calls, mode).with_context(|| {
                        format!("{}; the server's log is {}", question.id, server.log.display())
                    })?;
                score.count(question, asked, &mut findings);
            }
            terminal::line(score.line());
            scores.push(score);
        }
    }
    findings.iter().for_each(terminal::line);
    if args.record {
        record::write(workspace, record::CONFORMANCE, "bfcl", &report(&commit, args, &scores, &findings))?;
    }
    for &mode in Mode::VARIANTS {
        let calls: usize = scores.iter().filter(|score| score.mode == mode).map(|score| score.calls).sum();
        let log = server.log.display();
        ensure!(calls > 0, "no answer has a complete call ({}); the server's log is {log}", mode.name());
    }
    let guaranteed = scores.iter().filter(|score| score.mode != Mode::Auto);
    let (calls, valid) =
        guaranteed.fold((0, 0), |(calls, valid), score| (calls + score.calls, valid + score.valid));
    ensure!(calls == valid, "{} of {calls} calls are not valid under their schemas", calls - valid);
    Ok(())
}

/// Outcome of a question.
#[derive(Debug, PartialEq)]
enum QuestionOutcome {
    Calls(Vec<Call>),
    /// The answer reached the token limit.
    Cut,
    /// The server refused the question, with its message.
    Refused(String),
    /// The answer is a text.
    Text,
    /// The answer has a call whose arguments are not JSON, or no call although one is required.
    Malformed(String),
}

impl Score {
    fn count(&mut self, question: &Question, asked: QuestionOutcome, findings: &mut Vec<String>) {
        self.questions += 1;
        match asked {
            QuestionOutcome::Cut => self.cut += 1,
            QuestionOutcome::Text if self.mode != Mode::Required => self.texts += 1,
            QuestionOutcome::Text => {
                self.calls += 1;
                findings.push(format!("{}: a text instead of a required call", question.id));
            }
            QuestionOutcome::Refused(message) => {
                self.refused += 1;
                findings.push(format!("{}: refused: {message}", question.id));
            }
            QuestionOutcome::Malformed(found) => {
                self.calls += 1;
                findings.push(format!("{}: malformed: {found}", question.id));
            }
            QuestionOutcome::Calls(calls) => {
                self.calls += calls.len();
                for call in &calls {
                    match question.validate(call) {
                        Ok(()) => self.valid += 1,
                        Err(reason) => findings.push(format!("{}: invalid: {reason}", question.id)),
                    }
                }
                self.right += usize::from(check::is_right(question, &calls));
            }
        }
    }

    fn line(&self) -> String {
        let Self { mode, category, questions, right, calls, valid, texts, cut, refused } = self;
        let share = 100.0 * *right as f64 / (*questions).max(1) as f64;
        format!(
            "{} ({}): {right} of {questions} right ({share:.1} %), {valid} of {calls} calls valid, {texts} texts, \
             {cut} answers cut, {refused} refused",
            category,
            mode.name(),
        )
    }
}

/// Asks one question.
fn ask(
    address: &str,
    model: &str,
    question: &Question,
    calls: data::Calls,
    mode: Mode,
) -> anyhow::Result<QuestionOutcome> {
    let mut tools = question.tools();
    if mode == Mode::AutoStrict {
        tools.iter_mut().for_each(|tool| tool["function"]["strict"] = true.into());
    }
    let body = json!({
        "model": model,
        "messages": question.messages,
        "tools": tools,
        "tool_choice": if mode == Mode::Required { "required" } else { "auto" },
        "parallel_tool_calls": calls == data::Calls::Several,
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    });
    let body = body.to_string();
    let request = Request { method: "POST", path: "/v1/chat/completions", body: body.as_bytes() };
    for _ in 0..ATTEMPTS {
        let Answer { status, body } = http::send(address, request, Disconnect::AfterAnswer)?;
        match status {
            200 => return answer(&serde_json::from_str(&body).with_context(|| body.clone())?),
            400 => return Ok(QuestionOutcome::Refused(body)),
            503 => thread::sleep(PAUSE),
            _ => bail!("the server answered {status}: {body}"),
        }
    }
    bail!("the model did not load within {ATTEMPTS} attempts")
}

/// Reads an answer.
fn answer(body: &Value) -> anyhow::Result<QuestionOutcome> {
    let choice = &body["choices"][0];
    match choice["finish_reason"].as_str() {
        Some("length") => return Ok(QuestionOutcome::Cut),
        Some("tool_calls") => {}
        Some("stop") if choice["stop_reason"] != "malformed_tool_call" => return Ok(QuestionOutcome::Text),
        _ => return Ok(QuestionOutcome::Malformed(choice.to_string())),
    }
    let calls = choice["message"]["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let read = calls.iter().map(|call| {
        let arguments = serde_json::from_str(call["function"]["arguments"].as_str()?).ok()?;
        Some(Call { name: call["function"]["name"].as_str()?.to_owned(), arguments })
    });
    Ok(match read.collect::<Option<Vec<Call>>>().filter(|calls| !calls.is_empty()) {
        Some(calls) => QuestionOutcome::Calls(calls),
        None => QuestionOutcome::Malformed(choice.to_string()),
    })
}

fn report(commit: &str, args: &BfclArgs, scores: &[Score], findings: &[String]) -> String {
    let lines: Vec<String> = scores.iter().map(Score::line).collect();
    let limit =
        args.limit.map_or_else(|| "all questions".to_owned(), |limit| format!("the first {limit} questions"));
    let mut page = format!(
        "# BFCL, {}\n\nCommit {commit}; {}. A development build, on the CPU. `cargo xtask bfcl --model {}` asked {limit} of each category of {} {}, with \
         `tool_choice` `auto`, `auto` and strict tools, and `required`, greedily, with at most {MAX_TOKENS} tokens. A call is right by the rules of the \
         leaderboard's AST check, and valid if it follows its JSON schema.\n\n{}",
        record::today(),
        record::platform(),
        args.model,
        PACKAGE.name,
        PACKAGE.version,
        record::list(&lines),
    );
    if !findings.is_empty() {
        page.push_str(&format!("\n## Findings\n\n{}", record::list(findings)));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_calls_or_say_why_not() {
        let with = |finish: &str, arguments: &str| {
            let call = json!({"type": "function", "function": {"name": "f", "arguments": arguments}});
            answer(&json!({"choices": [{"finish_reason": finish, "message": {"tool_calls": [call]}}]}))
                .unwrap()
        };
        let call = Call { name: "f".to_owned(), arguments: json!({"a": 1}) };
        assert_eq!(with("tool_calls", "{\"a\": 1}"), QuestionOutcome::Calls(vec![call]));
        assert_eq!(with("length", "{\"a\": "), QuestionOutcome::Cut);
        assert!(matches!(with("tool_calls", "{\"a\": "), QuestionOutcome::Malformed(_)));
        assert_eq!(with("stop", "{}"), QuestionOutcome::Text);
    }
}
