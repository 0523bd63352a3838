//! `narthex.Experts`: a mixture of gated networks, of which each row uses a few.
//!
//! Rows are grouped by expert. If there are many groups, a thread computes a whole expert for the rows of a group, as
//! [`GatedMlp`] does. If there are few, as for a single new token, the columns of all selected experts are divided
//! between threads. A row's results are the same in both cases, and do not depend on the other rows.

use std::{cmp::Ordering, ops::Range, sync::Arc};

use narthex_kernels::{GateClamp, MatrixMut, MatrixRef, QuantizedRows};
use ort::{
    operator::{OperatorInput, OperatorOutput},
    value::TensorElementType,
};

use super::{
    Buffers, OperatorContext, at_least,
    attributes::Attributes,
    call::{Call, Input},
    gated::GatedMlp,
    linear::{Part, WEIGHTS, index_of},
    node_kernel::NodeKernel,
    weights::Linear,
};

/// Operator type.
pub(super) const EXPERTS: &str = "Experts";

/// Attributes with the number of experts, and of those for each row.
pub(super) const COUNT: &str = "count";
pub(super) const PER_TOKEN: &str = "per_token";

/// Attributes with the bounds of gate and up projection, if they have any.
pub(super) const LIMIT: &str = "limit";
pub(super) const SLOPE: &str = "slope";

/// Number of weights of an expert: gate, up and down. Those of an expert follow those of the one before it.
pub(super) const PROJECTIONS: usize = 3;

/// Maximum number of rows that are computed at once, which bounds the memory of their results.
const ROWS_AT_ONCE: usize = 1024;

/// Maximum number of rows of an expert that a task computes, so that they stay in the cache.
const GROUP_ROWS: usize = 96;

/// Minimum number of groups per thread if a task computes a whole one.
const GROUPS_PER_THREAD: usize = 4;

/// Number of tasks per thread that divide the columns of a few groups.
const TASKS_PER_THREAD: usize = 4;

/// Number of columns of a register tile. Tasks have a multiple of it.
const COLUMN_STEP: usize = 32;

/// Number of rows whose results a task adds.
const SUM_ROWS: usize = 32;

/// The operator as the kernel of one node.
pub(super) struct ExpertsKernel {
    shared: Arc<OperatorContext>,
    /// Indices of the weights of all experts.
    weights: Range<usize>,
    per_token: usize,
    clamp: Option<GateClamp>,
}

impl NodeKernel for ExpertsKernel {
    const OPERATOR: &'static str = EXPERTS;

    fn inputs() -> impl IntoIterator<Item = OperatorInput> {
        let kind = TensorElementType::Float32;
        [OperatorInput::required(kind), OperatorInput::required(kind)]
    }

    fn outputs() -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::required(TensorElementType::Float32)]
    }

    fn of(shared: &Arc<OperatorContext>, node: &impl Attributes) -> ort::Result<Self> {
        let number = |name: &str| node.int(name).and_then(|number| usize::try_from(number).ok()).unwrap_or(0);
        let first = index_of(shared, node, WEIGHTS)?;
        let (count, per_token) = (number(COUNT), number(PER_TOKEN));
        let weights = first..first.saturating_add(count.saturating_mul(PROJECTIONS));
        let fits = shared.linears.get(weights.clone()).is_some_and(have_one_shape);
        if !fits || !(1..=count).contains(&per_token) {
            let message =
                format!("expected experts of one shape, found {per_token} of {count} in {weights:?}");
            return Err(ort::Error::new(message));
        }
        let clamp = node.float(LIMIT).zip(node.float(SLOPE)).map(|(limit, slope)| GateClamp { limit, slope });
        Ok(Self { shared: Arc::clone(shared), weights, per_token, clamp })
    }

    fn run(&self, call: &Call<'_>) -> ort::Result<()> {
        let linears = &self.shared.linears[self.weights.clone()];
        let width = linears[0].weights.inputs();
        let count = linears.len() / PROJECTIONS;
        let x: Input<'_> = call.input(0)?;
        let logits: Input<'_> = call.input(1)?;
        if x.columns() != width || logits.data.len() != x.data.len() / width * count {
            let message =
                format!("expected rows of {width} elements with {count} logits, found {:?}", x.shape);
            return Err(ort::Error::new(message));
        }

        let out: &mut [f32] = call.output(0, x.shape)?;
        for (block, out) in out.chunks_mut(ROWS_AT_ONCE * width).enumerate() {
            let start = block * ROWS_AT_ONCE;
            let rows = start..start + out.len() / width;
            let logits = MatrixRef::new(logits.data, count).rows_in(rows.clone());
            let routes = Routes::new(logits, self.per_token);
            let x = MatrixRef::new(x.data, width).rows_in(rows.clone());
            let mixture = Mixture { shared: &self.shared, linears, routes: &routes, x, clamp: self.clamp };
            mixture.run(call, out)?;
        }
        Ok(())
    }
}

/// Returns whether weights are those of experts with equal shapes.
fn have_one_shape(linears: &[Linear]) -> bool {
    let shape = |linear: &Linear| (linear.layout(), linear.weights.outputs());
    let [gate, up, down, ..] = linears else { return false };
    let (width, inner) = (gate.weights.inputs(), gate.weights.outputs());
    shape(gate) == shape(up)
        && (down.weights.inputs(), down.weights.outputs()) == (inner, width)
        && width > 0
        && linears.len().is_multiple_of(PROJECTIONS)
        && linears.iter().zip(linears.iter().skip(PROJECTIONS)).all(|(one, other)| shape(one) == shape(other))
}

/// The experts of some rows.
struct Routes {
    /// Number of experts of a row.
    per_token: usize,
    /// Weight of each expert of each row, in the order of the row's experts.
    shares: Vec<f32>,
    /// Place of each of them among the rows of all experts.
    places: Vec<usize>,
    /// Row at each place. The places of an expert follow those of the one before it.
    rows: Vec<usize>,
    groups: Vec<Group>,
}

/// Rows that one expert computes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    expert: usize,
    places: Range<usize>,
}

impl Routes {
    /// Selects the experts with the largest logits, whose softmax are their weights.
    fn new(logits: MatrixRef<'_>, per_token: usize) -> Self {
        let mut experts = Vec::with_capacity(logits.rows() * per_token);
        let mut shares = Vec::with_capacity(logits.rows() * per_token);
        let mut order: Vec<usize> = Vec::new();
        for row in 0..logits.rows() {
            let logits = logits.row(row);
            let larger = |a: &usize, b: &usize| -> Ordering {
                logits[*b].total_cmp(&logits[*a]).then_with(|| a.cmp(b))
            };
            order.clear();
            order.extend(0..logits.len());
            order.select_nth_unstable_by(per_token - 1, larger);
            let selected = &mut order[..per_token];
            selected.sort_unstable_by(larger);
            experts.extend_from_slice(selected);
            extend_with_softmax(&mut shares, selected.iter().map(|&expert| logits[expert]));
        }
        Self::grouped(&experts, shares, logits.columns(), per_token)
    }

    /// Groups rows by expert. `experts` are those of each row, of `count` experts.
    fn grouped(experts: &[usize], shares: Vec<f32>, count: usize, per_token: usize) -> Self {
        let mut next = vec![0; count];
        experts.iter().for_each(|&expert| next[expert] += 1);
        let mut groups = Vec::new();
        let mut start = 0;
        for (expert, next) in next.iter_mut().enumerate() {
            let first = start;
            start += *next;
            // From here, the next place of the expert.
            *next = first;
            let places = (first..start).step_by(GROUP_ROWS);
            groups.extend(places.map(|at| Group { expert, places: at..start.min(at + GROUP_ROWS) }));
        }

        let mut rows = vec![0; experts.len()];
        let mut places = Vec::with_capacity(experts.len());
        for (index, &expert) in experts.iter().enumerate() {
            let place = next[expert];
            next[expert] += 1;
            rows[place] = index / per_token;
            places.push(place);
        }
        Self { per_token, shares, places, rows, groups }
    }
}

/// Appends the softmax of logits, whose first is the largest.
fn extend_with_softmax(shares: &mut Vec<f32>, logits: impl Iterator<Item = f32>) {
    let start = shares.len();
    shares.extend(logits);
    let row = &mut shares[start..];
    let largest = row.first().copied().unwrap_or(0.0);
    row.iter_mut().for_each(|x| *x = (*x - largest).exp());
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
}

/// Some rows and their experts.
struct Mixture<'a> {
    shared: &'a OperatorContext,
    linears: &'a [Linear],
    routes: &'a Routes,
    x: MatrixRef<'a>,
    clamp: Option<GateClamp>,
}

impl<'a> Mixture<'a> {
    fn run(&self, call: &Call<'_>, out: &mut [f32]) -> ort::Result<()> {
        self.shared.with_buffers(|buffers| {
            let mut results = std::mem::take(&mut buffers.expert_results);
            let found = at_least(&mut results, self.routes.rows.len() * self.x.columns());
            let threads = self.shared.threads;
            let done = if threads == 1 || self.routes.groups.len() >= GROUPS_PER_THREAD * threads {
                self.divide_groups(call, found)
            } else {
                self.divide_columns(call, buffers, found)
            };
            let done = done.and_then(|()| self.add(call, found, out));
            buffers.expert_results = results;
            done
        })
    }

    fn expert(&self, expert: usize) -> GatedMlp<'a> {
        let linears = &self.linears[expert * PROJECTIONS..];
        let [gate, up, down] = [0, 1, 2].map(|part| &linears[part]);
        GatedMlp { shared: self.shared, gate, up, down, clamp: self.clamp }
    }

    /// Copies the rows of a group.
    fn gather<'b>(&self, group: &Group, copy: &'b mut Vec<f32>) -> MatrixRef<'b> {
        let width = self.x.columns();
        let copy = at_least(copy, group.places.len() * width);
        for (row, out) in self.routes.rows[group.places.clone()].iter().zip(copy.chunks_exact_mut(width)) {
            out.copy_from_slice(self.x.row(*row));
        }
        MatrixRef::new(copy, width)
    }

    /// Computes each group in one task.
    fn divide_groups(&self, call: &Call<'_>, found: &mut [f32]) -> ort::Result<()> {
        let groups = &self.routes.groups;
        let width = self.x.columns();
        let parts: Vec<_> = split(groups, found, width).map(Part::new).collect();
        call.parallel(groups.len(), |index| {
            let Some(out) = parts.get(index).and_then(Part::take) else { return };
            self.shared.with_buffers(|buffers| {
                let mut copy = std::mem::take(&mut buffers.expert_inputs);
                let rows = self.gather(&groups[index], &mut copy);
                self.expert(groups[index].expert).run_rows(rows, buffers, MatrixMut::new(out, width));
                buffers.expert_inputs = copy;
            });
        })
    }

    /// Divides the columns of all groups between threads: those of the hidden rows, then those of the results.
    fn divide_columns(&self, call: &Call<'_>, buffers: &mut Buffers, found: &mut [f32]) -> ort::Result<()> {
        let groups = &self.routes.groups;
        let width = self.x.columns();
        let inner = self.linears[0].weights.outputs();
        let Buffers { hidden, expert_inputs, .. } = buffers;
        let hidden = at_least(hidden, self.routes.rows.len() * inner);
        let mut rounded: Vec<QuantizedRows> = Vec::with_capacity(groups.len());
        for group in groups {
            let rows = self.gather(group, expert_inputs);
            rounded.push(self.rounded(self.expert(group.expert).gate, rows));
        }
        self.for_columns(call, split(groups, hidden, inner), inner, |index, start, buffers, out| {
            self.expert(groups[index].expert).run_columns(&rounded[index], start, buffers, out);
        })?;

        for (rounded, group) in rounded.iter_mut().zip(groups) {
            let rows = &hidden[group.places.start * inner..group.places.end * inner];
            *rounded = self.rounded(self.expert(group.expert).down, MatrixRef::new(rows, inner));
        }
        self.for_columns(call, split(groups, found, width), width, |index, start, buffers, out| {
            let down = self.expert(groups[index].expert).down;
            let columns = start..start + out.columns();
            self.shared.multiply_columns(down, &rounded[index], columns, &mut buffers.scratch, out);
        })
    }

    fn rounded(&self, linear: &Linear, rows: MatrixRef<'_>) -> QuantizedRows {
        let mut rounded = QuantizedRows::default();
        self.shared.quantize(linear, rows, &mut rounded);
        rounded
    }

    /// Runs a task for some columns of each group. A task receives the index of the group and that of its first column.
    fn for_columns<'b>(
        &self,
        call: &Call<'_>,
        outputs: impl Iterator<Item = &'b mut [f32]>,
        columns: usize,
        task: impl Fn(usize, usize, &mut Buffers, MatrixMut<'_>) + Sync,
    ) -> ort::Result<()> {
        let groups = self.routes.groups.len().max(1);
        let tasks = (TASKS_PER_THREAD * self.shared.threads).div_ceil(groups);
        let step = columns.div_ceil(tasks).next_multiple_of(COLUMN_STEP);
        let mut parts = Vec::with_capacity(groups * columns.div_ceil(step));
        for (index, out) in outputs.enumerate() {
            let mut rest = MatrixMut::new(out, columns);
            for start in (0..columns).step_by(step) {
                let (part, others) = rest.split_at_column(step.min(columns - start));
                rest = others;
                parts.push((index, start, Part::new(part)));
            }
        }
        call.parallel(parts.len(), |at| {
            let Some((index, start, part)) = parts.get(at) else { return };
            let Some(out) = part.take() else { return };
            self.shared.with_buffers(|buffers| task(*index, *start, buffers, out));
        })
    }

    /// Adds the results of each row's experts, multiplied by their weights, in the order of the row's experts.
    fn add(&self, call: &Call<'_>, found: &[f32], out: &mut [f32]) -> ort::Result<()> {
        let width = self.x.columns();
        let found = MatrixRef::new(found, width);
        let Routes { per_token, shares, places, .. } = self.routes;
        let parts: Vec<_> = out.chunks_mut(SUM_ROWS * width).map(Part::new).collect();
        call.parallel(parts.len(), |index| {
            let Some(out) = parts.get(index).and_then(Part::take) else { return };
            let first = index * SUM_ROWS * per_token;
            let experts = shares[first..].chunks(*per_token).zip(places[first..].chunks(*per_token));
            for (out, (shares, places)) in out.chunks_exact_mut(width).zip(experts) {
                out.fill(0.0);
                for (&share, &place) in shares.iter().zip(places) {
                    out.iter_mut().zip(found.row(place)).for_each(|(out, x)| *out += share * x);
                }
            }
        })
    }
}

/// Divides rows of `width` elements into those of each group.
fn split<'a>(groups: &[Group], rows: &'a mut [f32], width: usize) -> impl Iterator<Item = &'a mut [f32]> {
    let mut rest = rows;
    groups.iter().map(move |group| {
        let (part, others) = std::mem::take(&mut rest).split_at_mut(group.places.len() * width);
        rest = others;
        part
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_grouped_by_the_experts_with_the_largest_logits() {
        let logits = [0.0, 2.0, 1.0, 3.0, 1.0, 1.0, 0.0, 2.0, 1.0];
        let logits = MatrixRef::new(&logits, 3);
        let routes = Routes::new(logits, 2);
        // Equal logits are taken in the order of the experts.
        let group = |expert, places| Group { expert, places };
        assert_eq!(routes.groups, [group(0, 0..1), group(1, 1..4), group(2, 4..6)]);
        assert_eq!(routes.rows, [1, 0, 1, 2, 0, 2]);
        assert_eq!(routes.places, [1, 4, 0, 2, 3, 5]);
        let first = 1.0 / (1.0 + (-1.0f32).exp());
        assert!(
            (routes.shares[0] - first).abs() < 1e-6
                && (routes.shares[0] + routes.shares[1] - 1.0).abs() < 1e-6
        );
    }

    #[test]
    fn large_groups_are_divided() {
        let experts = vec![1; GROUP_ROWS + 3];
        let routes = Routes::grouped(&experts, vec![1.0; experts.len()], 2, 1);
        let places: Vec<_> = routes.groups.iter().map(|group| group.places.clone()).collect();
        assert_eq!(places, [0..GROUP_ROWS, GROUP_ROWS..GROUP_ROWS + 3]);
    }
}
