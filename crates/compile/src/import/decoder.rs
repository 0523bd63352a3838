//! Decoders of any length: connects tokens, mask, positions and past of a graph to the slots of the dynamic variant.
//!
//! If the attention is GroupQueryAttention in f32, past and present share one buffer, as in packages compiled by
//! Narthex. Other graphs append to their past and return both: a slice before the graph reads the existing tokens from
//! the cache, and one after it extracts the new tokens.

use narthex_checkpoint::limits::LAYERS;
use narthex_graph::{Graph, Value};
use narthex_spec::{
    DType,
    arch::{ImportedDecoder, Steps},
    dtype::Dim,
    manifest::{GraphEntry, KvLayout, Slot},
};

use super::{
    adapter::{GraphAdapter, PREFIX, prefixed},
    graphs::{fixed_axis, fixed_extent, float_dtype, named, reject_unknown_inputs},
    head::select_rows,
    names::{BRANCH, TensorNames},
    refused, rotary,
    settings::Settings,
};
use crate::error::Result;

/// A connected decoder.
pub(super) struct Decoder {
    pub(super) graph: Graph,
    pub(super) entry: GraphEntry,
    pub(super) imported: ImportedDecoder,
    /// Maximum sequence length, in tokens.
    pub(super) max_length: usize,
}

/// Connects a decoder's graph to the slots of a package.
pub(super) fn decoder(file: &str, graph: Graph, names: &TensorNames, settings: &Settings) -> Result<Decoder> {
    let context = settings.stated("the longest sequence", settings.context)?;
    let max_length = rotary::first_set(&graph, context).map_or(context, |first| first.min(context));
    let layers = layers(file, &graph, names, settings)?;
    let steps = match graph.inputs.iter().any(|input| input.name == BRANCH) {
        true => Steps::OneAfterPast,
        false => Steps::Any,
    };
    let vocab = vocab(file, &graph, names, settings, None)?;
    let mut adapter = GraphAdapter::new(file, graph)?;
    let pasts = layers.iter().flat_map(|layer| layer.past.iter().map(String::as_str));
    let lengths = names.totals.iter().chain([&names.last]).map(String::as_str);
    let known = [&*names.tokens, &*names.mask, &*names.positions, BRANCH];
    let known = known.into_iter().chain(lengths).chain(pasts);
    reject_unknown_inputs(file, &adapter.inner, &known.collect::<Vec<_>>())?;

    let past_length = inputs(&mut adapter, names);
    let shared = layers.iter().all(|layer| layer.shares(&adapter.inner));
    for (index, layer) in layers.iter().enumerate() {
        if shared {
            layer.share(&mut adapter, index)
        } else {
            layer.append(&mut adapter, index, &past_length)
        }
    }

    let logits_rows = adapter.input(Slot::LogitsRows, "logits_rows", DType::I64, &["rows".into()]);
    let logits = select_rows(&mut adapter, &names.logits, &logits_rows);
    adapter.output(Slot::Logits, &logits, "logits", DType::F32, &["rows".into(), vocab.into()]);
    let kv = layers.iter().map(|layer| KvLayout::plain(layer.heads, layer.head_size)).collect();
    let (graph, entry) = adapter.finish(kv)?;
    Ok(Decoder { graph, entry, imported: ImportedDecoder { vocab, steps }, max_length })
}

/// Feeds tokens, mask and positions from the slots. Returns the number of past tokens of the only row, `[1]`.
///
/// ```text
/// seqlens_k ── + 1 ── [batch, 1] ─┬─ Less(0..total) ── mask
///                                 └─ - sequence ── + (0..sequence) ── positions
/// ```
fn inputs(adapter: &mut GraphAdapter, names: &TensorNames) -> String {
    let texts: [Dim; 2] = ["batch".into(), "sequence".into()];
    let tokens = adapter.input(Slot::Tokens, "tokens", DType::I64, &texts);
    let seqlens_k = adapter.input(Slot::SeqlensK, "seqlens_k", DType::I32, &["batch".into()]);
    let total = adapter.input(Slot::TotalLength, "total_length", DType::I32, &[]);
    let g = &mut adapter.prologue;
    let zero = g.ints(&[], &[0]);
    let one = g.ints(&[], &[1]);
    let column = g.ints(&[2], &[-1, 1]);

    let scope = prefixed("sequence");
    let shape = g.op(&scope, "Shape", &[&tokens]);
    let sequence = g.op(&scope, "Gather", &[&shape, &one]);
    let total = g.cast(&prefixed("total"), &total, DType::I64);
    let last = g.cast(&prefixed("last"), &seqlens_k, DType::I64);
    let scope = prefixed("lengths");
    let lengths = g.op(&scope, "Add", &[&last, &one]);
    let lengths = g.op(&scope, "Reshape", &[&lengths, &column]);

    let scope = prefixed("mask");
    let all = g.op(&scope, "Range", &[&zero, &total, &one]);
    let mask = g.op(&scope, "Less", &[&all, &lengths]);
    let scope = prefixed("positions");
    let begin = g.op(&scope, "Sub", &[&lengths, &sequence]);
    let new = g.op(&scope, "Range", &[&zero, &sequence, &one]);
    let positions = g.op(&scope, "Add", &[&begin, &new]);

    let scope = prefixed("past");
    let past = g.op(&scope, "Sub", &[&total, &sequence]);
    let flat = g.ints(&[1], &[-1]);
    let nothing = g.ints(&[1], &[0]);
    let past = g.op(&scope, "Reshape", &[&past, &flat]);
    let follows = g.op(&scope, "Greater", &[&past, &nothing]);

    let fed =
        [(&*names.tokens, &tokens), (&names.mask, &mask), (&names.positions, &positions), (BRANCH, &follows)];
    for (name, value) in fed {
        adapter.feed_if_input(name, value);
    }

    for (name, value) in names.totals.iter().map(|name| (name, &total)).chain([(&names.last, &last)]) {
        if let Some(rank) = adapter.imported_input(name).map(|input| input.shape.len()) {
            let value = reshape_to_rank(&mut adapter.prologue, value, name, rank);
            adapter.feed(name, &value);
        }
    }
    past
}

/// Reshapes a scalar or a list for the input `name` to `rank` dimensions. All of them except the first are 1.
pub(super) fn reshape_to_rank(
    g: &mut narthex_graph::Builder,
    value: &str,
    name: &str,
    rank: usize,
) -> String {
    if rank == 0 {
        return value.to_owned();
    }
    let mut shape = vec![1; rank];
    shape[0] = -1;
    let shape = g.ints(&[rank], &shape);
    g.op(&format!("{PREFIX}length/{name}"), "Reshape", &[value, &shape])
}

/// One layer's keys and values in the graph.
struct Layer {
    past: [String; 2],
    present: [String; 2],
    /// Batch size of the graph: 1 if it is declared as 1, otherwise any number.
    batch: Dim,
    heads: usize,
    head_size: usize,
    dtype: DType,
}

impl Layer {
    fn shape(&self, tokens: &str) -> [Dim; 4] {
        [self.batch.clone(), self.heads.into(), tokens.into(), self.head_size.into()]
    }

    /// Returns whether the layer's attention can write new keys and values into the buffer of the past.
    fn shares(&self, graph: &Graph) -> bool {
        let [key, value] = &self.past;
        let mut readers =
            graph.nodes.iter().filter(|node| node.inputs.contains(key) || node.inputs.contains(value));
        self.dtype == DType::F32
            && readers.next().is_some_and(|node| {
                node.operator() == "com.microsoft.GroupQueryAttention"
                    && (node.input(3), node.input(4)) == (Some(key), Some(value))
                    && node.outputs.get(1..3) == Some(&self.present[..])
            })
            && readers.next().is_none()
    }

    fn share(&self, adapter: &mut GraphAdapter, layer: usize) {
        let [past_key, past_value] = &self.past;
        let [key, value] = &self.present;
        let shape = self.shape("capacity");
        adapter.keep_cache_input(Slot::PastKey { layer }, past_key, &shape);
        adapter.keep_cache_input(Slot::PastValue { layer }, past_value, &shape);
        adapter.keep_cache_output(Slot::PresentKey { layer }, key, &shape);
        adapter.keep_cache_output(Slot::PresentValue { layer }, value, &shape);
    }

    /// ```text
    /// cache ── Slice(0..past) ── graph ── Slice(past..) ── new
    /// ```
    fn append(&self, adapter: &mut GraphAdapter, layer: usize, past_length: &str) {
        let pasts = [Slot::PastKey { layer }, Slot::PastValue { layer }];
        let news = [Slot::NewKey { layer }, Slot::NewValue { layer }];
        for (index, part) in ["key", "value"].into_iter().enumerate() {
            let name = format!("past.{layer}.{part}");
            let cache = adapter.input(pasts[index], &name, DType::F32, &self.shape("capacity"));
            let g = &mut adapter.prologue;
            let begin = g.ints(&[1], &[0]);
            let tokens = g.ints(&[1], &[2]);
            let past = g.op(&prefixed(&name), "Slice", &[&cache, &begin, past_length, &tokens]);
            adapter.feed(&self.past[index], &past);

            let name = format!("new.{layer}.{part}");
            let g = &mut adapter.epilogue;
            let end = g.ints(&[1], &[i64::MAX]);
            let tokens = g.ints(&[1], &[2]);
            let new = g.op(&prefixed(&name), "Slice", &[&self.present[index], past_length, &end, &tokens]);
            adapter.output(news[index], &new, &name, DType::F32, &self.shape("sequence"));
        }
    }
}

/// Returns every layer with keys and values in the graph.
fn layers(file: &str, graph: &Graph, names: &TensorNames, settings: &Settings) -> Result<Vec<Layer>> {
    let mut layers = Vec::new();
    while let Some(past) = named(&graph.inputs, &TensorNames::of(&names.past[0], layers.len())) {
        let layer = layers.len();
        if layer >= *LAYERS.end() {
            return Err(refused(format!("layers of {file}"), format!("at most {}", LAYERS.end()), "more"));
        }

        let pasts = names.past.each_ref().map(|pattern| TensorNames::of(pattern, layer));
        let presents = names.present.each_ref().map(|pattern| TensorNames::of(pattern, layer));
        let missing = pasts
            .iter()
            .chain(&presents)
            .find(|name| named(&graph.inputs, name).or_else(|| named(&graph.outputs, name)).is_none());
        if let Some(name) = missing {
            return Err(refused(
                format!("inputs and outputs of {file}"),
                name.as_str(),
                "no tensor with this name",
            ));
        }
        let present = named(&graph.outputs, &presents[0]);
        let (heads, head_size) = extents(file, past, present, settings)?;
        let batch = match past.shape.first() {
            Some(Dim::Fixed(1)) => 1_usize.into(),
            _ => "batch".into(),
        };
        let dtype = float_dtype(file, past)?;
        layers.push(Layer { past: pasts, present: presents, batch, heads, head_size, dtype });
    }
    Ok(layers)
}

/// Returns heads and head size of a layer from its past, its present, or the settings.
fn extents(file: &str, past: &Value, present: Option<&Value>, settings: &Settings) -> Result<(usize, usize)> {
    if past.shape.len() != 4 {
        let expected = "4 dimensions: batch, heads, tokens and head size";
        return Err(refused(format!("input {:?} of {file}", past.name), expected, past.shape.len()));
    }
    let [heads, size] = [1, 3].map(|axis| {
        fixed_axis(past, axis).or_else(|| fixed_axis(present?, axis)).filter(|&extent| extent > 0)
    });
    let heads = heads.or(settings.kv_heads).or(settings.heads);
    let size = size.or(settings.head_size);
    Ok((
        settings.stated("the number of key and value heads", heads)?,
        settings.stated("the size of a head", size)?,
    ))
}

/// Returns the vocabulary size from the logits, which must cover every token. `tokens` is their number if it is fixed.
pub(super) fn vocab(
    file: &str,
    graph: &Graph,
    names: &TensorNames,
    settings: &Settings,
    tokens: Option<usize>,
) -> Result<usize> {
    let what = format!("output {:?} of {file}", names.logits);
    let Some(logits) = named(&graph.outputs, &names.logits) else {
        return Err(refused(what, "logits", "no such output"));
    };
    float_dtype(file, logits)?;
    match fixed_axis(logits, 1).filter(|_| logits.shape.len() == 3) {
        Some(count) if tokens != Some(count) => {
            let found = format!("those of a fixed number of tokens, {count}");
            return Err(refused(what, "logits of every token", found));
        }
        _ => {}
    }
    let last = logits.shape.last().and_then(fixed_extent).filter(|&extent| extent > 0);
    settings.stated("vocab_size", last.or(settings.vocab))
}
