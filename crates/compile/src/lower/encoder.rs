//! The layers of an encoder, which both variants share, and its host tables.
//!
//! Residual additions with norms are one operator in the dynamic variant, and plain operators in the static variant;
//! nothing else differs.

use narthex_graph::typed::{Scope, Tensor, TensorType};
use narthex_spec::{
    DType,
    arch::{BottleneckAttention, EncoderArch, EncoderNorm, Mlp, NormKind},
    dtype::Dim,
    manifest::{HostTable, Slot, TableRole},
};

use super::io::GraphIo;
use crate::{
    emit::Emitter,
    error::Result,
    layer::{
        embed::{TableSource, table_dtype},
        encoder_attention::{BidirectionalAttention, EncoderRotary, Rows, bidirectional_attention},
        encoder_head::TOKEN_WEIGHT,
        layer_scope,
        linear::{Bias, linear},
        mlp,
        norm::{Norm, affine},
    },
};

/// Texts of a graph.
#[derive(Clone, Copy)]
pub(super) struct EncoderInput {
    /// Mask that is added to scores.
    pub(super) mask: Tensor,
    /// Fixed length of the one text in the static variant; `None` for any number of texts of any length.
    pub(super) length: Option<usize>,
    /// Rotary positions.
    pub(super) rotary: Option<EncoderRotary>,
}

pub(super) struct EncoderLayers<'a> {
    pub(super) arch: &'a EncoderArch,
    pub(super) input: EncoderInput,
}

/// Declares the inputs of embedded tokens, each `[batch, sequence, width]`. Returns their sum at the width of the
/// residual stream.
///
/// ```text
/// embeds                               (the sum of rows of token, position and segment)
/// embeds ── project ── Add(positions)  (factored)
/// ```
pub(super) fn embedded(
    e: &mut Emitter<'_>,
    io: &mut GraphIo,
    arch: &EncoderArch,
    texts: &[Dim; 2],
) -> Result<Tensor> {
    let dtype = e.compute;
    let [batch, sequence] = texts;
    let rows = |width: usize| TensorType::new(dtype, &[batch.clone(), sequence.clone(), width.into()]);
    let Some(factored) = &arch.factored else {
        return Ok(io.input(e, Slot::Embeds, "embeds", rows(arch.hidden)));
    };
    let tokens = io.input(e, Slot::Embeds, "embeds", rows(factored.input()));
    let positions = io.input(e, Slot::PositionEmbeds, "positions", rows(arch.hidden));
    let scope = Scope::root().child("embed");
    let tokens = linear(e, &scope.child("project"), tokens, factored.input(), Bias::With)?;
    Ok(e.graph.add(&scope, tokens, positions)?)
}

impl EncoderLayers<'_> {
    /// Lowers the layers over embedded tokens.
    ///
    /// ```text
    /// embedded ── norm ── layer × layers
    /// ```
    pub(super) fn lower(&self, e: &mut Emitter<'_>, embedded: Tensor) -> Result<Tensor> {
        let mut x = self.norm(e, &Scope::root().child("embed").child("norm"), embedded, self.arch.hidden)?;
        for index in 0..self.arch.layers {
            x = self.layer(e, &layer_scope(index), x)?;
        }
        Ok(x)
    }

    /// ```text
    /// x ── attention ── Add ── norm ── mlp ── Add ── norm
    /// ```
    /// With a bottleneck, between two linear layers:
    /// ```text
    /// x ── input ── attention ── Add ── norm ── (mlp ── Add ── norm) × parts ── output ── Add(x) ── norm
    /// ```
    fn layer(&self, e: &mut Emitter<'_>, scope: &Scope, x: Tensor) -> Result<Tensor> {
        let hidden = self.arch.hidden;
        let inside = self.arch.inside();
        let bottleneck = scope.child("bottleneck");
        let narrow = match self.arch.bottleneck {
            Some(_) => self.narrowed(e, &bottleneck, "input", x)?,
            None => x,
        };
        let [keys, values] = match self.arch.bottleneck.map(|bottleneck| bottleneck.attention) {
            None | Some(BottleneckAttention::Narrow) => [narrow, narrow],
            Some(BottleneckAttention::Shared) => [self.narrowed(e, &bottleneck, "attn", x)?, x],
            Some(BottleneckAttention::Wide) => [x, x],
        };
        let attn = scope.child("attn");
        let attended = self.attention(e, &attn, keys, values)?;
        let mut y = self.add_norm(e, &attn, &scope.child("attn_norm"), [narrow, attended], inside)?;
        let early = (0..self.arch.early_feed_forwards()).map(|part| {
            let part = scope.child("ffn").child(part);
            (part.child("norm"), part)
        });

        for (norm, part) in early.chain([(scope.child("mlp_norm"), scope.child("mlp"))]) {
            let inner = Mlp {
                inner: self.arch.inner,
                activation: self.arch.activation,
                gated: self.arch.gated,
                bias: self.arch.biases,
                cutoff: None,
            };
            let fed = mlp::mlp(e, &part, y, inside, &inner)?;
            y = self.add_norm(e, &part, &norm, [y, fed], inside)?;
        }

        if self.arch.bottleneck.is_none() {
            return Ok(y);
        }

        let output = bottleneck.child("output");
        let wide = linear(e, &output, y, inside, Bias::With)?;
        self.add_norm(e, &output.child("residual"), &bottleneck.child("output_norm"), [x, wide], hidden)
    }

    /// Adds a linear layer to the width inside the bottleneck, and a norm.
    fn narrowed(&self, e: &mut Emitter<'_>, bottleneck: &Scope, part: &str, x: Tensor) -> Result<Tensor> {
        let narrow = linear(e, &bottleneck.child(part), x, self.arch.hidden, Bias::With)?;
        self.norm(e, &bottleneck.child(format_args!("{part}_norm")), narrow, self.arch.inside())
    }

    fn attention(&self, e: &mut Emitter<'_>, scope: &Scope, keys: Tensor, values: Tensor) -> Result<Tensor> {
        let [key_width, value_width] = self.arch.attention_reads();
        let attention = BidirectionalAttention {
            keys: Rows { x: keys, width: key_width },
            values: Rows { x: values, width: value_width },
            width: self.arch.inside(),
            heads: self.arch.heads,
            mask: self.input.mask,
            extents: self.input.length.map_or([0, 0], |length| [1, length]),
            rotary: self.input.rotary,
            bias: self.arch.biases.into(),
        };
        bidirectional_attention(e, scope, &attention)
    }

    fn layer_norm(&self, width: usize) -> Norm {
        Norm { kind: NormKind::Layer, width, epsilon: self.arch.norm_epsilon }
    }

    fn norm(&self, e: &mut Emitter<'_>, scope: &Scope, x: Tensor, width: usize) -> Result<Tensor> {
        match self.arch.norm {
            EncoderNorm::Layer => self.layer_norm(width).apply(e, scope, x),
            EncoderNorm::Affine => affine(e, scope, x, width),
        }
    }

    /// Adds the norm of a sum; `sum` is the scope of the addition if that is a separate node.
    fn add_norm(
        &self,
        e: &mut Emitter<'_>,
        sum: &Scope,
        norm: &Scope,
        [residual, branch]: [Tensor; 2],
        width: usize,
    ) -> Result<Tensor> {
        if self.input.length.is_none() && self.arch.norm == EncoderNorm::Layer {
            return self.layer_norm(width).apply_to_sum(e, norm, residual, branch);
        }
        let sum = e.graph.add(sum, residual, branch)?;
        self.norm(e, norm, sum, width)
    }
}

/// Writes the tables of positions and segments, and the token table unless a head has written it.
pub(super) fn tables(
    e: &mut Emitter<'_>,
    arch: &EncoderArch,
    tokens: Option<HostTable>,
) -> Result<Vec<HostTable>> {
    let hidden = arch.hidden;
    let tokens = match tokens {
        Some(tokens) => tokens,
        None => {
            let shape = [arch.vocab, arch.token_width()];
            let dtype = table_dtype(e.recipe.scheme);
            TableSource { role: TableRole::Token, weight: TOKEN_WEIGHT, shape }.write(e, dtype)?
        }
    };
    let mut tables = vec![tokens];
    if arch.rope.is_none() {
        // Earlier positions belong to padding.
        let positions = arch.first_position..arch.first_position + arch.positions;
        let shape = [positions.end, hidden];
        let source = TableSource { role: TableRole::Position, weight: "embed.position.weight", shape };
        tables.push(source.write_rows(e, positions, DType::F32)?);
    }
    if arch.types > 0 {
        let shape = [arch.types, hidden];
        let source = TableSource { role: TableRole::TokenType, weight: "embed.type.weight", shape };
        tables.push(source.write(e, DType::F32)?);
    }
    Ok(tables)
}
