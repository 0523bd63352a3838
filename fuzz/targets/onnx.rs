//! ONNX files: decoding, the rules for graphs, encoding, and the search for references to other files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narthex_graph::{Graph, InitializerData, onnx::find_reference};

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    let found = find_reference(data, &|_| true);
    let Ok(graph) = Graph::decode(data) else { return };
    let is_external = |data: &InitializerData| matches!(data, InitializerData::External { .. });
    if graph.initializers.iter().any(|constant| is_external(&constant.data)) {
        assert!(!matches!(found, Ok(None)), "a data file is not found");
    }
    let _ = graph.check();
    graph.dump();
    let bytes = graph.encode();
    let again = Graph::decode(&bytes).expect("a graph that reads its own bytes");
    // The comparison uses bytes, because NaN is not equal to itself.
    assert!(again.encode() == bytes, "a graph changes on its way through a file");
});
