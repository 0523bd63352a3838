//! `narthex.BidirectionalAttention`: attention of every token to every token of its own text, over packed rows.
//!
//! Rows of queries, keys and values are those of the projections, with all heads in a row. A task computes some heads
//! of some of a text's queries. The result of a text depends on its own rows only.

use std::{ops::Range, sync::Arc};

use narthex_kernels::{Attention, CacheRows, KeyValues, Mask, MatrixMut, MatrixRef, Queries};
use ort::{
    operator::{OperatorInput, OperatorOutput},
    value::TensorElementType,
};

use super::texts::PackedTexts;
use crate::operators::{
    Buffers, OperatorContext, at_least,
    attributes::Attributes,
    call::{Call, Input},
    linear::Part,
    node_kernel::NodeKernel,
};

/// Operator type.
pub(in crate::operators) const BIDIRECTIONAL_ATTENTION: &str = "BidirectionalAttention";

/// Attributes with the number of heads and the factor of scores.
pub(super) const HEADS: &str = "num_heads";
pub(super) const SCALE: &str = "scale";

/// Maximum number of queries in a task. For this many, the cost of converting keys and values is small.
const TASK_QUERIES: usize = 192;

/// Number of pairs of a query and a key in a task, if there are enough heads. With fewer, its start would take a
/// considerable share of its time.
const TASK_PAIRS: usize = 1 << 14;

/// Number of tasks per thread that are worth smaller tasks.
const TASKS_PER_THREAD: usize = 2;

/// The operator as the kernel of one node.
pub(in crate::operators) struct BidirectionalAttentionKernel {
    shared: Arc<OperatorContext>,
    heads: usize,
    scale: f32,
}

impl NodeKernel for BidirectionalAttentionKernel {
    const OPERATOR: &'static str = BIDIRECTIONAL_ATTENTION;

    fn inputs() -> impl IntoIterator<Item = OperatorInput> {
        use TensorElementType::{Float32, Int32};
        [Float32, Float32, Float32, Int32].map(OperatorInput::required)
    }

    fn outputs() -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::required(TensorElementType::Float32)]
    }

    fn of(shared: &Arc<OperatorContext>, node: &impl Attributes) -> ort::Result<Self> {
        let heads = node.int(HEADS).and_then(|heads| usize::try_from(heads).ok()).filter(|&heads| heads > 0);
        let (Some(heads), Some(scale)) = (heads, node.float(SCALE)) else {
            return Err(ort::Error::new(format!("expected the attributes {HEADS} and {SCALE}")));
        };
        Ok(Self { shared: Arc::clone(shared), heads, scale })
    }

    fn run(&self, call: &Call<'_>) -> ort::Result<()> {
        let [query, key, value]: [Input<'_>; 3] = [call.input(0)?, call.input(1)?, call.input(2)?];
        let width = query.columns();
        let same = query.shape == key.shape && query.shape == value.shape;
        if !same || width == 0 || !width.is_multiple_of(self.heads) {
            let found = [query.shape, key.shape, value.shape];
            let message =
                format!("expected queries, keys and values of {} heads, found {found:?}", self.heads);
            return Err(ort::Error::new(message));
        }
        let out = call.output(0, query.shape)?;
        let [query, key, value] = [query, key, value].map(|rows| MatrixRef::new(rows.data, width));
        let head_size = width / self.heads;
        let attention = Attention { head_size, scale: self.scale, soft_cap: None, mask: Mask::Full };
        let texts = PackedTexts::of(call, 3, query.rows())?;
        PackedAttention { shared: &self.shared, attention, heads: self.heads, query, key, value }
            .run(call, &texts, out)
    }
}

/// Queries, keys and values of packed texts. Their shapes match each other.
struct PackedAttention<'a> {
    shared: &'a OperatorContext,
    attention: Attention,
    heads: usize,
    query: MatrixRef<'a>,
    key: MatrixRef<'a>,
    value: MatrixRef<'a>,
}

/// Some heads of some queries of a text.
struct HeadsTask<'a> {
    /// Rows of the text.
    text: Range<usize>,
    /// Rows of the queries.
    queries: Range<usize>,
    heads: Range<usize>,
    out: MatrixMut<'a>,
}

impl PackedAttention<'_> {
    fn run(&self, call: &Call<'_>, texts: &PackedTexts<'_>, out: &mut [f32]) -> ort::Result<()> {
        let tasks: Vec<_> = self.tasks(texts, out).into_iter().map(Part::new).collect();
        call.parallel(tasks.len(), |at| {
            // The longest texts usually come last, so their tasks are started first.
            if let Some(task) = tasks.get(tasks.len() - 1 - at).and_then(Part::take) {
                self.attend(task);
            }
        })
    }

    fn tasks<'o>(&self, texts: &PackedTexts<'_>, mut out: &'o mut [f32]) -> Vec<HeadsTask<'o>> {
        let size = self.attention.head_size;
        let width = self.query.columns();
        let tiles = texts.rows().map(|text| text.len().div_ceil(TASK_QUERIES)).sum::<usize>();
        let most = (tiles * self.heads).div_ceil(self.shared.threads * TASKS_PER_THREAD).max(1);
        let mut tasks = Vec::new();
        for text in texts.rows() {
            for first in text.clone().step_by(TASK_QUERIES) {
                let queries = first..text.end.min(first + TASK_QUERIES);
                let (own, others) = out.split_at_mut(queries.len() * width);
                out = others;
                let mut rest = MatrixMut::new(own, width);
                let pairs = queries.len() * text.len();
                let step = (TASK_PAIRS / pairs).clamp(1, self.heads).min(most);
                for head in (0..self.heads).step_by(step) {
                    let heads = head..self.heads.min(head + step);
                    let (out, others) = rest.split_at_column(heads.len() * size);
                    rest = others;
                    tasks.push(HeadsTask { text: text.clone(), queries: queries.clone(), heads, out });
                }
            }
        }
        tasks
    }

    fn attend(&self, task: HeadsTask<'_>) {
        let HeadsTask { text, queries, heads, out: mut rest } = task;
        let size = self.attention.head_size;
        self.shared.with_buffers(|Buffers { scratch, keys, values, .. }| {
            for head in heads {
                let columns = head * size..(head + 1) * size;
                let [keys, values] =
                    [(self.key, &mut *keys), (self.value, &mut *values)].map(|(rows, buffer)| {
                        let rows = rows.rows_in(text.clone()).columns_in(columns.clone());
                        let head = at_least(buffer, text.len() * size);
                        for (index, row) in head.chunks_exact_mut(size).enumerate() {
                            row.copy_from_slice(rows.row(index));
                        }
                        CacheRows::F32(head)
                    });
                let rows = self.query.rows_in(queries.clone()).columns_in(columns.clone());
                let queries = Queries { rows, first_position: 0, sinks: &[] };
                let (out, others) = rest.split_at_column(size);
                rest = others;
                let cache = KeyValues { keys, values };
                self.shared.kernels.attend(&self.attention, queries, cache, scratch, out);
            }
        });
    }
}
