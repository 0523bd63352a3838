//! A provider's own reasons for refusing nodes, read from its trace if it writes one. A trace costs another compile, so
//! it is requested only for a graph that does not run as a whole.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use serde_json::Value;

use crate::{
    ep::Device,
    ort::{Diagnostics, Session, SessionOptions},
    runtime::Runtime,
};

/// File name of the trace of QNN's provider.
const FILE: &str = "qnn_op_trace.json";

/// Maximum number of bytes of a trace that are read. The trace of a thousand nodes has less than one megabyte.
const MAX_BYTES: u64 = 64 << 20;

/// Maximum number of characters of a reason.
const MAX_REASON_CHARS: usize = 200;

/// Returns the provider's reason for each node of a graph that it refuses, by the node's path. Returns no reasons if
/// the provider writes no trace, or if the trace cannot be read.
pub(crate) fn reasons(runtime: &Runtime, device: &Device, graph: &Path) -> BTreeMap<String, String> {
    let Some(scratch) = ScratchFolder::new() else { return BTreeMap::new() };
    if device.trace_options(&scratch.0).is_empty() {
        return BTreeMap::new();
    }
    let options =
        SessionOptions { diagnostics: Diagnostics::Trace(&scratch.0), ..SessionOptions::on(device, 1) };
    // The outcome is already known; only the trace is needed.
    drop(Session::open(runtime, graph, options));
    let mut bytes = Vec::new();
    let read =
        fs::File::open(scratch.0.join(FILE)).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes));
    if read.is_err() { BTreeMap::new() } else { parse(&bytes) }
}

/// Returns the reasons in a trace.
pub(crate) fn parse(bytes: &[u8]) -> BTreeMap<String, String> {
    let trace: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let nodes = trace["unsupported_nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    nodes.iter().filter_map(name_and_reason).filter(|(_, reason)| !reason.is_empty()).collect()
}

fn name_and_reason(node: &Value) -> Option<(String, String)> {
    let name = node["node_name"].as_str()?;
    let reason = node["reason"].as_str()?;
    // The rest of the text states that the node is not assigned, which is already known.
    let parts = reason.split_once(&format!("{} node `", node["op_type"].as_str().unwrap_or("?")));
    let text = parts.map_or(reason, |(before, _)| before).trim().trim_end_matches('.');
    Some((name.to_owned(), text.chars().take(MAX_REASON_CHARS).collect()))
}

/// A folder that is removed when it is dropped.
struct ScratchFolder(PathBuf);

impl ScratchFolder {
    fn new() -> Option<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("narthex-trace-{}-{number}", std::process::id()));
        // An existing folder belongs to another process.
        fs::create_dir(&path).ok().map(|()| Self(path))
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // A folder that remains among the system's temporary files does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_s_reasons_are_read_without_what_is_known_anyway() {
        let trace = r#"{"unsupported_nodes": [
            {"node_name": "/e", "op_type": "Erf", "reason": "Operators of type `Erf` are not supported by QNN EP.Erf node `/e` will not be assigned to QNN EP."},
            {"node_name": "/f", "op_type": "Relu", "reason": "Cannot get shape"},
            {"node_name": "/g", "op_type": "Relu", "reason": ""},
            {"node_name": 7}
        ]}"#;
        let found = parse(trace.as_bytes());
        let expected =
            [("/e", "Operators of type `Erf` are not supported by QNN EP"), ("/f", "Cannot get shape")];
        assert_eq!(found, expected.map(|(name, reason)| (name.to_owned(), reason.to_owned())).into());
        for odd in ["", "{", "[]", r#"{"unsupported_nodes": 3}"#] {
            assert!(parse(odd.as_bytes()).is_empty(), "{odd}");
        }
    }
}
