//! Inputs and outputs of `GroupQueryAttention` with the keys and values of a decoder.

use std::collections::{HashMap, HashSet};

use narthex_spec::DType;

use crate::{
    element::Element,
    graph::{Graph, Node},
};

/// Indices of the inputs of attention with past keys and values.
pub const PAST: [usize; 2] = [3, 4];

/// Indices of the outputs of attention with present keys and values.
pub const PRESENT: [usize; 2] = [1, 2];

/// Returns whether the past keys and values of attention are inputs of the graph in single precision.
pub fn has_single_precision_past(graph: &Graph, attention: &Node) -> bool {
    PAST.iter().all(|&at| {
        attention.input(at).is_some_and(|name| {
            let mut inputs = graph.inputs.iter();
            inputs.any(|input| input.name == name && input.dtype == Element::from(DType::F32))
        })
    })
}

/// Returns the inputs and outputs that contain keys and values, if only these attention nodes read and write them.
/// `reads` has the number of reads of each value.
pub fn cache_values<'a>(
    graph: &Graph,
    attention: &[&'a Node],
    reads: &HashMap<String, usize>,
) -> Option<HashSet<&'a str>> {
    let mut own: HashMap<&str, usize> = HashMap::new();
    for node in attention {
        let past = PAST.iter().filter_map(|&at| node.input(at));
        past.for_each(|name| *own.entry(name).or_default() += 1);
    }
    let nodes = attention.iter();
    let present: Vec<&String> =
        nodes.flat_map(|node| PRESENT.iter().filter_map(|&at| node.outputs.get(at))).collect();
    let only_here = own.iter().all(|(name, count)| reads.get(*name) == Some(count));
    let only_returned = present
        .iter()
        .all(|&name| reads.get(name) == Some(&1) && graph.outputs.iter().any(|output| output.name == *name));
    let fits = !attention.is_empty() && only_here && only_returned;
    fits.then(|| own.into_keys().chain(present.into_iter().map(String::as_str)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, graph::MICROSOFT};

    /// Returns attention whose cache is the input `name`.
    fn attention(name: &str) -> Node {
        let inputs = ["query", "key", "value"].map(str::to_owned).into_iter();
        let past = ["key", "value"].map(|part| format!("past.{name}.{part}"));
        Node {
            name: name.to_owned(),
            op: "GroupQueryAttention".to_owned(),
            domain: MICROSOFT.to_owned(),
            inputs: inputs.chain(past).collect(),
            outputs: vec![name.to_owned(), format!("present.{name}.key"), format!("present.{name}.value")],
            attributes: Vec::new(),
        }
    }

    #[test]
    fn a_cache_that_other_nodes_read_keeps_its_type() {
        let names = ["past.a.key", "past.a.value", "present.a.key", "present.a.value"];
        let check = |reads: [usize; 4], returned: usize, fits: bool| {
            let mut builder = Builder::new("g", &[("", 21)]);
            for name in names.iter().skip(2).take(returned) {
                builder.output(name, DType::F32, &[]);
            }
            let graph = builder.finish();
            let reads = names.iter().zip(reads).map(|(name, count)| ((*name).to_owned(), count)).collect();
            let node = attention("a");
            let found = cache_values(&graph, &[&node], &reads);
            let expected = fits.then(|| names.into_iter().collect());
            assert_eq!(found, expected, "{reads:?}, {returned} returned");
        };
        check([1, 1, 1, 1], 2, true);
        check([2, 1, 1, 1], 2, false);
        check([1, 2, 1, 1], 2, false);
        check([1, 1, 2, 1], 2, false);
        check([1, 1, 1, 1], 1, false);
        check([1, 1, 0, 0], 0, false);
        assert_eq!(cache_values(&Builder::new("g", &[]).finish(), &[], &HashMap::new()), None);
    }
}
