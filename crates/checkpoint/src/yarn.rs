//! Extension of a decoder's context by YaRN, as model cards describe it for checkpoints that state the original context.
//!
//! Only the rotary angles change; weights are unchanged.

use narthex_spec::{
    ContextFactor,
    arch::{Architecture, RopeScaling},
};

use crate::{checkpoint::Checkpoint, limits::CONTEXT};

/// Reason why YaRN cannot extend a model's context.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum YarnError {
    /// Positions are not rotary, or windows of some layers have rotations of their own.
    #[error(
        "expected a decoder with one set of rotary positions, as Llama, Mistral and Qwen have, found {found}"
    )]
    Positions {
        /// Structure of the model.
        found: String,
    },
    /// The checkpoint has a scaling of its own.
    #[error(
        "expected rotary positions without scaling, found the checkpoint's own scaling; compile it without yarn"
    )]
    Scaled,
    /// The context would be too long.
    #[error("expected a context of at most {most} tokens, found {found} times {factor}")]
    Context {
        /// Maximum.
        most: usize,
        /// Original context.
        found: usize,
        /// Factor.
        factor: usize,
    },
}

/// Extends the context of an architecture.
///
/// # Errors
/// [`YarnError`] for models whose positions YaRN does not apply to.
pub fn extend(architecture: &mut Architecture, factor: ContextFactor) -> Result<(), YarnError> {
    let described = YarnError::Positions { found: architecture.describe() };
    let Architecture::Decoder(arch) = architecture else { return Err(described) };
    if arch.local_rope.is_some() {
        return Err(described);
    }
    let original = arch.context;
    let Some(rope) = &mut arch.rope else { return Err(described) };
    if rope.scaling != RopeScaling::None {
        return Err(YarnError::Scaled);
    }
    let extended = original.checked_mul(factor.get()).filter(|context| CONTEXT.contains(context));
    let too_long = YarnError::Context { most: *CONTEXT.end(), found: original, factor: factor.get() };
    arch.context = extended.ok_or(too_long)?;
    rope.scaling = RopeScaling::yarn(factor.get() as f64, original);
    Ok(())
}

impl Checkpoint {
    /// Returns this model with the context that a recipe requests.
    ///
    /// # Errors
    /// As [`extend`].
    pub fn extended(mut self, factor: Option<ContextFactor>) -> Result<Self, YarnError> {
        if let Some(factor) = factor {
            extend(&mut self.architecture, factor)?;
            self.max_length = self.architecture.longest();
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::architecture_from_config;

    fn model(changes: Value) -> Architecture {
        let mut config = json!({
            "architectures": ["Qwen2ForCausalLM"], "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        });
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        architecture_from_config(config, None).unwrap()
    }

    fn four() -> ContextFactor {
        "4".parse().unwrap()
    }

    #[test]
    fn an_extended_model_is_what_its_card_states_in_config_json() {
        let mut extended = model(json!({}));
        extend(&mut extended, four()).unwrap();
        let card = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
        assert_eq!(extended, model(json!({"rope_scaling": card})));
        assert_eq!(extended.longest(), 131_072);
    }

    #[test]
    fn models_that_yarn_does_not_apply_to_are_refused() {
        let check = |mut model: Architecture, expect: &str| {
            let error = extend(&mut model, four()).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check(model(json!({"rope_scaling": {"type": "linear", "factor": 2.0}})), "own scaling");
        let gpt2 = json!({
            "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32768,
        });
        check(model(gpt2), "one set of rotary positions");
        check(model(json!({"architectures": ["Gemma3ForCausalLM"], "head_dim": 16})), "one set of rotary");
        check(model(json!({"max_position_embeddings": 1 << 26})), "at most 134217728 tokens, found 67108864");
    }
}
