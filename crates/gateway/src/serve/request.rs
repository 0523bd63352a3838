//! What callers ask of a model, and what they hear back: text, not tokens.

use std::{collections::BTreeMap, ops::ControlFlow, time::Duration};

pub use narthex_text::template::{Message, Role};

use crate::report::placement::RanOn;

/// One chat request; a model's answer to a conversation.
#[derive(Debug, Clone)]
pub struct ChatRequest {
    /// The conversation so far, oldest first; at least one message.
    pub messages: Vec<Message>,
    /// How the answer is generated.
    pub options: GenerateOptions,
}

/// One text-completion request.
#[derive(Debug, Clone)]
pub struct CompletionRequest {
    /// The text to go on from.
    pub prompt: Prompt,
    /// Whether the prompt is repeated before the completion.
    pub echo: Echo,
    /// How the completion is generated.
    pub options: GenerateOptions,
}

/// A text, or its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text, tokenised with special tokens recognised.
    Text(String),
    /// Token ids as they are.
    Tokens(Vec<u32>),
}

/// Whether a completion begins with its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    /// Only the completion.
    Completion,
    /// The prompt, then the completion.
    PromptAndCompletion,
}

/// How text is generated; ranges are those of the OpenAI API and are checked by the gateway.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// Tokens to generate at most; `None` goes on to the end of the context.
    pub max_tokens: Option<usize>,
    /// 0 (greedy) to 2.
    pub temperature: f32,
    /// Above 0, to 1.
    pub top_p: f32,
    /// 0 keeps all.
    pub top_k: usize,
    /// 0 to 1.
    pub min_p: f32,
    /// Above 0; 1 changes nothing.
    pub repetition_penalty: f32,
    /// -2 to 2.
    pub presence_penalty: f32,
    /// -2 to 2.
    pub frequency_penalty: f32,
    /// Token id to -100 … 100.
    pub logit_bias: BTreeMap<u32, f32>,
    /// A fixed seed; `None` draws one.
    pub seed: Option<u64>,
    /// Strings that end the text; they are not part of it.
    pub stop: Vec<String>,
    /// Number of answers, at least 1.
    pub n: usize,
    /// `Some(k)`: report each token's log-probability and those of the `k` likeliest.
    pub logprobs: Option<usize>,
}

impl GenerateOptions {
    /// The OpenAI API's defaults: temperature 1, everything else neutral.
    pub fn api_defaults() -> Self {
        Self {
            max_tokens: None,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            seed: None,
            stop: Vec::new(),
            n: 1,
            logprobs: None,
        }
    }
}

/// Receives one request's events on the engine's thread; must be quick and must not block.
pub trait GenerationSink: Send {
    /// Takes one event. `Break` cancels the whole request.
    fn event(&mut self, event: GenerationEvent) -> ControlFlow<()>;
}

/// One thing that happened to a request, in order; events of different choices interleave.
#[derive(Debug, Clone, PartialEq)]
pub enum GenerationEvent {
    /// The request was accepted.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: usize,
    },
    /// More text of one choice. Concatenated, a choice's texts are its answer.
    Text {
        /// Which answer, from 0.
        choice: usize,
        /// Whole characters; may be empty when only `tokens` has news.
        text: String,
        /// Log-probabilities of the tokens that came in since the last event, where asked for.
        tokens: Vec<TokenInfo>,
    },
    /// One choice is complete.
    Finished {
        /// Which answer.
        choice: usize,
        /// Why it ended.
        reason: FinishReason,
    },
    /// Every choice is complete; the last event.
    Done(Summary),
    /// The request failed; the last event.
    Failed {
        /// What went wrong, for people.
        message: String,
    },
}

/// A token with its log-probability.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenInfo {
    /// The token's text; the replacement character stands for incomplete UTF-8.
    pub text: String,
    /// The token's exact bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability; a prompt's first token has none.
    pub logprob: Option<f32>,
    /// The likeliest tokens in falling order.
    pub top: Vec<TokenAlternative>,
}

/// One of the likeliest tokens at a position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenAlternative {
    /// The token's text.
    pub text: String,
    /// The token's exact bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token or stop string.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
    /// The caller went away or the server shut down.
    Cancelled,
}

/// Counts and times of a finished request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were already in the KV cache.
    pub cached_tokens: usize,
    /// Generated tokens over all choices.
    pub completion_tokens: usize,
    /// How long it took; `None` where a stand-in had a part in it, whose times say nothing of what it stands for.
    pub times: Option<Times>,
}

/// How long a request took, from its acceptance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// To the first token.
    pub first_token: Duration,
    /// To the end.
    pub total: Duration,
}

impl Times {
    /// Tokens per second after the first one, of so many tokens; 0 where fewer than two were generated.
    pub fn decode_rate(&self, tokens: usize) -> f64 {
        let seconds = self.total.saturating_sub(self.first_token).as_secs_f64();
        if tokens < 2 || seconds <= 0.0 { 0.0 } else { (tokens - 1) as f64 / seconds }
    }
}

/// Texts to embed.
#[derive(Debug, Clone)]
pub struct EmbedRequest {
    /// Texts or token lists; at least one.
    pub inputs: Vec<Prompt>,
    /// What happens to an input over the model's length.
    pub overlong: Overlong,
    /// Keep only this many leading elements, rescaled to unit length.
    pub dimensions: Option<usize>,
    /// The name of the model's prompt that is put before each text; `None` takes the model's default, if it has one.
    pub prompt: Option<String>,
}

impl EmbedRequest {
    /// Creates a request with the default settings: texts that are too long are refused, and vectors have their full
    /// length.
    pub fn new<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Self {
        let inputs = texts.into_iter().map(|text| Prompt::Text(text.into())).collect();
        Self { inputs, overlong: Overlong::Refuse, dimensions: None, prompt: None }
    }
}

/// What happens to an input that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlong {
    /// It is refused with both numbers.
    Refuse,
    /// Its end is cut off.
    Truncate,
}

/// Vectors in the order of the inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Embeddings {
    /// One vector per input.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens over all inputs, special tokens included.
    pub prompt_tokens: usize,
    /// Where they were computed.
    pub ran_on: RanOn,
}

/// Documents to sort by how well they answer a query.
#[derive(Debug, Clone)]
pub struct RerankRequest {
    /// What is looked for.
    pub query: String,
    /// The documents; at least one.
    pub documents: Vec<String>,
    /// How many results are wanted; `None` wants all.
    pub top_n: Option<usize>,
    /// What happens to a document that is too long together with the query.
    pub overlong: Overlong,
}

/// Documents, the best first.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranking {
    /// The results.
    pub results: Vec<Ranked>,
    /// Tokens over all pairs, special tokens included.
    pub prompt_tokens: usize,
    /// Where they were computed.
    pub ran_on: RanOn,
}

/// One document's place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    /// Which document of the request.
    pub index: usize,
    /// How well it answers, 0 to 1.
    pub score: f32,
}

/// A question about a text.
#[derive(Debug, Clone)]
pub struct AnswerRequest {
    /// The question.
    pub question: String,
    /// The text that answers are parts of.
    pub context: String,
    /// How many answers are wanted, 1 to 100.
    pub top_k: usize,
    /// The longest answer, in tokens.
    pub longest: usize,
    /// The most tokens that are read at once, question and special tokens included.
    pub window: usize,
    /// Tokens of the context that neighbouring windows share; at most half of a window's.
    pub stride: usize,
}

impl AnswerRequest {
    /// A question with the usual settings: one answer of up to 30 tokens, windows of 384 that share 128.
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

/// Answers, the best first.
#[derive(Debug, Clone, PartialEq)]
pub struct Answers {
    /// Parts of the context; different ones, which may overlap.
    pub answers: Vec<Answer>,
    /// How likely the context holds no answer, 0 to 1: the least over its windows.
    pub no_answer: f64,
    /// Tokens over all windows, special tokens included.
    pub prompt_tokens: usize,
    /// Where they were computed.
    pub ran_on: RanOn,
}

impl Answers {
    /// The best answer, unless that there is none is likelier.
    pub fn best(&self) -> Option<&Answer> {
        self.answers.first().filter(|answer| answer.score >= self.no_answer)
    }
}

/// One part of a context.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Its text.
    pub text: String,
    /// Its bytes in the context, which is UTF-8.
    pub bytes: std::ops::Range<usize>,
    /// Its characters in the context: Unicode scalar values.
    pub chars: std::ops::Range<usize>,
    /// How likely it is the answer, 0 to 1.
    pub score: f64,
}

/// A text with masks to fill.
#[derive(Debug, Clone)]
pub struct MaskRequest {
    /// The text, with the model's own mask (`[MASK]`, `<mask>`) at least once and at most 64 times.
    pub text: String,
    /// How many tokens are wanted for each mask, 1 to 100.
    pub top_k: usize,
}

/// What fits in each mask, in the order of the masks.
#[derive(Debug, Clone, PartialEq)]
pub struct Fillings {
    /// For each mask, the likeliest tokens in falling order.
    pub masks: Vec<Vec<Filling>>,
    /// Tokens of the text, special tokens included.
    pub prompt_tokens: usize,
    /// Where they were computed.
    pub ran_on: RanOn,
}

/// A token that fits in a mask.
#[derive(Debug, Clone, PartialEq)]
pub struct Filling {
    /// Its id.
    pub token: u32,
    /// Its text.
    pub text: String,
    /// Its probability.
    pub score: f64,
}

/// A text to which a masked language model adds tokens.
#[derive(Debug, Clone)]
pub struct RefineRequest {
    /// The text, with the model's own mask where the tokens are wanted; without one they come at its end.
    pub text: String,
    /// How many tokens are wanted, 1 to 64.
    pub tokens: usize,
    /// How often the least certain tokens are chosen again, the first time included, 1 to 64.
    pub rounds: usize,
}

impl RefineRequest {
    /// A text with the usual settings: ten rounds, as in the paper.
    pub fn new(text: impl Into<String>, tokens: usize) -> Self {
        Self { text: text.into(), tokens, rounds: 10 }
    }
}

/// A text with what was added to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Refined {
    /// The whole text.
    pub text: String,
    /// What was added.
    pub generated: String,
    /// The same as tokens, each with its probability in the round that put it there.
    pub tokens: Vec<Filling>,
    /// Tokens that were read at once: text, added tokens and special ones.
    pub prompt_tokens: usize,
    /// Where they were computed.
    pub ran_on: RanOn,
}
