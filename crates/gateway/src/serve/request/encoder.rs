//! Requests to encoders: embeddings, reranking, question answering and masked tokens.

use crate::{report::placement::AnsweringDevice, serve::request::Prompt};

/// Maximum number of texts in one request to an encoder.
pub const MAX_INPUTS: usize = 2048;

/// Request to embed texts.
///
/// ```
/// use narthex_gateway::request::{EmbedRequest, InputOverflow};
///
/// let request = EmbedRequest {
///     overlong: InputOverflow::Truncate,
///     dimensions: Some(256),
///     ..EmbedRequest::new(["a ferry at dawn", "the quarterly report"])
/// };
/// assert_eq!(request.inputs.len(), 2);
/// ```
#[derive(Debug, Clone)]
pub struct EmbedRequest {
    /// Texts or token lists; at least one.
    pub inputs: Vec<Prompt>,
    /// Treatment of inputs that are too long.
    pub overlong: InputOverflow,
    /// Number of leading elements to keep. The shortened vectors are rescaled to unit length.
    pub dimensions: Option<usize>,
    /// Name of the model's prompt that precedes each text; `None` for the model's default.
    pub prompt: Option<String>,
}

impl EmbedRequest {
    /// Creates a request with the default settings: texts that are too long are refused, and vectors have their full
    /// length.
    pub fn new<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Self {
        let inputs = texts.into_iter().map(|text| Prompt::Text(text.into())).collect();
        Self { inputs, overlong: InputOverflow::Refuse, dimensions: None, prompt: None }
    }
}

/// Treatment of an input that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputOverflow {
    /// Refuse the request.
    Refuse,
    /// Cut off the end of the input.
    Truncate,
}

/// Vectors in the order of the inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Embeddings {
    /// One vector for each input.
    pub vectors: Vec<Vec<f32>>,
    /// Number of tokens of all inputs, special tokens included.
    pub prompt_tokens: usize,
    /// Device that computed the answer.
    pub ran_on: AnsweringDevice,
}

/// Request to sort documents by relevance to a query.
///
/// ```
/// use narthex_gateway::request::{InputOverflow, RerankRequest};
///
/// let request = RerankRequest {
///     query: "boats to the island".to_owned(),
///     documents: vec!["The quarterly report is late.".to_owned(), "The ferry leaves at dawn.".to_owned()],
///     top_n: Some(1),
///     overlong: InputOverflow::Truncate,
/// };
/// assert_eq!(request.documents.len(), 2);
/// ```
#[derive(Debug, Clone)]
pub struct RerankRequest {
    /// Query.
    pub query: String,
    /// Documents; at least one.
    pub documents: Vec<String>,
    /// Maximum number of results; `None` for all.
    pub top_n: Option<usize>,
    /// Treatment of documents that are too long together with the query.
    pub overlong: InputOverflow,
}

/// Documents in descending order of relevance.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranking {
    /// Results.
    pub results: Vec<DocumentScore>,
    /// Number of tokens of all pairs, special tokens included.
    pub prompt_tokens: usize,
    /// Device that computed the answer.
    pub ran_on: AnsweringDevice,
}

/// A document with its score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DocumentScore {
    /// Index of the document in the request.
    pub index: usize,
    /// Relevance, 0 to 1.
    pub score: f32,
}

/// Maximum bytes of a question and of its context.
pub const MAX_ANSWER_TEXT: usize = 1 << 20;

/// Question about a text.
///
/// ```
/// use narthex_gateway::request::AnswerRequest;
///
/// let request = AnswerRequest { top_k: 3, ..AnswerRequest::new("When?", "The ferry leaves at dawn.") };
/// assert_eq!(request.window, 384);
/// ```
#[derive(Debug, Clone)]
pub struct AnswerRequest {
    /// Question.
    pub question: String,
    /// Text that contains the answers.
    pub context: String,
    /// Maximum number of answers, 1 to 100.
    pub top_k: usize,
    /// Maximum length of an answer in tokens.
    pub longest: usize,
    /// Maximum length of a window in tokens, question and special tokens included.
    pub window: usize,
    /// Overlap of neighbouring windows in tokens of the context; at most half a window.
    pub stride: usize,
}

impl AnswerRequest {
    /// Creates a request with the default settings: one answer of up to 30 tokens, and windows of 384 tokens that
    /// overlap by 128.
    pub fn new(question: impl Into<String>, context: impl Into<String>) -> Self {
        Self {
            question: question.into(),
            context: context.into(),
            top_k: 1,
            longest: 30,
            window: 384,
            stride: 128,
        }
    }
}

/// Answers in descending order of score.
#[derive(Debug, Clone, PartialEq)]
pub struct Answers {
    /// Distinct spans of the context, which may overlap.
    pub answers: Vec<Answer>,
    /// Probability that the context has no answer, 0 to 1: the minimum over its windows.
    pub no_answer: f64,
    /// Number of tokens of all windows, special tokens included.
    pub prompt_tokens: usize,
    /// Device that computed the answer.
    pub ran_on: AnsweringDevice,
}

impl Answers {
    /// Returns the best answer, unless "no answer" is likelier.
    pub fn best(&self) -> Option<&Answer> {
        self.answers.first().filter(|answer| answer.score >= self.no_answer)
    }
}

/// A span of a context.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Text.
    pub text: String,
    /// Range in the context in UTF-8 bytes.
    pub bytes: std::ops::Range<usize>,
    /// Range in the context in Unicode scalar values.
    pub chars: std::ops::Range<usize>,
    /// Probability, 0 to 1.
    pub score: f64,
}

/// Request to predict the masked tokens of a text.
///
/// ```
/// use narthex_gateway::request::MaskRequest;
///
/// let request = MaskRequest { text: "The [MASK] leaves at dawn.".to_owned(), top_k: 5 };
/// assert!(request.text.contains("[MASK]"));
/// ```
#[derive(Debug, Clone)]
pub struct MaskRequest {
    /// Text with the model's mask (`[MASK]`, `<mask>`), 1 to 64 times.
    pub text: String,
    /// Number of tokens for each mask, 1 to 100.
    pub top_k: usize,
}

/// Predictions in the order of the masks.
#[derive(Debug, Clone, PartialEq)]
pub struct Fillings {
    /// For each mask, the likeliest tokens in descending order.
    pub masks: Vec<Vec<Filling>>,
    /// Number of tokens of the text, special tokens included.
    pub prompt_tokens: usize,
    /// Device that computed the answer.
    pub ran_on: AnsweringDevice,
}

/// A token in the place of a mask.
#[derive(Debug, Clone, PartialEq)]
pub struct Filling {
    /// Token id.
    pub token: u32,
    /// Text.
    pub text: String,
    /// Probability, 0 to 1.
    pub score: f64,
}

/// Request to generate tokens with a masked language model.
///
/// ```
/// use narthex_gateway::request::RefineRequest;
///
/// let request = RefineRequest { rounds: 4, ..RefineRequest::new("The ferry leaves at [MASK].", 3) };
/// assert_eq!((request.tokens, request.rounds), (3, 4));
/// ```
#[derive(Debug, Clone)]
pub struct RefineRequest {
    /// Text with the model's mask in the place of the new tokens; without a mask they are added at its end.
    pub text: String,
    /// Number of tokens to generate, 1 to 64.
    pub tokens: usize,
    /// Number of rounds, 1 to 64. Each round after the first replaces the least certain tokens.
    pub rounds: usize,
}

impl RefineRequest {
    /// Creates a request with ten rounds, as in the paper.
    pub fn new(text: impl Into<String>, tokens: usize) -> Self {
        Self { text: text.into(), tokens, rounds: 10 }
    }
}

/// A text with generated tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskPredictOutput {
    /// Whole text.
    pub text: String,
    /// Generated text.
    pub generated: String,
    /// Generated tokens, with the probabilities of the rounds that chose them.
    pub tokens: Vec<Filling>,
    /// Number of tokens of one pass: the text, the generated and the special tokens.
    pub prompt_tokens: usize,
    /// Device that computed the answer.
    pub ran_on: AnsweringDevice,
}
