//! Ten thousand steps of seeded arrivals, departures and failures, with every invariant checked after every step.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use narthex_engine::{
    core::{Core, Work},
    executor::{KvLimits, Limits, StepError},
    request::{LogProbs, Request, Sampling},
    sample::SplitMix64,
    worker::EngineConfig,
};
use narthex_testkit::{
    executor::{FakeExecutor, Mishap},
    sink::Recorder,
};

const STEPS: usize = 10_000;

struct World {
    rng: SplitMix64,
    core: Core,
    limits: Limits,
    submitted: Vec<(Recorder, Arc<AtomicBool>)>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let slots = 1 + below(&mut rng, 6);
        let kv = KvLimits { bytes_per_token: 3, step: 8, budget: 3 * 8 * (4 + below(&mut rng, 60)) };
        let limits =
            Limits { slots, context: 96, chunk: 1 + below(&mut rng, 20), batch: slots, vocab: 30, kv };
        let mut executor = FakeExecutor::new(limits.clone());
        executor.mishaps = mishaps(&mut rng);
        let core = Core::new(Box::new(executor), EngineConfig::for_limits(&limits));
        Self { rng, core, limits, submitted: Vec::new() }
    }

    fn arrive(&mut self) {
        let length = 1 + below(&mut self.rng, 60);
        // Few distinct beginnings, so that prefixes are shared.
        let family = below(&mut self.rng, 4) as u32;
        let prompt = (0..length).map(|i| (family * 5 + i as u32) % 30).collect();
        let sink = match below(&mut self.rng, 4) {
            0 => Recorder::leaving_after(1 + below(&mut self.rng, 5)),
            _ => Recorder::new(),
        };
        let echo = below(&mut self.rng, 5) == 0;
        let request = Request {
            prompt,
            max_tokens: 1 + below(&mut self.rng, 40),
            stop: vec![below(&mut self.rng, 30) as u32],
            sampling: Sampling { temperature: 1.0, seed: self.rng.next_u64(), ..Sampling::greedy() },
            logprobs: echo.then_some(LogProbs { top: 2, prompt: true }),
            sink: Box::new(sink.clone()),
        };
        let cancelled = Arc::new(AtomicBool::new(false));
        assert!(Core::check(&self.limits, &request).is_ok());
        self.core.submit(request, cancelled.clone());
        self.submitted.push((sink, cancelled));
    }

    fn depart(&mut self) {
        if !self.submitted.is_empty() {
            let who = below(&mut self.rng, self.submitted.len());
            self.submitted[who].1.store(true, Ordering::Relaxed);
        }
    }
}

fn below(rng: &mut SplitMix64, bound: usize) -> usize {
    (rng.next_u64() % bound as u64) as usize
}

fn mishaps(rng: &mut SplitMix64) -> VecDeque<Mishap> {
    let memory = StepError::OutOfMemory { rows: 1, capacity: 8, wanted: 1 };
    (0..STEPS)
        .map(|_| match below(rng, 60) {
            0 => Mishap::Error(StepError::Device { message: "injected".into() }),
            1 => Mishap::Error(memory.clone()),
            2 => Mishap::NotANumber,
            _ => Mishap::None,
        })
        .collect()
}

#[test]
fn invariants_hold_for_ten_thousand_steps() {
    for seed in 0..4 {
        let mut world = World::new(seed);
        for step in 0..STEPS {
            if world.core.waiting() < 6 && below(&mut world.rng, 3) == 0 {
                world.arrive();
            }
            if below(&mut world.rng, 40) == 0 {
                world.depart();
            }
            world.core.step();
            if let Err(broken) = world.core.snapshot().check() {
                panic!("seed {seed}, step {step}: {broken}");
            }
        }
        let mut left = 0;
        while world.core.step() == Work::Some {
            left += 1;
            assert!(left < STEPS, "seed {seed}: the engine does not come to rest");
        }
        assert!(world.submitted.len() > 100, "seed {seed}: {} arrivals", world.submitted.len());
        for (number, (sink, _)) in world.submitted.iter().enumerate() {
            assert_eq!(sink.heard().ends.len(), 1, "seed {seed}, sequence {number}");
        }
    }
}
