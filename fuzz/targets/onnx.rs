//! ONNX files: decoding, the rules for graphs, and encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narthex_graph::Graph;

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    let Ok(graph) = Graph::decode(data) else { return };
    let _ = graph.check();
    graph.dump();
    let bytes = graph.encode();
    let again = Graph::decode(&bytes).expect("a graph that reads its own bytes");
    // The comparison uses bytes, because NaN is not equal to itself.
    assert!(again.encode() == bytes, "a graph changes on its way through a file");
});
