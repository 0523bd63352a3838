//! Token counts in the answers of upstreams. The JSON of an answer is scanned byte by byte, because it can be of any length
//! and arrives in parts.

use serde_json::Value;

/// Maximum bytes of an object with counts.
const MAX_OBJECT: usize = 4 << 10;

/// Maximum of one count. The number comes from another machine, and is charged to a key.
const MAX_COUNT: u64 = 100_000_000;

/// Tokens of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TokenUsage {
    pub(crate) prompt: usize,
    pub(crate) generated: usize,
}

/// Keys that matter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum KnownKey {
    Usage,
    Response,
    Choices,
    Error,
    #[default]
    Other,
}

impl KnownKey {
    fn of(text: &[u8]) -> Self {
        match text {
            b"usage" => Self::Usage,
            b"response" => Self::Response,
            b"choices" => Self::Choices,
            b"error" => Self::Error,
            _ => Self::Other,
        }
    }
}

/// Longest key that matters.
const MAX_KEY: usize = 8;

/// An object or a list of the outermost levels.
#[derive(Debug, Clone, Copy, Default)]
struct Level {
    is_object: bool,
    key: KnownKey,
}

/// Scanner of one JSON value. It looks for `usage` in the outermost object, and in its `response`, where the events of
/// OpenAI's Responses have it.
#[derive(Debug, Default)]
pub(crate) struct UsageScanner {
    depth: usize,
    /// The outermost two levels.
    levels: [Level; 2],
    in_string: bool,
    is_escaped: bool,
    /// True where the next string is a key.
    expects_key: bool,
    /// Text of the current string, if it is a key; one byte more than the longest key that matters.
    key: Option<Vec<u8>>,
    /// Bytes of the object with counts so far, and its depth.
    captured: Option<(Vec<u8>, usize)>,
    /// True directly after the beginning of the list of choices.
    at_choices: bool,
    has_no_choices: bool,
    has_error: bool,
    usage: Option<TokenUsage>,
}

impl UsageScanner {
    /// Returns the counts, if the value has any.
    pub(crate) fn usage(&self) -> Option<TokenUsage> {
        self.usage
    }

    /// Returns true for the chunk of a stream that only states counts.
    pub(crate) fn is_usage_chunk(&self) -> bool {
        self.has_no_choices && self.usage.is_some()
    }

    /// Returns true if the value reports an error.
    pub(crate) fn has_error(&self) -> bool {
        self.has_error
    }

    /// Reads the next bytes of the value.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.read(byte));
    }

    /// Returns the innermost level, if it is one of the outermost two.
    fn level(&mut self) -> Option<&mut Level> {
        self.levels.get_mut(self.depth.checked_sub(1)?)
    }

    fn read(&mut self, byte: u8) {
        if let Some((bytes, _)) = &mut self.captured {
            bytes.push(byte);
            if bytes.len() > MAX_OBJECT {
                self.captured = None;
            }
        }
        if self.in_string {
            return self.read_in_string(byte);
        }
        if byte.is_ascii_whitespace() {
            return;
        }

        let was_at_choices = std::mem::take(&mut self.at_choices);
        match byte {
            b'"' => {
                self.in_string = true;
                let is_key = self.expects_key && self.level().is_some_and(|level| level.is_object);
                self.key = is_key.then(Vec::new);
            }
            b'{' | b'[' => self.open(byte == b'{'),
            b'}' | b']' => {
                self.has_no_choices |= was_at_choices && byte == b']';
                self.close();
            }
            b',' => self.expects_key = true,
            _ => self.expects_key = false,
        }
    }

    fn read_in_string(&mut self, byte: u8) {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = true,
            b'"' => {
                self.in_string = false;
                if let (Some(text), Some(level)) = (self.key.take(), self.level()) {
                    level.key = KnownKey::of(&text);
                }
                return;
            }
            _ => {}
        }
        if let Some(text) = self.key.as_mut().filter(|text| text.len() <= MAX_KEY) {
            text.push(byte);
        }
    }

    fn open(&mut self, is_object: bool) {
        let [outer, inner] = self.levels;
        let key = match self.depth {
            1 if outer.is_object => outer.key,
            2 if outer.is_object && outer.key == KnownKey::Response && inner.is_object => match inner.key {
                KnownKey::Usage => KnownKey::Usage,
                _ => KnownKey::Other,
            },
            _ => KnownKey::Other,
        };
        match key {
            KnownKey::Usage if is_object => self.captured = Some((vec![b'{'], self.depth)),
            KnownKey::Choices if !is_object => self.at_choices = true,
            KnownKey::Error if is_object => self.has_error = true,
            _ => {}
        }
        self.depth += 1;
        self.expects_key = is_object;
        if let Some(level) = self.level() {
            *level = Level { is_object, key: KnownKey::Other };
        }
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.expects_key = false;
        if let Some((bytes, _)) = self.captured.take_if(|(_, depth)| *depth == self.depth) {
            self.usage = counts(&bytes).or(self.usage);
        }
    }
}

/// Returns the counts of an object of Chat Completions or of Responses.
fn counts(bytes: &[u8]) -> Option<TokenUsage> {
    let object: Value = serde_json::from_slice(bytes).ok()?;
    let count = |names: [&str; 2]| {
        let value = names.iter().find_map(|name| object.get(name)?.as_u64());
        value.map(|count| usize::try_from(count.min(MAX_COUNT)).unwrap_or(usize::MAX))
    };
    let prompt = count(["prompt_tokens", "input_tokens"]);
    let generated = count(["completion_tokens", "output_tokens"]);
    let total = count(["total_tokens", "total_tokens"]);
    if prompt.is_none() && generated.is_none() && total.is_none() {
        return None;
    }
    let generated = generated.unwrap_or(0);
    Some(TokenUsage { prompt: prompt.or(total).unwrap_or(0), generated })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(json: &str) -> UsageScanner {
        let mut whole = UsageScanner::default();
        whole.feed(json.as_bytes());
        for cut in 0..json.len() {
            let mut scanner = UsageScanner::default();
            scanner.feed(&json.as_bytes()[..cut]);
            scanner.feed(&json.as_bytes()[cut..]);
            assert_eq!(
                (scanner.usage(), scanner.is_usage_chunk()),
                (whole.usage(), whole.is_usage_chunk()),
                "{json}, {cut}"
            );
        }
        whole
    }

    #[test]
    fn counts_are_found_in_their_places_only() {
        let check = |json: &str, expect: Option<(usize, usize)>| {
            let found = scan(json).usage().map(|usage| (usage.prompt, usage.generated));
            assert_eq!(found, expect, "{json}");
        };
        check(r#"{"id": "a", "usage": {"prompt_tokens": 3, "completion_tokens": 4, "x": {}}}"#, Some((3, 4)));
        check(r#"{"usage":{"input_tokens":3,"output_tokens":4},"output":[{"usage":{}}]}"#, Some((3, 4)));
        check(r#"{"type":"x","response":{"usage":{"input_tokens":1,"output_tokens":2}}}"#, Some((1, 2)));
        check(r#"{"data":[[1,2]],"usage":{"total_tokens":9}}"#, Some((9, 0)));
        check(r#"{"usage": null}"#, None);
        check(r#"{"usage": {"prompt_tokens": -1}}"#, None);
        check(r#"{"text": "\"usage\": {\"prompt_tokens\": 5}", "a": ["usage", {"prompt_tokens": 5}]}"#, None);
        check(r#"{"choices": [{"usage": {"prompt_tokens": 5}}]}"#, None);
        check(r#"{"other": {"usage": {"prompt_tokens": 5}}}"#, None);
        check(r#"[{"usage": {"prompt_tokens": 5}}]"#, None);
        check(r#"{"response": {"x": {"usage": {"prompt_tokens": 5}}}}"#, None);
        check("}}]]\"", None);
        let huge = format!(r#"{{"usage": {{"prompt_tokens": {}, "a": "{}"}}}}"#, u64::MAX, "a".repeat(100));
        check(&huge, Some((MAX_COUNT as usize, 0)));
        let long = format!(r#"{{"usage": {{"prompt_tokens": 1, "a": "{}"}}}}"#, "a".repeat(MAX_OBJECT));
        let mut scanner = UsageScanner::default();
        scanner.feed(long.as_bytes());
        assert_eq!(scanner.usage(), None);
    }

    #[test]
    fn a_chunk_with_counts_alone_is_recognised() {
        let check = |json: &str, expect: bool| assert_eq!(scan(json).is_usage_chunk(), expect, "{json}");
        check(r#"{"choices": [ ], "usage": {"prompt_tokens": 3}}"#, true);
        check(r#"{"usage": {"prompt_tokens": 3}, "choices":[]}"#, true);
        check(r#"{"choices": [], "usage": null}"#, false);
        check(r#"{"choices": [{"delta": {}}], "usage": {"prompt_tokens": 3}}"#, false);
        check(r#"{"usage": {"prompt_tokens": 3}, "x": {"choices": []}}"#, false);
        assert!(scan(r#"{"error": {"message": "x"}}"#).has_error());
        assert!(!scan(r#"{"error": null, "x": {"error": {}}}"#).has_error());
    }
}
