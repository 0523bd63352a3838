//! Which tensors an architecture needs, and whether a checkpoint has just those.
//!
//! Run once when a checkpoint is opened, so that the stages after it meet no missing or misshapen weight.

use std::collections::HashSet;

use narthex_spec::arch::{Architecture, Attention, DecoderArch, EncoderArch, NormKind, QkNorm, Residual};

use super::{
    CheckpointError, WeightSource,
    limit::{malformed, unsupported},
    tensors::Tensors,
};

/// Fails unless every weight of `architecture` is there with the right shape and a known encoding, and no weight of
/// a layer is left over.
pub(super) fn check(tensors: &Tensors, architecture: &Architecture) -> Result<(), CheckpointError> {
    let mut needed = match architecture {
        Architecture::Decoder(decoder) => decoder_weights(decoder),
        Architecture::Encoder(encoder) => encoder_weights(encoder),
    };
    if let Architecture::Encoder(encoder) = architecture {
        needed.push(("embed.type.weight".to_owned(), type_shape(tensors, encoder)?));
    }
    let mut used = HashSet::new();
    for (name, shape) in &needed {
        tensors.weight(name)?.expect_shape(shape)?;
        used.extend(tensors.find(name).into_iter().flatten());
    }
    let mut left: Vec<_> = tensors
        .by_name
        .keys()
        .filter(|name| tensors.words.is_layer_weight(name) && !used.contains(*name))
        .collect();
    left.sort_unstable();
    match left.first() {
        Some(name) => {
            Err(unsupported("tensor", "only the weights that the architecture names in a layer", name))
        }
        None => Ok(()),
    }
}

/// The stored shape of the segment embedding, of which only the width is known beforehand.
fn type_shape(tensors: &Tensors, encoder: &EncoderArch) -> Result<Vec<usize>, CheckpointError> {
    let shape = tensors.shape("embed.type.weight")?;
    match shape {
        // A single segment may be stored as a vector.
        [hidden] | [_, hidden] if *hidden == encoder.hidden => Ok(shape.to_vec()),
        _ => Err(malformed(
            &tensors.origin,
            format!("segment embeddings of width {}", encoder.hidden),
            format!("shape {shape:?}"),
        )),
    }
}

type Needed = Vec<(String, Vec<usize>)>;

/// Pushes a weight `[out, in]` and, where there is one, its bias.
fn linear(needed: &mut Needed, module: String, [out, input]: [usize; 2], bias: Bias) {
    if bias == Bias::Present {
        needed.push((format!("{module}.bias"), vec![out]));
    }
    needed.push((format!("{module}.weight"), vec![out, input]));
}

/// Whether a linear layer adds a bias.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bias {
    Present,
    Absent,
}

impl From<bool> for Bias {
    fn from(present: bool) -> Self {
        if present { Self::Present } else { Self::Absent }
    }
}

fn decoder_weights(decoder: &DecoderArch) -> Needed {
    let hidden = decoder.hidden;
    let mut needed = vec![("embed.weight".to_owned(), vec![decoder.vocab, hidden])];
    stream_norm(&mut needed, "norm".to_owned(), decoder);
    if !decoder.tied_head {
        needed.push(("head.weight".to_owned(), vec![decoder.vocab, hidden]));
    }
    if decoder.learned_positions() {
        needed.push(("position.weight".to_owned(), vec![decoder.context, hidden]));
    }
    for (i, layer) in decoder.layers.iter().enumerate() {
        let name = |module: &str| format!("layers.{i}.{module}");
        let norms: &[&str] = match layer.residual {
            Residual::Sequential => &["attn_norm", "mlp_norm"],
            Residual::Sandwich => &["attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm"],
            Residual::Parallel => &["attn_norm"],
        };
        norms.iter().for_each(|norm| stream_norm(&mut needed, name(norm), decoder));
        attention_weights(&mut needed, &name("attn"), (hidden, &layer.attention));
        let mlp = Bias::from(layer.mlp.bias);
        if layer.mlp.gated {
            linear(&mut needed, name("mlp.gate_proj"), [layer.mlp.inner, hidden], mlp);
        }
        linear(&mut needed, name("mlp.up_proj"), [layer.mlp.inner, hidden], mlp);
        linear(&mut needed, name("mlp.down_proj"), [hidden, layer.mlp.inner], mlp);
    }
    needed
}

/// Pushes a norm over the residual stream.
fn stream_norm(needed: &mut Needed, module: String, decoder: &DecoderArch) {
    if decoder.norm == NormKind::Layer {
        needed.push((format!("{module}.bias"), vec![decoder.hidden]));
    }
    needed.push((format!("{module}.weight"), vec![decoder.hidden]));
}

fn attention_weights(needed: &mut Needed, module: &str, (hidden, attention): (usize, &Attention)) {
    let (heads, kv_heads, size) = (attention.heads, attention.kv_heads, attention.head_size);
    let qkv = Bias::from(attention.qkv_bias);
    linear(needed, format!("{module}.q_proj"), [heads * size, hidden], qkv);
    linear(needed, format!("{module}.k_proj"), [kv_heads * size, hidden], qkv);
    linear(needed, format!("{module}.v_proj"), [kv_heads * size, hidden], qkv);
    linear(needed, format!("{module}.o_proj"), [hidden, heads * size], attention.output_bias.into());
    let [q, k] = match attention.qk_norm {
        QkNorm::None => return,
        QkNorm::Rms => [vec![size], vec![size]],
        QkNorm::LayerPerHead => [vec![heads, size], vec![kv_heads, size]],
    };
    needed.push((format!("{module}.q_norm.weight"), q));
    needed.push((format!("{module}.k_norm.weight"), k));
}

fn encoder_weights(encoder: &EncoderArch) -> Needed {
    let (hidden, inner) = (encoder.hidden, encoder.inner);
    let mut needed = vec![
        ("embed.word.weight".to_owned(), vec![encoder.vocab, hidden]),
        ("embed.position.weight".to_owned(), vec![encoder.positions, hidden]),
        ("embed.norm.weight".to_owned(), vec![hidden]),
        ("embed.norm.bias".to_owned(), vec![hidden]),
    ];
    for i in 0..encoder.layers {
        for norm in ["attn_norm", "mlp_norm"] {
            for leaf in ["weight", "bias"] {
                needed.push((format!("layers.{i}.{norm}.{leaf}"), vec![hidden]));
            }
        }
        for projection in ["q", "k", "v", "o"] {
            linear(
                &mut needed,
                format!("layers.{i}.attn.{projection}_proj"),
                [hidden, hidden],
                Bias::Present,
            );
        }
        linear(&mut needed, format!("layers.{i}.mlp.up_proj"), [inner, hidden], Bias::Present);
        linear(&mut needed, format!("layers.{i}.mlp.down_proj"), [hidden, inner], Bias::Present);
    }
    needed
}
