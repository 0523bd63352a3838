//! Common parts of all protocols: reading bodies, fields with the same effect, starting requests, streaming, and errors.
//!
//! A protocol is a folder next to this one, with its own JSON types and an [`EventEncoder`](sse::EventEncoder) for its
//! streams. No protocol imports from another.

pub(crate) mod blocking;
pub(crate) mod body;
pub(crate) mod classification;
pub(crate) mod conversation;
pub(crate) mod custom_tools;
pub(crate) mod device_headers;
pub(crate) mod embeddings;
pub(crate) mod errors;
pub(crate) mod events;
pub(crate) mod fields;
pub(crate) mod hints;
pub(crate) mod id;
pub(crate) mod ignored;
pub(crate) mod lenient_json;
pub(crate) mod loading;
pub(crate) mod media;
pub(crate) mod multipart;
pub(crate) mod options;
pub(crate) mod outline;
pub(crate) mod problem;
pub(crate) mod prompts;
pub(crate) mod reading;
pub(crate) mod reasoning;
pub(crate) mod reply;
pub(crate) mod response_format;
pub(crate) mod settings;
pub(crate) mod shared_fields;
pub(crate) mod sse;
pub(crate) mod text_or_list;
pub(crate) mod timestamp;
pub(crate) mod timings;
pub(crate) mod tools;

/// A protocol, identified by the path of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Protocol {
    /// Returns the protocol of a canonical path.
    pub(crate) fn of(path: &str) -> Self {
        if path.starts_with("/v1/messages") {
            Self::Anthropic
        } else if path.starts_with("/api/") {
            Self::Ollama
        } else {
            Self::OpenAi
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_protocol_has_its_paths() {
        for (path, expect) in [
            ("/v1/chat/completions", Protocol::OpenAi),
            ("/v1/messages/count_tokens", Protocol::Anthropic),
            ("/api/chat", Protocol::Ollama),
            ("/tokenize", Protocol::OpenAi),
        ] {
            assert_eq!(Protocol::of(path), expect, "{path}");
        }
    }
}
