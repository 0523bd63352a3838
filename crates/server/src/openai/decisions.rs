//! `POST /v1/decisions`, in the form of OpenAI's Decisions API: predicates, choices and scores about a text, each with
//! probabilities.

use axum::{Json, response::Response};
use narthex_gateway::request::{
    ClosedQuestion, Decision, DecisionOption, DecisionRequest, Decisions, QuestionForm,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    app::App,
    error::ApiError,
    http::budget::Reservation,
    protocol::{
        blocking::run_encoder,
        body::{Body, FromBody},
        device_headers::with_device_headers,
        fields::BodyFields,
        hints,
        ignored::IgnoredParameters,
    },
};

/// Decides on a thread for blocking work, and counts the tokens.
pub(crate) async fn decide(
    app: &App,
    model: &str,
    body: Reservation,
    request: DecisionRequest,
) -> Result<Decisions, ApiError> {
    let meter = app.meter.clone();
    let decided = run_encoder(
        app,
        model,
        body.into(),
        |_| 0,
        move |model, cancel| {
            let decisions = model.decide(&request, cancel)?;
            meter.tokens(decisions.prompt_tokens - decisions.cached_tokens);
            Ok(decisions)
        },
    );
    decided.await
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct DecisionBody {
    model: String,
    input: DecisionInput,
    #[schemars(length(min = 1, max = 200))]
    questions: Vec<DecisionQuestion>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a text or a list of messages of the user")]
enum DecisionInput {
    Text(String),
    Messages(Vec<InputMessage>),
}

#[derive(Debug, Deserialize, JsonSchema)]
struct InputMessage {
    #[schemars(extend("const" = "user"))]
    role: String,
    content: InputContent,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a text or a list of parts")]
enum InputContent {
    Text(String),
    Parts(Vec<InputPart>),
}

#[derive(Debug, Deserialize, JsonSchema)]
struct InputPart {
    /// `input_text`.
    r#type: String,
    text: Option<String>,
}

/// A question. Its answer has the same name.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
enum DecisionQuestion {
    /// The probability that a statement is true.
    Predicate { name: Option<String>, instructions: String },
    /// One of several values.
    Choice {
        name: Option<String>,
        instructions: String,
        #[schemars(length(min = 1, max = 26))]
        choices: Vec<ChoiceOption>,
    },
    /// A level of a scale, from the lowest to the highest.
    Score {
        name: Option<String>,
        instructions: String,
        #[schemars(length(min = 1, max = 26))]
        levels: Vec<ScoreLevel>,
    },
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ChoiceOption {
    value: ChoiceValue,
    description: Option<String>,
}

#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(untagged, expecting = "expected a text or a boolean")]
enum ChoiceValue {
    Text(String),
    Boolean(bool),
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ScoreLevel {
    label: String,
    description: Option<String>,
}

impl DecisionInput {
    /// Returns the text of the input.
    fn into_text(self) -> Result<String, ApiError> {
        let messages = match self {
            Self::Text(text) => return Ok(text),
            Self::Messages(messages) => messages,
        };

        let mut texts = Vec::new();
        for InputMessage { role, content } in messages {
            if role != "user" {
                let message = format!("input: expected messages of the role user, found {role:?}");
                return Err(ApiError::bad_request("input", message));
            }
            match content {
                InputContent::Text(text) => texts.push(text),
                InputContent::Parts(parts) => {
                    for InputPart { r#type, text } in parts {
                        let Some(text) = text.filter(|_| r#type == "input_text") else {
                            let message =
                                format!("input: expected parts of the type input_text, found {type:?}");
                            return Err(ApiError::bad_request("input", message));
                        };
                        texts.push(text);
                    }
                }
            }
        }
        Ok(texts.join("\n"))
    }
}

impl DecisionQuestion {
    fn to_question(&self) -> ClosedQuestion {
        let option = |label: String, description: &Option<String>| DecisionOption {
            label,
            description: description.clone(),
        };
        let (instructions, form) = match self {
            Self::Predicate { instructions, .. } => {
                (instructions, QuestionForm::YesNo { yes: None, no: None })
            }
            Self::Choice { instructions, choices, .. } => {
                let options = choices.iter().map(|choice| {
                    let label = match &choice.value {
                        ChoiceValue::Text(text) => text.clone(),
                        ChoiceValue::Boolean(value) => value.to_string(),
                    };
                    option(label, &choice.description)
                });
                (instructions, QuestionForm::Choice(options.collect()))
            }
            Self::Score { instructions, levels, .. } => {
                let options = levels.iter().map(|level| option(level.label.clone(), &level.description));
                (instructions, QuestionForm::Choice(options.collect()))
            }
        };
        ClosedQuestion { instructions: instructions.clone(), form }
    }
}

/// A body that was read and checked.
pub(crate) struct ParsedDecision {
    model: String,
    state: String,
    questions: Vec<DecisionQuestion>,
}

impl FromBody for ParsedDecision {
    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let DecisionBody { model, input, questions } = fields.read()?;
        hints::ignore(fields, &["safety_identifier"], ignored)?;
        Ok(Self { model, state: input.into_text()?, questions })
    }
}

/// Answers in the order of the questions.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DecisionObject {
    model: String,
    answers: Vec<DecisionAnswer>,
    usage: DecisionUsage,
}

/// Tokens of a request. Nothing is generated.
#[derive(Debug, Serialize, JsonSchema)]
struct DecisionUsage {
    input_tokens: usize,
    input_tokens_details: CachedTokens,
    output_tokens: usize,
    total_tokens: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CachedTokens {
    cached_tokens: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DecisionAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(flatten)]
    outcome: DecisionOutcome,
    /// Share of the model's own distribution that fell on the possible answers. A low share means that the model would have
    /// answered something else.
    option_mass: f64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
enum DecisionOutcome {
    Predicate {
        /// Probability that the statement is true.
        probability: f64,
    },
    Choice {
        choice: ChoiceValue,
        /// 1 if one value has all the probability, and 0 if all are equally probable.
        confidence: f64,
        probabilities: Vec<ChoiceProbability>,
    },
    Score {
        /// Expected level, counted from 0.
        score: f64,
        /// 1 if one level has all the probability, and 0 if all are equally probable.
        confidence: f64,
        probabilities: Vec<ScoreProbability>,
    },
}

#[derive(Debug, Serialize, JsonSchema)]
struct ChoiceProbability {
    value: ChoiceValue,
    probability: f64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ScoreProbability {
    /// Level, counted from 0.
    value: usize,
    label: String,
    probability: f64,
}

impl DecisionAnswer {
    fn new(question: DecisionQuestion, decision: &Decision) -> Self {
        let confidence = decision.confidence();
        let probabilities = decision.probabilities.iter().copied();

        let (name, outcome) = match question {
            DecisionQuestion::Predicate { name, .. } => {
                (name, DecisionOutcome::Predicate { probability: decision.probabilities[0] })
            }
            DecisionQuestion::Choice { name, choices, .. } => {
                let choice = choices[decision.best()].value.clone();
                let probabilities = choices
                    .into_iter()
                    .zip(probabilities)
                    .map(|(choice, probability)| ChoiceProbability { value: choice.value, probability })
                    .collect();
                (name, DecisionOutcome::Choice { choice, confidence, probabilities })
            }
            DecisionQuestion::Score { name, levels, .. } => {
                let probabilities = levels
                    .into_iter()
                    .zip(probabilities)
                    .enumerate()
                    .map(|(value, (level, probability))| ScoreProbability {
                        value,
                        label: level.label,
                        probability,
                    })
                    .collect();
                (name, DecisionOutcome::Score { score: decision.expected(), confidence, probabilities })
            }
        };
        Self { name, outcome, option_mass: decision.option_mass }
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedDecision>) -> Result<Response, ApiError> {
    let Body { request: ParsedDecision { model, state, questions }, ignored, reservation } = body;
    let closed = questions.iter().map(DecisionQuestion::to_question).collect();
    let decided = decide(&app, &model, reservation, DecisionRequest { state, questions: closed }).await?;
    let answers = questions.into_iter().zip(&decided.decisions);
    let object = DecisionObject {
        model,
        answers: answers.map(|(question, decision)| DecisionAnswer::new(question, decision)).collect(),
        usage: DecisionUsage {
            input_tokens: decided.prompt_tokens,
            input_tokens_details: CachedTokens { cached_tokens: decided.cached_tokens },
            output_tokens: 0,
            total_tokens: decided.prompt_tokens,
        },
    };
    Ok(ignored.name_in(with_device_headers(&decided.ran_on, Json(object))))
}
