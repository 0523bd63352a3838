//! Prompts: the tokens of a conversation or of a text.

/// Treatment of a conversation that is too long for the model's context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryOverflow {
    /// Refuse the request.
    Refuse,
    /// Omit the oldest turns, so that room for an answer remains: `max_tokens` of the options, but at most a quarter of
    /// the context. A turn begins with a message of the user. The last turn and the system messages are kept.
    OmitOldest,
}

/// Treatment of special tokens when a text is tokenized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenizeOptions {
    /// Adds the special tokens that surround a text of the model, such as a start token. By default, they are added for
    /// encoders.
    pub add_special: Option<bool>,
    /// Recognises special tokens in the text. Otherwise they are plain text.
    pub parse_special: bool,
}

impl Default for TokenizeOptions {
    fn default() -> Self {
        Self { add_special: None, parse_special: true }
    }
}

/// Prompt of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatPrompt {
    /// Text of the chat template.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
}

/// Prompt that an answer would have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedChat {
    /// Prompt.
    pub prompt: ChatPrompt,
    /// True if the model may reason before it answers.
    pub reasons: bool,
}
