//! Precision of the KV cache on the CPU. `auto` selects the smallest element type with which a text of up to 2,048 tokens
//! gets nearly the same distributions as with single precision. The comparison runs once for each package, and its result
//! is stored.

mod comparison;

use narthex_spec::{
    KvCacheDtype, KvPrecision, TokenId,
    progress::{Stage, Unit},
};
use narthex_text::tokenizer::Specials;
use serde::{Deserialize, Serialize};

use self::comparison::{ReferenceText, TextComparison};
use super::{
    cache_key::{CacheKey, DeviceCache},
    request::LoadRequest,
    sessions::{self, Sessions},
};
use crate::{config::Config, error::Error, library::package::Package};

/// Record of a comparison.
const RECORD: &str = "kv-cache.json";

/// Version of the text and the bounds. Comparisons of other versions are repeated.
const CHECK_VERSION: u32 = 4;

/// Prose, code, dialogue and several languages, written for this purpose.
const TEXT: &str = include_str!("kv_precision/text.txt");

/// Record of a package's comparison.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CacheComparison {
    version: u32,
    key: CacheKey,
    /// Result with integers of eight bits.
    i8: TextComparison,
    /// Result with half precision, if integers were refused.
    f16: Option<TextComparison>,
}

impl CacheComparison {
    pub(crate) fn precision(&self) -> KvPrecision {
        match (self.i8.refusal(), self.f16.map(|f16| f16.refusal())) {
            (None, _) => KvPrecision::I8,
            (Some(_), Some(None)) => KvPrecision::F16,
            (Some(_), _) => KvPrecision::F32,
        }
    }

    /// Returns the reasons against both element types, if single precision is selected.
    pub(crate) fn note(&self) -> Option<String> {
        let i8 = self.i8.refusal()?;
        let f16 = self.f16?.refusal()?;
        Some(format!(
            "the KV cache is kept in f32, because with f16 {f16}, and with i8 {i8}; --kv-cache-dtype f16 or i8 selects \
             one of them anyway"
        ))
    }

    /// Returns the loss of the selected element type.
    fn loss(&self) -> Option<String> {
        match self.precision() {
            KvPrecision::I8 => self.i8.describe(),
            KvPrecision::F16 => self.f16?.describe(),
            KvPrecision::F32 => None,
        }
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
            let comparison = match cache.record(RECORD, CHECK_VERSION)? {
                Some(known) => known,
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
fn compare(request: &LoadRequest<'_>, cache: &DeviceCache) -> Result<CacheComparison, Error> {
    let title = "Choosing the element type of the KV cache (first load only)";
    let _stage = Stage::start(request.progress, title, Unit::Nothing, None);
    let config = Config { slots: 1, kv_budget: usize::MAX, ..(*request.config).clone() };
    let decoder =
        |precision| open_with(request, cache, &config, precision)?.model.decoder(&request.manifest().name);
    let reference = {
        let mut single = decoder(KvPrecision::F32)?;
        ReferenceText::new(&mut single, text_tokens(&request.package)?, &request.cancel)?
    };

    let i8 = reference.compare(&mut decoder(KvPrecision::I8)?, &request.cancel)?;
    let f16 = match i8.refusal() {
        Some(_) => Some(reference.compare(&mut decoder(KvPrecision::F16)?, &request.cancel)?),
        None => None,
    };
    let comparison = CacheComparison { version: CHECK_VERSION, key: cache.key.clone(), i8, f16 };
    if let Some(loss) = comparison.loss() {
        let name = &request.manifest().name;
        tracing::info!(
            "the KV cache of {name} is kept in {}: {loss}",
            KvCacheDtype::from(comparison.precision())
        );
    }
    cache.store(RECORD, &comparison, "the comparison of KV caches");
    Ok(comparison)
}

/// Returns the tokens of the text, after the token that begins a sequence.
fn text_tokens(package: &Package) -> Result<Vec<TokenId>, Error> {
    let mut tokens: Vec<TokenId> = package.manifest.tokenizer.bos.into_iter().collect();
    tokens.extend(package.read_tokenizer()?.encode(TEXT, Specials::AsText)?);
    Ok(tokens)
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
