//! `timings`: an extension of the answers of every protocol, with the field names of llama.cpp's server, and the device.

use std::time::Duration;

use narthex_gateway::{
    AnswerEnergy, AnsweringDevice,
    request::{Summary, Times},
};
use schemars::JsonSchema;
use serde::Serialize;

/// Device, token counts and times of an answer. Rates are in tokens per second.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Timings {
    /// Device that computed the answer, as in `--providers`, or two devices as in `--place`.
    device: String,
    /// Nodes and work on it: `qnn 1470/1470 nodes, 100 % of MACs`.
    placement: String,
    /// Prompt tokens that were in the prefix cache.
    cache_n: usize,
    /// Prompt tokens that were read.
    prompt_n: usize,
    /// Generated tokens.
    predicted_n: usize,
    /// Draft tokens that were verified.
    draft_n: usize,
    /// Draft tokens that were accepted.
    draft_n_accepted: usize,
    /// Absent if software stood in for an NPU, because its times are meaningless.
    #[serde(flatten)]
    rates: Option<Rates>,
    /// Absent if no counter can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    energy: Option<EnergyTimings>,
}

/// Energy of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
struct EnergyTimings {
    /// Joules above those of the idle machine.
    joules: f64,
    /// Watts of the idle machine, which were subtracted.
    idle_watts: f64,
    /// True if other requests ran at the same time, so that the energy was divided by tokens.
    shared: bool,
    /// Counters that measured it.
    sensor: &'static str,
}

/// Times and rates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
struct Rates {
    /// Milliseconds to the first token.
    prompt_ms: f64,
    prompt_per_second: f64,
    /// Milliseconds from the first token to the end.
    predicted_ms: f64,
    predicted_per_second: f64,
}

impl Timings {
    /// Returns the timings of an answer that this device computed.
    pub(crate) fn new(summary: &Summary, ran_on: &AnsweringDevice) -> Self {
        let prompt_n = summary.prompt_tokens.saturating_sub(summary.cached_tokens);
        Self {
            device: ran_on.device.clone(),
            placement: ran_on.placement.clone(),
            cache_n: summary.cached_tokens,
            prompt_n,
            predicted_n: summary.completion_tokens,
            draft_n: summary.accepted_tokens + summary.rejected_tokens,
            draft_n_accepted: summary.accepted_tokens,
            rates: summary.times.map(|times| Rates::new(times, prompt_n, summary.completion_tokens)),
            energy: summary.energy.map(EnergyTimings::from),
        }
    }
}

impl From<AnswerEnergy> for EnergyTimings {
    fn from(energy: AnswerEnergy) -> Self {
        let AnswerEnergy { joules, idle_watts, is_shared, sensor } = energy;
        let rounded = |value: f64| (value * 1e3).round() / 1e3;
        Self { joules: rounded(joules), idle_watts: rounded(idle_watts), shared: is_shared, sensor }
    }
}

impl Rates {
    fn new(times: Times, prompt_n: usize, predicted_n: usize) -> Self {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let first = times.first_token.as_secs_f64();
        Self {
            prompt_ms: milliseconds(times.first_token),
            prompt_per_second: if first > 0.0 { prompt_n as f64 / first } else { 0.0 },
            predicted_ms: milliseconds(times.total.saturating_sub(times.first_token)),
            predicted_per_second: times.decode_rate(predicted_n),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::reply::samples;

    #[test]
    fn counts_and_times_have_the_names_of_llama_cpp() {
        let times = Times {
            queued: Duration::ZERO,
            first_token: Duration::from_millis(500),
            total: Duration::from_millis(1500),
        };
        let summary = Summary {
            prompt_tokens: 60,
            cached_tokens: 10,
            completion_tokens: 21,
            accepted_tokens: 3,
            rejected_tokens: 1,
            times: Some(times),
            ..Summary::default()
        };
        let found = serde_json::to_value(Timings::new(&summary, &samples::device())).unwrap();
        let expect = json!({
            "device": "cpu", "placement": "cpu 9/9 nodes, 100 % of MACs", "cache_n": 10, "prompt_n": 50, "predicted_n": 21, "draft_n": 4, "draft_n_accepted": 3,
            "prompt_ms": 500.0, "prompt_per_second": 100.0, "predicted_ms": 1000.0, "predicted_per_second": 20.0,
        });
        assert_eq!(found, expect);
        let qnn = AnsweringDevice { device: "qnn".to_owned(), ..samples::device() };
        let simulated = Timings::new(&Summary { times: None, ..summary }, &qnn);
        let found = serde_json::to_value(simulated).unwrap();
        assert_eq!((&found["device"], found.get("prompt_ms")), (&json!("qnn"), None));

        assert_eq!(found.get("energy"), None, "an unknown energy is absent");
        let energy = AnswerEnergy { joules: 1.23456, idle_watts: 4.5, is_shared: true, sensor: "RAPL" };
        let measured = Timings::new(&Summary { energy: Some(energy), ..summary }, &qnn);
        let found = serde_json::to_value(measured).unwrap();
        let expect = json!({"joules": 1.235, "idle_watts": 4.5, "shared": true, "sensor": "RAPL"});
        assert_eq!(found["energy"], expect);
    }
}
