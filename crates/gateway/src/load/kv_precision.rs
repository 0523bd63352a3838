//! Precision of the KV cache on the CPU. `auto` selects the smallest element type with which a text of up to 2,048 tokens
//! gets nearly the same distributions as with single precision. The comparison runs once for each package, and its result
//! is stored.

use narthex_spec::{
    KvCacheDtype, KvPrecision,
    progress::{Stage, Unit},
};
use serde::{Deserialize, Serialize};

use super::{
    cache_key::{CacheKey, DeviceCache},
    request::LoadRequest,
    sessions::{self, Sessions},
    verify::reference_text::{ReferenceText, TEXT},
};
use crate::{
    config::Config,
    error::Error,
    report::kv_cache::{CHECK_VERSION, PrecisionComparison, RECORD},
};

/// Record of a package's comparison.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CacheComparison {
    key: CacheKey,
    #[serde(flatten)]
    pub(crate) result: PrecisionComparison,
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
            let known: Option<CacheComparison> = cache.record(RECORD, CHECK_VERSION)?;
            let comparison = match known {
                Some(known) => known.result,
                None => compare(request, cache)?,
            };
            notes.extend(comparison.note());
            comparison.precision()
        }
    };
    open_with(request, cache, &request.config, precision)
}

/// Compares the precisions, one model after the other in memory, and stores the outcome. It does not depend on the slots
/// and the memory that the settings give to the cache.
fn compare(request: &LoadRequest<'_>, cache: &DeviceCache) -> Result<PrecisionComparison, Error> {
    let title = "Choosing the element type of the KV cache (first load only)";
    let _stage = Stage::start(request.progress, title, Unit::Nothing, None);
    let config = Config { slots: 1, kv_budget: Some(usize::MAX), ..(*request.config).clone() };
    let decoder =
        |precision| open_with(request, cache, &config, precision)?.model.decoder(&request.manifest().name);
    let reference = {
        let mut single = decoder(KvPrecision::F32)?;
        let tokens = ReferenceText::tokens(&request.package, TEXT)?;
        ReferenceText::new(&mut single, tokens, &request.cancel)?
    };

    let i8 = reference.compare(&mut decoder(KvPrecision::I8)?, &request.cancel)?;
    let f16 = match i8.refusal() {
        Some(_) => Some(reference.compare(&mut decoder(KvPrecision::F16)?, &request.cancel)?),
        None => None,
    };
    let result = PrecisionComparison { version: CHECK_VERSION, i8, f16 };
    let status = result.status(KvCacheDtype::Auto);
    tracing::info!("the KV cache of {} is kept in {status}", request.manifest().name);
    let record = CacheComparison { key: cache.key.clone(), result };
    cache.store(RECORD, &record, "the comparison of KV caches");
    Ok(record.result)
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
