//! Reasoning at the start of an answer, separated from its text while it streams.

use std::mem;

use narthex_spec::ReasoningFormat;

use super::{
    ReasoningEvent,
    harmony_messages::{END, MARKERS, MessageParser},
    overlap,
};

/// Divides an answer into reasoning and text. Only a block at the start is reasoning, or messages of their channel. The
/// markers around the text after the block are removed.
#[derive(Debug, Clone)]
pub struct ReasoningParser {
    open: &'static str,
    close: &'static str,
    /// Markers around the text after the block, which models may leave out.
    frame: Option<TextFrame>,
    held: String,
    state: ReasoningState,
    /// Parser of an answer that consists of messages.
    messages: Option<MessageParser>,
}

/// Markers around a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TextFrame {
    open: &'static str,
    close: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReasoningState {
    /// Before a block.
    Start,
    /// In the block, after white space only.
    Opened,
    Inside,
    /// After the block, before text.
    Closed,
    Text,
    /// In a frame with this closing marker, before its text.
    FrameOpened(&'static str),
    /// In the text of a frame with this closing marker.
    Framed(&'static str),
}

impl ReasoningParser {
    /// Creates a parser of the answer to a prompt. The prompt may end inside a block.
    pub fn new(format: ReasoningFormat, prompt: &str) -> Self {
        let (open, close) = match format {
            ReasoningFormat::Think | ReasoningFormat::ThinkResponse => ("<think>", "</think>"),
            ReasoningFormat::MistralThink => ("[THINK]", "[/THINK]"),
            ReasoningFormat::ThoughtChannel => ("<|channel>thought", "<channel|>"),
            ReasoningFormat::Harmony => ("<|channel|>analysis<|message|>", END),
        };
        let frame = (format == ReasoningFormat::ThinkResponse)
            .then_some(TextFrame { open: "<response>", close: "</response>" });
        let is_inside = prompt.trim_end().ends_with(open);
        let state = if is_inside { ReasoningState::Opened } else { ReasoningState::Start };
        let messages = (format == ReasoningFormat::Harmony).then(MessageParser::default);
        Self { open, close, frame, held: String::new(), state, messages }
    }

    /// Returns the markers of the format, which may be special tokens.
    pub fn all_markers(&self) -> Vec<&'static str> {
        if self.has_messages() { MARKERS.to_vec() } else { vec![self.open, self.close] }
    }

    /// Returns true if an answer consists of messages. Then a grammar has that of the reasoning too.
    pub fn has_messages(&self) -> bool {
        self.messages.is_some()
    }

    /// Takes the text of tokens, the last of which may be that of a marker of messages. Blocks have markers in their text.
    pub fn push_tokens(&mut self, text: &str, marker: Option<&'static str>) -> Vec<ReasoningEvent> {
        match &mut self.messages {
            Some(messages) => messages.push_tokens(text, marker),
            None => self.push(text),
        }
    }

    /// Returns the markers around a block, which may be special tokens. The name of a channel follows its marker as text.
    pub fn markers(&self) -> (&'static str, &'static str) {
        (self.open.strip_suffix("thought").unwrap_or(self.open), self.close)
    }

    /// Returns true inside a block.
    pub fn is_inside(&self) -> bool {
        match &self.messages {
            Some(messages) => messages.is_inside(),
            None => matches!(self.state, ReasoningState::Opened | ReasoningState::Inside),
        }
    }

    /// Returns true after a block if the text so far may become the opening marker of a frame.
    pub fn is_in_frame_marker(&self) -> bool {
        self.state == ReasoningState::Closed && !self.held.trim_start().is_empty()
    }

    /// Returns true from the start of a block until the text after it.
    pub fn is_before_text(&self) -> bool {
        if let Some(messages) = &self.messages {
            return !messages.is_in_text();
        }
        let is_after_block = matches!(self.state, ReasoningState::Closed | ReasoningState::FrameOpened(_));
        self.is_inside() || is_after_block && !self.is_in_frame_marker()
    }

    /// Returns true once the answer's text has started, so that no reasoning follows.
    pub fn is_in_text(&self) -> bool {
        if let Some(messages) = &self.messages {
            return messages.is_in_text();
        }
        !self.is_inside() && self.state != ReasoningState::Start && !self.is_in_frame_marker()
    }

    /// Returns true if the text so far ends with the closing marker of its frame.
    pub fn is_after_frame(&self) -> bool {
        matches!(self.state, ReasoningState::Framed(close) if self.held.trim() == close)
    }

    /// Takes the next text of the answer.
    pub fn push(&mut self, text: &str) -> Vec<ReasoningEvent> {
        if let Some(messages) = &mut self.messages {
            return messages.push(text);
        }
        self.held.push_str(text);
        let mut events = Vec::new();
        while self.step(&mut events) {}
        events
    }

    /// Ends the answer and returns the rest.
    pub fn finish(&mut self) -> Vec<ReasoningEvent> {
        if let Some(messages) = &mut self.messages {
            return messages.finish();
        }
        let rest = mem::take(&mut self.held);
        let event = match self.state {
            ReasoningState::Opened | ReasoningState::Inside => {
                ReasoningEvent::Reasoning(rest.trim_end().to_owned())
            }
            ReasoningState::Framed(close) if rest.trim() == close => return Vec::new(),
            ReasoningState::Start | ReasoningState::Text | ReasoningState::Framed(_) => {
                ReasoningEvent::Text(rest)
            }
            // The text may have begun like a frame.
            ReasoningState::Closed | ReasoningState::FrameOpened(_) => {
                ReasoningEvent::Text(rest.trim_start().to_owned())
            }
        };
        let (ReasoningEvent::Reasoning(text) | ReasoningEvent::Text(text)) = &event;
        if text.is_empty() { Vec::new() } else { vec![event] }
    }

    /// Reports the text of a frame, without its closing marker and white space before it. Only a marker at the end of the
    /// answer closes the frame.
    fn framed_text(&mut self, close: &str, events: &mut Vec<ReasoningEvent>) {
        let text = self.held.trim_end();
        let is_open = text.len() == self.held.len();
        let text = match text.strip_suffix(close) {
            Some(text) => text,
            None if is_open => &text[..text.len() - overlap(text, &[close])],
            None => text,
        };
        let end = text.trim_end().len();
        let text: String = self.held.drain(..end).collect();
        if !text.is_empty() {
            events.push(ReasoningEvent::Text(text));
        }
    }

    /// Parses the next element. Returns false if it needs more text.
    fn step(&mut self, events: &mut Vec<ReasoningEvent>) -> bool {
        let rest = self.held.trim_start();
        match self.state {
            ReasoningState::Start if rest.starts_with(self.open) => {
                self.held = rest[self.open.len()..].to_owned();
                self.state = ReasoningState::Opened;
            }
            ReasoningState::Start if self.open.starts_with(rest) => return false,
            ReasoningState::Start => self.state = ReasoningState::Text,
            ReasoningState::Opened | ReasoningState::Closed | ReasoningState::FrameOpened(_)
                if rest.is_empty() =>
            {
                return false;
            }
            ReasoningState::Opened => {
                self.held = rest.to_owned();
                self.state = ReasoningState::Inside;
            }
            ReasoningState::Closed => match self.frame {
                Some(TextFrame { open, close }) if rest.starts_with(open) => {
                    self.held = rest[open.len()..].to_owned();
                    self.state = ReasoningState::FrameOpened(close);
                }
                Some(TextFrame { open, .. }) if open.starts_with(rest) => return false,
                _ => {
                    self.held = rest.to_owned();
                    self.state = ReasoningState::Text;
                }
            },

            ReasoningState::FrameOpened(close) => {
                self.held = rest.to_owned();
                self.state = ReasoningState::Framed(close);
            }
            ReasoningState::Framed(close) => {
                self.framed_text(close, events);
                return false;
            }
            ReasoningState::Inside => {
                let found = self.held.find(self.close);
                let end = found.unwrap_or(self.held.len() - overlap(&self.held, &[self.close]));
                // White space before the end of the block is not reasoning.
                let end = self.held[..end].trim_end().len();
                let text: String = self.held.drain(..end).collect();
                if !text.is_empty() {
                    events.push(ReasoningEvent::Reasoning(text));
                }
                let Some(at) = found else { return false };
                self.held.drain(..at - end + self.close.len());
                self.state = ReasoningState::Closed;
            }
            ReasoningState::Text => {
                let text = mem::take(&mut self.held);
                if !text.is_empty() {
                    events.push(ReasoningEvent::Text(text));
                }
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the reasoning and the text of an answer that is divided into two pieces at `cut`.
    fn divided(format: ReasoningFormat, prompt: &str, answer: &str, cut: usize) -> (String, String) {
        let mut parser = ReasoningParser::new(format, prompt);
        let (first, second) = answer.split_at(cut);
        let events = [parser.push(first), parser.push(second), parser.finish()].concat();
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
    fn reasoning_is_found_wherever_the_answer_is_cut() {
        use ReasoningFormat::{MistralThink, Think, ThinkResponse, ThoughtChannel};
        let check = |format, prompt: &str, answer: &str, reasoning: &str, text: &str| {
            for cut in (0..=answer.len()).filter(|&cut| answer.is_char_boundary(cut)) {
                let found = divided(format, prompt, answer, cut);
                assert_eq!(found, (reasoning.to_owned(), text.to_owned()), "{answer:?} at {cut}");
            }
        };
        check(Think, "", "<think>\nA <b> é\n</think>\n\nYes.\n", "A <b> é", "Yes.\n");
        check(Think, "x<think>\n", "A\n\nB</think>Yes", "A\n\nB", "Yes");
        check(Think, "", "<think>\n\n</think>\n\nYes", "", "Yes");
        check(Think, "", " Yes <think>no</think>", "", " Yes <think>no</think>");
        check(Think, "", "<think>cut off </thi", "cut off </thi", "");
        check(Think, "", "<thin", "", "<thin");
        check(MistralThink, "", "[THINK]A[/THINK]B", "A", "B");
        check(ThoughtChannel, "", "<|channel>thought\nA\n<channel|>B", "A", "B");
        check(ThoughtChannel, "x<|channel>thought\n<channel|>", "B", "", "B");
        check(ThoughtChannel, "", "<|channel>thought\n<channel|>B", "", "B");
        check(ThoughtChannel, "", "<|channel>final", "", "<|channel>final");
        assert_eq!(ReasoningParser::new(ThoughtChannel, "").markers(), ("<|channel>", "<channel|>"));
        let framed = "<think>\nA\n</think>\n\n<response>\nÉ <b>.\n\nYes.\n</response>\n";
        check(ThinkResponse, "", framed, "A", "É <b>.\n\nYes.");
        check(ThinkResponse, "", "<think>A</think><response>B</response>", "A", "B");
        check(ThinkResponse, "<think>", "A</think> <response></response>", "A", "");
        // The markers of a frame are not always there, and may be part of the text.
        check(ThinkResponse, "", "<think>A</think>\nB </response>", "A", "B </response>");
        check(ThinkResponse, "", "<think>A</think><response>B </resp", "A", "B </resp");
        check(ThinkResponse, "", "<think>A</think><response>B\n", "A", "B\n");
        check(
            ThinkResponse,
            "",
            "<think>A</think><response>`</response>` ends it.</response>",
            "A",
            "`</response>` ends it.",
        );
        check(
            ThinkResponse,
            "",
            "<think>A</think><response>B</response>\nC</response> </response>",
            "A",
            "B</response>\nC</response>",
        );
        check(ThinkResponse, "", "<think>A</think>\n<resp", "A", "<resp");
        check(ThinkResponse, "", "<think>A</think>\n<result>", "A", "<result>");
        check(ThinkResponse, "", "<response>B</response>", "", "<response>B</response>");
        check(Think, "", "<think>A</think><response>B</response>", "A", "<response>B</response>");
    }
}
