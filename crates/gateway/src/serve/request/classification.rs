//! Requests to classifiers of texts and of tokens.

use std::ops::Range;

use super::InputOverflow;
use crate::report::placement::AnsweringDevice;

/// Request to classify texts, or their tokens.
///
/// ```
/// use narthex_gateway::request::{ClassifierInput, ClassifyRequest, InputOverflow};
///
/// let request = ClassifyRequest {
///     overlong: InputOverflow::Truncate,
///     ..ClassifyRequest::new(["The ferry was late again.", "What a view!"])
/// };
/// assert_eq!(request.inputs[1], ClassifierInput::Text("What a view!".to_owned()));
/// ```
#[derive(Debug, Clone)]
pub struct ClassifyRequest {
    /// Texts or pairs of texts; at least one. Classifiers of tokens take texts only.
    pub inputs: Vec<ClassifierInput>,
    /// Treatment of inputs that are too long.
    pub overlong: InputOverflow,
    /// Form of the entities that a classifier of tokens finds.
    pub aggregation: Aggregation,
}

impl ClassifyRequest {
    /// Creates a request with the default settings: texts that are too long are refused, and adjacent tokens of one label
    /// are one entity.
    pub fn new<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Self {
        let inputs = texts.into_iter().map(|text| ClassifierInput::Text(text.into())).collect();
        Self { inputs, overlong: InputOverflow::Refuse, aggregation: Aggregation::Simple }
    }
}

/// Input of a classifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClassifierInput {
    /// A text.
    Text(String),
    /// Two texts whose relation is classified, such as a premise and a hypothesis.
    Pair(String, String),
}

/// Form of entities, as in the pipelines of transformers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Aggregation {
    /// Each token is an entity of its own, with the label as it is.
    None,
    /// Adjacent tokens with the same label are one entity, which ends before a label with the prefix `B-`. Labels lose
    /// their prefix.
    #[default]
    Simple,
}

/// Classes in the order of the inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Classifications {
    /// Names of the model's labels.
    pub labels: Vec<String>,
    /// One result for each input.
    pub results: Vec<Classification>,
    /// Number of tokens of all inputs, special tokens included.
    pub prompt_tokens: usize,
    /// Device that computed the answer.
    pub ran_on: AnsweringDevice,
}

/// Result for an input.
#[derive(Debug, Clone, PartialEq)]
pub enum Classification {
    /// Scores of a text.
    Text(LabelScores),
    /// Entities in a text, in the order of their positions.
    Entities(Vec<Entity>),
}

/// Scores of a text, in the order of the labels.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelScores {
    /// Outputs of the model.
    pub logits: Vec<f32>,
    /// Probabilities: with a sum of 1 if a text has one label, each for itself if it may have several. The outputs
    /// themselves for a regression.
    pub scores: Vec<f32>,
}

impl LabelScores {
    /// Returns the index of the label with the highest score; of equal ones, the first.
    pub fn best(&self) -> usize {
        crate::serve::probabilities::first_largest(&self.scores)
    }
}

/// A part of a text with a label.
#[derive(Debug, Clone, PartialEq)]
pub struct Entity {
    /// Name of the label.
    pub label: String,
    /// Probability, 0 to 1: the mean over the tokens.
    pub score: f32,
    /// Text.
    pub text: String,
    /// Range in the input in UTF-8 bytes.
    pub bytes: Range<usize>,
    /// Range in the input in Unicode scalar values.
    pub chars: Range<usize>,
}
