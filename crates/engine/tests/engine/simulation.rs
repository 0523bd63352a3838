//! Ten thousand steps with seeded arrivals, cancellations and failures. Every invariant is checked after every step,
//! and every answer is compared with the answer to the same request on an engine of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use narthex_engine::{
    config::{EngineConfig, EngineStats},
    constraint::{AllowedTokens, Constraint, Progress},
    engine_loop::{EngineLoop, Work},
    executor::{KvLimits, Limits, StepError},
    request::{Finish, LogProbs, Request, Sampling, SequenceHandle},
    sample::SplitMix64,
};
use narthex_spec::Speculation;
use narthex_testkit::{
    executor::{FakeExecutor, Fault, Watch},
    invariant,
    sink::Recorder,
};

const STEPS: usize = 10_000;
const SEEDS: u64 = 16;

/// Behaviour of truncations. Failing ones retire slots with their contents, so the budget then has room for all slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Truncations {
    Sound,
    Failing,
}

struct World {
    rng: SplitMix64,
    engine_loop: EngineLoop,
    limits: Limits,
    /// Number of last tokens that the model's logits depend on; a small number makes answers repetitive.
    looks_back: usize,
    watch: Watch,
    submitted: Vec<Submitted>,
}

struct Submitted {
    ask: Ask,
    echo: bool,
    sink: Recorder,
    handle: SequenceHandle,
}

struct Ask {
    prompt: Vec<u32>,
    max_tokens: usize,
    stop: Vec<u32>,
    seed: u64,
    temperature: f32,
    is_constrained: bool,
}

/// A constraint that allows every third token, forces two tokens after some, and is complete after a multiple of 7 once
/// the answer has more than six tokens.
#[derive(Debug, Default)]
struct Thirds {
    accepted: Vec<u32>,
    forced: Vec<u32>,
    allowed: [u32; 1],
}

impl Constraint for Thirds {
    fn prepare(&mut self) {
        let last = self.accepted.last().copied().unwrap_or(0);
        self.allowed = [match self.forced.first() {
            Some(forced) => 1 << forced,
            None => (0..30).filter(|token| (token + last).is_multiple_of(3)).map(|token| 1 << token).sum(),
        }];
    }

    fn allowed(&self) -> AllowedTokens<'_> {
        AllowedTokens::Only(&self.allowed)
    }

    fn accept(&mut self, token: u32) -> Progress {
        assert!(self.is_allowed(token), "{token} after {:?}", self.accepted);
        if self.forced.is_empty() {
            if token.is_multiple_of(5) {
                self.forced = vec![(token + 11) % 30, (token + 17) % 30];
            }
        } else {
            self.forced.remove(0);
        }
        self.accepted.push(token);
        if self.accepted.len() > 6 && token.is_multiple_of(7) { Progress::Complete } else { Progress::Open }
    }

    fn forced(&mut self, tokens: &mut Vec<u32>) {
        tokens.extend(&self.forced);
    }
}

impl Thirds {
    fn is_allowed(&self, token: u32) -> bool {
        let last = self.accepted.last().copied().unwrap_or(0);
        self.forced.first().map_or((token + last).is_multiple_of(3), |&forced| forced == token)
    }

    /// Checks an answer, which may be incomplete. Returns the number of its forced tokens.
    fn check(answer: &[u32]) -> usize {
        let mut rule = Self::default();
        let forced = |rule: &Self| usize::from(!rule.forced.is_empty());
        answer
            .iter()
            .map(|&token| {
                let was_forced = forced(&rule);
                rule.accept(token);
                was_forced
            })
            .sum()
    }
}

impl Ask {
    fn request(&self, sink: Recorder, logprobs: Option<LogProbs>) -> Request {
        Request {
            stop: self.stop.clone(),
            sampling: Sampling { temperature: self.temperature, seed: self.seed, ..Sampling::greedy() },
            constraint: self.is_constrained.then(|| Box::new(Thirds::default()) as Box<dyn Constraint>),
            logprobs,
            ..Request::greedy(self.prompt.clone(), self.max_tokens, sink)
        }
    }

    /// Returns the answer to the request on an engine of its own, without speculation.
    fn alone(&self, limits: &Limits, looks_back: usize) -> (Finish, Vec<u32>) {
        let mut executor = FakeExecutor::new(limits.clone());
        executor.looks_back = looks_back;
        let config = EngineConfig { speculation: Speculation::Off, ..EngineConfig::for_limits(limits) };
        let mut engine_loop = EngineLoop::new(Box::new(executor), config);
        let sink = Recorder::new();
        engine_loop.submit(self.request(sink.clone(), None)).unwrap();
        while engine_loop.step() == Work::Busy {}
        let recording = sink.recording();
        (recording.ends[0].0.clone(), recording.tokens)
    }
}

impl World {
    fn new(seed: u64, truncations: Truncations, bytes_per_slot: usize) -> Self {
        let mut rng = SplitMix64::new(seed);
        let slots = 2 + below(&mut rng, 5);
        let steps = match truncations {
            Truncations::Sound => 9 + below(&mut rng, 40),
            Truncations::Failing => slots * 96 / 8,
        };
        let budget = 3 * 8 * steps + slots * bytes_per_slot;
        let kv = KvLimits { bytes_per_token: 3, bytes_per_slot, step: 8, budget };
        let limits = Limits {
            slots,
            context: 96,
            chunk: 1 + below(&mut rng, 20),
            batch: 1 + below(&mut rng, slots),
            vocab: 30,
            kv,
        };
        let config = EngineConfig {
            max_queue: 0,
            context: limits.context,
            max_running: 1 + below(&mut rng, slots),
            prefill_chunk: 1 + below(&mut rng, 30),
            step_token_budget: 1 + below(&mut rng, 40),
            token_latency: None,
            speculation: Speculation::Auto,
        };
        let mut executor = FakeExecutor::new(limits.clone());
        let looks_back = if below(&mut rng, 2) == 0 || bytes_per_slot > 0 { usize::MAX } else { 1 };
        executor.looks_back = looks_back;
        executor.faults = (0..STEPS).map(|_| fault(&mut rng)).collect();
        executor.copy_faults = (0..STEPS).map(|_| fault(&mut rng)).collect();
        executor.write_faults = (0..STEPS).map(|_| fault(&mut rng)).collect();
        if truncations == Truncations::Failing {
            // At most all slots but one fail, so that the engine can continue.
            let failing = (1..slots).flat_map(|_| {
                let sound = std::iter::repeat_n(Fault::None, below(&mut rng, 200));
                sound.chain([Fault::Error(StepError::Device { message: "stuck".into() })])
            });
            executor.truncate_faults = failing.collect();
        }
        let watch = executor.watch();
        let engine_loop = EngineLoop::new(Box::new(executor), config);
        Self { engine_loop, rng, limits, looks_back, watch, submitted: Vec::new() }
    }

    fn arrive(&mut self) {
        let rng = &mut self.rng;
        // Some prompts are repeated exactly.
        let length = if below(rng, 4) == 0 { 20 } else { 1 + below(rng, 60) };
        // Few distinct prefixes, so that they are shared.
        let family = below(rng, 4) as u32;
        let sink = match below(rng, 8) {
            0 => Recorder::leaving_after(1 + below(rng, 5)),
            _ => Recorder::new(),
        };
        let ask = Ask {
            prompt: (0..length).map(|i| (family * 5 + i as u32) % 30).collect(),
            max_tokens: below(rng, 40).saturating_sub(8),
            stop: vec![below(rng, 30) as u32],
            seed: rng.next_u64(),
            temperature: if below(rng, 3) == 0 { 0.0 } else { 1.0 },
            is_constrained: below(rng, 3) == 0,
        };
        let echo = below(rng, 5) == 0;
        let logprobs = echo.then_some(LogProbs { top: 2, prompt: true, tokens: Vec::new() });
        let handle = self.engine_loop.submit(ask.request(sink.clone(), logprobs)).unwrap();
        self.submitted.push(Submitted { ask, echo, sink, handle });
    }

    fn depart(&mut self) {
        if !self.submitted.is_empty() {
            let newest = self.submitted.len() - 1;
            self.submitted[newest - below(&mut self.rng, 8.min(newest + 1))].handle.cancel();
        }
    }

    fn step(&mut self) -> Work {
        let work = self.engine_loop.step();
        invariant::check_engine(&self.engine_loop, &self.watch).unwrap();
        work
    }
}

fn below(rng: &mut SplitMix64, bound: usize) -> usize {
    (rng.next_u64() % bound as u64) as usize
}

fn fault(rng: &mut SplitMix64) -> Fault {
    match below(rng, 150) {
        0 => Fault::Error(StepError::Device { message: "injected".into() }),
        1..5 => Fault::Error(StepError::OutOfMemory { rows: 1, capacity: 8, wanted: 1 }),
        5 => Fault::NotANumber,
        6 => Fault::Lost,
        _ => Fault::None,
    }
}

/// Compares every answer with that of an engine of its own. Returns the number of complete answers.
fn compare_with_alone(world: &World) -> usize {
    let (mut complete, mut forced) = (0, 0);
    for (number, submitted) in world.submitted.iter().enumerate() {
        let recording = submitted.sink.recording();
        assert_eq!(recording.ends.len(), 1, "sequence {number}");
        let (finish, tokens) = submitted.ask.alone(&world.limits, world.looks_back);
        assert!(
            tokens.starts_with(&recording.tokens),
            "sequence {number}: {:?} of {tokens:?}",
            recording.tokens
        );
        let echoed: Vec<u32> = recording.prompt.iter().map(|(token, _)| *token).collect();
        assert!(submitted.ask.prompt.starts_with(&echoed), "sequence {number}: {echoed:?}");
        if submitted.ask.is_constrained {
            forced += Thirds::check(&recording.tokens);
        }
        let whole = matches!(recording.ends[0].0, Finish::Stop | Finish::Length);
        if whole {
            assert_eq!((&recording.ends[0].0, &recording.tokens), (&finish, &tokens), "sequence {number}");
            assert_eq!(echoed.len(), if submitted.echo { submitted.ask.prompt.len() } else { 0 });
        }
        complete += usize::from(whole);
    }
    assert!(forced > 50, "{forced} tokens were forced");
    complete
}

fn simulate(seed: u64, truncations: Truncations, bytes_per_slot: usize) -> EngineStats {
    let mut world = World::new(seed, truncations, bytes_per_slot);
    for _ in 0..STEPS {
        if world.engine_loop.waiting() < 6 && below(&mut world.rng, 3) == 0 {
            world.arrive();
        }
        if below(&mut world.rng, 80) == 0 {
            world.depart();
        }
        world.step();
    }
    let left = (0..STEPS).take_while(|_| world.step() == Work::Busy).count();
    assert!(left < STEPS, "the engine does not come to rest");
    let (all, stats) = (world.submitted.len(), world.engine_loop.stats());
    let complete = compare_with_alone(&world);
    assert!(all > 200 && complete > all / 4, "{complete} of {all} were answered");
    assert!(stats.cached_tokens > 0 && stats.generated_tokens > 1000, "{stats:?}");
    assert!(stats.steps > STEPS as u64 / 2, "{stats:?}");
    stats
}

#[test]
fn invariants_hold_for_ten_thousand_steps() {
    let stats: Vec<EngineStats> = (0..SEEDS).map(|seed| simulate(seed, Truncations::Sound, 0)).collect();
    let sum = |count: fn(&EngineStats) -> u64| stats.iter().map(count).sum::<u64>();
    assert!(sum(|stats| stats.preemptions) > 100, "{stats:?}");
    assert!(sum(|stats| stats.restored_tokens) > 1000, "{stats:?}");
    let (accepted, rejected) = (sum(|stats| stats.accepted_tokens), sum(|stats| stats.rejected_tokens));
    assert!(accepted > 100 && rejected > 100, "{accepted} of drafts were accepted, {rejected} rejected");
}

#[test]
fn invariants_hold_while_slots_are_lost() {
    for seed in 100..100 + SEEDS / 2 {
        simulate(seed, Truncations::Failing, 0);
    }
}

#[test]
fn invariants_hold_for_slots_with_states() {
    let mut reused = 0;
    for seed in 200..200 + SEEDS {
        let truncations = if seed % 4 == 0 { Truncations::Failing } else { Truncations::Sound };
        let stats = simulate(seed, truncations, 40);
        assert_eq!((stats.accepted_tokens, stats.rejected_tokens, stats.restored_tokens), (0, 0, 0));
        reused += stats.cached_tokens;
    }
    assert!(reused > 10_000, "{reused}");
}
