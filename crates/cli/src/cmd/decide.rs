//! `narthex decide`: the probabilities of the answers to a closed question about a text.

use narthex_gateway::{
    Gateway,
    models::ModelKind,
    request::{ClosedQuestion, Decision, DecisionOption, DecisionRequest, QuestionForm},
};
use serde::Serialize;

use super::answer;
use crate::{args::DecideArgs, bars::Bars, interrupt, output};

#[derive(Serialize)]
struct DecideOutput<'a> {
    model: &'a str,
    question: &'a str,
    /// The most probable option.
    answer: &'a str,
    /// 1 if one option has all the probability, and 0 if all are equally probable.
    confidence: f64,
    /// Expected level of a scale, counted from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
    options: Vec<OptionOutput<'a>>,
    /// Share of the model's own distribution that fell on the options.
    option_mass: f64,
}

#[derive(Serialize)]
struct OptionOutput<'a> {
    option: &'a str,
    probability: f64,
}

/// Answers a closed question about the text of a file or of standard input.
pub(crate) fn run(gateway: &Gateway, args: &DecideArgs) -> anyhow::Result<()> {
    super::check_texts("question", &[&args.question], "pass it as an argument")?;
    let state = answer::read_context(&args.context, "Type the text that the question is about")?;
    let form = form(args);
    let status = super::load(gateway, &args.model, &[ModelKind::Chat], &Bars::new())?;
    let question = ClosedQuestion { instructions: args.question.clone(), form };
    let request = DecisionRequest { state, questions: vec![question] };
    let decided = gateway.decide(&status.id(), &request, interrupt::cancel())?;
    decided.decisions.iter().try_for_each(|decision| write(args, decision))
}

/// Returns the options of the question.
fn form(args: &DecideArgs) -> QuestionForm {
    let listed = if args.options.is_empty() { &args.levels } else { &args.options };
    if listed.is_empty() {
        return QuestionForm::YesNo { yes: None, no: None };
    }
    let options =
        listed.iter().map(|label| DecisionOption { label: label.trim().to_owned(), description: None });
    QuestionForm::Choice(options.collect())
}

fn write(args: &DecideArgs, decision: &Decision) -> anyhow::Result<()> {
    let form = form(args);
    let labels: Vec<&str> = match &form {
        QuestionForm::YesNo { .. } => vec!["yes", "no"],
        QuestionForm::Choice(options) => options.iter().map(|option| option.label.as_str()).collect(),
    };
    let options = labels.iter().zip(&decision.probabilities);
    if args.json {
        return output::json(&DecideOutput {
            model: &args.model,
            question: &args.question,
            answer: labels[decision.best()],
            confidence: decision.confidence(),
            score: (!args.levels.is_empty()).then(|| decision.expected()),
            options: options.map(|(&option, &probability)| OptionOutput { option, probability }).collect(),
            option_mass: decision.option_mass,
        });
    }
    options.map(|(label, probability)| format!("{probability:.4}\t{label}")).try_for_each(output::line)
}
