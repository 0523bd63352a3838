//! Which device, or which two, a decoder runs on: arithmetic over what was measured. Nothing here runs or reads anything.

use narthex_spec::{DeviceName, DevicePlacement, PhaseSplit};
use serde::{Deserialize, Serialize};

/// The request that devices are weighed by: a short conversation with a paragraph as its answer.
pub(crate) const TYPICAL: Typical = Typical { prompt: 256, answer: 128 };

/// A pair keeps the weights in memory twice, so it must be faster than the best device by this factor.
const WORTH: f64 = 1.05;

/// Tokens of the shorter span that is measured.
pub(crate) const SHORT: usize = 2;

/// A request's size in tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Typical {
    pub(crate) prompt: usize,
    pub(crate) answer: usize,
}

/// How fast a device is in both phases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Phases {
    pub(crate) device: DeviceName,
    /// The most tokens that it reads in one step.
    pub(crate) chunk: usize,
    /// Milliseconds to read that many.
    pub(crate) chunk_ms: f64,
    /// Milliseconds to read [`SHORT`] tokens.
    pub(crate) short_ms: f64,
    /// Milliseconds to write a token.
    pub(crate) token_ms: f64,
}

/// What it costs to hand keys and values from one device to another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Handover {
    pub(crate) prefill: DeviceName,
    pub(crate) decode: DeviceName,
    /// Milliseconds per token.
    pub(crate) token_ms: f64,
}

/// What was measured of a package on the devices of a machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) devices: Vec<Phases>,
    /// Between the best two; `None` where one device is best at both.
    pub(crate) handover: Option<Handover>,
}

/// Where a decoder runs, and why.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Choice {
    pub(crate) place: DevicePlacement,
    pub(crate) why: String,
}

impl Phases {
    /// Milliseconds to read so many tokens in one step: on a line through the two lengths that were measured. A graph of
    /// fixed shape takes equally long for all, and the line is level.
    fn span_ms(&self, tokens: usize) -> f64 {
        if tokens <= 1 {
            return self.token_ms * tokens as f64;
        }
        let beyond = (tokens - SHORT) as f64 / self.chunk.saturating_sub(SHORT).max(1) as f64;
        self.short_ms + beyond * (self.chunk_ms - self.short_ms).max(0.0)
    }

    /// Milliseconds to read a prompt.
    fn prompt_ms(&self, tokens: usize) -> f64 {
        let chunk = self.chunk.max(1);
        (tokens / chunk) as f64 * self.chunk_ms + self.span_ms(tokens % chunk)
    }

    fn request_ms(&self, request: Typical) -> f64 {
        self.prompt_ms(request.prompt) + self.answer_ms(request)
    }

    /// The first token comes out of the prompt.
    fn answer_ms(&self, request: Typical) -> f64 {
        self.token_ms * request.answer.saturating_sub(1) as f64
    }
}

/// A pair of devices with its handover.
struct Pair<'a> {
    prefill: &'a Phases,
    decode: &'a Phases,
    /// Milliseconds per token.
    handover: f64,
}

impl Pair<'_> {
    /// The shortest span from which on reading it on the prefill device, and handing it over, is faster than reading it
    /// on the decode device; `None` where not even a whole chunk is.
    fn break_even(&self) -> Option<usize> {
        let pays = |tokens: usize| self.far_ms(tokens) < self.decode.prompt_ms(tokens);
        let whole = self.prefill.chunk;
        let longest_loss = (SHORT..=whole).rev().find(|&tokens| !pays(tokens));
        match longest_loss {
            None => Some(SHORT),
            Some(loss) => (loss < whole).then_some(loss + 1),
        }
    }

    fn far_ms(&self, tokens: usize) -> f64 {
        self.prefill.prompt_ms(tokens) + self.handover * tokens as f64
    }

    fn request_ms(&self, request: Typical, break_even: usize) -> f64 {
        let chunk = self.prefill.chunk.max(1);
        let (whole, rest) = (request.prompt - request.prompt % chunk, request.prompt % chunk);
        let rest = if rest < break_even { self.decode.prompt_ms(rest) } else { self.far_ms(rest) };
        self.far_ms(whole) + rest + self.decode.answer_ms(request)
    }
}

impl Measured {
    /// The devices that are best at the two phases, if they differ.
    pub(crate) fn best_pair(&self) -> Option<PhaseSplit> {
        let best = |ms: &dyn Fn(&Phases) -> f64| {
            let found = self.devices.iter().min_by(|a, b| ms(a).total_cmp(&ms(b)));
            found.map(|phases| phases.device)
        };
        let prefill = best(&|phases| phases.prompt_ms(TYPICAL.prompt))?;
        let decode = best(&|phases| phases.token_ms)?;
        (prefill != decode).then_some(PhaseSplit { prefill, decode })
    }

    /// From how many tokens on a span is read on the prefill device of a split; `None` where that was not measured, or
    /// never pays.
    pub(crate) fn break_even(&self, split: PhaseSplit) -> Option<usize> {
        self.pair(split)?.break_even()
    }

    fn pair(&self, split: PhaseSplit) -> Option<Pair<'_>> {
        let PhaseSplit { prefill, decode } = split;
        let found = self.handover.filter(|found| (found.prefill, found.decode) == (prefill, decode))?;
        let side = |name| self.devices.iter().find(|phases| phases.device == name);
        Some(Pair { prefill: side(prefill)?, decode: side(decode)?, handover: found.token_ms })
    }

    /// The device or the pair that answers the typical request soonest; `None` where fewer than two devices were
    /// measured, so that there is nothing to choose.
    pub(crate) fn choose(&self) -> Option<Choice> {
        if self.devices.len() < 2 {
            return None;
        }
        let single = |phases: &Phases| (phases.request_ms(TYPICAL), DevicePlacement::Single(phases.device));
        let mut times: Vec<(f64, DevicePlacement)> = self.devices.iter().map(single).collect();
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (best_ms, mut place) = times.first().copied()?;
        let mut dear = String::new();
        let divided = self.best_pair().and_then(|split| Some((split, self.pair(split)?)));
        if let Some((split, pair)) = divided {
            match pair.break_even() {
                Some(break_even) => {
                    let ms = pair.request_ms(TYPICAL, break_even);
                    times.push((ms, DevicePlacement::Phases(split)));
                    if ms * WORTH < best_ms {
                        place = DevicePlacement::Phases(split);
                    }
                }
                None => {
                    dear = format!("; handing over what {} reads costs more than it saves", split.prefill)
                }
            }
        }
        let Typical { prompt, answer } = TYPICAL;
        let told: Vec<String> = times.iter().map(|(ms, place)| format!("{ms:.0} ms on {place}")).collect();
        let told = told.join(", ");
        let why = format!(
            "measured on this machine, a prompt of {prompt} tokens and an answer of {answer} take {told}{dear}"
        );
        Some(Choice { place, why })
    }
}

/// What a split says of its break-even; nothing where every span pays.
pub(crate) fn below(split: PhaseSplit, break_even: usize) -> Option<String> {
    let PhaseSplit { prefill, decode } = split;
    let text = format!(
        "fewer than {break_even} new tokens are read on {decode}: {prefill} and the handover take longer"
    );
    (break_even > SHORT).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A graph of fixed shape: 64 tokens take as long as two.
    fn npu(chunk_ms: f64, token_ms: f64) -> Phases {
        Phases { device: DeviceName::Qnn, chunk: 64, chunk_ms, short_ms: chunk_ms, token_ms }
    }

    /// Two tokens take 12 ms, and each further one half a millisecond.
    fn cpu() -> Phases {
        Phases { device: DeviceName::Cpu, chunk: 258, chunk_ms: 140.0, short_ms: 12.0, token_ms: 10.0 }
    }

    fn measured(devices: Vec<Phases>, token_ms: f64) -> Measured {
        let mut measured = Measured { devices, handover: None };
        measured.handover =
            measured.best_pair().map(|PhaseSplit { prefill, decode }| Handover { prefill, decode, token_ms });
        measured
    }

    const SPLIT: PhaseSplit = PhaseSplit { prefill: DeviceName::Qnn, decode: DeviceName::Cpu };

    #[test]
    fn a_fast_reader_and_a_fast_writer_are_joined() {
        // Four chunks of 10 ms and 256 tokens of 0.01 ms instead of 139 ms are worth it where answers are cheap, and not
        // where they are nearly everything.
        let quick = Phases { token_ms: 1.0, ..cpu() };
        let found = measured(vec![npu(10.0, 8.0), quick], 0.01).choose().unwrap();
        assert_eq!(found.place, DevicePlacement::Phases(SPLIT));
        for part in ["170 ms on prefill=qnn,decode=cpu", "266 ms on cpu", "1056 ms on qnn", "prompt of 256"] {
            assert!(found.why.contains(part), "{}", found.why);
        }
        let slow = Phases { token_ms: 20.0, ..cpu() };
        let found = measured(vec![npu(10.0, 80.0), slow], 0.01).choose().unwrap();
        assert_eq!(found.place, DevicePlacement::Single(DeviceName::Cpu), "{}", found.why);
    }

    #[test]
    fn a_handover_that_is_too_dear_keeps_one_device() {
        let quick = Phases { token_ms: 1.0, ..cpu() };
        let found = measured(vec![npu(10.0, 8.0), quick], 0.6).choose().unwrap();
        assert_eq!(found.place, DevicePlacement::Single(DeviceName::Cpu));
        assert!(found.why.contains("handing over what qnn reads costs more"), "{}", found.why);
    }

    #[test]
    fn a_device_that_is_best_at_both_is_alone() {
        let measured = measured(vec![cpu(), npu(10.0, 5.0)], 0.0);
        assert_eq!((measured.best_pair(), measured.break_even(SPLIT)), (None, None));
        let found = measured.choose().unwrap();
        assert_eq!(found.place, DevicePlacement::Single(DeviceName::Qnn));
        // Four chunks and 127 tokens.
        assert!(found.why.contains("675 ms on qnn"), "{}", found.why);
    }

    #[test]
    fn one_device_leaves_nothing_to_choose() {
        assert_eq!(measured(vec![cpu()], 0.0).choose(), None);
        assert_eq!(Measured::default().choose(), None);
    }

    #[test]
    fn a_break_even_is_where_the_level_line_meets_the_rising_one() {
        let check = |chunk_ms, handover, expected| {
            let PhaseSplit { prefill, decode } = SPLIT;
            let found = Measured {
                devices: vec![npu(chunk_ms, 80.0), cpu()],
                handover: Some(Handover { prefill, decode, token_ms: handover }),
            };
            assert_eq!(found.break_even(SPLIT), expected, "{chunk_ms} ms, {handover} ms per token");
        };
        // 20 ms are those of 18 tokens on the CPU (12 + 16 * 0.5), so 19 are the first that are faster.
        check(20.0, 0.0, Some(19));
        check(10.0, 0.0, Some(2));
        // 0.25 ms per token halve what each token saves: 12 + (n - 2) * 0.5 > 20 + n * 0.25 from 37 tokens on.
        check(20.0, 0.25, Some(37));
        check(40.0, 0.0, Some(59));
        check(50.0, 0.0, None);
        let other = PhaseSplit { prefill: DeviceName::WebGpu, decode: DeviceName::Cpu };
        assert_eq!(measured(vec![npu(20.0, 80.0), cpu()], 0.0).break_even(other), None);
    }

    #[test]
    fn what_is_left_over_is_read_where_it_is_faster() {
        // 200 tokens are three chunks and 8 tokens: below the break-even of 19 they are the CPU's.
        let (prefill, decode) = (npu(20.0, 80.0), cpu());
        let pair = Pair { prefill: &prefill, decode: &decode, handover: 0.0 };
        let request = Typical { prompt: 200, answer: 1 };
        assert_eq!(pair.request_ms(request, 19), 60.0 + 15.0);
        assert_eq!(pair.request_ms(request, 2), 80.0);
    }
}
