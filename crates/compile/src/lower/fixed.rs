//! Variant B: fixed shapes and plain operators in half precision, for NPUs.
//!
//! One decoder becomes, for each context, a graph for one new token and a graph for each prefill length, and a graph for the
//! head. Embedding, rotary angles and masks come from the host; of keys and values only the new ones leave a graph. All of
//! them read the weights that variant A wrote. Encoders are in `fixed_encoder`.

use std::{collections::BTreeMap, ops::Range};

use narthex_graph::Builder;
use narthex_spec::{
    DType, Scheme, Variant,
    arch::{Architecture, DecoderArch, DecoderLayer, NormKind, PerLayer, Residual, Rotation},
    dtype::Dim,
    manifest::{GraphEntry, KeyOrder, KeyRotation, KvLayout, LayerRange, Part, Slot},
    recipe::FixedShapes,
};

use super::{Lowered, fixed_encoder, io::Io, parts};
use crate::{
    emit::Emitter,
    error::CompileError,
    layer::{
        altup::Streams,
        embed, mlp,
        norm::{Carried, Norm},
        plain,
        rope::{self, Angles},
    },
    lower::dynamic::OPSETS,
};

pub(super) const F16: DType = DType::F16;

/// A graph for the given shapes, after variant A has been lowered with the same emitter.
pub(crate) fn lower(
    e: &mut Emitter<'_>,
    architecture: &Architecture,
    shapes: &FixedShapes,
) -> Result<Lowered, CompileError> {
    if e.recipe.scheme == Scheme::F32 {
        return Err(CompileError::Unsupported {
            what: "scheme f32".to_owned(),
            reason: "NPUs compute in half precision; compile with --scheme w8, w4 or f16".to_owned(),
        });
    }
    e.compute = F16;
    match architecture {
        Architecture::Decoder(arch) => decoder(e, arch, shapes),
        Architecture::Encoder(arch) => fixed_encoder::graphs(e, arch, shapes),
    }
}

fn decoder(e: &mut Emitter<'_>, arch: &DecoderArch, shapes: &FixedShapes) -> Result<Lowered, CompileError> {
    let mut graphs = Vec::new();
    let parts = parts::parts(arch, e.plan, e.recipe);
    for past in shapes.contexts() {
        let prefill = shapes.prefill.iter().filter(|&&tokens| tokens <= past);
        for (&tokens, &range) in std::iter::once(&1)
            .chain(prefill)
            .flat_map(|tokens| parts.iter().map(move |range| (tokens, range)))
        {
            let entry = layers(e, arch, (tokens, past), range)?;
            graphs.push((e.next_graph(Builder::default())?, entry));
        }
    }
    let entry = head(e, arch)?;
    graphs.push((e.next_graph(Builder::default())?, entry));
    // Variant A wrote the angles of every position; where it takes them from the host too, it said so.
    let tables = if arch.switch().is_none() { rope::host_tables(e, arch) } else { Vec::new() };
    Ok(Lowered { graphs, tables })
}

/// Slots of cosines and sines.
const ANGLES: [(Rotation, [Slot; 2], &str); 2] = [
    (Rotation::Global, [Slot::Cos, Slot::Sin], ""),
    (Rotation::Local, [Slot::LocalCos, Slot::LocalSin], "local."),
];

/// Declares the angles of the new tokens that some layers turn by.
fn angles(
    e: &mut Emitter<'_>,
    io: &mut Io,
    arch: &DecoderArch,
    (tokens, layers): (usize, &[DecoderLayer]),
) -> Angles {
    let mut angles = Angles::default();
    for (rotation, slots, prefix) in ANGLES {
        let turned = layers.iter().any(|layer| layer.attention.rotation == rotation);
        let Some(pairs) = rope::pairs(arch, rotation).filter(|_| turned) else { continue };
        let shape: [Dim; 4] = [1.into(), 1.into(), tokens.into(), pairs.into()];
        let cos = io.input(e, slots[0], &format!("{prefix}cos"), F16, &shape);
        let sin = io.input(e, slots[1], &format!("{prefix}sin"), F16, &shape);
        angles.insert(rotation, [cos, sin]);
    }
    angles
}

/// A stream of 64 times what half precision holds: 4 million.
const SHRINK: f32 = 1.0 / 64.0;

/// How variant B carries the residual stream.
///
/// Where every part is normed before it joins the stream, as in Gemma, nothing keeps the stream small: Gemma 3's goes
/// past what half precision holds within a few layers. There it is carried smaller.
fn carried(arch: &DecoderArch) -> Carried {
    let sandwiched = arch.layers.iter().all(|layer| layer.residual == Residual::Sandwich);
    let shrink = if sandwiched && arch.norm == NormKind::Rms { SHRINK } else { 1.0 };
    Carried::of(Norm::of(arch), shrink)
}

/// The layers of a range for `tokens` new tokens.
///
/// ```text
/// first part:  embeds ── Mul(scale) ── layers ── hidden
/// others:      states ── layers ── hidden
/// ```
fn layers(
    e: &mut Emitter<'_>,
    arch: &DecoderArch,
    (tokens, past): (usize, usize),
    range: Option<LayerRange>,
) -> Result<GraphEntry, CompileError> {
    let LayerRange { first, end } = range.unwrap_or(LayerRange { first: 0, end: arch.layers.len() });
    let part = range.map_or(String::new(), |_| format!(".{first}-{}", end - 1));
    e.graph = Builder::new(&format!("layers-{tokens}{part}"), &OPSETS);
    let mut io = Io::default();
    let all = arch.altup.as_ref().map_or(1, |altup| altup.streams) * arch.hidden;
    let width = |elements: usize| [1, tokens, elements].map(Dim::from);
    let carried = carried(arch);
    let x = if first == 0 {
        let embeds = io.input(e, Slot::Embeds, "embeds", F16, &width(arch.hidden));
        embed::scaled(e, embeds, arch.embed_scale.unwrap_or(1.0) * carried.shrink)
    } else {
        io.input(e, Slot::Hidden, "states", F16, &width(all))
    };
    let angles = angles(e, &mut io, arch, (tokens, &arch.layers[first..end]));
    let mut kept = Kept::default();
    Body { arch, carried, range: first..end, tokens, past, angles }.layers(e, &mut io, x, &mut kept)?;
    let given = if end == arch.layers.len() { arch.hidden } else { all };
    io.output(e, Slot::Hidden, "hidden", F16, &width(given));
    let file = format!("layers-{tokens}x{past}{part}.onnx");
    Ok(io.entry(&file, Variant::Static, Part::Layers { tokens, past, range }, kept.layouts))
}

/// What the layers of a part read besides their rows.
struct Body<'a> {
    arch: &'a DecoderArch,
    carried: Carried,
    /// The part's layers.
    range: Range<usize>,
    tokens: usize,
    past: usize,
    angles: Angles,
}

/// The masks and the KV cache under construction.
#[derive(Default)]
struct Kept {
    masks: Vec<(Option<usize>, String)>,
    layouts: Vec<KvLayout>,
    /// For entries of the cache, keys and values of the past and of the new tokens.
    entries: BTreeMap<usize, [String; 2]>,
}

impl Body<'_> {
    /// The layers over embedded tokens, or over what the layers before gave; the last one's output is called `hidden`.
    fn layers(
        &self,
        e: &mut Emitter<'_>,
        io: &mut Io,
        mut x: String,
        kept: &mut Kept,
    ) -> Result<(), CompileError> {
        let (first, end) = (self.range.start, self.range.end);
        let layers = self.arch.layers.iter().enumerate().take(end).skip(first);
        let Some(altup) = &self.arch.altup else {
            for (index, layer) in layers {
                let last = (index + 1 == end).then_some("hidden");
                let attend = |e: &mut Emitter<'_>, x: &str| self.attend(e, io, x, (index, layer), kept);
                x = decoder_layer(e, (&x, last), (self.carried, index, layer), attend)?;
            }
            return Ok(());
        };
        let model = (self.arch, altup);
        let mut streams = match first {
            0 => Streams::begin(e, model, self.carried, &x)?,
            _ => Streams::resume(e, model, self.carried, (&x, first)),
        };
        if let Some(per_layer) = &self.arch.per_layer {
            let rows = self.rows(e, io, &streams, (per_layer, &x))?;
            streams.take_rows(e, per_layer, (&rows, self.range.clone()));
        }
        for (index, layer) in layers {
            let attend = |e: &mut Emitter<'_>, x: &str| self.attend(e, io, x, (index, layer), kept);
            streams.layer(e, (index, layer), attend)?;
        }
        let given = if end == self.arch.layers.len() { streams.merged(e)? } else { streams.flat(e) };
        e.graph.rename(&given, "hidden");
        Ok(())
    }

    /// The rows of every layer: made by the first part, which gives them to the others.
    fn rows(
        &self,
        e: &mut Emitter<'_>,
        io: &mut Io,
        streams: &Streams<'_>,
        (per_layer, x): (&PerLayer, &str),
    ) -> Result<String, CompileError> {
        let layers = self.arch.layers.len();
        let shape = [1, self.tokens, layers * per_layer.width].map(Dim::from);
        if self.range.start > 0 {
            return Ok(io.input(e, Slot::PerLayerRows, "per_layer.rows", F16, &shape));
        }
        let table = io.input(e, Slot::PerLayerEmbeds, "per_layer", F16, &shape);
        let rows = streams.rows(e, per_layer, (x, &table))?;
        if self.range.end == layers {
            return Ok(rows);
        }
        e.graph.rename(&rows, "per_layer.rows");
        io.output(e, Slot::PerLayerRows, "per_layer.rows", F16, &shape);
        Ok("per_layer.rows".to_owned())
    }

    /// A layer's attention over its own entry of the cache, or over the one that it shares.
    fn attend(
        &self,
        e: &mut Emitter<'_>,
        io: &mut Io,
        x: &str,
        (index, layer): (usize, &DecoderLayer),
        kept: &mut Kept,
    ) -> Result<String, CompileError> {
        let (tokens, past, attention) = (self.tokens, self.past, &layer.attention);
        let mask = mask(e, io, &mut kept.masks, (attention.window, tokens, past));
        let step = plain::Step { tokens, past, angles: self.angles.of(attention.rotation), mask: &mask };
        let at = (format!("/layers.{index}/attn"), format!("layers.{index}.attn"));
        let what = (self.carried.branch, attention);
        let entry = self.arch.kv_index(index);
        if let Some(kv) = kept.entries.get(&entry) {
            let kv = plain::Kv::Shared(kv);
            return Ok(plain::cached(e, x, (&at.0, &at.1), what, (&step, &kv))?.output);
        }
        let names = past_names(e, io, entry, (attention.kv_heads, attention.head_size, past));
        let [key, value, new_key, new_value] = names.each_ref().map(String::as_str);
        let kv = plain::Kv::Own(plain::Past { key, value, new_key, new_value });
        let attended = plain::cached(e, x, (&at.0, &at.1), what, (&step, &kv))?;
        let shapes = [(Slot::NewKey { layer: entry }, new_key), (Slot::NewValue { layer: entry }, new_value)];
        for ((slot, name), order) in shapes.into_iter().zip([[1, 0], [0, 1]]) {
            let extents = [tokens, attention.head_size];
            let shape = [1, attention.kv_heads, extents[order[0]], extents[order[1]]];
            io.output(e, slot, name, F16, &shape.map(Dim::from));
        }
        kept.entries.insert(entry, attended.kv);
        kept.layouts.push(KvLayout {
            heads: attention.kv_heads,
            head_size: attention.head_size,
            window: attention.window,
            dtype: F16,
            keys: KeyRotation::After,
            order: KeyOrder::Transposed,
        });
        Ok(attended.output)
    }
}

/// One layer; its output is called `last` where it is the last.
///
/// ```text
/// sequential:  x ── norm ── attention ── Add ── norm ── mlp ── Add
/// sandwich:    x ── norm ── attention ── norm ── Add ── norm ── mlp ── norm ── Add
/// parallel:    x ── norm ─┬─ attention ── Add ─┐
///                         └─ mlp ──────────────┴─ Add
/// ```
fn decoder_layer(
    e: &mut Emitter<'_>,
    (x, last): (&str, Option<&str>),
    (stream, index, layer): (Carried, usize, &DecoderLayer),
    attend: impl FnOnce(&mut Emitter<'_>, &str) -> Result<String, CompileError>,
) -> Result<String, CompileError> {
    let at = |part: &str| (format!("/layers.{index}/{part}"), format!("layers.{index}.{part}"));
    let normed = |e: &mut Emitter<'_>, part: &str, x: &str| {
        let (scope, weights) = at(part);
        stream.norm.of_rows(e, x, (&scope, &weights))
    };
    let joining = |e: &mut Emitter<'_>, part: &str, x: &str| {
        let (scope, weights) = at(part);
        stream.branch.of_branch(e, x, (&scope, &weights), stream.shrink)
    };
    let sandwich = layer.residual == Residual::Sandwich;
    let first = normed(e, "attn_norm", x)?;
    let mut attended = attend(e, &first)?;
    if sandwich {
        attended = joining(e, "attn_post_norm", &attended)?;
    }
    let (scope, _) = at("attn");
    let x = e.graph.op(&scope, "Add", &[x, &attended]);
    let mlp_input = if layer.residual == Residual::Parallel { first } else { normed(e, "mlp_norm", &x)? };
    let (scope, weights) = at("mlp");
    let mut fed = mlp::mlp(e, &mlp_input, (&scope, &weights), stream.norm.width, &layer.mlp)?;
    if sandwich {
        fed = joining(e, "mlp_post_norm", &fed)?;
    }
    Ok(match last {
        Some(output) => sum_to(e, &scope, &x, &fed, output),
        None => e.graph.op(&scope, "Add", &[&x, &fed]),
    })
}

fn sum_to(e: &mut Emitter<'_>, scope: &str, a: &str, b: &str, output: &str) -> String {
    let name = format!("{scope}/Add");
    let spec = narthex_graph::build::NodeSpec {
        name: &name,
        op: "Add",
        domain: "",
        inputs: &[a, b],
        attributes: &[],
    };
    e.graph.node_to(spec, &[output]);
    output.to_owned()
}

/// The mask for layers of one window; an input for each window that occurs.
fn mask(
    e: &mut Emitter<'_>,
    io: &mut Io,
    known: &mut Vec<(Option<usize>, String)>,
    (window, tokens, past): (Option<usize>, usize, usize),
) -> String {
    if let Some((_, name)) = known.iter().find(|(other, _)| *other == window) {
        return name.clone();
    }
    let name = window.map_or("mask".to_owned(), |window| format!("mask.{window}"));
    let shape: [Dim; 4] = [1.into(), 1.into(), tokens.into(), (past + tokens).into()];
    io.input(e, Slot::Mask { window }, &name, F16, &shape);
    known.push((window, name.clone()));
    name
}

/// Declares one layer's past; gives the names of past key and value, and of new key and value.
fn past_names(
    e: &mut Emitter<'_>,
    io: &mut Io,
    layer: usize,
    (heads, size, past): (usize, usize, usize),
) -> [String; 4] {
    let key: [Dim; 4] = [1.into(), heads.into(), size.into(), past.into()];
    let value: [Dim; 4] = [1.into(), heads.into(), past.into(), size.into()];
    let past_key = io.input(e, Slot::PastKey { layer }, &format!("past.{layer}.key"), F16, &key);
    let past_value = io.input(e, Slot::PastValue { layer }, &format!("past.{layer}.value"), F16, &value);
    [past_key, past_value, format!("new.{layer}.key"), format!("new.{layer}.value")]
}

/// The last norm and the head, for one row.
fn head(e: &mut Emitter<'_>, arch: &DecoderArch) -> Result<GraphEntry, CompileError> {
    e.graph = Builder::new("head", &OPSETS);
    let mut io = Io::default();
    let rows = 1;
    let hidden = io.input(e, Slot::Hidden, "hidden", F16, &[1.into(), rows.into(), arch.hidden.into()]);
    let normed = carried(arch).norm.of_rows(e, &hidden, ("/norm", "norm"))?;
    embed::head_only(e, &normed, arch, "logits")?;
    io.output(e, Slot::Logits, "logits", F16, &[1.into(), rows.into(), arch.head_rows().into()]);
    Ok(io.entry("head.onnx", Variant::Static, Part::Head { rows }, Vec::new()))
}
