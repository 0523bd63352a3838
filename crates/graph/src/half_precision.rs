//! A pass that computes the products and the attention of a decoder in half precision, for providers whose attention
//! over a KV cache supports nothing else, such as CUDA's.
//!
//! The residual stream, the norms and the last product, which computes the logits, stay in single precision: norms sum
//! squares, whose range half precision lacks, and near ties between logits would change. Weights in single precision
//! stay as they are.

use std::collections::{HashMap, HashSet};

use narthex_spec::DType;

use crate::{
    element::Element,
    graph::{Attribute, Graph, MICROSOFT, Node},
    kv_cache::{PRESENT, cache_values, has_single_precision_past},
};

/// Inputs of `GroupQueryAttention` with queries, keys, values, cosines, sines, a bias and sinks, whose type is that of
/// the queries.
const ATTENTION_INPUTS: [usize; 7] = [0, 1, 2, 7, 8, 10, 11];

/// Inputs of `MatMulNBits` with rows, scales and a bias.
const QUANTIZED_PRODUCT_INPUTS: [usize; 3] = [0, 2, 5];

/// Operators between products that are computed in half precision if all that they read is.
const BETWEEN_PRODUCTS: [&str; 9] =
    ["Add", "FastGelu", "Gelu", "Mul", "QuickGelu", "Reshape", "Sigmoid", "Split", "Tanh"];

/// Converts a decoder's products and attention. Returns false, and changes nothing, if the graph has no attention over
/// a cache in single precision that only attention reads and writes.
pub fn convert(graph: &mut Graph) -> bool {
    let Some(cache) = single_precision_cache(graph) else { return false };
    let last_product = graph.nodes.iter().rposition(is_product);
    let constants = graph.initializers.iter().map(|constant| (constant.name.clone(), constant.dtype));
    let mut conversion = Conversion { constants: constants.collect(), ..Conversion::default() };
    for (index, node) in std::mem::take(&mut graph.nodes).into_iter().enumerate() {
        conversion.add(node, Some(index) == last_product);
    }
    for output in &graph.outputs {
        conversion.widen(&output.name);
    }
    graph.nodes = conversion.nodes;
    let unused = conversion.narrow_only;
    graph.values.retain(|value| !unused.contains_key(&value.name));
    let values = graph.inputs.iter_mut().chain(&mut graph.outputs);
    for value in values.filter(|value| cache.contains(&value.name)) {
        value.dtype = DType::F16.into();
    }
    true
}

/// Returns the inputs and outputs with keys and values; `None` if there are none, or if another node uses them.
fn single_precision_cache(graph: &Graph) -> Option<HashSet<String>> {
    let attention: Vec<&Node> = graph.nodes.iter().filter(|node| is_attention(node)).collect();
    let fits = graph.unread.is_empty() && attention.iter().all(|node| has_single_precision_past(graph, node));
    let cache = cache_values(graph, &attention, &graph.read_counts()).filter(|_| fits)?;
    Some(cache.into_iter().map(str::to_owned).collect())
}

fn is_attention(node: &Node) -> bool {
    node.op == "GroupQueryAttention" && node.domain == MICROSOFT
}

fn is_quantized_product(node: &Node) -> bool {
    node.op == "MatMulNBits" && node.domain == MICROSOFT
}

fn is_product(node: &Node) -> bool {
    is_quantized_product(node) || node.is_onnx("MatMul") || node.is_onnx("Gemm")
}

/// Nodes of the converted graph so far. Values keep their names in single precision.
#[derive(Default)]
struct Conversion {
    nodes: Vec<Node>,
    /// Element types of the constants.
    constants: HashMap<String, Element>,
    /// Name in half precision of each value that has both, or only this one.
    halves: HashMap<String, String>,
    /// Values that are computed or stored in half precision.
    computed: HashSet<String>,
    /// Those that exist only in half precision so far, with their names in it.
    narrow_only: HashMap<String, String>,
}

impl Conversion {
    fn add(&mut self, mut node: Node, is_last_product: bool) {
        // Weights and scales in half precision are stored with a cast to single precision.
        if node.is_onnx("Cast")
            && node.input(0).is_some_and(|name| self.constants.get(name) == Some(&DType::F16.into()))
            && node.int("to") == Some(code(DType::F32))
        {
            self.define(node.outputs[0].clone(), node.inputs[0].clone());
            return;
        }

        let narrows = if is_attention(&node) {
            ATTENTION_INPUTS.to_vec()
        } else if is_last_product {
            Vec::new()
        } else if is_quantized_product(&node) {
            QUANTIZED_PRODUCT_INPUTS.to_vec()
        } else if is_product(&node) {
            // Only a weight that is stored in half precision.
            let half = node.input(1).is_some_and(|weight| self.computed.contains(weight));
            if half { (0..node.inputs.len()).collect() } else { Vec::new() }
        } else {
            self.inputs_between_products(&node)
        };

        if narrows.is_empty() {
            node.for_each_read(&mut |name| self.widen(name));
            self.nodes.push(node);
            return;
        }

        for (at, name) in node.inputs.iter_mut().enumerate().filter(|(_, name)| !name.is_empty()) {
            if narrows.contains(&at) {
                *name = self.narrow(name);
            }
        }

        let attends = is_attention(&node);
        for (at, name) in node.outputs.iter_mut().enumerate().filter(|(_, name)| !name.is_empty()) {
            if !(attends && PRESENT.contains(&at)) {
                let half = format!("{name}/half");
                self.define(std::mem::replace(name, half.clone()), half);
            }
        }
        self.nodes.push(node);
    }

    /// Returns the inputs of a node between products that are in half precision or are constants, if these are all of
    /// its numbers.
    fn inputs_between_products(&self, node: &Node) -> Vec<usize> {
        let mut inputs = Vec::new();
        let mut reads_half = false;
        for (at, name) in node.inputs.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let is_half = self.computed.contains(name);
            reads_half |= is_half;
            match self.constants.get(name) {
                None if !is_half => return Vec::new(),
                constant if is_half || constant == Some(&DType::F32.into()) => inputs.push(at),
                _ => {}
            }
        }

        if reads_half && BETWEEN_PRODUCTS.contains(&node.op.as_str()) { inputs } else { Vec::new() }
    }

    /// Notes that a value is computed or stored in half precision.
    fn define(&mut self, name: String, half: String) {
        self.computed.insert(name.clone());
        self.halves.insert(name.clone(), half.clone());
        self.narrow_only.insert(name, half);
    }

    /// Returns the name of a value in half precision, and adds the cast if it is missing.
    fn narrow(&mut self, name: &str) -> String {
        if let Some(half) = self.halves.get(name) {
            return half.clone();
        }
        let half = format!("{name}/half");
        self.nodes.push(cast(name, &half, DType::F16));
        self.halves.insert(name.to_owned(), half.clone());
        half
    }

    /// Adds the cast to single precision of a value that exists only in half precision.
    fn widen(&mut self, name: &str) {
        if let Some(half) = self.narrow_only.remove(name) {
            self.nodes.push(cast(&half, name, DType::F32));
        }
    }
}

fn code(dtype: DType) -> i64 {
    i64::from(Element::from(dtype).code())
}

fn cast(from: &str, to: &str, dtype: DType) -> Node {
    Node {
        name: format!("{to}/Cast"),
        op: "Cast".to_owned(),
        domain: String::new(),
        inputs: vec![from.to_owned()],
        outputs: vec![to.to_owned()],
        attributes: vec![("to".to_owned(), Attribute::Int(code(dtype)))],
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::dtype::Dim;

    use super::*;
    use crate::{
        Builder,
        build::{External, NodeSpec},
    };

    /// Returns a decoder of one layer: a product, attention, another product, a residual sum, and the last product.
    fn decoder() -> Builder {
        let mut graph = Builder::new("decoder", &[("", 20), (MICROSOFT, 1)]);
        let width = Dim::Fixed(4);
        for name in ["rows", "past.0.key", "past.0.value"] {
            graph.input(name, DType::F32, &[Dim::symbol("n"), width.clone()]);
        }
        for name in ["present.0.key", "present.0.value", "logits"] {
            graph.output(name, DType::F32, &[Dim::symbol("n"), width.clone()]);
        }
        let mut weight = |name: &str, dtype: DType| {
            let at = External { file: "data", offset: 0, length: 16 * dtype.size() as u64 };
            graph.external(name, dtype, &[4, 4], at)
        };
        let weights = ["in", "out"].map(|name| weight(name, DType::F16));
        let head = weight("head", DType::F32);
        let [first, second] = weights.map(|weight: String| graph.cast(&weight, &weight, DType::F32));
        let qkv = graph.op("/q", "MatMul", &["rows", &first]);
        let inputs = [&qkv, "", "", "past.0.key", "past.0.value"];
        let op = "GroupQueryAttention";
        let attention = NodeSpec { name: "/a", op, domain: MICROSOFT, inputs: &inputs, attributes: &[] };
        graph.node_to(attention, &["attended", "present.0.key", "present.0.value"]);
        let branch = graph.op("/o", "MatMul", &["attended", &second]);
        let sum = graph.op("/sum", "Add", &["rows", &branch]);
        let last = NodeSpec { name: "/l", op: "MatMul", domain: "", inputs: &[&sum, &head], attributes: &[] };
        graph.node_to(last, &["logits"]);
        graph
    }

    #[test]
    fn products_and_attention_change_and_the_rest_does_not() {
        let mut graph = decoder().finish();
        assert!(convert(&mut graph));
        let node = |op: &str, at: usize| graph.nodes.iter().filter(|node| node.op == op).nth(at).unwrap();
        assert_eq!(node("MatMul", 0).inputs, ["rows/half", "in"]);
        assert_eq!(node("GroupQueryAttention", 0).inputs[0], node("MatMul", 0).outputs[0]);
        assert_eq!(node("MatMul", 1).inputs, ["attended/half", "out"]);
        assert_eq!(node("Add", 0).inputs, ["rows", "/o/MatMul/out"]);
        assert_eq!(node("MatMul", 2).inputs, ["/sum/Add/out", "head"]);
        let casts = graph.nodes.iter().filter(|node| node.op == "Cast").count();
        assert_eq!(casts, 2, "{}", graph.dump());
        let half = |value: &&crate::graph::Value| value.dtype == Element::from(DType::F16);
        let values: Vec<&str> =
            graph.inputs.iter().chain(&graph.outputs).filter(half).map(|value| value.name.as_str()).collect();
        assert_eq!(values, ["past.0.key", "past.0.value", "present.0.key", "present.0.value"]);
    }

    #[test]
    fn a_cache_that_other_nodes_read_stays() {
        let mut builder = decoder();
        builder.op("/other", "Neg", &["past.0.key"]);
        let graph = builder.finish();
        let mut found = graph.clone();
        assert!(!convert(&mut found));
        assert_eq!(found, graph);
    }
}
