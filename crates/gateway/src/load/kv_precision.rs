//! Precision of the KV cache on the CPU. `auto` selects the smallest element type with which reference texts get the
//! same answers as with single precision. The comparison runs once for each package, and its result is stored.

use narthex_engine::executor::Executor;
use narthex_spec::{
    KvPrecision,
    progress::{Stage, Unit},
};
use serde::{Deserialize, Serialize};

use super::{
    cache_key::{CacheKey, DeviceCache},
    request::LoadRequest,
    sessions::{self, Sessions},
    verify::{
        ReferenceAnswer,
        compare::{DecoderBounds, Position},
        reference_texts,
    },
};
use crate::{config::Config, error::Error};

/// Record of a comparison.
const RECORD: &str = "kv-cache.json";

/// Version of the reference texts and the bounds. Comparisons of other versions are repeated.
const CHECK_VERSION: u32 = 3;

/// Bounds of a cache of fewer bits: those of another device. A different rounding of keys and values changes some of the
/// activations that are then rounded to eight bits, which alone moves the distributions of quantised models by up to
/// 0.005 nats. Values outside the range of `f16` move them by far more than the bound.
const BOUNDS: DecoderBounds = DecoderBounds { reference: "f32's", ..DecoderBounds::DEVICE };

/// Record of a package's comparison.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CacheComparison {
    version: u32,
    key: CacheKey,
    /// Results with integers of eight bits.
    i8: PrecisionComparison,
    /// Results with half precision, if integers were refused.
    f16: Option<PrecisionComparison>,
}

/// Results with one element type.
#[derive(Debug, Serialize, Deserialize)]
struct PrecisionComparison {
    /// Reason against the element type.
    refused: Option<String>,
    /// Results, in the order in which they ran.
    positions: Vec<Position>,
}

impl CacheComparison {
    pub(crate) fn precision(&self) -> KvPrecision {
        match (&self.i8.refused, self.f16.as_ref().map(|f16| &f16.refused)) {
            (None, _) => KvPrecision::I8,
            (Some(_), Some(None)) => KvPrecision::F16,
            (Some(_), _) => KvPrecision::F32,
        }
    }

    /// Returns the reasons against both element types, if single precision is selected.
    pub(crate) fn note(&self) -> Option<String> {
        let i8 = self.i8.refused.as_ref()?;
        let f16 = self.f16.as_ref()?.refused.as_ref()?;
        Some(format!(
            "the KV cache is kept in f32, because with f16 {f16}, and with i8 {i8}; --kv-cache-dtype f16 or i8 selects \
             one of them anyway"
        ))
    }
}

/// Opens a decoder of dynamic shapes on the CPU with the precision that the settings state or that `auto` selects. Adds
/// the reason to `notes` if `auto` selects single precision.
pub(crate) fn open(
    request: &LoadRequest<'_>,
    cache: &DeviceCache,
    notes: &mut Vec<String>,
) -> Result<Sessions, Error> {
    let precision = match request.config.kv_cache_dtype.precision() {
        Some(precision) => precision,
        None => {
            let found = match cache.record(RECORD, CHECK_VERSION)? {
                Some(known) => known,
                None => compare(request, cache)?,
            };
            notes.extend(found.note());
            found.precision()
        }
    };
    open_with(request, cache, &request.config, precision)
}

/// Compares the precisions, one model after the other in memory, and stores the outcome. It does not depend on the slots
/// and the memory that the settings give to the cache.
fn compare(request: &LoadRequest<'_>, cache: &DeviceCache) -> Result<CacheComparison, Error> {
    let title = "Choosing the element type of the KV cache (first load only)";
    let _stage = Stage::start(request.progress, title, Unit::Nothing, None);
    let config = Config { slots: 1, kv_budget: usize::MAX, ..(*request.config).clone() };
    let decoder =
        |precision| open_with(request, cache, &config, precision)?.model.decoder(&request.manifest().name);
    let mut single = decoder(KvPrecision::F32)?;
    let mut answers = Vec::new();
    let longest = single.limits().longest();
    for text in reference_texts(&request.package)? {
        answers.push(ReferenceAnswer::new(&mut single, &text, longest, &request.cancel)?);
    }
    drop(single);
    let with = |precision| -> Result<PrecisionComparison, Error> {
        let mut other = decoder(precision)?;
        let mut positions = Vec::new();
        for (index, answer) in answers.iter().enumerate() {
            positions.extend(answer.compare(index, &mut other, &request.cancel)?);
        }
        Ok(PrecisionComparison { refused: BOUNDS.verdict(&positions), positions })
    };

    let i8 = with(KvPrecision::I8)?;
    let f16 = if i8.refused.is_some() { Some(with(KvPrecision::F16)?) } else { None };
    let found = CacheComparison { version: CHECK_VERSION, key: cache.key.clone(), i8, f16 };
    cache.store(RECORD, &found, "the comparison of KV caches");
    Ok(found)
}

fn open_with(
    request: &LoadRequest<'_>,
    cache: &DeviceCache,
    config: &Config,
    precision: KvPrecision,
) -> Result<Sessions, Error> {
    let config = Config { kv_cache_dtype: precision.into(), ..config.clone() };
    let request = LoadRequest { config: config.into(), ..request.clone() };
    sessions::open_on_cpu(&request, &cache.folder)
}
