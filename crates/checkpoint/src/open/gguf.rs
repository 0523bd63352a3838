//! Opening of GGUF files: finds the family, whose reader interprets the metadata.

use std::path::Path;

use narthex_spec::{
    arch::Architecture,
    manifest::{Prompts, PublishedSampling},
};

use crate::{
    adapter::{Adapter, AdapterFormat, adapted},
    checkpoint::{Checkpoint, TokenizerSource},
    error::Result,
    family::{GgufFamily, GgufReader, gguf_family, gguf_pooling},
    gguf::{
        decoder::GgufKeys,
        meta::Metadata,
        parts::GgufFiles,
        vocab::{self, Vocabulary},
    },
    layout::Layout,
    limits::{check_architecture, unsupported},
    pooling::PoolingSource,
    required_tensors, reranker,
    tensors::Tensors,
};

/// Opens a GGUF file of version 2 or 3.
pub(super) fn open(path: &Path, adapters: &[Adapter]) -> Result<Checkpoint> {
    opened(path, adapters).map_err(|error| error.in_file(path))
}

fn opened(path: &Path, adapters: &[Adapter]) -> Result<Checkpoint> {
    let GgufFiles { maps, paths, metadata, tensors: by_name } = GgufFiles::open(path)?;
    refuse_other_types(&metadata)?;
    let family = gguf_family(&metadata)?;
    let mut tensors = Tensors {
        origin: path.to_owned(),
        maps,
        files: paths.clone(),
        by_name,
        names: family.names,
        layout: Layout::default(),
    };

    let GgufSettings { architecture, layout, max_length, pooling } = settings(family, &metadata, &tensors)?;
    tensors.layout = layout;
    check_architecture(path, &architecture)?;
    required_tensors::check(&tensors, &architecture)?;
    let Vocabulary { vocab, special } = vocab::read(&metadata, &architecture)?;
    let sampling = sampling(&metadata, &architecture)?;

    let watches = tensors.watches();
    let weights = adapted(tensors, &architecture, AdapterFormat::Gguf, adapters)?;
    let reranker = match architecture {
        Architecture::Decoder(_) => reranker::of_gguf(path, &metadata, family.name)?,
        _ => None,
    };

    let checkpoint = Checkpoint {
        architecture,
        watches: watches.with(adapters.iter().map(Adapter::watch)),
        weights,
        tokenizer: TokenizerSource::Gguf(Box::new(vocab)),
        special,
        chat_template: metadata.text("tokenizer.chat_template")?.map(str::to_owned),
        speech: None,
        vision: None,
        audio: None,
        prompts: Prompts::default(),
        classifier: None,
        pairs: None,
        pooling,
        sampling,
        max_length,
        files: paths,
        license: metadata.text("general.license")?.map(str::to_owned),
    };
    match reranker {
        Some(reranker) => checkpoint.reranking(&reranker),
        None => Ok(checkpoint),
    }
}

/// Returns the sampling that the publisher of a decoder recommends.
fn sampling(metadata: &Metadata, architecture: &Architecture) -> Result<PublishedSampling> {
    if matches!(architecture, Architecture::Encoder(_)) {
        return Ok(PublishedSampling::default());
    }
    let float = |key: &str| Ok(metadata.float(&format!("general.sampling.{key}"))?.map(|value| value as f32));
    let sampling = PublishedSampling {
        temperature: float("temp")?,
        top_p: float("top_p")?,
        top_k: float("top_k")?.filter(|count| *count > 0.0).map(|count| count as usize),
        min_p: float("min_p")?,
        repetition_penalty: float("penalty_repeat")?,
    };
    Ok(sampling.within_ranges())
}

/// Settings from a file's metadata.
#[derive(Debug)]
struct GgufSettings {
    /// Architecture. Its numbers are within bounds but not yet checked for consistency.
    architecture: Architecture,
    /// Layout of the weights.
    layout: Layout,
    /// Maximum sequence length, in tokens.
    max_length: usize,
    /// Source of the pooling, for embedding models.
    pooling: PoolingSource,
}

/// Reads the settings. Shapes that the metadata does not state come from `tensors`.
fn settings(family: &GgufFamily, metadata: &Metadata, tensors: &Tensors) -> Result<GgufSettings> {
    let keys = GgufKeys { metadata, family: family.name };
    match family.read {
        GgufReader::Decoder(read) => {
            let decoder = read(&keys, tensors)?;
            let max_length = decoder.arch.context;
            Ok(GgufSettings {
                architecture: Architecture::Decoder(decoder.arch),
                layout: decoder.layout,
                max_length,
                pooling: PoolingSource::Unknown,
            })
        }
        GgufReader::Encoder(read) => {
            let encoder = read(&keys, tensors)?;
            let max_length = keys.need_count("context_length")?.min(encoder.positions);
            Ok(GgufSettings {
                architecture: Architecture::Encoder(encoder),
                layout: Layout::default(),
                max_length,
                pooling: gguf_pooling(&keys)?.1,
            })
        }
    }
}

/// Refuses files that are not models: an adapter, an image projector.
fn refuse_other_types(metadata: &Metadata) -> Result<()> {
    match metadata.text("general.type")? {
        None | Some("model") => Ok(()),
        Some("adapter") => {
            let expected = "model; add an adapter to its model with compile MODEL --lora";
            Err(unsupported("general.type", expected, "adapter"))
        }
        Some(other) => Err(unsupported("general.type", "model", other)),
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::arch::{
        Activation, Attention, DecoderArch, DecoderLayer, Mlp, Pooling, Rope, RopeScaling,
    };
    use narthex_testkit::checkpoint::{Gguf, GgufTensor, GgufType, Meta, tiny_bert, tiny_llama};

    use narthex_spec::arch::EncoderHead;

    use super::*;

    fn open(file: &Gguf) -> Result<Checkpoint> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, file.to_bytes()).unwrap();
        super::open(&path, &[])
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

    fn scaling(change: impl FnOnce(&mut Gguf)) -> RopeScaling {
        decoder(change).rope.unwrap().scaling
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
        assert_eq!(found.rope, Some(Rope { theta: 1e4, dims: 16, scaling: RopeScaling::None }));
        let attention = Attention::plain(4, 2, 16);
        let mlp = Mlp { inner: 96, activation: Activation::Silu, gated: true, bias: false, cutoff: None };
        assert_eq!(found.layers, vec![DecoderLayer::dense(attention, mlp); 2]);
    }

    #[test]
    fn absent_keys_have_the_format_s_defaults() {
        let found = decoder(|f| {
            for key in ["llama.rope.freq_base", "llama.rope.dimension_count", "llama.vocab_size"] {
                f.unset(key);
            }
        });
        let rope = found.rope.unwrap();
        assert_eq!((rope.theta, rope.dims, found.vocab), (1e4, 16, 300));
    }

    #[test]
    fn the_sampling_of_the_publisher_is_read() {
        let read = |keys: &[(&str, Meta)]| {
            let mut file = tiny_llama(1);
            for (key, value) in keys {
                file.set(&format!("general.sampling.{key}"), value.clone());
            }
            open(&file).unwrap_or_else(|error| panic!("{error}")).sampling
        };
        assert!(read(&[]).is_empty());
        let keys = [
            ("temp", Meta::F32(0.6)),
            ("top_k", Meta::U32(20)),
            ("top_p", Meta::F32(0.95)),
            ("min_p", Meta::F32(7.0)),
            ("penalty_repeat", Meta::F32(1.1)),
        ];
        let expect = PublishedSampling {
            temperature: Some(0.6),
            top_p: Some(0.95),
            top_k: Some(20),
            min_p: None,
            repetition_penalty: Some(1.1),
        };
        assert_eq!(read(&keys), expect);
    }

    #[test]
    fn head_sizes_and_windows_are_read() {
        let both = |keys, values| {
            move |f: &mut Gguf| {
                f.set("llama.attention.key_length", Meta::U32(keys));
                f.set("llama.attention.value_length", Meta::U32(values));
            }
        };
        assert_eq!(decoder(both(16, 16)).layers[0].attention().unwrap().head_size, 16);
        refused(tiny_llama(1), both(16, 8), "unsupported llama.attention.value_length: found 8");
        refused(
            tiny_llama(1),
            both(32, 32),
            "q_proj.weight (named blk.0.attn_q.weight in this file) has the wrong shape",
        );
        let window = |size| move |f: &mut Gguf| f.set("llama.attention.sliding_window", Meta::U32(size));
        assert_eq!(decoder(window(64)).layers[1].attention().unwrap().window, Some(64));
        assert_eq!(decoder(window(256)).layers[1].attention().unwrap().window, None);
    }

    #[test]
    fn counts_may_be_given_per_layer() {
        let found = decoder(|f| f.set("llama.feed_forward_length", Meta::I32s(vec![96, 96])));
        assert_eq!(found.layers[1].mlp().unwrap().inner, 96);
        let heads = |counts: &[i32]| {
            let counts = counts.to_vec();
            move |f: &mut Gguf| f.set("llama.attention.head_count_kv", Meta::I32s(counts))
        };
        refused(tiny_llama(1), heads(&[2, 2, 2]), "2 values of llama.attention.head_count_kv, found 3");
        refused(
            tiny_llama(1),
            heads(&[2, 4]),
            "k_proj.weight (named blk.1.attn_k.weight in this file) has the wrong shape",
        );
        refused(tiny_llama(1), heads(&[2, 0]), "key/value heads from 1");
    }

    /// Returns the architecture of a Gemma from its metadata, with heads of 16 elements and a hidden width of 64.
    fn gemma(name: &str, layers: u32) -> DecoderArch {
        let mut file = tiny_llama(1);
        for (key, _) in &mut file.meta {
            *key = key.replace("llama.", &format!("{name}."));
        }
        for (key, value) in
            [("block_count", layers), ("attention.head_count", 2), ("attention.key_length", 16)]
        {
            file.set(&format!("{name}.{key}"), Meta::U32(value));
        }
        file.set("general.architecture", Meta::Text(name.into()));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, file.to_bytes()).unwrap();
        let GgufFiles { maps, paths, metadata, tensors: by_name } = GgufFiles::open(&path).unwrap();
        let family = gguf_family(&metadata).unwrap();
        let tensors = Tensors {
            origin: path,
            maps,
            files: paths,
            by_name,
            names: family.names,
            layout: Layout::default(),
        };
        match settings(family, &metadata, &tensors).unwrap().architecture {
            Architecture::Decoder(decoder) => decoder,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn gemma_s_scores_are_scaled_by_the_heads_but_in_the_largest_size() {
        // `query_pre_attn_scalar` of the 27B sizes is the hidden width divided by the number of heads; for the other
        // sizes it is the head size.
        let (head, width) = (Some(0.25), Some(32f32.powf(-0.5)));
        for (name, layers, expect) in [
            ("gemma2", 26, head),
            ("gemma2", 42, head),
            ("gemma2", 46, width),
            ("gemma3", 18, head),
            ("gemma3", 46, head),
            ("gemma3", 62, width),
        ] {
            let found = gemma(name, layers);
            assert_eq!(found.layers.len(), layers as usize);
            assert!(
                found.layers.iter().all(|layer| layer.attention().unwrap().scale == expect),
                "{name} {layers}"
            );
        }
    }

    #[test]
    fn rope_scaling_is_read() {
        let scaled = |kind: &'static str, factor| {
            move |f: &mut Gguf| {
                f.set("llama.rope.scaling.type", Meta::Text(kind.into()));
                f.set("llama.rope.scaling.factor", Meta::F32(factor));
            }
        };
        assert_eq!(scaling(scaled("linear", 4.0)), RopeScaling::Linear { factor: 4.0 });
        assert_eq!(scaling(scaled("linear", 1.0)), RopeScaling::None);
        assert_eq!(scaling(scaled("none", 4.0)), RopeScaling::None);
        refused(tiny_llama(1), scaled("dynamic", 4.0), "unsupported llama.rope.scaling.type: found dynamic");
        let yarn = |f: &mut Gguf| {
            scaled("yarn", 4.0)(f);
            f.set("llama.rope.scaling.original_context_length", Meta::U32(16));
        };
        assert_eq!(scaling(yarn), RopeScaling::yarn(4.0, 16));
        refused(tiny_llama(1), scaled("linear", -4.0), "rope scaling factor above zero");
        let old = scaling(|f| f.set("llama.rope.scale_linear", Meta::F32(2.0)));
        assert_eq!(old, RopeScaling::Linear { factor: 2.0 });
        let factors = [1.0, 1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0];
        let with_factors = |f: &mut Gguf| f.tensors.push(vector("rope_freqs.weight", &factors));
        assert_eq!(scaling(with_factors), RopeScaling::Factors { factors: factors.to_vec() });
        let both = scaling(|f| {
            with_factors(f);
            scaled("linear", 2.0)(f);
        });
        let doubled = factors.map(|factor| factor * 2.0).to_vec();
        assert_eq!(both, RopeScaling::Factors { factors: doubled });
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
        assert!(
            found
                .layers
                .iter()
                .all(|layer| layer.attention().unwrap().qkv_bias && !layer.attention().unwrap().output_bias)
        );
        let found = decoder(|f| {
            bias(f, 0..2, &[("ffn_gate", 96), ("ffn_up", 96), ("ffn_down", 64), ("attn_output", 64)])
        });
        assert!(
            found
                .layers
                .iter()
                .all(|layer| layer.mlp().unwrap().bias && layer.attention().unwrap().output_bias)
        );
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
            "unsupported architecture: found mamba, expected one of llama, ",
        );
        check(
            &text("general.type", "adapter"),
            "found adapter, expected model; add an adapter to its model with",
        );
        check(&number("split.count", 2), "name of a part of a GGUF file: found tiny.gguf");
        check(&number("llama.expert_count", 8), "a dense model");
        check(&number("llama.attention.head_count", 5), "head_count that divides 64, found 5");
        check(&number("llama.attention.head_count", 0), "head_count that divides 64, found 0");
        check(&number("llama.block_count", u32::MAX), "llama.block_count from 1 to 1024");
        check(&number("llama.block_count", 3), "no tensor for layers.2.");
        check(&number("llama.block_count", 1), "found blk.1.attn_k.weight");
        check(&number("llama.context_length", 0), "a context length from 1");
        check(&|f| f.unset("llama.embedding_length"), "the key llama.embedding_length, found none");
        check(&|f| f.unset("llama.attention.layer_norm_rms_epsilon"), "layer_norm_rms_epsilon, found none");
        check(&|f| f.unset("general.architecture"), "the key general.architecture");
        check(&|f| f.tensors[3].kind = 10, "unsupported type of tensor blk.0.attn_q.weight: found Q2_K");
        check(
            &|f| drop(f.tensors.remove(0)),
            "no tensor for embed.weight (named token_embd.weight in this file)",
        );
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
            (found.activation, found.head),
            (Activation::Gelu, EncoderHead::Embedding { pooling: Pooling::Mean, normalize: true })
        );
        assert_eq!((found.norm_epsilon, checkpoint.max_length), (1e-12, 64));
        let pooled = |kind| move |f: &mut Gguf| f.set("bert.pooling_type", Meta::U32(kind));
        let mut cls = tiny_bert(1);
        pooled(2)(&mut cls);
        let Ok(Architecture::Encoder(found)) = open(&cls).map(|c| c.architecture) else {
            panic!("no encoder")
        };
        assert_eq!(found.head, EncoderHead::Embedding { pooling: Pooling::Cls, normalize: true });
        refused(tiny_bert(1), pooled(4), "unsupported bert.pooling_type: found 4");
        refused(tiny_bert(1), |f| f.set("bert.attention.causal", Meta::Bool(true)), "bert.attention.causal");
        refused(tiny_bert(1), |f| f.set("bert.attention.head_count", Meta::U32(5)), "heads that divide");
    }
}
