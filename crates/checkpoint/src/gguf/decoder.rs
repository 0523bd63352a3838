//! Metadata keys as families read them, and the settings that most decoders share.
//!
//! Follows llama.cpp's `llama_model::load_hparams` and the graph of its `llama` model. A family's own settings are in
//! its own file.

use narthex_spec::arch::{
    Activation, Attention, DecoderArch, DecoderLayer, Experts, Family, Mlp, Rope, RopeScaling,
};

use super::meta::Metadata;
use crate::{
    error::{CheckpointError, Result},
    hf::decoder::extended,
    limits::{LAYERS, bounded, malformed, unsupported},
    tensors::Tensors,
    weight::WeightSource,
};

/// Metadata keys of one family, addressed without the family's prefix.
pub(crate) struct GgufKeys<'a> {
    pub(crate) metadata: &'a Metadata,
    pub(crate) family: &'static str,
}

/// Returns the number of rows of an embedding.
pub(crate) fn rows(tensors: &Tensors, name: &str) -> Result<usize> {
    match tensors.shape(name)? {
        [rows, _] => Ok(*rows),
        other => {
            Err(malformed(&tensors.origin, format!("{name} of two dimensions"), format!("shape {other:?}")))
        }
    }
}

/// Tensor with ggml's divisors of the rotary frequencies.
const ROPE_FREQS: &str = "rope_freqs.weight";

impl GgufKeys<'_> {
    /// Returns the full name of a key.
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.family)
    }

    /// Returns a non-negative integer.
    pub(crate) fn count(&self, key: &str) -> Result<Option<usize>> {
        self.metadata.count(&self.name(key))
    }

    /// Returns a non-negative integer; fails if the key is missing.
    pub(crate) fn need_count(&self, key: &str) -> Result<usize> {
        self.count(key)?.ok_or_else(|| self.absent(key))
    }

    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>> {
        self.metadata.float(&self.name(key))
    }

    /// Returns a float, or `default` if the key is missing.
    pub(crate) fn float_or(&self, key: &str, default: f64) -> Result<f64> {
        Ok(self.float(key)?.unwrap_or(default))
    }

    /// Returns a float; fails if the key is missing.
    pub(crate) fn need_float(&self, key: &str) -> Result<f64> {
        self.float(key)?.ok_or_else(|| self.absent(key))
    }

    /// Returns a boolean.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.metadata.flag(&self.name(key))
    }

    /// Returns an array of integers or booleans.
    pub(crate) fn ints(&self, key: &str) -> Result<Option<&[i64]>> {
        self.metadata.ints(&self.name(key))
    }

    /// Returns an array of floats.
    pub(crate) fn floats(&self, key: &str) -> Result<Option<&[f32]>> {
        self.metadata.floats(&self.name(key))
    }

    /// Returns the path of the file, for messages.
    pub(crate) fn path(&self) -> &std::path::Path {
        self.metadata.path()
    }

    /// Returns the number of layers, without those that predict further tokens, which files have after the others.
    pub(crate) fn layers(&self) -> Result<usize> {
        let key = "block_count";
        let predicting = self.count("nextn_predict_layers")?.unwrap_or(0);
        let layers = self.need_count(key)?.saturating_sub(predicting);
        bounded(self.metadata.path(), &self.name(key), layers, &LAYERS)
    }

    /// Returns a count for each of `layers` layers.
    fn per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<usize>>> {
        self.metadata.per_layer(&self.name(key), layers)
    }

    /// Returns a count for each of `layers` layers; fails if the key is missing.
    fn need_per_layer(&self, key: &str, layers: usize) -> Result<Vec<usize>> {
        self.per_layer(key, layers)?.ok_or_else(|| self.absent(key))
    }

    fn absent(&self, key: &str) -> CheckpointError {
        malformed(self.metadata.path(), format!("the key {}", self.name(key)), "none")
    }

    /// Reads the numbers of experts. llama.cpp always divides the weights of a token's experts by their sum.
    pub(crate) fn experts(&self) -> Result<Experts> {
        Ok(Experts::plain(
            self.need_count("expert_count")?,
            self.need_count("expert_used_count")?,
            self.need_count("expert_feed_forward_length")?,
        ))
    }

    /// Reads a decoder of Llama's structure; families change the settings in which they differ.
    pub(crate) fn decoder(&self, tensors: &Tensors) -> Result<DecoderArch> {
        let layers = self.layers()?;
        let hidden = self.need_count("embedding_length")?;
        let stated_context = self.need_count("context_length")?;
        let layers = self.decoder_layers(tensors, layers, hidden, stated_context)?;
        let head_size =
            layers.iter().find_map(DecoderLayer::attention).map_or(0, |attention| attention.head_size);
        let rope = Rope {
            theta: self.float("rope.freq_base")?.unwrap_or(10_000.0),
            dims: self.count("rope.dimension_count")?.unwrap_or(head_size),
            scaling: self.scaling(tensors, stated_context)?,
        };
        let context = extended(stated_context, &rope);
        Ok(DecoderArch {
            family: Family::Llama,
            vocab: rows(tensors, "embed.weight")?,
            hidden,
            context,
            layers,
            norm_epsilon: self.epsilon()? as f32,
            rope: Some(rope),
            tied_head: !tensors.has("head.weight"),
            ..DecoderArch::default()
        })
    }

    /// Returns the epsilon of either kind of norm.
    fn epsilon(&self) -> Result<f64> {
        match self.float("attention.layer_norm_epsilon")? {
            Some(epsilon) => Ok(epsilon),
            None => self.need_float("attention.layer_norm_rms_epsilon"),
        }
    }

    fn decoder_layers(
        &self,
        tensors: &Tensors,
        count: usize,
        hidden: usize,
        context: usize,
    ) -> Result<Vec<DecoderLayer>> {
        let heads = self.need_per_layer("attention.head_count", count)?;
        let kv_heads = self.per_layer("attention.head_count_kv", count)?.unwrap_or_else(|| heads.clone());
        let inner = self.need_per_layer("feed_forward_length", count)?;
        let head_size = self.head_size(heads.first().copied().unwrap_or(0), hidden)?;
        // A window as long as the context masks nothing.
        let window = self.count("attention.sliding_window")?.filter(|&window| window > 0 && window < context);

        let mut layers = Vec::with_capacity(count);
        for (i, ((&heads, &kv_heads), &inner)) in heads.iter().zip(&kv_heads).zip(&inner).enumerate() {
            let attention = Attention {
                qkv_bias: tensors.has(&format!("layers.{i}.attn.q_proj.bias")),
                output_bias: tensors.has(&format!("layers.{i}.attn.o_proj.bias")),
                window,
                ..Attention::plain(heads, kv_heads, head_size)
            };
            let mlp = Mlp {
                inner,
                activation: Activation::Silu,
                gated: true,
                bias: tensors.has(&format!("layers.{i}.mlp.down_proj.bias")),
                cutoff: None,
            };
            layers.push(DecoderLayer::dense(attention, mlp));
        }
        Ok(layers)
    }

    fn head_size(&self, heads: usize, hidden: usize) -> Result<usize> {
        match (self.count("attention.key_length")?, self.count("attention.value_length")?) {
            (Some(keys), Some(values)) if keys != values => {
                let key = self.name("attention.value_length");
                Err(unsupported(key, format!("the key length {keys}"), values))
            }
            (Some(size), _) | (None, Some(size)) => Ok(size),
            (None, None) if heads > 0 && hidden.is_multiple_of(heads) => Ok(hidden / heads),
            (None, None) => {
                let expected = format!("{} that divides {hidden}", self.name("attention.head_count"));
                Err(malformed(self.metadata.path(), expected, heads))
            }
        }
    }

    /// Reads RoPE scaling: a single factor, divisors per frequency (`rope_freqs.weight`), or both; or YaRN.
    fn scaling(&self, tensors: &Tensors, context: usize) -> Result<RopeScaling> {
        let kind = "rope.scaling.type";
        let factor = match self.metadata.text(&self.name(kind))? {
            Some("none") => None,
            Some("linear") => self.float("rope.scaling.factor")?,
            Some("yarn") if !tensors.by_name.contains_key(ROPE_FREQS) => return self.yarn(context),
            // Older files have the factor without the type.
            None => match self.float("rope.scaling.factor")? {
                Some(factor) => Some(factor),
                None => self.float("rope.scale_linear")?,
            },
            Some(other) => return Err(unsupported(self.name(kind), "none, linear or yarn", other)),
        };
        let factor = factor.filter(|&factor| factor != 0.0 && factor != 1.0);
        if !tensors.by_name.contains_key(ROPE_FREQS) {
            return Ok(factor.map_or(RopeScaling::None, |factor| RopeScaling::Linear { factor }));
        }
        let mut factors = tensors.stored(ROPE_FREQS, ROPE_FREQS)?.to_f32();
        if let Some(factor) = factor {
            factors.iter_mut().for_each(|divisor| *divisor *= factor as f32);
        }
        Ok(RopeScaling::Factors { factors })
    }

    /// Reads YaRN scaling. llama.cpp multiplies the file's factor on queries and keys with that of the paper.
    fn yarn(&self, context: usize) -> Result<RopeScaling> {
        let log = "rope.scaling.yarn_log_multiplier";
        if let Some(found) = self.float(log)? {
            return Err(unsupported(self.name(log), "none", found));
        }
        let factor = "rope.scaling.factor";
        let factor = self.float(factor)?.ok_or_else(|| self.absent(factor))?;
        let original = self.count("rope.scaling.original_context_length")?.unwrap_or(context);
        let mut scaling = RopeScaling::yarn(factor, original);
        if let RopeScaling::Yarn { beta_fast, beta_slow, attention_factor, .. } = &mut scaling {
            *beta_fast = self.float("rope.scaling.yarn_beta_fast")?.unwrap_or(*beta_fast);
            *beta_slow = self.float("rope.scaling.yarn_beta_slow")?.unwrap_or(*beta_slow);
            *attention_factor *= self.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
        }
        Ok(scaling)
    }
}
