//! Anthropic's protocol: `/v1/messages` and `/v1/messages/count_tokens`.

mod blocks;
pub(crate) mod messages;
pub(crate) mod object;
pub(crate) mod request;
pub(crate) mod stream;
