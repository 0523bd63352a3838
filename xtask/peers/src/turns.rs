//! Conversations with growing prompts: each prompt contains the whole conversation and one new text.
//!
//! Servers may reuse the keys and values of earlier turns. Narthex and `llama-server` do so by default, and OpenVINO
//! GenAI's continuous batching does so with `enable_prefix_caching`. Each conversation starts with another word, so no
//! other conversation is reused.

use std::time::{Duration, Instant};

use serde::Serialize;
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

/// Number of turns of a conversation.
const TURNS: usize = 8;

/// Number of turns of the conversation that is not counted.
const WARMUP: usize = 2;

/// Number of words of a turn's text, which are about 75 tokens.
const WORDS: usize = 60;

/// Number of tokens in an answer.
const ANSWER: usize = 48;

/// Slots of each server, and the number of tokens that one can hold.
const SIZE: ServerSize = ServerSize { slots: 1, context: 2048 };

/// All measurements of conversations.
#[derive(Debug, Serialize)]
pub(super) struct Turns {
    pub(super) turns: usize,
    pub(super) answer_tokens: usize,
    pub(super) results: Vec<TurnResult>,
    pub(super) ratios: Vec<TurnRatio>,
    /// Servers that could not be measured in some round, which have no later rounds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) failures: Vec<ServerFailure>,
}

/// Times of one server.
#[derive(Debug, Serialize)]
pub(super) struct TurnResult {
    pub(super) server: &'static str,
    pub(super) first_turn_ms: Spread,
    pub(super) last_turn_ms: Spread,
    /// Time of all turns together.
    pub(super) conversation_ms: Spread,
}

/// Time of a peer's conversation divided by that of Narthex, round by round.
#[derive(Debug, Serialize)]
pub(super) struct TurnRatio {
    pub(super) of: &'static str,
    pub(super) to: &'static str,
    pub(super) last_turn: Spread,
    pub(super) conversation: Spread,
}

/// Times of the turns of one conversation in each round.
struct TurnRun {
    side: ServerSide,
    rounds: Vec<Vec<Duration>>,
}

/// Texts of the turns of two conversations: one that is not counted, and one that is.
type Conversations = [Vec<String>; 2];

/// Measures every server in rounds.
pub(super) fn measure(setup: &Setup<'_>, weights: &Weights, rounds: u64) -> anyhow::Result<Turns> {
    let text = setup.text()?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let sides = ServerSide::VARIANTS.iter();
    let mut runs: Vec<TurnRun> = sides.map(|&side| TurnRun { side, rounds: Vec::new() }).collect();
    let mut failures: Vec<ServerFailure> = Vec::new();
    let mut number = 0;
    for round in 1..=rounds {
        terminal::line(format!("\n== conversations, round {round} of {rounds}"));
        for run in &mut runs {
            let name = run.side.name();
            if failures.iter().any(|failure| failure.server == name) {
                continue;
            }
            let texts = [texts(&words, number, WARMUP), texts(&words, number + 1, TURNS)];
            number += 2;
            match converse(run.side, setup, weights, &texts) {
                Ok(times) => {
                    let total: Duration = times.iter().sum();
                    terminal::line(format!("{name:<44} {TURNS} turns {:7.2} s", total.as_secs_f64()));
                    run.rounds.push(times);
                }
                Err(error) => failures.push(ServerFailure::new(run.side, setup, &error)),
            }
        }
    }
    Ok(Turns { failures, ..summary(&runs) })
}

/// Summarises the times and compares the pairs.
fn summary(runs: &[TurnRun]) -> Turns {
    let results: Vec<TurnResult> = runs.iter().filter_map(TurnRun::result).collect();
    let result = |side: ServerSide| results.iter().find(|result| result.server == side.name());
    let ratio = |ServerPair { of, to }: &ServerPair| {
        let (ours, theirs) = result(*of).zip(result(*to))?;
        Some(TurnRatio {
            of: of.name(),
            to: to.name(),
            last_turn: theirs.last_turn_ms.over(&ours.last_turn_ms)?,
            conversation: theirs.conversation_ms.over(&ours.conversation_ms)?,
        })
    };
    let ratios = PAIRS.iter().filter_map(ratio).collect();
    Turns { turns: TURNS, answer_tokens: ANSWER, results, ratios, failures: Vec::new() }
}

impl TurnRun {
    fn result(&self) -> Option<TurnResult> {
        let spread = |figure: fn(&[Duration]) -> Duration| {
            Spread::of(self.rounds.iter().map(|times| figure(times).as_secs_f64() * 1e3).collect())
        };
        Some(TurnResult {
            server: self.side.name(),
            first_turn_ms: spread(|times| times.first().copied().unwrap_or_default())?,
            last_turn_ms: spread(|times| times.last().copied().unwrap_or_default())?,
            conversation_ms: spread(|times| times.iter().sum())?,
        })
    }
}

/// Runs both conversations on a side, and returns the times of the turns of the second.
fn converse(
    side: ServerSide,
    setup: &Setup<'_>,
    weights: &Weights,
    texts: &Conversations,
) -> anyhow::Result<Vec<Duration>> {
    if side == ServerSide::OpenVino {
        return converse_openvino(setup, weights, texts);
    }
    let server = side.start(setup, weights, SIZE)?;
    let client = CompletionClient { server: &server, model: weights.model };
    let [warmup, counted] = texts;
    take_turns(&client, warmup)?;
    take_turns(&client, counted)
}

/// Sends the texts of a conversation, each after the texts and answers before it.
fn take_turns(client: &CompletionClient<'_>, texts: &[String]) -> anyhow::Result<Vec<Duration>> {
    let mut conversation = String::new();
    let turn = |text: &String| {
        conversation += text;
        let begun = Instant::now();
        let answer = client.complete(CompletionRequest::greedy(&conversation, ANSWER))?;
        let time = begun.elapsed();
        conversation += &answer.text;
        Ok(time)
    };
    texts.iter().map(turn).collect()
}

/// Runs OpenVINO GenAI's continuous batching over the same texts.
fn converse_openvino(
    setup: &Setup<'_>,
    weights: &Weights,
    texts: &Conversations,
) -> anyhow::Result<Vec<Duration>> {
    let plan = json!({"conversations": texts, "tokens": ANSWER});
    let seconds: Vec<f64> = run_batching(setup, weights, "turns_openvino.py", &plan)?;
    Ok(seconds.into_iter().map(Duration::from_secs_f64).collect())
}

/// Returns the texts of a conversation, which differs from all others from its first word.
fn texts(words: &[&str], number: usize, turns: usize) -> Vec<String> {
    let text = |turn: usize| {
        let start = (number * 37 + turn * WORDS) % words.len().max(1);
        let words: Vec<&str> = words.iter().cycle().skip(start).take(WORDS).copied().collect();
        format!("{number}.{turn}. {}\n\n", words.join(" "))
    };
    (0..turns).map(text).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns two rounds of two servers.
    pub(crate) fn turns() -> Turns {
        let run = |side, milliseconds: [[u64; 2]; 2]| {
            let rounds = milliseconds.map(|times| times.map(Duration::from_millis).to_vec());
            TurnRun { side, rounds: rounds.to_vec() }
        };
        summary(&[
            run(ServerSide::NarthexW4, [[100, 50], [200, 100]]),
            run(ServerSide::LlamaQ4, [[200, 100], [400, 200]]),
            run(ServerSide::OpenVino, [[100, 200], [300, 300]]),
            TurnRun { side: ServerSide::NarthexW8, rounds: Vec::new() },
        ])
    }

    #[test]
    fn conversations_are_compared_round_by_round() {
        let found = turns();
        assert_eq!(found.results.len(), 3);
        assert_eq!(found.results[0].conversation_ms.rounds, [150.0, 300.0]);
        let ratios: Vec<_> = found
            .ratios
            .iter()
            .map(|ratio| (ratio.to, ratio.last_turn.median, ratio.conversation.median))
            .collect();
        assert_eq!(
            ratios,
            [("llama-server, Q4_0", 2.0, 2.0), ("OpenVINO GenAI's continuous batching, Q4_1", 3.5, 2.0)]
        );
    }

    #[test]
    fn conversations_differ_from_their_first_word_on() {
        let words = ["one", "two", "three"];
        let mut first: Vec<String> = (0..9).map(|number| texts(&words, number, 2).concat()).collect();
        for text in &mut first {
            assert_eq!(text.split_whitespace().count(), 2 * (WORDS + 1));
            text.truncate(text.find(' ').unwrap());
        }
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 9, "{first:?}");
    }
}
