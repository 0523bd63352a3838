//! Alternating updates (Baykal et al. 2023, arXiv:2301.13310) as Gemma 3n has them: several residual streams, of which a
//! layer computes one, with a learned low-rank residual (LAuReL, Menghani et al. 2024, arXiv:2411.07501) and per-layer
//! embeddings. Follows `Gemma3nTextModel` of `transformers`.
//!
//! Nodes keep the batch and the sequence as they come, so both variants are made here; attention is the caller's.

use std::ops::Range;

use narthex_graph::Attribute;
use narthex_spec::arch::{AltUp, DecoderArch, DecoderLayer, PerLayer};

use super::{
    linear::{Bias, Linear, linear},
    mlp,
    norm::{Carried, unit_norm},
    plain::{scale, split_all},
};
use crate::{emit::Emitter, error::CompileError};

/// The least mean square that a projected stream is divided by the root of.
const LEAST: f32 = 1e-5;

/// The streams of a decoder under construction.
pub(crate) struct Streams<'a> {
    arch: &'a DecoderArch,
    altup: &'a AltUp,
    carried: Carried,
    /// `[batch, sequence, streams, hidden]`.
    stack: String,
    /// The first of these layers.
    first: usize,
    /// For each layer, the tokens' rows `[batch, sequence, width]`; empty where there are none.
    rows: Vec<String>,
}

/// A linear layer without a bias.
fn project(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weights): (&str, &str),
    cols: usize,
) -> Result<String, CompileError> {
    let parts = [weights.to_owned()];
    linear(e, x, &Linear { scope, parts: &parts, cols, bias: Bias::Without })
}

/// The path of a layer's part in the graph, and the name of its weights.
fn at(index: usize, part: &str) -> (String, String) {
    (format!("/layers.{index}/{}", part.replace('.', "/")), format!("layers.{index}.{part}"))
}

/// `Reshape` that keeps the batch and the sequence.
fn shaped(e: &mut Emitter<'_>, scope: &str, x: &str, rest: &[usize]) -> String {
    let extents: Vec<i64> = [0, 0].into_iter().chain(rest.iter().map(|&extent| extent as i64)).collect();
    let extents = e.graph.ints(&[extents.len()], &extents);
    e.graph.op(scope, "Reshape", &[x, &extents])
}

impl<'a> Streams<'a> {
    /// The streams before the first layer: the embedded token, and projections of it that are made as large as it is. A
    /// row's size is the mean of it times itself normalised, which half precision holds where it might not hold squares.
    ///
    /// ```text
    /// x ─┬───────────────────────────────────────────────────────┬─ Concat
    ///    ├─ proj (of every other stream) ── unit norm ─┬─ Mul ───┘
    ///    └─ Mul(unit norm) ── ReduceMean ──────────────┘
    /// ```
    pub(crate) fn begin(
        e: &mut Emitter<'_>,
        (arch, altup): (&'a DecoderArch, &'a AltUp),
        carried: Carried,
        x: &str,
    ) -> Result<Self, CompileError> {
        let (hidden, others) = (arch.hidden, altup.streams - 1);
        let parts: Vec<String> = (0..others).map(|stream| format!("altup.proj.{stream}")).collect();
        let spec = Linear { scope: "/altup/proj", parts: &parts, cols: hidden, bias: Bias::Without };
        let projected = linear(e, x, &spec)?;
        let projected = shaped(e, "/altup/proj/streams", &projected, &[others, hidden]);
        let least = LEAST * carried.shrink * carried.shrink;
        let projected = unit_norm(e, &projected, "/altup/proj/norm", (hidden, least))?;
        let first = shaped(e, "/altup/first", x, &[1, hidden]);
        let unit = unit_norm(e, &first, "/altup/size", (hidden, carried.norm.epsilon))?;
        let product = e.graph.op("/altup/size", "Mul", &[&first, &unit]);
        let last = e.graph.ints(&[1], &[-1]);
        let size = e.graph.op("/altup/size", "ReduceMean", &[&product, &last]);
        let projected = e.graph.op("/altup/proj", "Mul", &[&projected, &size]);
        let axis = [("axis", Attribute::Int(2))];
        let stack = e.graph.op_with("/altup", "Concat", &[&first, &projected], &axis);
        Ok(Self { arch, altup, carried, stack, first: 0, rows: Vec::new() })
    }

    /// The streams before layer `first`, as [`Self::flat`] gave them after the layer before it.
    pub(crate) fn resume(
        e: &mut Emitter<'_>,
        (arch, altup): (&'a DecoderArch, &'a AltUp),
        carried: Carried,
        (states, first): (&str, usize),
    ) -> Self {
        let stack = shaped(e, "/altup/states", states, &[altup.streams, arch.hidden]);
        Self { arch, altup, carried, stack, first, rows: Vec::new() }
    }

    /// The streams side by side, `[batch, sequence, streams · hidden]`.
    pub(crate) fn flat(&self, e: &mut Emitter<'_>) -> String {
        shaped(e, "/altup/flat", &self.stack, &[self.altup.streams * self.arch.hidden])
    }

    /// What layers gate, `[batch, sequence, layers · width]`, of the tokens' rows of the per-layer table and of `x`, the
    /// embedded tokens.
    /// That the projection is multiplied with `1 / √hidden` is the norm's epsilon's matter. They are kept as small as the
    /// stream is carried, so that what they gate is small too.
    ///
    /// ```text
    /// x ── proj ── norm(each layer's part, gain / √2) ── Add
    /// rows ── Mul(√width / √2) ──────────────────────────┘
    /// ```
    pub(crate) fn rows(
        &self,
        e: &mut Emitter<'_>,
        per_layer: &PerLayer,
        (x, rows): (&str, &str),
    ) -> Result<String, CompileError> {
        let (layers, width, hidden) = (self.arch.layers.len(), per_layer.width, self.arch.hidden);
        let half = 0.5f64.sqrt() * f64::from(self.carried.shrink);
        let projected = project(e, x, ("/per_layer/proj", "per_layer.proj"), hidden)?;
        let projected = shaped(e, "/per_layer/norm/layers", &projected, &[layers, width]);
        let mut norm = self.carried.norm;
        (norm.width, norm.epsilon) = (width, norm.epsilon * hidden as f32);
        let projected = norm.of_branch(e, &projected, ("/per_layer/norm", "per_layer.norm"), half as f32)?;
        let projected = shaped(e, "/per_layer/norm/rows", &projected, &[layers * width]);
        let rows = scale(e, "/per_layer/rows", rows, (width as f64).sqrt() * half);
        Ok(e.graph.op("/per_layer", "Add", &[&projected, &rows]))
    }

    /// Takes the rows of a range of layers out of [`Self::rows`].
    pub(crate) fn take_rows(
        &mut self,
        e: &mut Emitter<'_>,
        per_layer: &PerLayer,
        (rows, range): (&str, Range<usize>),
    ) {
        let (width, count) = (per_layer.width, range.len());
        let own = if count == self.arch.layers.len() {
            rows.to_owned()
        } else {
            let ends = [range.start * width, range.end * width, 2];
            let [from, to, axis] = ends.map(|value| e.graph.ints(&[1], &[value as i64]));
            e.graph.op("/per_layer", "Slice", &[rows, &from, &to, &axis])
        };
        self.rows = split_all(e, "/per_layer", &own, 2, &vec![width; count]);
    }

    /// One layer, whose attention `attend` makes of a norm of the stream.
    ///
    /// ```text
    /// streams ── predict ─┬─────────────────────── correct ── add rows ── streams
    ///                     └─ active ── compute ────┘
    /// ```
    pub(crate) fn layer(
        &mut self,
        e: &mut Emitter<'_>,
        (index, layer): (usize, &DecoderLayer),
        attend: impl FnOnce(&mut Emitter<'_>, &str) -> Result<String, CompileError>,
    ) -> Result<(), CompileError> {
        let router = self.router(e, index)?;
        let predicted = self.predict(e, index, &router)?;
        let active = self.active(e, &format!("/layers.{index}/altup/predict"), &predicted);
        let computed = self.compute(e, (index, layer), &active, attend)?;
        let corrected = self.correct(e, (index, &router), &predicted, (&active, &computed))?;
        self.stack = match self.rows.get(index - self.first).cloned() {
            Some(rows) => self.add_rows(e, (index, layer), corrected, &rows)?,
            None => corrected,
        };
        Ok(())
    }

    /// The stream that layers compute, `[batch, sequence, hidden]`, out of a stack.
    fn active(&self, e: &mut Emitter<'_>, scope: &str, stack: &str) -> String {
        let active = self.altup.active as i64;
        let [from, to, axis] = [active, active + 1, 2].map(|value| e.graph.ints(&[1], &[value]));
        let one = e.graph.op(&format!("{scope}/active"), "Slice", &[stack, &from, &to, &axis]);
        shaped(e, &format!("{scope}/active"), &one, &[self.arch.hidden])
    }

    /// A small weight `[rows, cols]`, transposed.
    fn small(e: &mut Emitter<'_>, name: &str, (rows, cols): (usize, usize)) -> Result<String, CompileError> {
        let weight = format!("{name}.weight");
        let all: Vec<usize> = (0..cols).collect();
        e.tensor(&weight, &[cols, rows], |e| e.columns(&weight, (rows, cols), &all))
    }

    /// The names of a layer's router: its gain, over which the width divides, and its weight.
    fn router(&self, e: &mut Emitter<'_>, index: usize) -> Result<[String; 2], CompileError> {
        let hidden = self.arch.hidden;
        let name = format!("layers.{index}.altup.router_norm.weight");
        let gain = e.tensor(&name, &[hidden], |e| {
            let gain = e.values(&name, &[hidden])?;
            Ok(gain.into_iter().map(|gain| gain / hidden as f32).collect())
        })?;
        let weight = Self::small(e, &format!("layers.{index}.altup.router"), (self.altup.streams, hidden))?;
        Ok([gain, weight])
    }

    /// What coefficients are made of: `x ── norm ── router ── Tanh`, `[batch, sequence, streams]`.
    fn routed(&self, e: &mut Emitter<'_>, scope: &str, x: &str, [gain, weight]: &[String; 2]) -> String {
        let attributes = [("axis", Attribute::Int(-1)), ("epsilon", self.carried.norm.epsilon.into())];
        let scope = format!("{scope}/router");
        let normed = e.graph.op_with(&scope, "SimplifiedLayerNormalization", &[x, gain], &attributes);
        let routed = e.graph.op(&scope, "MatMul", &[&normed, weight]);
        e.graph.op(&scope, "Tanh", &[&routed])
    }

    /// Every stream plus what the active one's router mixes of all of them.
    ///
    /// ```text
    /// stack ─┬─ active ── router ── predict ─┬─ MatMul ── Add
    ///        └───────────────────────────────┴────────────┘
    /// ```
    fn predict(
        &self,
        e: &mut Emitter<'_>,
        index: usize,
        router: &[String; 2],
    ) -> Result<String, CompileError> {
        let (scope, count) = (format!("/layers.{index}/altup/predict"), self.altup.streams);
        let active = self.active(e, &format!("{scope}/before"), &self.stack);
        let routed = self.routed(e, &scope, &active, router);
        let weight = Self::small(e, &format!("layers.{index}.altup.predict"), (count * count, count))?;
        let mixing = e.graph.op(&format!("{scope}/mixing"), "MatMul", &[&routed, &weight]);
        let mixing = shaped(e, &format!("{scope}/mixing"), &mixing, &[count, count]);
        let mixed = e.graph.op(&scope, "MatMul", &[&mixing, &self.stack]);
        Ok(e.graph.op(&scope, "Add", &[&mixed, &self.stack]))
    }

    /// ```text
    /// active ─┬─ norm ─┬─ attention ── norm ─┬─ Add ── Mul(1 / √2) ─┬─ norm ── mlp ── norm ─┬─ Add
    ///         │        └─ laurel ────────────┤                      └───────────────────────┘
    ///         └──────────────────────────────┘
    /// ```
    fn compute(
        &self,
        e: &mut Emitter<'_>,
        (index, layer): (usize, &DecoderLayer),
        active: &str,
        attend: impl FnOnce(&mut Emitter<'_>, &str) -> Result<String, CompileError>,
    ) -> Result<String, CompileError> {
        let Carried { norm, branch, shrink } = self.carried;
        let at = |part: &str| at(index, part);
        let (scope, weights) = at("attn_norm");
        let normed = norm.of_rows(e, active, (&scope, &weights))?;
        let laurel = self.laurel(e, index, &normed)?;
        let attended = attend(e, &normed)?;
        let (scope, weights) = at("attn_post_norm");
        let attended = branch.of_branch(e, &attended, (&scope, &weights), shrink)?;
        let (scope, _) = at("attn");
        let gated = e.graph.op(&scope, "Add", &[active, &attended]);
        let (scope, _) = at("laurel.sum");
        let both = e.graph.op(&scope, "Add", &[&gated, &laurel]);
        let x = scale(e, &scope, &both, 0.5f64.sqrt());
        let (scope, weights) = at("mlp_norm");
        let normed = norm.of_rows(e, &x, (&scope, &weights))?;
        let (scope, weights) = at("mlp");
        let fed = mlp::mlp(e, &normed, (&scope, &weights), norm.width, &layer.mlp)?;
        let (post, weights) = at("mlp_post_norm");
        let fed = branch.of_branch(e, &fed, (&post, &weights), shrink)?;
        Ok(e.graph.op(&scope, "Add", &[&x, &fed]))
    }

    /// The learned residual: `x + norm(right(left(x)))`, as small as the stream is carried.
    fn laurel(&self, e: &mut Emitter<'_>, index: usize, x: &str) -> Result<String, CompileError> {
        let (scope, weights) = at(index, "laurel.left");
        let narrow = project(e, x, (&scope, &weights), self.arch.hidden)?;
        let (scope, weights) = at(index, "laurel.right");
        let wide = project(e, &narrow, (&scope, &weights), self.altup.rank)?;
        let (scope, weights) = at(index, "laurel.norm");
        let normed = self.carried.branch.of_rows(e, &wide, (&scope, &weights))?;
        let sum = e.graph.op(&scope, "Add", &[x, &normed]);
        Ok(scale(e, &scope, &sum, f64::from(self.carried.shrink)))
    }

    /// What the layer computed differs from what was predicted; each stream takes a share of that.
    ///
    /// ```text
    /// computed ─┬─ router ── correct ── Add(1) ─┬─ Mul ── Add(predicted)
    ///           └─ Sub(active) ─────────────────┘
    /// ```
    fn correct(
        &self,
        e: &mut Emitter<'_>,
        (index, router): (usize, &[String; 2]),
        predicted: &str,
        (active, computed): (&str, &str),
    ) -> Result<String, CompileError> {
        let (scope, count) = (format!("/layers.{index}/altup/correct"), self.altup.streams);
        let routed = self.routed(e, &scope, computed, router);
        let weight = Self::small(e, &format!("layers.{index}.altup.correct"), (count, count))?;
        let shares = e.graph.op(&format!("{scope}/shares"), "MatMul", &[&routed, &weight]);
        let one = e.number(1.0);
        let shares = e.graph.op(&format!("{scope}/shares"), "Add", &[&shares, &one]);
        let shares = shaped(e, &format!("{scope}/shares"), &shares, &[count, 1]);
        let news = e.graph.op(&scope, "Sub", &[computed, active]);
        let news = shaped(e, &format!("{scope}/news"), &news, &[1, self.arch.hidden]);
        let shared = e.graph.op(&scope, "Mul", &[&news, &shares]);
        Ok(e.graph.op(&scope, "Add", &[predicted, &shared]))
    }

    /// Adds the layer's rows, gated by the stream that it computed, to every stream but the first.
    ///
    /// ```text
    /// stack ── Split ─┬─ first ───────────────────────────────────────────────────┬─ Concat
    ///                 └─ others ──────────────────────────────────────── Add ─────┘
    /// active ── Mul(scale) ── gate ── act ── Mul(rows) ── proj ── norm ──┘
    /// ```
    fn add_rows(
        &self,
        e: &mut Emitter<'_>,
        (index, layer): (usize, &DecoderLayer),
        stack: String,
        rows: &str,
    ) -> Result<String, CompileError> {
        let (hidden, Carried { norm: whole, shrink, .. }) = (self.arch.hidden, self.carried);
        let (scope, _) = at(index, "per_layer");
        let mut x = self.active(e, &scope, &stack);
        if self.altup.scaled {
            let gain = e.vector(&format!("layers.{index}.altup.scale.weight"), hidden)?;
            x = e.graph.op(&format!("{scope}/scale"), "Mul", &[&x, &gain]);
        }
        let (gate, weights) = at(index, "per_layer.gate");
        let gate = project(e, &x, (&gate, &weights), hidden)?;
        let gate = scale(e, &format!("{scope}/gate"), &gate, f64::from(shrink).recip());
        let gate = mlp::activation(e, &format!("{scope}/act"), &gate, layer.mlp.activation);
        let gated = e.graph.op(&format!("{scope}/rows"), "Mul", &[&gate, rows]);
        let width = self.arch.per_layer.as_ref().map_or(0, |per_layer| per_layer.width);
        let (wide, weights) = at(index, "per_layer.proj");
        let wide = project(e, &gated, (&wide, &weights), width)?;
        let (norm, weights) = at(index, "per_layer.norm");
        let added = whole.of_branch(e, &wide, (&norm, &weights), shrink)?;
        let added = shaped(e, &norm, &added, &[1, hidden]);
        let parts = split_all(e, &format!("{scope}/streams"), &stack, 2, &[1, self.altup.streams - 1]);
        let [first, others] = &parts[..] else { return Ok(stack) };
        let others = e.graph.op(&scope, "Add", &[others, &added]);
        let axis = [("axis", Attribute::Int(2))];
        Ok(e.graph.op_with(&scope, "Concat", &[first, &others], &axis))
    }

    /// One stream of all, `[batch, sequence, hidden]`, up to a factor that the last norm takes away: the first, and
    /// projections of the others that are made as large as it is.
    ///
    /// ```text
    /// first ─────────────── unit norm ─┬─ Add
    /// others ── unembed ── unit norm ──┘
    /// ```
    pub(crate) fn merged(self, e: &mut Emitter<'_>) -> Result<String, CompileError> {
        let (hidden, count) = (self.arch.hidden, self.altup.streams);
        let flat = self.flat(e);
        let streams = split_all(e, "/altup/merge", &flat, 2, &vec![hidden; count]);
        let shrink = self.carried.shrink;
        let mut sum = String::new();
        for (index, stream) in streams.iter().enumerate() {
            let scope = format!("/altup/merge/{index}");
            let unit = match index.checked_sub(1) {
                None => unit_norm(e, stream, &scope, (hidden, self.carried.norm.epsilon))?,
                Some(other) => {
                    let place = (format!("/altup/unembed.{other}"), format!("altup.unembed.{other}"));
                    let projected = project(e, stream, (&place.0, &place.1), hidden)?;
                    unit_norm(e, &projected, &scope, (hidden, LEAST * shrink * shrink))?
                }
            };
            sum = if index == 0 { unit } else { e.graph.op(&scope, "Add", &[&sum, &unit]) };
        }
        Ok(sum)
    }
}
