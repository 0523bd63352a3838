//! Numerics check: before a package is served on a device for the first time, reference texts run there and on the CPU,
//! and the results must agree. The outcome is stored; a device that fails is quarantined for the package.

pub(crate) mod compare;
pub(crate) mod package_comparison;
pub(crate) mod reference_text;
mod speech;

use std::{cell::Cell, collections::BTreeSet};

use narthex_device::{
    ep::{Cause, Refusal},
    static_shapes::Form,
};
use narthex_engine::{
    encoder::{Encoder, Text},
    executor::{Executor, LogitRows, StepError, StepPlan},
};
use narthex_spec::{
    DeviceName, KvCacheDtype, SlotId, TokenId,
    manifest::Part,
    progress::{Stage, Unit},
};
use narthex_text::tokenizer::Specials;
use serde::{Deserialize, Serialize};

use crate::{
    cancel::Cancel,
    config::Config,
    error::Error,
    library::package::Package,
    load::{
        cache_key::{CacheKey, DeviceCache},
        request::{DeviceAssignment, LoadRequest},
        sessions::{self, Model},
    },
    report::models::{NumericsCheck, NumericsFigures},
};
use compare::{Position, TextSimilarity};

/// Record of a check.
const RECORD: &str = "verification.json";

/// Version of the reference texts and the bounds. Checks of other versions are repeated.
const CHECK_VERSION: u32 = 3;

/// Reference texts of several lengths: a few tokens, about thirty, and more than [`PIECE`].
const REFERENCE_TEXTS: [&str; 3] = [
    "The capital of France is",
    "The ferry left the harbour at dawn, and by noon the island was only a thin grey line behind the swell. The captain \
     read the barometer and said",
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    return total / len(values)\n\n\
     The function above adds the values one by one and divides by their number. It fails for an empty list, because a \
     division by zero has no result. Le chat dort sur la chaise, und der Hund liegt unter dem Tisch. To make it safe,",
];

/// Tokens of each text that are fed one by one after its prompt.
const STEPS: usize = 3;

/// Maximum length of a prompt in tokens, apart from those that fill an encoder's longer buckets.
const MAX_PROMPT: usize = 72;

/// Maximum number of prompt tokens in one call, so that on every device the rest of a longer prompt is read with past
/// tokens in the KV cache.
const PIECE: usize = 40;

/// Record of a package's check on a device.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Verification {
    version: u32,
    key: CacheKey,
    /// Reason of the quarantine; `None` for a device that passed.
    quarantine: Option<String>,
    /// Results of a model that generates tokens, in the order in which they ran.
    #[serde(default)]
    positions: Vec<Position>,
    /// Results of an encoder.
    #[serde(default)]
    texts: Vec<TextSimilarity>,
}

impl Verification {
    /// Returns the record of a check that has passed, without results.
    fn new(cache: &DeviceCache) -> Self {
        let positions = Vec::new();
        let texts = Vec::new();
        Self { version: CHECK_VERSION, key: cache.key.clone(), quarantine: None, positions, texts }
    }

    fn result(&self, device: DeviceName) -> CheckResult {
        match (&self.quarantine, self.figures()) {
            (Some(reason), _) => CheckResult::Quarantined(refusal(device, reason)),
            (None, Some(figures)) => CheckResult::Passed(NumericsCheck { device, figures }),
            (None, None) => CheckResult::NotCompared,
        }
    }

    /// Returns the figures of a check that has passed; `None` if it compared nothing.
    fn figures(&self) -> Option<NumericsFigures> {
        if let Some(lowest_cosine) = self.texts.iter().filter_map(|text| text.cosine).reduce(f64::min) {
            return Some(NumericsFigures::Encoder { texts: self.texts.len(), lowest_cosine });
        }
        let positions = self.positions.len();
        let sum: f64 = self.positions.iter().filter_map(|position| position.divergence).sum();
        let agreeing = self.positions.iter().filter(|position| position.agrees).count();
        (positions > 0).then(|| NumericsFigures::Decoder {
            positions,
            divergence: sum / positions as f64,
            agreement: agreeing as f64 / positions as f64,
        })
    }
}

/// Result of a check.
#[derive(Debug)]
pub(crate) enum CheckResult {
    /// The CPU cannot run the package, so that nothing was compared.
    NotCompared,
    /// The device agrees with the CPU.
    Passed(NumericsCheck),
    /// The device does not agree, or has computed values that are not finite.
    Quarantined(Refusal),
}

/// Checks a model on its device, unless a valid record exists.
///
/// # Errors
/// Errors that prevented the check.
pub(crate) fn check(
    request: &LoadRequest<'_>,
    devices: &DeviceAssignment,
    cache: &DeviceCache,
    model: &mut Model,
) -> Result<CheckResult, Error> {
    let name = devices.main.name;
    if let Some(record) = cache.record::<Verification>(RECORD, CHECK_VERSION)? {
        return Ok(record.result(name));
    }

    let manifest = request.manifest();
    if manifest.bound.is_some() {
        return Ok(CheckResult::NotCompared);
    }

    tracing::info!("checking {} on {} against the CPU, once", manifest.name, name.describe());
    let title = format!("Checking {} against the CPU, once", name.describe());
    let config = Config { slots: 1, kv_cache_dtype: KvCacheDtype::F32, ..(*request.config).clone() };
    let reference = LoadRequest { config: config.into(), ..request.clone() };
    let variant = request.variant(name, devices.head.as_ref());
    let mut reference = sessions::open(&reference, &DeviceAssignment::cpu(), variant, Form::Graph)?.model;
    let mut found = Verification::new(cache);
    let texts = reference_texts(&request.package)?;
    let generates = manifest.architecture.is_decoder() || manifest.speech.is_some();
    let total = texts.len() * if generates { STEPS + 1 } else { 1 };
    let stage = Stage::start(request.progress, title, Unit::Items, Some(total as u64));
    let done = Cell::new(0);
    let compared = || {
        done.set(done.get() + 1);
        stage.advance(done.get());
    };

    match (model, &mut reference) {
        (Model::Decoder(device), Model::Decoder(cpu)) => {
            found.positions = compare_decoders(device, cpu, &texts, &compared, &request.cancel)?;
            found.quarantine = compare::decoder_verdict(&found.positions);
        }
        (Model::Encoder(device), Model::Encoder(cpu)) => {
            found.texts = compare_encoders(device, cpu, &texts, &compared, &request.cancel)?;
            found.quarantine = compare::encoder_verdict(&found.texts);
        }
        (Model::Speech(device), Model::Speech(cpu)) => {
            let prompts = manifest.speech.as_ref().map(|speech| speech::transcripts(speech, &texts));
            let prompts = prompts.unwrap_or_default();
            found.positions = speech::compare_speech(device, cpu, &prompts, &compared, &request.cancel)?;
            found.quarantine = compare::decoder_verdict(&found.positions);
        }
        _ => {}
    }

    cache.store(RECORD, &found, "the check");
    Ok(found.result(name))
}

/// Quarantines a device whose values were not finite while it served.
pub(crate) fn quarantine(cache: &DeviceCache, reason: String) {
    let found = Verification { quarantine: Some(reason), ..Verification::new(cache) };
    cache.store(RECORD, &found, "the check");
}

fn refusal(name: DeviceName, reason: &str) -> Refusal {
    Refusal {
        cause: Cause::Refused,
        reason: format!("{} is in quarantine for this package: {reason}", name.describe()),
        fix: Some(
            "compile the model again, or install another driver or runtime; each starts a new check"
                .to_owned(),
        ),
    }
}

/// Returns the reference texts in the model's tokens, with one more for each of an encoder's buckets that none of them
/// uses, and for each of a decoder's contexts that none of them reaches.
pub(crate) fn reference_texts(package: &Package) -> Result<Vec<Vec<TokenId>>, Error> {
    let longest = MAX_PROMPT.min(package.manifest.max_length.saturating_sub(STEPS + 1)).max(1);
    let tokenizer = package.read_tokenizer()?;
    let mut texts = Vec::with_capacity(REFERENCE_TEXTS.len());
    for text in REFERENCE_TEXTS {
        let tokens = tokenizer.encode(text, Specials::AsText)?;
        texts.extend((!tokens.is_empty()).then_some(tokens));
    }
    let mut buckets = BTreeSet::new();
    let mut contexts = BTreeSet::new();
    for graph in &package.manifest.graphs {
        match graph.part {
            Part::Bucket { length } => drop(buckets.insert(length)),
            Part::Layers { past, .. } => drop(contexts.insert(past)),
            Part::Whole
            | Part::Chunk { .. }
            | Part::Head { .. }
            | Part::Encoder
            | Part::Decoder
            | Part::Vision
            | Part::Audio => {}
        }
    }
    let mut texts = fill_buckets(texts, longest, &buckets);
    texts.extend(exceed_contexts(texts.last().map_or(&[], Vec::as_slice), &contexts));
    Ok(texts)
}

/// Repeats a text until it is one token longer than each context but the longest, so that it runs in the next one.
fn exceed_contexts(text: &[TokenId], contexts: &BTreeSet<usize>) -> Vec<Vec<TokenId>> {
    let shorter = contexts.iter().rev().skip(1).rev().filter(|_| !text.is_empty());
    shorter.map(|&context| text.iter().copied().cycle().take(context + 1).collect()).collect()
}

/// Truncates texts to `longest` tokens, and adds one for each bucket that none of them uses. A text uses the shortest
/// bucket that holds it.
fn fill_buckets(
    mut texts: Vec<Vec<TokenId>>,
    longest: usize,
    buckets: &BTreeSet<usize>,
) -> Vec<Vec<TokenId>> {
    texts.iter_mut().for_each(|tokens| tokens.truncate(longest));
    let run: BTreeSet<usize> =
        texts.iter().filter_map(|tokens| buckets.range(tokens.len()..).next().copied()).collect();
    let lacking = buckets.difference(&run).zip(texts.iter().rev().cycle());
    let filling: Vec<Vec<TokenId>> =
        lacking.map(|(&bucket, tokens)| tokens.iter().copied().cycle().take(bucket).collect()).collect();
    texts.into_iter().chain(filling).collect()
}

/// Runs every text on both executors, then the CPU's own next tokens one by one. Calls `compared` after each step.
pub(crate) fn compare_decoders(
    device: &mut dyn Executor,
    cpu: &mut dyn Executor,
    texts: &[Vec<TokenId>],
    compared: &dyn Fn(),
    cancel: &Cancel,
) -> Result<Vec<Position>, Error> {
    let longest = device.limits().longest().min(cpu.limits().longest());
    let mut positions = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let answer = ReferenceAnswer::new(cpu, text, longest, cancel)?;
        positions.extend(answer.compare(index, device, compared, cancel)?);
    }
    Ok(positions)
}

/// Steps of a reference text with the logits that the reference returned, to be compared with another executor's.
pub(crate) struct ReferenceAnswer {
    /// Tokens that come before the first step.
    before: Vec<TokenId>,
    steps: Vec<ReferenceStep>,
}

/// New tokens, and the logits after the last of them.
struct ReferenceStep {
    tokens: Vec<TokenId>,
    logits: Vec<f32>,
}

impl ReferenceAnswer {
    /// Runs a text of at most `longest` tokens with its answer, then the reference's own next tokens one by one.
    pub(crate) fn new(
        reference: &mut dyn Executor,
        text: &[TokenId],
        longest: usize,
        cancel: &Cancel,
    ) -> Result<Self, Error> {
        let longest = longest.saturating_sub(STEPS + 1).max(1);
        let prompt = &text[..text.len().min(longest)];
        let mut at = prompt.len().saturating_sub(1) / PIECE * PIECE;
        cancel.check()?;
        let before = prompt[..at].to_vec();
        feed(reference, 0, &before)?;
        let mut tokens = prompt[at..].to_vec();
        let mut steps = Vec::with_capacity(STEPS + 1);
        for _ in 0..=STEPS {
            cancel.check()?;
            let logits = feed(reference, at, &tokens)?;
            at += tokens.len();
            let next = vec![compare::best(&logits) as TokenId];
            steps.push(ReferenceStep { tokens: std::mem::replace(&mut tokens, next), logits });
        }
        reference.truncate(SLOT, 0)?;
        Ok(Self { before, steps })
    }

    /// Runs the same steps on another executor. `text` is the index of the text. Calls `compared` after each step.
    pub(crate) fn compare(
        &self,
        text: usize,
        device: &mut dyn Executor,
        compared: &dyn Fn(),
        cancel: &Cancel,
    ) -> Result<Vec<Position>, Error> {
        feed(device, 0, &self.before)?;
        let mut at = self.before.len();
        let mut positions = Vec::with_capacity(self.steps.len());
        for ReferenceStep { tokens, logits } in &self.steps {
            cancel.check()?;
            let found = feed(device, at, tokens)?;
            at += tokens.len();
            positions.push(Position::new(text, at, logits, &found));
            compared();
        }
        device.truncate(SLOT, 0)?;
        Ok(positions)
    }
}

/// Slot of the checked sequence.
pub(crate) const SLOT: SlotId = SlotId(0);

/// Feeds tokens in chunks. Returns the logits after the last one.
pub(crate) fn feed(
    executor: &mut dyn Executor,
    at: usize,
    tokens: &[TokenId],
) -> Result<Vec<f32>, StepError> {
    let chunk = executor.limits().chunk.max(1);
    let mut at = at;
    let mut row = Vec::new();
    for part in tokens.chunks(chunk) {
        let mut plan = StepPlan::default();
        plan.push(SLOT, at, part, LogitRows::Last);
        row = executor.step(&plan)?.row(0).to_vec();
        at += part.len();
    }
    Ok(row)
}

/// Runs every text on both encoders. Calls `compared` after each text.
pub(crate) fn compare_encoders(
    device: &mut dyn Encoder,
    cpu: &mut dyn Encoder,
    texts: &[Vec<TokenId>],
    compared: &dyn Fn(),
    cancel: &Cancel,
) -> Result<Vec<TextSimilarity>, Error> {
    let longest = device.limits().max_length.min(cpu.limits().max_length);
    texts
        .iter()
        .enumerate()
        .map(|(text, tokens)| {
            cancel.check()?;
            let tokens = &tokens[..tokens.len().min(longest)];
            // A masked language model returns a row for the token in the middle.
            let text_run = [Text { requested: &[tokens.len() / 2], ..Text::of(tokens) }];
            let expected = cpu.run(&text_run)?;
            let found = device.run(&text_run)?;
            compared();
            let expected = compare::to_vector(expected.data);
            let found = compare::to_vector(found.data);
            Ok(TextSimilarity { text, tokens: tokens.len(), cosine: compare::cosine(&expected, &found) })
        })
        .collect()
}

#[cfg(test)]
mod tests;
