//! Attention without a mask in plain operators of fixed shapes: of every row to every row, or to the rows of another
//! sequence.

use narthex_graph::typed::{KeyValue, Scope, Tensor};

use super::attention::join_heads;
use crate::{emit::Emitter, error::Result};

/// Axes of heads for queries and values, `[1, heads, rows, size]`.
pub(crate) const ROWS: [usize; 4] = [0, 2, 1, 3];

/// Axes of heads for keys, `[1, heads, size, rows]`.
pub(crate) const COLUMNS: [usize; 4] = [0, 2, 3, 1];

/// Shape of rows that consist of heads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadRows {
    pub(crate) rows: usize,
    pub(crate) heads: usize,
    /// Elements of a head.
    pub(crate) size: usize,
}

impl HeadRows {
    /// Divides rows `[1, rows, heads · size]` into heads, with the axes in this order of `[1, rows, heads, size]`.
    pub(crate) fn divide(
        self,
        e: &mut Emitter<'_>,
        scope: &Scope,
        x: Tensor,
        order: [usize; 4],
    ) -> Result<Tensor> {
        let Self { rows, heads, size } = self;
        if rows == 1 && order == ROWS {
            return Ok(e.graph.reshape(scope, x, &[1, heads, 1, size].map(|extent| extent as i64))?);
        }
        let x = e.graph.reshape(scope, x, &[1, rows, heads, size].map(|extent| extent as i64))?;
        Ok(e.graph.transpose(scope, x, &order)?)
    }

    /// Adds attention of queries `[1, rows, heads · size]` to keys `[1, heads, size, columns]` and values
    /// `[1, heads, columns, size]`: `[1, rows, heads · size]`.
    ///
    /// ```text
    /// query ── heads ── Mul(1 / √size) ── MatMul(key) ── Softmax ── MatMul(value) ── rows
    /// ```
    pub(crate) fn attend(
        self,
        e: &mut Emitter<'_>,
        scope: &Scope,
        query: Tensor,
        KeyValue { key, value }: KeyValue,
    ) -> Result<Tensor> {
        let Self { rows, heads, size } = self;
        let part = scope.child("q");
        let query = self.divide(e, &part.child("heads"), query, ROWS)?;
        // The queries are scaled before the product, which might otherwise overflow in half precision.
        let query = e.scale(&part.child("scale"), query, (size as f64).sqrt().recip())?;
        let scores = e.graph.mat_mul(&scope.child("scores"), query, key)?;
        let weights = e.graph.softmax(scope, scores)?;
        let mixed = e.graph.mat_mul(&scope.child("mix"), weights, value)?;
        join_heads(e, scope, mixed, [1, rows, heads * size])
    }
}
