//! `POST /predict`, in the form of text-embeddings-inference. Entities have the form of Hugging Face's inference API.

use std::{borrow::Cow, fmt};

use axum::response::Response;
use narthex_gateway::{
    models::{ModelKind, ModelListing},
    request::{
        Aggregation, Classification, Classifications, ClassifierInput, ClassifyRequest, Entity,
        InputOverflow, LabelScores, MAX_INPUTS,
    },
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, SeqAccess, Visitor},
};
use serde_json::json;

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
        ignored::IgnoredParameters,
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct PredictBody {
    /// The model, unless it is the only classifier that is installed.
    model: Option<String>,
    inputs: PredictInputs,
    /// Truncate texts that are too long.
    truncate: Option<bool>,
    /// Return the outputs of the model in place of probabilities.
    raw_scores: Option<bool>,
    aggregation_strategy: Option<AggregationStrategy>,
}

/// A text, a list of two texts that are a pair, or a list of such lists.
#[derive(Debug, PartialEq)]
enum PredictInputs {
    One(ClassifierInput),
    Batch(Vec<ClassifierInput>),
}

impl JsonSchema for PredictInputs {
    fn schema_name() -> Cow<'static, str> {
        "PredictInputs".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let texts = json!({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2});
        json_schema!({
            "anyOf": [
                {"type": "string"}, texts,
                {"type": "array", "items": texts, "minItems": 1, "maxItems": MAX_INPUTS},
            ],
        })
    }
}

impl<'de> Deserialize<'de> for PredictInputs {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_any(PredictInputsVisitor)
    }
}

struct PredictInputsVisitor;

impl<'de> Visitor<'de> for PredictInputsVisitor {
    type Value = PredictInputs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a pair [text, text], or a list of [text] and [text, text]")
    }

    fn visit_str<E>(self, text: &str) -> Result<PredictInputs, E> {
        Ok(PredictInputs::One(ClassifierInput::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<PredictInputs, A::Error> {
        let mut texts = Vec::new();
        let mut batch = Vec::new();
        while let Some(element) = elements.next_element()? {
            match element {
                Sequence::Text(text) if batch.is_empty() && texts.len() < 2 => texts.push(text),
                Sequence::Input(input) if texts.is_empty() && batch.len() < MAX_INPUTS => batch.push(input),
                Sequence::Input(_) if texts.is_empty() => {
                    return Err(de::Error::custom(format!(
                        "expected at most {MAX_INPUTS} inputs, found more"
                    )));
                }
                Sequence::Text(_) | Sequence::Input(_) => {
                    return Err(de::Error::custom(
                        "expected a pair [text, text], or a list of [text] and [text, text], found other texts; \
                         put each text of a batch in a list of its own",
                    ));
                }
            }
        }
        match texts.is_empty() {
            true if batch.is_empty() => Err(de::Error::invalid_length(0, &self)),
            true => Ok(PredictInputs::Batch(batch)),
            false => Ok(PredictInputs::One(input(texts))),
        }
    }
}

/// An element of a list.
enum Sequence {
    Text(String),
    Input(ClassifierInput),
}

impl<'de> Deserialize<'de> for Sequence {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_any(SequenceVisitor)
    }
}

struct SequenceVisitor;

impl<'de> Visitor<'de> for SequenceVisitor {
    type Value = Sequence;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, or a list of one or two texts")
    }

    fn visit_str<E>(self, text: &str) -> Result<Sequence, E> {
        Ok(Sequence::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Sequence, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = elements.next_element()? {
            if texts.len() == 2 {
                return Err(de::Error::invalid_length(3, &self));
            }
            texts.push(text);
        }
        if texts.is_empty() {
            Err(de::Error::invalid_length(0, &self))
        } else {
            Ok(Sequence::Input(input(texts)))
        }
    }
}

/// Returns the input of one or two texts.
fn input(texts: Vec<String>) -> ClassifierInput {
    let mut texts = texts.into_iter();
    let first = texts.next().unwrap_or_default();
    match texts.next() {
        None => ClassifierInput::Text(first),
        Some(second) => ClassifierInput::Pair(first, second),
    }
}

/// A body that was read and checked.
pub(crate) struct ParsedPredict {
    model: Option<String>,
    request: ClassifyRequest,
    is_batch: bool,
    truncate: Option<bool>,
    raw: bool,
}

impl FromBody for ParsedPredict {
    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let body: PredictBody = fields.read()?;
        hints::ignore(fields, &[], ignored)?;
        let is_batch = matches!(body.inputs, PredictInputs::Batch(_));
        let inputs = match body.inputs {
            PredictInputs::One(input) => vec![input],
            PredictInputs::Batch(inputs) => inputs,
        };
        let aggregation = Aggregation::from(body.aggregation_strategy.unwrap_or_default());
        let request = ClassifyRequest { inputs, overlong: InputOverflow::Refuse, aggregation };
        let raw = body.raw_scores == Some(true);
        Ok(Self { model: body.model, request, is_batch, truncate: body.truncate, raw })
    }
}

/// The results of one input, or a list of them for each input of a batch.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Predictions {
    One(Vec<Prediction>),
    Batch(Vec<Vec<Prediction>>),
}

/// The score of a label, or an entity.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Prediction {
    Label {
        score: f32,
        label: String,
    },
    Entity {
        entity_group: String,
        score: f32,
        word: String,
        /// Position of the first character.
        start: usize,
        /// Position after the last character.
        end: usize,
    },
}

/// Returns the results of an input: labels in descending order of their scores, or entities in the order of the text.
fn predictions(found: Classification, labels: &[String], raw: bool) -> Vec<Prediction> {
    match found {
        Classification::Text(LabelScores { logits, scores }) => {
            let scores = if raw { logits } else { scores };
            let mut scored: Vec<(f32, &String)> = scores.into_iter().zip(labels).collect();
            scored.sort_by(|a, b| b.0.total_cmp(&a.0));
            scored
                .into_iter()
                .map(|(score, label)| Prediction::Label { score, label: label.clone() })
                .collect()
        }
        Classification::Entities(entities) => {
            let prediction = |Entity { label, score, text, chars, .. }| Prediction::Entity {
                entity_group: label,
                score,
                word: text,
                start: chars.start,
                end: chars.end,
            };
            entities.into_iter().map(prediction).collect()
        }
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedPredict>) -> Result<Response, ApiError> {
    let Body { request, ignored, reservation } = body;
    let ParsedPredict { model, mut request, is_batch, truncate, raw } = request;
    request.overlong = app.shared.options.overlong(truncate);
    let model = match model {
        Some(model) => model,
        None => only_classifier(&app).await?,
    };
    let found = classification::classify(&app, &model, request, reservation).await.map_err(of_inputs)?;
    let Classifications { labels, results, ran_on, .. } = found;
    let response = json_response(&app, move || {
        let mut each = results.into_iter().map(|found| predictions(found, &labels, raw));
        match is_batch {
            true => Predictions::Batch(each.collect()),
            false => Predictions::One(each.next().unwrap_or_default()),
        }
    });
    Ok(ignored.name_in(with_device_headers(&ran_on, response.await?)))
}

/// Returns the only classifier that is installed. Clients of text-embeddings-inference name no model, because its servers have
/// one.
async fn only_classifier(app: &App) -> Result<String, ApiError> {
    let gateway = app.gateway.clone();
    let models = app.shared.jobs.run(move || gateway.models()).await?;
    let is_classifier = |model: &ModelListing| {
        matches!(model.kind, ModelKind::Classification | ModelKind::TokenClassification)
            && !model.installed.is_empty()
    };
    let names: Vec<String> =
        models.into_iter().filter(is_classifier).map(|model| model.name.to_string()).collect();
    match &names[..] {
        [name] => Ok(name.clone()),
        [] => {
            Err(ApiError::bad_request("model", "expected the name of a model, as no classifier is installed"))
        }
        names => {
            let message =
                format!("expected the name of one of the installed classifiers: {}", names.join(", "));
            Err(ApiError::bad_request("model", message))
        }
    }
}

/// Names the field of this endpoint in an error.
fn of_inputs(error: ApiError) -> ApiError {
    error.renamed("input", "inputs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_have_the_forms_of_text_embeddings_inference() {
        let text = |text: &str| ClassifierInput::Text(text.to_owned());
        let pair = |a: &str, b: &str| ClassifierInput::Pair(a.to_owned(), b.to_owned());
        let check = |json: &str, expect: PredictInputs| {
            assert_eq!(serde_json::from_str::<PredictInputs>(json).unwrap(), expect, "{json}");
        };
        check(r#""a""#, PredictInputs::One(text("a")));
        check(r#"["a"]"#, PredictInputs::One(text("a")));
        check(r#"["a", "b"]"#, PredictInputs::One(pair("a", "b")));
        check(r#"[["a"], ["b", "c"]]"#, PredictInputs::Batch(vec![text("a"), pair("b", "c")]));

        let refused = |json: &str, expect: &str| {
            let error = serde_json::from_str::<PredictInputs>(json).unwrap_err().to_string();
            assert!(error.contains(expect), "{json}: {error}");
        };
        refused("[]", "invalid length 0");
        refused("[[]]", "invalid length 0");
        refused(r#"["a", "b", "c"]"#, "put each text of a batch in a list of its own");
        refused(r#"["a", ["b"]]"#, "put each text of a batch");
        refused(r#"[["a", "b", "c"]]"#, "invalid length 3");
        refused("[1]", "expected a text, or a list of one or two texts");
        let many = format!("[{}]", vec![r#"["a"]"#; MAX_INPUTS + 1].join(","));
        refused(&many, "expected at most 2048 inputs");
    }
}
