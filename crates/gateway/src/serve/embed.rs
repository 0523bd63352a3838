//! Embeddings: from texts to tokens to vectors.

use narthex_catalog::resolve::excerpt;
use narthex_spec::manifest::Prompts;
use narthex_text::tokenizer::{BoundedTokens, Bounds};

use crate::{
    cancel::Cancel,
    encoder_queue::EncoderInput,
    error::{Error, TokenCount},
    load::{loaded_model::LoadedModel, residency::ReadyModel},
    report::models::ModelKind,
    serve::{
        options::check_count,
        request::{EmbedRequest, Embeddings, InputOverflow, MAX_INPUTS, Prompt},
    },
};

impl ReadyModel {
    /// Returns the number of elements of a vector; `None` for a model of another kind.
    pub fn embedding_width(&self) -> Option<usize> {
        let encoder = self.loaded.encoder(ModelKind::Embedding).ok()?;
        Some(encoder.limits().width)
    }

    /// Embeds texts. Ends with [`Error::Cancelled`] once `cancel` is set.
    pub fn embed(&self, request: &EmbedRequest, cancel: &Cancel) -> Result<Embeddings, Error> {
        let model = &*self.loaded;
        let encoder = model.encoder(ModelKind::Embedding)?;
        let inputs = request.inputs.len();
        if inputs == 0 || inputs > MAX_INPUTS {
            return Err(Error::invalid(
                "input",
                format!("expected 1 to {MAX_INPUTS} inputs, found {inputs}"),
            ));
        }

        let limits = encoder.limits();
        if let Some(dimensions) = request.dimensions {
            check_count("dimensions", dimensions, limits.width)?;
        }
        let tokenizer = model.tokenizer()?;
        let tokenization = Tokenization {
            model,
            prompt: select_prompt(&model.package.manifest.prompts, request)?,
            limit: limits.max_length,
            overlong: request.overlong,
            frame: has_tokens(request).then(|| tokenizer.document_frame()).transpose()?,
            cancel,
        };

        let queued = encoder.enter(cancel, &self.computed)?;
        let texts = request.inputs.iter().enumerate();
        let texts = texts.map(|(index, input)| tokenization.tokens(index, input));
        let texts = texts.collect::<Result<Vec<_>, Error>>()?;
        let prompt_tokens = texts.iter().map(Vec::len).sum();
        let mut vectors = queued.run(texts.into_iter().map(EncoderInput::from).collect())?;
        if let Some(dimensions) = request.dimensions {
            vectors.iter_mut().for_each(|vector| shorten(vector, dimensions));
        }
        Ok(Embeddings { vectors, prompt_tokens, ran_on: model.ran_on() })
    }
}

/// Returns the prompt that precedes each input.
fn select_prompt<'a>(prompts: &'a Prompts, request: &EmbedRequest) -> Result<&'a str, Error> {
    let Some(name) = request.prompt.as_ref().or(prompts.default.as_ref()) else { return Ok("") };
    if request.prompt.is_some() && has_tokens(request) {
        return Err(Error::invalid("prompt_name", "expected texts after a prompt, found tokens"));
    }
    if let Some(text) = prompts.named.get(name) {
        return Ok(text);
    }

    let message = if prompts.is_empty() {
        format!("this model has no prompts, found {:?}; omit it", excerpt(name))
    } else {
        let names: Vec<&str> = prompts.named.keys().map(String::as_str).collect();
        format!("expected one of {}, found {:?}", names.join(", "), excerpt(name))
    };
    Err(Error::invalid("prompt_name", message))
}

/// Settings for the tokens of every input.
struct Tokenization<'a> {
    model: &'a LoadedModel,
    /// Text that precedes each input.
    prompt: &'a str,
    /// Maximum number of tokens.
    limit: usize,
    overlong: InputOverflow,
    /// Special tokens before and after a text, if an input has tokens.
    frame: Option<[Vec<u32>; 2]>,
    cancel: &'a Cancel,
}

impl Tokenization<'_> {
    fn tokens(&self, index: usize, input: &Prompt) -> Result<Vec<u32>, Error> {
        let Self { model, prompt, limit, overlong, ref frame, cancel } = *self;
        let tokenizer = model.tokenizer()?;
        if let Prompt::Text(text) = input
            && overlong == InputOverflow::Refuse
        {
            let fewest = tokenizer.min_tokens(text);
            if fewest > limit {
                return Err(Error::InputTooLong { index, found: TokenCount::AtLeast(fewest), limit });
            }
        }

        let bounds = Bounds { limit, is_cancelled: &|| cancel.is_cancelled() };
        let encoded = match input {
            Prompt::Text(text) if prompt.is_empty() => tokenizer.encode_document_within(text, bounds)?,
            Prompt::Text(text) => tokenizer.encode_document_within(&format!("{prompt}{text}"), bounds)?,
            Prompt::Tokens(tokens) => BoundedTokens::Whole(tokens.clone()),
        };
        let mut tokens = match encoded {
            BoundedTokens::Whole(tokens) => tokens,
            BoundedTokens::Beginning(tokens) if overlong == InputOverflow::Truncate => tokens,
            BoundedTokens::Beginning(_) | BoundedTokens::TooManyBytes => {
                return Err(Error::InputTooLong { index, found: TokenCount::AtLeast(limit + 1), limit });
            }
        };

        if tokens.is_empty() {
            let message = format!("input {index} is empty; expected at least one token");
            return Err(Error::invalid("input", message));
        }

        if let (Prompt::Tokens(_), Some(frame)) = (input, frame) {
            check_tokens(tokenizer.vocab_size(), frame, index, &tokens)?;
        }

        if tokens.len() > limit {
            if overlong == InputOverflow::Refuse {
                return Err(Error::InputTooLong { index, found: TokenCount::Exact(tokens.len()), limit });
            }
            // The last token is the end token, which a truncated text keeps.
            let last = tokens[tokens.len() - 1];
            tokens.truncate(limit);
            tokens[limit - 1] = last;
        }
        Ok(tokens)
    }
}

/// Fails if this model's tokenizer cannot have made these tokens: if one is not in the vocabulary, or if the special tokens
/// around a text are missing.
fn check_tokens(
    vocab: usize,
    [before, after]: &[Vec<u32>; 2],
    index: usize,
    tokens: &[u32],
) -> Result<(), Error> {
    let reason = match tokens.iter().find(|&&token| token as usize >= vocab) {
        Some(token) => {
            format!("token {token} of input {index} is not in this model's vocabulary of {vocab} tokens")
        }
        None if tokens.starts_with(before) && tokens.ends_with(after) => return Ok(()),
        None => {
            let first = tokens[0];
            let last = tokens[tokens.len() - 1];
            format!(
                "expected tokens that begin with {before:?} and end with {after:?}, as those of /tokenize for this \
                 model; input {index} begins with {first} and ends with {last}"
            )
        }
    };

    let message = format!(
        "{reason}; send texts, since tokens of another model's tokenizer have no meaning here (LangChain's \
         OpenAIEmbeddings sends texts with check_embedding_ctx_length=False)"
    );
    Err(Error::invalid("input", message))
}

fn has_tokens(request: &EmbedRequest) -> bool {
    request.inputs.iter().any(|input| matches!(input, Prompt::Tokens(_)))
}

/// Keeps the leading elements and rescales them to unit length (Matryoshka embeddings, arXiv:2205.13147).
fn shorten(vector: &mut Vec<f32>, dimensions: usize) {
    vector.truncate(dimensions);
    let norm = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if norm > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortened_vectors_have_unit_length() {
        let mut vector = vec![3.0, 4.0, 12.0];
        shorten(&mut vector, 2);
        assert_eq!(vector, [0.6, 0.8]);
        let mut zero = vec![0.0, 0.0, 1.0];
        shorten(&mut zero, 2);
        assert_eq!(zero, [0.0, 0.0]);
    }
}
