//! Pass that splits attention into heads. NPU compilers tile products of two matrices more freely than batched
//! products.

use std::collections::HashMap;

use narthex_graph::{
    Attribute, Graph, Node,
    infer::{InferredTensors, TensorInfo},
    patch::Patch,
    replacement::Replacement,
};

/// Returns a patch for every multi-head attention of the form `MatMul ── … ── MatMul` over `[1, heads, rows, cols]`.
pub(super) fn patches(graph: &Graph) -> Vec<Patch> {
    let view = View::of(graph);
    graph.nodes.iter().filter_map(|node| view.attention(node)?.split()).collect()
}

/// Inferred tensors of a graph, and the readers of each value.
struct View<'a> {
    known: InferredTensors,
    readers: HashMap<&'a str, Vec<&'a Node>>,
}

/// A matched attention.
struct Attention<'a> {
    known: &'a InferredTensors,
    heads: u64,
    scores: &'a Node,
    /// Nodes from the scores to the weights. Each is the only reader of the one before.
    between: Vec<&'a Node>,
    mix: &'a Node,
}

impl<'a> View<'a> {
    fn of(graph: &'a Graph) -> Self {
        let mut readers: HashMap<&str, Vec<&Node>> = HashMap::new();
        for node in &graph.nodes {
            for name in &node.inputs {
                readers.entry(name).or_default().push(node);
            }
        }
        // A graph output is also read outside the graph.
        readers.retain(|name, _| graph.outputs.iter().all(|output| output.name != *name));
        Self { known: graph.infer(&|_| None), readers }
    }

    /// Returns the attention whose scores a node computes.
    fn attention(&self, scores: &'a Node) -> Option<Attention<'_>> {
        let heads = self.heads(scores)?;
        let mut between: Vec<&Node> = Vec::new();
        loop {
            let last = between.last().copied().unwrap_or(scores);
            let [next] = self.readers.get(last.outputs.first()?.as_str())?[..] else { return None };
            if next.is_onnx("MatMul") {
                let reads_weights = next.input(0) == last.outputs.first().map(String::as_str);
                let fits = reads_weights && self.heads(next) == Some(heads);
                let weighs = between.iter().any(|node| node.is_onnx("Softmax"));
                let known = &self.known;
                return (fits && weighs).then_some(Attention { known, heads, scores, between, mix: next });
            }
            if !self.is_per_head(next, last, heads) {
                return None;
            }
            between.push(next);
        }
    }

    /// Returns the number of heads, if above one, of a product of two computed values of shape `[1, heads, _, _]`.
    fn heads(&self, node: &Node) -> Option<u64> {
        let [left, right] = [0, 1].map(|index| {
            let tensor = self.known.input(node, index).filter(|tensor| !tensor.constant)?;
            match *tensor.shape.as_deref()? {
                [Some(1), Some(heads), Some(_), Some(_)] => Some(heads),
                _ => None,
            }
        });
        left.filter(|&heads| node.is_onnx("MatMul") && left == right && heads > 1)
    }

    /// Returns whether a node computes each head only from the same head.
    fn is_per_head(&self, node: &Node, after: &Node, heads: u64) -> bool {
        let value = after.outputs.first().map(String::as_str);
        if !node.domain.is_empty() || self.known.output(node).shape.as_ref().map(Vec::len) != Some(4) {
            return false;
        }
        match node.op.as_str() {
            "Tanh" => true,
            "Softmax" => matches!(node.int("axis"), None | Some(-1 | 3)),
            "Reshape" => {
                let into = self.known.input(node, 1).and_then(|tensor| tensor.ints.as_deref());
                matches!(into, Some(&[1, into, _, _]) if into > 0 && (into as u64).is_multiple_of(heads))
            }
            "Add" | "Mul" | "Div" | "Sub" => {
                let others = node.inputs.iter().filter(|name| Some(name.as_str()) != value);
                node.inputs.len() == 2
                    && others.clone().count() == 1
                    && others.into_iter().all(|name| is_shared(self.known.get(name)))
            }
            _ => false,
        }
    }
}

/// Returns whether a tensor is the same for every head: a scalar, or a tensor with one head.
fn is_shared(tensor: &TensorInfo) -> bool {
    match tensor.shape.as_deref() {
        Some([front @ .., _, _]) => front.iter().all(|extent| *extent == Some(1)),
        Some(shape) => shape.iter().all(|extent| *extent == Some(1)),
        None => false,
    }
}

impl Attention<'_> {
    /// ```text
    /// q ── Split ─┬─ MatMul ── … ── MatMul ─┬─ Concat
    /// k ── Split ─┤    for every head  │    │
    /// v ── Split ─┴────────────────────┘    ┘
    /// ```
    fn split(&self) -> Option<Patch> {
        // The last node comes after every value that the patch reads.
        let mut new = Replacement::of(self.mix);
        let queries = self.pieces(&mut new, "q", self.scores.input(0)?);
        let keys = self.pieces(&mut new, "k", self.scores.input(1)?);
        let values = self.pieces(&mut new, "v", self.mix.input(1)?);
        let mut mixed = Vec::new();
        for ((query, key), value) in queries.iter().zip(&keys).zip(&values) {
            let mut x = new.op("MatMul", &[query, key], &[]);
            let mut before = self.scores.outputs.first()?;
            for node in &self.between {
                x = self.copy_for_head(&mut new, node, before, &x)?;
                before = node.outputs.first()?;
            }
            mixed.push(new.op("MatMul", &[&x, value], &[]));
        }
        let mixed: Vec<&str> = mixed.iter().map(String::as_str).collect();
        new.op_to("Concat", &mixed, &[("axis", Attribute::Int(1))], &[self.mix.outputs.first()?]);
        new.takes_over(self.scores);
        self.between.iter().for_each(|node| new.takes_over(node));
        new.patch(&format!("split {} heads", self.heads))
    }

    /// Splits a value into one per head.
    fn pieces(&self, new: &mut Replacement<'_>, name: &str, value: &str) -> Vec<String> {
        let parts: Vec<String> = (0..self.heads).map(|head| format!("{}/{name}{head}", new.stem())).collect();
        let sizes = new.shape(&format!("{name}_heads"), &vec![1; parts.len()]);
        let outputs: Vec<&str> = parts.iter().map(String::as_str).collect();
        new.op_to("Split", &[value, &sizes], &[("axis", Attribute::Int(1))], &outputs);
        parts
    }

    /// Adds a copy of a node for one head, which reads `x` in place of `before`, and returns its output.
    fn copy_for_head(&self, new: &mut Replacement<'_>, node: &Node, before: &str, x: &str) -> Option<String> {
        let attributes: Vec<(&str, Attribute)> =
            node.attributes.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        if node.is_onnx("Reshape") {
            let mut into = self.known.input(node, 1)?.ints.clone()?;
            *into.get_mut(1)? /= self.heads as i64;
            let name = into.iter().map(i64::to_string).collect::<Vec<_>>().join("x");
            let into = new.shape(&name, &into);
            return Some(new.op("Reshape", &[x, &into], &attributes));
        }
        let inputs: Vec<&str> =
            node.inputs.iter().map(|name| if name == before { x } else { name }).collect();
        Some(new.op(&node.op, &inputs, &attributes))
    }
}

#[cfg(test)]
mod tests {
    use narthex_graph::Builder;
    use narthex_spec::{DType, dtype::Dim};

    use super::*;

    /// Returns attention of six query heads over three key heads, with a mask.
    fn attention(mask: [Dim; 4]) -> Graph {
        let mut b = Builder::new("g", &[("", 21)]);
        let shape = |extents: [u64; 4]| extents.map(Dim::Fixed);
        let q = b.input("q", DType::F16, &shape([1, 3, 10, 8]));
        let k = b.input("k", DType::F16, &shape([1, 3, 8, 7]));
        let v = b.input("v", DType::F16, &shape([1, 3, 7, 8]));
        let mask = b.input("mask", DType::F16, &mask);
        let scores = b.op("/scores", "MatMul", &[&q, &k]);
        let each = b.ints(&[4], &[1, 6, 5, 7]);
        let scores = b.op("/each", "Reshape", &[&scores, &each]);
        let scores = b.op("/mask", "Add", &[&scores, &mask]);
        let weights = b.op_with("/weigh", "Softmax", &[&scores], &[("axis", Attribute::Int(-1))]);
        let groups = b.ints(&[4], &[1, 3, 10, 7]);
        let weights = b.op("/groups", "Reshape", &[&weights, &groups]);
        let mixed = b.op("/mix", "MatMul", &[&weights, &v]);
        b.output(&mixed, DType::F16, &shape([1, 3, 10, 8]));
        b.finish()
    }

    #[test]
    fn heads_are_computed_one_by_one() {
        let mut graph = attention([1, 1, 5, 7].map(Dim::Fixed));
        let labels = super::super::apply(&mut graph, narthex_spec::Pass::SplitHeads).unwrap();
        assert_eq!(labels, ["split 3 heads: /mix/MatMul"]);
        graph.check().unwrap();
        let count = |op: &str| graph.nodes.iter().filter(|node| node.op == op).count();
        assert_eq!([count("Split"), count("MatMul"), count("Softmax"), count("Concat")], [3, 6, 3, 1]);
        let known = graph.infer(&|_| None);
        assert_eq!(known.get(&graph.outputs[0].name).shape, Some([1, 3, 10, 8].map(Some).to_vec()));
        let products = graph.nodes.iter().filter(|node| node.op == "MatMul");
        for product in products {
            assert_eq!(known.output(product).shape.as_ref().unwrap()[1], Some(1), "{}", product.name);
        }
        assert!(patches(&graph).is_empty());
    }

    #[test]
    fn attention_that_differs_by_head_is_not_split() {
        assert!(patches(&attention([1, 6, 5, 7].map(Dim::Fixed))).is_empty());
        let open = [Dim::Fixed(1), Dim::Symbol("heads".into()), Dim::Fixed(5), Dim::Fixed(7)];
        assert!(patches(&attention(open)).is_empty());
        let mut seen = attention([1, 1, 5, 7].map(Dim::Fixed));
        let mut output = seen.outputs[0].clone();
        "/weigh/Softmax/out".clone_into(&mut output.name);
        seen.outputs.push(output);
        assert!(patches(&seen).is_empty(), "the weights are a graph output");
    }
}
