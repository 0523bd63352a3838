//! Several graphs as one: stages one behind another, such as an embedding before a decoder, and the two forms of a decoder
//! as branches.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use narthex_graph::{Attribute, Graph, Initializer, InitializerData, Node, Value};

use super::{bound, decoder::BRANCH, nodes, refused};
use crate::error::CompileError;

/// What a merged decoder reads in the place of its tokens' rows.
pub(super) const EMBEDS: &str = "inputs_embeds";

/// Puts a graph that embeds tokens before a decoder that takes their rows.
///
/// # Errors
/// A refusal where the graphs' operator sets differ or the embedding gives no one value.
pub(super) fn embedded(embedding: Graph, decoder: Graph) -> Result<Graph, CompileError> {
    let [output] = &embedding.outputs[..] else {
        return Err(refused("outputs of the embedding's graph", "one", embedding.outputs.len()));
    };
    let given = BTreeMap::from([(output.name.clone(), EMBEDS.to_owned())]);
    chained([(embedding, &given), (decoder, &BTreeMap::new())])
}

/// One graph of stages that run one behind another: what a stage gives under a name, or under the new name that stands with
/// it, later ones take by it. Inputs that nothing gives are the whole's, as are outputs that nothing takes.
///
/// # Errors
/// A refusal where the graphs' operator sets differ.
pub(super) fn chained<'a>(
    stages: impl IntoIterator<Item = (Graph, &'a BTreeMap<String, String>)>,
) -> Result<Graph, CompileError> {
    let mut whole = Graph::default();
    let mut taken: HashSet<String> = HashSet::new();
    for (index, (mut stage, renamed)) in stages.into_iter().enumerate() {
        constants_are_no_inputs(&mut stage);
        let bound = bound::values(&stage);
        aliased(&mut stage, renamed, &bound);
        let inputs: HashSet<String> = stage.inputs.iter().map(|input| input.name.clone()).collect();
        let outputs: HashSet<String> = stage.outputs.iter().map(|output| output.name.clone()).collect();
        // Inside, stages may use the same names.
        rename(&mut stage, &|name| match name {
            name if inputs.contains(name) || bound.contains(name) => name.to_owned(),
            name if outputs.contains(name) => renamed.get(name).cloned().unwrap_or_else(|| name.to_owned()),
            name => format!("{index}/{name}"),
        });
        opsets(&mut whole, &stage)?;
        // Of what a context takes and gives only its declaration tells the type and the fixed shape.
        let declared = stage.inputs.iter().chain(&stage.outputs).chain(&stage.values);
        for value in declared.filter(|value| bound.contains(&value.name)) {
            if whole.values.iter().all(|known| known.name != value.name) {
                whole.values.push(value.clone());
            }
        }
        let given = |name: &str| whole.outputs.iter().any(|output| output.name == name);
        taken.extend(inputs.iter().filter(|name| given(name)).cloned());
        stage.inputs.retain(|input| !given(&input.name));
        let known: HashSet<String> = whole.inputs.iter().map(|input| input.name.clone()).collect();
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

/// Gives what a compiled context gives under another name beside its own.
fn aliased(stage: &mut Graph, renamed: &BTreeMap<String, String>, bound: &HashSet<String>) {
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

/// Old files list constants among the inputs.
pub(super) fn constants_are_no_inputs(graph: &mut Graph) {
    let constants: HashSet<&str> = graph.initializers.iter().map(|constant| constant.name.as_str()).collect();
    graph.inputs.retain(|input| !constants.contains(input.name.as_str()));
}

/// One decoder of two graphs: `first` for the beginning of a sequence, `next` after a past. Constants that both have are
/// kept once.
///
/// ```text
/// use_cache_branch ── If ─┬─ then: next ──┬─ logits, presents
///                         └─ else: first ─┘
/// ```
///
/// # Errors
/// A refusal where the graphs' operator sets or outputs differ.
pub(super) fn branches(mut first: Graph, mut next: Graph) -> Result<Graph, CompileError> {
    opsets(&mut first, &next)?;
    let outputs: Vec<_> = next.outputs.clone();
    let names =
        |graph: &Graph| graph.outputs.iter().map(|output| output.name.clone()).collect::<BTreeSet<_>>();
    if names(&first) != names(&next) {
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
    let mut bodies = Bodies { constants: HashMap::new(), kept: Vec::new(), outputs: &outputs };
    let (then, otherwise) = (bodies.body(next, "next/"), bodies.body(first, "first/"));
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

/// Graphs on their way to become bodies of one node.
struct Bodies<'a> {
    /// Names of the constants that were kept.
    constants: HashMap<Key, String>,
    /// Constants for the graph around.
    kept: Vec<Initializer>,
    /// What every body gives, in order.
    outputs: &'a [Value],
}

impl Bodies<'_> {
    /// A graph as a body whose own values have names that begin with `prefix`; its inputs are values around it.
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
        let given = |wanted: &Value| graph.outputs.iter().find(|output| output.name == wanted.name).cloned();
        graph.outputs = self.outputs.iter().filter_map(given).collect();
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

/// What tells constants apart: type, shape and, inside the model, the elements; in a data file, the name, which an exporter
/// gives alike in both graphs, and the place of its bytes.
type Key = (i32, Vec<usize>, Vec<u8>, String);

fn key(constant: &Initializer) -> Key {
    let (bytes, place) = match &constant.data {
        InitializerData::Inline(bytes) => (digest(bytes), String::new()),
        InitializerData::External { file, offset, length } => {
            (Vec::new(), format!("{file}\0{offset}\0{length}"))
        }
    };
    (constant.dtype.code(), constant.shape.clone(), bytes, place)
}

fn digest(bytes: &[u8]) -> Vec<u8> {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).to_vec()
}

/// ONNX's operators whose meaning or form changed after version 13 of its operator set.
const CHANGED: [&str; 16] = [
    "AveragePool",
    "BatchNormalization",
    "DFT",
    "GridSample",
    "GroupNormalization",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
    "Resize",
    "Split",
];

/// Joins the operator sets of two graphs: the same, or the newer one where it means the same for the older graph's nodes.
fn opsets(into: &mut Graph, other: &Graph) -> Result<(), CompileError> {
    for (domain, version) in &other.opsets {
        let Some(at) = into.opsets.iter().position(|(known, _)| known == domain) else {
            into.opsets.push((domain.clone(), *version));
            continue;
        };
        let uses = |graph: &Graph| graph.nodes.iter().any(|node| node.domain == *domain);
        let known = into.opsets[at].1;
        if known == *version || !uses(other) {
            continue;
        }
        let mut same = domain.is_empty() && known.min(*version) >= 13;
        nodes(if known < *version { into } else { other }, &mut |node| {
            same &= !node.domain.is_empty() || !CHANGED.contains(&node.op.as_str());
        });
        if uses(into) && !same {
            let what = "operator sets of the model's graphs";
            return Err(refused(what, format!("{known} in all of them"), version));
        }
        into.opsets[at].1 = if uses(into) { known.max(*version) } else { *version };
    }
    Ok(())
}

/// Gives every value of a graph another name, in the bodies of its nodes too.
fn rename(graph: &mut Graph, new: &dyn Fn(&str) -> String) {
    let named = |name: &mut String| {
        if !name.is_empty() {
            *name = new(name);
        }
    };
    let values = graph.inputs.iter_mut().chain(&mut graph.outputs).chain(&mut graph.values);
    values.for_each(|value| named(&mut value.name));
    graph.initializers.iter_mut().for_each(|constant| named(&mut constant.name));
    graph.unranked.iter_mut().for_each(named);
    for node in &mut graph.nodes {
        node.inputs.iter_mut().chain(&mut node.outputs).for_each(named);
        for (_, attribute) in &mut node.attributes {
            if let Attribute::Graph(body) = attribute {
                rename(body, new);
            }
        }
    }
}
