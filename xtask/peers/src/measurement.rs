//! The result of one run of a side.

use std::collections::BTreeMap;

use anyhow::{Context, bail};

use crate::spread::median;

/// Result of one run of a side.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measurement {
    /// Prompt tokens per second up to the first generated token. Median of the repetitions.
    pub(super) prefill: f64,
    /// Generated tokens per second after the first.
    pub(super) decode: f64,
    /// Milliseconds until the model is loaded.
    pub(super) load_ms: f64,
    /// Peak of the process's resident memory in bytes, if the system reports it.
    pub(super) peak_bytes: Option<u64>,
    /// Versions of the libraries.
    pub(super) versions: BTreeMap<String, String>,
    /// Overhead of the gateway. Only Narthex has one.
    pub(super) gateway: Option<Overhead>,
}

/// Time that the gateway adds to that of the engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Overhead {
    /// Time per token through the gateway divided by that of the engine.
    pub(super) token_ratio: f64,
    /// Additional milliseconds per request.
    pub(super) request_ms: f64,
}

/// Speeds of the repetitions in a process, in tokens per second.
#[derive(Debug)]
pub(super) struct Rates {
    pub(super) prefill: Vec<f64>,
    pub(super) decode: Vec<f64>,
}

impl Measurement {
    /// Computes the medians of at least one repetition each.
    pub(super) fn new(
        rates: &Rates,
        load_ms: f64,
        versions: BTreeMap<String, String>,
    ) -> anyhow::Result<Self> {
        let (prefill, decode) = (median(&rates.prefill), median(&rates.decode));
        let (prefill, decode) = prefill.zip(decode).context("nothing was measured")?;
        if !(prefill > 0.0 && decode > 0.0) {
            bail!("expected tokens per second, found {prefill} in prefill and {decode} in decode");
        }
        Ok(Self { prefill, decode, load_ms, peak_bytes: None, versions, gateway: None })
    }
}
