//! `POST /v1/systemone`: typed questions about a state, each answered with probabilities, in the form that TypeSafe's Jev,
//! llama.cpp and vLLM share.

use axum::{Json, response::Response};
use narthex_gateway::request::{ClosedQuestion, Decision, DecisionOption, DecisionRequest, QuestionForm};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::decisions::decide;
use crate::{
    app::App,
    error::ApiError,
    protocol::{
        body::{Body, FromBody},
        device_headers::with_device_headers,
        fields::BodyFields,
        hints,
        id::new_id,
        ignored::IgnoredParameters,
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SystemOneBody {
    model: String,
    /// Subject of the questions: a text, or JSON.
    state: Value,
    /// Questions by id; at most 200.
    questions: Map<String, Value>,
}

/// A question.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum SystemOneQuestion {
    /// The probability of yes.
    Noul {
        #[serde(default)]
        instructions: Value,
        criteria: Option<YesNoCriteria>,
    },
    /// One of several labels, each with a description or null.
    Choice {
        #[serde(default)]
        instructions: Value,
        criteria: Map<String, Value>,
    },
    /// A level of a scale, from the lowest to the highest.
    Score {
        #[serde(default)]
        instructions: Value,
        criteria: Vec<Value>,
    },
}

/// Descriptions of yes and no.
#[derive(Debug, Deserialize)]
struct YesNoCriteria {
    #[serde(rename = "true")]
    yes: Option<Value>,
    #[serde(rename = "false")]
    no: Option<Value>,
}

/// Returns a value as text: JSON unless it is a string; `None` for null.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

impl SystemOneQuestion {
    /// Returns the question. Its id stands in for missing instructions.
    fn to_question(&self, id: &str) -> ClosedQuestion {
        let (instructions, form) = match self {
            Self::Noul { instructions, criteria } => {
                let described = |of: fn(&YesNoCriteria) -> &Option<Value>| {
                    criteria.as_ref().and_then(|criteria| text(of(criteria).as_ref()?))
                };
                let yes = described(|criteria| &criteria.yes);
                (instructions, QuestionForm::YesNo { yes, no: described(|criteria| &criteria.no) })
            }
            Self::Choice { instructions, criteria } => {
                let options = criteria.iter().map(|(label, description)| DecisionOption {
                    label: label.clone(),
                    description: text(description),
                });
                (instructions, QuestionForm::Choice(options.collect()))
            }
            Self::Score { instructions, criteria } => {
                let options = criteria.iter().map(|level| DecisionOption {
                    label: text(level).unwrap_or_default(),
                    description: None,
                });
                (instructions, QuestionForm::Choice(options.collect()))
            }
        };
        ClosedQuestion { instructions: text(instructions).unwrap_or_else(|| id.to_owned()), form }
    }
}

/// A body that was read and checked.
pub(crate) struct ParsedSystemOne {
    model: String,
    state: String,
    questions: Vec<(String, SystemOneQuestion)>,
}

impl FromBody for ParsedSystemOne {
    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let SystemOneBody { model, state, questions } = fields.read()?;
        hints::ignore(fields, &[], ignored)?;
        let mut parsed = Vec::with_capacity(questions.len());
        for (id, question) in questions {
            let question = serde_path_to_error::deserialize(question).map_err(|error| {
                let param = format!("questions.{id}");
                let message = format!("{param}: {}", error.inner());
                ApiError::bad_request(param, message)
            })?;
            parsed.push((id, question));
        }
        let state = text(&state).ok_or_else(|| ApiError::required("state"))?;
        Ok(Self { model, state, questions: parsed })
    }
}

/// Answers by the ids of the questions.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SystemOneObject {
    id: String,
    model: String,
    answers: Map<String, Value>,
    usage: SystemOneUsage,
}

/// Tokens of a request. Nothing is generated.
#[derive(Debug, Serialize, JsonSchema)]
struct SystemOneUsage {
    input_tokens: usize,
    output_tokens: usize,
}

#[derive(Debug, Serialize)]
struct SystemOneAnswer {
    #[serde(flatten)]
    outcome: SystemOneOutcome,
    /// Share of the model's own distribution that fell on the possible answers.
    option_mass: f64,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum SystemOneOutcome {
    Noul { noul: f64 },
    Choice { choice: String, probabilities: Map<String, Value>, confidence: f64 },
    Score { score: f64, legend: Map<String, Value>, probabilities: Map<String, Value>, confidence: f64 },
}

impl SystemOneAnswer {
    fn new(question: SystemOneQuestion, decision: &Decision) -> Self {
        let confidence = decision.confidence();
        let probabilities = decision.probabilities.iter().map(|&probability| Value::from(probability));
        let outcome = match question {
            SystemOneQuestion::Noul { .. } => SystemOneOutcome::Noul { noul: decision.probabilities[0] },
            SystemOneQuestion::Choice { criteria, .. } => {
                let labels: Vec<String> = criteria.into_iter().map(|(label, _)| label).collect();
                SystemOneOutcome::Choice {
                    choice: labels[decision.best()].clone(),
                    probabilities: labels.into_iter().zip(probabilities).collect(),
                    confidence,
                }
            }
            SystemOneQuestion::Score { criteria, .. } => {
                let levels = (0..criteria.len()).map(|level| level.to_string());
                SystemOneOutcome::Score {
                    score: decision.expected(),
                    probabilities: levels.clone().zip(probabilities).collect(),
                    legend: levels.zip(criteria).collect(),
                    confidence,
                }
            }
        };
        Self { outcome, option_mass: decision.option_mass }
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedSystemOne>) -> Result<Response, ApiError> {
    let Body { request: ParsedSystemOne { model, state, questions }, ignored, reservation } = body;
    let closed = questions.iter().map(|(id, question)| question.to_question(id)).collect();
    let decided = decide(&app, &model, reservation, DecisionRequest { state, questions: closed }).await?;
    let answers = questions.into_iter().zip(&decided.decisions).map(|((id, question), decision)| {
        // Serialising numbers and strings to JSON cannot fail.
        let answer = serde_json::to_value(SystemOneAnswer::new(question, decision)).unwrap_or_default();
        (id, answer)
    });
    let object = SystemOneObject {
        id: new_id("systemone-"),
        model,
        answers: answers.collect(),
        usage: SystemOneUsage { input_tokens: decided.prompt_tokens, output_tokens: 0 },
    };
    Ok(ignored.name_in(with_device_headers(&decided.ran_on, Json(object))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn question(value: Value) -> SystemOneQuestion {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn questions_become_options_in_the_order_of_the_client() {
        let choice = json!({"type": "choice", "criteria": {"z": "last", "a": null}});
        let QuestionForm::Choice(options) = question(choice).to_question("team").form else { panic!() };
        let options: Vec<_> =
            options.iter().map(|one| (one.label.as_str(), one.description.as_deref())).collect();
        assert_eq!(options, [("z", Some("last")), ("a", None)]);
        let noul = question(
            json!({"type": "noul", "instructions": {"ask": "urgent?"}, "criteria": {"true": "it is"}}),
        );
        let asked = noul.to_question("urgent");
        assert_eq!(asked.instructions, r#"{"ask":"urgent?"}"#);
        assert_eq!(asked.form, QuestionForm::YesNo { yes: Some("it is".to_owned()), no: None });
        assert_eq!(question(json!({"type": "noul"})).to_question("urgent").instructions, "urgent");
    }

    #[test]
    fn answers_have_the_form_of_their_question() {
        let decision = Decision { probabilities: vec![0.25, 0.75], option_mass: 0.5 };
        let answer = |value: Value| json!(SystemOneAnswer::new(question(value), &decision));
        let expect = json!({"type": "noul", "noul": 0.25, "option_mass": 0.5});
        assert_eq!(answer(json!({"type": "noul"})), expect);
        let expect = json!({"type": "choice", "choice": "b", "probabilities": {"a": 0.25, "b": 0.75}, "confidence": 0.5, "option_mass": 0.5});
        assert_eq!(answer(json!({"type": "choice", "criteria": {"a": null, "b": "B"}})), expect);
        let expect = json!({"type": "score", "score": 0.75, "legend": {"0": "low", "1": "high"}, "probabilities": {"0": 0.25, "1": 0.75}, "confidence": 0.5, "option_mass": 0.5});
        assert_eq!(answer(json!({"type": "score", "criteria": ["low", "high"]})), expect);
    }
}
