//! MobileNetV5 as a vision tower, and its connector.
//!
//! Feature maps are rows `[1, height · width, channels]`, as in transformers, so that norms and linear layers are the same
//! operators. Convolutions are between transposes.

use narthex_graph::typed::{Conv2d, Scope, Tensor};
use narthex_spec::arch::{
    Activation, DecoderArch, MobileBlock, MobileNetTower, NormKind, PlacedBlock, VisionArch,
};

use crate::{
    emit::Emitter,
    error::Result,
    layer::{
        connector::{TokenRows, pooled, with_tokens},
        linear::{Bias, linear},
        mlp::activation,
        norm::Norm,
    },
};

/// A square feature map.
#[derive(Clone, Copy)]
struct FeatureMap {
    rows: Tensor,
    /// Height and width.
    extent: usize,
    channels: usize,
}

/// A convolution with a square kernel.
#[derive(Clone, Copy)]
struct Window {
    kernel: usize,
    stride: usize,
    /// Channels of the result.
    channels: usize,
    /// Groups of channels.
    groups: usize,
}

/// Adds a tower with its connector, `[1, rows, decoder's hidden]`.
///
/// ```text
/// pixels ── stem ── blocks ── fusion ── norm ── Concat(end) ── linear ── norm ── Mul(1 / embedding scale)
/// ```
pub(super) fn rows(
    e: &mut Emitter<'_>,
    arch: &DecoderArch,
    tower: &MobileNetTower,
    pixels: Tensor,
) -> Result<Tensor> {
    let vision = Scope::root().child("vision");
    let stem = Window { kernel: MobileNetTower::STEM_KERNEL, stride: 2, channels: tower.stem, groups: 1 };
    let scope = vision.child("stem");
    let bias = e.vector(&scope.parameter("bias"), tower.stem)?;
    let pixels = Image { x: pixels, extent: tower.side, channels: VisionArch::CHANNELS };
    let mut x = convolution(e, &scope, pixels, stem, Some(bias))?;
    x.rows = norm(e, &vision.child("stem_norm"), x)?;
    x.rows = gelu(e, &vision.child("stem_act"), x.rows)?;

    let mut results = Vec::with_capacity(tower.stages.len());
    for placed in tower.blocks() {
        x = block(e, &placed, x)?;
        results.truncate(placed.stage);
        results.push(x);
    }

    let x = fusion(e, tower, &results)?;
    connector(e, arch, tower, x)
}

/// Adds a block, and its input to the result if both have one shape.
fn block(e: &mut Emitter<'_>, placed: &PlacedBlock<'_>, x: FeatureMap) -> Result<FeatureMap> {
    let scope = Scope::root().child(placed.name());
    let mut result = match *placed.block {
        MobileBlock::Edge { kernel, inner, .. } => {
            let window = Window { kernel, stride: placed.stride(), channels: inner, groups: 1 };
            edge(e, &scope, x, window, placed.channels())?
        }
        MobileBlock::Inverted { start, middle, inner, .. } => {
            let strides = if middle.is_some() { [1, placed.stride()] } else { [placed.stride(), 1] };
            let kernels = [start, middle];
            inverted(
                e,
                &scope,
                x,
                &InvertedResidual { kernels, strides, inner, channels: placed.channels() },
            )?
        }
        MobileBlock::Attention { heads, size, reduction } => {
            attention(e, &scope, x, [heads, size], reduction)?
        }
    };
    if placed.is_residual() {
        result.rows = e.graph.add(&scope.child("sum"), result.rows, x.rows)?;
    }
    Ok(result)
}

/// Adds an edge residual.
///
/// ```text
/// x ── Conv ── norm ── Gelu ── linear ── norm
/// ```
fn edge(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: FeatureMap,
    window: Window,
    channels: usize,
) -> Result<FeatureMap> {
    let part = scope.child("convolution");
    let image = image(e, &part, x)?;
    let mut x = convolution(e, &part, image, window, None)?;
    x.rows = norm(e, &scope.child("convolution_norm"), x)?;
    x.rows = gelu(e, &scope.child("convolution_act"), x.rows)?;
    normed_linear(e, scope, "linear", x, channels)
}

/// A universal inverted residual.
struct InvertedResidual {
    /// Kernels of the convolutions before and between the linear layers.
    kernels: [Option<usize>; 2],
    strides: [usize; 2],
    inner: usize,
    channels: usize,
}

/// Adds a universal inverted residual.
///
/// ```text
/// x ── (Conv ── norm) ── linear ── norm ── Gelu ── (Conv ── norm ── Gelu) ── linear ── norm ── Mul(scale)
/// ```
fn inverted(
    e: &mut Emitter<'_>,
    scope: &Scope,
    mut x: FeatureMap,
    block: &InvertedResidual,
) -> Result<FeatureMap> {
    let &InvertedResidual { kernels: [start, middle], strides, inner, channels } = block;
    if let Some(kernel) = start {
        x = depthwise(e, &scope.child("start"), x, kernel, strides[0])?;
        x.rows = norm(e, &scope.child("start_norm"), x)?;
    }
    x = normed_linear(e, scope, "expand", x, inner)?;
    x.rows = gelu(e, &scope.child("expand_act"), x.rows)?;
    if let Some(kernel) = middle {
        x = depthwise(e, &scope.child("middle"), x, kernel, strides[1])?;
        x.rows = norm(e, &scope.child("middle_norm"), x)?;
        x.rows = gelu(e, &scope.child("middle_act"), x.rows)?;
    }
    x = normed_linear(e, scope, "project", x, channels)?;
    scaled(e, scope, x)
}

/// Adds attention of all positions to all, or to those after a reduction. All heads share keys and values, so their queries
/// are rows of one product.
///
/// ```text
/// x ── norm ─┬─ q_proj ── Reshape [1, positions · heads, size] ── Mul(1 / √size) ─┐
///            ├─ (Conv ── norm) ── k_proj ── Transpose ─────────────────────────────┴─ MatMul ── Softmax ─┐
///            └─ (Conv ── norm) ── v_proj ────────────────────────────────────────────────────────────────┴─ MatMul
///                                                              ── Reshape ── o_proj ── Mul(scale)
/// ```
fn attention(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: FeatureMap,
    [heads, size]: [usize; 2],
    reduction: Option<usize>,
) -> Result<FeatureMap> {
    let FeatureMap { extent, channels, .. } = x;
    let attn = scope.child("attn");
    let x = FeatureMap { rows: norm(e, &scope.child("attn_norm"), x)?, ..x };
    let query = linear(e, &attn.child("q_proj"), x.rows, channels, Bias::Without)?;
    let by_head = [1, extent * extent * heads, size].map(|extent| extent as i64);
    let query = e.graph.reshape(&attn.child("q"), query, &by_head)?;
    let query = e.scale(&attn.child("q").child("scale"), query, (size as f64).sqrt().recip())?;

    let key = shared_head(e, &attn, "k", x, reduction)?;
    let value = shared_head(e, &attn, "v", x, reduction)?;
    let key = e.graph.transpose(&attn.child("k"), key, &[0, 2, 1])?;
    let scores = e.graph.mat_mul(&attn.child("scores"), query, key)?;
    let weights = e.graph.softmax(&attn, scores)?;
    let mixed = e.graph.mat_mul(&attn.child("mix"), weights, value)?;
    let by_position = [1, extent * extent, heads * size].map(|extent| extent as i64);
    let mixed = e.graph.reshape(&attn.child("mix"), mixed, &by_position)?;
    let rows = linear(e, &attn.child("o_proj"), mixed, heads * size, Bias::Without)?;
    scaled(e, scope, FeatureMap { rows, extent, channels })
}

/// Adds the keys or values that all heads share, `[1, positions, size]`.
fn shared_head(
    e: &mut Emitter<'_>,
    attn: &Scope,
    letter: &str,
    mut x: FeatureMap,
    reduction: Option<usize>,
) -> Result<Tensor> {
    if let Some(kernel) = reduction {
        x = depthwise(e, &attn.child(format_args!("{letter}_reduce")), x, kernel, 2)?;
        x.rows = norm(e, &attn.child(format_args!("{letter}_norm")), x)?;
    }
    linear(e, &attn.child(format_args!("{letter}_proj")), x.rows, x.channels, Bias::Without)
}

/// Adds the fusion of the last two stages, `[1, grid², hidden]`.
///
/// ```text
/// last but one ─────────────┐
/// last ── (twice as high) ──┴─ Concat ── linear ── norm ── Gelu ── linear ── norm ── means ── norm
/// ```
fn fusion(e: &mut Emitter<'_>, tower: &MobileNetTower, results: &[FeatureMap]) -> Result<Tensor> {
    let vision = Scope::root().child("vision");
    let scope = vision.child("fusion");
    let parts: Vec<FeatureMap> = results.iter().rev().take(2).rev().copied().collect();
    let mut rows = Vec::with_capacity(parts.len());
    for part in &parts {
        let is_small = part.extent < tower.fused_extent();
        rows.push(if is_small { doubled(e, &scope.child("doubled"), *part)? } else { part.rows });
    }
    let rows = e.graph.concat_last(&scope, &rows)?;
    let channels = parts.iter().map(|part| part.channels).sum();
    let mut x = FeatureMap { rows, extent: tower.fused_extent(), channels };
    x = normed_linear(e, &scope, "expand", x, tower.fusion)?;
    x.rows = gelu(e, &scope.child("expand_act"), x.rows)?;
    x = normed_linear(e, &scope, "project", x, tower.hidden)?;
    let rows = pooled(e, &scope.child("means"), x.rows, [x.extent, tower.grid], tower.hidden)?;
    norm(e, &vision.child("norm"), FeatureMap { rows, extent: tower.grid, ..x })
}

/// Returns rows with each position of a feature map four times, as a square.
///
/// ```text
/// x ── Concat(x, x) ── Reshape [1, extent, 2 · extent · channels] ── Concat(x, x) ── Reshape
/// ```
fn doubled(e: &mut Emitter<'_>, scope: &Scope, x: FeatureMap) -> Result<Tensor> {
    let FeatureMap { rows, extent, channels } = x;
    let wide = e.graph.concat_last(&scope.child("columns"), &[rows; 2])?;
    let lines = [1, extent, 2 * extent * channels].map(|extent| extent as i64);
    let lines = e.graph.reshape(&scope.child("lines"), wide, &lines)?;
    let high = e.graph.concat_last(&scope.child("rows"), &[lines; 2])?;
    let all = [1, 4 * extent * extent, channels].map(|extent| extent as i64);
    Ok(e.graph.reshape(scope, high, &all)?)
}

/// Adds the connector. The reference multiplies its input by `√hidden` before the norm; the epsilon is divided by `hidden`
/// instead.
fn connector(e: &mut Emitter<'_>, arch: &DecoderArch, tower: &MobileNetTower, x: Tensor) -> Result<Tensor> {
    let scope = Scope::root().child("connector");
    let epsilon = tower.norm_epsilon / tower.hidden as f32;
    let soft = Norm { kind: NormKind::Rms, width: tower.hidden, epsilon };
    let soft = soft.apply(e, &scope.child("norm"), x)?;
    let MobileNetTower { hidden: width, end, norm_epsilon, .. } = *tower;
    let end = TokenRows { tokens: end.tokens, rows: &[end.row], width, norm_epsilon };
    with_tokens(e, &scope, arch, soft, end)
}

/// Adds a depthwise convolution.
fn depthwise(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: FeatureMap,
    kernel: usize,
    stride: usize,
) -> Result<FeatureMap> {
    let image = image(e, scope, x)?;
    convolution(e, scope, image, Window { kernel, stride, channels: x.channels, groups: x.channels }, None)
}

/// A feature map with its channels first, `[1, channels, extent, extent]`.
#[derive(Clone, Copy)]
struct Image {
    x: Tensor,
    extent: usize,
    channels: usize,
}

/// Returns a feature map with its channels first.
fn image(e: &mut Emitter<'_>, scope: &Scope, x: FeatureMap) -> Result<Image> {
    let FeatureMap { rows, extent, channels } = x;
    let scope = scope.child("image");
    let x = e.graph.transpose(&scope, rows, &[0, 2, 1])?;
    let shape = [1, channels, extent, extent].map(|extent| extent as i64);
    Ok(Image { x: e.graph.reshape(&scope, x, &shape)?, extent, channels })
}

/// Adds a convolution.
///
/// ```text
/// image ── Conv ── Reshape ── Transpose
/// ```
fn convolution(
    e: &mut Emitter<'_>,
    scope: &Scope,
    image: Image,
    window: Window,
    bias: Option<Tensor>,
) -> Result<FeatureMap> {
    let Window { kernel, stride, channels, groups } = window;
    let name = scope.parameter("weight");
    let shape = [channels, image.channels / groups, kernel, kernel];
    let weight = e.tensor(&name, &shape, |e| e.values(&name, &shape))?;
    let y = e.graph.conv_2d(scope, &Conv2d { x: image.x, weight, bias, stride, groups })?;
    let extent = image.extent.div_ceil(stride);
    let flat = [1, channels, extent * extent].map(|extent| extent as i64);
    let y = e.graph.reshape(&scope.child("flat"), y, &flat)?;
    let rows = e.graph.transpose(&scope.child("rows"), y, &[0, 2, 1])?;
    Ok(FeatureMap { rows, extent, channels })
}

/// Adds a linear layer to this number of channels, and its norm.
fn normed_linear(
    e: &mut Emitter<'_>,
    scope: &Scope,
    part: &str,
    x: FeatureMap,
    channels: usize,
) -> Result<FeatureMap> {
    let rows = linear(e, &scope.child(part), x.rows, x.channels, Bias::Without)?;
    let x = FeatureMap { rows, channels, ..x };
    Ok(FeatureMap { rows: norm(e, &scope.child(format_args!("{part}_norm")), x)?, ..x })
}

/// Multiplies each channel by its scale.
fn scaled(e: &mut Emitter<'_>, scope: &Scope, x: FeatureMap) -> Result<FeatureMap> {
    let scope = scope.child("scale");
    let scale = e.vector(&scope.parameter("weight"), x.channels)?;
    Ok(FeatureMap { rows: e.graph.mul(&scope, x.rows, scale)?, ..x })
}

fn norm(e: &mut Emitter<'_>, scope: &Scope, x: FeatureMap) -> Result<Tensor> {
    let norm = Norm { kind: NormKind::Rms, width: x.channels, epsilon: MobileNetTower::EPSILON };
    norm.apply(e, scope, x.rows)
}

fn gelu(e: &mut Emitter<'_>, scope: &Scope, x: Tensor) -> Result<Tensor> {
    activation(e, scope, x, Activation::GeluTanh)
}
