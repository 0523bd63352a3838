//! Memory of `narthex serve` with one conversation, compared with the sum of its parts: weights, KV cache and a fixed amount.

use serde::Serialize;
use xtask_tools::{server::Server, terminal, usage};

use crate::{
    completions::{CompletionClient, CompletionRequest},
    cost::ModelCost,
    setup::Setup,
    spread::Spread,
    weights::Weights,
    workload::STANDARD,
};

/// Memory of the program and its libraries, in bytes.
const BASE: u64 = 40 << 20;

/// Maximum of the peak divided by the sum of the parts.
const WANTED: f64 = 1.15;

/// Memory of a server with one scheme.
#[derive(Debug, Serialize)]
pub(super) struct Footprint {
    pub(super) scheme: &'static str,
    /// Size of the weights in bytes.
    pub(super) weight_bytes: u64,
    /// Size of the keys and values of one prompt and answer, in bytes.
    pub(super) kv_bytes: u64,
    pub(super) base_bytes: u64,
    /// Peak resident memory in bytes.
    pub(super) peak_bytes: Spread,
    /// The peak divided by the sum of weights, KV cache and base.
    pub(super) ratio: Spread,
    pub(super) wanted: f64,
}

/// Measures a server in each round. Returns `None` if the system does not report the memory of a process.
pub(super) fn measure(
    setup: &Setup<'_>,
    weights: &Weights,
    scheme: &'static str,
    rounds: u64,
) -> anyhow::Result<Option<Footprint>> {
    let cost = ModelCost::of_package(&setup.package(weights.model, scheme))?;
    let mut peaks = Vec::new();
    let mut kv_bytes = 0;
    for _ in 0..rounds {
        let command = setup.serve(weights.model, scheme, "0");
        let server = Server::listen(command, &setup.folder.join("server.log"))?;
        let client = CompletionClient { server: &server, model: weights.model };
        let prompt = "the river ".repeat(STANDARD.prompt / 2);
        let answer = client.complete(CompletionRequest::greedy(&prompt, STANDARD.decode))?;
        kv_bytes = client.kv_token_bytes()? * (answer.prompt_tokens + answer.tokens);
        peaks.extend(usage::peak_resident(server.id()).map(|bytes| bytes as f64));
    }
    let footprint = Spread::of(peaks).map(|peaks| Footprint::new(scheme, cost.weight_bytes, kv_bytes, peaks));
    if let Some(footprint) = &footprint {
        terminal::line(format!("\n{}", footprint.describe()));
    }
    Ok(footprint)
}

impl Footprint {
    fn new(scheme: &'static str, weight_bytes: u64, kv_bytes: u64, peak_bytes: Spread) -> Self {
        let ratio = peak_bytes.times(((weight_bytes + kv_bytes + BASE) as f64).recip());
        Self { scheme, weight_bytes, kv_bytes, base_bytes: BASE, peak_bytes, ratio, wanted: WANTED }
    }

    /// Describes the peak and its parts in megabytes.
    pub(super) fn describe(&self) -> String {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        format!(
            "Peak memory of `narthex serve` with one conversation, {}: {} MB; weights {:.0}, KV cache {:.1} and 40 MiB \
             are {:.0} MB.",
            self.scheme,
            self.peak_bytes.times(1e-6).format(0),
            megabytes(self.weight_bytes),
            megabytes(self.kv_bytes),
            megabytes(self.weight_bytes + self.kv_bytes + self.base_bytes),
        )
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the memory of one server, which is twice the sum of its parts.
    pub(crate) fn footprints() -> Vec<Footprint> {
        let parts = 100_000_000 + 8_000_000 + BASE;
        let peaks = Spread::of(vec![2.0 * parts as f64; 2]).unwrap();
        vec![Footprint::new("w8", 100_000_000, 8_000_000, peaks)]
    }

    #[test]
    fn the_peak_is_compared_with_the_sum_of_the_parts() {
        let footprint = &footprints()[0];
        assert!((footprint.ratio.median - 2.0).abs() < 1e-9, "{footprint:?}");
        assert_eq!(
            footprint.describe(),
            "Peak memory of `narthex serve` with one conversation, w8: 300 (300 to 300) MB; weights 100, KV cache 8.0 \
             and 40 MiB are 150 MB."
        );
    }
}
