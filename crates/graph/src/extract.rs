//! Extraction of a subgraph: values that its nodes read from other nodes become inputs, and values that other nodes
//! read become outputs.

use std::collections::{BTreeSet, HashMap, HashSet};

use narthex_spec::dtype::Dim;

use crate::{
    graph::{Attribute, Graph, Value},
    infer::InferredTensors,
};

impl Graph {
    /// Returns the nodes at these positions as a graph, with the constants that they read, including those that other
    /// nodes compute when the graph is loaded. `known` has the inferred tensors of this graph. The result is `None` if
    /// a value at the boundary has no type or no fixed shape, a node has a body, or a position has no node.
    pub fn extract(&self, positions: &BTreeSet<usize>, known: &InferredTensors) -> Option<Self> {
        let positions = self.with_constants(positions, known);
        let nodes = positions.iter().map(|&at| self.nodes.get(at).cloned()).collect::<Option<Vec<_>>>()?;
        let mut attributes = nodes.iter().flat_map(|node| &node.attributes);
        if attributes.any(|(_, value)| matches!(value, Attribute::Graph(_))) {
            return None;
        }

        let made: HashSet<&str> = nodes.iter().flat_map(|node| &node.outputs).map(String::as_str).collect();
        let read: BTreeSet<&str> = nodes
            .iter()
            .flat_map(|node| &node.inputs)
            .map(String::as_str)
            .filter(|name| !name.is_empty())
            .collect();

        let initializers: Vec<_> = self
            .initializers
            .iter()
            .filter(|constant| read.contains(constant.name.as_str()))
            .cloned()
            .collect();

        let constants: HashSet<&str> = initializers.iter().map(|constant| constant.name.as_str()).collect();
        let outside = read.iter().filter(|name| !made.contains(*name) && !constants.contains(*name));
        let inputs = outside.map(|name| value(name, known)).collect::<Option<Vec<_>>>()?;
        let others = self.nodes.iter().enumerate().filter(|(at, _)| !positions.contains(at));
        let wanted: HashSet<&str> = others
            .flat_map(|(_, node)| &node.inputs)
            .chain(self.outputs.iter().map(|output| &output.name))
            .map(String::as_str)
            .collect();
        let outputs = nodes
            .iter()
            .flat_map(|node| &node.outputs)
            .filter(|name| wanted.contains(name.as_str()) && !known.get(name).constant);
        let outputs = outputs.map(|name| value(name, known)).collect::<Option<Vec<_>>>()?;

        (!outputs.is_empty()).then(|| Self {
            name: self.name.clone(),
            opsets: self.opsets.clone(),
            inputs,
            outputs,
            initializers,
            nodes,
            ..Self::default()
        })
    }

    /// Returns the positions, together with those of the nodes that compute constants for them.
    fn with_constants(&self, positions: &BTreeSet<usize>, known: &InferredTensors) -> BTreeSet<usize> {
        let mut producers: HashMap<&str, usize> = HashMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            producers.extend(node.outputs.iter().map(|name| (name.as_str(), at)));
        }
        let mut all = positions.clone();
        let mut open = positions.iter().copied().collect::<Vec<_>>();
        while let Some(at) = open.pop() {
            let Some(node) = self.nodes.get(at) else { continue };
            for name in node.inputs.iter().filter(|name| known.get(name).constant) {
                if let Some(&producer) = producers.get(name.as_str())
                    && all.insert(producer)
                {
                    open.push(producer);
                }
            }
        }
        all
    }
}

/// Returns a value with its inferred type and shape.
fn value(name: &str, known: &InferredTensors) -> Option<Value> {
    let tensor = known.get(name);
    let extents = tensor.shape.as_ref()?.iter().map(|extent| extent.map(Dim::Fixed));
    Some(Value { name: name.to_owned(), dtype: tensor.element?, shape: extents.collect::<Option<_>>()? })
}

#[cfg(test)]
mod tests {
    use narthex_spec::DType;

    use super::*;
    use crate::build::Builder;

    #[test]
    fn a_part_has_its_inputs_constants_and_outputs() {
        let mut b = Builder::new("g", &[("", 20)]);
        let x = b.input("x", DType::F32, &[2.into(), 3.into()]);
        let one = b.scalar(1.0);
        let a = b.op("/a", "Relu", &[&x]);
        let shape = b.ints(&[1], &[6]);
        let extents = b.op("/shape", "Abs", &[&shape]);
        let flat = b.op("/b", "Reshape", &[&a, &extents]);
        let c = b.op("/c", "Add", &[&flat, &one]);
        let d = b.op("/d", "Neg", &[&c]);
        b.output(&d, DType::F32, &[6.into()]);
        let graph = b.finish();
        let known = graph.infer(&|_| None);
        let check = |positions: &[usize], inputs: &[&str], nodes: usize, outputs: &[&str]| {
            let part = graph.extract(&positions.iter().copied().collect(), &known).unwrap();
            part.check().unwrap();
            let names = |values: &[Value]| values.iter().map(|value| value.name.clone()).collect::<Vec<_>>();
            assert_eq!(
                (names(&part.inputs), part.nodes.len()),
                (inputs.iter().map(|s| s.to_string()).collect(), nodes)
            );
            assert_eq!(names(&part.outputs), outputs);
        };
        check(&[0], &["x"], 1, &["/a/Relu/out"]);
        // Nodes that compute constants at load time are included.
        check(&[2, 3], &["/a/Relu/out"], 3, &["/c/Add/out"]);
        check(&[3, 4], &["/b/Reshape/out"], 2, &["/d/Neg/out"]);
        check(&[0, 4], &["/c/Add/out", "x"], 2, &["/a/Relu/out", "/d/Neg/out"]);
        assert_eq!(graph.extract(&[9].into(), &known), None);
        assert_eq!(graph.extract(&[0].into(), &InferredTensors::default()), None, "nothing is known of x");
    }
}
