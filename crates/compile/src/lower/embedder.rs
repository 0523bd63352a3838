//! Embedding models and classifiers with the layers of a decoder, in both variants.

use narthex_graph::typed::{Scope, Tensor, TensorType};
use narthex_spec::{
    DType, Variant,
    arch::{
        Attention, AttentionDirection, ClassifierLayers, DecoderArch, EmbedderArch, EncoderHead, Pooling,
        Recurrence, Rotation,
    },
    dtype::Dim,
    manifest::{GraphEntry, HostTable, Part, Slot},
    recipe::FixedShapes,
};

use super::{
    LoweredModel,
    decoder::{ConvolutionInputs, DecoderLayers, MixerLowering, stream_norms},
    dynamic::f32,
    io::{GraphIo, f16},
};
use crate::{
    emit::Emitter,
    error::{CompileError, Result},
    layer::{
        attention::{AttentionLayer, PADDING_SCORE},
        embed,
        encoder_attention::padding_scores,
        encoder_head::{self, VectorLength},
        layer_scope,
        linear::{Bias, linear},
        norm::{Norm, ResidualForm, StreamNorms},
        rope::Angles,
        whole_attention::{WholeText, whole_attention},
    },
    package::GRAPH_FILE,
    rotary::{self, LengthRange, RotarySet, Trigonometric},
};

/// Lowers the dynamic variant.
///
/// ```text
/// embeds ── Mul(scale) ── (norm) ── layers ── norm ─┬─ pooling ── dense layers ── vector
///                                                   ├─ pooling ── classifier ── scores
///                                                   └─ classifier ── token_scores
/// ```
pub(super) fn dynamic(e: &mut Emitter<'_>, arch: &EmbedderArch) -> Result<LoweredModel> {
    let decoder = &arch.decoder;
    if decoder.switch().is_some() {
        return Err(CompileError::Unsupported {
            what: "LongRoPE of an embedding model".to_owned(),
            reason: "its frequencies depend on the length of a text".to_owned(),
        });
    }
    e.compute = DType::F32;
    let mut io = GraphIo::default();
    let texts: [Dim; 2] = ["batch".into(), "sequence".into()];
    let [batch, sequence] = texts.clone();
    let embeds =
        io.input(e, Slot::Embeds, "embeds", f32(&[batch.clone(), sequence.clone(), decoder.hidden.into()]));
    let padding = io.input(e, Slot::PaddingMask, "padding_mask", TensorType::new(DType::I32, &texts));
    let positions = io.input(e, Slot::Positions, "positions", TensorType::new(DType::I64, &texts));

    let inputs = DynamicInputs::new(e, arch, padding, positions)?;
    let norms = StreamNorms::new(Norm::of(decoder), 1.0);
    let x = embedded(e, decoder, norms, embeds)?;
    let layers = EmbedderLayers { arch, norms, form: ResidualForm::Fused, rows: texts };
    let rows = layers.lower(e, &mut io, TextInputs::Dynamic(inputs), x)?;
    match Head::of(arch)? {
        Head::Vector { pooling, normalize } => {
            let pooled = encoder_head::pool(e, rows, pooling, padding)?;
            let pooled = dense(e, arch, pooled)?;
            let length = if normalize { VectorLength::Unit } else { VectorLength::Unchanged };
            let vector = encoder_head::vector(e, pooled, length)?;
            io.output(e, Slot::Embedding, "embedding", vector, &f32(&[batch, arch.width().into()]))?;
        }
        Head::Scores { labels, layers } => {
            let pooled = encoder_head::pool(e, rows, layers.pooling, padding)?;
            let scores = encoder_head::classifier(e, pooled, layers, Norm::of(decoder))?;
            io.output(e, Slot::Scores, "scores", scores, &f32(&[batch, labels.into()]))?;
        }
        Head::Tokens { labels, layers } => {
            let scores = encoder_head::classifier(e, rows, layers, Norm::of(decoder))?;
            let kind = f32(&[batch, sequence, labels.into()]);
            io.output(e, Slot::TokenScores, "token_scores", scores, &kind)?;
        }
    }

    let tables = vec![token_table(e, decoder)?];
    let entry = io.entry(GRAPH_FILE, Variant::Dynamic, Part::Whole);
    Ok(LoweredModel { graphs: vec![(e.finish_graph()?, entry)], tables, towers: Vec::new() })
}

/// Lowers the static variant: a graph for each length.
pub(super) fn fixed(e: &mut Emitter<'_>, arch: &EmbedderArch, shapes: &FixedShapes) -> Result<LoweredModel> {
    let mut graphs = Vec::new();
    for &length in &shapes.buckets {
        let entry = bucket(e, arch, length)?;
        graphs.push((e.finish_graph()?, entry));
    }
    Ok(LoweredModel { graphs, tables: Vec::new(), towers: Vec::new() })
}

/// Lowers the graph for one text of at most `length` tokens. The host scales the vector to length 1.
fn bucket(e: &mut Emitter<'_>, arch: &EmbedderArch, length: usize) -> Result<GraphEntry> {
    let decoder = &arch.decoder;
    e.begin_graph(&format!("encoder-{length}"));
    let mut io = GraphIo::default();
    let embeds = io.input(e, Slot::Embeds, "embeds", f16([1, length, decoder.hidden]));
    let mask = io.input(e, Slot::Mask { window: None }, "mask", f16([1, 1, 1, length]));
    let head = Head::of(arch)?;
    let is_weighted = head.pooling().is_some_and(|pooling| pooling != Pooling::Max);
    let pool = is_weighted.then(|| io.input(e, Slot::PoolWeights, "pool", f16([1, 1, length])));

    let norms = stream_norms(decoder);
    let x = embedded(e, decoder, norms, embeds)?;
    let rows = [1, length].map(Dim::from);
    let layers = EmbedderLayers { arch, norms, form: ResidualForm::Plain, rows };
    let rows = layers.lower(e, &mut io, TextInputs::Static { mask, length }, x)?;
    let pooled = match (pool, head.pooling()) {
        (Some(pool), _) => encoder_head::pool_weighted(e, rows, pool)?,
        (None, Some(_)) => encoder_head::pool_max(e, rows, length, mask)?,
        (None, None) => rows,
    };
    match head {
        Head::Vector { .. } => {
            let vector = dense(e, arch, pooled)?;
            io.output(e, Slot::Embedding, "embedding", vector, &f16([1, 1, arch.width()]))?;
        }
        Head::Scores { labels, layers } => {
            let scores = encoder_head::classifier(e, pooled, layers, Norm::of(decoder))?;
            io.output(e, Slot::Scores, "scores", scores, &f16([1, 1, labels]))?;
        }
        Head::Tokens { labels, layers } => {
            let scores = encoder_head::classifier(e, pooled, layers, Norm::of(decoder))?;
            io.output(e, Slot::TokenScores, "token_scores", scores, &f16([1, length, labels]))?;
        }
    }
    let file = format!("encoder-{length}.onnx");
    Ok(io.entry(&file, Variant::Static, Part::Bucket { length }))
}

/// Returns the input of the first layer.
fn embedded(e: &mut Emitter<'_>, arch: &DecoderArch, norms: StreamNorms, embeds: Tensor) -> Result<Tensor> {
    let scaled = embed::scaled(e, embeds, arch, norms.scale)?;
    match arch.embed_norm {
        true => norms.stream.apply(e, &Scope::root().child("embed").child("norm"), scaled),
        false => Ok(scaled),
    }
}

/// Adds the linear layers between pooling and vector.
fn dense(e: &mut Emitter<'_>, arch: &EmbedderArch, pooled: Tensor) -> Result<Tensor> {
    let mut vector = pooled;
    for (index, [_, cols]) in arch.dense_shapes().enumerate() {
        let scope = Scope::root().child("dense").child(index);
        vector = linear(e, &scope, vector, cols, Bias::Without)?;
    }
    Ok(vector)
}

fn token_table(e: &mut Emitter<'_>, decoder: &DecoderArch) -> Result<HostTable> {
    embed::token_table(decoder).write_planned(e)
}

/// Head of a model, with the layers of a classifier.
#[derive(Clone, Copy)]
enum Head<'a> {
    Vector { pooling: Pooling, normalize: bool },
    Scores { labels: usize, layers: &'a ClassifierLayers },
    Tokens { labels: usize, layers: &'a ClassifierLayers },
}

impl<'a> Head<'a> {
    fn of(arch: &'a EmbedderArch) -> Result<Self> {
        match (arch.head, &arch.classifier) {
            (EncoderHead::Embedding { pooling, normalize }, _) => Ok(Self::Vector { pooling, normalize }),
            (EncoderHead::Score { labels, .. }, Some(layers)) => Ok(Self::Scores { labels, layers }),
            (EncoderHead::Tokens { labels }, Some(layers)) => Ok(Self::Tokens { labels, layers }),
            _ => Err(CompileError::Unsupported {
                what: "head of a model with the layers of a decoder".to_owned(),
                reason: "only vectors and scores are compiled".to_owned(),
            }),
        }
    }

    /// Returns the pooling of a text's rows; `None` for scores of tokens.
    fn pooling(self) -> Option<Pooling> {
        match self {
            Self::Vector { pooling, .. } => Some(pooling),
            Self::Scores { layers, .. } => Some(layers.pooling),
            Self::Tokens { .. } => None,
        }
    }
}

/// The layers, and the norm after them.
struct EmbedderLayers<'a> {
    arch: &'a EmbedderArch,
    norms: StreamNorms,
    form: ResidualForm,
    /// Batch and sequence dimensions.
    rows: [Dim; 2],
}

impl EmbedderLayers<'_> {
    /// Returns the normed rows after the last layer.
    fn lower(&self, e: &mut Emitter<'_>, io: &mut GraphIo, inputs: TextInputs, x: Tensor) -> Result<Tensor> {
        let arch = &self.arch.decoder;
        let layers = DecoderLayers {
            arch,
            range: 0..arch.layers.len(),
            rows: self.rows.clone(),
            norms: self.norms,
            form: self.form,
        };
        let mut attention = TextAttention {
            arch: self.arch,
            norm: self.norms.branch,
            inputs,
            masks: Vec::new(),
            angles: Angles::default(),
        };
        let mut stream = layers.lower(e, io, &mut attention, x)?;
        stream.normed(e, &Scope::root().child("norm"))
    }
}

/// Inputs of attention in the dynamic variant.
struct DynamicInputs {
    /// Mask of padding that is added to scores, `[batch, 1, 1, 1, sequence]`.
    padding: Tensor,
    /// Positions, `[batch, sequence]`.
    positions: Tensor,
    /// Distances from queries to keys, `[batch, 1, 1, sequence, sequence]`.
    distances: Tensor,
    /// Cosines and sines of all positions.
    tables: Angles,
}

impl DynamicInputs {
    fn new(e: &mut Emitter<'_>, arch: &EmbedderArch, padding: Tensor, positions: Tensor) -> Result<Self> {
        let scores = padding_scores(e, padding)?;
        let scope = Scope::root().child("padding").child("groups");
        let padding = e.graph.unsqueeze(&scope, scores, &[1])?;
        let scope = Scope::root().child("distance");
        let single = e.graph.cast(&scope, positions, DType::F32)?;
        let of_queries = e.graph.unsqueeze(&scope.child("queries"), single, &[1, 2, 4])?;
        let of_keys = e.graph.unsqueeze(&scope.child("keys"), single, &[1, 2, 3])?;
        let distances = e.graph.sub(&scope, of_queries, of_keys)?;
        let tables = Angles::write(e, &arch.decoder)?;
        Ok(Self { padding, positions, distances, tables })
    }
}

/// Inputs of attention in either variant.
enum TextInputs {
    Dynamic(DynamicInputs),
    /// For one text of at most `length` tokens, with a mask of padding `[1, 1, 1, length]`.
    Static {
        mask: Tensor,
        length: usize,
    },
}

/// Attention over whole texts.
struct TextAttention<'a> {
    arch: &'a EmbedderArch,
    norm: Norm,
    inputs: TextInputs,
    /// Masks by window.
    masks: Vec<(Option<usize>, Tensor)>,
    /// Angles of the tokens, by rotation.
    angles: Angles,
}

impl MixerLowering for TextAttention<'_> {
    fn attend(
        &mut self,
        e: &mut Emitter<'_>,
        _: &mut GraphIo,
        index: usize,
        spec: &Attention,
        x: Tensor,
    ) -> Result<Tensor> {
        let mask = self.mask(e, spec.window)?;
        let rotary = self.rotary(e, spec.rotation)?;
        let length = match self.inputs {
            TextInputs::Dynamic(_) => None,
            TextInputs::Static { length, .. } => Some(length),
        };
        let scope = layer_scope(index).child("attn");
        let layer = AttentionLayer { scope: &scope, spec, norm: self.norm, qkv_bias: spec.qkv_bias.into() };
        whole_attention(e, &layer, x, &WholeText { rotary, mask, length })
    }

    fn convolved_rows(
        &mut self,
        _: &mut Emitter<'_>,
        _: &mut GraphIo,
        _: &Scope,
        _: ConvolutionInputs,
    ) -> Result<Tensor> {
        Err(no_attention("short convolution"))
    }

    fn recurrence(
        &mut self,
        _: &mut Emitter<'_>,
        _: &mut GraphIo,
        _: usize,
        spec: Recurrence<'_>,
        _: Tensor,
    ) -> Result<Tensor> {
        Err(no_attention(spec.title()))
    }
}

/// Returns the error for a layer without attention.
fn no_attention(mixer: &str) -> CompileError {
    CompileError::Unsupported {
        what: format!("a {mixer}"),
        reason: "layers of embedding models have attention".to_owned(),
    }
}

impl TextAttention<'_> {
    /// Returns the mask for layers with this window.
    fn mask(&mut self, e: &mut Emitter<'_>, window: Option<usize>) -> Result<Tensor> {
        if let Some((_, mask)) = self.masks.iter().find(|(known, _)| *known == window) {
            return Ok(*mask);
        }
        let attends = self.arch.attends;
        let name = window.map_or("mask".to_owned(), |window| format!("mask.{window}"));
        let scope = Scope::root().child(name);
        let mask = match &self.inputs {
            TextInputs::Dynamic(inputs) => {
                let mut mask = inputs.padding;
                for (part, side) in sides(attends, window) {
                    let scope = scope.child(part);
                    let hidden = hidden_scores(e, &scope, inputs.distances, side)?;
                    mask = e.graph.add(&scope.child("sum"), mask, hidden)?;
                }
                mask
            }
            &TextInputs::Static { mask, length } => {
                let sides = sides(attends, window);
                if sides.is_empty() {
                    mask
                } else {
                    let name = scope.node(&format!("{length}"));
                    let hidden =
                        e.tensor(&name, &[1, 1, length, length], |_| Ok(hidden_elements(&sides, length)))?;
                    e.graph.add(&scope, mask, hidden)?
                }
            }
        };
        self.masks.push((window, mask));
        Ok(mask)
    }

    /// Returns the cosines and sines of the tokens for a rotation.
    fn rotary(&mut self, e: &mut Emitter<'_>, rotation: Rotation) -> Result<Option<[Tensor; 2]>> {
        if let Some(angles) = self.angles.of(rotation) {
            return Ok(Some(angles));
        }
        let arch = &self.arch.decoder;
        let Some(pairs) = rotary::pairs(arch, rotation) else { return Ok(None) };
        let name = format!("{rotation:?}").to_lowercase();
        let angles = match &self.inputs {
            TextInputs::Dynamic(inputs) => {
                let Some([cos, sin]) = inputs.tables.of(rotation) else { return Ok(None) };
                let mut of_tokens = |wave: &str, table: Tensor| {
                    let scope = Scope::root().child("rope").child(&name).child(wave);
                    let rows = e.graph.gather(&scope, table, inputs.positions, 0)?;
                    e.graph.unsqueeze(&scope, rows, &[2])
                };
                [of_tokens("cos", cos)?, of_tokens("sin", sin)?]
            }
            &TextInputs::Static { length, .. } => {
                let set = RotarySet { rotation, reach: LengthRange::Short };
                let mut constant = |wave: &str, function: Trigonometric| {
                    let name = format!("rope/{name}/{wave}/{length}");
                    e.tensor(&name, &[1, length, 1, pairs], |_| Ok(set.values(arch, function, 0..length)))
                };
                [constant("cos", Trigonometric::Cos)?, constant("sin", Trigonometric::Sin)?]
            }
        };
        self.angles.insert(rotation, angles);
        Ok(Some(angles))
    }
}

/// Tokens that are hidden on one side of a token: those at a distance from query to key of at least `Before`, or of at most
/// minus `After`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HiddenSide {
    Before(usize),
    After(usize),
}

/// Returns the tokens that are hidden, with a name for each side.
fn sides(attends: AttentionDirection, window: Option<usize>) -> Vec<(&'static str, HiddenSide)> {
    let before = window.map(|window| ("before", HiddenSide::Before(window)));
    let after = match attends {
        AttentionDirection::Causal => Some(("after", HiddenSide::After(1))),
        AttentionDirection::Bidirectional => window.map(|window| ("after", HiddenSide::After(window))),
    };
    before.into_iter().chain(after).collect()
}

/// Returns scores that hide tokens on one side: [`PADDING_SCORE`] for them and 0 for the others.
///
/// ```text
/// before: distance ── Sub(limit - 1) ── Clip(0, 1) ── Mul(-10⁴)
/// after:  distance ── Add(limit - 1) ── Clip(-1, 0) ── Mul(10⁴)
/// ```
fn hidden_scores(e: &mut Emitter<'_>, scope: &Scope, distances: Tensor, side: HiddenSide) -> Result<Tensor> {
    let (shift, range, factor) = match side {
        HiddenSide::Before(limit) => (1.0 - limit as f64, [0.0, 1.0], PADDING_SCORE),
        HiddenSide::After(limit) => (limit as f64 - 1.0, [-1.0, 0.0], -PADDING_SCORE),
    };
    let shift = e.number(shift);
    let [least, most] = range.map(|end| e.number(end));
    let factor = e.number(factor);
    let shifted = e.graph.add(&scope.child("shift"), distances, shift)?;
    let hidden = e.graph.clip(scope, shifted, least, most)?;
    Ok(e.graph.mul(scope, hidden, factor)?)
}

/// Returns the scores `[length, length]` that hide tokens.
fn hidden_elements(sides: &[(&str, HiddenSide)], length: usize) -> Vec<f32> {
    let is_hidden = |query: usize, key: usize| {
        sides.iter().any(|(_, side)| match *side {
            HiddenSide::Before(limit) => query >= key + limit,
            HiddenSide::After(limit) => key >= query + limit,
        })
    };
    let pairs = (0..length).flat_map(|query| (0..length).map(move |key| (query, key)));
    pairs.map(|(query, key)| if is_hidden(query, key) { PADDING_SCORE as f32 } else { 0.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_beyond_the_window_and_later_ones_are_hidden() {
        let seen = |attends, window| {
            let scores = hidden_elements(&sides(attends, window), 4);
            let rows =
                scores.chunks(4).map(|row| row.iter().map(|x| if *x == 0.0 { 'x' } else { '.' }).collect());
            rows.collect::<Vec<String>>().join(" ")
        };
        assert_eq!(seen(AttentionDirection::Bidirectional, None), "xxxx xxxx xxxx xxxx");
        assert_eq!(seen(AttentionDirection::Bidirectional, Some(2)), "xx.. xxx. .xxx ..xx");
        assert_eq!(seen(AttentionDirection::Causal, None), "x... xx.. xxx. xxxx");
        assert_eq!(seen(AttentionDirection::Causal, Some(2)), "x... xx.. .xx. ..xx");
    }
}
