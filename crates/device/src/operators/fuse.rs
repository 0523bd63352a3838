//! A graph pass that replaces consecutive nodes with operators of Narthex by one node, a [`Chain`].
//!
//! A chain is a run of nodes in topological order. A node that does not fit may stand between its members if it reads
//! none of their values, directly or through others, or if none of them reads its values. Values that only members read
//! are in buffers, which later values use again.

use std::collections::{HashMap, HashSet};

use narthex_graph::{Attribute, Graph, Node, kv_cache::PRESENT};

use super::{
    DOMAIN,
    cache::{CacheElement, chain_of},
    chain::{CHAIN, Chain, ChainLink},
    encoder::{BIDIRECTIONAL_ATTENTION, POOL_ROWS, PROJECTIONS, RESIDUAL_MLP},
    gated::GATED_MLP,
    linear::LINEAR,
    values::{MAX_ROWS, ValueLocation},
};

/// Maximum number of nodes in a chain, so that the time of the pass grows with the size of the graph only.
const MAX_MEMBERS: usize = 1024;

/// Replaces runs of two or more nodes by chains, and returns these. The nodes of the graph refer to them by index.
pub(super) fn fuse(graph: &mut Graph) -> Vec<Chain> {
    graph.sort_nodes();
    let Some(uses) = Uses::of(graph) else { return Vec::new() };
    let mut chains = Vec::new();
    let mut nodes = HashMap::new();
    for mut run in runs(graph, &uses) {
        while !run.is_empty() {
            let rest = run.split_off(uses.longest(&run));
            if let &[_, .., last] = run.as_slice() {
                let (chain, node) = uses.chain(&run, chains.len());
                chains.push(chain);
                nodes.extend(run.iter().map(|&at| (at, None)));
                nodes.insert(last, Some(node));
            }
            run = rest;
        }
    }
    let old = std::mem::take(&mut graph.nodes).into_iter().enumerate();
    graph.nodes = old.filter_map(|(at, node)| nodes.remove(&at).unwrap_or(Some(node))).collect();
    // Nodes that read a chain's values may have been between its members.
    graph.sort_nodes();
    chains
}

/// Returns whether a node has an operator that may be a member of a chain.
fn is_member(node: &Node) -> bool {
    let is_row_operator = matches!(
        node.op.as_str(),
        LINEAR | GATED_MLP | RESIDUAL_MLP | PROJECTIONS | BIDIRECTIONAL_ATTENTION | POOL_ROWS
    );
    node.domain == DOMAIN && (is_row_operator || attends(node))
}

fn reads_any(node: &Node, values: &HashSet<&str>) -> bool {
    let mut any = false;
    node.for_each_read(&mut |name| any |= values.contains(name));
    any
}

fn attends(node: &Node) -> bool {
    node.domain == DOMAIN && chain_of(&node.op).is_some()
}

/// Returns whether the output with this index is a cache.
fn is_cache(node: &Node, index: usize) -> bool {
    attends(node) && PRESENT.contains(&index)
}

/// Returns the positions of nodes that can be members of one chain, for each chain.
fn runs<'a>(graph: &'a Graph, uses: &Uses<'a>) -> Vec<Vec<usize>> {
    let mut runs: Vec<Vec<usize>> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut attention: Option<&str> = None;
    // Values of the members, and values that depend on them and come from other nodes.
    let (mut members, mut dependent): (HashSet<&str>, HashSet<&str>) = Default::default();
    for (at, node) in graph.nodes.iter().enumerate() {
        let outputs = node.outputs.iter().map(String::as_str).filter(|name| !name.is_empty());
        let depends = reads_any(node, &dependent);
        if is_member(node) && uses.permit(node) {
            let other_cache = attends(node) && attention.is_some_and(|op| op != node.op);
            if depends || other_cache || open.len() == MAX_MEMBERS {
                runs.push(std::mem::take(&mut open));
                (members, dependent, attention) = Default::default();
            }
            attention = attention.or_else(|| attends(node).then_some(node.op.as_str()));
            open.push(at);
            members.extend(outputs);
        } else if depends || reads_any(node, &members) {
            dependent.extend(outputs);
        }
    }

    runs.push(open);
    runs
}

/// Reads of a graph's values.
struct Uses<'a> {
    nodes: &'a [Node],
    /// Number of reads of each value by nodes, their bodies and the graph's outputs.
    reads: HashMap<&'a str, usize>,
    /// Outputs of the graph.
    returned: HashSet<&'a str>,
}

impl<'a> Uses<'a> {
    /// Returns the reads of a graph. The result is `None` if two values have one name, or if a node reads a value of a
    /// later one.
    fn of(graph: &'a Graph) -> Option<Self> {
        let inputs = graph.inputs.iter().map(|input| input.name.as_str());
        let constants = graph.initializers.iter().map(|constant| constant.name.as_str());
        let given: HashSet<&str> = inputs.chain(constants).collect();
        let made = graph.nodes.iter().flat_map(|node| &node.outputs).filter(|name| !name.is_empty());

        // Values of nodes that come later.
        let mut later: HashSet<&str> = HashSet::new();
        for name in made {
            if given.contains(name.as_str()) || !later.insert(name) {
                return None;
            }
        }

        for node in &graph.nodes {
            let mut is_sorted = true;
            node.for_each_read(&mut |name| is_sorted &= !later.contains(name));
            if !is_sorted {
                return None;
            }
            for name in &node.outputs {
                later.remove(name.as_str());
            }
        }

        let mut reads: HashMap<&str, usize> = HashMap::new();
        graph.for_each_read(&mut |name| *reads.entry(name).or_default() += 1);
        let returned = graph.outputs.iter().map(|output| output.name.as_str()).collect();
        Some(Self { nodes: &graph.nodes, reads, returned })
    }

    /// Returns whether a node may be a member: something reads an output of it, so that its chain has an output, and its
    /// caches, if it has any, are outputs of the graph and nothing else.
    fn permit(&self, node: &Node) -> bool {
        let mut caches = node.outputs.iter().enumerate().filter(|(index, _)| is_cache(node, *index));
        node.outputs.iter().any(|name| !name.is_empty() && self.reads.contains_key(name.as_str()))
            && caches.all(|(_, name)| {
                self.reads.get(name.as_str()) == Some(&1) && self.returned.contains(name.as_str())
            })
    }

    /// Returns the values with rows of `members` that others read, with the number of these reads. Calls `after` after
    /// each member, with the number of values that nodes after it and nodes outside `members` read.
    fn outer_reads(&self, members: &[usize], after: &mut dyn FnMut(usize)) -> HashMap<&'a str, usize> {
        let mut unread: HashMap<&str, usize> = HashMap::new();
        let mut outer = 0;
        for &at in members {
            let node = &self.nodes[at];
            for name in &node.inputs {
                if let Some(count) = unread.get_mut(name.as_str()).filter(|count| **count > 0) {
                    *count -= 1;
                    outer -= usize::from(*count == 0);
                }
            }
            for (index, name) in node.outputs.iter().enumerate() {
                let count = self.reads.get(name.as_str()).copied().unwrap_or(0);
                if !is_cache(node, index) && !name.is_empty() && count > 0 {
                    unread.insert(name, count);
                    outer += 1;
                }
            }
            after(outer);
        }
        unread.retain(|_, count| *count > 0);
        unread
    }

    /// Returns the greatest number of first members for which a chain has enough outputs, and at least 1.
    fn longest(&self, members: &[usize]) -> usize {
        let mut longest = 1;
        let mut length = 0;
        self.outer_reads(members, &mut |outer| {
            length += 1;
            if outer <= MAX_ROWS {
                longest = length;
            }
        });
        longest
    }

    /// Returns the chain of these members, which has the index `index`, and its node.
    fn chain(&self, members: &[usize], index: usize) -> (Chain, Node) {
        let outer = self.outer_reads(members, &mut |_| {});
        let mut last_reads: HashMap<&str, usize> = HashMap::new();
        for &at in members {
            last_reads.extend(self.nodes[at].inputs.iter().map(|name| (name.as_str(), at)));
        }
        let mut layout = Layout::default();
        let links = members.iter().map(|&at| {
            let node = &self.nodes[at];
            let inputs = node.inputs.iter().map(|name| layout.read(name)).collect();
            let outputs = node.outputs.iter().enumerate();
            let outputs = outputs.map(|(index, name)| {
                if is_cache(node, index) {
                    layout.cache(name)
                } else if outer.contains_key(name.as_str()) {
                    layout.output(name)
                } else {
                    layout.buffer(name)
                }
            });
            let outputs: Vec<ValueLocation> = outputs.collect();
            layout.release(node.inputs.iter().chain(&node.outputs), |name: &str| {
                last_reads.get(name).is_some_and(|&last| last > at)
            });
            layout.free.append(&mut layout.unnamed);
            ChainLink { node: node.clone(), inputs, outputs }
        });

        let links: Vec<ChainLink> = links.collect();
        let op = links.iter().find_map(|link| chain_of(&link.node.op)).unwrap_or(f32::CHAIN);
        let name = format!("{DOMAIN}.chain.{index}");
        let mut outputs = layout.rows;
        outputs.resize(MAX_ROWS, String::new());
        outputs.append(&mut layout.caches);
        let node = Node {
            name: name.clone(),
            op: op.to_owned(),
            domain: DOMAIN.to_owned(),
            inputs: layout.inputs,
            outputs,
            attributes: vec![(CHAIN.to_owned(), Attribute::from(index))],
        };
        (Chain { name, links, buffers: layout.buffers }, node)
    }
}

/// Locations of a chain's values.
#[derive(Default)]
struct Layout<'a> {
    /// Names of the chain's inputs.
    inputs: Vec<String>,
    /// Names of its outputs with rows.
    rows: Vec<String>,
    /// Names of its outputs with caches.
    caches: Vec<String>,
    locations: HashMap<&'a str, ValueLocation>,
    /// Number of buffers.
    buffers: usize,
    /// Buffers without a value that is still read.
    free: Vec<usize>,
    /// Buffers of outputs without a name, which nothing reads.
    unnamed: Vec<usize>,
}

impl<'a> Layout<'a> {
    /// Returns the location of an input of a member.
    fn read(&mut self, name: &'a str) -> ValueLocation {
        if name.is_empty() {
            return ValueLocation::Absent;
        }
        *self.locations.entry(name).or_insert_with(|| {
            self.inputs.push(name.to_owned());
            ValueLocation::Input(self.inputs.len() - 1)
        })
    }

    fn cache(&mut self, name: &'a str) -> ValueLocation {
        self.caches.push(name.to_owned());
        ValueLocation::Output(MAX_ROWS + self.caches.len() - 1)
    }

    /// Returns a location for rows that nodes outside the chain read.
    fn output(&mut self, name: &'a str) -> ValueLocation {
        self.rows.push(name.to_owned());
        let location = ValueLocation::Output(self.rows.len() - 1);
        self.locations.insert(name, location);
        location
    }

    /// Returns a location for rows that only members read.
    fn buffer(&mut self, name: &'a str) -> ValueLocation {
        let buffer = self.free.pop().unwrap_or_else(|| {
            self.buffers += 1;
            self.buffers - 1
        });
        match name {
            "" => self.unnamed.push(buffer),
            name => _ = self.locations.insert(name, ValueLocation::Buffer(buffer)),
        }
        ValueLocation::Buffer(buffer)
    }

    /// Releases the buffers of values that no later member reads.
    fn release(&mut self, names: impl Iterator<Item = &'a String>, read_later: impl Fn(&str) -> bool) {
        for name in names {
            if let Some(&ValueLocation::Buffer(buffer)) = self.locations.get(name.as_str())
                && !read_later(name)
            {
                self.locations.remove(name.as_str());
                self.free.push(buffer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use narthex_graph::{Builder, graph::Value};
    use narthex_spec::DType;

    use super::*;

    /// Returns a graph of nodes, each written as `Operator inputs > outputs`. Attention `a` also reads the cache `a.k`
    /// and returns `a.k2`. Other operators than Narthex's are in the domain of ONNX.
    fn graph(nodes: &[&str], outputs: &[&str]) -> Graph {
        let mut graph = Builder::new("g", &[("", 21), (DOMAIN, 1)]).finish();
        let value = |name: &str| Value { name: name.to_owned(), dtype: DType::F32.into(), shape: Vec::new() };
        graph.inputs.push(value("x"));
        graph.outputs = outputs.iter().map(|name| value(name)).collect();
        for text in nodes {
            let (read, made) = text.split_once('>').unwrap_or_default();
            let words = |text: &str| text.split_whitespace().map(|name| name.replace('-', "")).collect();
            let (mut inputs, mut made): (Vec<String>, Vec<String>) = (words(read), words(made));
            let op = inputs.remove(0);
            let own = matches!(op.as_str(), LINEAR | GATED_MLP) || op.ends_with("Attention");
            if op.ends_with("Attention") {
                let name = made[0].clone();
                inputs.extend([format!("{name}.k"), format!("{name}.v")]);
                graph.inputs.extend([value(&format!("{name}.k")), value(&format!("{name}.v"))]);
                for cache in [format!("{name}.k2"), format!("{name}.v2")] {
                    graph.outputs.push(value(&cache));
                    made.push(cache);
                }
            }
            let domain = if own { DOMAIN } else { "" }.to_owned();
            let name = format!("/{}", made[0]);
            graph.nodes.push(Node { name, op, domain, inputs, outputs: made, attributes: Vec::new() });
        }
        graph
    }

    /// Fails unless the graph has these nodes after the pass. A chain is written as its members' first outputs.
    fn check(nodes: &[&str], outputs: &[&str], expect: &str) -> (Graph, Vec<Chain>) {
        let mut graph = graph(nodes, outputs);
        let chains = fuse(&mut graph);
        let found = graph.nodes.iter().map(|node| match node.int(CHAIN) {
            Some(index) => {
                let links = chains[index as usize].links.iter();
                let names: Vec<&str> = links.map(|link| link.node.outputs[0].as_str()).collect();
                format!("[{}]", names.join(" "))
            }
            None => node.outputs[0].clone(),
        });
        assert_eq!(found.collect::<Vec<_>>().join(" "), expect, "{nodes:?}");
        (graph, chains)
    }

    #[test]
    fn layers_become_one_node() {
        let nodes = [
            "Norm x > n",
            "Linear n > q1",
            "Attention q1 > a1",
            "Linear a1 > o1",
            "GatedMlp x o1 > m1 s1",
            "Linear s1 m1 > q2 t1",
            "Attention q2 > a2",
            "Linear a2 > o2",
            "GatedMlp t1 o2 > m2 s2",
            "Norm s2 m2 > y",
        ];
        let (graph, chains) = check(&nodes, &["y"], "n [q1 a1 o1 m1 q2 a2 o2 m2] y");
        let node = &graph.nodes[1];
        assert_eq!((node.op.as_str(), node.domain.as_str()), ("Chain", DOMAIN));
        assert_eq!(node.inputs, ["n", "a1.k", "a1.v", "x", "a2.k", "a2.v"]);
        let caches = ["a1.k2", "a1.v2", "a2.k2", "a2.v2"];
        assert_eq!(node.outputs, [&["m2", "s2", "", "", "", "", "", ""][..], &caches].concat());
        // At most the stream, its branch and the next rows are in use at a time.
        assert_eq!(chains[0].buffers, 4);
        for ChainLink { node, inputs, outputs } in &chains[0].links {
            let all: Vec<ValueLocation> = inputs.iter().chain(outputs).copied().collect();
            assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "{}: {all:?}", node.name);
        }
    }

    #[test]
    fn members_read_what_earlier_members_wrote() {
        let nodes =
            ["Linear x > a s", "Linear a > b", "GatedMlp b s > c t", "Linear c a > d", "Linear d > y -"];
        let (_, chains) = check(&nodes, &["y", "b"], "[a b c d y]");
        let mut written: HashMap<ValueLocation, String> = HashMap::new();
        for link in &chains[0].links {
            for (name, location) in link.node.inputs.iter().zip(&link.inputs) {
                let expected = if name == "x" { None } else { Some(name) };
                assert_eq!(written.get(location), expected, "{}", link.node.name);
            }
            written.extend(link.outputs.iter().copied().zip(link.node.outputs.iter().cloned()));
        }
        assert_eq!(written.get(&ValueLocation::Output(0)).map(String::as_str), Some("b"));
        assert_eq!(written.get(&ValueLocation::Output(1)).map(String::as_str), Some("y"));
    }

    #[test]
    fn other_nodes_divide_chains_only_if_they_are_between_members() {
        check(&["Linear x > a", "Relu a > r", "Linear r > b"], &["b"], "a r b");
        check(&["Linear x > a", "Relu x > r", "Linear r > b"], &["a", "b"], "r [a b]");
        check(&["Linear x > a", "Relu a > r", "Linear a > b"], &["r", "b"], "[a b] r");
        check(
            &["Linear x > a", "Linear a > b", "Relu b > r", "Tanh r > t", "Linear a > c", "Linear t c > d"],
            &["d"],
            "[a b c] r t d",
        );
        check(
            &["Linear x > a", "Linear a > b", "Relu b > r", "Linear r > c", "Linear c > d", "Linear b > e"],
            &["d", "e"],
            "[a b] r [c d e]",
        );
        check(&["Linear x > a"], &["a"], "a");
        check(&["Linear x > a", "Linear x > b", "Linear x > c"], &["a", "c"], "b [a c]");
    }

    #[test]
    fn caches_are_outputs_of_the_graph_and_of_one_type() {
        check(&["Attention x > a", "Linear a > b", "Relu a.k2 > r"], &["b", "r"], "a b r");
        let (graph, _) = check(&["HalfCacheAttention x > a", "Linear a > b"], &["b"], "[a b]");
        assert_eq!(graph.nodes[0].op, "HalfCacheChain");
        let nodes = ["Linear x > a", "Attention a > b", "HalfCacheAttention b > c", "Linear c > d"];
        let (graph, _) = check(&nodes, &["d"], "[a b] [c d]");
        assert_eq!([&graph.nodes[0].op, &graph.nodes[1].op], ["Chain", "HalfCacheChain"]);
        let (graph, _) = check(&["IntegerCacheAttention x > a", "Linear a > b"], &["b"], "[a b]");
        assert_eq!(graph.nodes[0].op, "IntegerCacheChain");
    }

    #[test]
    fn a_chain_ends_when_it_has_no_more_outputs() {
        let names: Vec<String> = (0..12).map(|index| format!("v{index:02}")).collect();
        let nodes: Vec<String> = names.iter().map(|name| format!("Linear x > {name}")).collect();
        let (nodes, outputs): (Vec<&str>, Vec<&str>) =
            nodes.iter().zip(&names).map(|(node, name)| (node.as_str(), name.as_str())).unzip();
        let expect = format!("[{}] [{}]", names[..MAX_ROWS].join(" "), names[MAX_ROWS..].join(" "));
        check(&nodes, &outputs, &expect);
        // Values that members read in the end need no output.
        let last = format!("Linear {} > y", names.join(" "));
        check(&[&nodes[..], &[&last]].concat(), &["y"], &format!("[{} y]", names.join(" ")));
    }

    #[test]
    fn graphs_that_onnx_runtime_refuses_stay_as_they_are() {
        check(&["Linear x > a", "Linear a > a"], &["a"], "a a");
        check(&["Linear x > a a", "Linear a > b"], &["b"], "a b");
        check(&["Linear x > x", "Linear x > b"], &["b"], "x b");
        check(&["Linear b > a", "Linear a > b"], &["b"], "a b");
    }
}
