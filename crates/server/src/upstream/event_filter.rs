//! Server-sent events of an upstream. They pass unchanged, except the chunk with token counts that the client did not ask
//! for.

use super::usage::{TokenUsage, UsageScanner};

/// Maximum bytes of an event that is held until its end is known. A chunk with token counts is shorter.
const MAX_HELD: usize = 64 << 10;

/// Number of bytes at the beginning of a line that are looked at.
const LINE_START: usize = 48;

/// Name of the field with the content of an event.
const DATA: &[u8] = b"data:";

/// Events of Responses after which there is no other.
const LAST_EVENTS: [&[u8]; 4] = [b"response.completed", b"response.incomplete", b"response.failed", b"error"];

/// Filter of one stream.
#[derive(Debug, Default)]
pub(crate) struct EventFilter {
    /// True if the client did not ask for the chunk with token counts.
    hides_usage: bool,
    /// Bytes of the current event that were not passed on.
    held: Vec<u8>,
    /// Set for an event that is too long to be held.
    passes: bool,
    /// Beginning of the current line.
    line: Vec<u8>,
    /// Content of the current event.
    content: UsageScanner,
    has_content: bool,
    is_between: bool,
    usage: Option<TokenUsage>,
    events: usize,
    has_ended: bool,
}

impl EventFilter {
    pub(crate) fn new(hides_usage: bool) -> Self {
        Self { hides_usage, is_between: true, ..Self::default() }
    }

    /// Returns the last token counts so far.
    pub(crate) fn usage(&self) -> Option<TokenUsage> {
        self.usage
    }

    /// Returns the number of events so far with content.
    pub(crate) fn events(&self) -> usize {
        self.events
    }

    /// Returns true if the event was read after which there is no other.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns true if no part of an event was passed on whose end was not.
    pub(crate) fn is_between_events(&self) -> bool {
        self.is_between
    }

    /// Reads the next bytes, and returns those to pass on.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut passed = Vec::with_capacity(bytes.len() + self.held.len());
        let mut rest = bytes;
        while !rest.is_empty() {
            let end = rest.iter().position(|&byte| byte == b'\n').map_or(rest.len(), |at| at + 1);
            let (part, after) = rest.split_at(end);
            rest = after;
            self.held.extend_from_slice(part);
            let is_whole = part.ends_with(b"\n");
            let is_event_end = self.read_line(part.strip_suffix(b"\n").unwrap_or(part), is_whole);
            if is_event_end {
                self.end_event(&mut passed);
            }
            if self.passes || !self.hides_usage || self.held.len() > MAX_HELD {
                self.passes = !is_event_end;
                passed.append(&mut self.held);
                self.is_between = is_event_end;
            }
        }
        passed
    }

    /// Returns the bytes that are still held at the end of the stream.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Reads a part of a line. Returns true at the empty line that ends an event.
    fn read_line(&mut self, part: &[u8], is_whole: bool) -> bool {
        let known = self.line.len();
        let missing = LINE_START.saturating_sub(known).min(part.len());
        self.line.extend_from_slice(&part[..missing]);
        if self.line.starts_with(DATA) {
            let name = DATA.len().saturating_sub(known).min(part.len());
            self.content.feed(&part[name..]);
            self.has_content = true;
        }
        if !is_whole {
            return false;
        }

        let line = std::mem::take(&mut self.line);
        let line = line.trim_ascii();
        self.has_ended |= match line.strip_prefix(DATA) {
            Some(data) => data.trim_ascii() == b"[DONE]",
            None => line.strip_prefix(b"event:").is_some_and(|name| LAST_EVENTS.contains(&name.trim_ascii())),
        };
        line.is_empty()
    }

    fn end_event(&mut self, passed: &mut Vec<u8>) {
        let content = std::mem::take(&mut self.content);
        self.usage = content.usage().or(self.usage);
        self.has_ended |= content.has_error();
        self.events += usize::from(std::mem::take(&mut self.has_content));
        if self.hides_usage && !self.passes && content.is_usage_chunk() {
            self.held.clear();
        }
        if !self.held.is_empty() {
            self.is_between = true;
        }
        passed.append(&mut self.held);
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}";

    /// Passes a stream in two parts that are divided at every place.
    fn check(stream: &str, hides_usage: bool, expect: &str) -> EventFilter {
        for cut in 0..stream.len() {
            let mut filter = EventFilter::new(hides_usage);
            let mut passed = filter.feed(&stream.as_bytes()[..cut]);
            passed.extend(filter.feed(&stream.as_bytes()[cut..]));
            passed.extend(filter.rest());
            assert_eq!(String::from_utf8(passed).unwrap(), expect, "{stream:?}, {cut}");
        }
        let mut filter = EventFilter::new(hides_usage);
        filter.feed(stream.as_bytes());
        filter
    }

    #[test]
    fn only_a_chunk_that_was_not_asked_for_is_hidden() {
        let text = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}";
        let whole = format!(": note\n\n{text}\n\n{USAGE}\n\ndata: [DONE]\n\n");
        let usage = Some(TokenUsage { prompt: 3, generated: 4 });
        let filter = check(&whole, true, &format!(": note\n\n{text}\n\ndata: [DONE]\n\n"));
        assert_eq!((filter.usage(), filter.has_ended(), filter.events()), (usage, true, 3));
        let filter = check(&whole, false, &whole);
        assert_eq!((filter.usage(), filter.is_between_events()), (usage, true));
        let windows = whole.replace('\n', "\r\n");
        check(&windows, true, &windows.replace(&format!("{USAGE}\r\n\r\n"), ""));
        // Counts beside a choice are part of the answer.
        let both = USAGE.replace("[]", "[{}]");
        check(&format!("{both}\n\n"), true, &format!("{both}\n\n"));
    }

    #[test]
    fn the_end_of_a_stream_is_recognised() {
        let check = |stream: &str, ended: bool| {
            let mut filter = EventFilter::new(true);
            filter.feed(stream.as_bytes());
            assert_eq!(filter.has_ended(), ended, "{stream:?}");
        };
        check("data:[DONE]\n\n", true);
        check("event: response.completed\ndata: {}\n\n", true);
        check("data: {\"error\": {\"message\": \"x\"}}\n\n", true);
        check("event: response.created\ndata: {\"a\": \"[DONE]\"}\n\n", false);
        check("data: {\"choices\": [", false);
    }

    proptest! {
        #[test]
        fn any_bytes_pass(parts in vec(vec(select(b"data: {}[]\"usage\\choices:,\r\n\xff".to_vec()), 0..40), 0..20)) {
            let stream = parts.concat();
            let [mut plain, mut hiding] = [EventFilter::new(false), EventFilter::new(true)];
            let passed: Vec<u8> = parts.iter().flat_map(|part| plain.feed(part)).collect();
            prop_assert_eq!(&passed, &stream);
            let hidden: usize = parts.iter().map(|part| hiding.feed(part).len()).sum();
            prop_assert!(hidden + hiding.rest().len() <= stream.len());
        }
    }

    #[test]
    fn long_events_are_passed_in_parts() {
        let mut filter = EventFilter::new(true);
        let part = vec![b'a'; 32 << 10];
        assert_eq!(filter.feed(b"data: ").len() + filter.feed(&part).len(), 0);
        assert_eq!(filter.feed(&part).len(), 6 + 2 * part.len());
        assert!(!filter.is_between_events());
        assert_eq!(filter.feed(&part).len(), part.len());
        assert_eq!(filter.feed(b"\n\n").len(), 2);
        assert!(filter.is_between_events());
        // The next event is held again.
        assert_eq!(filter.feed(format!("{USAGE}\n\n").as_bytes()), b"");
        assert!(filter.usage().is_some());
    }
}
