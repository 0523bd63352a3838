//! The chain of changes between logits and a draw, in the order that [`Sampling`] documents.

use std::collections::HashMap;

use narthex_spec::TokenId;

use super::rng::SplitMix64;
use crate::request::{Sampling, TokenLogProb};

/// How many of the likeliest tokens the nucleus is first sought among.
const FIRST_NUCLEUS: usize = 256;

/// One sequence's sampling: its settings, its generator, what it has seen.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    rng: SplitMix64,
    /// Occurrences in prompt and answer; kept only where a penalty asks.
    seen: HashMap<TokenId, Seen>,
    counts: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    generated: u32,
}

/// Buffers that all sequences of an engine share.
#[derive(Debug, Default)]
pub struct Scratch {
    logits: Vec<f32>,
    candidates: Vec<(f32, TokenId)>,
    top: Vec<TokenLogProb>,
}

impl Scratch {
    /// Buffers for a vocabulary; nothing is allocated after this.
    pub fn new(vocab: usize) -> Self {
        Self {
            logits: Vec::with_capacity(vocab),
            candidates: Vec::with_capacity(vocab),
            top: Vec::with_capacity(32),
        }
    }
}

impl Sampler {
    /// Starts a sequence with its prompt.
    pub fn new(sampling: Sampling, prompt: &[TokenId], room: usize) -> Self {
        let counts = sampling.repetition_penalty != 1.0
            || sampling.presence_penalty != 0.0
            || sampling.frequency_penalty != 0.0;
        let mut seen = HashMap::new();
        if counts {
            seen.reserve(prompt.len() + room);
            seen.extend(prompt.iter().map(|&token| (token, Seen::default())));
        }
        Self { rng: SplitMix64::new(sampling.seed), sampling, seen, counts }
    }

    /// The next token; `None` where a logit is not finite.
    pub fn sample(&mut self, logits: &[f32], scratch: &mut Scratch) -> Option<TokenId> {
        if !logits.iter().all(|x| x.is_finite()) {
            return None;
        }
        let token = if self.changes_logits() {
            scratch.logits.clear();
            scratch.logits.extend_from_slice(logits);
            let mut changed = std::mem::take(&mut scratch.logits);
            self.change(&mut changed);
            let token = self.choose(&changed, scratch);
            scratch.logits = changed;
            token
        } else {
            self.choose(logits, scratch)
        };
        if self.counts {
            self.seen.entry(token).or_default().generated += 1;
        }
        Some(token)
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
        for (&token, seen) in &self.seen {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / s.repetition_penalty } else { *logit * s.repetition_penalty };
            if seen.generated > 0 {
                *logit -= s.presence_penalty + s.frequency_penalty * seen.generated as f32;
            }
        }
    }

    fn choose(&mut self, logits: &[f32], scratch: &mut Scratch) -> TokenId {
        let s = &self.sampling;
        if s.temperature <= 0.0 {
            return argmax(logits);
        }
        let peak = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let temperature = s.temperature;
        let weight = |logit: f32| ((f64::from(logit) - f64::from(peak)) / f64::from(temperature)).exp();
        let candidates = &mut scratch.candidates;
        candidates.clear();
        candidates.extend(logits.iter().zip(0..).map(|(&logit, token)| (logit, token)));
        if s.top_k > 0 && s.top_k < candidates.len() {
            candidates.select_nth_unstable_by(s.top_k - 1, likelier);
            candidates.truncate(s.top_k);
        }
        if s.top_p < 1.0 {
            keep_nucleus(candidates, f64::from(s.top_p), weight);
        }
        if s.min_p > 0.0 {
            let least = weight(peak) * f64::from(s.min_p);
            candidates.retain(|(logit, _)| weight(*logit) >= least);
        }
        // The draw walks the tokens in order of their ids, whatever order the steps above left.
        candidates.sort_unstable_by_key(|(_, token)| *token);
        let total: f64 = candidates.iter().map(|(logit, _)| weight(*logit)).sum();
        let mut left = self.rng.next_f64() * total;
        for &(logit, token) in candidates.iter() {
            left -= weight(logit);
            if left < 0.0 {
                return token;
            }
        }
        candidates.last().map_or_else(|| argmax(logits), |(_, token)| *token)
    }
}

/// Falling logits; equal ones by rising id.
fn likelier(a: &(f32, TokenId), b: &(f32, TokenId)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Keeps the smallest set of likeliest candidates whose share of all reaches `top_p`.
fn keep_nucleus(candidates: &mut Vec<(f32, TokenId)>, top_p: f64, weight: impl Fn(f32) -> f64) {
    let total: f64 = candidates.iter().map(|(logit, _)| weight(*logit)).sum();
    let mut sorted = FIRST_NUCLEUS.min(candidates.len());
    loop {
        if sorted < candidates.len() {
            candidates.select_nth_unstable_by(sorted, likelier);
        }
        candidates[..sorted].sort_unstable_by(likelier);
        let mut sum = 0.0;
        let reached = candidates[..sorted].iter().position(|(logit, _)| {
            sum += weight(*logit);
            sum >= top_p * total
        });
        match reached {
            Some(last) => return candidates.truncate(last + 1),
            None if sorted == candidates.len() => return,
            None => sorted = (sorted * 4).min(candidates.len()),
        }
    }
}

/// The likeliest token; of equal ones the one with the lowest id.
fn argmax(logits: &[f32]) -> TokenId {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in (0..).zip(logits) {
        if logit > best.1 {
            best = (token, logit);
        }
    }
    best.0
}

/// Log-probabilities under the model's own distribution: the token's, and the `top` likeliest in falling order.
pub(crate) fn log_probs<'a>(
    logits: &[f32],
    token: TokenId,
    top: usize,
    scratch: &'a mut Scratch,
) -> (f32, &'a [TokenLogProb]) {
    let peak = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - peak).exp()).sum();
    let logprob = |logit: f32| (f64::from(logit) - peak - sum.ln()) as f32;
    let best = &mut scratch.top;
    best.clear();
    for (token, &logit) in (0..).zip(logits) {
        if best.len() == top && best.last().is_none_or(|last| last.logprob >= logit) {
            continue;
        }
        // While the list is gathered it holds logits; of equal ones the lower id stays first.
        let at = best.partition_point(|other| other.logprob >= logit);
        best.insert(at, TokenLogProb { token, logprob: logit });
        best.truncate(top);
    }
    best.iter_mut().for_each(|entry| entry.logprob = logprob(entry.logprob));
    (logits.get(token as usize).map_or(f32::NEG_INFINITY, |&logit| logprob(logit)), best)
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
            counts[sampler.choose(logits, &mut scratch) as usize] += 1;
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
        check(|s| s.temperature = 0.01, [0.0, 0.0, 1.0, 0.0]);
        check(|s| s.temperature = 0.5, [4.0 / 22.0, 1.0 / 22.0, 16.0 / 22.0, 1.0 / 22.0]);
    }

    #[test]
    fn the_nucleus_may_be_wide() {
        // 2,000 equal tokens: 90 % of the mass is 1,800 of them.
        let mut candidates: Vec<(f32, u32)> = (0..2000).map(|token| (0.0, token)).collect();
        keep_nucleus(&mut candidates, 0.9, |_| 1.0);
        assert_eq!(candidates.len(), 1800);
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals_and_seeds_repeat() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), 1);
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
            (0..times).map(|_| sampler.sample(logits, &mut scratch).unwrap()).collect::<Vec<_>>()
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
            assert_eq!(sampler.sample(&[0.0, bad], &mut Scratch::new(2)), None);
        }
    }

    #[test]
    fn log_probs_are_those_of_the_model() {
        let mut scratch = Scratch::new(4);
        let (own, top) = log_probs(&LOGITS, 3, 3, &mut scratch);
        assert!((own - 0.125f32.ln()).abs() < 1e-6);
        let tokens: Vec<u32> = top.iter().map(|entry| entry.token).collect();
        assert_eq!(tokens, [2, 0, 1]);
        assert!((top[0].logprob - 0.5f32.ln()).abs() < 1e-6);
        assert!(log_probs(&LOGITS, 0, 0, &mut scratch).1.is_empty());
    }
}
