//! Mamba-2: a selective state space with one decay for each head.

use serde::{Deserialize, Serialize};

use super::limits::outside;

/// Largest kernel of the convolution.
const MAX_KERNEL: usize = 64;

/// Largest number of heads.
const MAX_HEADS: usize = 1 << 10;

/// Largest number of elements of a head or of a key. Granite 4 has 64 and 128.
const MAX_HEAD_SIZE: usize = 1 << 10;

/// Mamba-2 (Dao and Gu 2024, "Transformers are SSMs", arXiv:2405.21060).
///
/// A head has a state `S [state_size, head_size]`, which is zero before the first token. For each token, with an input `x`, a
/// key `B`, a query `C` and a time step `t = softplus(time + shift)`:
///
/// ```text
/// S = exp(-t · exp(decay_log)) S + B (t x)^T
/// y = S^T C + skip · x
/// ```
///
/// Inputs, keys and queries are outputs of a causal convolution over the tokens with one kernel for each channel, and of SiLU.
/// The output is `out_proj(norm(y · SiLU(gate)))`; the norm is an RMS norm of the heads of each group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mamba2 {
    /// Number of heads, each with a state.
    pub heads: usize,
    /// Elements of a head's input and output.
    pub head_size: usize,
    /// Number of groups; divides `heads`. Consecutive heads of a group read the same key and the same query.
    pub groups: usize,
    /// Elements of a key or a query.
    pub state_size: usize,
    /// Number of tokens under the kernel of the convolution, including the token itself.
    pub kernel: usize,
    /// True if the convolution has a bias.
    pub bias: bool,
}

impl Mamba2 {
    /// Returns the number of elements of the inputs of all heads.
    pub fn inner(&self) -> usize {
        self.heads.saturating_mul(self.head_size)
    }

    /// Returns the number of elements of the keys, or of the queries, of a token.
    pub fn key_width(&self) -> usize {
        self.groups.saturating_mul(self.state_size)
    }

    /// Returns the number of channels of the convolution: those of inputs, keys and queries.
    pub fn width(&self) -> usize {
        self.key_width().saturating_mul(2).saturating_add(self.inner())
    }

    /// Returns what was expected and what was found if a number is outside its limits.
    pub(super) fn contradiction(&self) -> Option<[String; 2]> {
        let Self { heads, head_size, groups, state_size, kernel, .. } = *self;
        let contradiction = outside(&[
            ("heads of a Mamba-2 layer", heads, 1..=MAX_HEADS),
            ("groups of a Mamba-2 layer", groups, 1..=MAX_HEADS),
            ("elements of a head of a Mamba-2 layer", head_size, 1..=MAX_HEAD_SIZE),
            ("elements of a key of a Mamba-2 layer", state_size, 1..=MAX_HEAD_SIZE),
            ("tokens under the convolution of a Mamba-2 layer", kernel, 2..=MAX_KERNEL),
        ]);
        let divides = groups > 0 && heads.is_multiple_of(groups);
        contradiction.or_else(|| {
            (!divides).then(|| [format!("heads of a Mamba-2 layer in {groups} groups"), heads.to_string()])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{
        Activation, Attention, DecoderArch, DecoderLayer, GatedDeltaRule, KeyHeadOrder, Mixer, Mlp,
    };

    const MAMBA: Mamba2 = Mamba2 { heads: 4, head_size: 16, groups: 2, state_size: 8, kernel: 4, bias: true };

    #[test]
    fn mamba_layers_have_one_size_within_limits() {
        let found = |mixers: &[Mixer]| {
            let mlp = Mlp { inner: 8, activation: Activation::Silu, gated: true, bias: false, cutoff: None };
            let attention = DecoderLayer::dense(Attention::plain(2, 1, 4), mlp);
            let layers =
                mixers.iter().map(|mixer| DecoderLayer { mixer: mixer.clone(), ..attention.clone() });
            DecoderArch { layers: layers.collect(), ..DecoderArch::default() }
                .recurrence_contradiction()
                .map(|[expected, found]| format!("{expected}: {found}"))
        };
        assert_eq!((MAMBA.inner(), MAMBA.key_width(), MAMBA.width()), (64, 16, 96));
        assert_eq!(found(&[Mixer::Mamba2(MAMBA), Mixer::Mamba2(MAMBA)]), None);
        for (mamba, expected) in [
            (Mamba2 { heads: 0, ..MAMBA }, "1 to 1024 heads of a Mamba-2 layer: 0"),
            (Mamba2 { groups: 0, ..MAMBA }, "1 to 1024 groups of a Mamba-2 layer: 0"),
            (Mamba2 { groups: 3, ..MAMBA }, "heads of a Mamba-2 layer in 3 groups: 4"),
            (Mamba2 { head_size: 1025, ..MAMBA }, "1 to 1024 elements of a head of a Mamba-2 layer: 1025"),
            (Mamba2 { state_size: 0, ..MAMBA }, "1 to 1024 elements of a key of a Mamba-2 layer: 0"),
            (Mamba2 { kernel: 1, ..MAMBA }, "2 to 64 tokens under the convolution of a Mamba-2 layer: 1"),
        ] {
            assert_eq!(found(&[Mixer::Mamba2(mamba)]).as_deref(), Some(expected));
        }
        let rule = GatedDeltaRule {
            key_heads: 2,
            value_heads: 4,
            key_order: KeyHeadOrder::Grouped,
            key_size: 8,
            value_size: 16,
            kernel: 4,
        };
        for other in [Mixer::Mamba2(Mamba2 { kernel: 3, ..MAMBA }), Mixer::DeltaRule(rule)] {
            let several = found(&[Mixer::Mamba2(MAMBA), other]).unwrap();
            let expected = "a Mamba-2 recurrence of one size in every layer that has one: ";
            assert!(several.starts_with(expected), "{several}");
        }
    }
}
