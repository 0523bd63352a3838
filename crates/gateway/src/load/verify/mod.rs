//! The numerics canary: before a package is served on a device for the first time, golden texts run on it and on the
//! CPU, and what comes out must agree. The outcome is kept; a device that fails is in quarantine for that package.

mod compare;
pub(crate) mod quality;

use std::collections::BTreeSet;

use narthex_catalog::store::MachineFolder;
use narthex_device::{
    ep::{Cause, Device, Refusal},
    fixed::Form,
};
use narthex_engine::{
    encoder::{Encoder, Text},
    executor::{Executor, StepError, StepPlan, Wanted},
};
use narthex_spec::{
    DeviceName, SlotId, TokenId,
    manifest::Part,
    progress::{Stage, Unit},
};
use narthex_text::tokenizer::Specials;
use serde::{Deserialize, Serialize};

use crate::{
    config::Config,
    error::Error,
    load::{
        cache_key::{Circumstances, to_json},
        device_selection::Candidate,
        sessions::{Model, Opened, Opening},
    },
};
use compare::{Position, TextMeasure};

/// The record of a check.
const RECORD: &str = "verification.json";

/// Changes when the golden texts or the bounds do; records of other editions are made again.
const EDITION: u32 = 3;

/// Texts of several lengths: a few tokens, about thirty, and over [`PIECE`].
const GOLDEN: [&str; 3] = [
    "The capital of France is",
    "The ferry left the harbour at dawn, and by noon the island was only a thin grey line behind the swell. The captain \
     read the barometer and said",
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    return total / len(values)\n\n\
     The function above adds the values one by one and divides by their number. It fails for an empty list, because a \
     division by zero has no result. Le chat dort sur la chaise, und der Hund liegt unter dem Tisch. To make it safe,",
];

/// Tokens of each text that are fed one by one after its prompt.
const STEPS: usize = 3;

/// The longest prompt, in tokens. An encoder's longer buckets are filled besides.
const LONGEST: usize = 72;

/// The most tokens of a prompt that are read at once, so that the rest of a longer one is read over a past, whatever chunks
/// a device takes.
const PIECE: usize = 40;

/// What was found of a package on a device.
#[derive(Debug, Serialize, Deserialize)]
struct Verification {
    edition: u32,
    circumstances: Circumstances,
    /// `None` for a device that passed.
    quarantine: Option<String>,
    /// Of a decoder, in the order in which they ran.
    #[serde(default)]
    positions: Vec<Position>,
    /// Of an encoder.
    #[serde(default)]
    texts: Vec<TextMeasure>,
}

/// Checks a model that was opened on a device, unless that was done before under the same circumstances. Gives the
/// refusal of a device in quarantine, with what was found.
///
/// # Errors
/// Whatever kept the check from being made.
pub(crate) fn check(candidate: &Candidate<'_>, opened: &mut Opened) -> Result<Option<Refusal>, Error> {
    let Candidate { opening, name, machine, now, .. } = candidate;
    if let Some(earlier) = earlier(machine, now)? {
        return Ok(earlier.quarantine.map(|reason| refusal(*name, &reason)));
    }
    if opening.manifest.bound.is_some() {
        // The CPU runs no graph of it.
        return Ok(None);
    }
    tracing::info!("checking {} on {} against the CPU, once", opening.manifest.name, name.describe());
    let title = format!("Checking {} against the CPU, once", name.describe());
    let _stage = Stage::start(opening.progress, title, Unit::Nothing, None);
    let wanted = || opening.cancel.check();
    let config = Config { slots: 1, ..opening.config.clone() };
    let reference = Opening { config: &config, head: None, ..**opening };
    let mut reference = reference.open(&Device::Cpu, opening.variant(*name), Form::Graph)?;
    let mut found = Verification {
        edition: EDITION,
        circumstances: now.clone(),
        quarantine: None,
        positions: Vec::new(),
        texts: Vec::new(),
    };
    let texts = golden(opening)?;
    match (&mut opened.model, &mut reference.model) {
        (Model::Decoder(device), Model::Decoder(cpu)) => {
            found.positions = decoder(device, cpu, &texts, &wanted)?;
            found.quarantine = compare::decoder_verdict(&found.positions);
        }
        (Model::Encoder(device), Model::Encoder(cpu)) => {
            found.texts = encoder(device, cpu, &texts, &wanted)?;
            found.quarantine = compare::encoder_verdict(&found.texts);
        }
        _ => {}
    }
    keep(machine, &found);
    Ok(found.quarantine.map(|reason| refusal(*name, &reason)))
}

/// Puts a device in quarantine that was found to give nonsense while it served.
pub(crate) fn quarantine(machine: &MachineFolder, circumstances: Circumstances, reason: String) {
    let quarantine = Some(reason);
    let (positions, texts) = (Vec::new(), Vec::new());
    keep(machine, &Verification { edition: EDITION, circumstances, quarantine, positions, texts });
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

/// The record of an earlier check that still holds.
fn earlier(machine: &MachineFolder, now: &Circumstances) -> Result<Option<Verification>, Error> {
    let Some(bytes) = machine.read(RECORD)? else { return Ok(None) };
    let record = serde_json::from_slice::<Verification>(&bytes).ok();
    Ok(record.filter(|record| record.edition == EDITION && record.circumstances.outdated(now).is_none()))
}

fn keep(machine: &MachineFolder, found: &Verification) {
    let kept = to_json(found).and_then(|bytes| Ok(machine.write(RECORD, &bytes)?));
    if let Err(error) = kept {
        tracing::warn!("the check is not kept and will be made again: {error}");
    }
}

/// The golden texts in the model's own tokens: for each of an encoder's buckets that none of them runs in, one that fills
/// it, and for each of a decoder's contexts that they do not reach, one that does.
fn golden(opening: &Opening<'_>) -> Result<Vec<Vec<TokenId>>, Error> {
    let longest = LONGEST.min(opening.manifest.max_length.saturating_sub(STEPS + 1)).max(1);
    let mut texts = Vec::with_capacity(GOLDEN.len());
    for text in GOLDEN {
        let tokens = opening.tokenizer.encode(text, Specials::AsText)?;
        texts.extend((!tokens.is_empty()).then_some(tokens));
    }
    let (mut buckets, mut contexts) = (BTreeSet::new(), BTreeSet::new());
    for graph in &opening.manifest.graphs {
        match graph.part {
            Part::Bucket { length } => drop(buckets.insert(length)),
            Part::Layers { past, .. } => drop(contexts.insert(past)),
            Part::Whole | Part::Chunk { .. } | Part::Head { .. } => {}
        }
    }
    let mut texts = suited(texts, longest, &buckets);
    texts.extend(beyond(texts.last().map_or(&[], Vec::as_slice), &contexts));
    Ok(texts)
}

/// A text repeated until it is a token longer than each context but the longest, so that it runs in the next.
fn beyond(text: &[TokenId], contexts: &BTreeSet<usize>) -> Vec<Vec<TokenId>> {
    let shorter = contexts.iter().rev().skip(1).rev().filter(|_| !text.is_empty());
    shorter.map(|&context| text.iter().copied().cycle().take(context + 1).collect()).collect()
}

/// Texts of `longest` tokens at most, and of those repeated one for each bucket that none of them runs in, which is the
/// shortest that holds it.
fn suited(mut texts: Vec<Vec<TokenId>>, longest: usize, buckets: &BTreeSet<usize>) -> Vec<Vec<TokenId>> {
    texts.iter_mut().for_each(|tokens| tokens.truncate(longest));
    let runs_in = |tokens: &Vec<TokenId>| buckets.range(tokens.len()..).next().copied();
    let run: BTreeSet<usize> = texts.iter().filter_map(runs_in).collect();
    let lacking = buckets.difference(&run).zip(texts.iter().rev().cycle());
    let filling: Vec<Vec<TokenId>> =
        lacking.map(|(&bucket, tokens)| tokens.iter().copied().cycle().take(bucket).collect()).collect();
    texts.into_iter().chain(filling).collect()
}

/// Runs every text on both, then the CPU's own next tokens one by one; `wanted` is asked before each of them.
fn decoder(
    device: &mut dyn Executor,
    cpu: &mut dyn Executor,
    texts: &[Vec<TokenId>],
    wanted: &dyn Fn() -> Result<(), Error>,
) -> Result<Vec<Position>, Error> {
    let mut positions = Vec::new();
    for (text, tokens) in texts.iter().enumerate() {
        let longest = device.limits().longest().min(cpu.limits().longest()).saturating_sub(STEPS + 1).max(1);
        let prompt = &tokens[..tokens.len().min(longest)];
        let mut at = prompt.len().saturating_sub(1) / PIECE * PIECE;
        wanted()?;
        feed(cpu, 0, &prompt[..at])?;
        feed(device, 0, &prompt[..at])?;
        let mut next = prompt[at..].to_vec();
        for _ in 0..=STEPS {
            wanted()?;
            let expected = feed(cpu, at, &next)?;
            let found = feed(device, at, &next)?;
            at += next.len();
            positions.push(Position::of((text, at), &expected, &found));
            next = vec![compare::best(&expected) as TokenId];
        }
        device.truncate(SLOT, 0)?;
        cpu.truncate(SLOT, 0)?;
    }
    Ok(positions)
}

pub(crate) const SLOT: SlotId = SlotId(0);

/// Feeds tokens in chunks; gives the logits after the last.
pub(crate) fn feed(
    executor: &mut dyn Executor,
    at: usize,
    tokens: &[TokenId],
) -> Result<Vec<f32>, StepError> {
    let chunk = executor.limits().chunk.max(1);
    let (mut at, mut row) = (at, Vec::new());
    for part in tokens.chunks(chunk) {
        let mut plan = StepPlan::default();
        plan.push(SLOT, at, part, Wanted::Last);
        row = executor.step(&plan)?.row(0).to_vec();
        at += part.len();
    }
    Ok(row)
}

fn encoder(
    device: &mut dyn Encoder,
    cpu: &mut dyn Encoder,
    texts: &[Vec<TokenId>],
    wanted: &dyn Fn() -> Result<(), Error>,
) -> Result<Vec<TextMeasure>, Error> {
    let longest = device.limits().max_length.min(cpu.limits().max_length);
    let measure = |(text, tokens): (usize, &Vec<TokenId>)| {
        wanted()?;
        let tokens = &tokens[..tokens.len().min(longest)];
        // A model that gives rows on request is asked for one in the middle.
        let text_run = [Text { asked: &[tokens.len() / 2], ..Text::of(tokens) }];
        let (expected, found) = (cpu.run(&text_run)?, device.run(&text_run)?);
        let (expected, found) = (compare::spread(expected.data), compare::spread(found.data));
        Ok(TextMeasure { text, tokens: tokens.len(), cosine: compare::cosine(&expected, &found) })
    };
    texts.iter().enumerate().map(measure).collect()
}

#[cfg(test)]
mod tests;
