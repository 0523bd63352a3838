//! A graph pass that replaces products with block-quantised weights, and attention over a cache, by Narthex's
//! operators.
//!
//! A product is replaced if its activations may be rounded to eight bits, its block size has a kernel, and its weights
//! are constants. Products over the same rows whose outputs are concatenated become one node. Constants that no node reads
//! afterwards are removed, so that ONNX Runtime does not load them.

use std::collections::{HashMap, HashSet};

use narthex_graph::{
    Attribute, Graph, Node,
    graph::MICROSOFT,
    kv_cache::{cache_values, has_single_precision_past},
    patch::Patch,
    replacement::Replacement,
};
use narthex_spec::KvPrecision;

use super::{
    DOMAIN,
    attention::{HEADS, KV_HEADS, ROTATES, SCALE, SOFT_CAP, WINDOW},
    cache::{attention_of, convert},
    expert_nodes::ExpertNodes,
    gated::{DOWN, GATE, GATED_MLP, UP},
    input_rows::EPSILON,
    linear::{LAYERS, LINEAR, WEIGHTS},
    linear_constants::Constants,
    links::Links,
    offsets,
    weights::LinearSource,
};

/// Epsilon of a norm without that attribute.
const DEFAULT_EPSILON: f32 = 1e-5;

/// Inputs of attention that the kernel reads, in its order. The last are the sinks. Those between them and the sines, and
/// later ones, must be absent.
const ATTENTION_INPUTS: [usize; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 11];

/// Number of columns of a tile of packed weights.
const TILE_COLUMNS: i64 = 16;

/// Rewrites a graph, and returns the constants of the replaced nodes. New nodes refer to them by index. Returns `None`
/// if nothing can be replaced, or if the graph cannot be encoded again. The cache of attention gets this precision if
/// no other node reads it.
pub(super) fn rewrite(graph: &mut Graph, precision: KvPrecision) -> Option<Vec<LinearSource>> {
    if !graph.unread.is_empty() {
        return None;
    }

    // The graph changes only if its products are replaced, because ONNX Runtime does not support merged offsets.
    let mut merged = graph.clone();
    let constants = Constants::of(graph);
    offsets::merge(&mut merged, |product, offsets| {
        constants.linear(product).is_some_and(|source| constants.offsets(offsets, &source).is_some())
    });
    let sources = replace(&mut merged, precision)?;
    *graph = merged;
    Some(sources)
}

/// Replaces products, networks and attention of a graph whose offsets are merged.
fn replace(graph: &mut Graph, precision: KvPrecision) -> Option<Vec<LinearSource>> {
    let constants = Constants::of(graph);
    let sources = graph.nodes.iter().enumerate().filter_map(|(at, node)| Some((at, constants.linear(node)?)));
    let (indices, sources): (Vec<usize>, Vec<LinearSource>) = sources.unzip();
    let products: HashMap<usize, usize> = indices.into_iter().zip(0..).collect();
    let experts = ExpertNodes::of(graph, &constants, sources.len());

    let links = Links::of(graph);
    let mlps: Vec<GatedMlpNodes<'_>> =
        graph.nodes.iter().filter_map(|node| links.gated_mlp(node, &products)).collect();
    let stacks: Vec<StackedProducts<'_>> = graph
        .nodes
        .iter()
        .filter_map(|node| links.stacked(node, &|value| Some(*products.get(links.producers.get(value)?)?)))
        .collect();
    let in_mlps = mlps.iter().flat_map(|mlp| mlp.parts);
    let in_stacks = stacks.iter().flat_map(|stack| stack.parts.iter().copied());
    let fused: HashSet<&str> = in_mlps.chain(in_stacks).map(|node| node.outputs[0].as_str()).collect();
    let single = products.iter().map(|(&at, &index)| (&graph.nodes[at], index));
    let single =
        single.filter(|(node, _)| node.outputs.first().is_none_or(|out| !fused.contains(out.as_str())));

    let attention: Vec<&Node> = graph.nodes.iter().filter(|node| is_attention(graph, node)).collect();
    let cache = cache_values(graph, &attention, &links.reads);
    let precision = if cache.is_some() { precision } else { KvPrecision::F32 };
    let attend = attention_of(precision);
    let patches: Vec<Patch> = single
        .filter_map(|(node, index)| linear_patch(node, index, links.norm_of(node, 1)))
        .chain(mlps.iter().filter_map(GatedMlpNodes::patch))
        .chain(stacks.iter().filter_map(StackedProducts::patch))
        .chain(attention.iter().filter_map(|node| attention_patch(node, attend)))
        .chain(experts.patches())
        .collect();
    let sources = sources.into_iter().chain(experts.sources).collect();

    let cache: HashSet<String> = cache.into_iter().flatten().map(str::to_owned).collect();
    graph.apply(&patches).ok().filter(|()| !patches.is_empty())?;
    convert(graph, &cache, precision);
    remove_unread(graph);
    Some(sources)
}

/// Returns the patch that replaces a node with `narthex.Linear`.
fn linear_patch(node: &Node, index: usize, norm: Option<&Node>) -> Option<Patch> {
    let mut replacement = Replacement::of(node);
    let own = own_node(node, LINEAR, node.input(0)?, &[(WEIGHTS, index)]);
    push_product(&mut replacement, own, norm);
    replacement.patch("multiply with a Narthex kernel")
}

/// Adds a product and merges the norm of its rows into it.
fn push_product(replacement: &mut Replacement<'_>, mut product: Node, norm: Option<&Node>) {
    if let Some(norm) = norm {
        let sum = norm.outputs.get(3).filter(|sum| !sum.is_empty()).cloned();
        product.outputs.push(sum.unwrap_or_else(|| format!("{}/sum", replacement.stem())));
        product.inputs.clone_from(&norm.inputs);
        let epsilon = norm.attributes.iter().find(|(name, _)| name == EPSILON).cloned();
        let epsilon = epsilon.unwrap_or_else(|| (EPSILON.to_owned(), Attribute::Float(DEFAULT_EPSILON)));
        product.attributes.push(epsilon);
        replacement.takes_over(norm);
    }
    replacement.push(product);
}

/// Returns whether operators of Narthex compute all attention over the cache of a rewritten graph, and there is some.
pub(super) fn has_own_attention(graph: &Graph) -> bool {
    let own = [KvPrecision::I8, KvPrecision::F16, KvPrecision::F32].map(attention_of);
    let is_any_left =
        graph.nodes.iter().any(|node| node.op == "GroupQueryAttention" && node.domain == MICROSOFT);
    !is_any_left && graph.nodes.iter().any(|node| node.domain == DOMAIN && own.contains(&node.op.as_str()))
}

/// Returns whether a node is grouped-query attention that `narthex.Attention` can replace.
fn is_attention(graph: &Graph, node: &Node) -> bool {
    if node.op != "GroupQueryAttention" || node.domain != MICROSOFT || node.outputs.len() != 3 {
        return false;
    }
    let more = (0..node.inputs.len()).any(|at| node.input(at).is_some() && !ATTENTION_INPUTS.contains(&at));
    !more
        && has_single_precision_past(graph, node)
        && node.attributes.iter().all(|(name, value)| match name.as_str() {
            HEADS | KV_HEADS | SCALE | SOFT_CAP | WINDOW | ROTATES => true,
            // Other attributes change the computation, unless they are 0.
            _ => matches!(value, Attribute::Int(0)),
        })
}

/// Returns the patch that replaces attention by an operator of Narthex.
fn attention_patch(node: &Node, op: &str) -> Option<Patch> {
    let own = ATTENTION_INPUTS.map(|at| node.input(at).unwrap_or("").to_owned());
    let mut replacement = Replacement::of(node);
    let attributes = node.attributes.iter().filter(|(_, value)| !matches!(value, Attribute::Int(0)));
    replacement.push(Node {
        op: op.to_owned(),
        domain: DOMAIN.to_owned(),
        inputs: own.to_vec(),
        attributes: attributes.cloned().collect(),
        ..node.clone()
    });
    replacement.patch("attend with a Narthex kernel")
}

/// Returns a node with an operator of Narthex that computes the outputs of `node` from `x`.
fn own_node(node: &Node, op: &str, x: &str, indices: &[(&str, usize)]) -> Node {
    let attributes = indices.iter().map(|&(name, index)| (name.to_owned(), Attribute::from(index)));
    Node {
        name: node.name.clone(),
        op: op.to_owned(),
        domain: DOMAIN.to_owned(),
        inputs: vec![x.to_owned()],
        outputs: node.outputs.clone(),
        attributes: attributes.collect(),
    }
}

/// Products over the same rows whose outputs are concatenated.
struct StackedProducts<'a> {
    concat: &'a Node,
    parts: Vec<&'a Node>,
    /// Index of the weights of the first product. Those of the others follow.
    first: usize,
    /// The norm of the rows.
    norm: Option<&'a Node>,
}

impl StackedProducts<'_> {
    fn patch(&self) -> Option<Patch> {
        let mut replacement = Replacement::of(self.concat);
        let indices = [(WEIGHTS, self.first), (LAYERS, self.parts.len())];
        push_product(
            &mut replacement,
            own_node(self.concat, LINEAR, self.parts.first()?.input(0)?, &indices),
            self.norm,
        );
        self.parts.iter().for_each(|node| replacement.takes_over(node));
        replacement.patch("multiply with a Narthex kernel")
    }
}

/// A gated feed-forward network: `down(silu(gate(x)) * up(x))`.
struct GatedMlpNodes<'a> {
    /// The products gate, up and down, and the three nodes between them.
    parts: [&'a Node; 6],
    /// Indices of the weights of gate, up and down.
    indices: [usize; 3],
    /// The norm of its input rows.
    norm: Option<&'a Node>,
}

impl GatedMlpNodes<'_> {
    fn patch(&self) -> Option<Patch> {
        let [gate, up, down, others @ ..] = self.parts;
        let mut replacement = Replacement::of(down);
        let indices = [(GATE, self.indices[0]), (UP, self.indices[1]), (DOWN, self.indices[2])];
        push_product(&mut replacement, own_node(down, GATED_MLP, gate.input(0)?, &indices), self.norm);
        [gate, up].into_iter().chain(others).for_each(|node| replacement.takes_over(node));
        replacement.patch("compute the network with a Narthex kernel")
    }
}

/// Returns the operands of a node with two inputs in both orders.
fn operand_orders(node: &Node) -> Option<[[&str; 2]; 2]> {
    let [a, b] = [node.input(0)?, node.input(1)?];
    Some([[a, b], [b, a]])
}

impl<'a> Links<'a> {
    /// Returns the network whose last product is `down`. `products` has the index of the weights for each node's index.
    ///
    /// ```text
    /// x ─┬─ gate ─┬─ Sigmoid ─┐
    ///    │        └───────────┴─ Mul ─┐
    ///    └─ up ───────────────────────┴─ Mul ── down
    /// ```
    fn gated_mlp(&self, down: &'a Node, products: &HashMap<usize, usize>) -> Option<GatedMlpNodes<'a>> {
        let index = |value: &str| products.get(self.producers.get(value)?).copied();
        let down_index = index(down.outputs.first()?)?;
        let product = self.producer(down.input(0)?, 1).filter(|node| node.is_onnx("Mul"))?;
        operand_orders(product)?.into_iter().find_map(|[activated, up]| {
            let silu = self.producer(activated, 1).filter(|node| node.is_onnx("Mul"))?;
            let up_index = index(up)?;
            let up = self.producer(up, 1)?;
            let (gate, sigmoid) = operand_orders(silu)?.into_iter().find_map(|[gate, gated]| {
                let sigmoid = self.producer(gated, 1).filter(|node| node.is_onnx("Sigmoid"))?;
                (sigmoid.input(0) == Some(gate)).then_some((gate, sigmoid))
            })?;
            let gate_index = index(gate)?;
            let gate = self.producer(gate, 2)?;
            let indices = [gate_index, up_index, down_index];
            let same_rows = gate.input(0) == up.input(0) && down.outputs.len() == 1;
            let same_sizes = ["N", "K", "block_size"].iter().all(|name| gate.int(name) == up.int(name));
            let fits = same_rows && same_sizes && down.int("K") == gate.int("N");
            let parts = [gate, up, down, sigmoid, silu, product];
            let norm = self.norm_of(gate, 2);
            fits.then_some(GatedMlpNodes { parts, indices, norm })
        })
    }

    /// Returns the products whose outputs `concat` joins along the last axis, if the kernel of one node can compute them.
    /// `index` returns the index of the weights of the product that computes a value.
    ///
    /// ```text
    /// x ─┬─ product ─┬─ Concat
    ///    └─ product ─┘
    /// ```
    fn stacked(
        &self,
        concat: &'a Node,
        index: &dyn Fn(&str) -> Option<usize>,
    ) -> Option<StackedProducts<'a>> {
        if !concat.is_onnx("Concat") || concat.int("axis") != Some(-1) {
            return None;
        }
        let first = index(concat.input(0)?)?;
        let mut parts: Vec<&Node> = Vec::with_capacity(concat.inputs.len());
        for (at, name) in concat.inputs.iter().enumerate() {
            parts.push(self.producer(name, 1).filter(|_| index(name) == Some(first + at))?);
        }

        let (&last, others) = parts.split_last()?;
        let fits = others.iter().all(|node| {
            // A kernel computes whole tiles of columns.
            node.int("N").is_some_and(|outputs| outputs % TILE_COLUMNS == 0)
                && node.input(0) == last.input(0)
                && ["K", "block_size"].iter().all(|name| node.int(name) == last.int(name))
        });
        let norm = self.norm_of(last, parts.len());
        fits.then_some(StackedProducts { concat, parts, first, norm })
    }

    /// Returns the norm of a residual stream that computes the rows of a product, if they are read exactly `reads`
    /// times.
    fn norm_of(&self, product: &Node, reads: usize) -> Option<&'a Node> {
        let rows = product.input(0)?;
        let norm = &self.nodes[*self.producers.get(rows)?];
        let is_norm = norm.op == "SkipSimplifiedLayerNormalization" && norm.domain == MICROSOFT;
        let computed = norm.input(1).is_some_and(|name| self.producers.contains_key(name));
        let unread = norm.outputs.iter().enumerate().all(|(at, name)| at == 0 || at == 3 || name.is_empty());
        // A constant branch may have fewer rows than the stream.
        let fits = norm.inputs.len() == 3 && computed && unread && norm.outputs.len() <= 4;
        (is_norm && fits && self.reads.get(rows) == Some(&reads) && norm.outputs[0] == rows).then_some(norm)
    }
}

/// Removes casts that are not read, and then constants that are not read.
fn remove_unread(graph: &mut Graph) {
    let read = read_values(graph);
    graph.nodes.retain(|node| node.op != "Cast" || node.outputs.iter().any(|name| read.contains(name)));
    let read = read_values(graph);
    graph.initializers.retain(|constant| read.contains(&constant.name));
}

/// Returns the names of the values that are read.
fn read_values(graph: &Graph) -> HashSet<String> {
    let mut read = HashSet::new();
    graph.for_each_read(&mut |name| {
        read.insert(name.to_owned());
    });
    read
}
