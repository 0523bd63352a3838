//! The tensors that an architecture needs, and the check that a checkpoint has exactly those.
//!
//! The check runs once when a checkpoint is opened, so later stages need not handle missing weights or wrong shapes.

use std::collections::HashSet;

use narthex_spec::arch::{
    AltUp, Architecture, Attention, BottleneckAttention, ConformerTower, Connector, DecoderArch, EncoderArch,
    EncoderHead, KvSource, MobileBlock, MobileNetTower, NormKind, PatchTower, PerLayer, PlacedBlock, QkNorm,
    Residual, SpeechArch, VisionArch,
};

use crate::{error::Result, limits::unsupported, tensors::Tensors};

/// Fails unless every weight of `architecture` is present with the right shape and a supported encoding, and every
/// weight of a layer is used.
pub(super) fn check(tensors: &Tensors, architecture: &Architecture) -> Result<()> {
    let mut needed = required_shapes(architecture);
    if let Architecture::Encoder(encoder) = architecture
        && encoder.types > 0
    {
        needed.push(("embed.type.weight".to_owned(), type_shape(tensors, encoder)?));
    }

    let mut used = HashSet::new();
    for (name, shape) in &needed {
        tensors.check(name, shape)?;
        used.extend(tensors.find(name).into_iter().flatten());
    }

    if let Architecture::Decoder(decoder) = architecture {
        used.extend(idle_weights(decoder).filter_map(|name| tensors.find(&name)).flatten());
    }
    let mut left: Vec<_> = tensors
        .by_name
        .keys()
        .filter(|name| tensors.names.is_layer_weight(name) && !used.contains(*name))
        .collect();
    left.sort_unstable();

    match left.first() {
        Some(name) => {
            Err(unsupported("tensor", "only the weights that the architecture names in a layer", name))
        }
        None => Ok(()),
    }
}

/// Returns the total number of elements in the weights that an architecture needs.
pub fn parameters(architecture: &Architecture) -> u64 {
    let segments = match architecture {
        Architecture::Encoder(encoder) => encoder.types as u64 * encoder.hidden as u64,
        Architecture::Decoder(_) | Architecture::Embedder(_) | Architecture::Speech(_) => 0,
    };
    let required = required_shapes(architecture);
    let elements =
        required.iter().map(|(_, shape)| shape.iter().map(|&extent| extent as u64).product::<u64>());
    elements.sum::<u64>() + segments
}

/// Returns the name and shape of every weight except the segment embedding, whose stored shape varies.
pub(super) fn required_shapes(architecture: &Architecture) -> RequiredTensors {
    match architecture {
        Architecture::Decoder(decoder) => decoder_weights(decoder),
        Architecture::Encoder(encoder) => encoder_weights(encoder),
        Architecture::Embedder(embedder) => {
            let mut needed = decoder_weights(&embedder.decoder);
            for (index, shape) in embedder.dense_shapes().enumerate() {
                needed.push((format!("dense.{index}.weight"), shape.to_vec()));
            }
            needed
        }
        Architecture::Speech(speech) => speech_weights(speech),
    }
}

/// Returns the tensors that a file may have although they are not read: keys and values of layers that share those of
/// another layer.
fn idle_weights(decoder: &DecoderArch) -> impl Iterator<Item = String> {
    let layers = decoder
        .layers
        .iter()
        .enumerate()
        .filter_map(|(index, layer)| (layer.attention.kv != KvSource::Own).then_some(index));
    layers.flat_map(|layer| {
        ["k_proj", "v_proj", "k_norm"].map(|part| format!("layers.{layer}.attn.{part}.weight"))
    })
}

/// Returns the stored shape of the segment embedding. A single segment may be stored as a vector.
fn type_shape(tensors: &Tensors, encoder: &EncoderArch) -> Result<Vec<usize>> {
    let whole = vec![encoder.types, encoder.hidden];
    match tensors.shape("embed.type.weight")? {
        [hidden] if (encoder.types, *hidden) == (1, encoder.hidden) => Ok(vec![*hidden]),
        _ => Ok(whole),
    }
}

pub(super) type RequiredTensors = Vec<(String, Vec<usize>)>;

/// Pushes a weight `[out, in]`, and its bias if there is one.
fn linear(needed: &mut RequiredTensors, module: String, [out, input]: [usize; 2], bias: Bias) {
    if bias == Bias::Present {
        needed.push((format!("{module}.bias"), vec![out]));
    }
    needed.push((format!("{module}.weight"), vec![out, input]));
}

/// Presence of a bias in a linear layer.
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

fn decoder_weights(decoder: &DecoderArch) -> RequiredTensors {
    let hidden = decoder.hidden;
    let mut needed = vec![("embed.weight".to_owned(), vec![decoder.vocab, hidden])];
    stream_norm(&mut needed, "norm".to_owned(), decoder);
    if decoder.embed_norm {
        stream_norm(&mut needed, "embed.norm".to_owned(), decoder);
    }
    if !decoder.tied_head {
        needed.push(("head.weight".to_owned(), vec![decoder.vocab, hidden]));
    }
    if decoder.learned_positions() {
        needed.push(("position.weight".to_owned(), vec![decoder.context, hidden]));
    }

    for (i, layer) in decoder.layers.iter().enumerate() {
        let name = format!("layers.{i}");
        let norms: &[&str] = match layer.residual {
            Residual::Sequential => &["attn_norm", "mlp_norm"],
            Residual::Sandwich => &["attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm"],
            Residual::Parallel => &["attn_norm"],
            Residual::Unnormed => &["mlp_norm"],
        };
        norms.iter().for_each(|norm| stream_norm(&mut needed, format!("{name}.{norm}"), decoder));
        attention_weights(&mut needed, &format!("{name}.attn"), hidden, &layer.attention);
        let mlp = Bias::from(layer.mlp.bias);
        if layer.mlp.gated {
            linear(&mut needed, format!("{name}.mlp.gate_proj"), [layer.mlp.inner, hidden], mlp);
        }
        linear(&mut needed, format!("{name}.mlp.up_proj"), [layer.mlp.inner, hidden], mlp);
        linear(&mut needed, format!("{name}.mlp.down_proj"), [hidden, layer.mlp.inner], mlp);
    }

    streams(&mut needed, decoder);
    match decoder.vision.as_deref() {
        Some(VisionArch::Patches(tower)) => patch_tower(&mut needed, tower, hidden),
        Some(VisionArch::MobileNet(tower)) => mobilenet(&mut needed, tower, hidden),
        None => {}
    }
    if let Some(tower) = decoder.audio.as_deref() {
        conformer(&mut needed, tower, hidden);
    }
    needed
}

/// Pushes the weights of a transformer over patches whose rows have `width` elements.
fn patch_tower(needed: &mut RequiredTensors, vision: &PatchTower, width: usize) {
    let &PatchTower { patch, hidden, layers, inner, .. } = vision;
    needed.push(("vision.patch.weight".to_owned(), vec![hidden, VisionArch::CHANNELS, patch, patch]));
    needed.push(("vision.patch.bias".to_owned(), vec![hidden]));
    needed.push(("vision.position.weight".to_owned(), vec![vision.patches().pow(2), hidden]));
    for i in 0..layers {
        let name = |module: &str| format!("vision.layers.{i}.{module}");
        norm(needed, name("attn_norm"), hidden);
        for part in ["q", "k", "v", "o"] {
            linear(needed, name(&format!("attn.{part}_proj")), [hidden; 2], Bias::Present);
        }
        norm(needed, name("mlp_norm"), hidden);
        linear(needed, name("mlp.up_proj"), [inner, hidden], Bias::Present);
        linear(needed, name("mlp.down_proj"), [hidden, inner], Bias::Present);
    }
    norm(needed, "vision.norm".to_owned(), hidden);
    if let Connector::Pooled { .. } = vision.connector {
        needed.push(("connector.norm.weight".to_owned(), vec![hidden]));
    }
    linear(needed, "connector.linear".to_owned(), [width, vision.connector_width()], Bias::Absent);
}

/// Pushes the weights of a MobileNet whose rows have `width` elements.
fn mobilenet(needed: &mut RequiredTensors, tower: &MobileNetTower, width: usize) {
    let &MobileNetTower { stem, fusion, hidden, end, .. } = tower;
    let mut push = |name: String, shape: &[usize]| needed.push((format!("{name}.weight"), shape.to_vec()));
    push(
        "vision.stem".to_owned(),
        &[stem, VisionArch::CHANNELS, MobileNetTower::STEM_KERNEL, MobileNetTower::STEM_KERNEL],
    );
    push("vision.stem_norm".to_owned(), &[stem]);
    for placed in tower.blocks() {
        block_weights(&placed, &mut push);
    }

    let fused = tower.fused_channels().iter().sum();
    for (part, [out, input]) in [("expand", [fusion, fused]), ("project", [hidden, fusion])] {
        push(format!("vision.fusion.{part}"), &[out, input]);
        push(format!("vision.fusion.{part}_norm"), &[out]);
    }
    for norm in ["vision.norm", "connector.norm", "connector.embed_norm"] {
        push(norm.to_owned(), &[hidden]);
    }
    push("connector.linear".to_owned(), &[width, hidden]);
    push("connector.embed".to_owned(), &[end.tokens, hidden]);
    needed.push(("vision.stem.bias".to_owned(), vec![stem]));
}

/// Pushes the weights of a conformer whose rows have `width` elements.
fn conformer(needed: &mut RequiredTensors, tower: &ConformerTower, width: usize) {
    let &ConformerTower { hidden, heads, kernel, end, .. } = tower;
    let mut input = 1;
    for (index, convolution) in tower.convolutions.iter().enumerate() {
        let [frames, bins] = convolution.kernel;
        push_weight(
            needed,
            format!("audio.subsample.{index}.conv"),
            &[convolution.channels, input, frames, bins],
        );
        push_weight(needed, format!("audio.subsample.{index}.norm"), &[convolution.channels]);
        input = convolution.channels;
    }
    push_weight(needed, "audio.input".to_owned(), &[hidden, tower.input_width()]);

    let inner = ConformerTower::INNER * hidden;
    for i in 0..tower.layers {
        let layer = format!("audio.layers.{i}");
        for part in ["before", "after"] {
            push_weight(needed, format!("{layer}.{part}.norm"), &[hidden]);
            push_weight(needed, format!("{layer}.{part}.up_proj"), &[inner, hidden]);
            push_weight(needed, format!("{layer}.{part}.down_proj"), &[hidden, inner]);
            push_weight(needed, format!("{layer}.{part}.out_norm"), &[hidden]);
        }
        for part in ["q_proj", "k_proj", "v_proj", "o_proj", "positions"] {
            push_weight(needed, format!("{layer}.attn.{part}"), &[hidden; 2]);
        }
        push_weight(needed, format!("{layer}.attn.scale"), &[hidden / heads]);
        push_weight(needed, format!("{layer}.conv.expand"), &[2 * hidden, hidden]);
        push_weight(needed, format!("{layer}.conv.depthwise"), &[hidden, 1, kernel]);
        push_weight(needed, format!("{layer}.conv.project"), &[hidden; 2]);
        for norm in ["attn_norm", "attn_out_norm", "conv.norm", "conv.inner_norm", "norm"] {
            push_weight(needed, format!("{layer}.{norm}"), &[hidden]);
        }
    }

    for norm in ["norm", "embed_norm"] {
        push_weight(needed, format!("audio_connector.{norm}"), &[hidden]);
    }
    push_weight(needed, "audio_connector.linear".to_owned(), &[width, hidden]);
    push_weight(needed, "audio_connector.embed".to_owned(), &[end.tokens, hidden]);
}

/// Pushes the weight of a module.
fn push_weight(needed: &mut RequiredTensors, module: String, shape: &[usize]) {
    needed.push((format!("{module}.weight"), shape.to_vec()));
}

/// Passes the weights of a block to `push`.
fn block_weights(placed: &PlacedBlock<'_>, push: &mut dyn FnMut(String, &[usize])) {
    let input = placed.input;
    let name = |part: &str| format!("{}.{part}", placed.name());
    match *placed.block {
        MobileBlock::Edge { kernel, inner, channels } => {
            push(name("convolution"), &[inner, input, kernel, kernel]);
            push(name("convolution_norm"), &[inner]);
            push(name("linear"), &[channels, inner]);
            push(name("linear_norm"), &[channels]);
        }

        MobileBlock::Inverted { start, middle, inner, channels } => {
            for (part, kernel, width) in [("start", start, input), ("middle", middle, inner)] {
                if let Some(kernel) = kernel {
                    push(name(part), &[width, 1, kernel, kernel]);
                    push(name(&format!("{part}_norm")), &[width]);
                }
            }
            for (part, [out, input]) in [("expand", [inner, input]), ("project", [channels, inner])] {
                push(name(part), &[out, input]);
                push(name(&format!("{part}_norm")), &[out]);
            }
            push(name("scale"), &[channels]);
        }

        MobileBlock::Attention { heads, size, reduction } => {
            push(name("attn_norm"), &[input]);
            push(name("attn.q_proj"), &[heads * size, input]);
            push(name("attn.o_proj"), &[input, heads * size]);
            for part in ["k", "v"] {
                push(name(&format!("attn.{part}_proj")), &[size, input]);
                if let Some(kernel) = reduction {
                    push(name(&format!("attn.{part}_reduce")), &[input, 1, kernel, kernel]);
                    push(name(&format!("attn.{part}_norm")), &[input]);
                }
            }
            push(name("scale"), &[input]);
        }
    }
}

/// Pushes the weights of several residual streams and of per-layer embeddings.
fn streams(needed: &mut RequiredTensors, decoder: &DecoderArch) {
    let layers = decoder.layers.len();
    let hidden = decoder.hidden;
    let mut push = |name: String, shape: &[usize]| needed.push((format!("{name}.weight"), shape.to_vec()));
    if let Some(AltUp { streams, rank, scaled, .. }) = decoder.altup {
        for other in 0..streams - 1 {
            push(format!("altup.proj.{other}"), &[hidden, hidden]);
            push(format!("altup.unembed.{other}"), &[hidden, hidden]);
        }
        for i in 0..layers {
            push(format!("layers.{i}.altup.router"), &[streams, hidden]);
            push(format!("layers.{i}.altup.router_norm"), &[hidden]);
            push(format!("layers.{i}.altup.predict"), &[streams * streams, streams]);
            push(format!("layers.{i}.altup.correct"), &[streams, streams]);
            if scaled {
                push(format!("layers.{i}.altup.scale"), &[hidden]);
            }
            push(format!("layers.{i}.laurel.left"), &[rank, hidden]);
            push(format!("layers.{i}.laurel.right"), &[hidden, rank]);
            push(format!("layers.{i}.laurel.norm"), &[hidden]);
        }
    }

    if let Some(PerLayer { vocab, width }) = decoder.per_layer {
        push("per_layer.embed".to_owned(), &[vocab, layers * width]);
        push("per_layer.proj".to_owned(), &[layers * width, hidden]);
        push("per_layer.norm".to_owned(), &[width]);
        for i in 0..layers {
            push(format!("layers.{i}.per_layer.gate"), &[width, hidden]);
            push(format!("layers.{i}.per_layer.proj"), &[hidden, width]);
            push(format!("layers.{i}.per_layer.norm"), &[hidden]);
        }
    }
}

/// Pushes a norm over the residual stream.
fn stream_norm(needed: &mut RequiredTensors, module: String, decoder: &DecoderArch) {
    if decoder.norm == NormKind::Layer {
        needed.push((format!("{module}.bias"), vec![decoder.hidden]));
    }
    needed.push((format!("{module}.weight"), vec![decoder.hidden]));
}

fn attention_weights(needed: &mut RequiredTensors, module: &str, hidden: usize, attention: &Attention) {
    let heads = attention.heads;
    let kv_heads = attention.kv_heads;
    let size = attention.head_size;
    let qkv = Bias::from(attention.qkv_bias);
    linear(needed, format!("{module}.q_proj"), [heads * size, hidden], qkv);
    linear(needed, format!("{module}.o_proj"), [hidden, heads * size], attention.output_bias.into());
    let own = attention.kv == KvSource::Own;
    if own {
        linear(needed, format!("{module}.k_proj"), [kv_heads * size, hidden], qkv);
        linear(needed, format!("{module}.v_proj"), [kv_heads * size, hidden], qkv);
    }
    let [q, k] = match attention.qk_norm {
        QkNorm::None => return,
        QkNorm::Rms => [vec![size], vec![size]],
        QkNorm::LayerPerHead => [vec![heads, size], vec![kv_heads, size]],
    };
    needed.push((format!("{module}.q_norm.weight"), q));
    if own {
        needed.push((format!("{module}.k_norm.weight"), k));
    }
}

fn encoder_weights(encoder: &EncoderArch) -> RequiredTensors {
    let hidden = encoder.hidden;
    let mut needed = vec![("embed.word.weight".to_owned(), vec![encoder.vocab, encoder.token_width()])];
    if encoder.rope.is_none() {
        let shape = vec![encoder.first_position + encoder.positions, hidden];
        needed.push(("embed.position.weight".to_owned(), shape));
    }
    norm(&mut needed, "embed.norm".to_owned(), hidden);
    if let Some(factored) = &encoder.factored {
        linear(&mut needed, "embed.project".to_owned(), [hidden, factored.input()], Bias::Present);
    }
    for i in 0..encoder.layers {
        layer_weights(&mut needed, &format!("layers.{i}"), encoder);
    }
    head_weights(&mut needed, encoder);
    needed
}

/// Pushes the weight and bias of a norm.
fn norm(needed: &mut RequiredTensors, module: String, width: usize) {
    needed.extend(["weight", "bias"].map(|leaf| (format!("{module}.{leaf}"), vec![width])));
}

fn layer_weights(needed: &mut RequiredTensors, layer: &str, encoder: &EncoderArch) {
    let hidden = encoder.hidden;
    let inside = encoder.inside();
    let inner = encoder.inner;
    let read = encoder.attention_reads();

    let mut parts = vec![(format!("{layer}.mlp"), format!("{layer}.mlp_norm"))];
    if let Some(bottleneck) = &encoder.bottleneck {
        let mut bottlenecks = vec![("input", [inside, hidden]), ("output", [hidden, inside])];
        if bottleneck.attention == BottleneckAttention::Shared {
            bottlenecks.push(("attn", [inside, hidden]));
        }
        for (part, shape) in bottlenecks {
            linear(needed, format!("{layer}.bottleneck.{part}"), shape, Bias::Present);
            norm(needed, format!("{layer}.bottleneck.{part}_norm"), shape[0]);
        }
        parts.extend(
            (0..encoder.early_feed_forwards())
                .map(|j| (format!("{layer}.ffn.{j}"), format!("{layer}.ffn.{j}.norm"))),
        );
    }

    let bias = Bias::from(encoder.biases);
    for (part, width) in [("q", read[0]), ("k", read[0]), ("v", read[1]), ("o", inside)] {
        linear(needed, format!("{layer}.attn.{part}_proj"), [inside, width], bias);
    }
    norm(needed, format!("{layer}.attn_norm"), inside);

    for (part, behind) in parts {
        if encoder.gated {
            linear(needed, format!("{part}.gate_proj"), [inner, inside], bias);
        }
        linear(needed, format!("{part}.up_proj"), [inner, inside], bias);
        linear(needed, format!("{part}.down_proj"), [inside, inner], bias);
        norm(needed, behind, inside);
    }
}

fn head_weights(needed: &mut RequiredTensors, encoder: &EncoderArch) {
    let hidden = encoder.hidden;
    match encoder.head {
        EncoderHead::Embedding { .. } => {}
        EncoderHead::Score { labels, dense } => {
            if dense.is_some() {
                linear(needed, "score.dense".to_owned(), [hidden; 2], Bias::Present);
            }
            linear(needed, "score.out".to_owned(), [labels, hidden], Bias::Present);
        }
        EncoderHead::Spans {} => linear(needed, "spans".to_owned(), [2, hidden], Bias::Present),
        EncoderHead::MaskedLm { .. } => {
            linear(needed, "mlm.dense".to_owned(), [hidden; 2], Bias::Present);
            norm(needed, "mlm.norm".to_owned(), hidden);
            needed.push(("mlm.bias".to_owned(), vec![encoder.vocab]));
            let rest = hidden - encoder.token_width();
            if rest > 0 {
                needed.push(("mlm.rest.weight".to_owned(), vec![rest, encoder.vocab]));
            }
        }
    }
}

fn speech_weights(speech: &SpeechArch) -> RequiredTensors {
    let hidden = speech.hidden;
    let mut needed = vec![
        ("embed.weight".to_owned(), vec![speech.vocab, hidden]),
        ("position.weight".to_owned(), vec![speech.target_positions, hidden]),
        ("encoder.position.weight".to_owned(), vec![speech.source_positions, hidden]),
    ];
    for (conv, input) in [("encoder.conv1", speech.bins), ("encoder.conv2", hidden)] {
        needed.push((format!("{conv}.weight"), vec![hidden, input, SpeechArch::KERNEL]));
        needed.push((format!("{conv}.bias"), vec![hidden]));
    }

    for (side, layers) in [("encoder", speech.encoder), ("decoder", speech.decoder)] {
        norm(&mut needed, format!("{side}.norm"), hidden);
        let attentions: &[&str] = if side == "encoder" { &["attn"] } else { &["attn", "cross"] };
        for i in 0..layers.layers {
            let name = |module: &str| format!("{side}.layers.{i}.{module}");
            for attention in attentions {
                norm(&mut needed, name(&format!("{attention}_norm")), hidden);
                for part in ["q", "k", "v", "o"] {
                    let bias = Bias::from(part != "k");
                    linear(&mut needed, name(&format!("{attention}.{part}_proj")), [hidden; 2], bias);
                }
            }
            norm(&mut needed, name("mlp_norm"), hidden);
            linear(&mut needed, name("mlp.up_proj"), [layers.inner, hidden], Bias::Present);
            linear(&mut needed, name("mlp.down_proj"), [hidden, layers.inner], Bias::Present);
        }
    }
    needed
}
