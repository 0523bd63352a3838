//! Choice of the device or pair for a decoder: arithmetic over measurements. Nothing here runs or reads anything.

use narthex_spec::{DeviceName, DevicePlacement, PhaseSplit};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

/// Size of the request for which devices are compared: a short conversation with a paragraph as its answer.
pub(crate) const TYPICAL: RequestSize = RequestSize { prompt: 256, answer: 128 };

/// Minimum speedup of a pair over the best device. A pair holds the weights in memory twice.
const MIN_PAIR_SPEEDUP: f64 = 1.05;

/// Tokens of the shorter span that is measured.
pub(crate) const SHORT: usize = 2;

/// Maximum chunk in a record. The search for the break-even length visits every length up to the chunk.
const MAX_CHUNK: usize = 1 << 20;

fn chunk<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    let chunk = usize::deserialize(from)?;
    if chunk > MAX_CHUNK {
        let message = format!("expected a chunk of at most {MAX_CHUNK} tokens, found {chunk}");
        return Err(D::Error::custom(message));
    }
    Ok(chunk)
}

/// Size of a request in tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestSize {
    pub(crate) prompt: usize,
    pub(crate) answer: usize,
}

/// Times of a device in both phases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PhaseTimes {
    pub(crate) device: DeviceName,
    /// Maximum number of prompt tokens in one step.
    #[serde(deserialize_with = "chunk")]
    pub(crate) chunk: usize,
    /// Milliseconds to read a whole chunk.
    pub(crate) chunk_ms: f64,
    /// Milliseconds to read [`SHORT`] tokens.
    pub(crate) short_ms: f64,
    /// Milliseconds to generate a token.
    pub(crate) token_ms: f64,
}

/// Cost of moving keys and values from one device to another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Handover {
    pub(crate) prefill: DeviceName,
    pub(crate) decode: DeviceName,
    /// Milliseconds per token.
    pub(crate) token_ms: f64,
}

/// Measurements of a package on the devices of a machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measurements {
    pub(crate) devices: Vec<PhaseTimes>,
    /// Handover between the best two devices; `None` if one device is best in both phases.
    pub(crate) handover: Option<Handover>,
}

/// Fastest place for a decoder, and the reason.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DeviceChoice {
    pub(crate) place: DevicePlacement,
    pub(crate) why: String,
}

impl PhaseTimes {
    /// Returns the milliseconds of one step over this many tokens, by linear interpolation between the two measured
    /// lengths. For static graphs both lengths take the same time.
    fn step_ms(&self, tokens: usize) -> f64 {
        if tokens <= 1 {
            return self.token_ms * tokens as f64;
        }
        let beyond = (tokens - SHORT) as f64 / self.chunk.saturating_sub(SHORT).max(1) as f64;
        self.short_ms + beyond * (self.chunk_ms - self.short_ms).max(0.0)
    }

    /// Returns the milliseconds to read a prompt.
    fn prompt_ms(&self, tokens: usize) -> f64 {
        let chunk = self.chunk.max(1);
        (tokens / chunk) as f64 * self.chunk_ms + self.step_ms(tokens % chunk)
    }

    fn request_ms(&self, request: RequestSize) -> f64 {
        self.prompt_ms(request.prompt) + self.answer_ms(request)
    }

    /// Returns the milliseconds of the answer after its first token, which the prompt yields.
    fn answer_ms(&self, request: RequestSize) -> f64 {
        self.token_ms * request.answer.saturating_sub(1) as f64
    }
}

/// Two devices with their handover.
struct DevicePair<'a> {
    prefill: &'a PhaseTimes,
    decode: &'a PhaseTimes,
    /// Milliseconds per token.
    handover: f64,
}

impl DevicePair<'_> {
    /// Returns the shortest span for which prefill and handover are faster than reading it on the decode device; `None`
    /// if that is not even true for a whole chunk.
    fn break_even(&self) -> Option<usize> {
        let whole = self.prefill.chunk;
        let longest_loss = (SHORT..=whole).rev().find(|&tokens| !self.pays(tokens));
        match longest_loss {
            None => Some(SHORT),
            Some(loss) => (loss < whole).then_some(loss + 1),
        }
    }

    /// Returns whether a span is faster with a handover.
    fn pays(&self, tokens: usize) -> bool {
        self.handed_over_ms(tokens) < self.decode.prompt_ms(tokens)
    }

    fn handed_over_ms(&self, tokens: usize) -> f64 {
        self.prefill.prompt_ms(tokens) + self.handover * tokens as f64
    }

    fn request_ms(&self, request: RequestSize, break_even: usize) -> f64 {
        let chunk = self.prefill.chunk.max(1);
        let whole = request.prompt - request.prompt % chunk;
        let rest = request.prompt % chunk;
        let rest = if rest < break_even { self.decode.prompt_ms(rest) } else { self.handed_over_ms(rest) };
        self.handed_over_ms(whole) + rest + self.decode.answer_ms(request)
    }
}

impl Measurements {
    /// Returns the devices that are best in the two phases, if they differ.
    pub(crate) fn best_pair(&self) -> Option<PhaseSplit> {
        let times = self.devices.iter();
        let prefill =
            times.clone().min_by(|a, b| a.prompt_ms(TYPICAL.prompt).total_cmp(&b.prompt_ms(TYPICAL.prompt)));
        let prefill = prefill?.device;
        let decode = times.min_by(|a, b| a.token_ms.total_cmp(&b.token_ms))?.device;
        (prefill != decode).then_some(PhaseSplit { prefill, decode })
    }

    /// Returns the number of tokens from which the prefill device is faster; `None` if that was not measured, or is
    /// never the case.
    pub(crate) fn break_even(&self, split: PhaseSplit) -> Option<usize> {
        self.pair(split)?.break_even()
    }

    fn pair(&self, split: PhaseSplit) -> Option<DevicePair<'_>> {
        let PhaseSplit { prefill, decode } = split;
        let handover =
            self.handover.filter(|handover| (handover.prefill, handover.decode) == (prefill, decode))?;
        let [prefill, decode] =
            [prefill, decode].map(|name| self.devices.iter().find(|times| times.device == name));
        Some(DevicePair { prefill: prefill?, decode: decode?, handover: handover.token_ms })
    }

    /// Returns the device or pair with the shortest typical request; `None` if fewer than two devices were measured.
    pub(crate) fn choose(&self) -> Option<DeviceChoice> {
        if self.devices.len() < 2 {
            return None;
        }

        let mut times: Vec<(f64, DevicePlacement)> = self
            .devices
            .iter()
            .map(|times| (times.request_ms(TYPICAL), DevicePlacement::Single(times.device)))
            .collect();
        times.sort_by(|a, b| a.0.total_cmp(&b.0));

        let (best_ms, mut place) = times.first().copied()?;
        let mut handover = String::new();
        let divided = self.best_pair().and_then(|split| Some((split, self.pair(split)?)));
        if let Some((split, pair)) = divided {
            match pair.break_even() {
                Some(break_even) => {
                    let ms = pair.request_ms(TYPICAL, break_even);
                    times.push((ms, DevicePlacement::Phases(split)));
                    if ms * MIN_PAIR_SPEEDUP < best_ms {
                        place = DevicePlacement::Phases(split);
                    }
                }
                None => handover = format!("; the handover from {} costs more than it saves", split.prefill),
            }
        }

        let RequestSize { prompt, answer } = TYPICAL;
        let times: Vec<String> = times.iter().map(|(ms, place)| format!("{ms:.0} ms on {place}")).collect();
        let times = times.join(", ");
        let why = format!(
            "measured on this machine, a prompt of {prompt} tokens and an answer of {answer} take {times}{handover}"
        );
        Some(DeviceChoice { place, why })
    }
}

/// Explains the break-even length of a split; `None` if every span is faster on the prefill device.
pub(crate) fn explain_break_even(split: PhaseSplit, break_even: usize) -> Option<String> {
    let PhaseSplit { prefill, decode } = split;
    let text = format!(
        "{decode} reads fewer than {break_even} new tokens, since {prefill} with the handover is slower"
    );
    (break_even > SHORT).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Device with static graphs: 64 tokens take as long as two.
    fn npu(chunk_ms: f64, token_ms: f64) -> PhaseTimes {
        PhaseTimes { device: DeviceName::Qnn, chunk: 64, chunk_ms, short_ms: chunk_ms, token_ms }
    }

    /// Device on which two tokens take 12 ms, and each further token 0.5 ms.
    fn cpu() -> PhaseTimes {
        PhaseTimes { device: DeviceName::Cpu, chunk: 258, chunk_ms: 140.0, short_ms: 12.0, token_ms: 10.0 }
    }

    fn measured(devices: Vec<PhaseTimes>, token_ms: f64) -> Measurements {
        let mut measured = Measurements { devices, handover: None };
        measured.handover =
            measured.best_pair().map(|PhaseSplit { prefill, decode }| Handover { prefill, decode, token_ms });
        measured
    }

    const SPLIT: PhaseSplit = PhaseSplit { prefill: DeviceName::Qnn, decode: DeviceName::Cpu };

    #[test]
    fn a_fast_reader_and_a_fast_writer_are_joined() {
        // Four chunks of 10 ms and a handover of 256 tokens at 0.01 ms replace 139 ms of prefill on the CPU. That pays
        // off if generated tokens are cheap, but not if they take most of the time.
        let quick = PhaseTimes { token_ms: 1.0, ..cpu() };
        let found = measured(vec![npu(10.0, 8.0), quick], 0.01).choose().unwrap();
        assert_eq!(found.place, DevicePlacement::Phases(SPLIT));
        for part in ["170 ms on prefill=qnn,decode=cpu", "266 ms on cpu", "1056 ms on qnn", "prompt of 256"] {
            assert!(found.why.contains(part), "{}", found.why);
        }
        let slow = PhaseTimes { token_ms: 20.0, ..cpu() };
        let found = measured(vec![npu(10.0, 80.0), slow], 0.01).choose().unwrap();
        assert_eq!(found.place, DevicePlacement::Single(DeviceName::Cpu), "{}", found.why);
    }

    #[test]
    fn an_expensive_handover_keeps_one_device() {
        let quick = PhaseTimes { token_ms: 1.0, ..cpu() };
        let found = measured(vec![npu(10.0, 8.0), quick], 0.6).choose().unwrap();
        assert_eq!(found.place, DevicePlacement::Single(DeviceName::Cpu));
        assert!(found.why.contains("the handover from qnn costs more"), "{}", found.why);
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
        assert_eq!(Measurements::default().choose(), None);
    }

    #[test]
    fn a_break_even_is_where_the_level_line_meets_the_rising_one() {
        let check = |chunk_ms, handover, expected| {
            let PhaseSplit { prefill, decode } = SPLIT;
            let found = Measurements {
                devices: vec![npu(chunk_ms, 80.0), cpu()],
                handover: Some(Handover { prefill, decode, token_ms: handover }),
            };
            assert_eq!(found.break_even(SPLIT), expected, "{chunk_ms} ms, {handover} ms per token");
        };
        // In 20 ms the CPU reads 18 tokens (12 + 16 * 0.5), so the NPU is faster from 19 tokens on.
        check(20.0, 0.0, Some(19));
        check(10.0, 0.0, Some(2));
        // A handover of 0.25 ms per token halves the gain per token: 12 + (n - 2) * 0.5 > 20 + n * 0.25 from 37 tokens
        // on.
        check(20.0, 0.25, Some(37));
        check(40.0, 0.0, Some(59));
        check(50.0, 0.0, None);
        let other = PhaseSplit { prefill: DeviceName::WebGpu, decode: DeviceName::Cpu };
        assert_eq!(measured(vec![npu(20.0, 80.0), cpu()], 0.0).break_even(other), None);
    }

    #[test]
    fn the_rest_of_a_prompt_is_read_where_it_is_faster() {
        // 200 tokens are three chunks and 8 tokens. The 8 tokens are below the break-even of 19, so the CPU reads them.
        let (prefill, decode) = (npu(20.0, 80.0), cpu());
        let pair = DevicePair { prefill: &prefill, decode: &decode, handover: 0.0 };
        let request = RequestSize { prompt: 200, answer: 1 };
        assert_eq!(pair.request_ms(request, 19), 60.0 + 15.0);
        assert_eq!(pair.request_ms(request, 2), 80.0);
    }
}
