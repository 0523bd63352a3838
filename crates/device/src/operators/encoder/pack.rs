//! A graph pass that removes padding: the texts of a batch are packed, with the rows of all tokens one after the other
//! in a batch of one.
//!
//! Operators that compute row by row need no change. Attention and pooling, which know texts, become operators of
//! Narthex that read the offsets of the texts from a new input. The pass follows the rows from the inputs on, and
//! changes nothing if they reach any other operator.

use std::{
    collections::{HashMap, HashSet},
    ffi::CStr,
};

use narthex_graph::{
    Element, Graph, Node, graph::MICROSOFT, graph::Value, patch::Patch, replacement::Replacement,
};
use narthex_spec::{DType, dtype::Dim};

use super::{
    attention::BIDIRECTIONAL_ATTENTION,
    attention_nodes::PaddedGraph,
    pooling::POOL_ROWS,
    projections::{PROJECTIONS, WEIGHTS as PROJECTION_WEIGHTS},
    residual::RESIDUAL_MLP,
};
use crate::operators::{
    DOMAIN,
    constants::SmallConstants,
    gated::GATED_MLP,
    linear::{LINEAR, WEIGHTS, is_plain_linear},
    links::Links,
};

/// Name of the new input, `[texts + 1]`: the index of each text's first row, and the number of rows.
pub(crate) const ROW_OFFSETS: &CStr = c"narthex.row_offsets";

fn offsets_name() -> String {
    ROW_OFFSETS.to_string_lossy().into_owned()
}

/// Inputs of a graph for padded texts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PaddedInputs<'a> {
    /// Inputs with a row or a number for each token, `[batch, sequence, width]` or `[batch, sequence]`.
    pub(crate) rows: &'a [&'a str],
    /// Input with 1 for each token and 0 for padding, `[batch, sequence]`.
    pub(crate) mask: &'a str,
    /// Input with the indices of rows whose results are requested, `[rows]`.
    pub(crate) requested: Option<&'a str>,
}

/// Changes a graph to packed texts. Indices of requested rows, and rows that the graph returns for each token, then
/// also refer to packed rows.
///
/// # Errors
/// The reason for which the graph was not changed.
pub(in crate::operators) fn pack(graph: &mut Graph, inputs: PaddedInputs<'_>) -> Result<(), String> {
    if !graph.unread.is_empty() {
        return Err("parts of the file cannot be written back".to_owned());
    }
    let mut packed = graph.clone();
    replace(&mut packed, inputs)?;
    packed.sort_nodes();
    PackedRows::check(&packed, inputs)?;
    group_projections(&mut packed);
    remove_unread_nodes(&mut packed);
    declare(&mut packed, inputs);
    *graph = packed;
    Ok(())
}

/// Replaces attention and pooling.
fn replace(graph: &mut Graph, inputs: PaddedInputs<'_>) -> Result<(), String> {
    let padded = PaddedGraph {
        links: Links::of(graph),
        constants: SmallConstants::of(graph),
        mask: inputs.mask,
        offsets: &offsets_name(),
    };
    let attention: Vec<Patch> = graph.nodes.iter().filter_map(|node| padded.attention(node)).collect();
    let softmax = graph.nodes.iter().filter(|node| node.op == "Softmax").count();
    if attention.is_empty() || attention.len() != softmax {
        return Err(format!("{} of {softmax} nodes with a softmax are attention", attention.len()));
    }
    let pooling = graph.nodes.iter().filter_map(|node| padded.pooling(node));
    let patches: Vec<Patch> = attention.into_iter().chain(pooling).collect();
    graph.apply(&patches).map_err(|error| error.to_string())
}

/// Values of a graph that have a row for each token.
struct PackedRows<'a> {
    rows: HashSet<&'a str>,
    /// Rows without the axis of texts, `[tokens, width]`.
    flat: HashSet<&'a str>,
    /// Ranks of constants, and of conversions of constants.
    fixed: HashMap<&'a str, usize>,
    requested: Option<&'a str>,
}

impl<'a> PackedRows<'a> {
    /// Fails if rows reach a node that does not compute row by row.
    fn check(graph: &'a Graph, inputs: PaddedInputs<'a>) -> Result<(), String> {
        let constants = SmallConstants::of(graph);
        let names = graph.initializers.iter().map(|constant| constant.name.as_str());
        let fixed = names.filter_map(|name| Some((name, constants.rank(name)?))).collect();
        let rows = inputs.rows.iter().copied().collect();
        let mut packed = Self { rows, flat: HashSet::new(), fixed, requested: inputs.requested };
        match graph.nodes.iter().find(|node| !packed.follow(node)) {
            Some(node) => Err(format!("{} does not compute row by row", node.path())),
            None => Ok(()),
        }
    }

    /// Adds the outputs of a node that have a row for each token. Returns false if the node does not compute row by row.
    fn follow(&mut self, node: &'a Node) -> bool {
        let outputs = node.outputs.iter().map(String::as_str).filter(|name| !name.is_empty());
        let mut reads = 0;
        let mut reads_flat = 0;
        node.for_each_read(&mut |name| {
            reads += usize::from(self.rows.contains(name));
            reads_flat += usize::from(self.flat.contains(name));
        });

        let is_kernel = node.domain == DOMAIN;
        let needs_rows = is_kernel && matches!(node.op.as_str(), BIDIRECTIONAL_ATTENTION | POOL_ROWS);
        if reads_flat > 0 {
            let gathers = node.is_onnx("Gather") && node.int("axis").unwrap_or(0) == 0;
            let requested = node.input(0).is_some_and(|name| self.flat.contains(name))
                && self.requested.is_some()
                && node.input(1) == self.requested;
            return gathers && requested && reads_flat == 1 && reads == 0;
        }
        if reads == 0 && !needs_rows {
            if let Some(rank) = self.fixed_rank(node) {
                self.fixed.extend(outputs.map(|name| (name, rank)));
            }
            return true;
        }
        if is_kernel && node.op == POOL_ROWS && reads == 1 && self.is_row(node, 0) {
            return true;
        }
        // Requested rows are selected from rows without the axis of texts.
        if node.is_onnx("Reshape") && reads == 1 && self.requested.is_some() && self.is_row(node, 0) {
            self.flat.extend(outputs);
            return true;
        }

        let is_row_wise = self.is_row_wise(node);
        if is_row_wise {
            self.rows.extend(outputs);
        }
        is_row_wise
    }

    fn is_row(&self, node: &Node, input: usize) -> bool {
        node.input(input).is_some_and(|name| self.rows.contains(name))
    }

    /// Returns the rank of the outputs of a node that converts a constant.
    fn fixed_rank(&self, node: &Node) -> Option<usize> {
        let converts = node.domain.is_empty() && matches!(node.op.as_str(), "Cast" | "Identity");
        self.fixed.get(node.input(0)?).copied().filter(|_| converts)
    }

    /// Returns the rank of an input that is a constant.
    fn rank(&self, node: &Node, input: usize) -> Option<usize> {
        self.fixed.get(node.input(input)?).copied()
    }

    /// Returns whether the first `count` inputs are rows, and all others constants or absent.
    fn are_rows(&self, node: &Node, count: usize) -> bool {
        (0..count).all(|input| self.is_row(node, input))
            && (count..node.inputs.len())
                .all(|input| node.input(input).is_none() || self.rank(node, input).is_some())
    }

    /// Returns whether each row of a node's outputs depends on the rows at the same place only.
    fn is_row_wise(&self, node: &Node) -> bool {
        match (node.domain.as_str(), node.op.as_str()) {
            (DOMAIN, LINEAR | GATED_MLP) => self.are_rows(node, node.inputs.len().min(2)),
            (DOMAIN, BIDIRECTIONAL_ATTENTION) => (0..3).all(|input| self.is_row(node, input)),
            (MICROSOFT, "MatMulNBits") => self.are_rows(node, 1),
            (DOMAIN, RESIDUAL_MLP)
            | (MICROSOFT, "RotaryEmbedding")
            | (MICROSOFT, "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization") => {
                self.are_rows(node, 2)
            }
            ("", "MatMul") => self.is_row(node, 0) && self.rank(node, 1) == Some(2),
            ("", "LayerNormalization" | "SimplifiedLayerNormalization") => {
                matches!(node.int("axis"), None | Some(-1 | 2)) && self.are_rows(node, 1)
            }
            ("", "Gelu" | "Relu" | "Tanh" | "Sigmoid" | "Identity") => self.is_row(node, 0),
            ("", "Add" | "Sub" | "Mul" | "Div") => (0..2).all(|input| {
                self.is_row(node, input) || self.rank(node, input).is_some_and(|rank| rank <= 1)
            }),
            _ => false,
        }
    }
}

/// Replaces the projections of attention that read the same rows by one node.
fn group_projections(graph: &mut Graph) {
    let links = Links::of(graph);
    let patches: Vec<Patch> = graph
        .nodes
        .iter()
        .filter(|node| node.op == BIDIRECTIONAL_ATTENTION && node.domain == DOMAIN)
        .filter_map(|attention| {
            let [query, key, value] = [0, 1, 2]
                .map(|input| links.producer(attention.input(input)?, 1).filter(|node| is_plain_linear(node)));
            let nodes = [query?, key?, value?];
            let same_rows = nodes.iter().all(|node| node.input(0) == nodes[0].input(0));
            let mut replacement = Replacement::of(nodes[0]);
            let mut attributes = Vec::new();
            for (name, node) in PROJECTION_WEIGHTS.into_iter().zip(nodes) {
                attributes.push((name.to_owned(), node.attribute(WEIGHTS)?.clone()));
            }
            nodes[1..].iter().for_each(|node| replacement.takes_over(node));
            replacement.push(Node {
                name: nodes[0].name.clone(),
                op: PROJECTIONS.to_owned(),
                domain: DOMAIN.to_owned(),
                inputs: nodes[0].inputs.clone(),
                outputs: nodes.iter().flat_map(|node| &node.outputs).cloned().collect(),
                attributes,
            });
            replacement.patch("compute the projections with a Narthex kernel").filter(|_| same_rows)
        })
        .collect();

    // The patches replace different nodes, because each value that they merge is read once.
    let _ = graph.apply(&patches);
}

/// Removes nodes whose outputs nothing reads, such as those that computed scores of padding.
fn remove_unread_nodes(graph: &mut Graph) {
    loop {
        let mut read: HashSet<String> = HashSet::new();
        graph.for_each_read(&mut |name| _ = read.insert(name.to_owned()));
        let before = graph.nodes.len();
        graph.nodes.retain(|node| node.outputs.iter().any(|name| read.contains(name)));
        if graph.nodes.len() == before {
            graph.initializers.retain(|constant| read.contains(&constant.name));
            return;
        }
    }
}

/// Declares the new input, and the shapes of packed rows.
fn declare(graph: &mut Graph, inputs: PaddedInputs<'_>) {
    graph.inputs.push(Value {
        name: offsets_name(),
        dtype: Element::from(DType::I32),
        shape: vec![Dim::Symbol("row_offsets".to_owned())],
    });
    let rows = graph.inputs.iter_mut().filter(|input| inputs.rows.contains(&input.name.as_str()));
    // Of the outputs, only rows of tokens have three axes.
    let outputs = graph.outputs.iter_mut().filter(|output| output.shape.len() == 3);
    for value in rows.chain(outputs) {
        if let [texts, tokens, ..] = &mut value.shape[..] {
            *texts = Dim::Fixed(1);
            *tokens = Dim::Symbol("packed_rows".to_owned());
        }
    }
    // The declared shapes are those of padded texts.
    graph.values.clear();
}

#[cfg(test)]
mod tests {
    use narthex_graph::{Attribute, Builder, Initializer, InitializerData};

    use super::*;

    const INPUTS: PaddedInputs<'_> =
        PaddedInputs { rows: &["x"], mask: "mask", requested: Some("requested") };

    /// Nodes of one layer of attention with two heads of four elements, and a norm. Each is written as
    /// `Operator inputs > output`.
    const LAYER: [&str; 20] = [
        "Cast mask > m",
        "Sub m one > below",
        "Mul below far > least",
        "Unsqueeze least axes12 > scores.mask",
        "MatMul x w > q",
        "MatMul x w > k",
        "MatMul x w > v",
        "Reshape q heads > q.heads",
        "Reshape k heads > k.heads",
        "Reshape v heads > v.heads",
        "Transpose q.heads > q.rows",
        "Transpose k.heads > k.columns",
        "Transpose v.heads > v.rows",
        "Mul q.rows scale > q.scaled",
        "MatMul q.scaled k.columns > scores",
        "Add scores scores.mask > masked",
        "Softmax masked > weights",
        "MatMul weights v.rows > mixed",
        "Transpose mixed > mixed.rows",
        "Reshape mixed.rows flat > attended",
    ];

    const MEAN: [&str; 6] = [
        "LayerNormalization attended gain > n",
        "Unsqueeze m axes2 > m.column",
        "Mul n m.column > n.masked",
        "ReduceSum n.masked axes1 > sum",
        "ReduceSum m.column axes1 > count",
        "Div sum count > y",
    ];

    fn node(text: &str) -> Node {
        let (read, made) = text.split_once(" > ").unwrap_or_default();
        let mut words = read.split(' ').map(str::to_owned);
        let op = words.next().unwrap_or_default();
        let perm = if made == "k.columns" { [0, 2, 3, 1] } else { [0, 2, 1, 3] };
        let attribute = match op.as_str() {
            "Cast" => Some(("to", Attribute::Int(1))),
            "Transpose" => Some(("perm", Attribute::from(perm))),
            "ReduceSum" => Some(("keepdims", Attribute::Int(0))),
            "Gather" if made == "y" && !read.ends_with("requested") => Some(("axis", Attribute::Int(1))),
            LINEAR => Some((WEIGHTS, Attribute::Int(0))),
            _ => None,
        };
        Node {
            name: format!("/{made}"),
            domain: if op == LINEAR { DOMAIN } else { "" }.to_owned(),
            op,
            inputs: words.collect(),
            outputs: vec![made.to_owned()],
            attributes: attribute.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        }
    }

    fn graph(nodes: &[&str]) -> Graph {
        let mut b = Builder::new("g", &[("", 21)]);
        b.input("x", DType::F32, &["batch".into(), "sequence".into(), 8_usize.into()]);
        b.input("mask", DType::I32, &["batch".into(), "sequence".into()]);
        b.input("requested", DType::I64, &["rows".into()]);
        b.output("y", DType::F32, &["batch".into(), 8_usize.into()]);
        let mut graph = b.finish();
        let mut constant = |name: &str, dtype: DType, shape: &[usize], bytes: Vec<u8>| {
            let data = InitializerData::Inline(bytes.into());
            let (name, shape) = (name.to_owned(), shape.to_vec());
            graph.initializers.push(Initializer { name, dtype: dtype.into(), shape, data });
        };
        for (name, value) in [("one", 1f32), ("far", 1e4), ("scale", 0.5)] {
            constant(name, DType::F32, &[], value.to_le_bytes().to_vec());
        }
        constant("w", DType::F32, &[8, 8], vec![0; 256]);
        constant("gain", DType::F32, &[8], vec![0; 32]);
        let ints: [(&str, &[i64]); 6] = [
            ("axes12", &[1, 2]),
            ("axes1", &[1]),
            ("axes2", &[2]),
            ("heads", &[0, 0, 2, 4]),
            ("flat", &[0, 0, 8]),
            ("all", &[-1, 8]),
        ];
        for (name, values) in ints {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            constant(name, DType::I64, &[values.len()], bytes);
        }
        constant("first", DType::I64, &[], vec![0; 8]);
        graph.nodes = nodes.iter().map(|text| node(text)).collect();
        graph
    }

    /// Returns the operators of a packed graph, or the reason for which it was not changed.
    fn packed(nodes: &[&str]) -> Result<(Graph, Vec<String>), String> {
        let mut graph = graph(nodes);
        let before = graph.clone();
        match pack(&mut graph, INPUTS) {
            Ok(()) => {
                let ops = graph.nodes.iter().map(|node| node.op.clone()).collect();
                Ok((graph, ops))
            }
            Err(reason) => {
                assert_eq!(graph, before, "{reason}");
                Err(reason)
            }
        }
    }

    #[test]
    fn attention_and_pooling_read_offsets() -> Result<(), String> {
        let (graph, ops) = packed(&[&LAYER[..], &MEAN].concat())?;
        let attention = BIDIRECTIONAL_ATTENTION;
        assert_eq!(ops, ["MatMul", "MatMul", "MatMul", attention, "LayerNormalization", POOL_ROWS]);
        assert_eq!(graph.nodes[3].inputs, ["q", "k", "v", "narthex.row_offsets"]);
        assert_eq!((graph.nodes[3].int("num_heads"), graph.nodes[3].float("scale")), (Some(2), Some(0.5)));
        assert_eq!(graph.nodes[5].inputs, ["n", "narthex.row_offsets"]);
        assert_eq!(graph.inputs[0].shape[0], Dim::Fixed(1));
        assert_eq!(graph.inputs[3].name, "narthex.row_offsets");
        assert!(graph.initializers.iter().all(|constant| ["w", "gain"].contains(&constant.name.as_str())));
        let (_, ops) = packed(&[&LAYER[..], &["Gather attended first > y"]].concat())?;
        assert_eq!(ops.last().map(String::as_str), Some(POOL_ROWS));
        let rows = ["Reshape attended all > rows", "Gather rows requested > y"];
        let (_, ops) = packed(&[&LAYER[..], &rows].concat())?;
        assert_eq!(ops[3..], [attention, "Reshape", "Gather"]);
        let (graph, _) = packed(&[&LAYER[..], &["Add attended gain > y"]].concat())?;
        assert_eq!(graph.nodes.len(), 5);
        let products = LAYER.map(|text| text.replace("MatMul x w", "Linear x"));
        let products: Vec<&str> = products.iter().map(String::as_str).chain(MEAN).collect();
        let (graph, ops) = packed(&products)?;
        assert_eq!(ops, [PROJECTIONS, attention, "LayerNormalization", POOL_ROWS]);
        assert_eq!((&graph.nodes[0].inputs[..], graph.nodes[0].outputs.len()), (&["x".to_owned()][..], 3));
        Ok(())
    }

    #[test]
    fn other_graphs_stay_as_they_are() {
        let check = |from: &str, to: &[&str], word: &str| {
            let nodes = [&LAYER[..], &MEAN].concat();
            assert!(nodes.contains(&from), "{from}");
            let changed = nodes
                .iter()
                .flat_map(|&text| if text == from { to } else { std::slice::from_ref(&text) }.to_vec());
            let found = packed(&changed.collect::<Vec<_>>()).map(|(_, ops)| ops);
            assert!(found.as_ref().is_err_and(|reason| reason.contains(word)), "{from}: {found:?}");
        };
        // Attention that computes something else.
        let none = "0 of 1 nodes";
        check("Sub m one > below", &["Sub one m > below"], none);
        check("Mul below far > least", &["Mul below scale > least"], none);
        check("Add scores scores.mask > masked", &["Add scores x > masked"], none);
        check("Mul q.rows scale > q.scaled", &["Mul q.rows gain > q.scaled"], none);
        check(
            "Transpose k.heads > k.columns",
            &["Transpose k.heads > k.other", "Relu k.other > k.columns"],
            none,
        );
        check("Reshape mixed.rows flat > attended", &["Reshape mixed.rows all > attended"], none);
        check("Reshape v heads > v.heads", &["Reshape v flat > v.heads"], none);
        check("Softmax masked > weights", &["Softmax masked > weights", "Softmax x > other"], "1 of 2 nodes");
        // Rows that reach other operators.
        let row = "does not compute row by row";
        check("MatMul x w > q", &["MatMul w x > q"], row);
        check("MatMul x w > q", &["Conv x w > q"], row);
        check("LayerNormalization attended gain > n", &["Add attended w > n"], row);
        check("ReduceSum m.column axes1 > count", &["ReduceSum m.column axes2 > count"], row);
        check("Div sum count > y", &["Div sum count > y", "ReduceSum n axes1 > other"], row);
        check("Div sum count > y", &["Div sum count > y", "Gather n requested > other"], row);
        // Attention over something that is not packed.
        check("MatMul x w > q", &["MatMul w w > q"], row);
    }
}
