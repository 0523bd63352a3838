//! Prefixes in a storage: a later engine answers from them, and no storage changes an answer or stops the engine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use narthex_engine::{
    config::EngineConfig,
    engine_loop::{EngineLoop, Work},
    executor::{Executor, KvBlock, KvCopy, KvLimits, Limits, Logits, StepError, StepPlan},
    position::Position,
    prefix_storage::{BLOCK_TOKENS, BlockKey, BlockState, PrefixRead, PrefixStorage},
    request::Request,
    worker::{Drain, Engine, EngineExtensions, StorageProgress},
};
use narthex_spec::SlotId;
use narthex_testkit::{
    executor::{ClosedExecutor, FakeExecutor, KV},
    invariant,
    sink::Recorder,
};
use parking_lot::Mutex;

use crate::conversations::usage;

/// A storage in memory. Clones share their blocks.
#[derive(Clone, Default)]
struct MemoryStorage {
    blocks: Arc<Mutex<BTreeMap<BlockKey, KvBlock>>>,
    removed: Arc<Mutex<Vec<String>>>,
    /// Number of polls before a read ends.
    delay: usize,
    /// Number of blocks after which the queue of writes is full.
    room: Option<usize>,
    progress: StorageProgress,
}

struct MemoryRead {
    blocks: Vec<KvBlock>,
    delay: usize,
    progress: StorageProgress,
}

impl PrefixRead for MemoryRead {
    fn poll(&mut self) -> Option<Vec<KvBlock>> {
        let is_ready = self.delay == 0;
        self.progress.report();
        self.delay = self.delay.saturating_sub(1);
        is_ready.then(|| self.blocks.clone())
    }
}

impl PrefixStorage for MemoryStorage {
    fn key(&self, parent: Option<&BlockKey>, tokens: &[Position]) -> Option<BlockKey> {
        assert_eq!(tokens.len(), BLOCK_TOKENS);
        let mut hasher = DefaultHasher::new();
        (parent, tokens).hash(&mut hasher);
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&hasher.finish().to_le_bytes());
        Some(BlockKey { index: parent.map_or(0, |parent| parent.index + 1), hash })
    }

    fn state(&mut self, key: &BlockKey) -> BlockState {
        let blocks = self.blocks.lock();
        match self.room {
            _ if blocks.contains_key(key) => BlockState::Stored,
            Some(room) if blocks.len() >= room => BlockState::QueueFull,
            _ => BlockState::Missing,
        }
    }

    fn write(&mut self, key: BlockKey, block: KvBlock) {
        self.blocks.lock().insert(key, block);
    }

    fn read(&mut self, keys: Vec<BlockKey>) -> Box<dyn PrefixRead> {
        let stored = self.blocks.lock();
        let blocks = keys.iter().map_while(|key| stored.get(key).cloned()).collect();
        Box::new(MemoryRead { blocks, delay: self.delay, progress: self.progress.clone() })
    }

    fn remove(&mut self, key: &BlockKey, error: &StepError) {
        self.blocks.lock().remove(key);
        self.removed.lock().push(error.to_string());
    }
}

fn limits(slots: usize) -> Limits {
    Limits { slots, context: 1024, chunk: 16, batch: slots, vocab: 50, kv: KV }
}

fn engine(executor: impl Executor + 'static, storage: &MemoryStorage) -> EngineLoop {
    let config = EngineConfig::for_limits(executor.limits());
    EngineLoop::new(Box::new(executor), config).with_prefix_storage(Box::new(storage.clone()))
}

fn fake(storage: &MemoryStorage) -> EngineLoop {
    engine(FakeExecutor::new(limits(2)), storage)
}

fn submit(engine_loop: &mut EngineLoop, prompt: &[u32], max_tokens: usize) -> Recorder {
    let sink = Recorder::new();
    engine_loop.submit(Request::greedy(prompt.to_vec(), max_tokens, sink.clone())).unwrap();
    sink
}

/// Runs steps until nothing is left. Returns the number of steps that only waited for the storage.
fn drain(engine_loop: &mut EngineLoop) -> usize {
    let mut waits = 0;
    for _ in 0..20_000 {
        let work = engine_loop.step();
        invariant::check(&engine_loop.snapshot()).unwrap();
        waits += usize::from(work == Work::Waiting);
        if work == Work::Idle {
            return waits;
        }
    }
    panic!("the engine does not come to rest");
}

fn prompt(number: usize, length: usize) -> Vec<u32> {
    (0..length).map(|i| ((number * 17 + i * i * 7 + i) % 50) as u32).collect()
}

fn alone(prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let executor = FakeExecutor::new(limits(1));
    let config = EngineConfig::for_limits(executor.limits());
    let mut engine_loop = EngineLoop::new(Box::new(executor), config);
    let sink = submit(&mut engine_loop, prompt, max_tokens);
    while engine_loop.step() == Work::Busy {}
    sink.recording().tokens
}

/// Returns a storage with the blocks of a prompt and its answer.
fn filled(prompt: &[u32], max_tokens: usize) -> MemoryStorage {
    let storage = MemoryStorage::default();
    let mut engine_loop = fake(&storage);
    submit(&mut engine_loop, prompt, max_tokens);
    drain(&mut engine_loop);
    storage
}

/// Answers a prompt in a new engine, and checks the answer and the number of cached tokens.
fn check(engine_loop: &mut EngineLoop, prompt: &[u32], cached: usize) {
    let sink = submit(engine_loop, prompt, 9);
    drain(engine_loop);
    assert_eq!((sink.recording().tokens, usage(&sink).cached_tokens), (alone(prompt, 9), cached));
}

#[test]
fn a_later_engine_starts_with_the_stored_prefix() {
    let prompt = prompt(1, 300);
    let storage = filled(&prompt, 30);
    // 329 tokens were in the slot.
    assert_eq!(storage.blocks.lock().len(), 5);
    let mut engine_loop = fake(&storage);
    check(&mut engine_loop, &prompt, 4 * BLOCK_TOKENS);
    // The slot has more than the storage now.
    check(&mut engine_loop, &[&prompt[..], &[3, 4]].concat(), 300);
    // Another tail needs a part only.
    check(&mut fake(&storage), &[&prompt[..150], &[9; 60]].concat(), 2 * BLOCK_TOKENS);
    // The last token of a prompt always runs.
    check(&mut fake(&storage), &prompt[..256], 3 * BLOCK_TOKENS);
    check(&mut fake(&storage), &prompt[..BLOCK_TOKENS], 0);
    let conversation = [&prompt[..], &alone(&prompt, 30), &[1, 2]].concat();
    check(&mut fake(&storage), &conversation, 5 * BLOCK_TOKENS);
    assert!(storage.removed.lock().is_empty());
}

#[test]
fn a_stored_prefix_continues_that_of_a_slot() {
    let first = prompt(1, 300);
    let storage = filled(&first, 5);
    let mut engine_loop = fake(&storage);
    let short = [&first[..100], &[8; 5]].concat();
    check(&mut engine_loop, &short, BLOCK_TOKENS);
    check(&mut engine_loop, &first, 4 * BLOCK_TOKENS);
}

#[test]
fn blocks_are_stored_while_a_sequence_still_runs() {
    let storage = MemoryStorage::default();
    let mut engine_loop = fake(&storage);
    submit(&mut engine_loop, &prompt(1, 200), 100);
    for _ in 0..40 {
        engine_loop.step();
    }
    assert_eq!((engine_loop.stats().running, storage.blocks.lock().len()), (1, 3));
}

#[test]
fn a_prefix_that_loses_its_slot_and_then_its_memory_is_stored() {
    let kv = KvLimits { budget: 1600, ..KV };
    let limits = Limits { kv, ..limits(2) };
    let storage = MemoryStorage::default();
    let mut engine_loop = engine(FakeExecutor::new(limits), &storage);
    let prompts: Vec<Vec<u32>> = (0..12).map(|number| prompt(number, 300)).collect();
    // All of them run without a pause, so the slots have no time to store their blocks.
    let sinks: Vec<Recorder> = prompts.iter().map(|prompt| submit(&mut engine_loop, prompt, 1)).collect();
    while sinks.iter().any(|sink| sink.recording().ends.is_empty()) {
        engine_loop.step();
    }
    let blocks = storage.blocks.lock().len();
    assert!(blocks > 8, "{blocks}");
    engine_loop.release_prefixes();
    drain(&mut engine_loop);
    for prompt in &prompts {
        check(&mut fake(&storage), prompt, 4 * BLOCK_TOKENS);
    }
}

#[test]
fn others_run_while_a_prefix_is_read() {
    let first = prompt(1, 200);
    let storage = MemoryStorage { delay: 30, ..filled(&first, 5) };
    let mut engine_loop = fake(&storage);
    let other = submit(&mut engine_loop, &prompt(2, 20), 20);
    engine_loop.step();
    let sink = submit(&mut engine_loop, &first, 9);
    let waits = drain(&mut engine_loop);
    assert!((5..30).contains(&waits), "{waits}");
    assert_eq!(other.recording().tokens, alone(&prompt(2, 20), 20));
    assert_eq!((sink.recording().tokens, usage(&sink).cached_tokens), (alone(&first, 9), 3 * BLOCK_TOKENS));
    // A look-up whose sequence is cancelled holds nothing up.
    let cancelled = Recorder::new();
    let mut engine_loop = fake(&storage);
    let handle = engine_loop.submit(Request::greedy(first.clone(), 9, cancelled.clone())).unwrap();
    assert_eq!(engine_loop.step(), Work::Waiting);
    handle.cancel();
    assert_eq!(engine_loop.step(), Work::Idle);
    assert_eq!(cancelled.recording().ends.len(), 1);
}

#[test]
fn blocks_that_do_not_fit_are_removed_and_run() {
    let first = prompt(1, 300);
    let spoil = |index: usize, block: &dyn Fn(&KvBlock) -> KvBlock, cached: usize, expect: &str| {
        let storage = filled(&first, 5);
        storage.blocks.lock().values_mut().skip(index).for_each(|value| *value = block(value));
        let mut engine_loop = fake(&storage);
        check(&mut engine_loop, &first, cached);
        let removed = storage.removed.lock();
        assert!(removed.len() == 1 && removed[0].contains(expect), "{removed:?}");
        assert_eq!(storage.blocks.lock().len(), 4, "the removed block is written again");
    };
    let empty = KvBlock::new(0, Vec::new()).unwrap();
    spoil(0, &|_| empty.clone(), 0, "expected a block of 64 tokens, found 0");
    let long = KvBlock::new(1 << 40, Vec::new()).unwrap();
    spoil(2, &|_| long.clone(), 2 * BLOCK_TOKENS, "found 1099511627776");
    let twice = |block: &KvBlock| KvBlock::new(64, [block.layers(), block.layers()].concat()).unwrap();
    spoil(1, &twice, BLOCK_TOKENS, "expected 1 layers of keys and values, found 2");
}

#[test]
fn a_full_queue_ends_the_writes_and_nothing_else() {
    let storage = MemoryStorage { room: Some(2), ..MemoryStorage::default() };
    let mut engine_loop = fake(&storage);
    let sink = submit(&mut engine_loop, &prompt(1, 300), 9);
    while engine_loop.step() == Work::Busy {}
    assert!((0..100).all(|_| engine_loop.step() == Work::Waiting), "the queue is still full");
    engine_loop.give_up_storage();
    assert_eq!(engine_loop.step(), Work::Idle);
    assert_eq!(sink.recording().tokens, alone(&prompt(1, 300), 9));
    assert_eq!(storage.blocks.lock().len(), 2);
    submit(&mut engine_loop, &prompt(2, 300), 9);
    assert_eq!(drain(&mut engine_loop), 0);
}

#[test]
fn an_executor_that_hands_nothing_over_answers_without_the_storage() {
    let storage = MemoryStorage::default();
    check(&mut engine(ClosedExecutor(FakeExecutor::new(limits(2))), &storage), &prompt(1, 300), 0);
    assert!(storage.blocks.lock().is_empty());
}

/// An executor whose keys are those of sequences of at most `portable` tokens until a sequence becomes longer.
struct Switching {
    fake: FakeExecutor,
    portable: usize,
    /// Longest sequence of each slot since it was emptied.
    longest: Vec<usize>,
    /// Tokens that were written to slots.
    restored: Arc<Mutex<Vec<u32>>>,
}

impl Switching {
    fn new(portable: usize) -> Self {
        let fake = FakeExecutor::new(limits(2));
        Self { fake, portable, longest: vec![0; 2], restored: Arc::default() }
    }
}

impl Executor for Switching {
    fn limits(&self) -> &Limits {
        self.fake.limits()
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        for span in &plan.spans {
            let longest = &mut self.longest[span.slot.index()];
            *longest = (*longest).max(span.at + span.tokens.len());
        }
        self.fake.execute(plan)
    }

    fn logits(&self) -> Logits<'_> {
        self.fake.logits()
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        if len == 0 {
            self.longest[slot.index()] = 0;
        }
        self.fake.truncate(slot, len)
    }

    fn read_kv(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
        assert!(self.is_portable(slot), "keys of a longer sequence are stored");
        self.fake.read_kv(slot, range)
    }

    fn write_kv(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
        assert!(at == 0 || self.is_portable(slot), "keys of two kinds are in one slot");
        self.fake.write_kv(slot, at, block)
    }

    fn copy_kv(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        self.longest[copy.to.index()] = self.longest[copy.from.index()];
        self.fake.copy_kv(copy)
    }

    fn record_tokens(&mut self, _: SlotId, _: usize, tokens: &[Position]) {
        self.restored.lock().extend(tokens.iter().filter_map(|position| position.as_token()));
    }

    fn portable_length(&self) -> usize {
        self.portable
    }

    fn is_portable(&self, slot: SlotId) -> bool {
        self.longest[slot.index()] <= self.portable
    }
}

#[test]
fn only_keys_that_do_not_depend_on_the_length_are_stored_and_written() {
    let first = prompt(1, 300);
    let storage = MemoryStorage::default();
    let mut engine_loop = engine(Switching::new(200), &storage);
    // The first blocks are stored before the sequence becomes too long.
    check(&mut engine_loop, &first, 0);
    let stored = storage.blocks.lock().len();
    assert!((1..=3).contains(&stored), "{stored}");
    let executor = Switching::new(200);
    let restored = executor.restored.clone();
    let mut engine_loop = engine(executor, &storage);
    check(&mut engine_loop, &first, 0);
    assert!(restored.lock().is_empty());
    // The slot of the longer sequence has the first tokens, which count as cached.
    check(&mut engine_loop, &[&first[..40], &[9; 40]].concat(), 40);
    let executor = Switching::new(200);
    let restored = executor.restored.clone();
    check(&mut engine(executor, &storage), &first[..150], stored.min(2) * BLOCK_TOKENS);
    assert_eq!(*restored.lock(), first[..stored.min(2) * BLOCK_TOKENS]);
}

/// An executor that loses its device at the first block that is written, or fails.
struct Failing(FakeExecutor, Option<StepError>);

impl Executor for Failing {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        self.0.execute(plan)
    }

    fn logits(&self) -> Logits<'_> {
        self.0.logits()
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        self.0.truncate(slot, len)
    }

    fn write_kv(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
        match self.1.take() {
            Some(error) => Err(error),
            None => self.0.write_kv(slot, at, block),
        }
    }
}

#[test]
fn a_write_to_a_slot_that_fails_costs_time_and_no_answer() {
    let first = prompt(1, 300);
    for error in [
        StepError::OutOfMemory { rows: 1, capacity: 8, wanted: 9 },
        StepError::Lost { message: "gone".to_owned() },
    ] {
        let storage = filled(&first, 5);
        let executor = Failing(FakeExecutor::new(limits(2)), Some(error.clone()));
        let mut engine_loop = engine(executor, &storage);
        let sink = submit(&mut engine_loop, &first, 9);
        drain(&mut engine_loop);
        assert_eq!(sink.recording().tokens, alone(&first, 9), "{error}");
    }
}

#[test]
fn a_shutdown_stores_what_the_slots_have() {
    for drain in [Drain::Now, Drain::Finish] {
        // Without reports of progress, each poll of a read would take the engine seconds.
        let storage = MemoryStorage { delay: 1000, ..MemoryStorage::default() };
        let first = prompt(1, 300);
        for cached in [0, 4 * BLOCK_TOKENS] {
            let storage = MemoryStorage { progress: StorageProgress::default(), ..storage.clone() };
            let executor = FakeExecutor::new(limits(2));
            let config = EngineConfig::for_limits(executor.limits());
            let extensions = EngineExtensions {
                prefix_storage: Some(Box::new(storage.clone())),
                storage_progress: storage.progress.clone(),
                ..EngineExtensions::default()
            };
            let engine = Engine::start_with(Box::new(executor), extensions, config).unwrap();
            let sink = Recorder::new();
            engine.submit(Request::greedy(first.clone(), 9, sink.clone())).unwrap();
            let deadline = Instant::now() + Duration::from_secs(30);
            while sink.recording().ends.is_empty() {
                assert!(Instant::now() < deadline, "the engine does not see the progress of its storage");
                std::thread::yield_now();
            }
            engine.shutdown(drain);
            assert_eq!((sink.recording().tokens, usage(&sink).cached_tokens), (alone(&first, 9), cached));
        }
        assert_eq!(storage.blocks.lock().len(), 4);
    }
}

#[test]
fn nothing_of_slots_with_states_is_stored() {
    let storage = MemoryStorage::default();
    let kv = KvLimits { bytes_per_slot: 10, ..KV };
    for _ in 0..2 {
        let mut engine_loop = engine(FakeExecutor::new(Limits { kv, ..limits(2) }), &storage);
        let sink = submit(&mut engine_loop, &prompt(1, 200), 5);
        drain(&mut engine_loop);
        assert_eq!(usage(&sink).cached_tokens, 0);
    }
    assert!(storage.blocks.lock().is_empty());
}
