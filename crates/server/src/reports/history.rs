//! The last hour of the server in samples: tokens, answers, memory and power. The page draws them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use narthex_gateway::{
    Gateway, MemoryReport,
    models::{EngineCounters, ModelStatus},
};
use narthex_spec::date::unix_seconds;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;

use super::tenths;
use tokio::time::{MissedTickBehavior, interval};

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(10);

/// Number of samples that are kept: those of an hour, with both ends.
const SAMPLES: usize = 361;

/// The samples. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct History(Arc<Mutex<Samples>>);

#[derive(Debug, Default)]
struct Samples {
    /// Oldest first.
    kept: VecDeque<HistorySample>,
    /// Tokens of each model at the last sample, and its time.
    last: Option<(Instant, BTreeMap<String, TokenCounts>)>,
}

/// Tokens of a model since its load.
#[derive(Debug, Clone, Copy, Default)]
struct TokenCounts {
    generated: u64,
    /// Prompt tokens that were computed, and those that the KV cache had.
    prompt: u64,
    cached: u64,
}

/// The samples of the last hour.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ServerHistory {
    /// Seconds between two samples.
    interval: u64,
    /// Oldest first. The first one is that of the start of the server, if it is less than an hour ago.
    samples: Vec<HistorySample>,
}

/// The state of the server at one time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
struct HistorySample {
    /// Seconds since 1970.
    time: u64,
    /// Generated tokens a second since the sample before.
    tokens_per_second: f64,
    /// Prompt tokens a second that were computed since the sample before.
    prompt_tokens_per_second: f64,
    /// Prompt tokens a second that the KV cache had.
    cached_tokens_per_second: f64,
    /// Answers that run.
    running: usize,
    /// Requests in queues.
    waiting: usize,
    /// Bytes of the weights in memory.
    weights_bytes: u64,
    /// Bytes of the KV caches in use.
    kv_used_bytes: u64,
    /// Bytes of free memory, if the system reports them.
    free_bytes: Option<u64>,
    /// Watts of the machine, if a counter of energy can be read.
    watts: Option<f64>,
}

/// State of a server at a sample.
struct ServerState {
    models: Vec<ModelStatus>,
    memory: MemoryReport,
    watts: Option<f64>,
}

impl History {
    /// Takes samples of a server until the future is dropped.
    pub(crate) async fn watch(&self, gateway: &Gateway) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let gateway = gateway.clone();
            // Both read files.
            let state = tokio::task::spawn_blocking(move || ServerState {
                models: gateway.status(),
                memory: gateway.memory(),
                watts: gateway.power().and_then(|power| power.watts),
            });
            if let Ok(state) = state.await {
                self.0.lock().add(Instant::now(), SystemTime::now(), &state);
            }
        }
    }

    /// Returns the samples of the last hour.
    pub(crate) fn report(&self) -> ServerHistory {
        let samples = self.0.lock().kept.iter().copied().collect();
        ServerHistory { interval: INTERVAL.as_secs(), samples }
    }
}

impl Samples {
    fn add(&mut self, now: Instant, time: SystemTime, state: &ServerState) {
        let ServerState { models, memory, watts } = state;
        let engines = || models.iter().filter_map(|model| Some((model.id(), model.engine?)));
        let counts: BTreeMap<String, TokenCounts> = engines()
            .map(|(id, engine)| {
                let EngineCounters { generated_tokens, prompt_tokens, cached_tokens, .. } = engine;
                let counts =
                    TokenCounts { generated: generated_tokens, prompt: prompt_tokens, cached: cached_tokens };
                (id, counts)
            })
            .collect();
        let rate = |of: fn(&TokenCounts) -> u64| {
            self.last.as_ref().map_or(0.0, |(then, before)| {
                let fresh: u64 = counts.iter().map(|(id, now)| fresh(of(now), before.get(id).map(of))).sum();
                let seconds = now.saturating_duration_since(*then).as_secs_f64().max(1e-3);
                tenths(fresh as f64 / seconds)
            })
        };
        let sample = HistorySample {
            time: unix_seconds(time),
            tokens_per_second: rate(|counts| counts.generated),
            prompt_tokens_per_second: rate(|counts| counts.prompt),
            cached_tokens_per_second: rate(|counts| counts.cached),
            running: engines().map(|(_, engine)| engine.running).sum(),
            waiting: engines().map(|(_, engine)| engine.waiting).sum(),
            weights_bytes: memory.weights_bytes,
            kv_used_bytes: memory.kv_used_bytes,
            free_bytes: memory.free_bytes,
            watts: watts.map(tenths),
        };

        self.last = Some((now, counts));
        if self.kept.len() == SAMPLES {
            self.kept.pop_front();
        }
        self.kept.push_back(sample);
    }
}

/// Returns the tokens since a count. The count of a model begins again at each load.
fn fresh(total: u64, before: Option<u64>) -> u64 {
    total.checked_sub(before.unwrap_or(0)).unwrap_or(total)
}

#[cfg(test)]
mod tests {
    use narthex_gateway::models::ModelState;

    use super::*;
    use crate::reports::health::sample_status;

    fn state(models: Vec<ModelStatus>, weights_bytes: u64) -> ServerState {
        let memory = MemoryReport {
            resident_bytes: None,
            weights_bytes,
            kv_used_bytes: 2,
            kv_budget_bytes: 8,
            total_bytes: None,
            free_bytes: Some(5),
            warning_below_bytes: None,
        };
        ServerState { models, memory, watts: Some(12.34) }
    }

    /// Returns a model that has generated tokens and computed as many of prompts. The cache had half as many.
    fn model(tokens: u64) -> ModelStatus {
        let engine = EngineCounters {
            generated_tokens: tokens,
            prompt_tokens: tokens,
            cached_tokens: tokens / 2,
            running: 1,
            waiting: 2,
            ..EngineCounters::default()
        };
        ModelStatus { engine: Some(engine), ..sample_status(ModelState::Ready, None) }
    }

    #[test]
    fn samples_count_the_tokens_since_the_one_before() {
        let mut samples = Samples::default();
        let start = Instant::now();
        let mut rates_at = |seconds, models: Vec<ModelStatus>| {
            samples.add(start + Duration::from_secs(seconds), SystemTime::UNIX_EPOCH, &state(models, 7));
            let HistorySample {
                tokens_per_second, prompt_tokens_per_second, cached_tokens_per_second, ..
            } = samples.kept.back().unwrap();
            [*tokens_per_second, *prompt_tokens_per_second, *cached_tokens_per_second]
        };
        assert_eq!(
            rates_at(0, vec![model(500)]),
            [0.0; 3],
            "the tokens before the first sample have no time"
        );
        assert_eq!(rates_at(10, vec![model(750)]), [25.0, 25.0, 12.5]);
        assert_eq!(rates_at(20, Vec::new()), [0.0; 3], "the model was unloaded");
        assert_eq!(rates_at(30, vec![model(40)]), [4.0, 4.0, 2.0], "and loaded again");
        assert_eq!(
            rates_at(40, vec![model(10)]),
            [1.0, 1.0, 0.5],
            "its count began again between two samples"
        );

        let last = *samples.kept.back().unwrap();
        assert_eq!((last.running, last.waiting, last.weights_bytes, last.kv_used_bytes), (1, 2, 7, 2));
        assert_eq!((last.free_bytes, last.watts), (Some(5), Some(12.3)));
    }

    #[test]
    fn samples_older_than_an_hour_are_dropped() {
        let history = History::default();
        let start = Instant::now();
        for index in 0..400 {
            let time = SystemTime::UNIX_EPOCH + INTERVAL * index;
            history.0.lock().add(start + INTERVAL * index, time, &state(Vec::new(), u64::from(index)));
        }
        let report = history.report();
        let times = [report.samples.first().unwrap().time, report.samples.last().unwrap().time];
        assert_eq!((report.samples.len(), times), (SAMPLES, [390, 3990]));
    }
}
