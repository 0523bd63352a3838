//! Computes logits for selected rows only, because a head over a large vocabulary costs more than a layer.

use std::collections::HashSet;

use narthex_graph::{Builder, Graph};

use super::adapter::{GraphAdapter, PREFIX};

/// Reduces a graph's `logits [batch, sequence, vocab]` to `rows`: `[rows, vocab]`. Returns the name of the value.
///
/// ```text
/// x ── [rows of x] ── MatMul ── … ── logits          (if the head works row by row)
/// x ── MatMul ── … ── logits ── [rows of logits]     (otherwise)
/// ```
pub(super) fn select_rows(adapter: &mut GraphAdapter, logits: &str, rows: &str) -> String {
    let Some(head) = head_nodes(&adapter.inner, logits) else {
        return gather(&mut adapter.epilogue, logits, rows);
    };

    // The head's nodes move after the selection of rows.
    let mut after = Vec::new();
    let graph = &mut adapter.inner;
    let mut index = 0;
    graph.nodes.retain(|node| {
        let moved = head.nodes.contains(&index);
        if moved {
            after.push(node.clone());
        }
        index += 1;
        !moved
    });

    let x = gather(&mut adapter.epilogue, &head.reads, rows);
    for (at, mut node) in after.into_iter().enumerate() {
        if at == 0
            && let Some(first) = node.inputs.first_mut()
        {
            first.clone_from(&x);
        }
        adapter.epilogue.push(node);
    }
    logits.to_owned()
}

/// Nodes of a head that works row by row.
struct HeadNodes {
    /// Input of the first node: `[batch, sequence, hidden]`.
    reads: String,
    /// Their indices in the graph, in order.
    nodes: Vec<usize>,
}

/// Walks back from the logits over elementwise operations with constants to a product with a constant.
fn head_nodes(graph: &Graph, logits: &str) -> Option<HeadNodes> {
    let mut constants: HashSet<&str> =
        graph.initializers.iter().map(|constant| constant.name.as_str()).collect();
    for node in &graph.nodes {
        let mut reads = node.inputs.iter().filter(|name| !name.is_empty());
        if node.op == "Constant" || !node.inputs.is_empty() && reads.all(|name| constants.contains(&**name)) {
            constants.extend(node.outputs.iter().map(String::as_str));
        }
    }

    let mut value = logits.to_owned();
    let mut nodes = Vec::new();

    loop {
        let at = graph.nodes.iter().rposition(|node| node.outputs.first() == Some(&value))?;
        let node = graph.nodes.get(at)?;
        let readers = graph.nodes.iter().filter(|node| node.inputs.contains(&value)).count();
        let mut operands = node.inputs.iter().skip(1).filter(|name| !name.is_empty());
        let is_elementwise = operands.all(|name| constants.contains(name.as_str()));
        // A value with other readers, or a node with further outputs, must stay in place.
        if readers > usize::from(value != logits) || node.outputs.len() != 1 || !is_elementwise {
            return None;
        }
        nodes.insert(0, at);
        let reads = node.input(0)?.to_owned();
        match node.operator().as_str() {
            "MatMul" | "com.microsoft.MatMulNBits" if !constants.contains(reads.as_str()) => {
                return Some(HeadNodes { reads, nodes });
            }
            "Cast" | "Mul" | "Div" | "Add" | "Tanh" | "Identity" => value = reads,
            _ => return None,
        }
    }
}

/// Gathers rows of `x [batch, sequence, n]`, flattened to one list: `[rows, n]`.
fn gather(g: &mut Builder, x: &str, rows: &str) -> String {
    let scope = format!("{PREFIX}rows");
    let last = g.ints(&[1], &[2]);
    let first = g.ints(&[1], &[-1]);
    let shape = g.op(&scope, "Shape", &[x]);
    let width = g.op(&format!("{scope}/width"), "Gather", &[&shape, &last]);
    let axis = [("axis", narthex_graph::Attribute::Int(0))];
    let flat = g.op_with(&scope, "Concat", &[&first, &width], &axis);
    let list = g.op(&scope, "Reshape", &[x, &flat]);
    g.op(&scope, "Gather", &[&list, rows])
}
