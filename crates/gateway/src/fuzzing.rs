//! Entry points of fuzz targets: packages up to the point where ONNX Runtime reads their graphs, files of the prefix
//! cache, and records that the gateway stores.

use std::path::Path;

use narthex_device::fuzzing::read_package;
pub use narthex_device::fuzzing::{read_cards, read_kept_tokens, read_trace};
use narthex_engine::prefix_storage::BlockKey;
use narthex_spec::{KvPrecision, ModelName, Scheme};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    Error, RunningServer,
    inspect::check::CompilerResult,
    library::{package, package_key::PackageKey},
    load::{
        auto::MeasurementRecord,
        cache_key::CacheKey,
        contexts::ContextRecord,
        kv_precision::CacheComparison,
        prefix_cache::block_file::{self, FileLabel},
        verify::Verification,
    },
};

/// Reads the manifest of the package in `folder`, and the files that an executor reads.
///
/// # Errors
/// [`Error`] for a package that is damaged.
pub fn open_package(folder: &Path, name: &ModelName) -> Result<(), Error> {
    let key = PackageKey { name: name.clone(), scheme: Scheme::W8 };
    let manifest = package::read_manifest(folder, &key)?;
    Ok(read_package(folder, &manifest)?)
}

/// Reads the payload of a file of the prefix cache, without the check of its digest. Writes the block, and reads the
/// file with the check. Returns the number of tokens.
///
/// # Errors
/// The reason if the bytes are not a block.
///
/// # Panics
/// The written file has another block, or the bytes themselves are accepted as a file.
pub fn read_prefix_block(bytes: &[u8]) -> Result<usize, String> {
    let label = FileLabel { identity: [1; 32], key: BlockKey { index: 2, hash: [3; 32] } };
    let is_forged = block_file::decode(bytes, label).is_ok();
    assert!(!is_forged, "a file without the digest of its bytes was accepted");
    let block = block_file::decode_payload(bytes)?;
    if let Some(written) = block_file::encode(label, &block) {
        assert_eq!(
            block_file::decode(&written, label).as_ref(),
            Ok(&block),
            "a written file differs after it is read"
        );
    }
    Ok(block.tokens())
}

/// Record that the gateway writes and reads again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatewayRecord {
    /// Record of compiled contexts.
    Contexts,
    /// Key of a provider's compiled graphs.
    ProviderKey,
    /// Record of a numerics check.
    Verification,
    /// Record of the comparison of KV caches.
    KvCache,
    /// Measurements of devices.
    Measurements,
    /// Record of a running server.
    Server,
    /// Answer of a process that tries a vendor's compiler.
    CompilerAnswer,
}

/// Parses a record, and computes the decisions that depend on it. The record is then serialised and parsed again.
///
/// # Errors
/// The parser's message if it rejects the bytes.
///
/// # Panics
/// The serialised record differs from the first one when it is parsed.
pub fn read_record(record: GatewayRecord, bytes: &[u8]) -> Result<(), String> {
    match record {
        GatewayRecord::Contexts => read_again::<ContextRecord>(bytes).map(drop),
        GatewayRecord::ProviderKey => {
            let key = read_again::<CacheKey>(bytes)?;
            let difference = key.difference(&key.clone());
            assert_eq!(difference, None, "a key differs from itself");
            Ok(())
        }
        GatewayRecord::Verification => read_again::<Verification>(bytes).map(drop),
        GatewayRecord::KvCache => {
            let comparison = read_again::<CacheComparison>(bytes)?.result;
            let (precision, note) = (comparison.precision(), comparison.note());
            assert!(note.is_none() || precision == KvPrecision::F32, "a reason against {precision:?}");
            Ok(())
        }
        GatewayRecord::Measurements => {
            let measured = read_again::<MeasurementRecord>(bytes)?.outcome.measured;
            measured.choose();
            measured.best_pair().and_then(|split| measured.break_even(split));
            Ok(())
        }
        GatewayRecord::Server => read_again::<RunningServer>(bytes).map(drop),
        GatewayRecord::CompilerAnswer => read_again::<CompilerResult>(bytes).map(drop),
    }
}

fn read_again<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let parse = serde_json::from_slice::<T>;
    let read = parse(bytes).map_err(|error| error.to_string())?;
    let encode = |record: &T| serde_json::to_value(record).map_err(|error| error.to_string());
    let written = encode(&read)?;
    let again = parse(written.to_string().as_bytes());
    let again = again.map_err(|error| error.to_string()).and_then(|again| encode(&again));
    assert!(again.as_ref().is_ok_and(|again| is_same(again, &written)), "{written} reads as {again:?}");
    Ok(read)
}

/// Returns whether two values are equal up to the rounding of decimal fractions.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| is_same(a, b)))
        }
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap_or_default(), b.as_f64().unwrap_or_default());
            (a - b).abs() <= 1e-12 * a.abs()
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_and_written() {
        let check = |record, text: &str, expect: Result<(), &str>| match (
            read_record(record, text.as_bytes()),
            expect,
        ) {
            (Ok(()), Ok(())) => {}
            (Err(found), Err(expect)) if found.contains(expect) => {}
            (found, _) => panic!("{record:?} {text}: {found:?} instead of {expect:?}"),
        };
        let key = r#"{"device": "qnn", "runtime": "1", "provider": "p", "settings": {"a": "b"}}"#;
        check(GatewayRecord::ProviderKey, key, Ok(()));
        check(GatewayRecord::ProviderKey, &key.replace("qnn", "npu"), Err("npu"));
        let contexts = format!(r#"{{"key": {key}, "files": {{"a": "{}"}}}}"#, "0".repeat(64));
        check(GatewayRecord::Contexts, &contexts, Ok(()));
        let position = r#"{"text": 0, "at": 1, "divergence": null, "margin": 0.5, "agrees": true}"#;
        let verification = |position: &str| {
            format!(r#"{{"version": 3, "key": {key}, "quarantine": "q", "positions": [{position}]}}"#)
        };
        check(GatewayRecord::Verification, &verification(position), Ok(()));
        let huge = position.replace("0.5", "1e300");
        // With some features of serde_json, its parser refuses the number first.
        check(GatewayRecord::Verification, &verification(&huge), Err("range"));
        let comparisons = |positions: &str| {
            let comparison = format!(
                r#"{{"positions": {positions}, "divergence": 0.001, "perplexity_change": null, "agreeing": 9}}"#
            );
            format!(r#"{{"version": 4, "key": {key}, "i8": {comparison}, "f16": {comparison}}}"#)
        };
        check(GatewayRecord::KvCache, &comparisons("10"), Ok(()));
        check(GatewayRecord::KvCache, &comparisons("[]"), Err("expected usize"));
        let times = |device: &str, chunk: u64, ms: f64| {
            format!(
                r#"{{"device": "{device}", "chunk": {chunk}, "chunk_ms": {ms}, "short_ms": {ms}, "token_ms": {}}}"#,
                1.0 / ms
            )
        };
        let measurements = |chunk: u64| {
            let (cpu, qnn) = (times("cpu", 256, 90.0), times("qnn", chunk, 2.0));
            let handover = r#"{"prefill": "qnn", "decode": "cpu", "token_ms": 0.1}"#;
            format!(
                r#"{{"version": 1, "keys": [{key}], "threads": 0, "refused": [],
                "measured": {{"devices": [{cpu}, {qnn}], "handover": {handover}}}}}"#
            )
        };
        check(GatewayRecord::Measurements, &measurements(64), Ok(()));
        check(GatewayRecord::Measurements, &measurements(u64::MAX), Err("a chunk of at most"));
        let server = r#"{"pid": 1, "address": "127.0.0.1:1", "started": 5, "models": []}"#;
        check(GatewayRecord::Server, server, Ok(()));
        check(GatewayRecord::Server, &server.replace('5', "18446744073709551615"), Err("seconds since 1970"));
        check(GatewayRecord::CompilerAnswer, r#"{"partly": {"elsewhere": [], "nodes": 3}}"#, Ok(()));
        check(GatewayRecord::CompilerAnswer, "[", Err("expected value"));
    }
}
