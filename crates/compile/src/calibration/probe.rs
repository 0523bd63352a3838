//! A graph that measures another graph: the same nodes over the same weights. Its only outputs are statistics of some
//! values: the mean squares of each channel, the second moments of all channels, or the distribution of all elements.
//!
//! This module does not run graphs.

use narthex_graph::{Attribute, Builder, Graph, Node, build::NodeSpec, check::GraphError, element::Element};
use narthex_spec::{DType, dtype::Dim};

use crate::quant::{activations::Binning, scaling::Input};

/// Nodes that measure, to be added to a graph.
struct Measures {
    builder: Builder,
    /// Scope of each measure, and name of the node after which it is computed.
    places: Vec<(String, String)>,
}

/// A node whose result is an output of the probe.
struct MeasuredNode<'a> {
    op: &'a str,
    inputs: &'a [&'a str],
    attributes: &'a [(&'a str, Attribute)],
    output: &'a str,
}

/// Returns the name of the output with an input's statistics.
pub(crate) fn output(input: &Input) -> String {
    format!("mean_square/{}", input.name)
}

/// Returns a probe with one output `[channels]` for each input.
///
/// ```text
/// input [.., channels] ── Mul(itself) ── Reshape[-1, channels] ── ReduceMean(0) ── mean square [channels]
/// ```
///
/// # Errors
/// [`GraphError::Undefined`] if the graph has no node with an input's node name.
pub(crate) fn mean_squares(graph: Graph, inputs: &[Input]) -> Result<Graph, GraphError> {
    let mut measures = Measures::new();
    for input in inputs {
        let output = output(input);
        let node = graph.nodes.iter().find(|node| node.name == input.node);
        let value = node
            .and_then(|node| node.inputs.first())
            .ok_or_else(|| GraphError::Undefined { node: output.clone(), name: input.node.clone() })?;
        measures.mean_squares_of(&output, &input.node, value, input.channels);
    }
    measures.into_probe(graph)
}

/// An input of quantised linear layers whose second moments are measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SharedInput {
    /// Name of the value.
    value: String,
    /// Name of the first node that reads it.
    node: String,
    /// Number of channels.
    pub(crate) channels: usize,
    /// Name of the output with the moments.
    pub(crate) output: String,
    /// The layers that read it.
    pub(crate) layers: Vec<ReadingLayer>,
}

/// A layer that reads a [`SharedInput`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReadingLayer {
    /// Path of the layer.
    pub(crate) path: String,
    /// Name of its node.
    node: String,
    /// Name of its output.
    product: String,
    /// Name of the output of the probe with the mean square of its outputs.
    pub(crate) mean_square: String,
}

impl SharedInput {
    /// Returns the inputs of the layers of a graph that `select` selects by their path.
    pub(crate) fn all(graph: &Graph, select: impl Fn(&str) -> bool) -> Vec<Self> {
        let mut inputs: Vec<Self> = Vec::new();
        for node in graph.nodes.iter().filter(|node| node.op == "MatMulNBits") {
            let path = node.name.strip_suffix("/MatMulNBits").filter(|path| select(path));
            let (Some(path), Some(value), Some(channels)) = (path, node.inputs.first(), node.int("K")) else {
                continue;
            };
            let layer = ReadingLayer {
                path: path.to_owned(),
                node: node.name.clone(),
                product: node.outputs.first().cloned().unwrap_or_default(),
                mean_square: format!("mean_square{path}"),
            };
            match inputs.iter_mut().find(|input| input.value == *value) {
                Some(input) => input.layers.push(layer),
                None => inputs.push(Self {
                    value: value.clone(),
                    node: node.name.clone(),
                    channels: channels as usize,
                    output: format!("moments{path}"),
                    layers: vec![layer],
                }),
            }
        }
        inputs
    }
}

/// Returns a probe with one output `[channels, channels]` for each input, and one `[1]` for each layer.
///
/// ```text
/// x [.., channels] ── Reshape[-1, channels] ─┬─ Transpose ── MatMul ── moments [channels, channels]
///                                            └──────────────┘
/// y ── Mul(itself) ── Reshape[-1, 1] ── ReduceMean(0) ── mean square [1]
/// ```
///
/// # Errors
/// [`GraphError`] if the probe is not a valid graph, which is a defect of Narthex.
pub(crate) fn second_moments(graph: Graph, inputs: &[SharedInput]) -> Result<Graph, GraphError> {
    let mut measures = Measures::new();
    for SharedInput { value, node, channels, output, layers } in inputs {
        let scope = measures.begin(output, node);
        let builder = &mut measures.builder;
        let flat = builder.ints(&[2], &[-1, *channels as i64]);
        let rows = builder.op(&scope, "Reshape", &[value, &flat]);
        let columns = builder.op(&scope, "Transpose", &[&rows]);
        let product = MeasuredNode { op: "MatMul", inputs: &[&columns, &rows], attributes: &[], output };
        measures.add(&scope, product, &[*channels, *channels]);
        measures.outputs_of(layers);
    }
    measures.into_probe(graph)
}

/// Returns a probe with one output `[channels]` for each input, the mean squares of its channels, and one `[1]` for each
/// layer, as [`second_moments`].
///
/// # Errors
/// [`GraphError`] if the probe is not a valid graph, which is a defect of Narthex.
pub(crate) fn channel_squares(graph: Graph, inputs: &[SharedInput]) -> Result<Graph, GraphError> {
    let mut measures = Measures::new();
    for SharedInput { value, node, channels, output, layers } in inputs {
        measures.mean_squares_of(output, node, value, *channels);
        measures.outputs_of(layers);
    }
    measures.into_probe(graph)
}

/// An input of linear layers whose channels are measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MeasuredChannels {
    /// Name of the value.
    pub(crate) value: String,
    /// Name of a node that reads it.
    pub(crate) node: String,
    /// Number of channels.
    pub(crate) channels: usize,
    /// Names of the outputs with its statistics.
    pub(crate) outputs: ChannelOutputs,
}

/// Names of outputs with the statistics of channels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChannelOutputs {
    /// Output with the mean magnitude of each channel.
    pub(crate) magnitudes: String,
    /// Output with the largest magnitude of each channel.
    pub(crate) peaks: String,
    /// Output with the rows of some tokens.
    pub(crate) rows: String,
}

impl ChannelOutputs {
    /// Returns the names for an input of this name.
    pub(crate) fn of(name: &str) -> Self {
        Self {
            magnitudes: format!("magnitudes/{name}"),
            peaks: format!("peaks/{name}"),
            rows: format!("rows/{name}"),
        }
    }

    /// Returns all names.
    pub(crate) fn names(&self) -> [&String; 3] {
        [&self.magnitudes, &self.peaks, &self.rows]
    }
}

/// Returns a probe with the magnitudes of the channels of inputs, and with their rows for some tokens.
///
/// ```text
/// x [.., channels] ── Reshape[-1, channels] ─┬─ Abs ─┬─ ReduceMean(0) ── magnitudes [channels]
///                                            │       └─ ReduceMax(0) ── peaks [channels]
///                                            └─ Gather(tokens) ── rows [tokens, channels]
/// ```
///
/// # Errors
/// [`GraphError`] if the probe is not a valid graph, which is a defect of Narthex.
pub(crate) fn channel_magnitudes(
    graph: Graph,
    inputs: &[MeasuredChannels],
    tokens: &[i64],
) -> Result<Graph, GraphError> {
    let mut measures = Measures::new();
    for MeasuredChannels { value, node, channels, outputs } in inputs {
        let ChannelOutputs { magnitudes, peaks, rows } = outputs;
        let scope = measures.begin(magnitudes, node);
        let flat = measures.builder.ints(&[2], &[-1, *channels as i64]);
        let flattened = measures.builder.op(&scope, "Reshape", &[value, &flat]);
        let sizes = measures.builder.op(&scope, "Abs", &[&flattened]);
        measures.reduced(&scope, "ReduceMean", &sizes, magnitudes, *channels);
        measures.reduced(&scope, "ReduceMax", &sizes, peaks, *channels);
        let indices = measures.builder.ints(&[tokens.len()], tokens);
        let gather = MeasuredNode {
            op: "Gather",
            inputs: &[&flattened, &indices],
            attributes: &[("axis", 0i64.into())],
            output: rows,
        };
        measures.add(&scope, gather, &[tokens.len(), *channels]);
    }
    measures.into_probe(graph)
}

/// Returns the part of a graph that computes one of its outputs.
///
/// # Errors
/// [`GraphError`] if the part is not a valid graph, which is a defect of Narthex.
pub(crate) fn with_one_output(mut graph: Graph, name: &str) -> Result<Graph, GraphError> {
    graph.outputs.retain(|output| output.name == name);
    prune(&mut graph);
    graph.check()?;
    Ok(graph)
}

/// A linear layer whose input and output are measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MeasuredLayer {
    /// Path of the layer: `/layers.3/mlp/up_proj`.
    pub(crate) path: String,
    /// Name of its node.
    node: String,
    /// The values.
    sides: [MeasuredSide; 2],
}

/// The input or the output of a linear layer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MeasuredSide {
    /// Name of the value.
    value: String,
    /// Names of the outputs with its statistics.
    outputs: SideOutputs,
}

/// Names of outputs with the distribution of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SideOutputs {
    /// Output with the smallest element.
    pub(crate) low: String,
    /// Output with the largest element.
    pub(crate) high: String,
    /// Output with the number of elements in each bin.
    pub(crate) counts: String,
}

impl MeasuredLayer {
    /// Returns every quantised linear layer of a graph.
    pub(crate) fn all(graph: &Graph) -> Vec<Self> {
        let products = graph.nodes.iter().filter(|node| node.op == "MatMulNBits");
        products
            .filter_map(|node| {
                let path = node.name.strip_suffix("/MatMulNBits")?;
                let side = |name: &str, value: &String| MeasuredSide {
                    value: value.clone(),
                    outputs: SideOutputs {
                        low: format!("{name}/low{path}"),
                        high: format!("{name}/high{path}"),
                        counts: format!("{name}/counts{path}"),
                    },
                };
                Some(Self {
                    path: path.to_owned(),
                    node: node.name.clone(),
                    sides: [side("input", node.inputs.first()?), side("output", node.outputs.first()?)],
                })
            })
            .collect()
    }

    /// Returns the outputs with the statistics of the input and of the output.
    pub(crate) fn outputs(&self) -> [&SideOutputs; 2] {
        self.sides.each_ref().map(|side| &side.outputs)
    }
}

/// Returns a probe with the distributions of the inputs and outputs of layers.
///
/// ```text
/// x ── Reshape[-1, 1] ─┬─ ReduceMin(0) ── low [1]
///                      ├─ ReduceMax(0) ── high [1]
///                      └─ bin of each element ── ScatterElements(0, 1, add) ── counts [bins]
/// ```
///
/// # Errors
/// [`GraphError`] if the probe is not a valid graph, which is a defect of Narthex.
pub(crate) fn distributions(graph: Graph, layers: &[MeasuredLayer]) -> Result<Graph, GraphError> {
    let mut measures = Measures::new();
    for layer in layers {
        for MeasuredSide { value, outputs: SideOutputs { low, high, counts } } in &layer.sides {
            let scope = measures.begin(counts, &layer.node);
            let column = measures.builder.ints(&[2], &[-1, 1]);
            let flat = measures.builder.op(&scope, "Reshape", &[value, &column]);
            measures.reduced(&scope, "ReduceMin", &flat, low, 1);
            measures.reduced(&scope, "ReduceMax", &flat, high, 1);
            measures.counted(&scope, &flat, counts);
        }
    }
    measures.into_probe(graph)
}

impl Measures {
    fn new() -> Self {
        Self { builder: Builder::new("measures", &[]), places: Vec::new() }
    }

    /// Begins a measure that is computed after a node, and returns the scope of its nodes.
    fn begin(&mut self, name: &str, node: &str) -> String {
        let scope = format!("/{name}");
        self.places.push((format!("{scope}/"), node.to_owned()));
        scope
    }

    /// Adds an output with the mean squares of the channels of a value, after a node.
    fn mean_squares_of(&mut self, output: &str, node: &str, value: &str, channels: usize) {
        let scope = self.begin(output, node);
        let flat = self.builder.ints(&[2], &[-1, channels as i64]);
        let squares = self.builder.op(&scope, "Mul", &[value, value]);
        let squares = self.builder.op(&scope, "Reshape", &[&squares, &flat]);
        self.reduced(&scope, "ReduceMean", &squares, output, channels);
    }

    /// Adds an output for each layer with the mean square of its outputs.
    fn outputs_of(&mut self, layers: &[ReadingLayer]) {
        for ReadingLayer { node, product, mean_square, .. } in layers {
            self.mean_squares_of(mean_square, node, product, 1);
        }
    }

    /// Adds an output with a reduction of each of `columns` columns.
    fn reduced(&mut self, scope: &str, op: &str, x: &str, output: &str, columns: usize) {
        let axes = self.builder.ints(&[1], &[0]);
        let node = MeasuredNode { op, inputs: &[x, &axes], attributes: &[("keepdims", 0i64.into())], output };
        self.add(scope, node, &[columns]);
    }

    /// Adds a node, and makes its result, which has this shape, an output of the probe.
    fn add(&mut self, scope: &str, node: MeasuredNode<'_>, shape: &[usize]) {
        let MeasuredNode { op, inputs, attributes, output } = node;
        let name = format!("{scope}/{op}");
        self.builder.node_to(NodeSpec { name: &name, op, domain: "", inputs, attributes }, &[output]);
        let shape: Vec<Dim> = shape.iter().map(|&extent| Dim::from(extent)).collect();
        self.builder.output(output, DType::F32, &shape);
    }

    /// Adds an output with the number of elements of a column in each bin. Elements that are not a number are in the first
    /// bin.
    fn counted(&mut self, scope: &str, x: &str, output: &str) {
        let Binning { factor, offset, bins } = Binning::STANDARD;
        let b = &mut self.builder;
        let [factor, offset, last, zero, one] =
            [factor, offset, bins as f32 - 1.0, 0.0, 1.0].map(|number| b.scalar(number));
        let at = |part: &str| format!("{scope}/{part}");
        let logarithm = b.op(&at("log"), "Abs", &[x]);
        let logarithm = b.op(&at("log"), "Log", &[&logarithm]);
        let bin = b.op(&at("bin"), "Mul", &[&logarithm, &factor]);
        let bin = b.op(&at("bin"), "Floor", &[&bin]);
        let bin = b.op(&at("bin"), "Add", &[&bin, &offset]);
        let is_within = b.op(&at("within"), "GreaterOrEqual", &[&bin, &zero]);
        let bin = b.op(&at("within"), "Where", &[&is_within, &bin, &zero]);
        let bin = b.op(&at("within"), "Min", &[&bin, &last]);

        let bins_of_sign = b.scalar(bins as f32);
        let is_negative = b.op(&at("sign"), "Less", &[x, &zero]);
        let shift = b.op(&at("sign"), "Where", &[&is_negative, &bins_of_sign, &zero]);
        let bin = b.op(&at("sign"), "Add", &[&bin, &shift]);
        let bin = b.cast(&at("index"), &bin, Element::from(DType::I64));

        let length = b.op(&at("ones"), "Shape", &[x]);
        let ones = b.op(&at("ones"), "Expand", &[&one, &length]);
        let all_bins = b.ints(&[2], &[2 * bins as i64, 1]);
        let zeros = b.op(&at("zeros"), "Expand", &[&zero, &all_bins]);
        let counts = b.op_with(
            &at("counts"),
            "ScatterElements",
            &[&zeros, &bin, &ones],
            &[("axis", 0i64.into()), ("reduction", Attribute::String("add".into()))],
        );
        let vector = b.ints(&[1], &[-1]);
        let reshaped = MeasuredNode { op: "Reshape", inputs: &[&counts, &vector], attributes: &[], output };
        self.add(&at("counts"), reshaped, &[2 * bins]);
    }

    /// Returns a graph with these measures as its only outputs.
    fn into_probe(self, mut graph: Graph) -> Result<Graph, GraphError> {
        let Self { builder, places } = self;
        let measures = builder.finish();
        let known: Vec<String> = graph.initializers.iter().map(|constant| constant.name.clone()).collect();
        graph.initializers.extend(measures.initializers.into_iter().filter(|c| !known.contains(&c.name)));
        graph.nodes = after(graph.nodes, measures.nodes, &places);
        graph.outputs = measures.outputs;
        prune(&mut graph);
        graph.check()?;
        Ok(graph)
    }
}

/// Orders the graph's nodes and the measures: each measure comes directly after the node whose values it measures, so that
/// they can be released early.
fn after(nodes: Vec<Node>, mut measures: Vec<Node>, places: &[(String, String)]) -> Vec<Node> {
    let mut all = Vec::with_capacity(nodes.len() + measures.len());
    for node in nodes {
        let scopes: Vec<&str> =
            places.iter().filter(|(_, place)| *place == node.name).map(|(scope, _)| scope.as_str()).collect();
        all.push(node);
        all.extend(
            measures.extract_if(.., |measure| scopes.iter().any(|scope| measure.name.starts_with(scope))),
        );
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
