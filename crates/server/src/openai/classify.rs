//! `POST /v1/classify`, in the form of vLLM, with the entities of models that classify tokens.

use axum::response::Response;
use narthex_gateway::request::{
    Classification, Classifications, ClassifierInput, ClassifyRequest, Entity, InputOverflow, LabelScores,
};
use narthex_spec::date::unix_now;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PromptUsage, usage_of_prompt};
use crate::{
    app::App,
    error::ApiError,
    protocol::{
        blocking::json_response,
        body::{Body, FromBody},
        classification::{self, AggregationStrategy},
        device_headers::with_device_headers,
        fields::BodyFields,
        hints,
        id::new_id,
        ignored::IgnoredParameters,
        text_or_list::TextOrList,
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ClassifyBody {
    model: String,
    input: TextOrList<String>,
    /// Return probabilities; true by default. Otherwise, the outputs of the model.
    #[serde(alias = "activation")]
    use_activation: Option<bool>,
    /// Truncate texts that are too long.
    truncate: Option<bool>,
    aggregation_strategy: Option<AggregationStrategy>,
}

/// A body that was read and checked.
pub(crate) struct ParsedClassify {
    model: String,
    request: ClassifyRequest,
    truncate: Option<bool>,
    raw: bool,
}

impl FromBody for ParsedClassify {
    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let body: ClassifyBody = fields.read()?;
        hints::ignore(fields, &[], ignored)?;
        let request = ClassifyRequest {
            inputs: body.input.into_texts().into_iter().map(ClassifierInput::Text).collect(),
            overlong: InputOverflow::Refuse,
            aggregation: body.aggregation_strategy.unwrap_or_default().into(),
        };
        let raw = body.use_activation == Some(false);
        Ok(Self { model: body.model, request, truncate: body.truncate, raw })
    }
}

/// Classes in the order of the inputs.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ClassificationList {
    id: String,
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    model: String,
    /// Names of the labels, in the order of `probs`.
    labels: Vec<String>,
    data: Vec<ClassificationObject>,
    usage: PromptUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ClassificationObject {
    index: usize,
    #[serde(flatten)]
    found: ClassificationContent,
}

/// The part of a result that depends on the model.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum ClassificationContent {
    Text {
        /// The label with the highest score.
        label: String,
        /// Scores, in the order of the labels.
        probs: Vec<f32>,
        num_classes: usize,
    },
    Entities {
        entities: Vec<EntityObject>,
    },
}

/// A part of a text, in characters and in UTF-8 bytes.
#[derive(Debug, Serialize, JsonSchema)]
struct EntityObject {
    label: String,
    /// Probability, 0 to 1.
    score: f32,
    text: String,
    start: usize,
    end: usize,
    start_byte: usize,
    end_byte: usize,
}

impl From<Entity> for EntityObject {
    fn from(Entity { label, score, text, bytes, chars }: Entity) -> Self {
        Self {
            label,
            score,
            text,
            start: chars.start,
            end: chars.end,
            start_byte: bytes.start,
            end_byte: bytes.end,
        }
    }
}

impl ClassificationContent {
    fn new(found: Classification, labels: &[String], raw: bool) -> Self {
        match found {
            Classification::Text(scores) => {
                let label = labels.get(scores.best()).cloned().unwrap_or_default();
                let LabelScores { logits, scores } = scores;
                let probs = if raw { logits } else { scores };
                Self::Text { label, num_classes: probs.len(), probs }
            }
            Classification::Entities(entities) => {
                Self::Entities { entities: entities.into_iter().map(EntityObject::from).collect() }
            }
        }
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedClassify>) -> Result<Response, ApiError> {
    let Body { request, ignored, reservation } = body;
    let ParsedClassify { model, mut request, truncate, raw } = request;
    request.overlong = app.shared.options.overlong(truncate);
    let found = classification::classify(&app, &model, request, reservation).await?;
    let Classifications { labels, results, prompt_tokens, ran_on } = found;
    let response = json_response(&app, move || {
        let data = results.into_iter().enumerate().map(|(index, found)| ClassificationObject {
            index,
            found: ClassificationContent::new(found, &labels, raw),
        });
        ClassificationList {
            id: new_id("classify-"),
            object: "list",
            created: unix_now(),
            model,
            data: data.collect(),
            labels,
            usage: usage_of_prompt(prompt_tokens),
        }
    });
    Ok(ignored.name_in(with_device_headers(&ran_on, response.await?)))
}
