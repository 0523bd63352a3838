//! Conversations with media.

use std::{fs, path::PathBuf};

use narthex_gateway::{
    Error, Gateway,
    request::{ChatRequest, Content, GenerateOptions, Media, Message, Part, Role},
};
use narthex_spec::MediaKind;

use super::{Answer, events, greedy, question};

/// Returns a picture of the fixtures of `narthex-image`.
pub(crate) fn picture(file: &str) -> Part {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../image/tests/fixtures");
    Part::Media(Media::new(MediaKind::Image, None, fs::read(fixtures.join(file)).unwrap()))
}

/// Returns a question about media.
pub(crate) fn about(parts: impl IntoIterator<Item = Part>) -> ChatRequest {
    let options = GenerateOptions { logprobs: Some(2), ..greedy(6) };
    let content = parts.into_iter().chain([Part::text("what is it?")]).collect::<Content>();
    ChatRequest { messages: vec![Message::new(Role::User, content)], ..question("", options) }
}

/// Returns the log-probabilities of an answer's tokens.
pub(crate) fn scores(answer: &Answer) -> Vec<Option<f32>> {
    answer.tokens.iter().map(|token| token.logprob).collect()
}

/// Returns the error of a request that is refused.
pub(crate) fn refusal(gateway: &Gateway, model: &str, request: ChatRequest) -> Error {
    let (sink, _events) = events();
    gateway.chat(model, request, sink).err().expect("the request is refused")
}
