//! Topological order of nodes. ONNX requires it, but some converters do not produce it.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use crate::graph::{Attribute, Graph, Node};

impl Graph {
    /// Sorts nodes topologically, also in bodies. Nodes that are already in order keep it. Nodes in a cycle come last,
    /// so that [`Graph::check_values`] reports them.
    pub fn sort_nodes(&mut self) {
        for (_, attribute) in self.nodes.iter_mut().flat_map(|node| &mut node.attributes) {
            if let Attribute::Graph(body) = attribute {
                body.sort_nodes();
            }
        }
        let order = order(&self.nodes);
        if !order.is_sorted() {
            let mut nodes: Vec<Option<Node>> = self.nodes.drain(..).map(Some).collect();
            self.nodes =
                order.into_iter().filter_map(|at| nodes.get_mut(at).and_then(Option::take)).collect();
        }
    }
}

/// Returns the positions of nodes in topological order. Among nodes that are ready, the one with the smallest position
/// comes first.
fn order(nodes: &[Node]) -> Vec<usize> {
    let producers: HashMap<&str, usize> = nodes
        .iter()
        .enumerate()
        .flat_map(|(at, node)| node.outputs.iter().map(move |name| (name.as_str(), at)))
        .filter(|(name, _)| !name.is_empty())
        .collect();

    let mut awaited = vec![0_usize; nodes.len()];
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        node.for_each_read(&mut |name| {
            if let Some(&producer) = producers.get(name) {
                awaited[at] += 1;
                readers[producer].push(at);
            }
        });
    }

    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..nodes.len()).filter(|&at| awaited[at] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(Reverse(at)) = ready.pop() {
        order.push(at);
        for &reader in &readers[at] {
            awaited[reader] -= 1;
            if awaited[reader] == 0 {
                ready.push(Reverse(reader));
            }
        }
    }

    order.extend((0..nodes.len()).filter(|&at| awaited[at] > 0));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, inputs: &[&str]) -> Node {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let (inputs, outputs) = (names(inputs), names(&[name]));
        let (name, op) = (name.to_owned(), "Add".to_owned());
        Node { name, op, domain: String::new(), inputs, outputs, attributes: Vec::new() }
    }

    #[test]
    fn nodes_follow_their_inputs() {
        let check = |nodes: Vec<Node>, expect: &str| {
            let mut graph = Graph { nodes, ..Graph::default() };
            graph.sort_nodes();
            let order: Vec<&str> = graph.nodes.iter().map(|node| node.name.as_str()).collect();
            assert_eq!(order.join(""), expect);
        };
        check(vec![node("a", &["x"]), node("b", &["x"]), node("c", &["a", ""])], "abc");
        check(vec![node("c", &["a", "b"]), node("b", &["a"]), node("d", &["x"]), node("a", &["x"])], "dabc");
        check(vec![node("a", &["b"]), node("b", &["a"]), node("c", &["a"]), node("d", &[])], "dabc");
        // A body reads values of the outer graph and is sorted separately.
        let body = Graph { nodes: vec![node("f", &["e"]), node("e", &["b"])], ..Graph::default() };
        let mut branch = node("a", &[]);
        branch.attributes.push(("then_branch".to_owned(), Attribute::Graph(Box::new(body))));
        let mut graph = Graph { nodes: vec![branch, node("b", &["x"])], ..Graph::default() };
        graph.sort_nodes();
        assert_eq!(graph.nodes.iter().map(|node| node.name.as_str()).collect::<String>(), "ba");
        let Some(Attribute::Graph(body)) = graph.nodes[1].attribute("then_branch") else { panic!() };
        assert_eq!(body.nodes.iter().map(|node| node.name.as_str()).collect::<String>(), "ef");
    }
}
