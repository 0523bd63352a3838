//! Lengths at which a graph changes its rotary factors (LongRoPE). Cached keys are wrong beyond such a length, and an
//! imported graph cannot rotate them again, so sequences are limited to it.

use narthex_graph::{Attribute, Graph};

/// Returns the maximum sequence length for the first set of rotary angles, if a graph has two sets.
///
/// The builder of onnxruntime-genai writes them as the two branches of an `If`, or one after the other in one table.
pub(super) fn first_set(graph: &Graph, context: usize) -> Option<usize> {
    let merge_branches = graph.nodes.iter().filter(|node| node.op == "If").filter_map(|node| {
        let [then, otherwise] = ["then_branch", "else_branch"].map(|branch| match node.attribute(branch) {
            Some(Attribute::Graph(body)) => table_rows(body),
            _ => None,
        });
        (then != otherwise).then_some(then?.min(otherwise?))
    });
    // Positions that are not an input of the graph were shifted to the second part of the table.
    let joined = graph
        .nodes
        .iter()
        .filter(|node| {
            node.operator() == "com.microsoft.RotaryEmbedding"
                && node.input(1).is_some_and(|name| graph.inputs.iter().all(|input| input.name != name))
        })
        .filter_map(|node| node.input(2))
        .filter_map(|name| graph.initializers.iter().find(|constant| constant.name == name))
        .filter_map(|table| table.shape.first()?.checked_sub(context).filter(|&first| first > 0));
    merge_branches.chain(joined).min()
}

/// Returns the rows of the constant tables that a branch returns.
fn table_rows(body: &Graph) -> Option<usize> {
    let nodes = body.nodes.iter().filter(|node| node.op == "Constant").filter_map(|node| {
        match (node.outputs.first(), node.attribute("value")) {
            (Some(output), Some(Attribute::Tensor(table))) => Some((output, &**table)),
            _ => None,
        }
    });
    let constants = body.initializers.iter().map(|constant| (&constant.name, constant));
    let mut tables = nodes.chain(constants).filter(|(_, constant)| constant.shape.len() == 2);
    let (_, table) = tables.find(|(name, _)| body.outputs.iter().any(|output| output.name == **name))?;
    table.shape.first().copied()
}
