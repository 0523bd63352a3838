//! Merges several graphs into one: consecutive stages, such as an embedding and a decoder, or the two forms of a
//! decoder as branches.

use std::collections::{BTreeMap, HashMap, HashSet};

use narthex_graph::{Attribute, Graph, Initializer, InitializerData, Node, Value};
use sha2::{Digest, Sha256};

use super::{device_bundle, graphs::remove_constant_inputs, names::BRANCH, refused};
use crate::error::Result;

/// Input of a merged decoder for the embedded tokens.
pub(super) const EMBEDS: &str = "inputs_embeds";

/// Puts an embedding's graph before a decoder that reads its rows.
///
/// # Errors
/// A refusal if the graphs' operator sets differ or the embedding does not have exactly one output.
pub(super) fn prepend_embedding(embedding: Graph, decoder: Graph) -> Result<Graph> {
    let [output] = &embedding.outputs[..] else {
        return Err(refused("outputs of the embedding's graph", "one", embedding.outputs.len()));
    };
    let given = BTreeMap::from([(output.name.clone(), EMBEDS.to_owned())]);
    chain_stages([(embedding, &given), (decoder, &BTreeMap::new())])
}

/// Merges consecutive stages. Each stage is passed with new names for its outputs, under which later stages read them.
/// Inputs that no stage produces and outputs that no stage reads become those of the merged graph.
///
/// # Errors
/// A refusal if the graphs' operator sets differ.
pub(super) fn chain_stages<'a>(
    stages: impl IntoIterator<Item = (Graph, &'a BTreeMap<String, String>)>,
) -> Result<Graph> {
    let mut whole = Graph::default();
    let mut taken: HashSet<String> = HashSet::new();
    for (index, (mut stage, renamed)) in stages.into_iter().enumerate() {
        remove_constant_inputs(&mut stage);
        let bound = device_bundle::values(&stage);
        add_aliases(&mut stage, renamed, &bound);
        let inputs = names(&stage.inputs);
        let outputs = names(&stage.outputs);
        // Different stages may use the same internal names.
        rename(&mut stage, &|name| match name {
            name if inputs.contains(name) || bound.contains(name) => name.to_owned(),
            name if outputs.contains(name) => renamed.get(name).cloned().unwrap_or_else(|| name.to_owned()),
            name => format!("{index}/{name}"),
        });
        opsets(&mut whole, &stage)?;
        // The types and fixed shapes of a context's inputs and outputs are only known from their declarations.
        let declared = stage.inputs.iter().chain(&stage.outputs).chain(&stage.values);
        for value in declared.filter(|value| bound.contains(&value.name)) {
            if whole.values.iter().all(|known| known.name != value.name) {
                whole.values.push(value.clone());
            }
        }

        let available = names(&whole.outputs);
        taken.extend(inputs.intersection(&available).cloned());
        let mut known = names(&whole.inputs);
        known.extend(available);
        whole.inputs.extend(stage.inputs.into_iter().filter(|input| !known.contains(&input.name)));
        whole.outputs.extend(stage.outputs);
        whole.unranked.extend(stage.unranked);
        whole.initializers.extend(stage.initializers);
        whole.nodes.extend(stage.nodes);
        whole.unread.extend(stage.unread);
    }

    whole.outputs.retain(|output| !taken.contains(&output.name));
    Ok(whole)
}

/// Adds new names for the outputs of compiled contexts, whose own names must stay.
fn add_aliases(stage: &mut Graph, renamed: &BTreeMap<String, String>, bound: &HashSet<String>) {
    for output in stage.outputs.iter_mut().filter(|output| bound.contains(&output.name)) {
        let Some(new) = renamed.get(&output.name).filter(|new| **new != output.name) else { continue };
        stage.values.push(output.clone());
        stage.nodes.push(Node {
            name: format!("/renamed/{new}"),
            op: "Identity".to_owned(),
            domain: String::new(),
            inputs: vec![std::mem::replace(&mut output.name, new.clone())],
            outputs: vec![new.clone()],
            attributes: Vec::new(),
        });
    }
}

/// Merges two graphs of a decoder: `first` for the beginning of a sequence, `next` for steps with a past. Constants in
/// both are stored once.
///
/// ```text
/// use_cache_branch ── If ─┬─ then: next ──┬─ logits, presents
///                         └─ else: first ─┘
/// ```
///
/// # Errors
/// A refusal if the graphs' operator sets or outputs differ.
pub(super) fn merge_branches(mut first: Graph, mut next: Graph) -> Result<Graph> {
    opsets(&mut first, &next)?;
    let outputs: Vec<_> = next.outputs.clone();
    if names(&first.outputs) != names(&next.outputs) {
        return Err(refused("outputs of the two decoders", "the same", "others"));
    }

    let mut whole = Graph {
        name: next.name.clone(),
        opsets: first.opsets.clone(),
        inputs: next.inputs.clone(),
        outputs: outputs.clone(),
        unranked: next.unranked.clone(),
        unread: first.unread.drain(..).chain(next.unread.drain(..)).collect(),
        ..Graph::default()
    };

    let branch = Value {
        name: BRANCH.to_owned(),
        dtype: narthex_spec::DType::Bool.into(),
        shape: vec![1_usize.into()],
    };
    whole.inputs.push(branch);
    let mut bodies = BranchBodies { constants: HashMap::new(), kept: Vec::new(), outputs: &outputs };
    let then = bodies.body(next, "next/");
    let otherwise = bodies.body(first, "first/");
    whole.initializers = bodies.kept;
    whole.nodes.push(Node {
        name: "/branches/If".to_owned(),
        op: "If".to_owned(),
        domain: String::new(),
        inputs: vec![BRANCH.to_owned()],
        outputs: outputs.into_iter().map(|output| output.name).collect(),
        attributes: vec![("then_branch".to_owned(), then), ("else_branch".to_owned(), otherwise)],
    });
    Ok(whole)
}

/// Collects graphs as the bodies of one node.
struct BranchBodies<'a> {
    /// Names of the constants in the outer graph.
    constants: HashMap<ConstantKey, String>,
    /// Constants of the outer graph.
    kept: Vec<Initializer>,
    /// Outputs of every body, in order.
    outputs: &'a [Value],
}

impl BranchBodies<'_> {
    /// Turns a graph into a body. The names of its own values get a prefix; its inputs are values of the outer graph.
    fn body(&mut self, mut graph: Graph, prefix: &str) -> Attribute {
        let mut shared = HashMap::new();
        for mut constant in graph.initializers.drain(..) {
            let old = constant.name.clone();
            let name = self.constants.entry(key(&constant)).or_insert_with(|| {
                constant.name = format!("{prefix}{old}");
                self.kept.push(constant.clone());
                constant.name.clone()
            });
            shared.insert(old, name.clone());
        }
        let inputs: HashSet<String> = graph.inputs.drain(..).map(|input| input.name).collect();
        graph.outputs = self
            .outputs
            .iter()
            .filter_map(|wanted| graph.outputs.iter().find(|output| output.name == wanted.name).cloned())
            .collect();
        rename(&mut graph, &|name| match shared.get(name) {
            Some(constant) => constant.clone(),
            None if inputs.contains(name) => name.to_owned(),
            None => format!("{prefix}{name}"),
        });
        graph.opsets.clear();
        graph.values.clear();
        Attribute::Graph(Box::new(graph))
    }
}

/// Identity of a constant: type, shape, and the digest of its elements or their location in a data file.
type ConstantKey = (i32, Vec<usize>, Vec<u8>, String);

fn key(constant: &Initializer) -> ConstantKey {
    let (bytes, place) = match &constant.data {
        InitializerData::Inline(bytes) => (Sha256::digest(&bytes[..]).to_vec(), String::new()),
        InitializerData::External { file, offset, length } => {
            (Vec::new(), format!("{file}\0{offset}\0{length}"))
        }
    };
    (constant.dtype.code(), constant.shape.clone(), bytes, place)
}

/// ONNX operators whose semantics or form changed after version 13 of the operator set.
const CHANGED: &str = "
    AveragePool BatchNormalization DFT GridSample GroupNormalization ReduceL1 ReduceL2 ReduceLogSum
    ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare Resize Split";

/// Merges the operator sets of two graphs. Different versions are accepted if the newer one does not change the meaning
/// of the older graph's nodes.
fn opsets(into: &mut Graph, other: &Graph) -> Result<()> {
    for (domain, version) in &other.opsets {
        let Some(at) = into.opsets.iter().position(|(known, _)| known == domain) else {
            into.opsets.push((domain.clone(), *version));
            continue;
        };
        let known = into.opsets[at].1;
        if known == *version || !uses(other, domain) {
            continue;
        }

        let mut same = domain.is_empty() && known.min(*version) >= 13;
        let older = if known < *version { &*into } else { other };
        older.for_each_node(&mut |node| {
            same &= !node.domain.is_empty() || CHANGED.split_ascii_whitespace().all(|op| op != node.op);
        });
        if !uses(into, domain) {
            into.opsets[at].1 = *version;
        } else if same {
            into.opsets[at].1 = known.max(*version);
        } else {
            let what = "operator sets of the model's graphs";
            return Err(refused(what, format!("{known} in all of them"), version));
        }
    }
    Ok(())
}

/// Returns whether a graph has an operator of `domain`.
fn uses(graph: &Graph, domain: &str) -> bool {
    graph.nodes.iter().any(|node| node.domain == domain)
}

fn names(values: &[Value]) -> HashSet<String> {
    values.iter().map(|value| value.name.clone()).collect()
}

/// Renames every value of a graph, including those in the bodies of its nodes.
fn rename(graph: &mut Graph, new: &dyn Fn(&str) -> String) {
    for (_, attribute) in graph.nodes.iter_mut().flat_map(|node| &mut node.attributes) {
        if let Attribute::Graph(body) = attribute {
            rename(body, new);
        }
    }

    let values = graph.inputs.iter_mut().chain(&mut graph.outputs).chain(&mut graph.values);
    let names = values.map(|value| &mut value.name);
    let constants = graph.initializers.iter_mut().map(|constant| &mut constant.name);
    let operands = graph.nodes.iter_mut().flat_map(|node| node.inputs.iter_mut().chain(&mut node.outputs));
    for name in names.chain(constants).chain(&mut graph.unranked).chain(operands) {
        if !name.is_empty() {
            *name = new(name);
        }
    }
}
