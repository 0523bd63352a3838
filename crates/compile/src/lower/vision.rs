//! Vision towers: a graph for one picture of fixed size, in either variant.

use narthex_graph::{
    Graph,
    typed::{KeyValue, PatchConv, Reduction, Scope, Tensor, TensorType},
};
use narthex_spec::{
    DType, Variant,
    arch::{Connector, DecoderArch, Mlp, NormKind, VisionArch},
    dtype::Dim,
    manifest::{GraphEntry, Part, Slot},
};

use super::io::GraphIo;
use crate::{
    emit::Emitter,
    error::Result,
    layer::{
        linear::{Bias, StackedLinear, linear, stacked_linear},
        mlp,
        norm::{Norm, ResidualForm, ResidualStream, StreamNorms},
        unmasked_attention::{COLUMNS, HeadRows, ROWS},
    },
};

/// Lowers the tower of a decoder to variant A, and to variant B if the recipe has shapes for it.
pub(super) fn graphs(
    e: &mut Emitter<'_>,
    arch: &DecoderArch,
    vision: &VisionArch,
) -> Result<Vec<(Graph, GraphEntry)>> {
    let mut variants = vec![(Variant::Dynamic, DType::F32, "vision")];
    if e.recipe.fixed.is_some() {
        variants.push((Variant::Static, DType::F16, "vision-fixed"));
    }
    let mut graphs = Vec::with_capacity(variants.len());
    for (variant, dtype, name) in variants {
        e.compute = dtype;
        e.begin_graph(name);
        let entry = VisionGraph { arch, vision, variant }.lower(e, &format!("{name}.onnx"))?;
        graphs.push((e.finish_graph()?, entry));
    }
    Ok(graphs)
}

/// Graph of a tower.
struct VisionGraph<'a> {
    arch: &'a DecoderArch,
    vision: &'a VisionArch,
    variant: Variant,
}

impl VisionGraph<'_> {
    /// ```text
    /// pixels ── patch ── Reshape ── Transpose ── Add(positions)
    ///        ── (norm ── attention ── + ── norm ── mlp ── +) × layers ── norm ── connector ── rows
    /// ```
    fn lower(&self, e: &mut Emitter<'_>, file: &str) -> Result<GraphEntry> {
        let &Self { arch, vision, .. } = self;
        let dtype = e.compute;
        let mut io = GraphIo::default();
        let pixels = TensorType::new(dtype, &vision.pixels().map(Dim::from));
        let pixels = io.input(e, Slot::Pixels, "pixels", pixels);
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
        let rows = self.connector(e, normed)?;
        let kind = TensorType::new(dtype, &[1, vision.rows(), arch.hidden].map(Dim::from));
        io.output(e, Slot::PictureRows, "rows", rows, &kind)?;
        Ok(io.entry(file, self.variant, Part::Vision, Vec::new()))
    }

    /// Returns the number of patches.
    fn count(&self) -> usize {
        self.vision.patches().pow(2)
    }

    /// Adds the embedded patches with their positions, `[1, patches, hidden]`.
    fn patches(&self, e: &mut Emitter<'_>, x: Tensor) -> Result<Tensor> {
        let &VisionArch { patch, hidden, .. } = self.vision;
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

    /// Adds attention of every patch to every patch: one operator in variant A, plain operators in variant B.
    fn attention(&self, e: &mut Emitter<'_>, scope: &Scope, x: Tensor) -> Result<Tensor> {
        let &VisionArch { hidden, heads, .. } = self.vision;
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

    /// Adds the connector, `[1, rows, decoder's hidden]`. The decoder's graph multiplies its input by the embedding scale,
    /// which does not apply to pictures.
    ///
    /// ```text
    /// x ── squares ── linear ── Mul(1 / embedding scale)
    /// ```
    fn connector(&self, e: &mut Emitter<'_>, x: Tensor) -> Result<Tensor> {
        let scope = Scope::root().child("connector");
        let x = match self.vision.connector {
            Connector::Pooled { pool, norm_epsilon } => self.pooled(e, &scope, x, pool, norm_epsilon)?,
            Connector::PixelShuffle { factor } => self.shuffled(e, &scope, x, factor)?,
        };
        let x = linear(e, &scope.child("linear"), x, self.vision.connector_width(), Bias::Without)?;
        let factor = self.arch.embed_scale.map_or(1.0, |scale| f64::from(scale).recip());
        e.scale(&scope.child("scale"), x, factor)
    }

    /// Adds the means of squares of patches, `[1, rows, hidden]`.
    ///
    /// ```text
    /// x ── Reshape ── ReduceMean ── Reshape ── ReduceMean ── norm
    /// ```
    fn pooled(
        &self,
        e: &mut Emitter<'_>,
        scope: &Scope,
        x: Tensor,
        pool: usize,
        norm_epsilon: f32,
    ) -> Result<Tensor> {
        let hidden = self.vision.hidden;
        let patches = self.vision.patches();
        let side = patches / pool;
        let x = self.means(e, &scope.child("columns"), x, [side, pool, patches * hidden])?;
        let x = self.means(e, &scope.child("rows"), x, [self.vision.rows(), pool, hidden])?;
        let x = e.graph.unsqueeze(scope, x, &[0])?;
        let norm = Norm { kind: NormKind::Rms, width: hidden, epsilon: norm_epsilon };
        norm.apply(e, &scope.child("norm"), x)
    }

    /// Adds the elements of squares of patches, `[1, rows, factor² · hidden]`: those of the upper row of a square first.
    fn shuffled(&self, e: &mut Emitter<'_>, scope: &Scope, x: Tensor, factor: usize) -> Result<Tensor> {
        let side = self.vision.patches() / factor;
        let squares = [side, factor, side, factor * self.vision.hidden].map(|extent| extent as i64);
        let x = e.graph.reshape(&scope.child("squares"), x, &squares)?;
        let x = e.graph.transpose(scope, x, &[0, 2, 1, 3])?;
        let rows = [1, self.vision.rows(), self.vision.connector_width()].map(|extent| extent as i64);
        Ok(e.graph.reshape(&scope.child("rows"), x, &rows)?)
    }

    /// Adds the means over the middle axis of `x`, which gets this shape.
    fn means(&self, e: &mut Emitter<'_>, scope: &Scope, x: Tensor, shape: [usize; 3]) -> Result<Tensor> {
        let x = e.graph.reshape(scope, x, &shape.map(|extent| extent as i64))?;
        Ok(e.graph.reduce_away(scope, Reduction::Mean, x, 1)?)
    }
}
