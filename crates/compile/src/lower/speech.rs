//! Variant A of models that transcribe speech: an encoder for the spectrogram of one window, and a decoder with a cache.
//!
//! The encoder also computes the keys and values of its rows for each of the decoder's layers, which the decoder reads
//! while it writes the transcript of the window.

use narthex_graph::typed::{Conv1d, GroupQueryAttention, KeyValue, Scope, Tensor, TensorType};
use narthex_spec::{
    DType, Variant,
    arch::{Mlp, NormKind, SpeechArch, SpeechLayers},
    manifest::{GraphEntry, HostTable, KvLayout, Part, Slot},
};

use super::{LoweredModel, dynamic::f32, io::GraphIo};
use crate::{
    emit::Emitter,
    error::Result,
    layer::{
        embed,
        head::head_with_table,
        linear::{Bias, StackedLinear, linear, stacked_linear},
        mlp::{self, activation},
        norm::{Norm, ResidualForm, ResidualStream, StreamNorms},
    },
};

/// File of the encoder's graph.
const ENCODER_FILE: &str = "encoder.onnx";

/// File of the decoder's graph.
const DECODER_FILE: &str = "decoder.onnx";

/// Lowers the encoder and the decoder.
pub(super) fn dynamic(e: &mut Emitter<'_>, arch: &SpeechArch) -> Result<LoweredModel> {
    e.compute = DType::F32;
    e.begin_graph("encoder");
    let encoder = encoder(e, arch)?;
    let encoder = (e.finish_graph()?, encoder);
    e.begin_graph("decoder");
    let (decoder, tables) = decoder(e, arch)?;
    let decoder = (e.finish_graph()?, decoder);
    Ok(LoweredModel { graphs: vec![encoder, decoder], tables, vision: Vec::new() })
}

/// One side of the model.
struct SpeechSide<'a> {
    arch: &'a SpeechArch,
    layers: SpeechLayers,
    scope: Scope,
}

impl<'a> SpeechSide<'a> {
    fn encoder(arch: &'a SpeechArch) -> Self {
        Self { arch, layers: arch.encoder, scope: Scope::root().child("encoder") }
    }

    fn decoder(arch: &'a SpeechArch) -> Self {
        Self { arch, layers: arch.decoder, scope: Scope::root().child("decoder") }
    }

    fn layer(&self, index: usize) -> Scope {
        self.scope.child(format_args!("layers.{index}"))
    }

    /// Returns a residual stream that starts with `x`.
    fn stream(&self, x: Tensor) -> ResidualStream {
        let SpeechArch { hidden, norm_epsilon, .. } = *self.arch;
        let norm = Norm { kind: NormKind::Layer, width: hidden, epsilon: norm_epsilon };
        ResidualStream::new(x, StreamNorms::new(norm, 1.0), ResidualForm::Fused)
    }

    /// Adds the feed-forward part of a layer to the stream.
    fn feed_forward(&self, e: &mut Emitter<'_>, stream: &mut ResidualStream, layer: &Scope) -> Result<()> {
        let spec = Mlp {
            inner: self.layers.inner,
            activation: self.arch.activation,
            gated: false,
            bias: true,
            cutoff: None,
        };
        let scope = layer.child("mlp");
        let normed = stream.normed(e, &layer.child("mlp_norm"))?;
        let fed = mlp::mlp(e, &scope, normed, self.arch.hidden, &spec)?;
        stream.add(e, &scope, fed)
    }

    /// Adds the projections of queries, keys and values of `x` as one product, `[.., 3 · hidden]`.
    fn query_key_value(&self, e: &mut Emitter<'_>, attn: &Scope, x: Tensor) -> Result<Tensor> {
        let scope = attn.child("qkv_proj");
        let parts = ["q_proj", "k_proj", "v_proj"].map(|part| attn.child(part));
        let stacked =
            StackedLinear { scope: &scope, parts: &parts, cols: self.arch.hidden, bias: Bias::Except(1) };
        stacked_linear(e, x, &stacked)
    }

    /// Adds the output projection of attention.
    fn output(&self, e: &mut Emitter<'_>, attn: &Scope, mixed: Tensor) -> Result<Tensor> {
        linear(e, &attn.child("o_proj"), mixed, self.arch.hidden, Bias::With)
    }
}

/// Lowers the encoder.
///
/// ```text
/// features ── conv1 ── act ── conv2 ── act ── Transpose ── Add(positions) ── layers ── norm ─┬─ cross key × layers
///                                                                                            └─ cross value × layers
/// ```
fn encoder(e: &mut Emitter<'_>, arch: &SpeechArch) -> Result<GraphEntry> {
    let mut io = GraphIo::default();
    let side = SpeechSide::encoder(arch);
    let features = f32(&[1.into(), arch.bins.into(), arch.frames().into()]);
    let features = io.input(e, Slot::Features, "features", features);
    let x = convolved(e, &side.scope, arch, features)?;

    let mut stream = side.stream(x);
    for index in 0..arch.encoder.layers {
        let layer = side.layer(index);
        let attn = layer.child("attn");
        let normed = stream.normed(e, &layer.child("attn_norm"))?;
        let all = side.query_key_value(e, &attn, normed)?;
        let [query, key, value] = e.graph.split_into(&attn.child("qkv_proj"), all, 2, [arch.hidden; 3])?;
        let key_value = KeyValue { key, value };
        let mixed = e.graph.multi_head_attention(&attn, query, key_value, arch.encoder.heads)?;
        let attended = side.output(e, &attn, mixed)?;
        stream.add(e, &attn, attended)?;
        side.feed_forward(e, &mut stream, &layer)?;
    }
    let rows = stream.normed(e, &side.scope.child("norm"))?;

    for layer in 0..arch.decoder.layers {
        let cross = SpeechSide::decoder(arch).layer(layer).child("cross");
        let outputs = [
            ("key", "k_proj", Bias::Without, Slot::CrossKey { layer }),
            ("value", "v_proj", Bias::With, Slot::CrossValue { layer }),
        ];
        for (part, projection, bias, slot) in outputs {
            let projected = linear(e, &cross.child(projection), rows, arch.hidden, bias)?;
            let heads = heads(e, &cross.child(part).child("heads"), arch, projected)?;
            io.output(e, slot, &format!("cross.{layer}.{part}"), heads, &cross_type(arch))?;
        }
    }
    Ok(io.entry(ENCODER_FILE, Variant::Dynamic, Part::Encoder, Vec::new()))
}

/// Returns the type of the keys or values of the encoder's rows.
fn cross_type(arch: &SpeechArch) -> TensorType {
    f32(&[1.into(), arch.decoder.heads.into(), arch.source_positions.into(), arch.head_size().into()])
}

/// Divides the encoder's rows `[1, positions, hidden]` into heads, `[1, heads, positions, size]`.
fn heads(e: &mut Emitter<'_>, scope: &Scope, arch: &SpeechArch, rows: Tensor) -> Result<Tensor> {
    let shape = [1, arch.source_positions, arch.decoder.heads, arch.head_size()];
    let rows = e.graph.reshape(scope, rows, &shape.map(|extent| extent as i64))?;
    Ok(e.graph.transpose(scope, rows, &[0, 2, 1, 3])?)
}

/// Adds the convolutions over the spectrogram and the positions, `[1, positions, hidden]`.
fn convolved(e: &mut Emitter<'_>, scope: &Scope, arch: &SpeechArch, features: Tensor) -> Result<Tensor> {
    let mut x = features;
    for (conv, channels, stride) in
        [("conv1", arch.bins, 1), ("conv2", arch.hidden, SpeechArch::FRAMES_PER_ROW)]
    {
        let scope = scope.child(conv);
        let name = scope.parameter("weight");
        let shape = [arch.hidden, channels, SpeechArch::KERNEL];
        let weight = e.tensor(&name, &shape, |e| e.values(&name, &shape))?;
        let bias = e.vector(&scope.parameter("bias"), arch.hidden)?;
        x = e.graph.conv_1d(&scope, &Conv1d { x, weight, bias, stride })?;
        x = activation(e, &scope.child("act"), x, arch.activation)?;
    }
    let rows = e.graph.transpose(&scope.child("rows"), x, &[0, 2, 1])?;
    let scope = scope.child("position");
    let name = scope.parameter("weight");
    let shape = [arch.source_positions, arch.hidden];
    let positions = e.tensor(&name, &shape, |e| e.values(&name, &shape))?;
    Ok(e.graph.add(&scope, rows, positions)?)
}

/// Lowers the decoder, and writes its tables.
///
/// ```text
/// embeds ── (norm ── self-attention ── + ── norm ── cross-attention ── + ── norm ── mlp ── +) × layers
///        ── Gather(logits_rows) ── norm ── head ── logits
/// ```
fn decoder(e: &mut Emitter<'_>, arch: &SpeechArch) -> Result<(GraphEntry, Vec<HostTable>)> {
    let mut io = GraphIo::default();
    let side = SpeechSide::decoder(arch);
    let heads = arch.decoder.heads;
    let size = arch.head_size();
    let embeds = f32(&[1.into(), "tokens".into(), arch.hidden.into()]);
    let embeds = io.input(e, Slot::Embeds, "embeds", embeds);
    let seqlens_k = io.input(e, Slot::SeqlensK, "seqlens_k", TensorType::new(DType::I32, &[1.into()]));
    let total_length = io.input(e, Slot::TotalLength, "total_length", TensorType::new(DType::I32, &[]));
    let logits_rows = TensorType::new(DType::I64, &["rows".into()]);
    let logits_rows = io.input(e, Slot::LogitsRows, "logits_rows", logits_rows);

    let alignment = arch.alignment_layers();
    let cache = f32(&[1.into(), heads.into(), "capacity".into(), size.into()]);
    let mut stream = side.stream(embeds);
    for index in 0..arch.decoder.layers {
        let layer = side.layer(index);
        let attn = layer.child("attn");
        let mut input = |e: &mut Emitter<'_>, slot, name: &str, kind: &TensorType| {
            io.input(e, slot, &format!("{name}.{index}"), kind.clone())
        };
        let past = KeyValue {
            key: input(e, Slot::PastKey { layer: index }, "past.key", &cache),
            value: input(e, Slot::PastValue { layer: index }, "past.value", &cache),
        };
        let cross_key_value = KeyValue {
            key: input(e, Slot::CrossKey { layer: index }, "cross.key", &cross_type(arch)),
            value: input(e, Slot::CrossValue { layer: index }, "cross.value", &cross_type(arch)),
        };

        let normed = stream.normed(e, &layer.child("attn_norm"))?;
        let query = side.query_key_value(e, &attn, normed)?;
        let attention = GroupQueryAttention {
            query,
            key_value: None,
            past,
            seqlens_k,
            total_length,
            rotary: None,
            heads,
            kv_heads: heads,
            window: None,
            scale: None,
            softcap: None,
        };
        let (mixed, present) = e.graph.group_query_attention(&attn, &attention)?;
        io.output(
            e,
            Slot::PresentKey { layer: index },
            &format!("present.key.{index}"),
            present.key,
            &cache,
        )?;
        let name = format!("present.value.{index}");
        io.output(e, Slot::PresentValue { layer: index }, &name, present.value, &cache)?;
        let attended = side.output(e, &attn, mixed)?;
        stream.add(e, &attn, attended)?;

        let cross = layer.child("cross");
        let normed = stream.normed(e, &layer.child("cross_norm"))?;
        let query = linear(e, &cross.child("q_proj"), normed, arch.hidden, Bias::With)?;
        let mixed = e.graph.multi_head_attention(&cross, query, cross_key_value, heads)?;
        if alignment.contains(&index) {
            let kind = f32(&[1.into(), "tokens".into(), arch.hidden.into()]);
            io.output(e, Slot::CrossQuery { layer: index }, &format!("cross.query.{index}"), query, &kind)?;
        }
        let attended = side.output(e, &cross, mixed)?;
        stream.add(e, &cross, attended)?;
        side.feed_forward(e, &mut stream, &layer)?;
    }

    let outer = arch.outer_decoder();
    let mut asked = stream.map_rows(|part, x| {
        let scope = Scope::root().child("rows").child(part);
        let rows = e.graph.reshape(&scope, x, &[-1, arch.hidden as i64])?;
        Ok(e.graph.gather(&scope, rows, logits_rows, 0)?)
    })?;
    let normed = asked.normed(e, &side.scope.child("norm"))?;
    let head = head_with_table(e, normed, &outer)?;
    io.output(e, Slot::Logits, "logits", head.logits, &f32(&["rows".into(), arch.vocab.into()]))?;
    let tables = vec![head.table, embed::position_table(&outer).write(e, DType::F32)?];
    let kv = vec![KvLayout::plain(heads, size); arch.decoder.layers];
    Ok((io.entry(DECODER_FILE, Variant::Dynamic, Part::Decoder, kv), tables))
}
