//! Properties of graphs that run in a loop over tokens, and their costs on an NPU.

use narthex_graph::{Node, Value};

use crate::{
    numbers::plural,
    placement::{placed_graph::PlacedGraph, problem::NodePlacement},
    report::{Finding, Fix, Rule, Severity},
};

/// Minimum number of rows of a table that counts as a vocabulary.
const VOCABULARY: u64 = 8192;

/// Returns the findings on the loop.
pub(crate) fn check(view: &PlacedGraph<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = embedding_tables(view).into_iter().collect();
    let (past, present) = caches(view);
    let has_switch = view.graph().inputs.iter().any(|input| input.name.contains("use_cache"));
    if past.is_empty() && present.is_empty() && !has_switch {
        return findings;
    }

    let names = past.iter().chain(&present).map(|value| value.name.clone()).collect();
    let inputs = plural(past.len() as u64, "cache input");
    let outputs = plural(present.len() as u64, "cache output");
    let mut message = format!("a decoder with {inputs} and {outputs}");
    if has_switch {
        message.push_str(", prompt and continuation merged into one graph by use_cache");
    } else if past.is_empty() {
        message.push_str(": it reads prompts, and a graph with a past must continue them");
    }

    let fix = (has_switch || !returns_only_new_rows(view, &past, &present)).then(|| {
        Fix::manual(
            "an NPU needs a graph for the prompt and one for the next token, with fixed shapes and the same past width; \
             `narthex compile MODEL --target` makes both from a checkpoint",
        )
    });

    findings.push(Finding::new(Rule::DecoderLoop, Severity::Note, message).at(names).fix(fix));
    findings.extend(whole_cache(view, &past, &present));
    findings.extend(all_logits(view));
    findings
}

fn caches<'a>(view: &PlacedGraph<'a>) -> (Vec<&'a Value>, Vec<&'a Value>) {
    let graph = view.graph();
    (
        graph.inputs.iter().filter(|value| is_cache(value, &["past", "cache", "pk_", "pv_"])).collect(),
        graph
            .outputs
            .iter()
            .filter(|value| is_cache(value, &["present", "cache", "knew", "vnew", "new_", "new."]))
            .collect(),
    )
}

/// Returns whether the loop suits an NPU: its shapes are fixed, and only the new rows of each cache are outputs.
fn returns_only_new_rows(view: &PlacedGraph<'_>, past: &[&Value], present: &[&Value]) -> bool {
    past.len() == present.len()
        && past.iter().chain(present).all(|value| view.open.get(&value.name).is_fixed())
        && cache_bytes(view, past, present).is_some_and(|(into, out)| out < into)
}

/// Returns the number of bytes of the cache inputs and of the cache outputs.
fn cache_bytes(view: &PlacedGraph<'_>, past: &[&Value], present: &[&Value]) -> Option<(u64, u64)> {
    Some((sum_bytes(view, past)?, sum_bytes(view, present)?))
}

fn sum_bytes(view: &PlacedGraph<'_>, values: &[&Value]) -> Option<u64> {
    values.iter().map(|value| view.known.get(&value.name).bytes()).sum()
}

/// Returns true if a value has a shape like a cache's, and a name with one of these words.
fn is_cache(value: &Value, words: &[&str]) -> bool {
    let name = value.name.to_ascii_lowercase();
    words.iter().any(|word| name.contains(word)) && value.shape.len() >= 3
}

/// Returns a finding if the graph outputs the whole cache, which is then copied in every step.
fn whole_cache(view: &PlacedGraph<'_>, past: &[&Value], present: &[&Value]) -> Option<Finding> {
    let (into, out) = cache_bytes(view, past, present)?;
    (into > 0 && out >= into).then(|| {
        let message = format!(
            "every step outputs the whole cache ({:.1} MB), although only the keys and values of the new tokens have changed",
            out as f64 / 1e6
        );
        let fix = Fix::manual("output only the new keys and values, and let the host copy them to the cache");
        let names = present.iter().map(|value| value.name.clone()).collect();
        Finding::new(Rule::CacheTraffic, Severity::Cost, message).at(names).fix(fix)
    })
}

/// Returns a finding if the head computes logits for every position of the prompt.
fn all_logits(view: &PlacedGraph<'_>) -> Option<Finding> {
    let wide = view.graph().outputs.iter().find(|output| {
        let shape = view.known.get(&output.name).shape.as_deref();
        matches!(shape, Some([.., Some(rows), Some(vocabulary)]) if *rows > 1 && *vocabulary >= VOCABULARY)
    })?;
    let message =
        format!("{} has the logits of every position, but only those of the last one are needed", wide.name);
    let fix = Fix::manual("gather the last position before the head, or put the head into a separate graph");
    Some(Finding::new(Rule::DecoderLoop, Severity::Cost, message).at(vec![wide.name.clone()]).fix(fix))
}

/// Returns a finding on token tables that run on the NPU: they fill its address space, and a tied head stores them a
/// second time.
fn embedding_tables(view: &PlacedGraph<'_>) -> Option<Finding> {
    let nodes =
        view.placed().filter(|(_, _, outcome)| **outcome != NodePlacement::Folded).map(|(_, node, _)| node);
    let tables: Vec<&Node> = nodes
        .filter(|node| {
            let shape =
                view.input(node, 0).filter(|table| table.constant).and_then(|table| table.shape.as_deref());
            node.op.starts_with("Gather")
                && matches!(shape, Some([Some(rows), Some(_)]) if *rows >= VOCABULARY)
                && view.input(node, 1).is_some_and(|indices| !indices.constant)
        })
        .collect();
    let bytes: u64 = tables.iter().filter_map(|node| view.input(node, 0)?.bytes()).sum();
    (!tables.is_empty()).then(|| {
        let message = format!(
            "the token table ({:.1} MB) would be on the NPU only to look up a few rows; with it, long contexts fail to link",
            bytes as f64 / 1e6
        );
        let fix = Fix::manual("look up tokens on the host and pass their rows as an input");
        let places = tables.iter().map(|node| node.path()).collect();
        Finding::new(Rule::EmbeddingTable, Severity::Cost, message).at(places).fix(fix)
    })
}
