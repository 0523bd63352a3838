//! Log-probabilities of tokens in both forms of the API.

use std::collections::BTreeMap;

use narthex_gateway::request::{TokenAlternative, TokenInfo};
use schemars::JsonSchema;
use serde::Serialize;

/// `logprobs` of a chat's choice.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ChatLogprobs {
    content: Vec<ChatToken>,
    /// Null, because there are no refusals.
    refusal: Option<Vec<ChatToken>>,
}

/// A token with the likeliest tokens at its position.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct ChatToken {
    token: String,
    logprob: Option<f64>,
    bytes: Vec<u8>,
    top_logprobs: Vec<LikelyToken>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
struct LikelyToken {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

/// `logprobs` of a text's choice: lists with an entry for each token.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TextLogprobs {
    tokens: Vec<String>,
    /// Null for the first token of an echoed prompt.
    token_logprobs: Vec<Option<f64>>,
    /// The likeliest tokens at the position.
    top_logprobs: Vec<Option<BTreeMap<String, f64>>>,
    /// Offset in the text in characters.
    text_offset: Vec<usize>,
}

impl ChatLogprobs {
    /// Returns the log-probabilities of these tokens.
    pub(super) fn new(tokens: Vec<TokenInfo>) -> Self {
        Self { content: ChatToken::list(tokens), refusal: None }
    }
}

impl ChatToken {
    /// Returns the entries of tokens.
    pub(super) fn list(tokens: Vec<TokenInfo>) -> Vec<Self> {
        let entries = tokens.into_iter().map(|token| Self {
            token: token.text,
            logprob: token.logprob.map(f64::from),
            bytes: token.bytes,
            top_logprobs: token.top.into_iter().map(LikelyToken::from).collect(),
        });
        entries.collect()
    }
}

impl From<TokenAlternative> for LikelyToken {
    fn from(TokenAlternative { text, logprob, bytes }: TokenAlternative) -> Self {
        Self { token: text, logprob: logprob.into(), bytes }
    }
}

impl TextLogprobs {
    /// Returns the log-probabilities of tokens that begin at this offset, and adds their length to it.
    pub(super) fn new(tokens: &[TokenInfo], offset: &mut usize) -> Self {
        let mut logprobs = Self {
            tokens: tokens.iter().map(|token| token.text.clone()).collect(),
            token_logprobs: tokens.iter().map(|token| token.logprob.map(f64::from)).collect(),
            top_logprobs: Vec::with_capacity(tokens.len()),
            text_offset: Vec::with_capacity(tokens.len()),
        };
        for token in tokens {
            let alternatives = token.top.iter().map(|top| (top.text.clone(), top.logprob.into()));
            logprobs.top_logprobs.push(token.logprob.map(|_| alternatives.collect()));
            logprobs.text_offset.push(*offset);
            *offset += token.text.chars().count();
        }
        logprobs
    }
}
