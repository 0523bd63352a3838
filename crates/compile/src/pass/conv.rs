//! Pass that writes linear layers as 1x1 convolutions, the form that the matrix engines of NPUs are designed for.

use narthex_graph::{Graph, Node, infer::InferredTensors, patch::Patch, replacement::Replacement};

/// Returns a patch for every product of rows `[1, tokens, cols]` with a constant `[cols, rows]`. Products with
/// quantised blocks are not changed: compilers support `MatMulNBits` directly.
pub(super) fn patches(graph: &Graph) -> Vec<Patch> {
    let known = graph.infer(&|_| None);
    graph.nodes.iter().filter_map(|node| as_conv(node, &known)).collect()
}

/// ```text
/// x [1, tokens, cols] ── Transpose ── Reshape [1, cols, 1, tokens] ── Conv ── Reshape [1, rows, tokens] ── Transpose
/// weight [cols, rows] ── Transpose ── Reshape [rows, cols, 1, 1] ─────┘
/// ```
///
/// The lower row is constant: ONNX Runtime computes it when it loads the graph, before any provider sees it.
fn as_conv(node: &Node, known: &InferredTensors) -> Option<Patch> {
    if !node.is_onnx("MatMul") {
        return None;
    }
    let x = known.input(node, 0)?;
    let weight = known.input(node, 1)?;
    let [Some(1), Some(tokens), Some(cols)] = *x.shape.as_deref()? else { return None };
    let [Some(inner), Some(rows)] = *weight.shape.as_deref()? else { return None };
    if x.constant || !weight.constant || inner != cols {
        return None;
    }
    let [tokens, cols, rows] = [tokens, cols, rows].map(|extent| extent as i64);
    let mut new = Replacement::of(node);
    let kernel = new.shape("kernel", &[rows, cols, 1, 1]);
    let image = new.shape("image", &[1, cols, 1, tokens]);
    let flat = new.shape("flat", &[1, rows, tokens]);
    let weight = new.op("Transpose", &[node.input(1)?], &[("perm", [1, 0].into())]);
    let weight = new.op("Reshape", &[&weight, &kernel], &[]);
    let x = new.op("Transpose", &[node.input(0)?], &[("perm", [0, 2, 1].into())]);
    let x = new.op("Reshape", &[&x, &image], &[]);
    let y = new.op("Conv", &[&x, &weight], &[("kernel_shape", [1, 1].into())]);
    let y = new.op("Reshape", &[&y, &flat], &[]);
    new.op_to("Transpose", &[&y], &[("perm", [0, 2, 1].into())], &[node.outputs.first()?]);
    new.patch("write a linear layer as a 1x1 convolution")
}

#[cfg(test)]
mod tests {
    use narthex_graph::{Builder, build::External};
    use narthex_spec::DType;

    use super::*;

    #[test]
    fn only_products_with_a_plain_weight_are_changed() {
        let mut b = Builder::new("g", &[("", 21)]);
        let at = External { file: "w", offset: 0, length: 8 * 6 * 2 };
        let x = b.input("x", DType::F16, &[1.into(), 4.into(), 8.into()]);
        let open = b.input("open", DType::F16, &[1.into(), "n".into(), 8.into()]);
        let w = b.external("weight", DType::F16, &[8, 6], at);
        let y = b.op("/proj", "MatMul", &[&x, &w]);
        let z = b.op("/open", "MatMul", &[&open, &w]);
        let columns = b.op_with("/columns", "Transpose", &[&x], &[("perm", [0, 2, 1].into())]);
        let scores = b.op("/scores", "MatMul", &[&x, &columns]);
        for (name, shape) in [(&y, [1.into(), 4.into(), 6.into()]), (&scores, [1.into(), 4.into(), 4.into()])]
        {
            b.output(name, DType::F16, &shape);
        }
        b.output(&z, DType::F16, &[1.into(), "n".into(), 6.into()]);
        let mut graph = b.finish();
        let patches = patches(&graph);
        let labels: Vec<&str> = patches.iter().map(|patch| patch.label.as_str()).collect();
        assert_eq!(labels, ["write a linear layer as a 1x1 convolution: /proj/MatMul"]);
        graph.apply(&patches).unwrap();
        graph.check().unwrap();
        let known = graph.infer(&|_| None);
        assert_eq!(known.get(&y).shape, Some(vec![Some(1), Some(4), Some(6)]));
        assert_eq!(graph.nodes.iter().filter(|node| node.op == "Conv").count(), 1);
        // The result needs no further patch.
        assert_eq!(super::patches(&graph).len(), 0);
    }
}
