//! The nodes of bidirectional attention with a padding mask, and those that pool the rows of a padded text.

use narthex_graph::{Attribute, Node, patch::Patch, replacement::Replacement};

use super::{
    attention::{BIDIRECTIONAL_ATTENTION, HEADS, SCALE},
    pooling::{MEAN, POOL_ROWS},
};
use crate::operators::{DOMAIN, constants::SmallConstants, links::Links};

/// Least magnitude of the number that is added to the scores of padding. The exponentials of such scores are 0.
const MIN_MASK_MAGNITUDE: f32 = 1e3;

/// A graph whose texts are padded.
pub(super) struct PaddedGraph<'a> {
    pub(super) links: Links<'a>,
    pub(super) constants: SmallConstants<'a>,
    /// Name of the input with 1 for each token and 0 for padding, `[batch, sequence]`.
    pub(super) mask: &'a str,
    /// Name of the new input with the offsets of packed texts.
    pub(super) offsets: &'a str,
}

/// Queries, keys or values, divided into heads.
struct HeadRows<'a> {
    rows: &'a str,
    /// Number of heads and their size.
    heads: [i64; 2],
    nodes: [&'a Node; 2],
}

impl<'a> PaddedGraph<'a> {
    /// Returns the patch that replaces attention, if `flat` is the node that joins its heads.
    ///
    /// ```text
    /// q ── Reshape ── Transpose ── Mul(scale) ─── MatMul ── Add(mask) ── Softmax ── MatMul ── Transpose ── Reshape
    /// k ── Reshape ── Transpose ──────────────────┘                                 │
    /// v ── Reshape ── Transpose ────────────────────────────────────────────────────┘
    /// ```
    pub(super) fn attention(&self, flat: &Node) -> Option<Patch> {
        let joined = self.made(flat.input(0)?, "Transpose").filter(|node| is_order(node, &[0, 2, 1, 3]))?;
        let mix = self.made(joined.input(0)?, "MatMul")?;
        let softmax = self
            .made(mix.input(0)?, "Softmax")
            .filter(|node| matches!(node.int("axis"), None | Some(-1 | 3)))?;
        let masked = self.made(softmax.input(0)?, "Add")?;
        let (scores, _) = self.operands(masked).find(|&(_, mask)| self.is_padding_score(mask))?;
        let scores = self.made(scores, "MatMul")?;
        let scaled = self.made(scores.input(0)?, "Mul")?;
        let (query, scale) =
            self.operands(scaled).find_map(|(query, scale)| Some((query, self.constants.float(scale)?)))?;
        let query = self.heads(query, &[0, 2, 1, 3])?;
        let key = self.heads(scores.input(1)?, &[0, 2, 3, 1])?;
        let value = self.heads(mix.input(1)?, &[0, 2, 1, 3])?;
        let [heads, size] = query.heads;
        let width = self.constants.ints(flat.input(1)?)?;
        let fits = key.heads == query.heads && value.heads == query.heads;
        if !flat.is_onnx("Reshape") || !fits || width != [0, 0, heads.checked_mul(size)?] {
            return None;
        }

        let mut replacement = Replacement::of(flat);
        let parts = [query.nodes, key.nodes, value.nodes];
        let nodes =
            [joined, mix, softmax, masked, scores, scaled].into_iter().chain(parts.into_iter().flatten());
        nodes.for_each(|node| replacement.takes_over(node));
        replacement.push(Node {
            name: flat.name.clone(),
            op: BIDIRECTIONAL_ATTENTION.to_owned(),
            domain: DOMAIN.to_owned(),
            inputs: [query.rows, key.rows, value.rows, self.offsets].map(str::to_owned).to_vec(),
            outputs: flat.outputs.clone(),
            attributes: vec![
                (HEADS.to_owned(), Attribute::Int(heads)),
                (SCALE.to_owned(), Attribute::Float(scale)),
            ],
        });
        replacement.patch("attend over packed rows with a Narthex kernel")
    }

    /// Returns the patch that replaces pooling, if `last` is its last node.
    ///
    /// ```text
    /// first:  x ── Gather(0)
    /// mean:   x ── Mul(mask) ── ReduceSum ── Div(ReduceSum(mask))
    /// ```
    pub(super) fn pooling(&self, last: &Node) -> Option<Patch> {
        let mut replacement = Replacement::of(last);
        let (rows, mean) = if last.is_onnx("Gather") {
            let first = self.constants.ints(last.input(1)?)?;
            let is_scalar = self.constants.rank(last.input(1)?) == Some(0);
            if last.int("axis") != Some(1) || first != [0] || !is_scalar {
                return None;
            }
            (last.input(0)?, 0)
        } else if last.is_onnx("Div") {
            let sum = self.made(last.input(0)?, "ReduceSum").filter(|node| self.reduces_tokens(node))?;
            let count = self.links.any_producer(last.input(1)?).filter(|node| node.is_onnx("ReduceSum"))?;
            let masked = self.made(sum.input(0)?, "Mul")?;
            let (rows, _) = self.operands(masked).find(|&(_, mask)| self.is_mask_column(mask))?;
            if !self.reduces_tokens(count) || !self.is_mask_column(count.input(0)?) {
                return None;
            }
            replacement.takes_over(sum);
            replacement.takes_over(masked);
            (rows, 1)
        } else {
            return None;
        };

        replacement.push(Node {
            name: last.name.clone(),
            op: POOL_ROWS.to_owned(),
            domain: DOMAIN.to_owned(),
            inputs: vec![rows.to_owned(), self.offsets.to_owned()],
            outputs: last.outputs.clone(),
            attributes: vec![(MEAN.to_owned(), Attribute::Int(mean))],
        });
        replacement.patch("pool packed rows with a Narthex kernel")
    }

    /// Returns the node that computes a value, if nothing else reads it and it has this operator.
    fn made(&self, value: &str, op: &str) -> Option<&'a Node> {
        self.links.producer(value, 1).filter(|node| node.is_onnx(op))
    }

    /// Returns the two inputs of a node in both orders.
    fn operands(&self, node: &'a Node) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let both = node.input(0).zip(node.input(1));
        both.into_iter().flat_map(|(a, b)| [(a, b), (b, a)])
    }

    /// Returns the rows that are divided into heads and transposed to this order of axes.
    fn heads(&self, value: &str, order: &[i64]) -> Option<HeadRows<'a>> {
        let transposed = self.made(value, "Transpose").filter(|node| is_order(node, order))?;
        let divided = self.made(transposed.input(0)?, "Reshape")?;
        match self.constants.ints(divided.input(1)?)?[..] {
            [0, 0, heads, size] if heads > 0 && size > 0 => {
                let rows = divided.input(0)?;
                let nodes = [transposed, divided];
                Some(HeadRows { rows, heads: [heads, size], nodes })
            }
            _ => None,
        }
    }

    /// Returns whether a value is 0 for each token and far below it for padding, `[batch, 1, 1, sequence]`.
    ///
    /// ```text
    /// mask ── Cast ── Sub(1) ── Mul(far) ── Unsqueeze
    /// ```
    fn is_padding_score(&self, value: &str) -> bool {
        self.scored_mask(value).is_some_and(|mask| self.is_mask(mask))
    }

    /// Returns the mask from which a score of padding is computed.
    fn scored_mask(&self, value: &str) -> Option<&'a str> {
        let column = self.unsqueezed(value, &[1, 2])?;
        let product = self.links.any_producer(column).filter(|node| node.is_onnx("Mul"))?;
        let (below, _) = self
            .operands(product)
            .find(|&(_, far)| self.constants.float(far).is_some_and(|far| far >= MIN_MASK_MAGNITUDE))?;
        let below = self.links.any_producer(below).filter(|node| node.is_onnx("Sub"))?;
        below.input(0).filter(|_| below.input(1).and_then(|one| self.constants.float(one)) == Some(1.0))
    }

    /// Returns whether a value is the mask in single precision, `[batch, sequence, 1]`.
    fn is_mask_column(&self, value: &str) -> bool {
        self.unsqueezed(value, &[2]).is_some_and(|value| self.is_mask(value))
    }

    /// Returns whether a value is the mask in single precision.
    fn is_mask(&self, value: &str) -> bool {
        let cast = self.links.any_producer(value).filter(|node| node.is_onnx("Cast"));
        cast.is_some_and(|cast| cast.int("to") == Some(1) && cast.input(0) == Some(self.mask))
    }

    /// Returns the input of the node that adds these axes.
    fn unsqueezed(&self, value: &str, axes: &[i64]) -> Option<&'a str> {
        let node = self.links.any_producer(value).filter(|node| node.is_onnx("Unsqueeze"))?;
        (self.constants.ints(node.input(1)?)? == axes).then_some(node.input(0)?)
    }

    /// Returns whether a node removes the axis of tokens.
    fn reduces_tokens(&self, node: &Node) -> bool {
        let axes = node.input(1).and_then(|axes| self.constants.ints(axes));
        axes.as_deref() == Some(&[1]) && node.int("keepdims") == Some(0)
    }
}

fn is_order(node: &Node, order: &[i64]) -> bool {
    node.ints("perm") == Some(order)
}
