//! Effect of drafts from earlier text (prompt lookup) on the speed of decode, within one server.
//!
//! One text is summarised and quoted. The other is continued with a temperature of 1, so that it hardly repeats itself.
//! Each prompt is completed with drafts and without, in alternating order.

use anyhow::Context;
use serde::Serialize;
use xtask_tools::{server::Server, terminal};

use crate::{
    completions::{Completion, CompletionClient, CompletionRequest},
    setup::Setup,
    spread::Spread,
    weights::Weights,
};

/// Schemes that are measured.
const SCHEMES: [&str; 2] = ["w8", "w4"];

/// Number of words of a text that is quoted, which are about 300 tokens.
const QUOTED: usize = 230;

/// Number of words of a text that is continued.
const CONTINUED: usize = 30;

/// Number of tokens in an answer.
const ANSWER: usize = 160;

/// A kind of text, with its bound.
#[derive(Debug, Clone, Copy)]
struct DraftedText {
    name: &'static str,
    temperature: f64,
    /// Minimum of the speed with drafts divided by the speed without.
    wanted: f64,
    prompt: fn(&[&str]) -> String,
}

/// The kinds of texts.
const KINDS: [DraftedText; 2] = [
    DraftedText { name: "quotes", temperature: 0.0, wanted: 1.6, prompt: quote },
    DraftedText { name: "new text", temperature: 1.0, wanted: 0.97, prompt: continuation },
];

/// Speeds of one scheme with one kind of text.
#[derive(Debug, Serialize)]
pub(super) struct DraftResult {
    pub(super) scheme: &'static str,
    pub(super) text: &'static str,
    /// Generated tokens per second without drafts.
    pub(super) without: Spread,
    pub(super) with: Spread,
    /// The second divided by the first, round by round.
    pub(super) ratio: Spread,
    /// Share of the answers' tokens that were accepted from drafts.
    pub(super) accepted: Spread,
    /// Number of equal pairs of answers; `None` if the answers are random.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) equal_answers: Option<usize>,
    pub(super) wanted: f64,
}

/// Answers to one prompt.
struct DraftRound {
    without: Completion,
    with: Completion,
}

/// Measures every scheme and text in rounds.
pub(super) fn measure(setup: &Setup<'_>, weights: &Weights, rounds: u64) -> anyhow::Result<Vec<DraftResult>> {
    let text = setup.text()?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut results = Vec::new();
    for scheme in SCHEMES {
        let mut command = setup.serve(weights.model, scheme, "0");
        command.args(["--speculation", "auto"]);
        let server = Server::listen(command, &setup.folder.join("server.log"))?;
        let client = CompletionClient { server: &server, model: weights.model };
        for kind in KINDS {
            terminal::line(format!("\n== drafts, {scheme}, {}", kind.name));
            // The first pair is a warm-up.
            let pairs = (0..=rounds as usize).map(|round| measure_pair(&client, kind, &words, round));
            let pairs: Vec<DraftRound> = pairs.skip(1).collect::<anyhow::Result<_>>()?;
            results.push(DraftResult::new(scheme, kind, &pairs).context("the server reported no speed")?);
        }
    }
    Ok(results)
}

/// Completes one prompt with and without drafts.
fn measure_pair(
    client: &CompletionClient<'_>,
    kind: DraftedText,
    words: &[&str],
    round: usize,
) -> anyhow::Result<DraftRound> {
    let words: Vec<&str> = words.iter().cycle().skip(round * 67).take(QUOTED).copied().collect();
    let prompt = (kind.prompt)(&words);
    let complete = |draft| {
        let (tokens, temperature) = (ANSWER, kind.temperature);
        client.complete(CompletionRequest { prompt: &prompt, tokens, temperature, draft: Some(draft) })
    };
    let is_first = round.is_multiple_of(2);
    let (first, second) = (complete(is_first)?, complete(!is_first)?);
    let (with, without) = if is_first { (first, second) } else { (second, first) };
    if let Some((with, without)) = with.decode.zip(without.decode) {
        terminal::line(format!("{without:7.1} tokens/s without drafts {with:7.1} with"));
    }
    Ok(DraftRound { without, with })
}

/// Asks for a summary and a quotation, and begins the answer.
fn quote(words: &[&str]) -> String {
    let (text, start) = (words.join(" "), words.iter().take(6).copied().collect::<Vec<_>>().join(" "));
    format!(
        "<|im_start|>user\n{text}\n\nSummarise this text in one sentence, and then quote it in full.<|im_end|>\n\
         <|im_start|>assistant\nSummary: a part of a story about a ferry.\n\nQuotation: {start}"
    )
}

/// Begins a text.
fn continuation(words: &[&str]) -> String {
    words.iter().take(CONTINUED).copied().collect::<Vec<_>>().join(" ")
}

impl DraftResult {
    fn new(scheme: &'static str, kind: DraftedText, pairs: &[DraftRound]) -> Option<Self> {
        let speeds = |answer: fn(&DraftRound) -> &Completion| {
            Spread::of(pairs.iter().map(|pair| answer(pair).decode).collect::<Option<_>>()?)
        };
        let (without, with) = (speeds(|pair| &pair.without)?, speeds(|pair| &pair.with)?);
        let accepted = pairs.iter().map(|pair| pair.with.accepted as f64 / pair.with.tokens as f64);
        let equal = pairs.iter().filter(|pair| pair.with.text == pair.without.text).count();
        Some(Self {
            scheme,
            text: kind.name,
            ratio: with.over(&without)?,
            accepted: Spread::of(accepted.collect())?,
            without,
            with,
            equal_answers: (kind.temperature <= 0.0).then_some(equal),
            wanted: kind.wanted,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns two rounds of quotes, of which one has different answers.
    pub(crate) fn results() -> Vec<DraftResult> {
        let answer = |text: &str, decode, accepted| {
            let text = text.to_owned();
            Completion { text, prompt_tokens: 300, tokens: 160, decode: Some(decode), accepted }
        };
        let pairs = [
            DraftRound { without: answer("a", 100.0, 0), with: answer("a", 200.0, 80) },
            DraftRound { without: answer("a", 50.0, 0), with: answer("b", 90.0, 120) },
        ];
        DraftResult::new("w4", KINDS[0], &pairs).into_iter().collect()
    }

    #[test]
    fn pairs_are_compared_round_by_round() {
        let result = &results()[0];
        assert_eq!(result.ratio.rounds, [2.0, 1.8]);
        assert_eq!((result.accepted.median, result.equal_answers), (0.625, Some(1)));
        let text = "a".to_owned();
        let silent = Completion { text, prompt_tokens: 1, tokens: 1, decode: None, accepted: 0 };
        let pair = DraftRound { without: silent.clone(), with: silent };
        assert!(DraftResult::new("w4", KINDS[1], &[pair]).is_none());
        assert!(DraftResult::new("w4", KINDS[1], &[]).is_none());
    }

    #[test]
    fn a_quotation_begins_like_its_text() {
        let words: Vec<String> = (0..QUOTED).map(|word| format!("w{word}")).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let prompt = quote(&words);
        assert!(
            prompt.contains("w228 w229\n\n") && prompt.ends_with("Quotation: w0 w1 w2 w3 w4 w5"),
            "{prompt}"
        );
        assert_eq!(continuation(&words).split(' ').count(), CONTINUED);
    }
}
