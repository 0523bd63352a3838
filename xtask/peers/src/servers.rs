//! Throughput of complete servers under concurrent clients.
//!
//! Narthex and `llama-server` serve `/v1/completions`. OpenVINO GenAI's continuous batching runs in its own process
//! without HTTP. All prompts differ from the first word, so that no server can use a prefix cache.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::json;
use strum::VariantArray;
use xtask_tools::terminal;

use crate::{
    completions::{CompletionClient, CompletionRequest},
    server_side::{PAIRS, ServerFailure, ServerPair, ServerSide, ServerSize, run_batching},
    setup::Setup,
    spread::Spread,
    weights::Weights,
};

/// Numbers of concurrent clients.
const CLIENTS: [usize; 3] = [1, 4, 16];

/// Slots of each server, and the number of tokens that one can hold.
const SIZE: ServerSize = ServerSize { slots: 16, context: 512 };

/// Number of words in a prompt, which are about 220 tokens.
const WORDS: usize = 170;

/// Number of tokens in an answer.
const ANSWER: usize = 64;

/// Minimum ratios to the peers that Narthex should reach, by number of clients.
const WANTED: [(usize, f64); 2] = [(4, 2.0), (16, 2.5)];

/// Result of one measurement.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct Throughput {
    /// Generated tokens per second of all clients together.
    tokens_per_second: f64,
    /// Rate of the slowest client divided by the median rate of the clients.
    slowest_share: f64,
}

/// Measurements of one server with one number of clients.
struct ServerMeasurements {
    side: ServerSide,
    clients: usize,
    /// Results, one for each round.
    rounds: Vec<Throughput>,
}

/// Number of tokens that a client received, and the time until its last answer was complete.
#[derive(Debug, Clone, Copy)]
struct ReceivedTokens {
    tokens: f64,
    time: Duration,
}

/// All measurements of the servers.
#[derive(Debug, Default, Serialize)]
pub(super) struct Servers {
    pub(super) results: Vec<ServerResult>,
    pub(super) ratios: Vec<ServerRatio>,
    /// Servers that could not be measured in some round, which have no later rounds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) failures: Vec<ServerFailure>,
}

/// Speed and fairness of one server with one number of clients.
#[derive(Debug, Serialize)]
pub(super) struct ServerResult {
    pub(super) server: &'static str,
    pub(super) clients: usize,
    pub(super) tokens_per_second: Spread,
    pub(super) slowest_share: Spread,
}

/// Tokens per second of one server divided by another's, round by round.
#[derive(Debug, Serialize)]
pub(super) struct ServerRatio {
    pub(super) of: &'static str,
    pub(super) to: &'static str,
    pub(super) clients: usize,
    pub(super) ratio: Spread,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) wanted: Option<f64>,
}

/// Measures every server with each number of clients, in rounds.
pub(super) fn measure(setup: &Setup<'_>, weights: &Weights, rounds: u64) -> anyhow::Result<Servers> {
    let text = setup.text()?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut all: Vec<ServerMeasurements> = Vec::new();
    for &side in ServerSide::VARIANTS {
        all.extend(CLIENTS.map(|clients| ServerMeasurements { side, clients, rounds: Vec::new() }));
    }
    let mut failures: Vec<ServerFailure> = Vec::new();
    let mut numbers = 0_usize..;
    let mut next_prompt = || prompt(&words, numbers.next().unwrap_or(0));
    for round in 1..=rounds {
        terminal::line(format!("\n== servers, round {round} of {rounds}"));
        for measured in all.chunks_mut(CLIENTS.len()) {
            let Some(side) = measured.first().map(|measured| measured.side) else { continue };
            let name = side.name();
            if failures.iter().any(|failure| failure.server == name) {
                continue;
            }
            let throughputs = match measure_side(side, setup, weights, &mut next_prompt) {
                Ok(throughputs) => throughputs,
                Err(error) => {
                    failures.push(ServerFailure::new(side, setup, &error));
                    continue;
                }
            };
            for (measured, throughput) in measured.iter_mut().zip(throughputs) {
                terminal::line(format!(
                    "{name:<44} {:>2} clients {:7.1} tokens/s, slowest {:.2} of the median",
                    measured.clients, throughput.tokens_per_second, throughput.slowest_share
                ));
                measured.rounds.push(throughput);
            }
        }
    }
    Ok(Servers { failures, ..summary(&all) })
}

/// Summarises the measurements and compares the pairs.
fn summary(all: &[ServerMeasurements]) -> Servers {
    let spread = |measured: &ServerMeasurements, figure: fn(&Throughput) -> f64| {
        Spread::of(measured.rounds.iter().map(figure).collect())
    };
    let results = all.iter().filter_map(|measured| {
        Some(ServerResult {
            server: measured.side.name(),
            clients: measured.clients,
            tokens_per_second: spread(measured, |throughput| throughput.tokens_per_second)?,
            slowest_share: spread(measured, |throughput| throughput.slowest_share)?,
        })
    });
    let speed = |side: ServerSide, clients: usize| {
        let measured = all.iter().find(|measured| measured.side == side && measured.clients == clients)?;
        spread(measured, |throughput| throughput.tokens_per_second)
    };
    let mut ratios = Vec::new();
    for ServerPair { of, to } in PAIRS {
        for clients in CLIENTS {
            let speeds = speed(of, clients).zip(speed(to, clients));
            let Some(ratio) = speeds.and_then(|(of, to)| of.over(&to)) else { continue };
            let wanted = WANTED.iter().find(|(with, _)| *with == clients).map(|(_, wanted)| *wanted);
            ratios.push(ServerRatio { of: of.name(), to: to.name(), clients, ratio, wanted });
        }
    }
    Servers { results: results.collect(), ratios, failures: Vec::new() }
}

/// Measures a side with each number of clients, in one process.
fn measure_side(
    side: ServerSide,
    setup: &Setup<'_>,
    weights: &Weights,
    prompt: &mut dyn FnMut() -> String,
) -> anyhow::Result<Vec<Throughput>> {
    if side == ServerSide::OpenVino {
        return measure_openvino(setup, weights, prompt);
    }
    let server = side.start(setup, weights, SIZE)?;
    let client = CompletionClient { server: &server, model: weights.model };
    client.complete(CompletionRequest::greedy(&prompt(), 4))?;
    CLIENTS
        .iter()
        .map(|&clients| {
            let prompts = (0..clients).map(|_| (0..requests(clients)).map(|_| prompt()).collect());
            run_concurrently(&client, &prompts.collect::<Vec<_>>())
        })
        .collect()
}

/// Sends the prompts of each client one after another. All clients run concurrently.
fn run_concurrently(client: &CompletionClient<'_>, clients: &[Vec<String>]) -> anyhow::Result<Throughput> {
    let started = Instant::now();
    let run = |prompts: &[String]| {
        let complete = |prompt| client.complete(CompletionRequest::greedy(prompt, ANSWER));
        let tokens = prompts.iter().map(|prompt| Ok(complete(prompt)?.tokens as f64));
        let tokens = tokens.sum::<anyhow::Result<f64>>()?;
        Ok(ReceivedTokens { tokens, time: started.elapsed() })
    };
    let received: anyhow::Result<Vec<ReceivedTokens>> = thread::scope(|scope| {
        let threads: Vec<_> = clients.iter().map(|prompts| scope.spawn(|| run(prompts))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|joined| joined.unwrap_or_else(|_| bail!("a client panicked"))).collect()
    });
    throughput(&received?)
}

/// Computes the throughput of all clients.
fn throughput(received: &[ReceivedTokens]) -> anyhow::Result<Throughput> {
    let rates = received.iter().map(|received| received.tokens / received.time.as_secs_f64()).collect();
    let rates = Spread::of(rates).context("there are no clients")?;
    let tokens: f64 = received.iter().map(|received| received.tokens).sum();
    let time = received.iter().map(|received| received.time).max().unwrap_or_default();
    Ok(Throughput { tokens_per_second: tokens / time.as_secs_f64(), slowest_share: rates.min / rates.median })
}

/// Runs OpenVINO GenAI's continuous batching over the same prompts.
fn measure_openvino(
    setup: &Setup<'_>,
    weights: &Weights,
    prompt: &mut dyn FnMut() -> String,
) -> anyhow::Result<Vec<Throughput>> {
    let mut measurement = |clients: usize| -> Vec<Vec<String>> {
        (0..clients).map(|_| (0..requests(clients)).map(|_| prompt()).collect()).collect()
    };
    let plan = json!({"measurements": CLIENTS.map(&mut measurement), "tokens": ANSWER});
    run_batching(setup, weights, "batch_openvino.py", &plan)
}

/// Returns the number of requests that each client sends.
fn requests(clients: usize) -> usize {
    (8 / clients).max(2)
}

/// Returns a prompt that differs from all others from its first word.
fn prompt(words: &[&str], number: usize) -> String {
    let start = number * 37 % words.len().max(1);
    let words: Vec<&str> = words.iter().cycle().skip(start).take(WORDS).copied().collect();
    format!("{number}. {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_differ_from_their_first_word_on() {
        let words = ["one", "two", "three"];
        let prompts: Vec<String> = (0..9).map(|number| prompt(&words, number)).collect();
        for (number, prompt) in prompts.iter().enumerate() {
            assert_eq!(prompt.split(' ').next(), Some(format!("{number}.").as_str()));
            assert_eq!(prompt.split(' ').count(), WORDS + 1);
        }
    }

    #[test]
    fn throughput_counts_all_tokens_and_the_slowest_client() {
        let received =
            [1, 2, 4].map(|seconds| ReceivedTokens { tokens: 64.0, time: Duration::from_secs(seconds) });
        let found = throughput(&received).unwrap();
        assert_eq!(found, Throughput { tokens_per_second: 48.0, slowest_share: 0.5 });
        assert!(throughput(&[]).is_err());
    }

    #[test]
    fn servers_are_compared_round_by_round() {
        let throughput = |tokens_per_second| Throughput { tokens_per_second, slowest_share: 0.9 };
        let rounds = |speeds: [f64; 2]| speeds.map(throughput).to_vec();
        let all = [
            ServerMeasurements { side: ServerSide::NarthexW4, clients: 4, rounds: rounds([200.0, 100.0]) },
            ServerMeasurements { side: ServerSide::LlamaQ4, clients: 4, rounds: rounds([100.0, 50.0]) },
        ];
        let servers = summary(&all);
        assert_eq!(servers.results.len(), 2);
        let [ratio] = &servers.ratios[..] else { panic!("{:?}", servers.ratios) };
        assert_eq!((ratio.clients, ratio.ratio.median, ratio.wanted), (4, 2.0, Some(2.0)));
    }
}
