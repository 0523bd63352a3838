//! A graph that measures another graph: the same nodes over the same weights. Its only outputs are the mean squares of
//! each channel of some values.
//!
//! This module does not run graphs.

use narthex_graph::{Builder, Graph, Node, build::NodeSpec, check::GraphError};
use narthex_spec::{DType, dtype::Dim};

use crate::quant::scaling::Input;

/// Returns the name of the output with an input's statistics.
pub(crate) fn output(input: &Input) -> String {
    format!("mean_square/{}", input.name)
}

/// Returns the probe of `graph`. It has one output `[channels]` for each input.
///
/// ```text
/// input [.., channels] ── Mul(itself) ── Reshape[-1, channels] ── ReduceMean(0) ── mean square [channels]
/// ```
///
/// # Errors
/// [`GraphError::Undefined`] if the graph has no node with an input's node name.
pub(crate) fn probe(mut graph: Graph, inputs: &[Input]) -> Result<Graph, GraphError> {
    let mut measures = Builder::new("measures", &[]);
    let rows = measures.ints(&[1], &[0]);
    for input in inputs {
        let node = graph.nodes.iter().find(|node| node.name == input.node);
        let value = node
            .and_then(|node| node.inputs.first())
            .ok_or_else(|| GraphError::Undefined { node: output(input), name: input.node.clone() })?;
        let scope = scope(input);
        let flat = measures.ints(&[2], &[-1, input.channels as i64]);
        let squares = measures.op(&scope, "Mul", &[value, value]);
        let squares = measures.op(&scope, "Reshape", &[&squares, &flat]);
        let name = format!("{scope}/ReduceMean");
        let mean = NodeSpec {
            name: &name,
            op: "ReduceMean",
            domain: "",
            inputs: &[&squares, &rows],
            attributes: &[("keepdims", 0i64.into())],
        };
        measures.node_to(mean, &[&output(input)]);
        measures.output(&output(input), DType::F32, &[Dim::from(input.channels)]);
    }

    let measures = measures.finish();
    let known: Vec<String> = graph.initializers.iter().map(|constant| constant.name.clone()).collect();
    graph.initializers.extend(measures.initializers.into_iter().filter(|c| !known.contains(&c.name)));
    graph.nodes = beside(graph.nodes, measures.nodes, inputs);
    graph.outputs = measures.outputs;
    prune(&mut graph);
    graph.check()?;
    Ok(graph)
}

fn scope(input: &Input) -> String {
    format!("/{}", output(input))
}

/// Orders the graph's nodes and the measures: each measure comes before the node whose input it measures, so that the
/// measured value can be released early.
fn beside(nodes: Vec<Node>, mut measures: Vec<Node>, inputs: &[Input]) -> Vec<Node> {
    let mut all = Vec::with_capacity(nodes.len() + measures.len());
    for node in nodes {
        if let Some(input) = inputs.iter().find(|input| input.node == node.name) {
            let scope = format!("{}/", scope(input));
            all.extend(measures.extract_if(.., |measure| measure.name.starts_with(&scope)));
        }
        all.push(node);
    }
    all
}

/// Removes the nodes and constants that no output needs, such as those of the head.
fn prune(graph: &mut Graph) {
    let mut needed: std::collections::HashSet<String> =
        graph.outputs.iter().map(|value| value.name.clone()).collect();
    let mut kept = Vec::with_capacity(graph.nodes.len());
    while let Some(node) = graph.nodes.pop() {
        if node.outputs.iter().any(|output| needed.contains(output)) {
            needed.extend(node.inputs.iter().cloned());
            kept.push(node);
        }
    }
    kept.reverse();
    graph.nodes = kept;
    graph.initializers.retain(|constant| needed.contains(&constant.name));
}
