//! Text of one choice: from tokens over reasoning, tool calls and stop strings to the parts that a client gets.
//!
//! Stop strings are found only in the text of the answer: reasoning and calls may contain them.

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
    request::{FinishReason, GenerateOptions, SpecialTokens, TokenAlternative, TokenInfo, ToolCallDelta},
    tools::{AnswerCalls, Piece, special_tokens},
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
    /// Parser of tool calls, if there may be some.
    calls: Option<AnswerCalls>,
    /// Tokens of the markers of calls and reasoning.
    marker_tokens: Vec<(TokenId, &'static str)>,
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
        let mut marker_tokens =
            rules.calls.as_ref().map_or_else(Vec::new, |rules| rules.marker_tokens(tokenizer));
        if let Some(parser) = &reasoning {
            let of_reasoning = parser.all_markers();
            if parser.has_messages() {
                marker_tokens.extend(special_tokens(tokenizer, &of_reasoning));
            }
            markers.extend(of_reasoning);
        }
        let detokenizer = Detokenizer::new(tokenizer.clone());
        Self {
            tokenizer: tokenizer.clone(),
            detokenizer: match options.special_tokens {
                SpecialTokens::Skip => detokenizer.showing(&markers),
                SpecialTokens::Show => detokenizer.showing_all(),
            },
            reasoning,
            reasoning_tokens: 0,
            stop,
            has_logprobs: options.logprobs.is_some(),
            pending: Vec::new(),
            calls: rules.calls.as_ref().map(|rules| AnswerCalls::new(rules, tokenizer)),
            marker_tokens,
        }
    }

    /// Returns the log-probabilities of a token.
    pub(super) fn info(&self, event: &TokenEvent<'_>) -> TokenInfo {
        let bytes = self.tokenizer.token_bytes(event.token);
        let alternatives = event.top.iter().map(|top| {
            let bytes = self.tokenizer.token_bytes(top.token);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            TokenAlternative { text, bytes, logprob: top.logprob }
        });
        TokenInfo {
            text: String::from_utf8_lossy(&bytes).into_owned(),
            top: alternatives.collect(),
            bytes,
            logprob: event.logprob,
        }
    }

    fn is_in_reasoning(&self) -> bool {
        self.reasoning.as_ref().is_some_and(ReasoningParser::is_inside)
    }

    /// Takes a token. Returns the text that can no longer become part of a stop string or a marker.
    pub(super) fn push(&mut self, event: &TokenEvent<'_>) -> Vec<TextPart> {
        if self.has_logprobs {
            let info = self.info(event);
            self.pending.push(info);
        }
        let was_in_reasoning = self.is_in_reasoning();
        let text = self.detokenizer.push(event.token);
        let marker = self.marker_tokens.iter().find(|(token, _)| *token == event.token);
        let marker = marker.map(|(_, marker)| *marker);
        let parts = text.map_or_else(Vec::new, |text| self.push_answer(&text, marker));
        self.reasoning_tokens += usize::from(was_in_reasoning || self.is_in_reasoning());
        parts
    }

    pub(super) fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Returns true if the choice is complete.
    pub(super) fn is_over(&self) -> bool {
        self.stop.stopped().is_some() || self.calls.as_ref().is_some_and(AnswerCalls::is_exhausted)
    }

    /// Number of malformed tool calls.
    pub(super) fn malformed_calls(&self) -> usize {
        self.calls.as_ref().map_or(0, AnswerCalls::malformed)
    }

    /// Ends the text. Returns the rest and the reason of the end for the client.
    pub(super) fn finish(&mut self, reason: FinishReason) -> (Vec<TextPart>, FinishReason) {
        // The bytes of a character that was cut off are dropped.
        let rest = self.detokenizer.finish().filter(|_| reason == FinishReason::Stop || self.is_over());
        let mut parts = rest.map_or_else(Vec::new, |text| self.push_answer(&text, None));
        if let Some(mut reasoning) = self.reasoning.take() {
            if reasoning.is_before_text() || reasoning.is_after_frame() {
                self.pending.clear();
            }
            let rest = reasoning.finish();
            parts.extend(self.without_reasoning(rest, None));
        }
        let reason = if self.is_over() { FinishReason::Stop } else { reason };
        let reason = self.finish_calls(reason, &mut parts);
        let rest = self.stop.finish();
        if !rest.is_empty() || !self.pending.is_empty() {
            parts.push(self.text_part(rest));
        }
        (parts, reason)
    }

    /// Takes text of the answer with its reasoning. `marker` is that of its last token.
    fn push_answer(&mut self, text: &str, marker: Option<&'static str>) -> Vec<TextPart> {
        match &mut self.reasoning {
            None => self.push_text(text, marker),
            Some(reasoning) => {
                let events = reasoning.push_tokens(text, marker);
                if reasoning.is_before_text() {
                    // Only tokens of the text have log-probabilities. One without text yet may begin the text.
                    self.pending.clear();
                }
                self.without_reasoning(events, marker)
            }
        }
    }

    fn without_reasoning(&mut self, events: Vec<ReasoningEvent>, marker: Option<&str>) -> Vec<TextPart> {
        let mut parts = Vec::new();
        for event in events {
            match event {
                ReasoningEvent::Text(text) => parts.extend(self.push_text(&text, marker)),
                ReasoningEvent::Reasoning(text) => parts.push(TextPart::Reasoning(text)),
            }
        }
        parts
    }

    fn push_text(&mut self, text: &str, marker: Option<&str>) -> Vec<TextPart> {
        let pieces = match &mut self.calls {
            Some(calls) => calls.push(text, marker, &mut self.stop),
            None => {
                let text = self.stop.push(text).text;
                if text.is_empty() { Vec::new() } else { vec![Piece::Text(text)] }
            }
        };
        self.parts(pieces)
    }

    fn parts(&mut self, pieces: Vec<Piece>) -> Vec<TextPart> {
        pieces
            .into_iter()
            .map(|piece| match piece {
                Piece::Text(text) => self.text_part(text),
                Piece::Call(delta) => TextPart::Call(delta),
            })
            .collect()
    }

    fn text_part(&mut self, text: String) -> TextPart {
        TextPart::Text { text, tokens: mem::take(&mut self.pending) }
    }

    /// Appends the rest of the calls. Returns the reason of the end.
    fn finish_calls(&mut self, reason: FinishReason, parts: &mut Vec<TextPart>) -> FinishReason {
        let end = if reason == FinishReason::Stop { TextEnd::Complete } else { TextEnd::Cut };
        let mut complete = 0;
        let mut malformed = 0;
        if let Some(calls) = &mut self.calls {
            let rest = calls.finish(end, &mut self.stop);
            (complete, malformed) = (calls.complete(), calls.malformed());
            parts.extend(self.parts(rest));
        }
        let reason = self.stop.stopped().map_or(reason, |index| FinishReason::StopString { index });
        let is_whole = matches!(reason, FinishReason::Stop | FinishReason::StopString { .. });
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
    use narthex_spec::{ReasoningFormat, ToolFormat};
    use narthex_text::{
        tokenizer::{GgufVocab, Specials},
        tools::{CallLimit, CallReading},
    };
    use serde_json::json;

    use super::*;
    use crate::serve::tools::CallRules;

    /// Returns a tokenizer with a token for each ASCII character, and four for `🙂`.
    fn tokenizer() -> Tokenizer {
        let tokens = ('!'..='~').chain(['Ġ', 'Ċ', 'ð', 'Ł', 'Ļ', 'Ĥ']).map(String::from);
        let (model, pre) = ("gpt2".to_owned(), Some("smollm".to_owned()));
        let vocab = GgufVocab { model, pre, tokens: tokens.collect(), ..GgufVocab::default() };
        Tokenizer::from_gguf(&vocab).unwrap()
    }

    /// Returns the text of an answer, the arguments of its calls, and the reason of its end. The answer comes token by
    /// token until the choice is over.
    fn read(answer: &str, stop: &[&str], end: FinishReason) -> (String, Vec<String>, FinishReason) {
        let tokenizer = tokenizer();
        let tools = vec![json!({"type": "function", "function": {"name": "f"}})];
        let (format, limit, reading) = (ToolFormat::Hermes, CallLimit::Any, CallReading::Lenient);
        let calls = Some(CallRules { format, tools, limit, ends_at_repetition: false, reading });
        let rules = AnswerRules { calls, ..AnswerRules::default() };
        let stop = StopStrings::new(stop.iter().map(|stop| (*stop).to_owned()).collect());
        let mut choice = ChoiceText::new(&tokenizer, stop, &GenerateOptions::api_defaults(), &rules);
        let mut parts = Vec::new();
        for token in tokenizer.encode(answer, Specials::AsText).unwrap() {
            if !choice.is_over() {
                parts.extend(choice.push(&TokenEvent { token, logprob: None, top: &[] }));
            }
        }
        let (rest, reason) = choice.finish(end);
        let (mut text, mut calls) = (String::new(), Vec::new());
        for part in parts.into_iter().chain(rest) {
            match part {
                TextPart::Text { text: more, .. } => text.push_str(&more),
                TextPart::Reasoning(_) => {}
                TextPart::Call(delta) => {
                    calls.resize(delta.index + 1, String::new());
                    calls[delta.index].push_str(&delta.arguments);
                }
            }
        }
        (text, calls, reason)
    }

    #[test]
    fn log_probabilities_are_those_of_the_text_after_the_reasoning() {
        let tokenizer = tokenizer();
        let options = GenerateOptions { logprobs: Some(0), ..GenerateOptions::api_defaults() };
        let check_of = |format, answer: &str, expect: &str| {
            let reasoning = Some(ReasoningParser::new(format, ""));
            let rules = AnswerRules { reasoning, ..AnswerRules::default() };
            let mut choice = ChoiceText::new(&tokenizer, StopStrings::new(Vec::new()), &options, &rules);
            let mut parts = Vec::new();
            for token in tokenizer.encode(answer, Specials::AsText).unwrap() {
                parts.extend(choice.push(&TokenEvent { token, logprob: None, top: &[] }));
            }
            parts.extend(choice.finish(FinishReason::Stop).0);
            let (mut text, mut of_tokens) = (String::new(), Vec::new());
            for part in parts {
                if let TextPart::Text { text: more, tokens } = part {
                    text.push_str(&more);
                    of_tokens.extend(tokens.into_iter().flat_map(|token| token.bytes));
                }
            }
            assert_eq!((text.as_str(), of_tokens.as_slice()), (expect, expect.as_bytes()), "{answer:?}");
        };
        let check = |answer: &str, expect: &str| check_of(ReasoningFormat::Think, answer, expect);
        check("<think>a</think>\n\nYes, <b>", "Yes, <b>");
        check("<think>\n\n</think>\n\nYes", "Yes");
        check("<think>a", "");
        check("<think>a</think>\n", "");
        check("<thin air", "<thin air");
        check("<think>a</think>\n\n🙂!", "🙂!");
        let check = |answer: &str, expect: &str| check_of(ReasoningFormat::ThinkResponse, answer, expect);
        check("<think>a</think>\n<response>\nYes, <b>\n</response>\n", "Yes, <b>");
        check("<think>a</think><res", "<res");
    }

    #[test]
    fn the_end_names_complete_and_malformed_calls() {
        let check = |answer: &str, end, expect| assert_eq!(read(answer, &[], end).2, expect, "{answer}");
        let (good, bad) = ("<tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>f()</tool_call>");
        check("Hi", FinishReason::Stop, FinishReason::Stop);
        check(good, FinishReason::Stop, FinishReason::ToolCalls);
        check(bad, FinishReason::Stop, FinishReason::MalformedCall);
        for rest in ["", "\n</tool_call>", ", oops</tool_call>"] {
            let unclosed = format!("<tool_call>{{\"name\": \"f\", \"arguments\": {{}}{rest}");
            check(&unclosed, FinishReason::Stop, FinishReason::ToolCalls);
        }
        check(&format!("{good}{bad}"), FinishReason::Stop, FinishReason::MixedCalls);
        check(&format!("{bad}{good}"), FinishReason::Stop, FinishReason::MixedCalls);
        check(&format!("{good}{bad}"), FinishReason::Length, FinishReason::Length);
    }

    #[test]
    fn only_the_token_of_a_marker_begins_a_call() {
        let tokens = ["<tool_call>", "</tool_call>"].map(str::to_owned).into_iter();
        let tokens: Vec<String> = tokens.chain(('!'..='~').map(String::from)).collect();
        let types = (0..tokens.len()).map(|id| if id < 2 { 3 } else { 1 }).collect();
        let (model, pre) = ("gpt2".to_owned(), Some("smollm".to_owned()));
        let vocab = GgufVocab { model, pre, types: Some(types), tokens, ..GgufVocab::default() };
        let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
        let answer = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
        let read = |specials| {
            let tools = vec![json!({"type": "function", "function": {"name": "f"}})];
            let (format, limit, reading) = (ToolFormat::Hermes, CallLimit::Any, CallReading::Lenient);
            let calls = Some(CallRules { format, tools, limit, ends_at_repetition: false, reading });
            let reasoning = Some(ReasoningParser::new(ReasoningFormat::ThinkResponse, ""));
            let rules = AnswerRules { calls, reasoning, ..AnswerRules::default() };
            let (stop, options) = (StopStrings::new(Vec::new()), GenerateOptions::api_defaults());
            let mut choice = ChoiceText::new(&tokenizer, stop, &options, &rules);
            let mut parts = Vec::new();
            for token in tokenizer.encode(answer, specials).unwrap() {
                parts.extend(choice.push(&TokenEvent { token, logprob: None, top: &[] }));
            }
            let (rest, reason) = choice.finish(FinishReason::Stop);
            parts.extend(rest);
            let mut text = String::new();
            for part in parts {
                match part {
                    TextPart::Text { text: more, .. } => text.push_str(&more),
                    TextPart::Reasoning(_) | TextPart::Call(_) => {}
                }
            }
            (text, reason)
        };
        assert_eq!(read(Specials::Parse), (String::new(), FinishReason::ToolCalls));
        assert_eq!(read(Specials::AsText), (answer.to_owned(), FinishReason::Stop));
    }

    #[test]
    fn messages_are_reasoning_text_and_calls_by_their_tokens() {
        let markers = ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"]
            .map(str::to_owned);
        let count = markers.len();
        let tokens: Vec<String> =
            markers.into_iter().chain(('!'..='~').chain(['Ġ', 'Ċ']).map(String::from)).collect();
        let types = (0..tokens.len()).map(|id| if id < count { 3 } else { 1 }).collect();
        let (model, pre) = ("gpt2".to_owned(), Some("smollm".to_owned()));
        let vocab = GgufVocab { model, pre, types: Some(types), tokens, ..GgufVocab::default() };
        let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
        let read = |answer: &str, specials| {
            let tools = vec![json!({"type": "function", "function": {"name": "f"}})];
            let (format, limit, reading) = (ToolFormat::Harmony, CallLimit::Any, CallReading::Lenient);
            let calls = Some(CallRules { format, tools, limit, ends_at_repetition: false, reading });
            let reasoning = Some(ReasoningParser::new(ReasoningFormat::Harmony, ""));
            let rules = AnswerRules { calls, reasoning, ..AnswerRules::default() };
            let (stop, options) = (StopStrings::new(Vec::new()), GenerateOptions::api_defaults());
            let mut choice = ChoiceText::new(&tokenizer, stop, &options, &rules);
            let mut parts = Vec::new();
            for token in tokenizer.encode(answer, specials).unwrap() {
                parts.extend(choice.push(&TokenEvent { token, logprob: None, top: &[] }));
            }
            parts.extend(choice.finish(FinishReason::Stop).0);
            let mut read = [String::new(), String::new(), String::new()];
            for part in parts {
                match part {
                    TextPart::Reasoning(text) => read[0] += &text,
                    TextPart::Text { text, .. } => read[1] += &text,
                    TextPart::Call(delta) => read[2] += &delta.arguments,
                }
            }
            read
        };
        let thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
        let call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":1}";
        let parsed = |answer: &str| read(answer, Specials::Parse);
        assert_eq!(parsed(&format!("{thought}{call}")), ["Hm.", "", "{\"a\":1}"]);
        assert_eq!(parsed(&format!("{thought}<|channel|>final<|message|>Yes")), ["Hm.", "Yes", ""]);
        assert_eq!(read(call, Specials::AsText)[2], "");
    }

    #[test]
    fn a_limit_leaves_no_part_of_a_character_or_marker() {
        let answer = "Hi 🙂";
        let tokens = tokenizer().encode(answer, Specials::AsText).unwrap();
        let rules = AnswerRules::default();
        let (stop, options) = (StopStrings::new(Vec::new()), GenerateOptions::api_defaults());
        let mut choice = ChoiceText::new(&tokenizer(), stop, &options, &rules);
        for token in &tokens[..tokens.len() - 1] {
            choice.push(&TokenEvent { token: *token, logprob: None, top: &[] });
        }
        assert_eq!(choice.finish(FinishReason::Length).0, []);
        assert_eq!(read("Hi <tool_c", &[], FinishReason::Length).0, "Hi ");
        assert_eq!(read("Hi <tool_c", &[], FinishReason::Stop).0, "Hi <tool_c");
    }

    #[test]
    fn stop_strings_end_text_and_not_calls() {
        let check = |stop: &[&str], answer: &str, expect: (&str, &[&str], FinishReason)| {
            let (text, calls, reason) = read(answer, stop, FinishReason::Stop);
            let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
            assert_eq!((text.as_str(), calls.as_slice(), reason), expect, "{stop:?} {answer:?}");
        };
        use FinishReason::{MalformedCall, StopString, ToolCalls};
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\"}}\n</tool_call>";
        let arguments = "{\"a\": \"x\"}";
        for stop in ["\n", "<tool_call>", "</tool_call>", "x", "}}", "\"name\"", "<"] {
            check(&[stop], call, ("", &[arguments], ToolCalls));
            check(&[stop], &format!("{call}\n{call}"), ("", &[arguments; 2], ToolCalls));
        }
        check(&["x"], &format!("Look.\n{call}"), ("Look.", &[arguments], ToolCalls));
        // The text around calls may have a stop string. Nothing follows it.
        check(&["-", "k."], &format!("Look.\n{call}"), ("Loo", &[], StopString { index: 1 }));
        check(&["Done"], &format!("{call}\nDone. {call}"), ("\n", &[arguments], ToolCalls));
        check(&["x", "!"], &format!("a!{call}"), ("a", &[], StopString { index: 1 }));
        check(&["!"], "a!<tool_call>f()", ("a", &[], StopString { index: 0 }));
        // A stop string does not extend over a call, and its beginning comes before it.
        check(&["ab"], &format!("a{call}b"), ("ab", &[arguments], ToolCalls));
        check(&["ab"], "a", ("a", &[], FinishReason::Stop));
        // The text of a malformed call is text.
        check(&["()"], "<tool_call>f()</tool_call>", ("<tool_call>f", &[], MalformedCall));
    }
}
