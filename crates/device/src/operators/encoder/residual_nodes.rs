//! A graph pass that merges linear layers, or networks of two, with the addition to the residual stream and the layer
//! norm after them.

use narthex_graph::{Attribute, Graph, Node, graph::MICROSOFT, patch::Patch, replacement::Replacement};
use narthex_kernels::Activation;

use super::residual::{ACTIVATION, DOWN, EPSILON, RESIDUAL_MLP, UP, activation_number};
use crate::operators::{
    DOMAIN,
    linear::{WEIGHTS, is_plain_linear},
    links::Links,
};

/// Replaces layers whose sum with the residual stream is normalised.
pub(in crate::operators) fn merge_residuals(graph: &mut Graph) {
    let links = Links::of(graph);
    let patches: Vec<Patch> = graph.nodes.iter().filter_map(|norm| merged(&links, norm)).collect();
    // The patches replace different nodes, because each value that they merge is read once.
    let _ = graph.apply(&patches);
}

/// Returns the patch for a norm.
///
/// ```text
/// residual ─────────────────────────────────────────┐
/// x ── (Linear ── activation) ── Linear ── SkipLayerNormalization
/// ```
fn merged(links: &Links<'_>, norm: &Node) -> Option<Patch> {
    let is_norm = norm.op == "SkipLayerNormalization" && norm.domain == MICROSOFT;
    // The first output is the norm. The fifth input would be a bias of the sum.
    let only_norm = norm.outputs.iter().skip(1).all(String::is_empty) && norm.input(4).is_none();
    let [residual, gain, bias] = [norm.input(0)?, norm.input(2)?, norm.input(3)?];
    // A constant branch may have fewer rows than the stream.
    if !is_norm || !only_norm || !links.producers.contains_key(residual) {
        return None;
    }

    let down = linear(links, norm.input(1)?)?;
    let mut replacement = Replacement::of(norm);
    replacement.takes_over(down);
    let mut attributes = vec![(DOWN.to_owned(), down.attribute(WEIGHTS)?.clone())];
    attributes.extend(norm.attributes.iter().filter(|(name, _)| name == EPSILON).cloned());
    let mut x = down.input(0)?;
    let first = links.producer(x, 1).and_then(|node| {
        let number = activation_number(activation(node)?)?;
        Some((linear(links, node.input(0)?)?, node, number))
    });

    if let Some((up, function, number)) = first {
        x = up.input(0)?;
        attributes.push((UP.to_owned(), up.attribute(WEIGHTS)?.clone()));
        attributes.push((ACTIVATION.to_owned(), Attribute::from(number)));
        replacement.takes_over(up);
        replacement.takes_over(function);
    }

    replacement.push(Node {
        name: norm.name.clone(),
        op: RESIDUAL_MLP.to_owned(),
        domain: DOMAIN.to_owned(),
        inputs: [x, residual, gain, bias].map(str::to_owned).to_vec(),
        outputs: vec![norm.outputs.first()?.clone()],
        attributes,
    });
    replacement.patch("compute the layers and the norm with a Narthex kernel")
}

/// Returns the product that computes a value which is read once, if it has no norm of its own.
fn linear<'a>(links: &Links<'a>, value: &str) -> Option<&'a Node> {
    links.producer(value, 1).filter(|node| is_plain_linear(node))
}

/// Returns the activation function that a node computes.
fn activation(node: &Node) -> Option<Activation> {
    if node.inputs.len() != 1 {
        return None;
    }
    match (node.domain.as_str(), node.op.as_str(), node.text("approximate")) {
        ("", "Gelu", None | Some("none")) | (MICROSOFT, "Gelu", None) => Some(Activation::Gelu),
        ("", "Gelu", Some("tanh")) | (MICROSOFT, "FastGelu", None) => Some(Activation::GeluTanh),
        _ if node.is_onnx("Relu") => Some(Activation::Relu),
        _ if node.is_onnx("Tanh") => Some(Activation::Tanh),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use narthex_graph::{Builder, graph::Value};
    use narthex_spec::DType;

    use super::*;
    use crate::operators::linear::LINEAR;

    /// Merges the nodes of a graph, each written as `Operator inputs > output`, and returns the others' and the merged
    /// nodes' operators with the inputs.
    fn merge(nodes: &[&str], outputs: &[&str]) -> Vec<String> {
        let mut graph = Builder::new("g", &[("", 21)]).finish();
        let value = |name: &str| Value { name: name.to_owned(), dtype: DType::F32.into(), shape: Vec::new() };
        graph.inputs.push(value("x"));
        graph.outputs = outputs.iter().map(|name| value(name)).collect();
        for (index, text) in nodes.iter().enumerate() {
            let (read, made) = text.split_once(" > ").unwrap_or_default();
            let mut words = read.split(' ').map(str::to_owned);
            let op = words.next().unwrap_or_default();
            let domain = match op.as_str() {
                LINEAR => DOMAIN,
                "SkipLayerNormalization" | "FastGelu" => MICROSOFT,
                _ => "",
            };
            graph.nodes.push(Node {
                name: format!("/{made}"),
                domain: domain.to_owned(),
                op,
                inputs: words.collect(),
                outputs: vec![made.to_owned()],
                attributes: vec![(WEIGHTS.to_owned(), Attribute::from(index))],
            });
        }
        merge_residuals(&mut graph);
        let nodes = graph.nodes.iter();
        nodes.map(|node| format!("{} {}", node.op, node.inputs.join(" "))).collect()
    }

    #[test]
    fn layers_before_a_norm_are_merged() {
        let sum = "SkipLayerNormalization r d gain bias > y";
        let merged = |nodes: &[&str]| merge(&[&["Sigmoid x > r"], nodes, &[sum]].concat(), &["y"]);
        let two = ["Sigmoid x", "ResidualMlp x r gain bias"];
        assert_eq!(merged(&["Linear x > d"]), two);
        for function in ["Gelu", "FastGelu", "Relu", "Tanh"] {
            assert_eq!(merged(&["Linear x > u", &format!("{function} u > h"), "Linear h > d"]), two);
        }
        // Another function stays, and so does a first layer that others read.
        let found = merged(&["Linear x > u", "Erf u > h", "Linear h > d"]);
        assert_eq!(found[1..], ["Linear x", "Erf u", "ResidualMlp h r gain bias"]);
        let nodes = ["Sigmoid x > r", "Linear x > u", "Gelu u > h", "Linear h > d", sum];
        let found = merge(&nodes, &["y", "u"]);
        assert_eq!(found[1..], ["Linear x", "Gelu u", "ResidualMlp h r gain bias"]);
    }

    #[test]
    fn other_norms_stay() {
        for (nodes, outputs) in [
            (["Sigmoid x > r", "Linear x > d", "SkipLayerNormalization r d gain bias > y"], ["y", "d"]),
            (["Sigmoid x > r", "MatMul x w > d", "SkipLayerNormalization r d gain bias > y"], ["y", "y"]),
            (["Sigmoid x > r", "Linear x > d", "SkipLayerNormalization w d gain bias > y"], ["y", "r"]),
            (["Sigmoid x > r", "Linear x > d", "SkipLayerNormalization r d gain bias b > y"], ["y", "y"]),
            (["Sigmoid x > r", "Linear x b g > d", "SkipLayerNormalization r d gain bias > y"], ["y", "y"]),
        ] {
            assert!(merge(&nodes, &outputs).iter().all(|node| !node.starts_with("ResidualMlp")), "{nodes:?}");
        }
    }
}
