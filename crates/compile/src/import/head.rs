//! Logits of the rows asked for alone: a head over a large vocabulary costs more than a layer.

use std::collections::HashSet;

use narthex_graph::{Builder, Graph, Node};

use super::glue::{Glue, OURS};

/// Makes a graph's `logits [batch, sequence, vocab]` those of `rows`: `[rows, vocab]`; gives the value's name.
///
/// ```text
/// x ── [rows of x] ── MatMul ── … ── logits          (where what makes the logits goes row by row)
/// x ── MatMul ── … ── logits ── [rows of logits]     (otherwise)
/// ```
pub(super) fn asked_rows(glue: &mut Glue, logits: &str, rows: &str) -> String {
    let Some(head) = product(glue.foreign(), logits) else {
        return gather(&mut glue.back, logits, rows);
    };
    // What makes the logits moves behind the rows' choice.
    let mut after = Vec::new();
    let graph = glue.foreign_mut();
    let mut index = 0;
    graph.nodes.retain(|node| {
        let moved = head.nodes.contains(&index);
        if moved {
            after.push(node.clone());
        }
        index += 1;
        !moved
    });
    let x = gather(&mut glue.back, &head.reads, rows);
    for (at, mut node) in after.into_iter().enumerate() {
        if at == 0
            && let Some(first) = node.inputs.first_mut()
        {
            first.clone_from(&x);
        }
        glue.back.push(node);
    }
    logits.to_owned()
}

/// The nodes that make the logits row by row.
struct Product {
    /// What the first of them reads: `[batch, sequence, hidden]`.
    reads: String,
    /// Their places among the graph's nodes, in order.
    nodes: Vec<usize>,
}

/// Walks back from the logits over what goes element by element, with constants, to a product with a constant.
fn product(graph: &Graph, logits: &str) -> Option<Product> {
    let mut constants: HashSet<&str> =
        graph.initializers.iter().map(|constant| constant.name.as_str()).collect();
    for node in &graph.nodes {
        let mut reads = node.inputs.iter().filter(|name| !name.is_empty());
        if node.op == "Constant" || !node.inputs.is_empty() && reads.all(|name| constants.contains(&**name)) {
            constants.extend(node.outputs.iter().map(String::as_str));
        }
    }
    let constant = |node: &Node, from: usize| {
        node.inputs.iter().skip(from).all(|name| name.is_empty() || constants.contains(name.as_str()))
    };
    let (mut value, mut nodes) = (logits.to_owned(), Vec::new());
    loop {
        let at = graph.nodes.iter().rposition(|node| node.outputs.first() == Some(&value))?;
        let node = graph.nodes.get(at)?;
        let readers = graph.nodes.iter().filter(|node| node.inputs.contains(&value)).count();
        // What others read, or the head gives beside the logits, stays where it is.
        if readers > usize::from(value != logits) || node.outputs.len() != 1 || !constant(node, 1) {
            return None;
        }
        nodes.insert(0, at);
        let reads = node.input(0)?.to_owned();
        match node.operator().as_str() {
            "MatMul" | "com.microsoft.MatMulNBits" if !constants.contains(reads.as_str()) => {
                return Some(Product { reads, nodes });
            }
            "Cast" | "Mul" | "Div" | "Add" | "Tanh" | "Identity" => value = reads,
            _ => return None,
        }
    }
}

/// Rows of `x [batch, sequence, n]` as if they were one list: `[rows, n]`.
fn gather(g: &mut Builder, x: &str, rows: &str) -> String {
    let scope = format!("{OURS}rows");
    let (last, first) = (g.ints(&[1], &[2]), g.ints(&[1], &[-1]));
    let shape = g.op(&scope, "Shape", &[x]);
    let width = g.op(&format!("{scope}/width"), "Gather", &[&shape, &last]);
    let axis = [("axis", narthex_graph::Attribute::Int(0))];
    let flat = g.op_with(&scope, "Concat", &[&first, &width], &axis);
    let list = g.op(&scope, "Reshape", &[x, &flat]);
    g.op(&scope, "Gather", &[&list, rows])
}
