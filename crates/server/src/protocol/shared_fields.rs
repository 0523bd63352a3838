//! Fields that the endpoints for conversations share, whatever their protocol is.

use schemars::JsonSchema;

use super::{
    fields::BodyFields, options::Sampling, reasoning::ReasoningOptions, response_format::GrammarOptions,
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

impl SharedFields {
    pub(crate) fn read(body: &BodyFields<'_>) -> Result<Self, ApiError> {
        Ok(Self { sampling: body.read()?, reasoning: body.read()?, grammar: body.read()? })
    }
}
