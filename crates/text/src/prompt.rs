//! Conversations as tokens. The spelling of a special token becomes a control token only if the template wrote it;
//! elsewhere it stays text. BOS occurs once.

use std::collections::VecDeque;

use narthex_spec::TokenId;

use crate::{
    template::{ChatTemplate, Message, RenderOptions, TemplateError},
    tokenizer::{Specials, Tokenizer, TokenizerError},
};

/// A failure to turn a conversation into tokens.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The template failed or refused the conversation.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// Renders a conversation as text in which the spellings of special tokens are shielded, except those that the template
/// wrote.
fn text(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Message],
    options: &RenderOptions,
) -> Result<String, PromptError> {
    let rendered = template.render(messages, options)?;
    Ok(tokenizer.shield_outside(rendered.text(), rendered.written()))
}

/// Returns the tokens of a conversation.
pub fn tokens(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Message],
    options: &RenderOptions,
    bos: Option<TokenId>,
) -> Result<Vec<TokenId>, PromptError> {
    let text = text(tokenizer, template, messages, options)?;
    Ok(with_bos(tokenizer.encode(&text, Specials::Parse)?, bos))
}

/// Returns tokens that begin with exactly one BOS, if the model has one.
pub fn with_bos(tokens: Vec<TokenId>, bos: Option<TokenId>) -> Vec<TokenId> {
    let Some(bos) = bos else { return tokens };
    let mut tokens = VecDeque::from(tokens);
    while tokens.front() == Some(&bos) {
        tokens.pop_front();
    }
    tokens.push_front(bos);
    tokens.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bos_stands_once() {
        let check =
            |tokens: &[u32], bos, expected: &[u32]| assert_eq!(with_bos(tokens.to_vec(), bos), expected);
        check(&[5, 6], None, &[5, 6]);
        check(&[5, 6], Some(1), &[1, 5, 6]);
        check(&[1, 5], Some(1), &[1, 5]);
        check(&[1, 1, 5], Some(1), &[1, 5]);
        check(&[], Some(1), &[1]);
    }
}
