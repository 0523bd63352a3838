//! The static variant of models that transcribe speech: the encoder of a window, the decoder's layers for each number of new
//! tokens, and the head. The decoder reads the keys and values of the window's rows, which the encoder writes once.

use narthex_graph::typed::{KeyValue, Tensor};
use narthex_spec::{
    Variant,
    arch::{Attention, Rotation, SpeechArch},
    manifest::{GraphEntry, LayerRange, Part, Slot},
    recipe::{FixedShapes, StepShape},
};

use super::{
    LoweredModel,
    io::{GraphIo, f16, static_layout},
    parts,
    speech::{CrossTypes, SpeechSide, encoder},
};
use crate::{
    emit::Emitter,
    error::{CompileError, Result},
    layer::{
        attention::AttentionLayer,
        head::head as lm_head,
        linear::{Bias, linear},
        norm::ResidualStream,
        scaled_dot_product_attention::{StaticCache, StaticStep, scaled_dot_product_attention},
        unmasked_attention::HeadRows,
    },
};

/// Lowers the graphs for the given shapes of the decoder's steps.
///
/// # Errors
/// [`CompileError::Unsupported`] for an encoder whose weights are too large for one graph of an NPU.
pub(super) fn graphs(e: &mut Emitter<'_>, arch: &SpeechArch, shapes: &FixedShapes) -> Result<LoweredModel> {
    let bytes = parts::speech_encoder_bytes(arch, e.plan, e.recipe);
    if bytes > e.recipe.part_bytes {
        return Err(CompileError::Unsupported {
            what: format!("an encoder of {bytes} bytes in {}", e.recipe.scheme),
            reason: format!(
                "graphs of NPUs have at most {} bytes of weights, and an encoder of speech is one graph; compile it in w8",
                e.recipe.part_bytes
            ),
        });
    }

    let mut graphs = vec![encoder(e, arch, Variant::Static)?];
    for shape in shapes.steps() {
        for range in parts::speech_parts(arch, e.plan, e.recipe) {
            let side = SpeechSide::decoder(arch, Variant::Static);
            let entry = SpeechLayersGraph { side, shape, range }.lower(e)?;
            graphs.push((e.finish_graph()?, entry));
        }
    }
    let entry = head(e, arch)?;
    graphs.push((e.finish_graph()?, entry));
    // The dynamic variant wrote the tables.
    Ok(LoweredModel { graphs, tables: Vec::new(), towers: Vec::new() })
}

/// Graph of a range of the decoder's layers for a fixed number of new tokens and a fixed past.
struct SpeechLayersGraph<'a> {
    side: SpeechSide<'a>,
    shape: StepShape,
    /// Range of layers; `None` for all layers.
    range: Option<LayerRange>,
}

impl SpeechLayersGraph<'_> {
    /// ```text
    /// first part:  embeds ── (norm ── self-attention ── + ── norm ── cross-attention ── + ── norm ── mlp ── +) × layers
    /// others:      states ── layers ── hidden
    /// ```
    fn lower(&self, e: &mut Emitter<'_>) -> Result<GraphEntry> {
        let StepShape { tokens, past } = self.shape;
        let arch = self.side.arch;
        let LayerRange { first, end } =
            self.range.unwrap_or(LayerRange { first: 0, end: arch.decoder.layers });
        let part = self.range.map_or(String::new(), |_| format!(".{first}-{}", end - 1));
        e.begin_graph(&format!("layers-{tokens}{part}"));
        let mut io = GraphIo::default();
        let kind = f16([1, tokens, arch.hidden]);
        let (slot, name) = if first == 0 { (Slot::Embeds, "embeds") } else { (Slot::Hidden, "states") };
        let x = io.input(e, slot, name, kind.clone());
        let mask = io.input(e, Slot::Mask { window: None }, "mask", f16([1, 1, tokens, past + tokens]));

        let mut stream = self.side.stream(x);
        for index in first..end {
            self.self_attention(e, &mut io, &mut stream, index, mask)?;
            self.cross_attention(e, &mut io, &mut stream, index)?;
            self.side.feed_forward(e, &mut stream, &self.side.layer(index))?;
        }

        io.output(e, Slot::Hidden, "hidden", stream.sum(), &kind)?;
        let file = format!("layers-{tokens}x{past}{part}.onnx");
        for _ in first..end {
            io.cache_entry(static_layout(arch.decoder.heads, arch.head_size()));
        }
        Ok(io.entry(&file, Variant::Static, Part::Layers { tokens, past, range: self.range }))
    }

    /// Adds attention to the tokens before, and declares their keys and values.
    fn self_attention(
        &self,
        e: &mut Emitter<'_>,
        io: &mut GraphIo,
        stream: &mut ResidualStream,
        index: usize,
        mask: Tensor,
    ) -> Result<()> {
        let StepShape { tokens, past } = self.shape;
        let heads = self.side.arch.decoder.heads;
        let size = self.side.arch.head_size();
        let spec =
            Attention { output_bias: true, rotation: Rotation::None, ..Attention::plain(heads, heads, size) };
        let layer = self.side.layer(index);
        let scope = layer.child("attn");
        let normed = stream.normed(e, &layer.child("attn_norm"))?;

        let key = f16([1, heads, size, past]);
        let key = io.input(e, Slot::PastKey { layer: index }, &format!("past.{index}.key"), key);
        let value = f16([1, heads, past, size]);
        let value = io.input(e, Slot::PastValue { layer: index }, &format!("past.{index}.value"), value);
        let attention =
            AttentionLayer { scope: &scope, spec: &spec, norm: self.side.norm(), qkv_bias: Bias::Except(1) };
        let step = StaticStep { tokens, past, rotary: None, mask };
        let cache = StaticCache::Own(KeyValue { key, value });
        let found = scaled_dot_product_attention(e, &attention, normed, &step, &cache)?;

        if let Some(KeyValue { key, value }) = found.new {
            let keys = f16([1, heads, size, tokens]);
            io.output(e, Slot::NewKey { layer: index }, &format!("new.{index}.key"), key, &keys)?;
            let values = f16([1, heads, tokens, size]);
            io.output(e, Slot::NewValue { layer: index }, &format!("new.{index}.value"), value, &values)?;
        }
        stream.add(e, &scope, found.output)
    }

    /// Adds attention to the rows of the window, and declares their keys and values. The queries of layers with alignment
    /// heads are outputs.
    fn cross_attention(
        &self,
        e: &mut Emitter<'_>,
        io: &mut GraphIo,
        stream: &mut ResidualStream,
        index: usize,
    ) -> Result<()> {
        let arch = self.side.arch;
        let tokens = self.shape.tokens;
        let layer = self.side.layer(index);
        let cross = layer.child("cross");
        let CrossTypes { key, value, .. } = CrossTypes::of(arch, Variant::Static);
        let key = io.input(e, Slot::CrossKey { layer: index }, &format!("cross.key.{index}"), key);
        let value = io.input(e, Slot::CrossValue { layer: index }, &format!("cross.value.{index}"), value);

        let normed = stream.normed(e, &layer.child("cross_norm"))?;
        let query = linear(e, &cross.child("q_proj"), normed, arch.hidden, Bias::With)?;
        if arch.alignment_layers().contains(&index) {
            let kind = f16([1, tokens, arch.hidden]);
            io.output(e, Slot::CrossQuery { layer: index }, &format!("cross.query.{index}"), query, &kind)?;
        }
        let shape = HeadRows { rows: tokens, heads: arch.decoder.heads, size: arch.head_size() };
        let mixed = shape.attend(e, &cross, query, KeyValue { key, value })?;
        let attended = self.side.output(e, &cross, mixed)?;
        stream.add(e, &cross, attended)
    }
}

/// Lowers the last norm and the head, for one row.
fn head(e: &mut Emitter<'_>, arch: &SpeechArch) -> Result<GraphEntry> {
    let (mut io, hidden) = GraphIo::head(e, arch.hidden);
    let side = SpeechSide::decoder(arch, Variant::Static);
    let normed = side.norm().apply(e, &side.scope.child("norm"), hidden)?;
    let logits = lm_head(e, normed, &arch.outer_decoder())?;
    io.output(e, Slot::Logits, "logits", logits, &f16([1, 1, arch.vocab]))?;
    Ok(io.entry("head.onnx", Variant::Static, Part::Head { rows: 1 }))
}
