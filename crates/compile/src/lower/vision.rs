//! Vision towers: a graph for one picture of fixed size, in either variant. `mobilenet` has the layers of MobileNetV5.

use narthex_graph::typed::{KeyValue, PatchConv, Scope, Tensor, TensorType};
use narthex_spec::{
    Variant,
    arch::{Connector, DecoderArch, Mlp, NormKind, PatchTower, VisionArch},
    dtype::Dim,
    manifest::{GraphEntry, Part, Slot},
};

use super::{io::GraphIo, mobilenet};
use crate::{
    emit::Emitter,
    error::Result,
    layer::{
        connector::{pooled, unscaled},
        linear::{Bias, StackedLinear, linear, stacked_linear},
        mlp,
        norm::{Norm, ResidualForm, ResidualStream, StreamNorms},
        unmasked_attention::{COLUMNS, HeadRows, ROWS},
    },
};

/// Lowers a tower to the graph under construction.
pub(super) fn lower(
    e: &mut Emitter<'_>,
    arch: &DecoderArch,
    vision: &VisionArch,
    variant: Variant,
    file: &str,
) -> Result<GraphEntry> {
    let dtype = e.compute;
    let mut io = GraphIo::default();
    let pixels = TensorType::new(dtype, &vision.pixels().map(Dim::from));
    let pixels = io.input(e, Slot::Pixels, "pixels", pixels);
    let rows = match vision {
        VisionArch::Patches(tower) => PatchGraph { arch, tower, variant }.rows(e, pixels)?,
        VisionArch::MobileNet(tower) => mobilenet::rows(e, arch, tower, pixels)?,
    };
    let kind = TensorType::new(dtype, &[1, vision.rows(), arch.hidden].map(Dim::from));
    io.output(e, Slot::PictureRows, "rows", rows, &kind)?;
    Ok(io.entry(file, variant, Part::Vision))
}

/// Graph of a transformer over patches.
struct PatchGraph<'a> {
    arch: &'a DecoderArch,
    tower: &'a PatchTower,
    variant: Variant,
}

impl PatchGraph<'_> {
    /// Adds the tower, `[1, rows, decoder's hidden]`.
    ///
    /// ```text
    /// pixels ── patch ── Reshape ── Transpose ── Add(positions)
    ///        ── (norm ── attention ── + ── norm ── mlp ── +) × layers ── norm ── connector ── rows
    /// ```
    fn rows(&self, e: &mut Emitter<'_>, pixels: Tensor) -> Result<Tensor> {
        let vision = self.tower;
        let x = self.patches(e, pixels)?;
        let norm = Norm { kind: NormKind::Layer, width: vision.hidden, epsilon: vision.norm_epsilon };
        let form = match self.variant {
            Variant::Dynamic => ResidualForm::Fused,
            Variant::Static => ResidualForm::Plain,
        };
        let tower = Scope::root().child("vision");
        let mut stream = ResidualStream::new(x, StreamNorms::new(norm, 1.0), form);
        for index in 0..vision.layers {
            let layer = tower.child(format_args!("layers.{index}"));
            let attn = layer.child("attn");
            let normed = stream.normed(e, &layer.child("attn_norm"))?;
            let attended = self.attention(e, &attn, normed)?;
            stream.add(e, &attn, attended)?;
            let spec = Mlp {
                inner: vision.inner,
                activation: vision.activation,
                gated: false,
                bias: true,
                cutoff: None,
            };
            let scope = layer.child("mlp");
            let normed = stream.normed(e, &layer.child("mlp_norm"))?;
            let fed = mlp::mlp(e, &scope, normed, vision.hidden, &spec)?;
            stream.add(e, &scope, fed)?;
        }

        let normed = stream.normed(e, &tower.child("norm"))?;
        self.connector(e, normed)
    }

    /// Returns the number of patches.
    fn count(&self) -> usize {
        self.tower.patches().pow(2)
    }

    /// Adds the embedded patches with their positions, `[1, patches, hidden]`.
    fn patches(&self, e: &mut Emitter<'_>, x: Tensor) -> Result<Tensor> {
        let &PatchTower { patch, hidden, .. } = self.tower;
        let scope = Scope::root().child("vision").child("patch");
        let name = scope.parameter("weight");
        let shape = [hidden, VisionArch::CHANNELS, patch, patch];
        let weight = e.tensor(&name, &shape, |e| e.values(&name, &shape))?;
        let bias = e.vector(&scope.parameter("bias"), hidden)?;
        let embedded = e.graph.patch_conv(&scope, &PatchConv { x, weight, bias })?;
        let flat = [1, hidden, self.count()].map(|extent| extent as i64);
        let flat = e.graph.reshape(&scope.child("flat"), embedded, &flat)?;
        let rows = e.graph.transpose(&scope.child("rows"), flat, &[0, 2, 1])?;

        let scope = Scope::root().child("vision").child("position");
        let name = scope.parameter("weight");
        let shape = [self.count(), hidden];
        let positions = e.tensor(&name, &shape, |e| e.values(&name, &shape))?;
        Ok(e.graph.add(&scope, rows, positions)?)
    }

    /// Adds attention of every patch to every patch: one operator in the dynamic variant, plain operators in the static
    /// variant.
    fn attention(&self, e: &mut Emitter<'_>, scope: &Scope, x: Tensor) -> Result<Tensor> {
        let &PatchTower { hidden, heads, .. } = self.tower;
        let qkv = scope.child("qkv_proj");
        let parts = ["q_proj", "k_proj", "v_proj"].map(|part| scope.child(part));
        let stacked = StackedLinear { scope: &qkv, parts: &parts, cols: hidden, bias: Bias::With };
        let all = stacked_linear(e, x, &stacked)?;
        let [query, key, value] = e.graph.split_into(&qkv, all, 2, [hidden; 3])?;
        let mixed = match self.variant {
            Variant::Dynamic => e.graph.multi_head_attention(scope, query, KeyValue { key, value }, heads)?,
            Variant::Static => {
                let shape = HeadRows { rows: self.count(), heads, size: hidden / heads };
                let key = shape.divide(e, &scope.child("k").child("heads"), key, COLUMNS)?;
                let value = shape.divide(e, &scope.child("v").child("heads"), value, ROWS)?;
                shape.attend(e, scope, query, KeyValue { key, value })?
            }
        };
        linear(e, &scope.child("o_proj"), mixed, hidden, Bias::With)
    }

    /// Adds the connector, `[1, rows, decoder's hidden]`.
    ///
    /// ```text
    /// x ── squares ── linear ── Mul(1 / embedding scale)
    /// ```
    fn connector(&self, e: &mut Emitter<'_>, x: Tensor) -> Result<Tensor> {
        let scope = Scope::root().child("connector");
        let x = match self.tower.connector {
            Connector::Pooled { pool, norm_epsilon } => {
                let width = self.tower.hidden;
                let patches = self.tower.patches();
                let x = pooled(e, &scope, x, [patches, patches / pool], width)?;
                let norm = Norm { kind: NormKind::Rms, width, epsilon: norm_epsilon };
                norm.apply(e, &scope.child("norm"), x)?
            }
            Connector::PixelShuffle { factor } => self.shuffled(e, &scope, x, factor)?,
        };
        let x = linear(e, &scope.child("linear"), x, self.tower.connector_width(), Bias::Without)?;
        unscaled(e, &scope, self.arch, x)
    }

    /// Adds the elements of squares of patches, `[1, rows, factor² · hidden]`: those of the upper row of a square first.
    fn shuffled(&self, e: &mut Emitter<'_>, scope: &Scope, x: Tensor, factor: usize) -> Result<Tensor> {
        let side = self.tower.patches() / factor;
        let squares = [side, factor, side, factor * self.tower.hidden].map(|extent| extent as i64);
        let x = e.graph.reshape(&scope.child("squares"), x, &squares)?;
        let x = e.graph.transpose(scope, x, &[0, 2, 1, 3])?;
        let rows = [1, self.tower.rows(), self.tower.connector_width()].map(|extent| extent as i64);
        Ok(e.graph.reshape(&scope.child("rows"), x, &rows)?)
    }
}
