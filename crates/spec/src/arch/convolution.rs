//! Convolutions over the tokens of a sequence.

use serde::{Deserialize, Serialize};

use super::{DecoderArch, DecoderLayer};

/// Largest kernel of a short convolution.
const MAX_KERNEL: usize = 64;

/// Gated short convolution of LFM2: `[b, c, x] = in_proj(n); out_proj(c · conv(b · x))`. The convolution is causal and
/// has one kernel for each channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShortConvolution {
    /// Number of tokens under the kernel, including the token itself.
    pub kernel: usize,
    /// True if the projections and the convolution have biases.
    pub bias: bool,
}

impl DecoderArch {
    /// Returns what was expected and what was found if its short convolutions are not those of a model: their kernels have
    /// one length, and rows have an even width, because halves of them take the places of keys and values.
    pub fn convolution_contradiction(&self) -> Option<[String; 2]> {
        let mut kernels =
            self.layers.iter().filter_map(DecoderLayer::convolution).map(|convolution| convolution.kernel);
        let kernel = kernels.next()?;
        if !(2..=MAX_KERNEL).contains(&kernel) {
            return Some([format!("convolutions of 2 to {MAX_KERNEL} tokens"), kernel.to_string()]);
        }
        if let Some(other) = kernels.find(|other| *other != kernel) {
            return Some([format!("convolutions of {kernel} tokens in every layer"), other.to_string()]);
        }
        let is_even = self.hidden > 0 && self.hidden.is_multiple_of(2);
        (!is_even).then(|| ["an even width for convolutions".to_owned(), self.hidden.to_string()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{Activation, Attention, Mixer, Mlp};

    #[test]
    fn convolutions_have_one_length_and_an_even_width() {
        let arch = |kernels: &[usize], hidden| {
            let mlp = Mlp { inner: 8, activation: Activation::Silu, gated: true, bias: false, cutoff: None };
            let attention = DecoderLayer::dense(Attention::plain(2, 1, 4), mlp);
            let convolution = |&kernel: &usize| DecoderLayer {
                mixer: Mixer::Convolution(ShortConvolution { kernel, bias: false }),
                ..attention.clone()
            };
            let layers = kernels.iter().map(convolution).chain([attention.clone()]).collect();
            DecoderArch { layers, hidden, ..DecoderArch::default() }
        };
        let found = |kernels: &[usize], hidden| {
            arch(kernels, hidden)
                .convolution_contradiction()
                .map(|[expected, found]| format!("{expected}: {found}"))
        };
        assert_eq!(found(&[], 7), None);
        assert_eq!(found(&[3, 3], 8), None);
        assert_eq!(found(&[1], 8).as_deref(), Some("convolutions of 2 to 64 tokens: 1"));
        assert_eq!(found(&[65], 8).as_deref(), Some("convolutions of 2 to 64 tokens: 65"));
        assert_eq!(found(&[3, 4], 8).as_deref(), Some("convolutions of 3 tokens in every layer: 4"));
        for width in [0, 7] {
            let expected = format!("an even width for convolutions: {width}");
            assert_eq!(found(&[3], width), Some(expected));
        }
    }
}
