//! Decoders of fixed shapes for NPUs: one graph for a fixed number of new tokens, and one for a single token. Each is
//! connected to the slots of the dynamic variant: nodes before it pad the tokens and arrange the past, and nodes after
//! it extract the real tokens from the outputs.
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
    adapter::{GraphAdapter, PREFIX, prefixed},
    decoder::{Decoder, reshape_to_rank, vocab},
    graphs::{fixed_axis, fixed_extent, named, reject_unknown_inputs},
    head::select_rows,
    names::TensorNames,
    refused,
    settings::Settings,
};
use crate::error::{CompileError, Result};

/// Returns the number of new tokens of a graph if it is fixed.
pub(super) fn tokens(graph: &Graph, names: &TensorNames) -> Option<usize> {
    fixed_axis(named(&graph.inputs, &names.tokens)?, 1).filter(|&tokens| tokens > 0)
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
    let g = &mut adapter.prologue;
    let zero = g.ints(&[], &[0]);
    let one = g.ints(&[], &[1]);
    let flat = g.ints(&[1], &[-1]);
    let length = g.ints(&[1], &[count as i64]);

    let scope = prefixed("sequence");
    let shape = g.op(&scope, "Shape", &[&tokens]);
    let new = g.op(&scope, "Gather", &[&shape, &one]);
    let new = g.op(&scope, "Reshape", &[&new, &flat]);
    let scope = prefixed("total");
    let total = g.cast(&scope, &total, DType::I64);
    let total = g.op(&scope, "Reshape", &[&total, &flat]);
    let past = g.op(&prefixed("past"), "Sub", &[&total, &new]);

    let scope = prefixed("lacking");
    let padding = g.op(&scope, "Sub", &[&length, &new]);
    let before = g.ints(&[3], &[0, 0, 0]);
    let pads = g.op_with(&scope, "Concat", &[&before, &padding], &[("axis", Attribute::Int(0))]);
    let tokens = g.op(&prefixed("tokens"), "Pad", &[&tokens, &pads]);
    let padded_total = g.op(&prefixed("all"), "Add", &[&past, &length]);
    let last = g.op(&prefixed("last"), "Sub", &[&padded_total, &one]);

    let scope = prefixed("positions");
    let end = g.ints(&[], &[count as i64]);
    let row_shape = g.ints(&[2], &[1, -1]);
    let offsets = g.op(&scope, "Range", &[&zero, &end, &one]);
    let positions = g.op(&scope, "Add", &[&past, &offsets]);
    let positions = g.op(&scope, "Reshape", &[&positions, &row_shape]);

    let mut fed = vec![(&names.tokens, tokens), (&names.positions, positions)];
    if let Some(columns) = columns {
        fed.push((&names.mask, mask(g, columns - count..columns, [&past, &new])));
    }
    for (name, value) in fed {
        adapter.feed_if_input(name, &value);
    }

    for (name, value) in names.totals.iter().map(|name| (name, &padded_total)).chain([(&names.last, &last)]) {
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
    let Some(mask) = named(&graph.inputs, &names.mask) else { return Ok(None) };
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

/// Builds the mask of columns with a token, `[1, columns]`; those of new tokens are `new_columns`.
fn mask(g: &mut Builder, new_columns: std::ops::Range<usize>, [past, new]: [&str; 2]) -> String {
    let scope = format!("{PREFIX}mask");
    let zero = g.ints(&[], &[0]);
    let one = g.ints(&[], &[1]);
    let line = g.ints(&[2], &[1, -1]);
    let first = g.ints(&[1], &[new_columns.start as i64]);
    let end = g.ints(&[], &[new_columns.end as i64]);
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
        let have_four_axes = input.shape.len() == 4 && output.shape.len() == 4;
        let outer = [(0, 1), (1, 0)].into_iter().find(|&(batch, head)| {
            fixed_axis(input, batch).is_none_or(|extent| extent == 1)
                && fixed_axis(input, head) == Some(heads)
        });
        let inner = [(2, 3), (3, 2)].into_iter().find(|&(token, element)| {
            let past = fixed_axis(input, token);
            let grows = past.is_none() || past != fixed_axis(output, token);
            grows && fixed_axis(input, element) == Some(size)
        });
        let Some(((batch, head), (token, element))) = outer.zip(inner).filter(|_| have_four_axes) else {
            let expected = format!("a past of one sequence, {heads} heads and {size} elements each");
            return Err(wrong_shape(file, input, expected));
        };

        let past = fixed_axis(input, token);
        let output_tokens = match (past, fixed_axis(output, token)) {
            (_, Some(given)) if given == tokens => CacheOutput::New,
            (Some(past), Some(given)) if given == past.saturating_add(tokens) => CacheOutput::Appended,
            (None, None) => CacheOutput::Appended,
            _ => {
                let expected = format!("those of {tokens} new tokens, alone or after the past");
                return Err(wrong_shape(file, output, expected));
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

        let name = format!("past.{layer}.{part}");
        let scope = prefixed(&name);
        let cache = adapter.input(slot, &name, DType::F32, &self.shape("capacity"));
        let g = &mut adapter.prologue;
        let axis = g.ints(&[1], &[2]);
        let begin = g.ints(&[1], &[0]);

        let mut past = g.op(&scope, "Slice", &[&cache, &begin, &counts.past, &axis]);
        if let Some(columns) = self.past {
            let columns = g.ints(&[1], &[columns as i64]);
            let padding = g.op(&scope, "Sub", &[&columns, &counts.past]);
            let before = g.ints(&[6], &[0; 6]);
            let behind = g.ints(&[1], &[0]);
            let value = g.scalar(empty);
            let axis = [("axis", Attribute::Int(0))];
            let pads = g.op_with(&scope, "Concat", &[&before, &padding, &behind], &axis);
            past = g.op(&scope, "Pad", &[&past, &pads, &value]);
        }

        let past = self.transposed(g, &scope, past);
        adapter.feed(&self.input, &past);

        let name = format!("new.{layer}.{part}");
        let scope = prefixed(&name);
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
        adapter.output(new_slot, &new, &name, DType::F32, &self.shape("sequence"));
    }

    /// Returns the shape of the package's tensor.
    fn shape(&self, tokens: &str) -> [Dim; 4] {
        [1_usize.into(), self.heads.into(), tokens.into(), self.size.into()]
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
    let mut layers = Vec::new();
    while named(&graph.inputs, &TensorNames::of(&names.past[0], layers.len())).is_some() {
        let layer = layers.len();
        if layer >= *LAYERS.end() {
            return Err(refused(format!("layers of {file}"), format!("at most {}", LAYERS.end()), "more"));
        }

        let [key, value] = [0, 1].map(|part| {
            let input = cache_value(file, &graph.inputs, &TensorNames::of(&names.past[part], layer))?;
            let output = cache_value(file, &graph.outputs, &TensorNames::of(&names.present[part], layer))?;
            CacheTensor::of(file, input, output, shape)
        });
        layers.push([key?, value?]);
    }
    Ok(layers)
}

fn cache_value<'a>(file: &str, values: &'a [Value], name: &str) -> Result<&'a Value> {
    named(values, name)
        .ok_or_else(|| refused(format!("inputs and outputs of {file}"), name, "no tensor with this name"))
}

/// Returns a refusal of keys or values for their shape.
fn wrong_shape(file: &str, value: &Value, expected: String) -> CompileError {
    let dims = value.shape.iter().map(|dim| match dim {
        Dim::Fixed(extent) => extent.to_string(),
        Dim::Symbol(name) => name.chars().take(40).collect(),
    });
    let found = format!("[{}]", dims.collect::<Vec<_>>().join(", "));
    refused(format!("{:?} of {file}", value.name), expected, found)
}
