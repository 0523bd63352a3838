//! OLMo 2: Llama's structure with norms after the parts of a layer instead of before them, and with norms over all queries and
//! over all keys (OLMo et al. 2024, "2 OLMo 2 Furious", arXiv:2501.00656).

use narthex_spec::arch::{DecoderArch, Family, QkNorm, Residual};

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults},
    },
    limits::unsupported,
    names::NameTable,
    tensors::Tensors,
};

/// `Olmo2ForCausalLM` (`Olmo2Config` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["Olmo2ForCausalLM"],
    model_type: "olmo2",
    names: &POST_NORM_HF_NAMES,
    read: HfReader::Decoder(hf),
};

/// `olmo2` (llama.cpp's `llama_model_olmo2`).
pub(super) const GGUF: GgufFamily =
    GgufFamily { name: "olmo2", names: &POST_NORM_GGUF_NAMES, read: GgufReader::Decoder(gguf) };

/// Names of Llama with norms after the parts of a layer.
pub(super) const POST_NORM_HF_NAMES: NameTable = NameTable {
    base: Some(&llama::HF_NAMES),
    inner: &[("attn_post_norm", "post_attention_layernorm"), ("mlp_post_norm", "post_feedforward_layernorm")],
    ..llama::HF_NAMES
};

/// As [`POST_NORM_HF_NAMES`], in GGUF files.
pub(super) const POST_NORM_GGUF_NAMES: NameTable = NameTable {
    base: Some(&llama::GGUF_NAMES),
    inner: &[("attn_post_norm", "post_attention_norm"), ("mlp_post_norm", "post_ffw_norm")],
    ..llama::GGUF_NAMES
};

fn hf(config: &Config) -> Result<Decoder> {
    let keys: DecoderKeys = config.keys()?;
    let mut arch = keys.decoder(config, Defaults { epsilon: 1e-5, ..Defaults::LLAMA })?;
    keys.apply_attention_bias(&mut arch);
    Ok(as_olmo2(arch).into())
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    // The later models of this architecture rotate the layers with a window by other frequencies.
    if let Some(window) = keys.count("attention.sliding_window")?.filter(|&window| window > 0) {
        let key = keys.name("attention.sliding_window");
        return Err(unsupported(key, "none, as in OLMo 2", window));
    }
    Ok(as_olmo2(keys.decoder(tensors)?).into())
}

/// Applies the differences of OLMo 2 from Llama.
fn as_olmo2(mut arch: DecoderArch) -> DecoderArch {
    arch.family = Family::Olmo2;
    arch.attentions_mut().for_each(|attention| attention.qk_norm = QkNorm::RmsOfAllHeads);
    arch.layers.iter_mut().for_each(|layer| layer.residual = Residual::Post);
    arch
}
