//! Gated delta rules: linear attention with a state of fixed size.

use serde::{Deserialize, Serialize};

use super::limits::outside;

/// Largest kernel of the convolution before a delta rule.
const MAX_KERNEL: usize = 64;

/// Largest number of heads.
const MAX_HEADS: usize = 1 << 10;

/// Largest number of elements of a head. Qwen3.5 has 128.
const MAX_HEAD_SIZE: usize = 1 << 10;

/// Gated delta rule (Yang et al. 2024, "Gated Delta Networks", arXiv:2412.06464).
///
/// A head has a state `S [key_size, value_size]`, which is zero before the first token. For each token, with a query `q`
/// and a key `k` of unit length, a value `v`, a decay `a` and a rate `b`:
///
/// ```text
/// S = a S
/// S = S + k (b (v - S^T k))^T
/// output = S^T q / √key_size
/// ```
///
/// Queries, keys and values are outputs of a causal convolution over the tokens with one kernel for each channel, and of SiLU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatedDeltaRule {
    /// Number of heads of queries and keys; divides `value_heads`.
    pub key_heads: usize,
    /// Number of heads of values, each with a state.
    pub value_heads: usize,
    /// Head of queries and keys that each head of values reads.
    #[serde(default)]
    pub key_order: KeyHeadOrder,
    /// Elements of a query or a key.
    pub key_size: usize,
    /// Elements of a value.
    pub value_size: usize,
    /// Number of tokens under the kernel of the convolution, including the token itself.
    pub kernel: usize,
}

/// Heads of queries and keys that the heads of values read if there are more of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyHeadOrder {
    /// Consecutive heads of values read one head: 0, 0, 1, 1. The order of `transformers`.
    #[default]
    Grouped,
    /// Consecutive heads of values read consecutive heads: 0, 1, 0, 1. The order of llama.cpp's files.
    Tiled,
}

impl GatedDeltaRule {
    /// Returns the number of elements of the queries, or of the keys, of a token.
    pub fn key_width(&self) -> usize {
        self.key_heads.saturating_mul(self.key_size)
    }

    /// Returns the number of elements of the values of a token.
    pub fn value_width(&self) -> usize {
        self.value_heads.saturating_mul(self.value_size)
    }

    /// Returns the number of channels of the convolution: those of queries, keys and values.
    pub fn width(&self) -> usize {
        self.key_width().saturating_mul(2).saturating_add(self.value_width())
    }

    /// Returns what was expected and what was found if a number is outside its limits.
    pub(super) fn contradiction(&self) -> Option<[String; 2]> {
        let Self { key_heads, value_heads, key_size, value_size, kernel, .. } = *self;
        let contradiction = outside(&[
            ("heads of a delta rule", key_heads, 1..=MAX_HEADS),
            ("heads of a delta rule", value_heads, 1..=MAX_HEADS),
            ("elements of a head of a delta rule", key_size, 1..=MAX_HEAD_SIZE),
            ("elements of a head of a delta rule", value_size, 1..=MAX_HEAD_SIZE),
            ("tokens under the convolution of a delta rule", kernel, 2..=MAX_KERNEL),
        ]);
        let divides = key_heads > 0 && value_heads.is_multiple_of(key_heads);
        contradiction.or_else(|| {
            let expected = format!("value heads in groups for {key_heads} key heads");
            (!divides).then(|| [expected, value_heads.to_string()])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{Activation, Attention, DecoderArch, DecoderLayer, Mixer, Mlp};

    const RULE: GatedDeltaRule = GatedDeltaRule {
        key_heads: 2,
        value_heads: 4,
        key_order: KeyHeadOrder::Grouped,
        key_size: 8,
        value_size: 16,
        kernel: 4,
    };

    #[test]
    fn delta_rules_have_one_size_within_limits() {
        let found = |rules: &[GatedDeltaRule]| {
            let mlp = Mlp { inner: 8, activation: Activation::Silu, gated: true, bias: false, cutoff: None };
            let attention = DecoderLayer::dense(Attention::plain(2, 1, 4), mlp);
            let layers = rules
                .iter()
                .map(|rule| DecoderLayer { mixer: Mixer::DeltaRule(rule.clone()), ..attention.clone() })
                .chain([attention.clone()])
                .collect();
            DecoderArch { layers, ..DecoderArch::default() }
                .recurrence_contradiction()
                .map(|[expected, found]| format!("{expected}: {found}"))
        };
        assert_eq!((RULE.key_width(), RULE.value_width(), RULE.width()), (16, 64, 96));
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[RULE, RULE]), None);
        for (rule, expected) in [
            (GatedDeltaRule { key_heads: 0, ..RULE }, "1 to 1024 heads of a delta rule: 0"),
            (GatedDeltaRule { value_heads: 1025, ..RULE }, "1 to 1024 heads of a delta rule: 1025"),
            (GatedDeltaRule { key_size: 0, ..RULE }, "1 to 1024 elements of a head of a delta rule: 0"),
            (
                GatedDeltaRule { value_size: 1025, ..RULE },
                "1 to 1024 elements of a head of a delta rule: 1025",
            ),
            (GatedDeltaRule { kernel: 1, ..RULE }, "2 to 64 tokens under the convolution of a delta rule: 1"),
            (GatedDeltaRule { value_heads: 3, ..RULE }, "value heads in groups for 2 key heads: 3"),
        ] {
            assert_eq!(found(&[rule]).as_deref(), Some(expected));
        }
        let several = found(&[RULE, GatedDeltaRule { kernel: 3, ..RULE }]).unwrap();
        let expected = "a gated delta rule of one size in every layer that has one: ";
        assert!(several.starts_with(expected), "{several}");
    }
}
