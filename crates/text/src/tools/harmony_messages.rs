//! Messages of the Harmony format, in which gpt-oss answers: each has a header with its channel, and perhaps the function
//! that it calls, before its text.
//!
//! Messages of the channel `analysis` are reasoning. Those to a function keep a header in one form, for the parser of
//! calls; all other texts are the answer's.

use std::mem;

use super::{ReasoningEvent, overlap};

pub(super) const START: &str = "<|start|>";
pub(super) const CHANNEL: &str = "<|channel|>";
pub(super) const CONSTRAIN: &str = "<|constrain|>";
pub(super) const MESSAGE: &str = "<|message|>";
pub(super) const END: &str = "<|end|>";
pub(super) const CALL: &str = "<|call|>";

/// Markers of the format.
pub(super) const MARKERS: [&str; 6] = [START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL];

/// Maximum number of bytes of a header. What is longer is text.
const MAX_HEADER: usize = 256;

/// Parser of an answer's messages.
#[derive(Debug, Clone, Default)]
pub(super) struct MessageParser {
    /// Text that may end with the beginning of a marker.
    held: String,
    /// Header so far, with its markers.
    header: String,
    place: MessagePlace,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum MessagePlace {
    /// Before or in the header of a message.
    #[default]
    Header,
    Reasoning,
    Text,
    /// In the arguments of a call.
    Call,
}

impl MessageParser {
    /// Returns true in reasoning.
    pub(super) fn is_inside(&self) -> bool {
        self.place == MessagePlace::Reasoning
    }

    /// Returns true in text or in a call.
    pub(super) fn is_in_text(&self) -> bool {
        matches!(self.place, MessagePlace::Text | MessagePlace::Call)
    }

    /// Takes a text in which markers are texts.
    pub(super) fn push(&mut self, text: &str) -> Vec<ReasoningEvent> {
        let mut events = Vec::new();
        self.held.push_str(text);
        let first =
            |held: &str| MARKERS.iter().filter_map(|marker| Some((held.find(marker)?, *marker))).min();
        while let Some((at, marker)) = first(&self.held) {
            let before: String = self.held.drain(..at).collect();
            self.held.drain(..marker.len());
            self.push_text(&before, &mut events);
            self.push_marker(marker, &mut events);
        }
        let end = self.held.len() - overlap(&self.held, &MARKERS);
        let text: String = self.held.drain(..end).collect();
        self.push_text(&text, &mut events);
        events
    }

    /// Takes the text of tokens. If the last one is that of a marker, the text ends with it; no other text is a marker.
    pub(super) fn push_tokens(&mut self, text: &str, marker: Option<&'static str>) -> Vec<ReasoningEvent> {
        let mut events = Vec::new();
        let marker = marker.filter(|marker| MARKERS.contains(marker) && text.ends_with(marker));
        self.push_text(&text[..text.len() - marker.map_or(0, str::len)], &mut events);
        if let Some(marker) = marker {
            self.push_marker(marker, &mut events);
        }
        events
    }

    /// Ends the answer and returns the rest.
    pub(super) fn finish(&mut self) -> Vec<ReasoningEvent> {
        let mut events = Vec::new();
        let rest = mem::take(&mut self.held);
        self.push_text(&rest, &mut events);
        let header = mem::take(&mut self.header);
        if self.place == MessagePlace::Header && !header.contains(CHANNEL) && !is_role(&header) {
            events.push(ReasoningEvent::Text(header));
        }
        events
    }

    fn push_text(&mut self, text: &str, events: &mut Vec<ReasoningEvent>) {
        if text.is_empty() {
            return;
        }
        match self.place {
            MessagePlace::Reasoning => events.push(ReasoningEvent::Reasoning(text.to_owned())),
            MessagePlace::Text | MessagePlace::Call => events.push(ReasoningEvent::Text(text.to_owned())),
            MessagePlace::Header => {
                self.header.push_str(text);
                // A model that writes no header answers with a text.
                let is_text = !self.header.contains(CHANNEL) && self.header.contains('\n');
                if is_text || self.header.len() > MAX_HEADER {
                    self.place = MessagePlace::Text;
                    events.push(ReasoningEvent::Text(mem::take(&mut self.header)));
                }
            }
        }
    }

    fn push_marker(&mut self, marker: &str, events: &mut Vec<ReasoningEvent>) {
        let is_header = self.place == MessagePlace::Header;
        match marker {
            MESSAGE if is_header => self.open(events),
            CHANNEL | CONSTRAIN if is_header => self.header.push_str(marker),
            // A message may begin where another one has not ended.
            START | CHANNEL | END | CALL => {
                if self.place == MessagePlace::Call && marker != CHANNEL {
                    events.push(ReasoningEvent::Text(CALL.to_owned()));
                }
                self.header.clear();
                self.header.push_str(if marker == CHANNEL { CHANNEL } else { "" });
                self.place = MessagePlace::Header;
            }
            _ => {}
        }
    }

    /// Begins the text of a message.
    fn open(&mut self, events: &mut Vec<ReasoningEvent>) {
        let header = mem::take(&mut self.header);
        let recipient = word_after(&header, "to=").filter(|name| name.starts_with("functions."));
        self.place = match (recipient, word_after(&header, CHANNEL)) {
            (Some(recipient), _) => {
                let head = format!("{CHANNEL}commentary to={recipient} {CONSTRAIN}json{MESSAGE}");
                events.push(ReasoningEvent::Text(head));
                MessagePlace::Call
            }
            (None, Some("analysis")) => MessagePlace::Reasoning,
            (None, _) => MessagePlace::Text,
        };
    }
}

/// Returns true for what precedes a channel in a header without a recipient.
fn is_role(text: &str) -> bool {
    ["", "assistant"].contains(&text.trim())
}

/// Returns the word after a text, up to white space or a marker.
pub(super) fn word_after<'a>(text: &'a str, before: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    rest.split(|c: char| c.is_whitespace() || c == '<').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "<|channel|>analysis<|message|>Hm <b>.<|end|><|start|>assistant<|channel|>commentary<|message|>\
                          Wait.<|end|><|start|>assistant<|channel|>final<|message|>Yes";

    /// Returns the reasoning and the text of events.
    fn joined(events: Vec<ReasoningEvent>) -> (String, String) {
        let (mut reasoning, mut text) = (String::new(), String::new());
        for event in events {
            match event {
                ReasoningEvent::Reasoning(part) => reasoning.push_str(&part),
                ReasoningEvent::Text(part) => text.push_str(&part),
            }
        }
        (reasoning, text)
    }

    #[test]
    fn channels_are_found_wherever_an_answer_is_cut() {
        let check = |answer: &str, reasoning: &str, text: &str| {
            for cut in (0..=answer.len()).filter(|&cut| answer.is_char_boundary(cut)) {
                let mut parser = MessageParser::default();
                let (first, second) = answer.split_at(cut);
                let found = joined([parser.push(first), parser.push(second), parser.finish()].concat());
                assert_eq!(found, (reasoning.to_owned(), text.to_owned()), "{answer:?} at {cut}");
            }
        };
        check(ANSWER, "Hm <b>.", "Wait.Yes");
        let head = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>";
        check(&format!("{head}{{}}<|call|>"), "", &format!("{head}{{}}<|call|>"));
        // The form of the chat template.
        let before = " to=functions.f<|channel|>commentary json<|message|>{}";
        check(before, "", &format!("{head}{{}}"));
        check("<|channel|>analysis to=functions.f code<|message|>{}", "", &format!("{head}{{}}"));
        check("Yes.", "", "Yes.");
        check("Yes.\nNo <|en", "", "Yes.\nNo <|en");
        check("<|channel|>ana", "", "");
        check("assistant", "", "");
        check("<|channel|>analysis<|message|>cut <|e", "cut <|e", "");
        check("<|channel|>final<|message|>a<|channel|>analysis<|message|>b", "b", "a");
    }

    #[test]
    fn only_tokens_are_markers() {
        let mut parser = MessageParser::default();
        let tokens =
            [CHANNEL, "analysis", MESSAGE, "<|end|> of ", "it", END, START, "assistant", CHANNEL, "final"];
        let mut events = Vec::new();
        for token in tokens.into_iter().chain([MESSAGE, "<|channel|>analysis<|message|>", END]) {
            let marker = MARKERS.into_iter().find(|marker| *marker == token);
            events.extend(parser.push_tokens(token, marker));
        }
        // The end of the text, which tokens of other characters wrote.
        let expect = ("<|end|> of it".to_owned(), "<|channel|>analysis<|message|>".to_owned());
        assert_eq!(joined(events), expect);
    }
}
