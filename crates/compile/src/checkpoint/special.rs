//! Which tokens end an answer, by the texts that chat formats use.
//!
//! Both readers add these to what a checkpoint states: conversions often name only one of a model's end tokens.

/// Texts that end a turn in the chat formats in use. None of them is ordinary text.
pub(super) const END_OF_TURN: [&str; 12] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|eot|>",
    "<|eom|>",
    "<end_of_turn>",
    "<turn|>",
    "<EOT>",
    "_<EOT>",
];

/// `tokens` in ascending order, each once.
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
    fn stop_tokens_come_sorted_and_once() {
        assert_eq!(sorted([3, 1, 3, 2, 1]), [1, 2, 3]);
    }
}
