//! Conformers as audio towers, with their connector, in either variant.
//!
//! Rows are `[1, positions, hidden]`. In the dynamic variant, the number of positions is a multiple of the symbol
//! `units`; in the static variant, it is that of the longest sound. The mask of the frames is the only input that
//! depends on the length of a sound.

use narthex_graph::typed::{PaddedConv, Reduction, Scope, Tensor, TensorType};
use narthex_spec::{
    DType, Variant,
    arch::{Activation, ConformerTower, DecoderArch, NormKind},
    dtype::Dim,
    manifest::{GraphEntry, Part, Slot},
};

use super::io::GraphIo;
use crate::{
    emit::Emitter,
    error::Result,
    layer::{
        attention::{PADDING_SCORE, masked_softmax, soft_cap},
        connector::{TokenRows, with_tokens},
        linear::{Bias, StackedLinear, linear, stacked_linear},
        mlp::activation,
        norm::Norm,
    },
};

/// Largest finite value of half precision.
const HALF_MAX: f64 = 65_504.0;

/// Lengths of the sines of relative positions, as in transformers.
const MAX_TIMESCALE: f64 = 1e4;

/// Lowers a tower to the graph under construction.
///
/// ```text
/// features ── (Conv ── norm ── Relu) × 2 ── linear ── layers ── every n-th position ── norm ── Concat(tokens)
///          ── linear ── norm ── Mul(1 / embedding scale)
/// ```
pub(super) fn lower(
    e: &mut Emitter<'_>,
    arch: &DecoderArch,
    tower: &ConformerTower,
    variant: Variant,
    file: &str,
) -> Result<GraphEntry> {
    let graph = TowerGraph { tower, variant };
    let dtype = e.compute;
    let frames = graph.dim(tower.unit_frames(), 0);
    let mut io = GraphIo::default();
    let kind = TensorType::new(dtype, &[1.into(), frames.clone(), tower.bins.into()]);
    let features = io.input(e, Slot::FrameFeatures, "features", kind);
    let mask = io.input(e, Slot::FrameMask, "mask", TensorType::new(dtype, &[1.into(), frames]));

    let (mut x, mask) = graph.subsampled(e, features, mask)?;
    let mask = graph.key_mask(e, mask)?;
    for index in 0..tower.layers {
        x = graph.layer(e, index, x, mask)?;
    }
    let rows = graph.connector(e, arch, x)?;

    let count = graph.dim(tower.unit() / tower.reduction, 2);
    let kind = TensorType::new(dtype, &[1.into(), count, arch.hidden.into()]);
    io.output(e, Slot::SoundRows, "rows", rows, &kind)?;
    Ok(io.entry(file, variant, Part::Audio))
}

/// Graph of a tower.
struct TowerGraph<'a> {
    tower: &'a ConformerTower,
    variant: Variant,
}

impl TowerGraph<'_> {
    /// Returns the dimension of `count` elements of each unit, plus `more`.
    fn dim(&self, count: usize, more: usize) -> Dim {
        match self.variant {
            Variant::Static => {
                let frames = self.tower.padded_frames(self.tower.max_frames());
                Dim::from(frames / self.tower.unit_frames() * count + more)
            }
            Variant::Dynamic => {
                let factor = if count == 1 { String::new() } else { format!("{count}*") };
                let sum = if more == 0 { String::new() } else { format!("+{more}") };
                Dim::Symbol(format!("{factor}units{sum}"))
            }
        }
    }

    fn norm(&self, epsilon: f32) -> Norm {
        Norm { kind: NormKind::Rms, width: self.tower.hidden, epsilon }
    }

    /// Adds the limits of values. Half precision has lower ones.
    fn bounded(&self, e: &mut Emitter<'_>, scope: &Scope, x: Tensor) -> Result<Tensor> {
        let bound = f64::from(self.tower.bound);
        let bound = if e.compute == DType::F16 { bound.min(HALF_MAX) } else { bound };
        let [least, most] = [e.number(-bound), e.number(bound)];
        Ok(e.graph.clip(&scope.child("bound"), x, least, most)?)
    }

    /// Adds the convolutions over frames, and the mask `[1, positions]` of their results.
    ///
    /// The second convolution reads zeros after the end of a sound, so the results of the first one are multiplied by the mask.
    fn subsampled(&self, e: &mut Emitter<'_>, features: Tensor, mask: Tensor) -> Result<(Tensor, Tensor)> {
        let audio = Scope::root().child("audio");
        let mut x = e.graph.unsqueeze(&audio.child("image"), features, &[1])?;
        let mut mask = mask;
        let mut channels = 1;
        for (index, convolution) in self.tower.convolutions.iter().enumerate() {
            let scope = audio.child(format_args!("subsample.{index}"));
            if index > 0 {
                let columns = e.graph.reshape(&scope.child("mask"), mask, &[1, 1, -1, 1])?;
                x = e.graph.mul(&scope.child("mask"), x, columns)?;
            }
            let [frames, bins] = convolution.kernel;
            let conv = scope.child("conv");
            let name = conv.parameter("weight");
            let shape = [convolution.channels, channels, frames, bins];
            let weight = e.tensor(&name, &shape, |e| e.values(&name, &shape))?;
            let conv_of_frames = PaddedConv {
                x,
                weight,
                bias: None,
                strides: convolution.stride,
                before: [0, ConformerTower::BIN_PADDING],
                after: [frames - 1, ConformerTower::BIN_PADDING],
                groups: 1,
            };
            x = e.graph.padded_conv(&conv, &conv_of_frames)?;

            mask = every(e, &scope.child("mask"), mask, convolution.stride[0], 1)?;
            channels = convolution.channels;
            x = self.running_norm(e, &scope.child("norm"), x, mask, channels)?;
            x = e.graph.relu(&scope, x)?;
        }

        let width = self.tower.input_width();
        let scope = audio.child("input");
        let rows = e.graph.transpose(&scope, x, &[0, 2, 3, 1])?;
        let rows = e.graph.reshape(&scope, rows, &[1, -1, width as i64])?;
        Ok((linear(e, &scope, rows, width, Bias::Without)?, mask))
    }

    /// Adds a norm of `x [1, channels, frames, bins]` with the means and variances of the frames so far. The variance is the
    /// mean of the squared distances of each frame to its own running mean.
    ///
    /// ```text
    /// x ─┬─ means ── running mean ──┐
    ///    └──────────────────────────┴─ Sub ─┬─ Mul ── means ── running mean ── Add(ε) ── Sqrt ──┐
    ///                                       └───────────────────────────────────────────────────┴─ Div ── Mul(gain)
    /// ```
    fn running_norm(
        &self,
        e: &mut Emitter<'_>,
        scope: &Scope,
        x: Tensor,
        mask: Tensor,
        channels: usize,
    ) -> Result<Tensor> {
        let running = RunningMean::new(e, scope, mask)?;
        let mean = frame_means(e, &scope.child("mean"), x)?;
        let mean = running.add(e, &scope.child("mean"), mean)?;
        let distance = e.graph.sub(&scope.child("distance"), x, mean)?;

        let variance = scope.child("variance");
        let square = e.graph.mul(&variance, distance, distance)?;
        let square = frame_means(e, &variance, square)?;
        let square = running.add(e, &variance, square)?;
        let epsilon = e.number(f64::from(self.tower.group_norm_epsilon));
        let square = e.graph.add(&variance, square, epsilon)?;
        let deviation = e.graph.sqrt(&variance, square)?;
        let normed = e.graph.div(scope, distance, deviation)?;

        let name = scope.parameter("weight");
        let gain = e.tensor(&name, &[channels, 1, 1], |e| e.values(&name, &[channels]))?;
        Ok(e.graph.mul(scope, normed, gain)?)
    }

    /// Adds the mask of the keys of each chunk, `[chunks, 1, chunk, context]`, from that of the positions.
    fn key_mask(&self, e: &mut Emitter<'_>, mask: Tensor) -> Result<Tensor> {
        let &ConformerTower { chunk, left, right, .. } = self.tower;
        let context = self.tower.context();
        let scope = Scope::root().child("audio").child("key_mask");
        let chunks = e.graph.reshape(&scope.child("chunks"), mask, &[-1, chunk as i64, 1])?;
        let keys = self.contexts(e, &scope, chunks)?;
        let keys = e.graph.reshape(&scope.child("keys"), keys, &[0, 1, 1, context as i64])?;
        let window = e.tensor("audio.key_window", &[1, 1, chunk, context], |_| {
            let visible = (0..chunk).flat_map(|query| {
                (0..context).map(move |key| f32::from(query <= key && key <= query + left + right))
            });
            Ok(visible.collect())
        })?;
        let visible = e.graph.mul(&scope, keys, window)?;
        let one = e.number(1.0);
        let hidden = e.graph.sub(&scope, one, visible)?;
        e.scale(&scope.child("scale"), hidden, PADDING_SCORE)
    }

    /// Returns chunks `[chunks, chunk, width]` with the positions around each, `[chunks, context, width]`. Zeros stand for
    /// positions before the first and after the last one.
    ///
    /// ```text
    /// x ── Pad ── (Slice for each distance) ── Concat ── Slice
    /// ```
    fn contexts(&self, e: &mut Emitter<'_>, scope: &Scope, x: Tensor) -> Result<Tensor> {
        let &ConformerTower { chunk, left, right, .. } = self.tower;
        let [before, after] = [left, right].map(|positions| positions.div_ceil(chunk));
        let padded = e.graph.pad(&scope.child("padded"), x, 0, [before, after])?;

        let mut parts = Vec::with_capacity(before + after + 1);
        for distance in 0..=before + after {
            let scope = scope.child(format_args!("part.{distance}"));
            let mut part = padded;
            if distance > 0 {
                part = e.graph.slice_from(&scope.child("from"), part, 0, distance)?;
            }
            if distance < before + after {
                part = e.graph.slice_but_last(&scope.child("to"), part, 0, before + after - distance)?;
            }
            parts.push(part);
        }
        let whole = e.graph.concat(&scope.child("context"), &parts, 1)?;
        let start = before * chunk - left;
        Ok(e.graph.slice(&scope.child("context"), whole, 1, start, start + self.tower.context())?)
    }

    /// Adds a layer.
    ///
    /// ```text
    /// x ── feed-forward ── attention ── convolution ── feed-forward ── norm
    /// ```
    fn layer(&self, e: &mut Emitter<'_>, index: usize, x: Tensor, mask: Tensor) -> Result<Tensor> {
        let scope = Scope::root().child("audio").child(format_args!("layers.{index}"));
        let x = self.feed_forward(e, &scope.child("before"), x)?;
        let x = self.attention(e, &scope, x, mask)?;
        let x = self.convolution(e, &scope.child("conv"), x)?;
        let x = self.feed_forward(e, &scope.child("after"), x)?;
        let x = self.bounded(e, &scope, x)?;
        self.norm(ConformerTower::EPSILON).apply(e, &scope.child("norm"), x)
    }

    /// Adds a feed-forward part.
    ///
    /// ```text
    /// x ─┬─ Clip ── norm ── linear ── Silu ── linear ── Clip ── norm · weight ── Add
    ///    └────────────────────────────────────────────────────────────────────────┘
    /// ```
    fn feed_forward(&self, e: &mut Emitter<'_>, scope: &Scope, x: Tensor) -> Result<Tensor> {
        let hidden = self.tower.hidden;
        let norm = self.norm(ConformerTower::EPSILON);
        let y = self.bounded(e, &scope.child("input"), x)?;
        let y = norm.apply(e, &scope.child("norm"), y)?;
        let y = linear(e, &scope.child("up_proj"), y, hidden, Bias::Without)?;
        let y = activation(e, &scope.child("act"), y, Activation::Silu)?;
        let y = linear(e, &scope.child("down_proj"), y, ConformerTower::INNER * hidden, Bias::Without)?;
        let y = self.bounded(e, &scope.child("output"), y)?;
        let y = norm.apply_scaled(e, &scope.child("out_norm"), y, self.tower.residual_weight)?;
        Ok(e.graph.add(scope, x, y)?)
    }

    /// Adds attention of the positions of each chunk to those around it, with scores of relative positions (Dai et al. 2019,
    /// arXiv:1901.02860).
    ///
    /// ```text
    /// q ── Mul(scale) ─┬─ MatMul(keys) ──────────────────────────┐
    ///                  └─ MatMul(position keys) ── shifted rows ─┴─ Add ── cap · tanh(x / cap) ── Add(mask)
    ///                                                              ── Softmax ── MatMul(values) ── linear
    /// ```
    fn attention(&self, e: &mut Emitter<'_>, layer: &Scope, x: Tensor, mask: Tensor) -> Result<Tensor> {
        let &ConformerTower { hidden, heads, chunk, .. } = self.tower;
        let scope = layer.child("attn");
        let norm = self.norm(ConformerTower::EPSILON);
        let y = self.bounded(e, &scope.child("input"), x)?;
        let y = norm.apply(e, &layer.child("attn_norm"), y)?;
        let qkv = scope.child("qkv_proj");
        let parts = ["q_proj", "k_proj", "v_proj"].map(|part| scope.child(part));
        let stacked = StackedLinear { scope: &qkv, parts: &parts, cols: hidden, bias: Bias::Without };
        let all = stacked_linear(e, y, &stacked)?;
        let [query, key, value] = e.graph.split_into(&qkv, all, 2, [hidden; 3])?;

        let chunks = [-1, chunk as i64, hidden as i64];
        let by_head = [0, 0, heads as i64, (hidden / heads) as i64];
        let scale = self.query_scale(e, &scope)?;
        let query = e.graph.mul(&scope.child("q"), query, scale)?;
        let query = e.graph.reshape(&scope.child("q").child("chunks"), query, &chunks)?;
        let query = e.graph.reshape(&scope.child("q").child("heads"), query, &by_head)?;
        let query = e.graph.transpose(&scope.child("q"), query, &[0, 2, 1, 3])?;
        let mut keys_and_values = [key, value];
        for (tensor, letter) in keys_and_values.iter_mut().zip(["k", "v"]) {
            let scope = scope.child(letter);
            let order: &[usize] = if letter == "k" { &[0, 2, 3, 1] } else { &[0, 2, 1, 3] };
            *tensor = e.graph.reshape(&scope.child("chunks"), *tensor, &chunks)?;
            *tensor = self.contexts(e, &scope, *tensor)?;
            *tensor = e.graph.reshape(&scope.child("heads"), *tensor, &by_head)?;
            *tensor = e.graph.transpose(&scope, *tensor, order)?;
        }
        let [key, value] = keys_and_values;

        let scores = e.graph.mat_mul(&scope.child("scores"), query, key)?;
        let positions = self.position_scores(e, &scope, query)?;
        let scores = e.graph.add(&scope.child("scores"), scores, positions)?;
        let scores = soft_cap(e, &scope.child("cap"), scores, self.tower.score_cap)?;
        let weights = masked_softmax(e, &scope, scores, mask)?;
        let mixed = e.graph.mat_mul(&scope.child("mix"), weights, value)?;

        let mixed = e.graph.transpose(&scope.child("mix"), mixed, &[0, 2, 1, 3])?;
        let mixed = e.graph.reshape(&scope.child("mix"), mixed, &[1, -1, hidden as i64])?;
        let y = linear(e, &scope.child("o_proj"), mixed, hidden, Bias::Without)?;
        let y = self.bounded(e, &scope.child("output"), y)?;
        let y = norm.apply(e, &layer.child("attn_out_norm"), y)?;
        Ok(e.graph.add(&scope.child("sum"), x, y)?)
    }

    /// Returns the factors of queries, `[hidden]`: `softplus(scale) / (√size · softplus(0))` for each element of a head.
    fn query_scale(&self, e: &mut Emitter<'_>, scope: &Scope) -> Result<Tensor> {
        let &ConformerTower { hidden, heads, .. } = self.tower;
        let size = hidden / heads;
        let name = scope.child("scale").parameter("weight");
        e.tensor(&scope.node("query_scale"), &[hidden], |e| {
            let factor = ((size as f64).sqrt() * std::f64::consts::LN_2).recip();
            let scales = e.values(&name, &[size])?;
            let scales = scales.into_iter().map(|scale| (factor * f64::from(scale).exp().ln_1p()) as f32);
            Ok(scales.collect::<Vec<f32>>().repeat(heads))
        })
    }

    /// Adds the scores of relative positions, `[chunks, heads, chunk, context]`. The score of a query and a key is that of the
    /// key's distance: row `i` of the products with all distances is shifted by `i`.
    fn position_scores(&self, e: &mut Emitter<'_>, scope: &Scope, query: Tensor) -> Result<Tensor> {
        let &ConformerTower { chunk, left, right, .. } = self.tower;
        let context = self.tower.context();
        let keys = self.position_keys(e, scope)?;
        let scope = scope.child("positions");
        let scores = e.graph.mat_mul(&scope, query, keys)?;
        let padded = e.graph.pad_end(&scope, scores, 3, context + 1 - (left + right + 1))?;
        let flat = [0, 0, (chunk * (context + 1)) as i64];
        let flat = e.graph.reshape(&scope.child("flat"), padded, &flat)?;
        let flat = e.graph.slice(&scope.child("shifted"), flat, 2, 0, chunk * context)?;
        Ok(e.graph.reshape(&scope.child("shifted"), flat, &[0, 0, chunk as i64, context as i64])?)
    }

    /// Returns the projected sines and cosines of each distance, `[1, heads, size, distances]`.
    fn position_keys(&self, e: &mut Emitter<'_>, scope: &Scope) -> Result<Tensor> {
        let &ConformerTower { hidden, heads, left, right, .. } = self.tower;
        let distances = left + right + 1;
        let name = scope.child("positions").parameter("weight");
        e.tensor(&scope.node("position_keys"), &[1, heads, hidden / heads, distances], |e| {
            let weight = e.weight(&name, &[hidden; 2])?;
            let signals: Vec<Vec<f64>> =
                (0..distances).map(|column| timing_signal(left as f64 - column as f64, hidden)).collect();
            let mut keys = Vec::with_capacity(hidden * distances);
            let mut row = vec![0.0; hidden];
            for index in 0..hidden {
                weight.read_row(index, &mut row);
                e.weights.check_finite(&name, &row)?;
                keys.extend(signals.iter().map(|signal| {
                    row.iter().zip(signal).map(|(x, y)| f64::from(*x) * y).sum::<f64>() as f32
                }));
            }
            Ok(keys)
        })
    }

    /// Adds the convolution over positions, which reads earlier ones only.
    ///
    /// ```text
    /// x ─┬─ norm ── linear ── Split ── a · sigmoid(b) ── Conv ── Clip ── norm ── Silu ── linear ── Add
    ///    └──────────────────────────────────────────────────────────────────────────────────────────┘
    /// ```
    fn convolution(&self, e: &mut Emitter<'_>, scope: &Scope, x: Tensor) -> Result<Tensor> {
        let &ConformerTower { hidden, kernel, .. } = self.tower;
        let norm = self.norm(self.tower.norm_epsilon);
        let y = norm.apply(e, &scope.child("norm"), x)?;
        let y = linear(e, &scope.child("expand"), y, hidden, Bias::Without)?;
        let [value, gate] = e.graph.split_into(&scope.child("gate"), y, 2, [hidden; 2])?;
        let gate = e.graph.sigmoid(&scope.child("gate"), gate)?;
        let y = e.graph.mul(&scope.child("gate"), value, gate)?;

        let depthwise = scope.child("depthwise");
        let name = depthwise.parameter("weight");
        let weight = e.tensor(&name, &[hidden, 1, kernel, 1], |e| e.values(&name, &[hidden, 1, kernel]))?;
        let y = e.graph.transpose(&depthwise.child("columns"), y, &[0, 2, 1])?;
        let y = e.graph.unsqueeze(&depthwise, y, &[3])?;
        let conv = PaddedConv {
            x: y,
            weight,
            bias: None,
            strides: [1; 2],
            before: [kernel - 1, 0],
            after: [0; 2],
            groups: hidden,
        };
        let y = e.graph.padded_conv(&depthwise, &conv)?;
        let y = e.graph.reshape(&depthwise, y, &[1, hidden as i64, -1])?;
        let y = e.graph.transpose(&depthwise.child("rows"), y, &[0, 2, 1])?;

        let y = self.bounded(e, &depthwise, y)?;
        let y = norm.apply(e, &scope.child("inner_norm"), y)?;
        let y = activation(e, &scope.child("act"), y, Activation::Silu)?;
        let y = linear(e, &scope.child("project"), y, hidden, Bias::Without)?;
        Ok(e.graph.add(scope, x, y)?)
    }

    /// Adds the connector, `[1, rows + 2, decoder's hidden]`.
    fn connector(&self, e: &mut Emitter<'_>, arch: &DecoderArch, x: Tensor) -> Result<Tensor> {
        let &ConformerTower { hidden, padding, end, norm_epsilon, reduction, .. } = self.tower;
        let scope = Scope::root().child("audio_connector");
        let x = every(e, &scope.child("reduced"), x, reduction, hidden)?;
        let soft = self.norm(norm_epsilon).apply(e, &scope.child("norm"), x)?;
        let tokens = TokenRows { tokens: end.tokens, rows: &[padding, end.row], width: hidden, norm_epsilon };
        with_tokens(e, &scope, arch, soft, tokens)
    }
}

/// Means over the frames up to each one: sums and counts in the dynamic variant, and in the static variant a product,
/// because sums over many frames exceed the precision of halves.
enum RunningMean {
    /// Weights `[frames, frames]` of the frames in each mean.
    Weights(Tensor),
    /// Numbers of frames, `[1, 1, frames, 1]`.
    Counts(Tensor),
}

impl RunningMean {
    /// Returns the weights or counts for the frames of a mask.
    fn new(e: &mut Emitter<'_>, scope: &Scope, mask: Tensor) -> Result<Self> {
        let Some(shape) = e.graph.fixed_shape(mask) else {
            let scope = scope.child("counts");
            let mask = e.graph.reshape(&scope, mask, &[1, 1, -1, 1])?;
            return Ok(Self::Counts(e.graph.cumulative_sum(&scope, mask, 2)?));
        };
        let frames = shape.iter().product::<usize>();
        let weights = e.tensor(&scope.node("averages"), &[frames, frames], |_| {
            let weights = (0..frames).flat_map(|frame| {
                let weight = ((frame + 1) as f32).recip();
                (0..frames).map(move |other| if other <= frame { weight } else { 0.0 })
            });
            Ok(weights.collect())
        })?;
        Ok(Self::Weights(weights))
    }

    /// Adds the means of `x [1, 1, frames, 1]`.
    fn add(&self, e: &mut Emitter<'_>, scope: &Scope, x: Tensor) -> Result<Tensor> {
        let scope = scope.child("running");
        match *self {
            Self::Weights(weights) => Ok(e.graph.mat_mul(&scope, weights, x)?),
            Self::Counts(counts) => {
                let sums = e.graph.cumulative_sum(&scope, x, 2)?;
                Ok(e.graph.div(&scope, sums, counts)?)
            }
        }
    }
}

/// Adds the first of every `count` rows of `x`, whose rows have `width` elements; no axis for rows of one element.
fn every(e: &mut Emitter<'_>, scope: &Scope, x: Tensor, count: usize, width: usize) -> Result<Tensor> {
    let groups = e.graph.reshape(&scope.child("groups"), x, &[1, -1, (count * width) as i64])?;
    let first = e.graph.slice(&scope.child("groups"), groups, 2, 0, width)?;
    if width > 1 {
        return Ok(first);
    }
    Ok(e.graph.reshape(&scope.child("first"), first, &[1, -1])?)
}

/// Adds the means of each frame of `x [1, channels, frames, bins]`, `[1, 1, frames, 1]`.
fn frame_means(e: &mut Emitter<'_>, scope: &Scope, x: Tensor) -> Result<Tensor> {
    let x = e.graph.reduce(&scope.child("channels"), Reduction::Mean, x, 1)?;
    Ok(e.graph.reduce(&scope.child("bins"), Reduction::Mean, x, 3)?)
}

/// Returns the sines of a distance at `width / 2` lengths, and its cosines.
fn timing_signal(distance: f64, width: usize) -> Vec<f64> {
    let lengths = width / 2;
    let step = MAX_TIMESCALE.ln() / (lengths.max(2) - 1) as f64;
    let angles = (0..lengths).map(|index| distance * (-(index as f64) * step).exp());
    angles.clone().map(f64::sin).chain(angles.map(f64::cos)).collect()
}
