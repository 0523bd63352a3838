//! Answers of question-answering models, in any protocol: the part of a text that is the answer.

use narthex_gateway::request::{ReadSource, ReadSpan, Reading};
use schemars::JsonSchema;
use serde::Serialize;

/// Extension of an answer in every protocol.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct ReadingObject {
    /// True if `span` is the answer.
    answered: bool,
    /// Probability that the texts have no answer, 0 to 1.
    no_answer_score: f64,
    /// The best part of a text, also if its score does not suffice.
    span: Option<SpanObject>,
}

/// A part of a text, in characters and in UTF-8 bytes.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct SpanObject {
    text: String,
    start: usize,
    end: usize,
    start_byte: usize,
    end_byte: usize,
    /// Probability, 0 to 1.
    score: f64,
    source: SourceObject,
}

/// The text with the part.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum SourceObject {
    /// The instructions in the settings of the model.
    Instructions,
    /// A message of the request, by its index.
    Message { index: usize },
    /// A document of the request, by its index.
    Document {
        index: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<String>,
    },
}

impl From<ReadSource> for SourceObject {
    fn from(source: ReadSource) -> Self {
        match source {
            ReadSource::Instructions => Self::Instructions,
            ReadSource::Message(index) => Self::Message { index },
            ReadSource::Document { index, title } => Self::Document { index, title },
        }
    }
}

impl From<ReadSpan> for SpanObject {
    fn from(ReadSpan { answer, source }: ReadSpan) -> Self {
        Self {
            text: answer.text,
            start: answer.chars.start,
            end: answer.chars.end,
            start_byte: answer.bytes.start,
            end_byte: answer.bytes.end,
            score: answer.score,
            source: source.into(),
        }
    }
}

impl From<Reading> for ReadingObject {
    fn from(Reading { span, is_answered, no_answer }: Reading) -> Self {
        Self { answered: is_answered, no_answer_score: no_answer, span: span.map(SpanObject::from) }
    }
}
