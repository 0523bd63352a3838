//! Decisions: the probabilities of the answers to closed questions, from one forward pass for each question.
//!
//! The prompt of a question is one message of the user: the state, the question and its options, in this order, so that
//! all questions share the keys and values of the state. Each option has a short label, a letter, or yes and no. The
//! probability of an option is that of the first tokens of its label at the start of the answer, relative to those of all
//! options. Nothing is generated.

use std::{collections::BTreeMap, ops::ControlFlow, sync::mpsc};

use narthex_engine::{
    request::{Finish, LogProbs, Request, TokenEvent, TokenLogProb, TokenSink, Usage},
    worker::SequenceHandle,
};
use narthex_spec::{Speculation, TokenId};
use narthex_text::tokenizer::{Specials, Tokenizer};

use crate::{
    cancel::Cancel,
    error::{Error, ErrorKind},
    load::residency::ReadyModel,
    serve::{
        generation::refusal,
        request::{
            ChatRequest, ClosedQuestion, Decision, DecisionRequest, Decisions, MAX_OPTIONS, MAX_QUESTIONS,
            QuestionForm, ReasoningSettings, Thinking,
        },
    },
};

impl ReadyModel {
    /// Decides closed questions about a text with a chat model. Equal requests give equal probabilities. Ends with
    /// [`Error::Cancelled`] once `cancel` is set.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no question, too many questions or options, and for a model whose vocabulary lacks a label;
    /// the errors of [`Self::chat`].
    pub fn decide(&self, request: &DecisionRequest, cancel: &Cancel) -> Result<Decisions, Error> {
        check(request)?;
        let tokenizer = self.loaded.tokenizer()?;
        let mut decisions = Decisions {
            decisions: Vec::with_capacity(request.questions.len()),
            prompt_tokens: 0,
            cached_tokens: 0,
            ran_on: self.loaded.ran_on(),
        };
        for question in &request.questions {
            let options = OptionTokens::new(tokenizer, &question.form)?;
            let mut chat = ChatRequest::user(prompt(&request.state, question));
            chat.reasoning = ReasoningSettings { thinking: Thinking::Off, ..ReasoningSettings::default() };
            let prompt = self.chat_prompt(chat, cancel)?;
            let (logprobs, usage) = self.first_logprobs(&prompt.tokens, options.all(), cancel)?;
            decisions.decisions.push(options.decision(&logprobs)?);
            decisions.prompt_tokens += usage.prompt_tokens;
            // The last token of a prompt runs in any case.
            decisions.cached_tokens += usage.cached_tokens.min(usage.prompt_tokens.saturating_sub(1));
        }
        Ok(decisions)
    }

    /// Returns the log-probabilities of `tokens` after a prompt.
    fn first_logprobs(
        &self,
        prompt: &[TokenId],
        tokens: Vec<TokenId>,
        cancel: &Cancel,
    ) -> Result<(Vec<TokenLogProb>, Usage), Error> {
        let engine = self.loaded.engine()?;
        let (sender, outcome) = mpsc::channel();
        let sink = FirstTokenSink { logprobs: Vec::new(), outcome: sender, _model: self.clone() };
        let request = Request {
            logprobs: Some(LogProbs { top: 0, prompt: false, tokens }),
            speculation: Speculation::Off,
            ..Request::greedy(prompt.to_vec(), 1, sink)
        };
        let sequence = engine.submit(request).map_err(|error| refusal(error, "messages", engine.limits()))?;
        let _callback = cancel.on_cancel(move || SequenceHandle::cancel(&sequence));
        outcome.recv().unwrap_or(Err(Error::ShuttingDown))
    }
}

/// Refuses a request without questions, with too many, or with a wrong number of options.
fn check(request: &DecisionRequest) -> Result<(), Error> {
    let count = request.questions.len();
    if !(1..=MAX_QUESTIONS).contains(&count) {
        let message = format!("expected 1 to {MAX_QUESTIONS} questions, found {count}");
        return Err(Error::invalid("questions", message));
    }
    for question in &request.questions {
        let options = question.form.options();
        if !(1..=MAX_OPTIONS).contains(&options) {
            let message = format!("expected 1 to {MAX_OPTIONS} options for each question, found {options}");
            return Err(Error::invalid("questions", message));
        }
    }
    Ok(())
}

/// Returns the message with a question.
fn prompt(state: &str, question: &ClosedQuestion) -> String {
    let mut text = format!("{state}\n\n{}\n", question.instructions);
    match &question.form {
        QuestionForm::YesNo { yes, no } => {
            for (label, description) in [("yes", yes), ("no", no)] {
                if let Some(description) = description {
                    text.push_str(&format!("{label}: {description}\n"));
                }
            }
            text.push_str("\nAnswer with yes or no.");
        }
        QuestionForm::Choice(options) => {
            for (letter, option) in ('A'..='Z').zip(options) {
                match option.description.as_deref().filter(|description| *description != option.label) {
                    Some(description) => {
                        text.push_str(&format!("{letter}. {}: {description}\n", option.label))
                    }
                    None => text.push_str(&format!("{letter}. {}\n", option.label)),
                }
            }
            text.push_str("\nAnswer with the letter only.");
        }
    }
    text
}

/// Tokens that express each option as the first token of an answer.
struct OptionTokens(Vec<Vec<TokenId>>);

impl OptionTokens {
    /// Returns the tokens of the labels.
    fn new(tokenizer: &Tokenizer, form: &QuestionForm) -> Result<Self, Error> {
        let labels: Vec<Vec<String>> = match form {
            QuestionForm::YesNo { .. } => ["Yes", "No"].map(written_forms).to_vec(),
            QuestionForm::Choice(options) => ('A'..='Z')
                .take(options.len())
                .map(|letter| vec![letter.to_string(), format!(" {letter}")])
                .collect(),
        };

        let mut options: Vec<Vec<TokenId>> = Vec::with_capacity(labels.len());
        for forms in &labels {
            let mut tokens = Vec::new();
            for text in forms {
                tokens.extend(tokenizer.encode(text, Specials::AsText)?.first());
            }
            tokens.sort_unstable();
            tokens.dedup();
            options.push(tokens);
        }

        let options = without_shared(options);
        match options.iter().position(Vec::is_empty) {
            None => Ok(Self(options)),
            Some(index) => {
                let label = &labels[index][0];
                let message =
                    format!("this model has no token of its own for the label {label:?}; use another model");
                Err(Error::invalid("model", message))
            }
        }
    }

    /// Returns the tokens of all options, in order.
    fn all(&self) -> Vec<TokenId> {
        self.0.concat()
    }

    /// Returns the decision for the log-probabilities of [`Self::all`].
    fn decision(&self, logprobs: &[TokenLogProb]) -> Result<Decision, Error> {
        let mut logprobs = logprobs.iter().map(|token| f64::from(token.logprob).exp());
        let masses: Vec<f64> =
            self.0.iter().map(|tokens| logprobs.by_ref().take(tokens.len()).sum()).collect();
        let option_mass: f64 = masses.iter().sum();
        if !(option_mass.is_finite() && option_mass > 0.0) {
            let message = "the model gives no option a probability; use another model".to_owned();
            return Err(Error::AnswerFailed { kind: ErrorKind::Unavailable, message });
        }
        let probabilities = masses.iter().map(|mass| mass / option_mass).collect();
        Ok(Decision { probabilities, option_mass: option_mass.min(1.0) })
    }
}

/// Removes the tokens that begin the labels of several options, such as that of a space.
fn without_shared(mut options: Vec<Vec<TokenId>>) -> Vec<Vec<TokenId>> {
    let mut uses: BTreeMap<TokenId, usize> = BTreeMap::new();
    options.iter().flatten().for_each(|&token| *uses.entry(token).or_default() += 1);
    options.iter_mut().for_each(|tokens| tokens.retain(|token| uses[token] == 1));
    options
}

/// Returns the forms in which models write a word at the start of an answer.
fn written_forms(word: &str) -> Vec<String> {
    let cases = [word.to_owned(), word.to_lowercase(), word.to_uppercase()];
    cases.iter().flat_map(|word| [word.clone(), format!(" {word}")]).collect()
}

/// Receives the log-probabilities of the first token.
struct FirstTokenSink {
    logprobs: Vec<TokenLogProb>,
    outcome: mpsc::Sender<Result<(Vec<TokenLogProb>, Usage), Error>>,
    /// Keeps the model in memory until the end of the sequence.
    _model: ReadyModel,
}

impl TokenSink for FirstTokenSink {
    fn token(&mut self, event: TokenEvent<'_>) -> ControlFlow<()> {
        self.logprobs = event.top.to_vec();
        ControlFlow::Continue(())
    }

    fn finish(&mut self, finish: Finish, usage: Usage) {
        let outcome = match finish {
            Finish::Stop | Finish::Length => Ok((std::mem::take(&mut self.logprobs), usage)),
            Finish::Cancelled => Err(Error::Cancelled),
            Finish::ShutDown => Err(Error::ShuttingDown),
            Finish::Failed(error) => {
                Err(Error::AnswerFailed { kind: ErrorKind::Unavailable, message: error.to_string() })
            }
            Finish::Unsatisfied { reason } => {
                Err(Error::AnswerFailed { kind: ErrorKind::BadRequest, message: reason })
            }
        };
        // The caller may be gone.
        let _ = self.outcome.send(outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::request::DecisionOption;

    #[test]
    fn the_state_comes_first_and_options_have_letters() {
        let option = |label: &str, description: Option<&str>| DecisionOption {
            label: label.to_owned(),
            description: description.map(str::to_owned),
        };
        let choice = QuestionForm::Choice(vec![option("billing", Some("payments")), option("sales", None)]);
        let question = |form| ClosedQuestion { instructions: "Which team?".to_owned(), form };
        let expect =
            "It broke.\n\nWhich team?\nA. billing: payments\nB. sales\n\nAnswer with the letter only.";
        assert_eq!(prompt("It broke.", &question(choice)), expect);
        let yes_no = QuestionForm::YesNo { yes: Some("it is urgent".to_owned()), no: None };
        let expect = "It broke.\n\nWhich team?\nyes: it is urgent\n\nAnswer with yes or no.";
        assert_eq!(prompt("It broke.", &question(yes_no)), expect);
    }

    #[test]
    fn probabilities_are_those_of_all_tokens_of_an_option() {
        assert_eq!(without_shared(vec![vec![3, 5], vec![3, 7]]), [vec![5], vec![7]]);
        let options = OptionTokens(vec![vec![5, 9], vec![7]]);
        assert_eq!(options.all(), [5, 9, 7]);
        let logprob = |token, probability: f32| TokenLogProb { token, logprob: probability.ln() };
        let decision = options.decision(&[logprob(5, 0.25), logprob(9, 0.125), logprob(7, 0.125)]).unwrap();
        assert!((decision.probabilities[0] - 0.75).abs() < 1e-6, "{decision:?}");
        assert!((decision.option_mass - 0.5).abs() < 1e-6 && decision.best() == 0);
        assert!((decision.confidence() - 0.5).abs() < 1e-6 && (decision.expected() - 0.25).abs() < 1e-6);
        let none = [5, 9, 7].map(|token| TokenLogProb { token, logprob: f32::NEG_INFINITY });
        assert!(options.decision(&none).is_err());
    }

    #[test]
    fn the_numbers_of_questions_and_options_are_bounded() {
        let question = |count: usize| ClosedQuestion {
            instructions: "Which?".to_owned(),
            form: QuestionForm::Choice(vec![
                DecisionOption { label: "a".to_owned(), description: None };
                count
            ]),
        };
        let check = |questions: Vec<ClosedQuestion>, expect: &str| {
            let request = DecisionRequest { state: String::new(), questions };
            let error = super::check(&request).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expect) && error.is_empty() == expect.is_empty(), "{error}");
        };
        check(vec![question(26)], "");
        check(vec![question(27)], "expected 1 to 26 options for each question, found 27");
        check(vec![question(0)], "found 0");
        check(Vec::new(), "expected 1 to 200 questions, found 0");
        check(vec![question(2); 201], "found 201");
    }
}
