//! Text of one choice: from tokens over reasoning, stop strings and tool calls to the parts that a client gets.

use std::mem;

use narthex_engine::request::TokenEvent;
use narthex_spec::TokenId;
use narthex_text::{
    detokenize::Detokenizer,
    stop::StopStrings,
    tokenizer::Tokenizer,
    tools::{self, ReasoningEvent, ReasoningParser, TextEnd},
};

use crate::serve::{
    answer_rules::AnswerRules,
    request::{FinishReason, GenerateOptions, TokenAlternative, TokenInfo, ToolCallDelta},
    tools::{AnswerCalls, Piece},
};

/// Part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum TextPart {
    /// Text, with the tokens since the last one if the client wants log-probabilities.
    Text { text: String, tokens: Vec<TokenInfo> },
    /// Reasoning.
    Reasoning(String),
    /// Part of a tool call.
    Call(ToolCallDelta),
}

/// Text of one choice.
pub(super) struct ChoiceText {
    tokenizer: Tokenizer,
    detokenizer: Detokenizer,
    /// Parser of reasoning, if the model reasons.
    reasoning: Option<ReasoningParser>,
    reasoning_tokens: usize,
    stop: StopStrings,
    /// Set if the parts have log-probabilities.
    has_logprobs: bool,
    /// Tokens whose text was not sent yet.
    pending: Vec<TokenInfo>,
    /// Index of the stop string that was found.
    stopped: Option<usize>,
    /// Parser of tool calls, if there may be some.
    calls: Option<AnswerCalls>,
}

impl ChoiceText {
    /// Creates the empty text of a choice that ends at one of the strings of `stop`.
    pub(super) fn new(
        tokenizer: &Tokenizer,
        stop: StopStrings,
        options: &GenerateOptions,
        rules: &AnswerRules,
    ) -> Self {
        let mut markers = rules.calls.as_ref().map_or(&[][..], |calls| tools::markers(calls.format)).to_vec();
        let reasoning = rules.reasoning.clone();
        markers.extend(reasoning.iter().flat_map(|parser| <[&str; 2]>::from(parser.markers())));
        Self {
            tokenizer: tokenizer.clone(),
            detokenizer: Detokenizer::new(tokenizer.clone()).showing(&markers),
            reasoning,
            reasoning_tokens: 0,
            stop,
            has_logprobs: options.logprobs.is_some(),
            pending: Vec::new(),
            stopped: None,
            calls: rules.calls.as_ref().map(|rules| AnswerCalls::new(rules, tokenizer)),
        }
    }

    /// Returns the log-probabilities of a token.
    pub(super) fn info(&self, event: &TokenEvent<'_>) -> TokenInfo {
        let text_and_bytes = |token: TokenId| {
            let bytes = self.tokenizer.token_bytes(token);
            (String::from_utf8_lossy(&bytes).into_owned(), bytes)
        };
        let (text, bytes) = text_and_bytes(event.token);
        let alternatives = event.top.iter().map(|top| {
            let (text, bytes) = text_and_bytes(top.token);
            TokenAlternative { text, bytes, logprob: top.logprob }
        });
        TokenInfo { text, bytes, logprob: event.logprob, top: alternatives.collect() }
    }

    /// Takes a token. Returns the text that can no longer become part of a stop string or a marker.
    pub(super) fn push(&mut self, event: &TokenEvent<'_>) -> Vec<TextPart> {
        if self.has_logprobs {
            let info = self.info(event);
            self.pending.push(info);
        }
        let is_inside = |text: &Self| text.reasoning.as_ref().is_some_and(ReasoningParser::is_inside);
        let was_inside = is_inside(self);
        let text = self.detokenizer.push(event.token);
        let parts = text.map_or_else(Vec::new, |text| self.push_answer(&text));
        self.reasoning_tokens += usize::from(was_inside || is_inside(self));
        parts
    }

    /// Number of tokens of reasoning.
    pub(super) fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Returns true if the choice is complete.
    pub(super) fn is_over(&self) -> bool {
        self.stopped.is_some() || self.calls.as_ref().is_some_and(AnswerCalls::is_exhausted)
    }

    /// Number of malformed tool calls.
    pub(super) fn malformed_calls(&self) -> usize {
        self.calls.as_ref().map_or(0, AnswerCalls::malformed)
    }

    /// Ends the text. Returns the rest and the reason of the end for the client.
    pub(super) fn finish(&mut self, reason: FinishReason) -> (Vec<TextPart>, FinishReason) {
        let mut parts = Vec::new();
        if self.stopped.is_none()
            && let Some(text) = self.detokenizer.finish()
        {
            parts = self.push_answer(&text);
        }
        if let Some(mut reasoning) = self.reasoning.take() {
            let rest = reasoning.finish();
            parts.extend(self.without_reasoning(rest));
        }
        if self.stopped.is_none() {
            let rest = self.stop.finish();
            parts.extend(self.divide(rest));
        }
        let reason = match self.stopped {
            Some(index) => FinishReason::StopString { index },
            None if self.is_over() => FinishReason::Stop,
            None => reason,
        };
        let reason = self.finish_calls(reason, &mut parts);
        if !self.pending.is_empty() {
            parts.push(self.text_part(String::new()));
        }
        (parts, reason)
    }

    /// Takes text of the answer with its reasoning.
    fn push_answer(&mut self, text: &str) -> Vec<TextPart> {
        match &mut self.reasoning {
            None => self.push_text(text),
            Some(reasoning) => {
                let events = reasoning.push(text);
                self.without_reasoning(events)
            }
        }
    }

    fn without_reasoning(&mut self, events: Vec<ReasoningEvent>) -> Vec<TextPart> {
        let mut parts = Vec::new();
        for event in events {
            match event {
                ReasoningEvent::Text(text) => parts.extend(self.push_text(&text)),
                ReasoningEvent::Reasoning(text) => {
                    // Only tokens of the text have log-probabilities.
                    self.pending.clear();
                    parts.push(TextPart::Reasoning(text));
                }
            }
        }
        parts
    }

    fn push_text(&mut self, text: &str) -> Vec<TextPart> {
        let outcome = self.stop.push(text);
        self.stopped = self.stopped.or(outcome.stopped);
        self.divide(outcome.text)
    }

    fn divide(&mut self, text: String) -> Vec<TextPart> {
        match &mut self.calls {
            _ if text.is_empty() => Vec::new(),
            None => vec![self.text_part(text)],
            Some(calls) => {
                let pieces = calls.push(&text);
                self.parts(pieces)
            }
        }
    }

    fn parts(&mut self, pieces: Vec<Piece>) -> Vec<TextPart> {
        let part = |piece| match piece {
            Piece::Text(text) => self.text_part(text),
            Piece::Call(delta) => TextPart::Call(delta),
        };
        pieces.into_iter().map(part).collect()
    }

    fn text_part(&mut self, text: String) -> TextPart {
        TextPart::Text { text, tokens: mem::take(&mut self.pending) }
    }

    /// Appends the rest of the calls. Returns the reason of the end.
    fn finish_calls(&mut self, reason: FinishReason, parts: &mut Vec<TextPart>) -> FinishReason {
        let Some(calls) = &mut self.calls else { return reason };
        let is_whole = matches!(reason, FinishReason::Stop | FinishReason::StopString { .. });
        let end = if is_whole { TextEnd::Complete } else { TextEnd::Cut };
        let rest = calls.finish(end);
        let (complete, malformed) = (calls.complete(), calls.malformed());
        parts.extend(self.parts(rest));
        match (complete > 0, malformed > 0) {
            _ if !is_whole => reason,
            (true, false) => FinishReason::ToolCalls,
            (true, true) => FinishReason::MixedCalls,
            (false, true) => FinishReason::MalformedCall,
            (false, false) => reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::ToolFormat;
    use narthex_text::{
        tokenizer::{GgufVocab, Specials},
        tools::{CallLimit, CallReading},
    };
    use serde_json::json;

    use super::*;
    use crate::serve::tools::CallRules;

    #[test]
    fn the_end_names_complete_and_malformed_calls() {
        let tokens = (' '..='~').map(|char| if char == ' ' { "Ġ".to_owned() } else { char.to_string() });
        let (model, pre) = ("gpt2".to_owned(), Some("smollm".to_owned()));
        let vocab = GgufVocab { model, pre, tokens: tokens.collect(), ..GgufVocab::default() };
        let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
        let tools = vec![json!({"type": "function", "function": {"name": "f"}})];
        let (format, limit, reading) = (ToolFormat::Hermes, CallLimit::Any, CallReading::Lenient);
        let calls = Some(CallRules { format, tools, limit, reading });
        let rules = AnswerRules { calls, ..AnswerRules::default() };
        let check = |answer: &str, end, expect| {
            let (stop, options) = (StopStrings::new(Vec::new()), GenerateOptions::api_defaults());
            let mut text = ChoiceText::new(&tokenizer, stop, &options, &rules);
            for token in tokenizer.encode(answer, Specials::AsText).unwrap() {
                text.push(&TokenEvent { token, logprob: None, top: &[] });
            }
            assert_eq!(text.finish(end).1, expect, "{answer}");
        };
        let (good, bad) = ("<tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>f()</tool_call>");
        check("Hi", FinishReason::Stop, FinishReason::Stop);
        check(good, FinishReason::Stop, FinishReason::ToolCalls);
        check(bad, FinishReason::Stop, FinishReason::MalformedCall);
        check(&format!("{good}{bad}"), FinishReason::Stop, FinishReason::MixedCalls);
        check(&format!("{bad}{good}"), FinishReason::Stop, FinishReason::MixedCalls);
        check(&format!("{good}{bad}"), FinishReason::Length, FinishReason::Length);
    }
}
