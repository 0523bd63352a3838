//! Decoders: a graph that takes tokens, a mask, positions and a past becomes one with the slots of variant A.
//!
//! Where its attention is GroupQueryAttention over single precision, past and present are one buffer, as in a package that
//! Narthex compiled. Any other graph appends to its past and gives both back: a slice before it takes the tokens that are
//! there out of the cache, and one behind it takes the new ones out of what it gives.

use narthex_checkpoint::limits::LAYERS;
use narthex_graph::{Attribute, Graph, Node, Value};
use narthex_spec::{
    DType,
    arch::{ImportedDecoder, Steps},
    dtype::Dim,
    manifest::{GraphEntry, KeyOrder, KeyRotation, KvLayout, Slot},
};

use super::{
    fixed, floats,
    glue::{Glue, OURS, TO_I64},
    head::asked_rows,
    refused, rotary,
    settings::Settings,
    unknown_inputs,
};
use crate::error::CompileError;

/// The graph's names of its inputs and outputs; `%d` stands for the layer.
#[derive(Debug, Clone)]
pub(super) struct Names {
    pub(super) tokens: String,
    pub(super) mask: String,
    pub(super) positions: String,
    /// How many tokens there are with the new ones, minus one; onnxruntime-genai calls it the past's length.
    pub(super) last: String,
    /// How many there are with the new ones, under two names.
    pub(super) totals: [String; 2],
    /// Keys and values so far.
    pub(super) past: [String; 2],
    /// The same with the new ones.
    pub(super) present: [String; 2],
    pub(super) logits: String,
}

/// Whether an `If` in the graph tells the beginning of a sequence from what follows.
pub(super) const BRANCH: &str = "use_cache_branch";

impl Default for Names {
    /// Those of Optimum.
    fn default() -> Self {
        let pair = |stem: &str| ["key", "value"].map(|part| format!("{stem}.%d.{part}"));
        Self {
            tokens: "input_ids".to_owned(),
            mask: "attention_mask".to_owned(),
            positions: "position_ids".to_owned(),
            last: "past_sequence_length".to_owned(),
            totals: ["total_sequence_length", "current_sequence_length"].map(str::to_owned),
            past: pair("past_key_values"),
            present: pair("present"),
            logits: "logits".to_owned(),
        }
    }
}

impl Names {
    pub(super) fn of(pattern: &str, layer: usize) -> String {
        pattern.replacen("%d", &layer.to_string(), 1)
    }

    /// The first layer's keys so far.
    pub(super) fn past_key(&self) -> String {
        Self::of(&self.past[0], 0)
    }

    /// Whether the graph keeps keys and values as a decoder does.
    pub(super) fn fit(&self, graph: &Graph) -> bool {
        let past = self.past_key();
        graph.inputs.iter().any(|input| input.name == past)
    }
}

/// A decoder's graph, and what it is.
pub(super) struct Decoder {
    pub(super) graph: Graph,
    pub(super) entry: GraphEntry,
    pub(super) imported: ImportedDecoder,
    /// The longest sequence, in tokens.
    pub(super) max_length: usize,
}

/// Puts a decoder's graph behind the slots of a package.
pub(super) fn decoder(
    file: &str,
    graph: Graph,
    names: &Names,
    settings: &Settings,
) -> Result<Decoder, CompileError> {
    let context = settings.stated("the longest sequence", settings.context)?;
    let max_length = rotary::first_set(&graph, context).map_or(context, |first| first.min(context));
    let layers = layers(file, &graph, names, settings)?;
    let steps = match graph.inputs.iter().any(|input| input.name == BRANCH) {
        true => Steps::OneAfterPast,
        false => Steps::Any,
    };
    let vocab = vocab((file, &graph), names, settings, None)?;
    let mut glue = Glue::around(file, graph)?;
    let pasts = layers.iter().flat_map(|layer| layer.past.iter().map(String::as_str));
    let lengths = names.totals.iter().chain([&names.last]).map(String::as_str);
    let known = [&*names.tokens, &*names.mask, &*names.positions, BRANCH];
    let known = known.into_iter().chain(lengths).chain(pasts);
    unknown_inputs(file, glue.foreign(), &known.collect::<Vec<_>>())?;
    let lengths = inputs(&mut glue, names);
    let shared = layers.iter().all(|layer| layer.shares(glue.foreign()));
    for (index, layer) in layers.iter().enumerate() {
        if shared { layer.share(&mut glue, index) } else { layer.append(&mut glue, index, &lengths) }
    }
    let logits_rows = glue.input(Slot::LogitsRows, "logits_rows", DType::I64, &["rows".into()]);
    let logits = asked_rows(&mut glue, &names.logits, &logits_rows);
    glue.output(Slot::Logits, (&logits, "logits"), DType::F32, &["rows".into(), vocab.into()]);
    let kv = layers.iter().map(Layer::layout).collect();
    let (graph, entry) = glue.finish(kv)?;
    Ok(Decoder { graph, entry, imported: ImportedDecoder { vocab, steps }, max_length })
}

/// Lengths that the cache's slices are cut by.
struct Lengths {
    /// `[1]`: tokens in the past of the one row.
    past: String,
}

/// Feeds tokens, mask and positions from the slots.
///
/// ```text
/// seqlens_k ── + 1 ── [batch, 1] ─┬─ Less(0..total) ── mask
///                                 └─ - sequence ── + (0..sequence) ── positions
/// ```
fn inputs(glue: &mut Glue, names: &Names) -> Lengths {
    let texts: [Dim; 2] = ["batch".into(), "sequence".into()];
    let tokens = glue.input(Slot::Tokens, "tokens", DType::I64, &texts);
    let seqlens_k = glue.input(Slot::SeqlensK, "seqlens_k", DType::I32, &["batch".into()]);
    let total = glue.input(Slot::TotalLength, "total_length", DType::I32, &[]);
    let at = |part: &str| format!("{OURS}{part}");
    let long = [("to", Attribute::Int(TO_I64))];
    let g = &mut glue.front;
    let (zero, one, column) = (g.ints(&[], &[0]), g.ints(&[], &[1]), g.ints(&[2], &[-1, 1]));
    let shape = g.op(&at("sequence"), "Shape", &[&tokens]);
    let sequence = g.op(&at("sequence"), "Gather", &[&shape, &one]);
    let total = g.op_with(&at("total"), "Cast", &[&total], &long);
    let last = g.op_with(&at("last"), "Cast", &[&seqlens_k], &long);
    let lengths = g.op(&at("lengths"), "Add", &[&last, &one]);
    let lengths = g.op(&at("lengths"), "Reshape", &[&lengths, &column]);
    let all = g.op(&at("mask"), "Range", &[&zero, &total, &one]);
    let mask = g.op(&at("mask"), "Less", &[&all, &lengths]);
    let begin = g.op(&at("positions"), "Sub", &[&lengths, &sequence]);
    let new = g.op(&at("positions"), "Range", &[&zero, &sequence, &one]);
    let positions = g.op(&at("positions"), "Add", &[&begin, &new]);
    let past = g.op(&at("past"), "Sub", &[&total, &sequence]);
    let (flat, nothing) = (g.ints(&[1], &[-1]), g.ints(&[1], &[0]));
    let past = g.op(&at("past"), "Reshape", &[&past, &flat]);
    let follows = g.op(&at("past"), "Greater", &[&past, &nothing]);
    let fed =
        [(&*names.tokens, &tokens), (&names.mask, &mask), (&names.positions, &positions), (BRANCH, &follows)];
    for (name, value) in fed {
        if glue.foreign().inputs.iter().any(|input| input.name == name) {
            glue.feed(name, value);
        }
    }
    for (name, value) in names.totals.iter().map(|name| (name, &total)).chain([(&names.last, &last)]) {
        let declared = glue.foreign().inputs.iter().find(|input| input.name == *name);
        if let Some(rank) = declared.map(|input| input.shape.len()) {
            let value = of_rank(&mut glue.front, (value, name), rank);
            glue.feed(name, &value);
        }
    }
    Lengths { past }
}

/// A scalar or a list, for the input `name`, as a value of `rank` dimensions, of which all but the first are 1.
pub(super) fn of_rank(g: &mut narthex_graph::Builder, (value, name): (&str, &str), rank: usize) -> String {
    if rank == 0 {
        return value.to_owned();
    }
    let mut shape = vec![1; rank];
    shape[0] = -1;
    let shape = g.ints(&[rank], &shape);
    g.op(&format!("{OURS}length/{name}"), "Reshape", &[value, &shape])
}

/// One layer's keys and values in the graph.
struct Layer {
    past: [String; 2],
    present: [String; 2],
    /// Sequences that the graph takes at once: 1 where it says so, else any number.
    batch: Dim,
    heads: usize,
    head_size: usize,
    dtype: DType,
}

impl Layer {
    fn layout(&self) -> KvLayout {
        KvLayout {
            heads: self.heads,
            head_size: self.head_size,
            window: None,
            dtype: DType::F32,
            keys: KeyRotation::After,
            order: KeyOrder::Rows,
        }
    }

    fn shape(&self, tokens: &str) -> [Dim; 4] {
        [self.batch.clone(), self.heads.into(), tokens.into(), self.head_size.into()]
    }

    /// Whether the layer's attention can write new keys and values to where the past lies.
    fn shares(&self, graph: &Graph) -> bool {
        let [key, value] = &self.past;
        let reads = |node: &&Node| node.inputs.contains(key) || node.inputs.contains(value);
        let mut readers = graph.nodes.iter().filter(reads);
        let attention = |node: &Node| {
            let gives = |index: usize, name: &String| node.outputs.get(index) == Some(name);
            node.operator() == "com.microsoft.GroupQueryAttention"
                && (node.input(3), node.input(4)) == (Some(key), Some(value))
                && gives(1, &self.present[0])
                && gives(2, &self.present[1])
        };
        self.dtype == DType::F32 && readers.next().is_some_and(attention) && readers.next().is_none()
    }

    fn share(&self, glue: &mut Glue, layer: usize) {
        let [past_key, past_value] = &self.past;
        let [key, value] = &self.present;
        let shape = self.shape("capacity");
        glue.keep_input(Slot::PastKey { layer }, past_key, DType::F32, &shape);
        glue.keep_input(Slot::PastValue { layer }, past_value, DType::F32, &shape);
        glue.keep_output(Slot::PresentKey { layer }, key, DType::F32, &shape);
        glue.keep_output(Slot::PresentValue { layer }, value, DType::F32, &shape);
    }

    /// ```text
    /// cache ── Slice(0..past) ── graph ── Slice(past..) ── new
    /// ```
    fn append(&self, glue: &mut Glue, layer: usize, lengths: &Lengths) {
        let pasts = [Slot::PastKey { layer }, Slot::PastValue { layer }];
        let news = [Slot::NewKey { layer }, Slot::NewValue { layer }];
        for (index, part) in ["key", "value"].into_iter().enumerate() {
            let name = format!("past.{layer}.{part}");
            let cache = glue.input(pasts[index], &name, DType::F32, &self.shape("capacity"));
            let slice = |g: &mut narthex_graph::Builder, scope: &str, value: &str, range: [&str; 2]| {
                let tokens = g.ints(&[1], &[2]);
                g.op(&format!("{OURS}{scope}"), "Slice", &[value, range[0], range[1], &tokens])
            };
            let begin = glue.front.ints(&[1], &[0]);
            let past = slice(&mut glue.front, &name, &cache, [&begin, &lengths.past]);
            glue.feed(&self.past[index], &past);
            let name = format!("new.{layer}.{part}");
            let end = glue.back.ints(&[1], &[i64::MAX]);
            let new = slice(&mut glue.back, &name, &self.present[index], [&lengths.past, &end]);
            glue.output(news[index], (&new, &name), DType::F32, &self.shape("sequence"));
        }
    }
}

/// Every layer that the graph keeps keys and values of.
fn layers(file: &str, graph: &Graph, names: &Names, settings: &Settings) -> Result<Vec<Layer>, CompileError> {
    let input = |name: &str| graph.inputs.iter().find(|value| value.name == name);
    let output = |name: &str| graph.outputs.iter().find(|value| value.name == name);
    let mut layers = Vec::new();
    while let Some(past) = input(&Names::of(&names.past[0], layers.len())) {
        let layer = layers.len();
        if layer >= *LAYERS.end() {
            return Err(refused(format!("layers of {file}"), format!("at most {}", LAYERS.end()), "more"));
        }
        let named = |patterns: &[String; 2]| patterns.each_ref().map(|pattern| Names::of(pattern, layer));
        let (pasts, presents) = (named(&names.past), named(&names.present));
        let absent = |name: &&String| input(name).is_none() && output(name).is_none();
        if let Some(name) = pasts.iter().chain(&presents).find(absent) {
            return Err(refused(format!("inputs and outputs of {file}"), name.as_str(), "none of that name"));
        }
        let (heads, head_size) = extents(file, past, output(&presents[0]), settings)?;
        let batch = match past.shape.first() {
            Some(Dim::Fixed(1)) => 1_usize.into(),
            _ => "batch".into(),
        };
        let dtype = floats(file, past)?;
        layers.push(Layer { past: pasts, present: presents, batch, heads, head_size, dtype });
    }
    Ok(layers)
}

/// Heads and head size of a layer, from its past, what it gives, or the settings.
fn extents(
    file: &str,
    past: &Value,
    present: Option<&Value>,
    settings: &Settings,
) -> Result<(usize, usize), CompileError> {
    if past.shape.len() != 4 {
        let expected = "4 dimensions: batch, heads, tokens and head size";
        return Err(refused(format!("input {:?} of {file}", past.name), expected, past.shape.len()));
    }
    let extent = |axis: usize| {
        let of = |value: &Value| value.shape.get(axis).and_then(fixed);
        of(past).or_else(|| present.and_then(of)).filter(|&extent| extent > 0)
    };
    let heads = extent(1).or(settings.kv_heads).or(settings.heads);
    let size = extent(3).or(settings.head_size);
    Ok((
        settings.stated("the number of key and value heads", heads)?,
        settings.stated("the size of a head", size)?,
    ))
}

/// Vocabulary entries: the last extent of the logits, which are for every token; those are `tokens` where that is fixed.
pub(super) fn vocab(
    (file, graph): (&str, &Graph),
    names: &Names,
    settings: &Settings,
    tokens: Option<usize>,
) -> Result<usize, CompileError> {
    let what = || format!("output {:?} of {file}", names.logits);
    let logits = graph.outputs.iter().find(|output| output.name == names.logits);
    let logits = logits.ok_or_else(|| refused(what(), "logits", "no such output"))?;
    floats(file, logits)?;
    let given = logits.shape.get(1).and_then(fixed).filter(|_| logits.shape.len() == 3);
    match given {
        Some(given) if tokens != Some(given) => {
            let expected = "logits of every token";
            return Err(refused(what(), expected, format!("those of a fixed number of tokens, {given}")));
        }
        _ => {}
    }
    let last = logits.shape.last().and_then(fixed).filter(|&extent| extent > 0);
    settings.stated("vocab_size", last.or(settings.vocab))
}
