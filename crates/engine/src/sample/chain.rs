//! The sampling chain from logits to a token, in the order that [`Sampling`] documents. A forbidden token has a logit
//! of negative infinity, which is never drawn.

use std::collections::HashMap;

use narthex_spec::TokenId;

use super::rng::SplitMix64;
use crate::{
    executor::{Peak, RowScan, ScannedRow},
    request::{LogProbs, Sampling, TokenLogProb},
};

/// Number of most likely tokens in the first search for the nucleus.
const FIRST_NUCLEUS: usize = 256;

/// Number of most likely tokens that can be reported without an allocation. It is larger than in any API.
const TOP: usize = 32;

/// Sampling state of one sequence: settings, random generator and token counts.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    rng: SplitMix64,
    /// Tokens of prompt and answer, with their number of occurrences in the answer; empty without penalties.
    seen: HashMap<TokenId, u32>,
    counts: bool,
}

/// Buffers that all sequences of an engine share.
#[derive(Debug, Default)]
pub struct Scratch {
    logits: Vec<f32>,
    candidates: Vec<Candidate>,
    top: Vec<TokenLogProb>,
    /// Tokens that a constraint forces.
    pub(crate) forced: Vec<TokenId>,
}

impl Scratch {
    /// Creates buffers for a vocabulary. Later calls do not allocate.
    pub fn new(vocab: usize) -> Self {
        Self {
            logits: Vec::with_capacity(vocab),
            candidates: Vec::with_capacity(vocab),
            top: Vec::with_capacity(TOP + 1),
            forced: Vec::new(),
        }
    }
}

/// A token that may be drawn. Its weight is its probability relative to the likeliest token's.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    weight: f32,
    token: TokenId,
}

impl Candidate {
    /// Orders by descending weight, then by ascending token number.
    fn by_probability(&self, other: &Self) -> std::cmp::Ordering {
        other.weight.total_cmp(&self.weight).then(self.token.cmp(&other.token))
    }
}

impl Sampler {
    /// Creates the sampler of a sequence with this prompt and an answer of at most `room` tokens.
    pub fn new(sampling: Sampling, prompt: &[TokenId], room: usize) -> Self {
        let counts = sampling.repetition_penalty != 1.0
            || sampling.presence_penalty != 0.0
            || sampling.frequency_penalty != 0.0;
        let mut seen = HashMap::new();
        if counts {
            seen.reserve(prompt.len() + room);
            seen.extend(prompt.iter().map(|&token| (token, 0)));
        }
        Self { rng: SplitMix64::new(sampling.seed), sampling, seen, counts }
    }

    /// Returns the next token; `None` if a logit is not finite or the settings leave no token to choose. `allowed` has
    /// a bit for each token that may be chosen, as in [`AllowedTokens::Only`](crate::constraint::AllowedTokens::Only).
    pub fn sample(
        &mut self,
        row: ScannedRow<'_>,
        allowed: Option<&[u32]>,
        scratch: &mut Scratch,
    ) -> Option<TokenId> {
        let RowScan::Finite(peak) = row.scan else { return None };
        let Scratch { logits: changed, candidates, .. } = scratch;
        let token = if self.changes_logits() || allowed.is_some() {
            changed.clear();
            changed.extend_from_slice(row.logits);
            if let Some(allowed) = allowed {
                forbid_others(changed, allowed);
            }
            self.change(changed);
            let peak = argmax(changed)?;
            self.choose(changed, peak, candidates)
        } else {
            self.choose(row.logits, peak, candidates)
        };
        self.count(token);
        Some(token)
    }

    /// Counts a token of the answer for the penalties.
    pub fn count(&mut self, token: TokenId) {
        if self.counts {
            *self.seen.entry(token).or_default() += 1;
        }
    }

    fn changes_logits(&self) -> bool {
        self.counts || !self.sampling.logit_bias.is_empty()
    }

    fn change(&self, logits: &mut [f32]) {
        let s = &self.sampling;
        for &(token, bias) in &s.logit_bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        for (&token, &answered) in &self.seen {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / s.repetition_penalty } else { *logit * s.repetition_penalty };
            if answered > 0 {
                *logit -= s.presence_penalty + s.frequency_penalty * answered as f32;
            }
        }
    }

    /// Applies the temperature and the later settings, and draws a token; `peak` is the likeliest.
    fn choose(&mut self, logits: &[f32], peak: Peak, candidates: &mut Vec<Candidate>) -> TokenId {
        let s = &self.sampling;
        if s.temperature.is_nan() || s.temperature <= 0.0 {
            return peak.token;
        }

        let weights = logits.iter().map(|logit| ((logit - peak.logit) / s.temperature).exp());
        candidates.clear();
        candidates.extend(weights.zip(0..).map(|(weight, token)| Candidate { weight, token }));

        if s.top_k > 0 && s.top_k < candidates.len() {
            candidates.select_nth_unstable_by(s.top_k - 1, Candidate::by_probability);
            candidates.truncate(s.top_k);
        }

        if s.typical_p < 1.0 {
            keep_typical(candidates, f64::from(s.typical_p));
        }
        if s.top_p < 1.0 {
            keep_nucleus(candidates, f64::from(s.top_p));
        }

        if s.min_p > 0.0 {
            // The likeliest token's weight is 1.
            candidates.retain(|candidate| candidate.weight >= s.min_p.min(1.0));
        }

        // The draw iterates over the tokens in ascending order, so that it does not depend on the order after the steps
        // above.
        candidates.sort_unstable_by_key(|candidate| candidate.token);

        let mut left = self.rng.next_f64() * total(candidates);
        for candidate in candidates.iter() {
            left -= f64::from(candidate.weight);
            if left < 0.0 {
                return candidate.token;
            }
        }

        // Because of rounding errors, a positive rest may remain after the last token.
        peak.token
    }
}

/// Forbids every token whose bit is not set.
fn forbid_others(logits: &mut [f32], allowed: &[u32]) {
    let words = allowed.iter().copied().chain(std::iter::repeat(0));
    for (logits, word) in logits.chunks_mut(32).zip(words) {
        if word == u32::MAX {
            continue;
        }
        for (bit, logit) in logits.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

fn total(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| f64::from(candidate.weight)).sum()
}

/// Keeps the smallest set of likeliest candidates whose share of the total weight reaches `top_p`.
fn keep_nucleus(candidates: &mut Vec<Candidate>, top_p: f64) {
    let wanted = top_p * total(candidates);
    let mut sorted = FIRST_NUCLEUS.min(candidates.len());
    loop {
        if sorted < candidates.len() {
            candidates.select_nth_unstable_by(sorted, Candidate::by_probability);
        }
        candidates[..sorted].sort_unstable_by(Candidate::by_probability);
        let mut sum = 0.0;
        let reached = candidates[..sorted].iter().position(|candidate| {
            sum += f64::from(candidate.weight);
            sum >= wanted
        });
        match reached {
            Some(last) => return candidates.truncate(last + 1),
            None if sorted == candidates.len() => return,
            None => sorted = (sorted * 4).min(candidates.len()),
        }
    }
}

/// Keeps the candidates whose information is closest to the expected one: the smallest such set whose share of the
/// total weight reaches `typical_p`.
fn keep_typical(candidates: &mut Vec<Candidate>, typical_p: f64) {
    let total = total(candidates);
    candidates.retain(|candidate| candidate.weight > 0.0);
    let information = |candidate: &Candidate| -(f64::from(candidate.weight) / total).ln();
    let entropy: f64 = candidates.iter().map(|one| f64::from(one.weight) / total * information(one)).sum();
    let distance = |candidate: &Candidate| (information(candidate) - entropy).abs();
    candidates.sort_unstable_by(|a, b| distance(a).total_cmp(&distance(b)).then(a.by_probability(b)));
    let mut sum = 0.0;
    let reached = candidates.iter().position(|candidate| {
        sum += f64::from(candidate.weight);
        sum >= typical_p * total
    });
    candidates.truncate(reached.map_or(candidates.len(), |last| last + 1));
}

/// Returns the greatest of the changed logits, some of which may be negative infinity. Returns `None` if it is not
/// finite or a logit is NaN.
fn argmax(logits: &[f32]) -> Option<Peak> {
    let mut peak = Peak { token: 0, logit: f32::NEG_INFINITY };
    for (token, &logit) in (0..).zip(logits) {
        if logit.is_nan() {
            return None;
        }
        if logit > peak.logit {
            peak = Peak { token, logit };
        }
    }
    peak.logit.is_finite().then_some(peak)
}

/// Returns log-probabilities under the model's own distribution: that of `token`, and those that are `requested`.
pub(crate) fn log_probs<'a>(
    ScannedRow { logits, scan }: ScannedRow<'_>,
    token: TokenId,
    requested: &LogProbs,
    scratch: &'a mut Scratch,
) -> (f32, &'a [TokenLogProb]) {
    let peak = match scan {
        RowScan::Finite(peak) => f64::from(peak.logit),
        RowScan::NonFinite(_) => 0.0,
    };
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - peak).exp()).sum();
    let log_sum = sum.ln();
    let logprob = |logit: f32| (f64::from(logit) - peak - log_sum) as f32;
    let best = &mut scratch.top;
    best.clear();

    for (token, &logit) in (0..).zip(logits) {
        if best.len() == requested.top && best.last().is_none_or(|last| last.logprob >= logit) {
            continue;
        }
        // The list has logits until it is complete. Among equal logits, the lower token comes first.
        let at = best.partition_point(|other| other.logprob >= logit);
        best.insert(at, TokenLogProb { token, logprob: logit });
        best.truncate(requested.top);
    }

    best.iter_mut().for_each(|entry| entry.logprob = logprob(entry.logprob));
    let of_token =
        |token: TokenId| logits.get(token as usize).map_or(f32::NEG_INFINITY, |&logit| logprob(logit));
    best.extend(requested.tokens.iter().map(|&token| TokenLogProb { token, logprob: of_token(token) }));
    (of_token(token), best)
}

#[cfg(test)]
mod tests {
    use std::f32::consts::LN_2;

    use super::*;

    fn histogram(sampling: Sampling, logits: &[f32]) -> Vec<usize> {
        let mut sampler = Sampler::new(sampling, &[], 0);
        let mut scratch = Scratch::new(logits.len());
        let mut counts = vec![0; logits.len()];
        for _ in 0..20_000 {
            counts[sampler.sample(ScannedRow::new(logits), None, &mut scratch).unwrap() as usize] += 1;
        }
        counts
    }

    fn sampling(change: fn(&mut Sampling)) -> Sampling {
        let mut sampling = Sampling { temperature: 1.0, seed: 42, ..Sampling::greedy() };
        change(&mut sampling);
        sampling
    }

    /// Logits whose probabilities are 1/2, 1/4, 1/8, 1/8, not in order.
    const LOGITS: [f32; 4] = [2.0 * LN_2, LN_2, 3.0 * LN_2, LN_2];

    #[test]
    fn draws_follow_the_distribution() {
        let check = |change: fn(&mut Sampling), expected: [f64; 4]| {
            let counts = histogram(sampling(change), &LOGITS);
            for (count, expected) in counts.iter().zip(expected) {
                assert!((*count as f64 / 20_000.0 - expected).abs() < 0.02, "{counts:?} {expected:?}");
            }
        };
        check(|_| (), [0.25, 0.125, 0.5, 0.125]);
        check(|s| s.top_k = 2, [1.0 / 3.0, 0.0, 2.0 / 3.0, 0.0]);
        check(|s| s.top_p = 0.7, [1.0 / 3.0, 0.0, 2.0 / 3.0, 0.0]);
        check(|s| s.top_p = 0.5, [0.0, 0.0, 1.0, 0.0]);
        check(|s| s.min_p = 0.3, [1.0 / 3.0, 0.0, 2.0 / 3.0, 0.0]);
        // The entropy is 1.75 bits: the token of 2 bits is the most typical one, then that of 1 bit.
        check(|s| s.typical_p = 0.2, [1.0, 0.0, 0.0, 0.0]);
        check(|s| s.typical_p = 0.7, [1.0 / 3.0, 0.0, 2.0 / 3.0, 0.0]);
        check(|s| s.temperature = 0.01, [0.0, 0.0, 1.0, 0.0]);
        check(|s| s.temperature = 0.5, [4.0 / 22.0, 1.0 / 22.0, 16.0 / 22.0, 1.0 / 22.0]);
    }

    /// Reference implementation of top-k, top-p and min-p: sorts all tokens, without optimisations.
    fn plainly(s: &Sampling, logits: &[f32], draw: f64) -> TokenId {
        let peak = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights = logits.iter().map(|logit| f64::from(((logit - peak) / s.temperature).exp()));
        let mut all: Vec<(f64, TokenId)> = weights.zip(0..).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        all.truncate(if s.top_k == 0 { all.len() } else { s.top_k });
        let total: f64 = all.iter().map(|(weight, _)| weight).sum();
        let mut sum = 0.0;
        let reached = all.iter().position(|(weight, _)| {
            sum += weight;
            sum >= total * f64::from(s.top_p)
        });
        all.truncate(reached.map_or(all.len(), |last| last + 1));
        all.retain(|(weight, _)| *weight >= f64::from(s.min_p));
        all.sort_by_key(|(_, token)| *token);
        let mut left = draw * all.iter().map(|(weight, _)| weight).sum::<f64>();
        let drawn = all.iter().find(|(weight, _)| {
            left -= weight;
            left < 0.0
        });
        drawn.or(all.last()).unwrap().1
    }

    #[test]
    fn shortcuts_choose_what_the_plain_chain_chooses() {
        let mut rng = SplitMix64::new(11);
        let mut scratch = Scratch::new(1000);
        for seed in 0..500 {
            let logits: Vec<f32> = (0..1000).map(|_| 8.0 * rng.next_f64() as f32).collect();
            let mut pick = |choices: [f32; 3]| choices[(rng.next_u64() % 3) as usize];
            let s = Sampling {
                temperature: pick([0.3, 1.0, 5.0]),
                top_k: pick([0.0, 7.0, 400.0]) as usize,
                top_p: pick([1.0, 0.95, 0.5]),
                min_p: pick([0.0, 0.02, 0.3]),
                seed,
                ..Sampling::greedy()
            };
            let expected = plainly(&s, &logits, SplitMix64::new(seed).next_f64());
            let found = Sampler::new(s.clone(), &[], 1).sample(ScannedRow::new(&logits), None, &mut scratch);
            assert_eq!(found, Some(expected), "{s:?}");
        }
    }

    #[test]
    fn the_nucleus_may_be_wide() {
        // 2,000 equal tokens: 90 % of the mass is 1,800 of them.
        let mut candidates: Vec<_> = (0..2000).map(|token| Candidate { weight: 0.5, token }).collect();
        keep_nucleus(&mut candidates, 0.9);
        assert_eq!(candidates.len(), 1800);
        assert!(candidates.iter().all(|candidate| candidate.token < 1800));
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals_and_seeds_repeat() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), Some(Peak { token: 1, logit: 3.0 }));
        let run = |seed| histogram(Sampling { seed, ..sampling(|_| ()) }, &LOGITS);
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn penalties_and_bias_move_logits() {
        let mut scratch = Scratch::new(3);
        let mut next = |change: fn(&mut Sampling), prompt: &[u32], logits: &[f32], times: usize| {
            let mut s = Sampling::greedy();
            change(&mut s);
            let mut sampler = Sampler::new(s, prompt, 8);
            (0..times)
                .map(|_| sampler.sample(ScannedRow::new(logits), None, &mut scratch).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(next(|s| s.logit_bias = vec![(2, 5.0)], &[], &[1.0, 0.0, 0.0], 1), [2]);
        assert_eq!(next(|s| s.repetition_penalty = 2.0, &[0], &[1.0, 0.9, 0.0], 1), [1]);
        assert_eq!(next(|s| s.repetition_penalty = 2.0, &[0], &[-1.0, -1.5, -9.0], 1), [1]);
        assert_eq!(next(|s| s.presence_penalty = 0.5, &[0], &[1.0, 0.9, 0.0], 3), [0, 1, 0]);
        assert_eq!(next(|s| s.frequency_penalty = 0.5, &[], &[1.0, 0.9, -9.0], 4), [0, 1, 0, 1]);
    }

    #[test]
    fn infinite_logits_are_refused() {
        let mut sampler = Sampler::new(Sampling::greedy(), &[], 0);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(sampler.sample(ScannedRow::new(&[0.0, bad]), None, &mut Scratch::new(2)), None);
        }
    }

    #[test]
    fn settings_that_leave_no_token_choose_none() {
        let check = |change: fn(&mut Sampling), expect| {
            for temperature in [0.0, 1.0] {
                let mut s = Sampling { temperature, ..Sampling::greedy() };
                change(&mut s);
                let found =
                    Sampler::new(s, &[0], 1).sample(ScannedRow::new(&[1.0, 0.5]), None, &mut Scratch::new(2));
                assert_eq!(found, expect, "at temperature {temperature}");
            }
        };
        let forbidden = f32::NEG_INFINITY;
        check(|s| s.logit_bias = vec![(0, f32::NEG_INFINITY)], Some(1));
        check(|s| s.logit_bias = vec![(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)], None);
        check(|s| s.logit_bias = vec![(1, f32::INFINITY)], None);
        check(|s| s.repetition_penalty = 0.0, None);
        check(|s| s.logit_bias = vec![(7, 1.0), (1, 100.0)], Some(1));
        assert_eq!(argmax(&[forbidden, forbidden]), None);
        assert_eq!(argmax(&[]), None);
    }

    #[test]
    fn only_allowed_tokens_are_chosen() {
        let logits: Vec<f32> = (0..70).map(|token| token as f32 / 10.0).collect();
        let choices = |s: &Sampling, allowed: &[u32]| {
            let mut sampler = Sampler::new(s.clone(), &[], 200);
            let mut scratch = Scratch::new(logits.len());
            let chosen =
                (0..200).map(|_| sampler.sample(ScannedRow::new(&logits), Some(allowed), &mut scratch));
            chosen.collect::<Option<std::collections::BTreeSet<TokenId>>>()
        };
        let check = |s: &Sampling, allowed: &[u32], expect: Option<&[TokenId]>| {
            assert_eq!(choices(s, allowed), expect.map(|tokens| tokens.iter().copied().collect()), "{s:?}");
        };
        let greedy = Sampling::greedy();
        let warm = Sampling { temperature: 2.0, seed: 3, ..Sampling::greedy() };
        check(&greedy, &[1 << 3, u32::MAX, 1 << 5], Some(&[69]));
        check(&greedy, &[1 << 3 | 1 << 9], Some(&[9]));
        check(&warm, &[1 << 3, 1 << 31], Some(&[3, 63]));
        check(&Sampling { top_k: 1, ..warm.clone() }, &[1 << 3, 1 << 31], Some(&[63]));
        check(&Sampling { top_p: 0.999, min_p: 0.001, ..warm.clone() }, &[3, 0, 1], Some(&[0, 1, 64]));
        check(&greedy, &[0, 0, 0], None);
        check(&warm, &[], None);
        // A bias changes an allowed token only.
        let biased = Sampling { logit_bias: vec![(60, 50.0), (2, 9.0)], ..Sampling::greedy() };
        check(&biased, &[1 << 2 | 1 << 4], Some(&[2]));
    }

    #[test]
    fn log_probs_are_those_of_the_model() {
        let mut scratch = Scratch::new(4);
        let requested = LogProbs { top: 3, prompt: false, tokens: vec![3, 2, 9] };
        let (own, top) = log_probs(ScannedRow::new(&LOGITS), 3, &requested, &mut scratch);
        assert!((own - 0.125f32.ln()).abs() < 1e-6);
        let tokens: Vec<u32> = top.iter().map(|entry| entry.token).collect();
        assert_eq!(tokens, [2, 0, 1, 3, 2, 9]);
        assert!((top[0].logprob - 0.5f32.ln()).abs() < 1e-6);
        assert_eq!((top[3].logprob, top[4].logprob), (own, top[0].logprob));
        assert_eq!(top[5].logprob, f32::NEG_INFINITY, "outside the vocabulary");
        assert!(log_probs(ScannedRow::new(&LOGITS), 0, &LogProbs::default(), &mut scratch).1.is_empty());
    }
}
