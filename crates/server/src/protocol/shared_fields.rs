//! Fields that the endpoints for conversations share, whatever their protocol is.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::{
    body, hints, ignored::IgnoredParameters, options::Sampling, reasoning::ReasoningOptions,
    response_format::GrammarOptions,
};
use crate::error::ApiError;

/// Parameters that mean the same in every protocol. A protocol's own parameters take precedence.
#[derive(Debug, Default, JsonSchema)]
pub(crate) struct SharedFields {
    #[schemars(flatten)]
    pub(crate) sampling: Sampling,
    #[schemars(flatten)]
    pub(crate) reasoning: ReasoningOptions,
    #[schemars(flatten)]
    pub(crate) grammar: GrammarOptions,
}

/// Body of a request for an answer in a conversation.
pub(crate) struct ConversationBody<T> {
    /// Fields of the protocol.
    pub(crate) own: T,
    pub(crate) shared: SharedFields,
}

impl<T: DeserializeOwned> ConversationBody<T> {
    /// Reads a body with these fields, the shared ones and hints, whose names are added to `ignored`. `hints` are those
    /// of the protocol. Refuses other fields, as [`body::read_strict`] does.
    pub(crate) fn read(
        bytes: &[u8],
        fields: &[&[&str]],
        hints: &'static [&'static str],
        ignored: &mut IgnoredParameters,
    ) -> Result<Self, ApiError> {
        let fields = [fields, &[Sampling::FIELDS, ReasoningOptions::FIELDS, GrammarOptions::FIELDS]].concat();
        let own = hints::read_with_hints(bytes, &fields, hints, ignored)?;
        let shared = SharedFields {
            sampling: body::read_fields(bytes)?,
            reasoning: body::read_fields(bytes)?,
            grammar: body::read_fields(bytes)?,
        };
        Ok(Self { own, shared })
    }
}
