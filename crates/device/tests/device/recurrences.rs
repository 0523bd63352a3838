//! Recurrences: ONNX Runtime's operator compared with a plain loop, and the graphs of Qwen3.5 and Granite 4, whose states are
//! carried from step to step, with the reference implementation.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{collections::BTreeMap, fs};

use narthex_compile::calibration::GraphRunner;
use narthex_device::single_run::run;
use narthex_graph::typed::{LinearAttention, Scope, TensorType, TypedBuilder, UpdateRule};
use narthex_spec::{
    DType, Elements, Feed, Fetch, Recipe, ScalingMethod, Scheme, TokenId,
    dtype::Dim,
    manifest::{GraphEntry, Slot},
};

use crate::support::{
    CpuRunner, Package,
    families::{Format, TOKENS, logits, package, rows, tensor, tokens},
    relative, runtime,
};

/// Maximum relative L2 distance to the reference.
const SINGLE: f32 = 1e-3;

/// As [`SINGLE`], for weights in half precision.
const HALF: f32 = 0.01;

/// As [`SINGLE`], for weights of 8 bits, whose small errors these random models amplify.
const EIGHT_BITS: f32 = 0.2;

/// Extents of a rule.
#[derive(Debug, Clone, Copy)]
struct Extents {
    batch: usize,
    tokens: usize,
    heads: usize,
    key: usize,
    value: usize,
    /// True for the delta rule. Otherwise rates are not read, and queries are not divided.
    is_delta: bool,
}

impl Extents {
    fn rows(&self, width: usize) -> Vec<usize> {
        vec![self.batch, self.tokens, self.heads * width]
    }

    fn state(&self) -> Vec<usize> {
        vec![self.batch, self.heads, self.key, self.value]
    }
}

/// Queries, keys, values, the past state, decays and rates.
type Operands = [Vec<f32>; 6];

/// Returns pseudo-random numbers from -1 to 1.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Computes the rule token by token. Returns the outputs and the state.
fn recurrence(extents: Extents, operands: &Operands) -> [Vec<f32>; 2] {
    let Extents { batch, tokens, heads, key: keys, value: values, is_delta } = extents;
    let [query, key, value, past, decay, rate] = operands;
    let mut state = past.clone();
    let mut out = Vec::new();
    for row in 0..batch * tokens {
        for head in 0..heads {
            let at = row * heads + head;
            let [q, k] = [query, key].map(|rows| &rows[at * keys..][..keys]);
            let v = &value[at * values..][..values];
            let place = (row / tokens * heads + head) * keys * values;
            let state = &mut state[place..][..keys * values];
            state.iter_mut().for_each(|element| *element *= decay[at].exp());
            for column in 0..values {
                let read: f32 = (0..keys).map(|i| state[i * values + column] * k[i]).sum();
                let update = if is_delta { rate[at] * (v[column] - read) } else { v[column] };
                (0..keys).for_each(|i| state[i * values + column] += k[i] * update);
                let read: f32 = (0..keys).map(|i| state[i * values + column] * q[i]).sum();
                out.push(if is_delta { read / (keys as f32).sqrt() } else { read });
            }
        }
    }
    [out, state]
}

/// Runs ONNX Runtime's operator.
fn operator(extents: Extents, operands: &Operands) -> [Vec<f32>; 2] {
    let shapes = [
        extents.rows(extents.key),
        extents.rows(extents.key),
        extents.rows(extents.value),
        extents.state(),
        extents.rows(1),
        extents.rows(1),
    ];
    let kind = |shape: &[usize]| {
        TensorType::new(DType::F32, &shape.iter().map(|&extent| extent.into()).collect::<Vec<Dim>>())
    };
    let names = ["query", "key", "value", "past", "decay", "rate"];
    let mut b = TypedBuilder::new("rule", &[("", 20), ("com.microsoft", 1)]);
    let mut index = 0;
    let [query, key, value, past, decay, rate] = names.map(|name| {
        index += 1;
        b.input(name, kind(&shapes[index - 1]))
    });
    let rule = if extents.is_delta { UpdateRule::GatedDelta(rate) } else { UpdateRule::Gated };
    let attention = LinearAttention { query, key, value, past, decay, rule, heads: extents.heads };
    let outputs = b.linear_attention(&Scope::root(), &attention).unwrap();
    let wanted = [("out", shapes[2].clone()), ("state", shapes[3].clone())];
    for ((name, shape), tensor) in wanted.iter().zip(outputs) {
        b.output(name, tensor, &kind(shape)).unwrap();
    }

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("graph.onnx");
    fs::write(&file, b.finish().encode()).unwrap();
    let feeds = names.iter().zip(shapes).zip(operands).map(|((name, shape), values)| Feed {
        name: (*name).to_owned(),
        shape,
        elements: Elements::F32(values.clone()),
    });
    let fetches = wanted.map(|(name, shape)| Fetch { name: name.to_owned(), shape });
    run(runtime(), &file, 2, feeds.collect(), &fetches).unwrap().try_into().unwrap()
}

#[test]
fn the_operator_computes_the_recurrence() {
    let sizes = [[1, 1, 1, 4, 4], [2, 7, 3, 8, 16], [1, 150, 4, 16, 8]];
    for ([batch, tokens, heads, key, value], is_delta) in
        sizes.into_iter().flat_map(|sizes| [(sizes, true), (sizes, false)])
    {
        let extents = Extents { batch, tokens, heads, key, value, is_delta };
        let count = |shape: Vec<usize>| shape.iter().product::<usize>();
        let rows = count(extents.rows(1));
        let positive = |values: Vec<f32>| values.into_iter().map(f32::abs).collect::<Vec<_>>();
        let mut keys = numbers(rows * key, 2);
        for key in keys.chunks_exact_mut(key) {
            let length = key.iter().map(|x| x * x).sum::<f32>().sqrt();
            key.iter_mut().for_each(|element| *element /= length);
        }
        let mut decay = positive(numbers(rows, 5));
        decay.iter_mut().for_each(|factor| *factor *= -0.2);
        let mut operands = [
            numbers(rows * key, 1),
            keys,
            numbers(rows * value, 3),
            numbers(count(extents.state()), 4),
            decay,
            positive(numbers(rows, 6)),
        ];
        for (found, expected) in operator(extents, &operands).iter().zip(recurrence(extents, &operands)) {
            assert!(relative(found, &expected) <= 1e-5, "{extents:?}");
        }

        // Padding has no decay, no rate and no value, and changes no state.
        operands[2].fill(if is_delta { 1.0 } else { 0.0 });
        operands[4].fill(0.0);
        operands[5].fill(0.0);
        assert_eq!(operator(extents, &operands)[1], operands[3], "{extents:?}");
    }
}

/// A graph with the caches and states of several sequences.
struct CarriedGraph {
    package: Package,
    embeddings: Vec<f32>,
    /// Elements of the inputs for the past.
    past: BTreeMap<Slot, Vec<f32>>,
    /// Number of past tokens of each sequence.
    lengths: Vec<usize>,
}

/// The families, by their folders.
const FAMILIES: [&str; 3] = ["qwen3.5", "granite-4-h", "granite-4-h-moe"];

const HIDDEN: usize = 64;
const VOCAB: usize = 80;

/// Returns the input of the next step that an output is.
fn next_past(slot: Slot) -> Option<Slot> {
    match slot {
        Slot::PresentKey { layer } => Some(Slot::PastKey { layer }),
        Slot::PresentValue { layer } => Some(Slot::PastValue { layer }),
        Slot::PresentState { layer } => Some(Slot::PastState { layer }),
        Slot::PresentConvolutionState { layer } => Some(Slot::PastConvolutionState { layer }),
        _ => None,
    }
}

impl CarriedGraph {
    fn new(family: &str, batch: usize) -> Self {
        Self::of(family, batch, Recipe::new(Scheme::F32), None)
    }

    fn of(family: &str, batch: usize, recipe: Recipe, runner: Option<&dyn GraphRunner>) -> Self {
        Self::with_package(family, batch, package(family, Format::Safetensors, recipe, runner))
    }

    fn with_package(family: &str, batch: usize, package: Package) -> Self {
        let part = if family == "qwen3.5" { "language_model." } else { "" };
        let embeddings = tensor(family, &format!("model.{part}embed_tokens.weight"));
        let mut graph = Self { package, embeddings, past: BTreeMap::new(), lengths: vec![0; batch] };
        let entry = graph.entry().clone();
        for slot in entry.outputs.iter().filter_map(|output| next_past(output.slot)) {
            let shape = graph.shape(&entry.input(slot).unwrap().shape, 0);
            graph.past.insert(slot, vec![0.0; shape.iter().product()]);
        }
        graph
    }

    fn entry(&self) -> &GraphEntry {
        &self.package.manifest.graphs[0]
    }

    fn shape(&self, dims: &[Dim], sequence: usize) -> Vec<usize> {
        let extents = dims.iter().map(|dim| match dim {
            Dim::Fixed(extent) => *extent as usize,
            Dim::Symbol(name) => match name.as_str() {
                "batch" => self.lengths.len(),
                "sequence" => sequence,
                "rows" => self.lengths.len() * sequence,
                "capacity" => TOKENS,
                other => panic!("{other}"),
            },
        });
        extents.collect()
    }

    /// Returns the elements of an input. Padding has the rows of token 7.
    fn elements(&self, slot: Slot, new: &[&[TokenId]], sequence: usize) -> Elements {
        let places = new.iter().flat_map(|tokens| (0..sequence).map(move |at| tokens.get(at)));
        let totals = self.lengths.iter().zip(new).map(|(length, tokens)| (length + tokens.len()) as i32);
        match slot {
            Slot::Embeds => Elements::F32(
                places
                    .flat_map(|token| {
                        self.embeddings[token.map_or(7, |&token| token as usize) * HIDDEN..][..HIDDEN]
                            .to_vec()
                    })
                    .collect(),
            ),
            Slot::TokenMask => {
                Elements::F32(places.map(|token| if token.is_some() { 1.0 } else { 0.0 }).collect())
            }
            Slot::SeqlensK => Elements::I32(totals.map(|total| total - 1).collect()),
            Slot::TotalLength => Elements::I32(vec![totals.max().unwrap()]),
            Slot::LogitsRows => Elements::I64((0..(new.len() * sequence) as i64).collect()),
            slot => Elements::F32(self.past[&slot].clone()),
        }
    }

    /// Continues each sequence by its tokens. Returns the logits after each token of each sequence.
    fn step(&mut self, new: &[&[TokenId]]) -> Vec<Vec<Vec<f32>>> {
        let sequence = new.iter().map(|tokens| tokens.len()).max().unwrap();
        let entry = self.entry();
        let feeds = entry.inputs.iter().map(|input| Feed {
            name: input.name.clone(),
            shape: self.shape(&input.shape, sequence),
            elements: self.elements(input.slot, new, sequence),
        });
        let fetches = entry
            .outputs
            .iter()
            .map(|output| Fetch { name: output.name.clone(), shape: self.shape(&output.shape, sequence) });
        let file = self.package.folder.path().join(&entry.file);
        let fetches: Vec<Fetch> = fetches.collect();
        let results = run(runtime(), &file, 2, feeds.collect(), &fetches).unwrap();

        let slots: Vec<Slot> = entry.outputs.iter().map(|output| output.slot).collect();
        let mut logits = Vec::new();
        for (slot, values) in slots.into_iter().zip(results) {
            match next_past(slot) {
                Some(past) => drop(self.past.insert(past, values)),
                None => logits = values,
            }
        }
        let rows: Vec<Vec<f32>> = logits.chunks_exact(VOCAB).map(<[f32]>::to_vec).collect();
        self.lengths.iter_mut().zip(new).for_each(|(length, tokens)| *length += tokens.len());
        rows.chunks_exact(sequence).zip(new).map(|(rows, tokens)| rows[..tokens.len()].to_vec()).collect()
    }
}

fn agree(found: &[Vec<f32>], expected: &[Vec<f32>], how: &str) {
    assert_eq!(found.len(), expected.len(), "{how}");
    for (token, (found, expected)) in found.iter().zip(expected).enumerate() {
        let distance = relative(found, expected);
        assert!(distance <= SINGLE, "{how}, token {token}: {distance}");
    }
}

#[test]
fn the_graph_continues_its_states() {
    for family in FAMILIES {
        let (tokens, expected) = (tokens(), logits(family));
        let whole = CarriedGraph::new(family, 1).step(&[&tokens]);
        agree(&whole[0], &expected, family);
        let mut graph = CarriedGraph::new(family, 1);
        for range in [0..1, 1..3, 3..20, 20..21, 21..40] {
            agree(
                &graph.step(&[&tokens[range.clone()]])[0],
                &expected[range.clone()],
                &format!("{family} {range:?}"),
            );
        }
    }
}

/// llama.cpp's files have the heads of values of delta rules in another order, and vectors of Mamba-2 with two dimensions.
#[test]
fn a_gguf_file_has_the_same_logits() {
    for family in FAMILIES {
        let package = package(family, Format::Gguf, Recipe::new(Scheme::F32), None);
        let found = CarriedGraph::with_package(family, 1, package).step(&[&tokens()]);
        agree(&found[0], &logits(family), &format!("{family}, GGUF"));
    }
}

#[test]
fn layers_can_be_left_out() {
    for family in FAMILIES {
        let recipe = Recipe { drop_layers: Some("0".parse().unwrap()), ..Recipe::new(Scheme::F32) };
        let found = CarriedGraph::of(family, 1, recipe, None).step(&[&tokens()]);
        agree(&found[0], &rows(family, "dropped.f32"), &format!("{family} without the first layer"));
    }
}

#[test]
fn schemes_and_scales_of_channels_keep_the_logits() {
    for family in FAMILIES {
        let single = Recipe::new(Scheme::F32);
        let exact = |scheme| Recipe { accuracy_level: 0, ..Recipe::new(scheme) };
        let cases = [
            (Recipe { scaling: ScalingMethod::Smooth, ..single }, true, SINGLE),
            (Recipe::new(Scheme::F16), false, HALF),
            (exact(Scheme::W8), false, EIGHT_BITS),
            (exact(Scheme::W8), true, EIGHT_BITS),
        ];
        let plain = CarriedGraph::new(family, 1);
        for (recipe, is_measured, bound) in cases {
            let how = format!("{family} {recipe:?}");
            let runner = is_measured.then_some(&CpuRunner as &dyn GraphRunner);
            let mut graph = CarriedGraph::of(family, 1, recipe, runner);
            if is_measured {
                let data = |graph: &CarriedGraph| graph.package.manifest.files["model.onnx.data"].sha256;
                assert_ne!(data(&graph), data(&plain), "{how}");
            }
            let found = graph.step(&[&tokens()]);
            for (found, expected) in found[0].iter().zip(&logits(family)) {
                let distance = relative(found, expected);
                assert!(distance <= bound, "{how}: {distance}");
            }
        }
    }
}

#[test]
fn padding_changes_no_state() {
    for family in FAMILIES {
        let (tokens, expected) = (tokens(), logits(family));
        let mut graph = CarriedGraph::new(family, 2);
        let ends = [17, 2];
        for (row, (found, end)) in graph.step(&ends.map(|end| &tokens[..end])).iter().zip(ends).enumerate() {
            agree(found, &expected[..end], &format!("{family} sequence {row}"));
        }
        for step in 0..20 {
            let next = ends.map(|end| end + step);
            for (found, next) in graph.step(&next.map(|next| &tokens[next..=next])).iter().zip(next) {
                agree(found, &expected[next..=next], &format!("{family} step {step}"));
            }
        }
    }
}
