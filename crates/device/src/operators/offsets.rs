//! A graph pass that merges the offsets of a product's blocks into the product.
//!
//! `MatMulNBits` has no offsets of its own that all providers support. Packages therefore multiply them by the sums of
//! the activations of each block:
//!
//! ```text
//! x ─┬─ MatMulNBits ──────────────────────────────────────────────────┐
//!    └─ Reshape [.., blocks, block] ── ReduceSum ── MatMul(Cast(offsets)) ── Add
//! ```
//!
//! Kernels add them to the weights of a block while they multiply.

use std::collections::{HashMap, HashSet};

use narthex_graph::{Graph, Node, graph::MICROSOFT};

use super::{
    constants::{SINGLE_PRECISION, SmallConstants},
    links::Links,
};

/// Index of the input with offsets, `[blocks, outputs]` in half precision, of a product with merged offsets. ONNX Runtime
/// has no such input: the product must be replaced.
pub(super) const OFFSETS: usize = 6;

/// Nodes of a product with offsets.
struct OffsetNodes<'a> {
    product: &'a Node,
    sum: &'a Node,
    /// The nodes that compute the offsets' part of the sum. Other products may read the first two.
    others: [&'a Node; OffsetNodes::OTHERS],
    /// Name of the offsets in half precision.
    offsets: &'a str,
}

impl OffsetNodes<'_> {
    /// Number of the nodes that compute the offsets' part of the sum.
    const OTHERS: usize = 3;
}

/// Merges offsets into products. `can_merge` decides for each product and the name of its offsets.
pub(super) fn merge(graph: &mut Graph, can_merge: impl Fn(&Node, &str) -> bool) {
    let links = Links::of(graph);
    let constants = SmallConstants::of(graph);
    // Products with merged offsets, by the output of the product that they replace.
    let mut products: HashMap<String, Node> = HashMap::new();
    let mut sums: HashSet<String> = HashSet::new();
    let mut others: HashSet<String> = HashSet::new();
    for nodes in graph.nodes.iter().filter_map(|node| links.offsets(node, &constants)) {
        if !can_merge(nodes.product, nodes.offsets) {
            continue;
        }
        let mut product = nodes.product.clone();
        product.inputs.resize(OFFSETS, String::new());
        product.inputs.push(nodes.offsets.to_owned());
        product.outputs.clone_from(&nodes.sum.outputs);
        products.insert(nodes.product.outputs[0].clone(), product);
        sums.insert(nodes.sum.outputs[0].clone());
        others.extend(nodes.others.map(|node| node.outputs[0].clone()));
    }

    graph.nodes.retain(|node| node.outputs.first().is_none_or(|name| !sums.contains(name)));
    for node in &mut graph.nodes {
        if let Some(product) = node.outputs.first().and_then(|name| products.remove(name)) {
            *node = product;
        }
    }
    // Nothing reads the last of the other nodes now. Without it, nothing may read the one before it.
    for _ in 0..OffsetNodes::OTHERS {
        let reads = graph.read_counts();
        graph.nodes.retain(|node| {
            node.outputs.first().is_none_or(|name| !others.contains(name) || reads.contains_key(name))
        });
    }
}

impl<'a> Links<'a> {
    /// Returns the nodes of a product with offsets whose last node is `sum`.
    fn offsets(&self, sum: &'a Node, constants: &SmallConstants<'_>) -> Option<OffsetNodes<'a>> {
        if !sum.is_onnx("Add") {
            return None;
        }
        let [a, b] = [sum.input(0)?, sum.input(1)?];
        [[a, b], [b, a]].into_iter().find_map(|[product, part]| {
            let product = self.producer(product, 1).filter(|node| is_product(node))?;
            let part = self.producer(part, 1).filter(|node| node.is_onnx("MatMul"))?;
            let block_sums = self.any_producer(part.input(0)?).filter(|node| node.is_onnx("ReduceSum"))?;
            let blocks = self.any_producer(block_sums.input(0)?).filter(|node| node.is_onnx("Reshape"))?;
            let cast = self.any_producer(part.input(1)?).filter(|node| node.is_onnx("Cast"))?;
            let single = cast.int("to") == Some(SINGLE_PRECISION);
            let sums_blocks =
                constants.ints(block_sums.input(1)?)? == [-1] && block_sums.int("keepdims") == Some(0);
            let fits = single && sums_blocks && divides(product, blocks, constants)?;
            fits.then_some(OffsetNodes {
                product,
                sum,
                others: [blocks, block_sums, part],
                offsets: cast.input(0)?,
            })
        })
    }
}

fn is_product(node: &Node) -> bool {
    node.op == "MatMulNBits" && node.domain == MICROSOFT && node.inputs.len() <= OFFSETS
}

/// Returns whether a `Reshape` divides the rows of a product into its blocks.
fn divides(product: &Node, reshape: &Node, constants: &SmallConstants<'_>) -> Option<bool> {
    let [inputs, block] = [product.int("K")?, product.int("block_size")?];
    let shape = constants.ints(reshape.input(1)?)?;
    let (axes, row) = shape.split_at_checked(shape.len().checked_sub(2)?)?;
    let same_rows = axes.iter().all(|&extent| extent == 0) && reshape.int("allowzero").unwrap_or(0) == 0;
    let whole = block > 0 && inputs % block == 0 && row == [inputs / block, block];
    Some(same_rows && whole && reshape.input(0) == product.input(0))
}

#[cfg(test)]
mod tests {
    use narthex_graph::{Attribute, Builder, graph::Value};

    use super::*;

    fn node(op: &str, inputs: &[&str], output: &str, attributes: &[(&str, i64)]) -> Node {
        let attributes = attributes.iter().map(|&(name, value)| (name.to_owned(), Attribute::Int(value)));
        Node {
            name: format!("/{output}"),
            op: op.to_owned(),
            domain: if op == "MatMulNBits" { MICROSOFT } else { "" }.to_owned(),
            inputs: inputs.iter().map(|&name| name.to_owned()).collect(),
            outputs: vec![output.to_owned()],
            attributes: attributes.collect(),
        }
    }

    /// Returns two products with offsets of the same rows, whose sums of blocks are computed once.
    fn graph() -> Graph {
        let mut builder = Builder::new("g", &[("", 21), (MICROSOFT, 1)]);
        let shape = builder.ints(&[3], &[0, 2, 32]);
        let axis = builder.ints(&[1], &[-1]);
        let mut graph = builder.finish();
        let product = [("K", 64), ("N", 8), ("block_size", 32)];
        graph.nodes.extend([
            node("MatMulNBits", &["x", "q1", "s1", "", "", "bias"], "p1", &product),
            node("MatMulNBits", &["x", "q2", "s2"], "p2", &product),
            node("Reshape", &["x", &shape], "blocks", &[]),
            node("ReduceSum", &["blocks", &axis], "sums", &[("keepdims", 0)]),
            node("Cast", &["o1"], "offsets1", &[("to", 1)]),
            node("Cast", &["o2"], "offsets2", &[("to", 1)]),
            node("MatMul", &["sums", "offsets1"], "part1", &[]),
            node("MatMul", &["sums", "offsets2"], "part2", &[]),
            node("Add", &["p1", "part1"], "y1", &[]),
            node("Add", &["part2", "p2"], "y2", &[]),
        ]);
        let value = |name: &str| Value {
            name: name.into(),
            dtype: narthex_spec::DType::F32.into(),
            shape: Vec::new(),
        };
        graph.inputs.push(value("x"));
        graph.outputs.extend([value("y1"), value("y2")]);
        graph
    }

    fn outputs(graph: &Graph) -> Vec<&str> {
        graph.nodes.iter().map(|node| node.outputs[0].as_str()).collect()
    }

    #[test]
    fn offsets_become_an_input_of_the_product() {
        let mut merged = graph();
        merge(&mut merged, |_, _| true);
        assert_eq!(outputs(&merged), ["y1", "y2", "offsets1", "offsets2"]);
        assert_eq!(merged.nodes[0].inputs, ["x", "q1", "s1", "", "", "bias", "o1"]);
        assert_eq!(merged.nodes[1].inputs, ["x", "q2", "s2", "", "", "", "o2"]);
        // A product that stays needs the sums.
        let mut half = graph();
        merge(&mut half, |_, offsets| offsets == "o1");
        assert_eq!(outputs(&half), ["y1", "p2", "blocks", "sums", "offsets1", "offsets2", "part2", "y2"]);
    }

    #[test]
    fn other_sums_stay() {
        let check = |change: &dyn Fn(&mut Graph)| {
            let mut changed = graph();
            change(&mut changed);
            let expected = changed.clone();
            merge(&mut changed, |_, offsets| offsets == "o1");
            assert_eq!(changed, expected);
        };
        check(&|graph| graph.nodes[2].inputs[0] = "other".into());
        check(&|graph| graph.nodes[3].attributes[0].1 = Attribute::Int(1));
        check(&|graph| graph.nodes[3].op = "ReduceMax".into());
        check(&|graph| graph.nodes[4].attributes[0].1 = Attribute::Int(10));
        check(&|graph| graph.nodes[0].attributes[2].1 = Attribute::Int(16));
        check(&|graph| graph.nodes[8].op = "Sub".into());
        check(&|graph| graph.nodes[9].inputs = vec!["p1".into(), "part2".into()]);
    }
}
