//! Special tokens: those that a checkpoint states, those that end an answer, by their texts in chat formats, and settings
//! of ChatGLM3 that are only in its own code.
//!
//! Both readers add these tokens to those of the checkpoint: conversions often state only one of a model's end tokens.

use std::collections::BTreeMap;

use narthex_spec::arch::Family;

/// Special tokens as the checkpoint states them.
#[derive(Debug, Clone, Default)]
pub struct SpecialTokens {
    /// Token at the beginning of every sequence, if the model requires one (not merely defines one).
    pub bos: Option<u32>,
    /// All tokens that end an answer.
    pub stop: Vec<u32>,
    /// Padding token of a batch.
    pub pad: Option<u32>,
    /// Texts by the names that templates use: `bos_token`, `eos_token`, `unk_token`, `pad_token`, ….
    pub texts: BTreeMap<String, String>,
}

/// Texts that end a turn in common chat formats. None of them occurs in ordinary text.
const END_OF_TURN: [&str; 13] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end_of_sentence|>",
    "<|end|>",
    "<|eot|>",
    "<|eom|>",
    "<end_of_turn>",
    "<turn|>",
    "<EOT>",
    "_<EOT>",
];

/// Tokens that ChatGLM3's own code appends to the pieces of its tokenizer, in this order.
pub(super) const CHATGLM3_TOKENS: [&str; 9] = [
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "sop",
    "eop",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
];

/// Chat template of ChatGLM3, which only later revisions of its files have.
const CHATGLM3_TEMPLATE: &str = "\
    {% for message in messages %}{% if loop.first %}[gMASK]sop{% endif %}<|{{ message['role'] }}|>\n \
    {{ message['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

/// Returns the texts that end an answer of a family. A ChatGLM model ends its answer with the role of the next speaker. An
/// answer of gpt-oss consists of messages, which end with `<|end|>`.
pub(super) fn ends_of(family: Option<Family>) -> impl Iterator<Item = &'static str> {
    let more: &[&str] = match family {
        Some(Family::ChatGlm) => &["<|user|>", "<|observation|>"],
        Some(Family::GptOss) => &["<|return|>", "<|call|>"],
        _ => &[],
    };
    let has_messages = family == Some(Family::GptOss);
    END_OF_TURN.iter().filter(move |end| !(has_messages && **end == "<|end|>")).chain(more).copied()
}

/// Returns the chat template for a model whose files have none, if its family has one.
pub(super) fn template_of(family: Option<Family>) -> Option<String> {
    (family == Some(Family::ChatGlm)).then(|| CHATGLM3_TEMPLATE.to_owned())
}

/// Returns `tokens` in ascending order without duplicates.
pub(super) fn sorted(tokens: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut tokens: Vec<u32> = tokens.into_iter().collect();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_gpt_oss_do_not_end_its_answer() {
        let ends = |family| ends_of(family).collect::<Vec<_>>();
        assert!(ends(None).contains(&"<|end|>") && !ends(None).contains(&"<|call|>"));
        let found = ends(Some(Family::GptOss));
        assert!(!found.contains(&"<|end|>") && found.contains(&"<|call|>") && found.contains(&"<|return|>"));
    }

    #[test]
    fn stop_tokens_come_sorted_and_once() {
        assert_eq!(sorted([3, 1, 3, 2, 1]), [1, 2, 3]);
    }
}
