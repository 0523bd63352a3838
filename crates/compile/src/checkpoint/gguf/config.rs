//! GGUF metadata as an [`Architecture`].
//!
//! Follows llama.cpp's `llama_model::load_hparams` and the graphs of its `llama` and `bert` models. Tokens are in
//! `vocab`.

use narthex_spec::arch::{
    Activation, Architecture, Attention, DecoderArch, DecoderLayer, EncoderArch, Family, Mlp, Pooling, Rope,
    RopeScaling,
};

use super::meta::Metadata;
use crate::checkpoint::{
    CheckpointError, WeightSource,
    limit::{LAYERS, bounded, malformed, unsupported},
    names::Dialect,
    tensors::{RowOrder, Tensors},
};

/// The architectures that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `llama`.
    Llama,
    /// `bert`.
    Bert,
}

impl Form {
    /// How the form names its tensors.
    pub(super) fn dialect(self) -> Dialect {
        match self {
            Self::Llama => Dialect::GgufLlama,
            Self::Bert => Dialect::GgufBert,
        }
    }
}

/// What the metadata says of the model.
#[derive(Debug)]
pub(super) struct Config {
    /// What it computes; its numbers are bounded but not yet checked against each other.
    pub(super) architecture: Architecture,
    /// The order of q and k rows.
    pub(super) order: RowOrder,
    /// The longest sequence, in tokens.
    pub(super) max_length: usize,
}

/// The architecture's name.
pub(super) fn form(metadata: &Metadata) -> Result<Form, CheckpointError> {
    match metadata.text("general.architecture")? {
        Some("llama") => Ok(Form::Llama),
        Some("bert") => Ok(Form::Bert),
        Some(other) => Err(unsupported("architecture", "llama or bert", other)),
        None => Err(malformed(metadata.path(), "the key general.architecture", "none")),
    }
}

/// Reads the configuration; shapes that the metadata leaves open are taken from `tensors`.
pub(super) fn read(form: Form, metadata: &Metadata, tensors: &Tensors) -> Result<Config, CheckpointError> {
    match form {
        Form::Llama => llama(metadata, tensors),
        Form::Bert => bert(metadata, tensors),
    }
}

/// The rows of an embedding.
fn rows(tensors: &Tensors, name: &str) -> Result<usize, CheckpointError> {
    match tensors.shape(name)? {
        [rows, _] => Ok(*rows),
        other => {
            Err(malformed(&tensors.origin, format!("{name} of two dimensions"), format!("shape {other:?}")))
        }
    }
}

fn llama(metadata: &Metadata, tensors: &Tensors) -> Result<Config, CheckpointError> {
    refuse_variants(metadata)?;
    let layers =
        bounded(metadata.path(), "llama.block_count", metadata.need_count("llama.block_count")?, &LAYERS)?;
    let hidden = metadata.need_count("llama.embedding_length")?;
    let context = metadata.need_count("llama.context_length")?;
    let layers = llama_layers(metadata, tensors, layers, hidden)?;
    let head_size = layers.first().map_or(0, |layer| layer.attention.head_size);
    let dims = metadata.count("llama.rope.dimension_count")?.unwrap_or(head_size);
    let rope = Rope {
        theta: metadata.float("llama.rope.freq_base")?.unwrap_or(10_000.0),
        dims,
        scaling: scaling(metadata, tensors)?,
    };
    let epsilon = metadata.float("llama.attention.layer_norm_rms_epsilon")?;
    let Some(epsilon) = epsilon else {
        return Err(malformed(metadata.path(), "the key llama.attention.layer_norm_rms_epsilon", "none"));
    };
    let architecture = Architecture::Decoder(DecoderArch {
        family: Family::Llama,
        vocab: rows(tensors, "embed.weight")?,
        hidden,
        context,
        layers,
        norm_epsilon: epsilon as f32,
        rope,
        tied_head: !tensors.has("head.weight"),
    });
    Ok(Config { architecture, order: RowOrder::Neighbours { head_size, dims }, max_length: context })
}

/// Refuses the models that share the name `llama` but compute something else.
fn refuse_variants(metadata: &Metadata) -> Result<(), CheckpointError> {
    if let Some(experts) = metadata.count("llama.expert_count")?.filter(|&experts| experts > 0) {
        return Err(unsupported("llama.expert_count", "0: a dense model", experts));
    }
    if let Some(factor) = metadata.float("llama.rope.scaling.attn_factor")?.filter(|&factor| factor != 1.0) {
        return Err(unsupported("llama.rope.scaling.attn_factor", "1", factor));
    }
    Ok(())
}

fn llama_layers(
    metadata: &Metadata,
    tensors: &Tensors,
    count: usize,
    hidden: usize,
) -> Result<Vec<DecoderLayer>, CheckpointError> {
    let needed = |key: &str| {
        let values = metadata.per_layer(key, count)?;
        values.ok_or_else(|| malformed(metadata.path(), format!("the key {key}"), "none"))
    };
    let heads = needed("llama.attention.head_count")?;
    let kv_heads =
        metadata.per_layer("llama.attention.head_count_kv", count)?.unwrap_or_else(|| heads.clone());
    let inner = needed("llama.feed_forward_length")?;
    let head_size = head_size(metadata, heads.first().copied().unwrap_or(0), hidden)?;
    let window = metadata.count("llama.attention.sliding_window")?;
    let context = metadata.need_count("llama.context_length")?;
    let layer = |i: usize, ((&heads, &kv_heads), &inner): ((&usize, &usize), &usize)| {
        let has = |module: &str| tensors.has(&format!("layers.{i}.{module}.bias"));
        let attention = Attention {
            heads,
            kv_heads,
            head_size,
            qkv_bias: has("attn.q_proj"),
            output_bias: has("attn.o_proj"),
            // A window as long as the context hides nothing.
            window: window.filter(|&window| window > 0 && window < context),
        };
        let mlp = Mlp { inner, activation: Activation::Silu, gated: true, bias: has("mlp.down_proj") };
        DecoderLayer { attention, mlp }
    };
    Ok(heads.iter().zip(&kv_heads).zip(&inner).enumerate().map(|(i, numbers)| layer(i, numbers)).collect())
}

fn head_size(metadata: &Metadata, heads: usize, hidden: usize) -> Result<usize, CheckpointError> {
    let keys = metadata.count("llama.attention.key_length")?;
    let values = metadata.count("llama.attention.value_length")?;
    match (keys, values) {
        (Some(keys), Some(values)) if keys != values => {
            Err(unsupported("llama.attention.value_length", format!("the key length {keys}"), values))
        }
        (Some(size), _) | (None, Some(size)) => Ok(size),
        (None, None) if heads > 0 && hidden.is_multiple_of(heads) => Ok(hidden / heads),
        (None, None) => {
            let expected = format!("llama.attention.head_count that divides {hidden}");
            Err(malformed(metadata.path(), expected, heads))
        }
    }
}

/// Scaling by a single factor and divisors per frequency (`rope_freqs.weight`), alone or together.
fn scaling(metadata: &Metadata, tensors: &Tensors) -> Result<RopeScaling, CheckpointError> {
    let factor = match metadata.text("llama.rope.scaling.type")? {
        Some("none") => None,
        Some("linear") => metadata.float("llama.rope.scaling.factor")?,
        // Files from before the type was written carry the factor alone.
        None => match metadata.float("llama.rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => metadata.float("llama.rope.scale_linear")?,
        },
        Some(other) => return Err(unsupported("llama.rope.scaling.type", "none or linear", other)),
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

/// ggml's divisors of rotary frequencies.
const ROPE_FREQS: &str = "rope_freqs.weight";

fn bert(metadata: &Metadata, tensors: &Tensors) -> Result<Config, CheckpointError> {
    let count = |key: &str| metadata.need_count(&format!("bert.{key}"));
    let positions = rows(tensors, "embed.position.weight")?;
    let Some(epsilon) = metadata.float("bert.attention.layer_norm_epsilon")? else {
        return Err(malformed(metadata.path(), "the key bert.attention.layer_norm_epsilon", "none"));
    };
    if metadata.flag("bert.attention.causal")? == Some(true) {
        return Err(unsupported("bert.attention.causal", "false", true));
    }
    let encoder = EncoderArch {
        family: Family::Bert,
        vocab: rows(tensors, "embed.word.weight")?,
        hidden: count("embedding_length")?,
        positions,
        layers: bounded(metadata.path(), "bert.block_count", count("block_count")?, &LAYERS)?,
        heads: count("attention.head_count")?,
        inner: count("feed_forward_length")?,
        // The converter takes no other activation, and writes none.
        activation: Activation::Gelu,
        norm_epsilon: epsilon as f32,
        pooling: pooling(metadata)?,
        // The format has no word for it; llama.cpp scales embeddings unless told otherwise.
        normalize: true,
    };
    let max_length = count("context_length")?.min(positions);
    Ok(Config { architecture: Architecture::Encoder(encoder), order: RowOrder::Halves, max_length })
}

/// llama.cpp's `llama_pooling_type`; the mean where the file leaves it open.
fn pooling(metadata: &Metadata) -> Result<Pooling, CheckpointError> {
    match metadata.count("bert.pooling_type")? {
        None | Some(0 | 1) => Ok(Pooling::Mean),
        Some(2) => Ok(Pooling::Cls),
        Some(other) => Err(unsupported("bert.pooling_type", "0 or 1 (mean) or 2 (first token)", other)),
    }
}

#[cfg(test)]
mod tests {
    use narthex_testkit::checkpoint::{Gguf, GgufTensor, GgufType, Meta, tiny_bert, tiny_llama};

    use super::*;
    use crate::checkpoint::Checkpoint;

    fn open(file: &Gguf) -> Result<Checkpoint, CheckpointError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, file.to_bytes()).unwrap();
        super::super::open(&path)
    }

    fn decoder(change: impl FnOnce(&mut Gguf)) -> DecoderArch {
        let mut file = tiny_llama(1);
        change(&mut file);
        match open(&file).map(|checkpoint| checkpoint.architecture) {
            Ok(Architecture::Decoder(decoder)) => decoder,
            Ok(other) => panic!("{other:?}"),
            Err(error) => panic!("{error}"),
        }
    }

    fn refused(mut file: Gguf, change: impl FnOnce(&mut Gguf), expect: &str) {
        change(&mut file);
        let found = open(&file).map_or_else(|error| error.to_string(), |_| "opened".to_owned());
        assert!(found.contains(expect), "{found} lacks {expect}");
    }

    fn vector(name: &str, values: &[f32]) -> GgufTensor {
        let bytes = GgufType::F32.encode(values);
        GgufTensor { name: name.into(), shape: vec![values.len()], kind: GgufType::F32 as u32, bytes }
    }

    #[test]
    fn a_llama_is_read() {
        let found = decoder(|_| ());
        assert_eq!((found.vocab, found.hidden, found.context, found.layers.len()), (300, 64, 256, 2));
        assert_eq!((found.norm_epsilon, found.tied_head), (1e-5, true));
        assert_eq!(found.rope, Rope { theta: 1e4, dims: 16, scaling: RopeScaling::None });
        let attention = Attention {
            heads: 4,
            kv_heads: 2,
            head_size: 16,
            qkv_bias: false,
            output_bias: false,
            window: None,
        };
        let mlp = Mlp { inner: 96, activation: Activation::Silu, gated: true, bias: false };
        assert!(
            found
                .layers
                .iter()
                .all(|layer| *layer == DecoderLayer { attention: attention.clone(), mlp: mlp.clone() })
        );
    }

    #[test]
    fn absent_keys_have_the_format_s_defaults() {
        let found = decoder(|f| {
            for key in ["llama.rope.freq_base", "llama.rope.dimension_count", "llama.vocab_size"] {
                f.unset(key);
            }
        });
        assert_eq!((found.rope.theta, found.rope.dims, found.vocab), (1e4, 16, 300));
    }

    #[test]
    fn head_sizes_and_windows_are_read() {
        let both = |keys, values| {
            move |f: &mut Gguf| {
                f.set("llama.attention.key_length", Meta::U32(keys));
                f.set("llama.attention.value_length", Meta::U32(values));
            }
        };
        assert_eq!(decoder(both(16, 16)).layers[0].attention.head_size, 16);
        refused(tiny_llama(1), both(16, 8), "llama.attention.value_length \"8\" is not supported");
        refused(tiny_llama(1), both(32, 32), "tensor layers.0.attn.q_proj.weight has the wrong shape");
        let window = |size| move |f: &mut Gguf| f.set("llama.attention.sliding_window", Meta::U32(size));
        assert_eq!(decoder(window(64)).layers[1].attention.window, Some(64));
        assert_eq!(decoder(window(256)).layers[1].attention.window, None);
    }

    #[test]
    fn counts_may_be_given_per_layer() {
        let found = decoder(|f| f.set("llama.feed_forward_length", Meta::I32s(vec![96, 96])));
        assert_eq!(found.layers[1].mlp.inner, 96);
        let heads = |counts: &[i32]| {
            let counts = counts.to_vec();
            move |f: &mut Gguf| f.set("llama.attention.head_count_kv", Meta::I32s(counts))
        };
        refused(tiny_llama(1), heads(&[2, 2, 2]), "2 values of llama.attention.head_count_kv, found 3");
        refused(tiny_llama(1), heads(&[2, 4]), "tensor layers.1.attn.k_proj.weight has the wrong shape");
        refused(tiny_llama(1), heads(&[2, 0]), "key/value heads from 1");
    }

    #[test]
    fn rope_scaling_is_read() {
        let scaled = |kind: &'static str, factor| {
            move |f: &mut Gguf| {
                f.set("llama.rope.scaling.type", Meta::Text(kind.into()));
                f.set("llama.rope.scaling.factor", Meta::F32(factor));
            }
        };
        assert_eq!(decoder(scaled("linear", 4.0)).rope.scaling, RopeScaling::Linear { factor: 4.0 });
        assert_eq!(decoder(scaled("linear", 1.0)).rope.scaling, RopeScaling::None);
        assert_eq!(decoder(scaled("none", 4.0)).rope.scaling, RopeScaling::None);
        refused(tiny_llama(1), scaled("yarn", 4.0), "llama.rope.scaling.type \"yarn\" is not supported");
        refused(tiny_llama(1), scaled("linear", -4.0), "rope scaling factor above zero");
        let old = decoder(|f| f.set("llama.rope.scale_linear", Meta::F32(2.0)));
        assert_eq!(old.rope.scaling, RopeScaling::Linear { factor: 2.0 });
        let factors = [1.0, 1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0];
        let with_factors = |f: &mut Gguf| f.tensors.push(vector("rope_freqs.weight", &factors));
        assert_eq!(decoder(with_factors).rope.scaling, RopeScaling::Factors { factors: factors.to_vec() });
        let both = decoder(|f| {
            with_factors(f);
            scaled("linear", 2.0)(f);
        });
        let doubled = factors.map(|factor| factor * 2.0).to_vec();
        assert_eq!(both.rope.scaling, RopeScaling::Factors { factors: doubled });
        refused(
            tiny_llama(1),
            |f| f.tensors.push(vector("rope_freqs.weight", &[1.0; 7])),
            "8 rope factors, found 7",
        );
    }

    #[test]
    fn biases_and_heads_are_seen_by_their_tensors() {
        let bias = |f: &mut Gguf, layers: std::ops::Range<usize>, modules: &[(&str, usize)]| {
            for (layer, (module, size)) in layers.flat_map(|l| modules.iter().map(move |m| (l, m))) {
                f.tensors.push(vector(&format!("blk.{layer}.{module}.bias"), &vec![0.5; *size]));
            }
        };
        let qkv = [("attn_q", 64), ("attn_k", 32), ("attn_v", 32)];
        let found = decoder(|f| bias(f, 0..2, &qkv));
        assert!(found.layers.iter().all(|layer| layer.attention.qkv_bias && !layer.attention.output_bias));
        let found = decoder(|f| {
            bias(f, 0..2, &[("ffn_gate", 96), ("ffn_up", 96), ("ffn_down", 64), ("attn_output", 64)])
        });
        assert!(found.layers.iter().all(|layer| layer.mlp.bias && layer.attention.output_bias));
        refused(tiny_llama(1), |f| bias(f, 0..1, &qkv[..2]), "no tensor for layers.0.attn.v_proj.bias");
        let found = decoder(|f| {
            let head = GgufTensor { name: "output.weight".into(), ..f.tensors[0].clone() };
            f.tensors.push(head);
        });
        assert!(!found.tied_head);
    }

    #[test]
    fn other_models_are_refused_by_name() {
        let text =
            |key: &'static str, value: &'static str| move |f: &mut Gguf| f.set(key, Meta::Text(value.into()));
        let number = |key: &'static str, value| move |f: &mut Gguf| f.set(key, Meta::U32(value));
        let check = |change: &dyn Fn(&mut Gguf), expect| refused(tiny_llama(1), change, expect);
        check(
            &text("general.architecture", "mamba"),
            "architecture \"mamba\" is not supported: expected llama or bert",
        );
        check(&text("general.type", "adapter"), "general.type \"adapter\"");
        check(&number("split.count", 2), "join the parts first");
        check(&number("llama.expert_count", 8), "a dense model");
        check(&number("llama.attention.head_count", 5), "head_count that divides 64, found 5");
        check(&number("llama.attention.head_count", 0), "head_count that divides 64, found 0");
        check(&number("llama.block_count", u32::MAX), "llama.block_count from 1 to 1024");
        check(&number("llama.block_count", 3), "no tensor for layers.2.");
        check(&number("llama.block_count", 1), "tensor \"blk.1.attn_k.weight\" is not supported");
        check(&number("llama.context_length", 0), "a context length from 1");
        check(&|f| f.unset("llama.embedding_length"), "the key llama.embedding_length, found none");
        check(&|f| f.unset("llama.attention.layer_norm_rms_epsilon"), "layer_norm_rms_epsilon, found none");
        check(&|f| f.unset("general.architecture"), "the key general.architecture");
        check(&|f| f.tensors[3].kind = 10, "type of tensor blk.0.attn_q.weight \"Q2_K\" is not supported");
        check(&|f| drop(f.tensors.remove(0)), "no tensor for embed.weight (there called token_embd.weight)");
    }

    #[test]
    fn a_bert_is_read() {
        let file = tiny_bert(1);
        let checkpoint = open(&file).unwrap_or_else(|error| panic!("{error}"));
        let Architecture::Encoder(found) = checkpoint.architecture else { panic!("no encoder") };
        assert_eq!(
            (found.hidden, found.positions, found.layers, found.heads, found.inner),
            (64, 128, 2, 4, 96)
        );
        assert_eq!(
            (found.activation, found.pooling, found.normalize),
            (Activation::Gelu, Pooling::Mean, true)
        );
        assert_eq!((found.norm_epsilon, checkpoint.max_length), (1e-12, 64));
        let pooled = |kind| move |f: &mut Gguf| f.set("bert.pooling_type", Meta::U32(kind));
        let mut cls = tiny_bert(1);
        pooled(2)(&mut cls);
        let Ok(Architecture::Encoder(found)) = open(&cls).map(|c| c.architecture) else {
            panic!("no encoder")
        };
        assert_eq!(found.pooling, Pooling::Cls);
        refused(tiny_bert(1), pooled(4), "bert.pooling_type \"4\" is not supported");
        refused(tiny_bert(1), |f| f.set("bert.attention.causal", Meta::Bool(true)), "bert.attention.causal");
        refused(tiny_bert(1), |f| f.set("bert.attention.head_count", Meta::U32(5)), "heads that divide");
    }
}
