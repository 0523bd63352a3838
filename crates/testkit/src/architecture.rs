//! A small decoder architecture, which tests modify as needed.

use narthex_spec::arch::{
    Activation, Attention, DecoderArch, DecoderLayer, Experts, Family, Mlp, Rope, RopeScaling,
};

/// Returns a layer of four query heads and two key/value heads, 16 elements each, with an inner width of 96.
pub fn layer() -> DecoderLayer {
    let attention = Attention::plain(4, 2, 16);
    let mlp = Mlp { inner: 96, activation: Activation::Silu, gated: true, bias: false, cutoff: None };
    DecoderLayer::dense(attention, mlp)
}

/// Returns four experts with an inner width of 64, of which each token uses two.
pub fn experts() -> Experts {
    Experts::plain(4, 2, 64)
}

/// Returns a Llama with one such layer, a hidden size of 64, 300 tokens and a context of 256.
pub fn llama() -> DecoderArch {
    DecoderArch {
        family: Family::Llama,
        vocab: 300,
        hidden: 64,
        context: 256,
        layers: vec![layer()],
        norm_epsilon: 1e-5,
        rope: Some(Rope { theta: 1e4, dims: 16, scaling: RopeScaling::None }),
        tied_head: true,
        ..DecoderArch::default()
    }
}
