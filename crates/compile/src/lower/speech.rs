//! Models that transcribe speech: an encoder for the spectrogram of one window, in both variants, and a decoder with a
//! cache, in the dynamic variant. `static_speech` has the decoder's static variant.
//!
//! The encoder also computes the keys and values of its rows for each of the decoder's layers, which the decoder reads
//! while it writes the transcript of the window. In the dynamic variant, a window may be shorter than the model's.

use narthex_graph::{
    Graph,
    typed::{Conv1d, GroupQueryAttention, KeyValue, Scope, Tensor, TensorType},
};
use narthex_spec::{
    DType, Variant,
    arch::{Mlp, NormKind, SpeechArch, SpeechLayers},
    dtype::Dim,
    manifest::{GraphEntry, HostTable, KvLayout, Part, Slot},
};

use super::{
    LoweredModel,
    dynamic::f32,
    io::{GraphIo, f16},
};
use crate::{
    emit::Emitter,
    error::Result,
    layer::{
        embed,
        head::head_with_table,
        linear::{Bias, StackedLinear, linear, stacked_linear},
        mlp::{self, activation},
        norm::{Norm, ResidualForm, ResidualStream, StreamNorms},
        unmasked_attention::{COLUMNS, HeadRows, ROWS},
    },
};

/// Name of the number of the encoder's rows in the dynamic variant.
const POSITIONS: &str = "positions";

/// File of the decoder's graph.
const DECODER_FILE: &str = "decoder.onnx";

/// Lowers the encoder and the decoder.
pub(super) fn dynamic(e: &mut Emitter<'_>, arch: &SpeechArch) -> Result<LoweredModel> {
    e.compute = DType::F32;
    let encoder = encoder(e, arch, Variant::Dynamic)?;
    e.begin_graph("decoder");
    let (decoder, tables) = decoder(e, arch)?;
    let decoder = (e.finish_graph()?, decoder);
    Ok(LoweredModel { graphs: vec![encoder, decoder], tables, towers: Vec::new() })
}

/// One side of the model.
pub(super) struct SpeechSide<'a> {
    pub(super) arch: &'a SpeechArch,
    layers: SpeechLayers,
    pub(super) scope: Scope,
    variant: Variant,
}

impl<'a> SpeechSide<'a> {
    fn encoder(arch: &'a SpeechArch, variant: Variant) -> Self {
        Self { arch, layers: arch.encoder, scope: Scope::root().child("encoder"), variant }
    }

    pub(super) fn decoder(arch: &'a SpeechArch, variant: Variant) -> Self {
        Self { arch, layers: arch.decoder, scope: Scope::root().child("decoder"), variant }
    }

    pub(super) fn layer(&self, index: usize) -> Scope {
        self.scope.child(format_args!("layers.{index}"))
    }

    /// Returns the norm of every part.
    pub(super) fn norm(&self) -> Norm {
        Norm { kind: NormKind::Layer, width: self.arch.hidden, epsilon: self.arch.norm_epsilon }
    }

    /// Returns a residual stream that starts with `x`.
    pub(super) fn stream(&self, x: Tensor) -> ResidualStream {
        let form = match self.variant {
            Variant::Dynamic => ResidualForm::Fused,
            Variant::Static => ResidualForm::Plain,
        };
        ResidualStream::new(x, StreamNorms::new(self.norm(), 1.0), form)
    }

    /// Adds the feed-forward part of a layer to the stream.
    pub(super) fn feed_forward(
        &self,
        e: &mut Emitter<'_>,
        stream: &mut ResidualStream,
        layer: &Scope,
    ) -> Result<()> {
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
    pub(super) fn output(&self, e: &mut Emitter<'_>, attn: &Scope, mixed: Tensor) -> Result<Tensor> {
        linear(e, &attn.child("o_proj"), mixed, self.arch.hidden, Bias::With)
    }
}

/// Lowers the encoder.
///
/// ```text
/// features ── conv1 ── act ── conv2 ── act ── Transpose ── Add(position rows) ── layers ── norm ─┬─ cross key × layers
///                                                                                                └─ cross value × layers
/// ```
pub(super) fn encoder(
    e: &mut Emitter<'_>,
    arch: &SpeechArch,
    variant: Variant,
) -> Result<(Graph, GraphEntry)> {
    let name = match variant {
        Variant::Dynamic => "encoder",
        Variant::Static => "encoder-fixed",
    };
    e.begin_graph(name);
    let mut io = GraphIo::default();
    let side = SpeechSide::encoder(arch, variant);
    let frames = match variant {
        Variant::Dynamic => Dim::symbol(&format!("{}*{POSITIONS}", SpeechArch::FRAMES_PER_ROW)),
        Variant::Static => arch.frames().into(),
    };
    let features = TensorType::new(e.compute, &[1.into(), arch.bins.into(), frames]);
    let features = io.input(e, Slot::Features, "features", features);
    let convolved = convolved(e, &side.scope, arch, features)?;
    let rows = position_rows(e, &mut io, &side)?;
    let x = e.graph.add(&side.scope.child("position"), convolved, rows)?;

    let mut stream = side.stream(x);
    for index in 0..arch.encoder.layers {
        let layer = side.layer(index);
        let attn = layer.child("attn");
        let normed = stream.normed(e, &layer.child("attn_norm"))?;
        let mixed = encoder_attention(e, &side, &attn, normed)?;
        let attended = side.output(e, &attn, mixed)?;
        stream.add(e, &attn, attended)?;
        side.feed_forward(e, &mut stream, &layer)?;
    }
    let rows = stream.normed(e, &side.scope.child("norm"))?;

    for layer in 0..arch.decoder.layers {
        let cross = SpeechSide::decoder(arch, variant).layer(layer).child("cross");
        let types = CrossTypes::of(arch, variant);
        let outputs = [
            ("key", "k_proj", Bias::Without, Slot::CrossKey { layer }),
            ("value", "v_proj", Bias::With, Slot::CrossValue { layer }),
        ];
        for (part, projection, bias, slot) in outputs {
            let projected = linear(e, &cross.child(projection), rows, arch.hidden, bias)?;
            let (order, kind) = if part == "key" { (types.order, &types.key) } else { (ROWS, &types.value) };
            let scope = cross.child(part).child("heads");
            let heads = match variant {
                Variant::Dynamic => {
                    let extents = [0, 0, arch.decoder.heads as i64, arch.head_size() as i64];
                    let heads = e.graph.reshape(&scope, projected, &extents)?;
                    e.graph.transpose(&scope, heads, &order)?
                }
                Variant::Static => decoder_heads(arch).divide(e, &scope, projected, order)?,
            };
            io.output(e, slot, &format!("cross.{layer}.{part}"), heads, kind)?;
        }
    }
    let entry = io.entry(&format!("{name}.onnx"), variant, Part::Encoder);
    Ok((e.finish_graph()?, entry))
}

/// Adds attention of every row of the encoder to every row: one operator in the dynamic variant, plain operators in the
/// static variant.
fn encoder_attention(
    e: &mut Emitter<'_>,
    side: &SpeechSide<'_>,
    attn: &Scope,
    normed: Tensor,
) -> Result<Tensor> {
    let &SpeechArch { hidden, source_positions: rows, encoder: SpeechLayers { heads, .. }, .. } = side.arch;
    let all = side.query_key_value(e, attn, normed)?;
    let [query, key, value] = e.graph.split_into(&attn.child("qkv_proj"), all, 2, [hidden; 3])?;
    match side.variant {
        Variant::Dynamic => Ok(e.graph.multi_head_attention(attn, query, KeyValue { key, value }, heads)?),
        Variant::Static => {
            let shape = HeadRows { rows, heads, size: hidden / heads };
            let key = shape.divide(e, &attn.child("k").child("heads"), key, COLUMNS)?;
            let value = shape.divide(e, &attn.child("v").child("heads"), value, ROWS)?;
            shape.attend(e, attn, query, KeyValue { key, value })
        }
    }
}

/// Returns the encoder's rows as heads of the decoder.
fn decoder_heads(arch: &SpeechArch) -> HeadRows {
    HeadRows { rows: arch.source_positions, heads: arch.decoder.heads, size: arch.head_size() }
}

/// Types of the keys and values of the encoder's rows. In the static variant, keys are columns.
pub(super) struct CrossTypes {
    pub(super) key: TensorType,
    pub(super) value: TensorType,
    /// Axes of the keys.
    order: [usize; 4],
}

impl CrossTypes {
    pub(super) fn of(arch: &SpeechArch, variant: Variant) -> Self {
        let HeadRows { rows, heads, size } = decoder_heads(arch);
        match variant {
            Variant::Dynamic => {
                let by_row = f32(&[1.into(), heads.into(), POSITIONS.into(), size.into()]);
                Self { key: by_row.clone(), value: by_row, order: ROWS }
            }
            Variant::Static => {
                Self { key: f16([1, heads, size, rows]), value: f16([1, heads, rows, size]), order: COLUMNS }
            }
        }
    }
}

/// Adds the convolutions over the spectrogram, `[1, positions, hidden]`.
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
    Ok(e.graph.transpose(&scope.child("rows"), x, &[0, 2, 1])?)
}

/// Adds the rows of the encoder's positions: the whole table, or in the dynamic variant those of an input.
fn position_rows(e: &mut Emitter<'_>, io: &mut GraphIo, side: &SpeechSide<'_>) -> Result<Tensor> {
    let scope = side.scope.child("position");
    let name = scope.parameter("weight");
    let shape = [side.arch.source_positions, side.arch.hidden];
    let table = e.tensor(&name, &shape, |e| e.values(&name, &shape))?;
    match side.variant {
        Variant::Static => Ok(table),
        Variant::Dynamic => {
            let kind = TensorType::new(DType::I64, &[1.into(), POSITIONS.into()]);
            let positions = io.input(e, Slot::Positions, POSITIONS, kind);
            Ok(e.graph.gather(&scope.child("rows"), table, positions, 0)?)
        }
    }
}

/// Lowers the decoder, and writes its tables.
///
/// ```text
/// embeds ── (norm ── self-attention ── + ── norm ── cross-attention ── + ── norm ── mlp ── +) × layers
///        ── Gather(logits_rows) ── norm ── head ── logits
/// ```
fn decoder(e: &mut Emitter<'_>, arch: &SpeechArch) -> Result<(GraphEntry, Vec<HostTable>)> {
    let mut io = GraphIo::default();
    let side = SpeechSide::decoder(arch, Variant::Dynamic);
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
    let cross_types = CrossTypes::of(arch, Variant::Dynamic);
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
            key: input(e, Slot::CrossKey { layer: index }, "cross.key", &cross_types.key),
            value: input(e, Slot::CrossValue { layer: index }, "cross.value", &cross_types.value),
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
            sinks: None,
        };
        let (mixed, present) = e.graph.group_query_attention(&attn, &attention)?;
        let name = format!("present.key.{index}");
        io.output(e, Slot::PresentKey { layer: index }, &name, present.key, &cache)?;
        let name = format!("present.value.{index}");
        io.output(e, Slot::PresentValue { layer: index }, &name, present.value, &cache)?;
        io.cache_entry(KvLayout::plain(heads, size));
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
    Ok((io.entry(DECODER_FILE, Variant::Dynamic, Part::Decoder), tables))
}
