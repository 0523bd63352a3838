//! Decoders of fixed shapes for NPUs: one graph for a fixed number of new tokens, and one for a single token. Each is
//! connected to the slots of variant A: nodes before it pad the tokens and arrange the past, and nodes after it extract
//! the real tokens from the outputs.
//!
//! An integer past is cached as its numeric values; only the graph knows their scale.

use narthex_checkpoint::limits::LAYERS;
use narthex_graph::{Attribute, Builder, Graph, Value};
use narthex_spec::{
    DType,
    arch::{ImportedDecoder, Steps},
    dtype::Dim,
    manifest::{KvLayout, Part, Slot},
};

use super::{
    adapter::{GraphAdapter, PREFIX},
    decoder::{Decoder, reshape_to_rank, vocab},
    graphs::{fixed_extent, reject_unknown_inputs},
    head::select_rows,
    names::TensorNames,
    refused,
    settings::Settings,
};
use crate::error::Result;

/// Returns the number of new tokens of a graph if it is fixed.
pub(super) fn tokens(graph: &Graph, names: &TensorNames) -> Option<usize> {
    let input = graph.inputs.iter().find(|input| input.name == names.tokens)?;
    input.shape.get(1).and_then(fixed_extent).filter(|&tokens| tokens > 0)
}

/// Connects a decoder of fixed shapes to the slots of a package; its graph is called `file` in messages.
pub(super) fn chunk(file: &str, graph: Graph, names: &TensorNames, settings: &Settings) -> Result<Decoder> {
    let expected = "a fixed number of tokens";
    let tokens = tokens(&graph, names)
        .ok_or_else(|| refused(format!("input {:?} of {file}", names.tokens), expected, "any number"))?;
    let context = settings.stated("the longest sequence", settings.context)?;
    let vocab = vocab(file, &graph, names, settings, Some(tokens))?;
    let layers = layers(file, &graph, names, &CacheShape::read(settings, tokens)?)?;
    let past = layers.iter().flatten().filter_map(|tensor| tensor.past).min();
    let past = past.unwrap_or(context.saturating_sub(tokens));
    let mut adapter = GraphAdapter::new(file, graph)?;
    let pasts = layers.iter().flatten().map(|tensor| tensor.input.as_str());
    let lengths = names.totals.iter().chain([&names.last]).map(String::as_str);
    let known = [&*names.tokens, &*names.mask, &*names.positions].into_iter().chain(lengths).chain(pasts);
    reject_unknown_inputs(file, &adapter.inner, &known.collect::<Vec<_>>())?;

    let counts = inputs(file, &mut adapter, names, tokens)?;
    for (layer, parts) in layers.iter().enumerate() {
        for (part, tensor) in ["key", "value"].into_iter().zip(parts) {
            tensor.connect(&mut adapter, layer, part, &CacheFeed { counts: &counts, empty: settings.empty });
        }
    }

    let rows = adapter.input(Slot::LogitsRows, "logits_rows", DType::I64, &["rows".into()]);
    let logits = select_rows(&mut adapter, &names.logits, &rows);
    adapter.output(Slot::Logits, &logits, "logits", DType::F32, &["rows".into(), vocab.into()]);
    let (graph, mut entry) =
        adapter.finish(layers.iter().map(|[key, _]| KvLayout::plain(key.heads, key.size)).collect())?;
    entry.part = Part::Chunk { tokens, past };
    entry.file = format!("chunk_{tokens}.onnx");
    let max_length = context.min(past.saturating_add(1));
    Ok(Decoder { graph, entry, imported: ImportedDecoder { vocab, steps: Steps::Any }, max_length })
}

/// Names of the values that count tokens.
struct TokenCounts {
    /// Number of past tokens, `[1]`.
    past: String,
    /// Number of real new tokens, `[1]`.
    new: String,
}

/// Feeds tokens, mask and positions from the slots, with padding after the real tokens.
///
/// ```text
/// tokens ── Pad ── tokens of the graph              past + (0..tokens) ── positions
/// columns < past, or from the new ones on and < their number ── mask
/// ```
fn inputs(file: &str, adapter: &mut GraphAdapter, names: &TensorNames, count: usize) -> Result<TokenCounts> {
    let tokens = adapter.input(Slot::Tokens, "tokens", DType::I64, &[1_usize.into(), "sequence".into()]);
    adapter.input(Slot::SeqlensK, "seqlens_k", DType::I32, &["batch".into()]);
    let total = adapter.input(Slot::TotalLength, "total_length", DType::I32, &[]);
    let columns = columns(file, &adapter.inner, names, count)?;
    let at = |part: &str| format!("{PREFIX}{part}");
    let g = &mut adapter.prologue;
    let zero = g.ints(&[], &[0]);
    let one = g.ints(&[], &[1]);
    let flat = g.ints(&[1], &[-1]);
    let most = g.ints(&[1], &[count as i64]);
    let shape = g.op(&at("sequence"), "Shape", &[&tokens]);
    let new = g.op(&at("sequence"), "Gather", &[&shape, &one]);
    let new = g.op(&at("sequence"), "Reshape", &[&new, &flat]);
    let total = g.cast(&at("total"), &total, DType::I64);
    let total = g.op(&at("total"), "Reshape", &[&total, &flat]);
    let past = g.op(&at("past"), "Sub", &[&total, &new]);
    let lacking = g.op(&at("lacking"), "Sub", &[&most, &new]);
    let before = g.ints(&[3], &[0, 0, 0]);
    let pads = g.op_with(&at("lacking"), "Concat", &[&before, &lacking], &[("axis", Attribute::Int(0))]);
    let tokens = g.op(&at("tokens"), "Pad", &[&tokens, &pads]);
    let ahead = g.op(&at("all"), "Add", &[&past, &most]);
    let last = g.op(&at("last"), "Sub", &[&ahead, &one]);
    let end = g.ints(&[], &[count as i64]);
    let line = g.ints(&[2], &[1, -1]);
    let places = g.op(&at("positions"), "Range", &[&zero, &end, &one]);
    let positions = g.op(&at("positions"), "Add", &[&past, &places]);
    let positions = g.op(&at("positions"), "Reshape", &[&positions, &line]);
    let mut fed = vec![(&names.tokens, tokens), (&names.positions, positions)];
    if let Some(columns) = columns {
        fed.push((&names.mask, mask(g, columns - count..columns, [&past, &new])));
    }
    for (name, value) in fed {
        adapter.feed_if_input(name, &value);
    }

    for (name, value) in names.totals.iter().map(|name| (name, &ahead)).chain([(&names.last, &last)]) {
        if let Some(rank) = adapter.imported_input(name).map(|input| input.shape.len()) {
            let value = match rank {
                0 => adapter.prologue.op(&format!("{PREFIX}length/{name}"), "Squeeze", &[value]),
                _ => reshape_to_rank(&mut adapter.prologue, value, name, rank),
            };
            adapter.feed(name, &value);
        }
    }
    Ok(TokenCounts { past, new })
}

/// Returns the number of columns of the graph's mask, if it has one: those of the past, then those of the new tokens.
fn columns(file: &str, graph: &Graph, names: &TensorNames, count: usize) -> Result<Option<usize>> {
    let Some(mask) = graph.inputs.iter().find(|input| input.name == names.mask) else { return Ok(None) };
    match &mask.shape[..] {
        [_, columns] if fixed_extent(columns).is_some_and(|columns| columns >= count) => {
            Ok(fixed_extent(columns))
        }
        shape => {
            let what = format!("input {:?} of {file}", mask.name);
            let expected = format!("one row with a fixed number of columns, at least {count}");
            Err(refused(what, expected, format!("{} dimensions, {:?}", shape.len(), shape.last())))
        }
    }
}

/// Builds the mask of columns with a token, `[1, columns]`; the columns of new tokens are `places`.
fn mask(g: &mut Builder, places: std::ops::Range<usize>, [past, new]: [&str; 2]) -> String {
    let scope = format!("{PREFIX}mask");
    let zero = g.ints(&[], &[0]);
    let one = g.ints(&[], &[1]);
    let line = g.ints(&[2], &[1, -1]);
    let first = g.ints(&[1], &[places.start as i64]);
    let end = g.ints(&[], &[places.end as i64]);
    let columns = g.op(&scope, "Range", &[&zero, &end, &one]);
    let seen = g.op(&format!("{scope}/past"), "Less", &[&columns, past]);
    let before = g.op(&format!("{scope}/new"), "Less", &[&columns, &first]);
    let from = g.op(&format!("{scope}/new"), "Not", &[&before]);
    let behind = g.op(&format!("{scope}/new"), "Add", &[&first, new]);
    let until = g.op(&format!("{scope}/end"), "Less", &[&columns, &behind]);
    let real = g.op(&scope, "And", &[&from, &until]);
    let all = g.op(&scope, "Or", &[&seen, &real]);
    g.op(&scope, "Reshape", &[&all, &line])
}

/// Keys or values of a layer in the graph.
struct CacheTensor {
    input: String,
    output: String,
    heads: usize,
    size: usize,
    /// Permutation from the package's axes of batch, heads, tokens and elements to the graph's; it is its own inverse.
    axes: [i64; 4],
    /// Number of past tokens, if fixed.
    past: Option<usize>,
    output_tokens: CacheOutput,
}

/// Expected extents of every cache tensor.
struct CacheShape {
    heads: usize,
    /// Elements of a head.
    size: usize,
    /// New tokens of a run.
    tokens: usize,
}

impl CacheShape {
    fn read(settings: &Settings, tokens: usize) -> Result<Self> {
        let heads = settings.kv_heads.or(settings.heads);
        Ok(Self {
            heads: settings.stated("the number of key and value heads", heads)?,
            size: settings.stated("the size of a head", settings.head_size)?,
            tokens,
        })
    }
}

/// Values that connect the cache to a graph.
struct CacheFeed<'a> {
    counts: &'a TokenCounts,
    /// Content of empty slots in the past.
    empty: f32,
}

/// Tokens in an output of keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CacheOutput {
    /// The new tokens.
    New,
    /// The past, followed by the new tokens.
    Appended,
}

impl CacheTensor {
    /// Determines the layout of one cache tensor from its input and output.
    fn of(file: &str, input: &Value, output: &Value, shape: &CacheShape) -> Result<Self> {
        let CacheShape { heads, size, tokens } = *shape;
        let wrong = |value: &Value, expected: String| {
            let dims = value.shape.iter().map(|dim| match dim {
                Dim::Fixed(extent) => extent.to_string(),
                Dim::Symbol(name) => name.chars().take(40).collect(),
            });
            let found = format!("[{}]", dims.collect::<Vec<_>>().join(", "));
            refused(format!("{:?} of {file}", value.name), expected, found)
        };

        let extent = |value: &Value, axis: usize| value.shape.get(axis).and_then(fixed_extent);
        let is = |value: &Value, axis: usize, wanted: usize| extent(value, axis) == Some(wanted);
        let order = [(0, 1), (1, 0)].into_iter().find(|(batch, head)| {
            let one = is(input, *batch, 1)
                || input.shape.get(*batch).is_some_and(|dim| fixed_extent(dim).is_none());
            input.shape.len() == 4 && output.shape.len() == 4 && one && is(input, *head, heads)
        });
        let of_one = || format!("a past of one sequence, {heads} heads and {size} elements each");
        let (batch, head) = order.ok_or_else(|| wrong(input, of_one()))?;
        let grows =
            |axis: usize| extent(input, axis).is_none() || extent(input, axis) != extent(output, axis);
        let axis =
            [(2, 3), (3, 2)].into_iter().find(|(token, element)| is(input, *element, size) && grows(*token));
        let (token, element) = axis.ok_or_else(|| wrong(input, of_one()))?;
        let past = extent(input, token);
        let output_tokens = match (past, extent(output, token)) {
            (_, Some(given)) if given == tokens => CacheOutput::New,
            (Some(past), Some(given)) if given == past.saturating_add(tokens) => CacheOutput::Appended,
            (None, None) => CacheOutput::Appended,
            _ => {
                return Err(wrong(output, format!("those of {tokens} new tokens, alone or after the past")));
            }
        };

        let input = input.name.clone();
        let output = output.name.clone();
        let axes = [batch, head, token, element].map(|axis: usize| axis as i64);
        Ok(Self { input, output, heads, size, axes, past, output_tokens })
    }

    /// ```text
    /// cache ── Slice(0..past) ── Pad ── Transpose ── graph ── Transpose ── Slice(new ones) ── new
    /// ```
    fn connect(&self, adapter: &mut GraphAdapter, layer: usize, part: &str, feed: &CacheFeed<'_>) {
        let CacheFeed { counts, empty } = *feed;
        let (slot, new_slot) = match part {
            "key" => (Slot::PastKey { layer }, Slot::NewKey { layer }),
            _ => (Slot::PastValue { layer }, Slot::NewValue { layer }),
        };

        let shape = |tokens: &str| [1_usize.into(), self.heads.into(), tokens.into(), self.size.into()];
        let name = format!("past.{layer}.{part}");
        let scope = format!("{PREFIX}{name}");
        let cache = adapter.input(slot, &name, DType::F32, &shape("capacity"));
        let g = &mut adapter.prologue;
        let axis = g.ints(&[1], &[2]);
        let begin = g.ints(&[1], &[0]);

        let mut past = g.op(&scope, "Slice", &[&cache, &begin, &counts.past, &axis]);
        if let Some(columns) = self.past {
            let most = g.ints(&[1], &[columns as i64]);
            let lacking = g.op(&scope, "Sub", &[&most, &counts.past]);
            let before = g.ints(&[6], &[0; 6]);
            let behind = g.ints(&[1], &[0]);
            let value = g.scalar(empty);
            let axis = [("axis", Attribute::Int(0))];
            let pads = g.op_with(&scope, "Concat", &[&before, &lacking, &behind], &axis);
            past = g.op(&scope, "Pad", &[&past, &pads, &value]);
        }

        let past = self.transposed(g, &scope, past);
        adapter.feed(&self.input, &past);
        let name = format!("new.{layer}.{part}");
        let scope = format!("{PREFIX}{name}");
        let g = &mut adapter.epilogue;
        let new = self.transposed(g, &scope, self.output.clone());
        let axis = g.ints(&[1], &[2]);
        let begin = match (self.output_tokens, self.past) {
            (CacheOutput::New, _) => g.ints(&[1], &[0]),
            (CacheOutput::Appended, Some(past)) => g.ints(&[1], &[past as i64]),
            (CacheOutput::Appended, None) => counts.past.clone(),
        };
        let end = g.op(&scope, "Add", &[&begin, &counts.new]);
        let new = g.op(&scope, "Slice", &[&new, &begin, &end, &axis]);
        adapter.output(new_slot, &new, &name, DType::F32, &shape("sequence"));
    }

    /// Converts a value between the package's and the graph's order of axes.
    fn transposed(&self, g: &mut Builder, scope: &str, value: String) -> String {
        if self.axes.is_sorted() {
            return value;
        }
        g.op_with(scope, "Transpose", &[&value], &[("perm", Attribute::from(self.axes))])
    }
}

/// Returns every layer with keys and values in the graph.
fn layers(
    file: &str,
    graph: &Graph,
    names: &TensorNames,
    shape: &CacheShape,
) -> Result<Vec<[CacheTensor; 2]>> {
    let find = |values: &[Value], name: &str| values.iter().find(|value| value.name == name).cloned();
    let mut layers = Vec::new();
    while find(&graph.inputs, &TensorNames::of(&names.past[0], layers.len())).is_some() {
        let layer = layers.len();
        if layer >= *LAYERS.end() {
            return Err(refused(format!("layers of {file}"), format!("at most {}", LAYERS.end()), "more"));
        }

        let tensor = |part: usize| {
            let past = TensorNames::of(&names.past[part], layer);
            let present = TensorNames::of(&names.present[part], layer);
            let absent = |name: &str| {
                refused(format!("inputs and outputs of {file}"), name, "no tensor with this name")
            };
            let input = find(&graph.inputs, &past).ok_or_else(|| absent(&past))?;
            let output = find(&graph.outputs, &present).ok_or_else(|| absent(&present))?;
            CacheTensor::of(file, &input, &output, shape)
        };
        layers.push([tensor(0)?, tensor(1)?]);
    }
    Ok(layers)
}
