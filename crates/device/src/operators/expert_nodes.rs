//! The nodes that `narthex.Experts` replaces: mixtures of experts whose weights are blocks of integers.

use narthex_graph::{
    Attribute, Graph, Initializer, InitializerData, Node, graph::MICROSOFT, patch::Patch,
    replacement::Replacement,
};
use narthex_kernels::{Bits, GateClamp};
use narthex_spec::DType;

use super::{
    DOMAIN,
    experts::{COUNT, EXPERTS, LIMIT, PER_TOKEN, PROJECTIONS, SLOPE},
    linear::WEIGHTS,
    linear_constants::{BLOCKS, Constants, EIGHT_BIT_ACTIVATIONS, size},
    weights::{LinearSource, SourceRows},
};

/// Inputs of the operator that are constants.
const GATE_UP: [usize; 4] = [2, 3, 11, 4];
const DOWN: [usize; 4] = [5, 6, 12, 7];

/// Mixtures of experts of a graph that a kernel can compute.
pub(super) struct ExpertNodes<'a> {
    nodes: Vec<ExpertNode<'a>>,
    /// Their weights: gate, up and down of the first expert, then those of the second.
    pub(super) sources: Vec<LinearSource>,
}

struct ExpertNode<'a> {
    node: &'a Node,
    /// Index of its first weight.
    first: usize,
    count: usize,
    per_token: usize,
    clamp: Option<GateClamp>,
}

impl<'a> ExpertNodes<'a> {
    /// Returns the mixtures of a graph; their weights have indices from `first`.
    pub(super) fn of(graph: &'a Graph, constants: &Constants<'_>, first: usize) -> Self {
        let mut found = Self { nodes: Vec::new(), sources: Vec::new() };
        for node in &graph.nodes {
            if let Some((sources, clamp)) =
                clamp(node).and_then(|clamp| Some((experts(node, constants)?, clamp)))
            {
                found.nodes.push(ExpertNode {
                    node,
                    first: first + found.sources.len(),
                    count: sources.len() / PROJECTIONS,
                    per_token: size(node, "k").unwrap_or(1),
                    clamp,
                });
                found.sources.extend(sources);
            }
        }
        found
    }

    /// Returns the patches that replace the nodes.
    pub(super) fn patches(&self) -> Vec<Patch> {
        self.nodes.iter().filter_map(ExpertNode::patch).collect()
    }
}

impl ExpertNode<'_> {
    fn patch(&self) -> Option<Patch> {
        let node = self.node;
        let attributes = [(WEIGHTS, self.first), (COUNT, self.count), (PER_TOKEN, self.per_token)];
        let attributes = attributes.map(|(name, value)| (name.to_owned(), Attribute::from(value)));
        let bounds = self.clamp.map(|GateClamp { limit, slope }| [(LIMIT, limit), (SLOPE, slope)]);
        let bounds = bounds.into_iter().flatten();
        let bounds = bounds.map(|(name, value)| (name.to_owned(), Attribute::Float(value)));
        let mut replacement = Replacement::of(node);
        replacement.push(Node {
            op: EXPERTS.to_owned(),
            domain: DOMAIN.to_owned(),
            inputs: node.inputs[..2].to_vec(),
            attributes: attributes.into_iter().chain(bounds).collect(),
            ..node.clone()
        });
        replacement.patch("compute the experts with a Narthex kernel")
    }
}

/// Returns the bounds of a node's gates, if it has any; `None` if the kernel does not have its activation.
fn clamp(node: &Node) -> Option<Option<GateClamp>> {
    let slope = node.float("activation_alpha").unwrap_or(1.0);
    let addend = node.float("activation_beta").unwrap_or(0.0);
    match node.float("swiglu_limit") {
        None if slope == 1.0 && addend == 0.0 => Some(None),
        Some(limit) if addend == 1.0 && limit > 0.0 => Some(Some(GateClamp { limit, slope })),
        _ => None,
    }
}

/// Returns the weights of a node that the kernel can replace.
fn experts(node: &Node, constants: &Constants<'_>) -> Option<Vec<LinearSource>> {
    let computes = node.op == "QMoE"
        && node.domain == MICROSOFT
        && node.outputs.len() == 1
        && node.text("activation_type") == Some("swiglu")
        && node.int("swiglu_fusion") == Some(1)
        && node.int("normalize_routing_weights") == Some(1)
        && node.int("accuracy_level") == Some(EIGHT_BIT_ACTIVATIONS);
    // A gate of its own, and weights that do not follow from the logits.
    let has_others = [8, 9, 10, 13, 14].into_iter().any(|at| node.input(at).is_some());
    if !computes || has_others {
        return None;
    }

    let block = size(node, "block_size").filter(|block| BLOCKS.contains(block))?;
    let bits = match node.int("expert_weight_bits")? {
        4 => Bits::Four,
        8 => Bits::Eight,
        _ => return None,
    };
    let projection = |inputs| Projection::of(node, constants, inputs, block, bits);
    let gate_up = projection(GATE_UP)?;
    let down = projection(DOWN)?;
    let inner = gate_up.rows / 2;
    let fits = gate_up.rows.is_multiple_of(2)
        && (down.count, down.rows, down.cols) == (gate_up.count, gate_up.cols, inner);
    if !fits || size(node, "k")? > gate_up.count {
        return None;
    }

    let parts = [
        (&gate_up, SourceRows { first: 0, step: 2 }),
        (&gate_up, SourceRows { first: 1, step: 2 }),
        (&down, SourceRows::ALL),
    ];
    let experts = (0..gate_up.count).flat_map(|expert| parts.map(|(part, rows)| part.expert(expert, rows)));
    experts.collect()
}

/// Weights of all experts in one projection, `[count, rows, cols]`.
struct Projection {
    count: usize,
    rows: usize,
    cols: usize,
    block: usize,
    bits: Bits,
    quants: Initializer,
    scales: Initializer,
    zeros: Option<Initializer>,
    bias: Option<Initializer>,
}

impl Projection {
    /// Returns the constants of a node with these inputs: integers, scales, zero points and biases.
    fn of(
        node: &Node,
        constants: &Constants<'_>,
        [quants, scales, zeros, bias]: [usize; 4],
        block: usize,
        bits: Bits,
    ) -> Option<Self> {
        let &[count, rows, bytes] = constants.shape(node.input(quants)?)? else { return None };
        let cols = bytes.checked_mul(8)? / bits.count();
        let all = count.checked_mul(rows)?;
        // Rows of one block have zero points in another order.
        if !cols.is_multiple_of(block) || cols < 2 * block || all == 0 {
            return None;
        }
        let blocks = cols / block;
        let zero_bytes = all.checked_mul((blocks * bits.count()).div_ceil(8))?;
        Some(Self {
            count,
            rows,
            cols,
            block,
            bits,
            quants: constants.get(node.input(quants)?, DType::U8, all.checked_mul(bytes)?)?,
            scales: constants.scales(node.input(scales)?, all.checked_mul(blocks)?)?,
            zeros: match node.input(zeros) {
                Some(zeros) => Some(constants.get(zeros, DType::U8, zero_bytes)?),
                None => None,
            },
            bias: match node.input(bias) {
                Some(bias) => Some(constants.get(bias, DType::F32, all)?),
                None => None,
            },
        })
    }

    /// Returns the weights of one expert, or of every second row of them.
    fn expert(&self, expert: usize, rows: SourceRows) -> Option<LinearSource> {
        let part = |constant: &Initializer| part_of(constant, expert, self.count);
        Some(LinearSource {
            outputs: self.rows / rows.step,
            inputs: self.cols,
            block: self.block,
            bits: self.bits,
            rows,
            quants: part(&self.quants)?,
            scales: part(&self.scales)?,
            zeros: match &self.zeros {
                Some(zeros) => Some(part(zeros)?),
                None => None,
            },
            offsets: None,
            bias: match &self.bias {
                Some(bias) => Some(part(bias)?),
                None => None,
            },
        })
    }
}

/// Returns one of `count` equal parts of a constant along its first axis.
fn part_of(constant: &Initializer, number: usize, count: usize) -> Option<Initializer> {
    let (&first, rest) = constant.shape.split_first()?;
    if first != count {
        return None;
    }
    let data = match &constant.data {
        InitializerData::Inline(bytes) => {
            let length = bytes.len() / count;
            InitializerData::Inline(bytes.slice(number * length..(number + 1) * length))
        }
        InitializerData::External { file, offset, length } => {
            let length = length / count as u64;
            let offset = offset.checked_add(number as u64 * length)?;
            InitializerData::External { file: file.clone(), offset, length }
        }
    };
    let name = format!("{}[{number}]", constant.name);
    Some(Initializer { name, dtype: constant.dtype, shape: rest.to_vec(), data })
}
