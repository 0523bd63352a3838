//! Answers of question-answering models in conversations.

use super::Answer;

/// Settings of the answers of question-answering models. Other chat models refuse them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReadingSettings {
    /// Texts that may contain the answer, in addition to the other messages.
    pub documents: Vec<ReadDocument>,
    /// Minimum score of an answer, 0 to 1; `None` for [`Self::MIN_SCORE`].
    pub min_score: Option<f64>,
}

impl ReadingSettings {
    /// Minimum score if a request states none. Models for SQuAD score right answers far above it, and most parts of texts
    /// without an answer below it.
    pub const MIN_SCORE: f64 = 0.1;
}

/// A text that may contain an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadDocument {
    /// Name for the answer's source, such as that of a file.
    pub title: Option<String>,
    /// Text.
    pub text: String,
}

/// Part of a conversation or of its documents that answers the last question.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The best span; `None` if no text has a token.
    pub span: Option<ReadSpan>,
    /// True if the span is the answer: its score suffices, and "no answer" is not likelier.
    pub is_answered: bool,
    /// Probability that no text has an answer, 0 to 1: the minimum over their windows.
    pub no_answer: f64,
}

/// A span of one of the texts.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadSpan {
    /// Span, with its place in the text.
    pub answer: Answer,
    /// The text.
    pub source: ReadSource,
}

/// A text that a question-answering model reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadSource {
    /// The instructions in the settings of the model.
    Instructions,
    /// Message with this index in the request.
    Message(usize),
    /// A document of the request.
    Document {
        /// Its index.
        index: usize,
        /// Its title.
        title: Option<String>,
    },
}
