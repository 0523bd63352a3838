//! Requests to models and their answers, in text rather than tokens.

mod classification;
mod decision;
mod encoder;
mod prompt;
mod reading;
mod reasoning;
mod speech;
mod tools;
mod transcription;

use std::{collections::BTreeMap, ops::ControlFlow, sync::mpsc, time::Duration};

pub use narthex_spec::MediaKind;
use narthex_spec::Speculation;
pub use narthex_text::{
    exact_json::ExactJson,
    grammar::{Grammar, best_effort},
    template::{Content, FunctionCall, Media, Message, Part, RemoteMedia, Role, ToolCall},
};

pub use classification::{
    Aggregation, Classification, Classifications, ClassifierInput, ClassifyRequest, Entity, LabelScores,
};
pub use decision::{
    ClosedQuestion, Decision, DecisionOption, DecisionRequest, Decisions, MAX_OPTIONS, MAX_QUESTIONS,
    QuestionForm,
};
pub use encoder::{
    Answer, AnswerRequest, Answers, DocumentScore, EmbedRequest, Embeddings, Filling, Fillings,
    InputOverflow, MAX_ANSWER_TEXT, MAX_INPUTS, MaskPredictOutput, MaskRequest, Ranking, RefineRequest,
    RerankRequest,
};

pub use prompt::{ChatPrompt, HistoryOverflow, RenderedChat, TokenizeOptions};
pub use reading::{ReadDocument, ReadSource, ReadSpan, Reading, ReadingSettings};
pub use reasoning::{ReasoningSettings, Thinking};
pub use speech::{MAX_SPOKEN_TEXT, SpeechEvent, SpeechRequest, SpeechSummary};
pub use transcription::{
    ActivitySettings, BeamSearch, Segment, Task, TokenLogprob, Transcript, TranscriptionEvent,
    TranscriptionRequest, Word,
};

pub use crate::serve::media::omission_note;
use crate::{cancel::Cancel, energy::AnswerEnergy, error::ErrorKind};

pub use tools::{
    CallLimit, Strictness, TextArgument, Tool, ToolCallDelta, ToolCallStart, ToolChoice, ToolSettings,
};

/// Request for an answer in a conversation.
///
/// ```
/// use narthex_gateway::request::{
///     ChatRequest, GenerateOptions, HistoryOverflow, Message, ReadingSettings, ReasoningSettings, Role, ToolSettings,
/// };
///
/// let request = ChatRequest {
///     messages: vec![
///         Message::new(Role::System, "Answer in one sentence.".to_owned()),
///         Message::new(Role::User, "What is a narthex?".to_owned()),
///     ],
///     tools: ToolSettings::default(),
///     reasoning: ReasoningSettings::default(),
///     overflow: HistoryOverflow::Refuse,
///     reading: ReadingSettings::default(),
///     options: GenerateOptions { max_tokens: Some(64), ..GenerateOptions::api_defaults() },
/// };
/// assert_eq!(request.messages.len(), 2);
/// ```
#[derive(Debug, Clone)]
pub struct ChatRequest {
    /// Messages of the conversation, oldest first; at least one.
    pub messages: Vec<Message>,
    /// Tools that the model may call.
    pub tools: ToolSettings,
    /// Reasoning before the answer.
    pub reasoning: ReasoningSettings,
    /// Treatment of a conversation that is too long.
    pub overflow: HistoryOverflow,
    /// Settings of the answers of question-answering models.
    pub reading: ReadingSettings,
    /// Generation options.
    pub options: GenerateOptions,
}

impl ChatRequest {
    /// Returns a request with these messages and no other settings.
    pub fn new(messages: Vec<Message>) -> Self {
        Self {
            messages,
            tools: ToolSettings::default(),
            reasoning: ReasoningSettings::default(),
            overflow: HistoryOverflow::Refuse,
            reading: ReadingSettings::default(),
            options: GenerateOptions::api_defaults(),
        }
    }

    /// Returns a request with one message of the user.
    ///
    /// ```
    /// use narthex_gateway::request::ChatRequest;
    ///
    /// let mut request = ChatRequest::user("What is a narthex?");
    /// request.options.max_tokens = Some(64);
    /// assert_eq!(request.messages[0].content, "What is a narthex?");
    /// ```
    pub fn user(text: impl Into<String>) -> Self {
        Self::new(vec![Message::new(Role::User, text.into())])
    }
}

/// Request for a text completion.
///
/// ```
/// use narthex_gateway::request::{CompletionRequest, Echo, GenerateOptions, Prompt};
///
/// let options = GenerateOptions { max_tokens: Some(64), temperature: Some(0.0), ..GenerateOptions::api_defaults() };
/// let prompt = Prompt::Text("The ferry leaves at".to_owned());
/// let request = CompletionRequest { prompt, echo: Echo::Completion, options };
/// assert_eq!(request.options.temperature, Some(0.0));
/// ```
#[derive(Debug, Clone)]
pub struct CompletionRequest {
    /// Text to continue.
    pub prompt: Prompt,
    /// Repetition of the prompt.
    pub echo: Echo,
    /// Generation options.
    pub options: GenerateOptions,
}

/// A text or its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text. The tokenizer recognises special tokens in it.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// Repetition of the prompt in a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    /// Only the completion.
    Completion,
    /// The prompt followed by the completion.
    PromptAndCompletion,
}

/// Options for generating text. The ranges are those of the OpenAI API, and the gateway checks them.
///
/// ```
/// use narthex_gateway::request::{GenerateOptions, Grammar};
///
/// // A greedy answer that is a JSON object.
/// let options = GenerateOptions {
///     temperature: Some(0.0),
///     max_tokens: Some(200),
///     grammar: Some(Grammar::json_object().into()),
///     ..GenerateOptions::api_defaults()
/// };
/// assert_eq!(options.n, 1);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// Maximum number of tokens to generate; `None` for the rest of the context.
    pub max_tokens: Option<usize>,
    /// Sampling temperature, 0 (greedy) to 2. This and the other values that may be `None` are those of the model's
    /// publisher if they are `None`, unless the temperature is stated as 0.
    pub temperature: Option<f32>,
    /// Temperature if neither the request nor the publisher states one.
    pub default_temperature: f32,
    /// Nucleus sampling threshold, above 0 to 1.
    pub top_p: Option<f32>,
    /// Number of likeliest tokens to sample from; 0 for all.
    pub top_k: Option<usize>,
    /// Minimum probability relative to the likeliest token, 0 to 1.
    pub min_p: Option<f32>,
    /// Share of the probability of the most typical tokens, above 0 to 1; 1 keeps all.
    pub typical_p: f32,
    /// Penalty on repeated tokens as a factor, above 0; 1 for none.
    pub repetition_penalty: Option<f32>,
    /// Penalty on tokens that occurred, -2 to 2.
    pub presence_penalty: f32,
    /// Penalty on tokens for each occurrence, -2 to 2.
    pub frequency_penalty: f32,
    /// Bias of token ids, -100 to 100.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Seed of the sampler; `None` for a random one.
    pub seed: Option<u64>,
    /// Strings that end the text and are not part of it.
    pub stop: Vec<String>,
    /// Number of choices, at least 1.
    pub n: usize,
    /// Number of alternatives with log-probabilities for each token; `None` for no log-probabilities.
    pub logprobs: Option<usize>,
    /// Grammar that the text must follow; `None` for any text.
    pub grammar: Option<RequestGrammar>,
    /// Treatment of the model's stop tokens.
    pub stop_tokens: StopTokens,
    /// Treatment of other special tokens in the text.
    pub special_tokens: SpecialTokens,
    /// Number of tokens before which no stop token is generated.
    pub min_tokens: usize,
    /// Treatment of an answer that only repeats itself.
    pub repetition: Repetition,
    /// Verification of several tokens in one step, unless the settings disable it. It does not change answers.
    pub speculation: Speculation,
}

/// Grammar of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestGrammar {
    /// The grammar.
    pub grammar: Grammar,
    /// Name of its field in errors.
    pub field: &'static str,
}

impl From<Grammar> for RequestGrammar {
    /// Returns the grammar with the name of its field in OpenAI's chat API, or in that of other local servers.
    fn from(grammar: Grammar) -> Self {
        let field = match grammar {
            Grammar::Lark(_) => "grammar",
            Grammar::Regex(_) => "regex",
            Grammar::JsonSchema(_) => "response_format",
        };
        Self { grammar, field }
    }
}

/// Sampling settings of a generation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UsedSampling {
    /// Temperature.
    pub temperature: f32,
    /// Nucleus sampling threshold.
    pub top_p: f32,
}

/// Treatment of the tokens that end an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopTokens {
    /// They end it.
    End,
    /// They are never generated.
    Never,
}

/// Treatment of an answer that only repeats itself: a part of 8 to 512 tokens five times in a row, or a shorter one for 256
/// tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repetition {
    /// It goes on.
    Allow,
    /// It ends.
    End,
}

/// Treatment of the special tokens in the text of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// The text omits them.
    Skip,
    /// Their spelling is part of the text. The token that ends the answer is not.
    Show,
}

impl GenerateOptions {
    /// Returns the defaults of the OpenAI API: the sampling of the model's publisher, or else temperature 1 and no other
    /// changes to the distribution.
    pub fn api_defaults() -> Self {
        Self {
            max_tokens: None,
            temperature: None,
            default_temperature: 1.0,
            top_p: None,
            top_k: None,
            min_p: None,
            typical_p: 1.0,
            repetition_penalty: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            seed: None,
            stop: Vec::new(),
            n: 1,
            logprobs: None,
            grammar: None,
            stop_tokens: StopTokens::End,
            special_tokens: SpecialTokens::Skip,
            min_tokens: 0,
            repetition: Repetition::Allow,
            speculation: Speculation::Auto,
        }
    }
}

/// Receiver of a generation's events. It runs on the engine's thread, so it must be quick and must not block.
///
/// ```
/// use std::{ops::ControlFlow, sync::mpsc};
///
/// use narthex_gateway::request::{GenerationEvent, GenerationSink};
///
/// /// Sends the text to another thread, and cancels the generation once that thread is gone.
/// struct TextSender(mpsc::Sender<String>);
///
/// impl GenerationSink for TextSender {
///     fn event(&mut self, event: GenerationEvent) -> ControlFlow<()> {
///         let GenerationEvent::Text { text, .. } = event else { return ControlFlow::Continue(()) };
///         match self.0.send(text) {
///             Ok(()) => ControlFlow::Continue(()),
///             Err(_) => ControlFlow::Break(()),
///         }
///     }
/// }
///
/// let (sender, receiver) = mpsc::channel();
/// let event = GenerationEvent::Text { choice: 0, text: "Hello".to_owned(), tokens: Vec::new() };
/// assert!(TextSender(sender).event(event).is_continue());
/// assert_eq!(receiver.recv().unwrap(), "Hello");
/// ```
pub trait GenerationSink: Send {
    /// Receives one event. `Break` cancels the generation.
    fn event(&mut self, event: GenerationEvent) -> ControlFlow<()>;

    /// Receives the time between two tokens of a choice. It is not called if software stands in for an NPU.
    fn token_gap(&mut self, _gap: Duration) {}

    /// Returns the signal that ends the work before the first event.
    fn cancel(&self) -> Cancel {
        Cancel::new()
    }
}

/// Sends the events to another thread. Cancels the generation once the receiver is gone.
impl GenerationSink for mpsc::Sender<GenerationEvent> {
    fn event(&mut self, event: GenerationEvent) -> ControlFlow<()> {
        match self.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

/// Event of a generation. Events of different choices interleave.
#[derive(Debug, Clone, PartialEq)]
pub enum GenerationEvent {
    /// The prompt was tokenized.
    Started {
        /// Number of prompt tokens.
        prompt_tokens: usize,
    },
    /// More text of one choice. The concatenated texts of a choice are its answer.
    Text {
        /// Index of the choice.
        choice: usize,
        /// Whole characters; may be empty if only `tokens` is new.
        text: String,
        /// Log-probabilities of the tokens since the last event, if requested.
        tokens: Vec<TokenInfo>,
    },
    /// More reasoning of one choice, which precedes its text.
    Reasoning {
        /// Index of the choice.
        choice: usize,
        /// Whole characters.
        text: String,
    },
    /// More of a tool call of one choice.
    ToolCall {
        /// Index of the choice.
        choice: usize,
        /// The part.
        delta: ToolCallDelta,
    },
    /// One choice is complete.
    Finished {
        /// Index of the choice.
        choice: usize,
        /// Reason of the end.
        reason: FinishReason,
    },
    /// Every choice is complete; the last event.
    Done(Summary),
    /// The generation failed; the last event.
    Failed {
        /// Kind of error: [`ErrorKind::BadRequest`] if the request's grammar allowed no next token.
        kind: ErrorKind,
        /// Error message.
        message: String,
    },
}

/// A token with its log-probability.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenInfo {
    /// Text, with replacement characters for incomplete UTF-8.
    pub text: String,
    /// Exact bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of the probability; `None` for the first token of a prompt.
    pub logprob: Option<f32>,
    /// The likeliest tokens at this position, in descending order.
    pub top: Vec<TokenAlternative>,
}

/// One of the likeliest tokens at a position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenAlternative {
    /// Text, with replacement characters for incomplete UTF-8.
    pub text: String,
    /// Exact bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of the probability.
    pub logprob: f32,
}

/// Reason why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token.
    Stop,
    /// A stop string.
    StopString {
        /// Its index in [`GenerateOptions::stop`].
        index: usize,
    },
    /// The answer ends with tool calls.
    ToolCalls,
    /// The answer ends with tool calls; another one is malformed, and in its text.
    MixedCalls,
    /// The answer ended with a malformed tool call, which is in its text.
    MalformedCall,
    /// `max_tokens` was reached, or the context is full.
    Length,
    /// The answer only repeated itself, and [`Repetition::End`] was requested.
    Repetition,
    /// The caller left, or the server shut down.
    Cancelled,
}

/// Token counts and times of a generation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Summary {
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Prompt tokens that were already in the KV cache before the request. The last prompt token is never counted, even
    /// if its logits were stored, because clients expect that every request reads at least one token.
    pub cached_tokens: usize,
    /// Generated tokens of all choices.
    pub completion_tokens: usize,
    /// Generated tokens of reasoning among them.
    pub reasoning_tokens: usize,
    /// Draft tokens that the model accepted; they are included in `completion_tokens`.
    pub accepted_tokens: usize,
    /// Draft tokens that the model rejected.
    pub rejected_tokens: usize,
    /// Times; `None` if software stood in for an NPU, because its times are meaningless.
    pub times: Option<Times>,
    /// Energy; `None` if this process does not sample the machine's power
    /// ([`Gateway::sample_power`](crate::Gateway::sample_power)), or if software stood in for an NPU.
    pub energy: Option<AnswerEnergy>,
}

/// Times of a generation since it was accepted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// Time until the first choice has left the queue.
    pub queued: Duration,
    /// Time to the first token.
    pub first_token: Duration,
    /// Time to the end.
    pub total: Duration,
}

impl Times {
    /// Returns the tokens per second after the first token, for this number of tokens; 0 for fewer than two.
    pub fn decode_rate(&self, tokens: usize) -> f64 {
        let seconds = self.total.saturating_sub(self.first_token).as_secs_f64();
        if tokens < 2 || seconds <= 0.0 { 0.0 } else { (tokens - 1) as f64 / seconds }
    }
}
