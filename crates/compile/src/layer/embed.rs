//! Embeddings: the host tables of tokens, positions and segments.

use std::ops::Range;

use narthex_graph::typed::{Scope, Tensor};
use narthex_spec::{
    DType, Scheme,
    arch::{DecoderArch, PerLayer},
    manifest::{HostTable, TableEncoding, TableRole},
};

use crate::{
    emit::{Emitter, QuantizedWeight},
    error::Result,
};

/// Weight of the token table.
pub(crate) const TOKEN_WEIGHT: &str = "embed.weight";

/// A weight that becomes a table for the host.
#[derive(Clone, Copy)]
pub(crate) struct TableSource<'a> {
    pub(crate) role: TableRole,
    /// Name of the weight.
    pub(crate) weight: &'a str,
    /// Rows and columns of the weight.
    pub(crate) shape: [usize; 2],
}

impl TableSource<'_> {
    /// Writes the table row by row in the type `dtype`.
    pub(crate) fn write(self, e: &mut Emitter<'_>, dtype: DType) -> Result<HostTable> {
        self.write_rows(e, 0..self.shape[0], dtype)
    }

    /// Writes some rows of the weight as the table.
    pub(crate) fn write_rows(
        self,
        e: &mut Emitter<'_>,
        rows: Range<usize>,
        dtype: DType,
    ) -> Result<HostTable> {
        let range = e.rows(self.weight, self.shape, rows.clone(), dtype)?;
        let encoding = TableEncoding::Plain { dtype, data: e.file_range(range) };
        Ok(HostTable { role: self.role, rows: rows.len(), cols: self.shape[1], encoding })
    }

    /// Writes the table in the blocks that the plan states for its weight if they divide its rows, otherwise in the
    /// default element type.
    pub(crate) fn write_planned(self, e: &mut Emitter<'_>) -> Result<HostTable> {
        let [rows, cols] = self.shape;
        match e.plan.storage(self.weight) {
            Some(storage)
                if storage.plain().is_none() && cols.is_multiple_of(e.recipe.block.operator_block(cols)) =>
            {
                let weight = e.quantize(&[self.weight.to_owned()], cols, storage)?;
                Ok(HostTable { role: self.role, rows, cols, encoding: blocks(e, &weight, cols) })
            }
            _ => self.write(e, table_dtype(e.recipe.scheme)),
        }
    }
}

/// Returns the element type of large tables.
pub(crate) fn table_dtype(scheme: Scheme) -> DType {
    if scheme == Scheme::F32 { DType::F32 } else { DType::F16 }
}

fn blocks(e: &Emitter<'_>, weight: &QuantizedWeight, cols: usize) -> TableEncoding {
    TableEncoding::W8 {
        block: e.recipe.block.operator_block(cols),
        quants: e.file_range(weight.quants),
        scales: e.file_range(weight.scales),
    }
}

pub(crate) fn token_table(arch: &DecoderArch) -> TableSource<'static> {
    TableSource { role: TableRole::Token, weight: TOKEN_WEIGHT, shape: [arch.vocab, arch.hidden] }
}

/// Returns the table of per-layer embeddings.
pub(crate) fn per_layer_table(layers: usize, per_layer: &PerLayer) -> TableSource<'static> {
    let shape = [per_layer.vocab, layers * per_layer.width];
    TableSource { role: TableRole::PerLayer, weight: "per_layer.embed.weight", shape }
}

/// Returns the table of learned positions.
pub(crate) fn position_table(arch: &DecoderArch) -> TableSource<'static> {
    let shape = [arch.context, arch.hidden];
    TableSource { role: TableRole::Position, weight: "position.weight", shape }
}

/// Scales embedded tokens for the first layer: by the decoder's factor and by the scale of the residual stream.
pub(crate) fn scaled(
    e: &mut Emitter<'_>,
    embeds: Tensor,
    arch: &DecoderArch,
    stream_scale: f32,
) -> Result<Tensor> {
    let factor = arch.embed_scale.unwrap_or(1.0) * stream_scale;
    e.scale(&Scope::root().child("embed"), embeds, f64::from(factor))
}
