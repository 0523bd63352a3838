//! Decoders of fixed shapes, as they are made for NPUs: a graph that takes so many new tokens, no more and no fewer, and one
//! for a single token. Each gets the slots of variant A: nodes before it fill up the tokens that are missing and lay the past
//! where the graph looks for it, and nodes behind it take what is real out of what it gives.
//!
//! A past of integers goes through the cache as the numbers that it is; the graph alone knows their scale.

use narthex_checkpoint::limits::LAYERS;
use narthex_graph::{Attribute, Builder, Graph, Value};
use narthex_spec::{
    DType,
    arch::{ImportedDecoder, Steps},
    dtype::Dim,
    manifest::{KeyOrder, KeyRotation, KvLayout, Part, Slot},
};

use super::{
    decoder::{Decoder, Names, of_rank, vocab},
    fixed,
    glue::{Glue, OURS, TO_I64},
    head::asked_rows,
    refused,
    settings::Settings,
    unknown_inputs,
};
use crate::error::CompileError;

/// New tokens that a graph takes, where it takes a fixed number of them.
pub(super) fn tokens(graph: &Graph, names: &Names) -> Option<usize> {
    let input = graph.inputs.iter().find(|input| input.name == names.tokens)?;
    input.shape.get(1).and_then(fixed).filter(|&tokens| tokens > 0)
}

/// Puts a decoder of fixed shapes behind the slots of a package; its graph is called `file`.
pub(super) fn chunk(
    file: &str,
    graph: Graph,
    names: &Names,
    settings: &Settings,
) -> Result<Decoder, CompileError> {
    let expected = "a fixed number of tokens";
    let tokens = tokens(&graph, names)
        .ok_or_else(|| refused(format!("input {:?} of {file}", names.tokens), expected, "any number"))?;
    let context = settings.stated("the longest sequence", settings.context)?;
    let vocab = vocab((file, &graph), names, settings, Some(tokens))?;
    let layers = layers(file, &graph, names, (settings, tokens))?;
    let past = layers.iter().flatten().filter_map(|held| held.past).min();
    let past = past.unwrap_or(context.saturating_sub(tokens));
    let mut glue = Glue::around(file, graph)?;
    let pasts = layers.iter().flatten().map(|held| held.input.as_str());
    let lengths = names.totals.iter().chain([&names.last]).map(String::as_str);
    let known = [&*names.tokens, &*names.mask, &*names.positions].into_iter().chain(lengths).chain(pasts);
    unknown_inputs(file, glue.foreign(), &known.collect::<Vec<_>>())?;
    let lengths = inputs(file, &mut glue, names, tokens)?;
    for (layer, parts) in layers.iter().enumerate() {
        for (part, held) in ["key", "value"].into_iter().zip(parts) {
            held.bring(&mut glue, (layer, part), &lengths, settings.empty);
        }
    }
    let rows = glue.input(Slot::LogitsRows, "logits_rows", DType::I64, &["rows".into()]);
    let logits = asked_rows(&mut glue, &names.logits, &rows);
    glue.output(Slot::Logits, (&logits, "logits"), DType::F32, &["rows".into(), vocab.into()]);
    let layout = |[key, _]: &[Held; 2]| KvLayout {
        heads: key.heads,
        head_size: key.size,
        window: None,
        dtype: DType::F32,
        keys: KeyRotation::After,
        order: KeyOrder::Rows,
    };
    let (graph, mut entry) = glue.finish(layers.iter().map(layout).collect())?;
    entry.part = Part::Chunk { tokens, past };
    entry.file = format!("chunk_{tokens}.onnx");
    let max_length = context.min(past.saturating_add(1));
    Ok(Decoder { graph, entry, imported: ImportedDecoder { vocab, steps: Steps::Any }, max_length })
}

/// What the nodes around the graph count by.
struct Lengths {
    /// `[1]`: tokens of the past.
    past: String,
    /// `[1]`: new tokens that are real.
    new: String,
}

/// Feeds tokens, mask and positions from the slots; places behind the real tokens are filled.
///
/// ```text
/// tokens ── Pad ── tokens of the graph              past + (0..tokens) ── positions
/// columns < past, or from the new ones on and < their number ── mask
/// ```
fn inputs(file: &str, glue: &mut Glue, names: &Names, count: usize) -> Result<Lengths, CompileError> {
    let tokens = glue.input(Slot::Tokens, "tokens", DType::I64, &[1_usize.into(), "sequence".into()]);
    glue.input(Slot::SeqlensK, "seqlens_k", DType::I32, &["batch".into()]);
    let total = glue.input(Slot::TotalLength, "total_length", DType::I32, &[]);
    let columns = columns(file, glue.foreign(), names, count)?;
    let at = |part: &str| format!("{OURS}{part}");
    let g = &mut glue.front;
    let (zero, one, flat) = (g.ints(&[], &[0]), g.ints(&[], &[1]), g.ints(&[1], &[-1]));
    let most = g.ints(&[1], &[count as i64]);
    let shape = g.op(&at("sequence"), "Shape", &[&tokens]);
    let new = g.op(&at("sequence"), "Gather", &[&shape, &one]);
    let new = g.op(&at("sequence"), "Reshape", &[&new, &flat]);
    let total = g.op_with(&at("total"), "Cast", &[&total], &[("to", Attribute::Int(TO_I64))]);
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
        if glue.foreign().inputs.iter().any(|input| input.name == *name) {
            glue.feed(name, &value);
        }
    }
    for (name, value) in names.totals.iter().map(|name| (name, &ahead)).chain([(&names.last, &last)]) {
        let declared = glue.foreign().inputs.iter().find(|input| input.name == *name);
        if let Some(rank) = declared.map(|input| input.shape.len()) {
            let value = match rank {
                0 => glue.front.op(&format!("{OURS}length/{name}"), "Squeeze", &[value]),
                _ => of_rank(&mut glue.front, (value, name), rank),
            };
            glue.feed(name, &value);
        }
    }
    Ok(Lengths { past, new })
}

/// Columns of the graph's mask, where it has one: those of the past, and behind them those of the new tokens.
fn columns(file: &str, graph: &Graph, names: &Names, count: usize) -> Result<Option<usize>, CompileError> {
    let Some(mask) = graph.inputs.iter().find(|input| input.name == names.mask) else { return Ok(None) };
    match &mask.shape[..] {
        [_, columns] if fixed(columns).is_some_and(|columns| columns >= count) => Ok(fixed(columns)),
        shape => {
            let what = format!("input {:?} of {file}", mask.name);
            let expected = format!("one row of so many columns, at least {count}");
            Err(refused(what, expected, format!("{} dimensions, {:?}", shape.len(), shape.last())))
        }
    }
}

/// `[1, columns]`: which columns hold a token, those of the new ones being `places`.
fn mask(g: &mut Builder, places: std::ops::Range<usize>, [past, new]: [&str; 2]) -> String {
    let scope = format!("{OURS}mask");
    let (zero, one, line) = (g.ints(&[], &[0]), g.ints(&[], &[1]), g.ints(&[2], &[1, -1]));
    let (first, end) = (g.ints(&[1], &[places.start as i64]), g.ints(&[], &[places.end as i64]));
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

/// Keys or values of a layer, as the graph takes and gives them.
struct Held {
    input: String,
    output: String,
    heads: usize,
    size: usize,
    /// Where the package's axes of batch, heads, tokens and elements are in the graph; the same way back.
    axes: [i64; 4],
    /// Tokens of the past that it takes, where that is fixed.
    past: Option<usize>,
    gives: Gives,
}

/// What a graph of fixed shapes gives of keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gives {
    /// Those of the new tokens.
    New,
    /// The past, and those of the new tokens behind it.
    Appended,
}

impl Held {
    /// Finds out how a graph that takes `tokens` at once holds one part of a layer.
    fn of(
        file: &str,
        [input, output]: [&Value; 2],
        (heads, size): (usize, usize),
        tokens: usize,
    ) -> Result<Self, CompileError> {
        let wrong = |value: &Value, expected: String| {
            let dims = value.shape.iter().map(|dim| match dim {
                Dim::Fixed(extent) => extent.to_string(),
                Dim::Symbol(name) => name.chars().take(40).collect(),
            });
            let found = format!("[{}]", dims.collect::<Vec<_>>().join(", "));
            refused(format!("{:?} of {file}", value.name), expected, found)
        };
        let is =
            |value: &Value, axis: usize, extent: usize| value.shape.get(axis).and_then(fixed) == Some(extent);
        let order = [(0, 1), (1, 0)].into_iter().find(|(batch, head)| {
            let one = is(input, *batch, 1) || input.shape.get(*batch).is_some_and(|dim| fixed(dim).is_none());
            input.shape.len() == 4 && output.shape.len() == 4 && one && is(input, *head, heads)
        });
        let of_one = || format!("a past of one sequence, {heads} heads and {size} elements each");
        let (batch, head) = order.ok_or_else(|| wrong(input, of_one()))?;
        let extent = |value: &Value, axis: usize| value.shape.get(axis).and_then(fixed);
        let grows =
            |axis: usize| extent(input, axis).is_none() || extent(input, axis) != extent(output, axis);
        let axis =
            [(2, 3), (3, 2)].into_iter().find(|(token, element)| is(input, *element, size) && grows(*token));
        let (token, element) = axis.ok_or_else(|| wrong(input, of_one()))?;
        let past = extent(input, token);
        let gives = match (past, extent(output, token)) {
            (_, Some(given)) if given == tokens => Gives::New,
            (Some(past), Some(given)) if given == past.saturating_add(tokens) => Gives::Appended,
            (None, None) => Gives::Appended,
            _ => {
                return Err(wrong(output, format!("those of {tokens} new tokens, alone or behind the past")));
            }
        };
        let (input, output) = (input.name.clone(), output.name.clone());
        let axes = [batch, head, token, element].map(|axis: usize| axis as i64);
        Ok(Self { input, output, heads, size, axes, past, gives })
    }

    /// ```text
    /// cache ── Slice(0..past) ── Pad ── Transpose ── graph ── Transpose ── Slice(new ones) ── new
    /// ```
    fn bring(&self, glue: &mut Glue, (layer, part): (usize, &str), lengths: &Lengths, empty: f32) {
        let (slot, new_slot) = match part {
            "key" => (Slot::PastKey { layer }, Slot::NewKey { layer }),
            _ => (Slot::PastValue { layer }, Slot::NewValue { layer }),
        };
        let shape = |tokens: &str| [1_usize.into(), self.heads.into(), tokens.into(), self.size.into()];
        let name = format!("past.{layer}.{part}");
        let scope = format!("{OURS}{name}");
        let cache = glue.input(slot, &name, DType::F32, &shape("capacity"));
        let g = &mut glue.front;
        let (axis, begin) = (g.ints(&[1], &[2]), g.ints(&[1], &[0]));
        let mut past = g.op(&scope, "Slice", &[&cache, &begin, &lengths.past, &axis]);
        if let Some(columns) = self.past {
            let most = g.ints(&[1], &[columns as i64]);
            let lacking = g.op(&scope, "Sub", &[&most, &lengths.past]);
            let (before, behind, value) = (g.ints(&[6], &[0; 6]), g.ints(&[1], &[0]), g.scalar(empty));
            let axis = [("axis", Attribute::Int(0))];
            let pads = g.op_with(&scope, "Concat", &[&before, &lacking, &behind], &axis);
            past = g.op(&scope, "Pad", &[&past, &pads, &value]);
        }
        let past = self.turned(g, &scope, past);
        glue.feed(&self.input, &past);
        let name = format!("new.{layer}.{part}");
        let scope = format!("{OURS}{name}");
        let g = &mut glue.back;
        let new = self.turned(g, &scope, self.output.clone());
        let axis = g.ints(&[1], &[2]);
        let begin = match (self.gives, self.past) {
            (Gives::New, _) => g.ints(&[1], &[0]),
            (Gives::Appended, Some(past)) => g.ints(&[1], &[past as i64]),
            (Gives::Appended, None) => lengths.past.clone(),
        };
        let end = g.op(&scope, "Add", &[&begin, &lengths.new]);
        let new = g.op(&scope, "Slice", &[&new, &begin, &end, &axis]);
        glue.output(new_slot, (&new, &name), DType::F32, &shape("sequence"));
    }

    /// A value with its axes in the graph's order, or out of it.
    fn turned(&self, g: &mut Builder, scope: &str, value: String) -> String {
        if self.axes.is_sorted() {
            return value;
        }
        g.op_with(scope, "Transpose", &[&value], &[("perm", Attribute::from(self.axes))])
    }
}

/// Every layer that the graph keeps keys and values of.
fn layers(
    file: &str,
    graph: &Graph,
    names: &Names,
    (settings, tokens): (&Settings, usize),
) -> Result<Vec<[Held; 2]>, CompileError> {
    let heads = settings.stated("the number of key and value heads", settings.kv_heads.or(settings.heads))?;
    let size = settings.stated("the size of a head", settings.head_size)?;
    let find = |values: &[Value], name: &str| values.iter().find(|value| value.name == name).cloned();
    let mut layers = Vec::new();
    while find(&graph.inputs, &Names::of(&names.past[0], layers.len())).is_some() {
        let layer = layers.len();
        if layer >= *LAYERS.end() {
            return Err(refused(format!("layers of {file}"), format!("at most {}", LAYERS.end()), "more"));
        }
        let held = |part: usize| {
            let (past, present) =
                (Names::of(&names.past[part], layer), Names::of(&names.present[part], layer));
            let absent =
                |name: &str| refused(format!("inputs and outputs of {file}"), name, "none of that name");
            let input = find(&graph.inputs, &past).ok_or_else(|| absent(&past))?;
            let output = find(&graph.outputs, &present).ok_or_else(|| absent(&present))?;
            Held::of(file, [&input, &output], (heads, size), tokens)
        };
        layers.push([held(0)?, held(1)?]);
    }
    Ok(layers)
}
