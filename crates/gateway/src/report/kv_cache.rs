//! The KV cache of a model on the CPU: its element type, and the loss that a comparison with single precision measured.

use std::{fmt, path::Path};

use narthex_catalog::store::Store;
use narthex_spec::{DeviceName, KvCacheDtype, KvPrecision};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Record of a comparison in the machine's folder of a package.
pub(crate) const RECORD: &str = "kv-cache.json";

/// Version of the text and the bounds. Comparisons of other versions are repeated.
pub(crate) const CHECK_VERSION: u32 = 4;

/// Maximum mean Kullback-Leibler divergence of distributions, in nats. Half precision, whose rounding changes no answer,
/// measures 0.0006 to 0.0011 with quantised models: their activations are rounded to eight bits, which amplifies any
/// difference.
const MEAN_DIVERGENCE: f64 = 0.005;

/// KV cache of a chat model on the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KvCacheStatus {
    /// Element type: `i8`, `f16` or `f32`.
    #[schemars(with = "String")]
    pub dtype: KvPrecision,
    /// Loss compared with `f32`, if it was measured.
    pub loss: Option<KvCacheLoss>,
}

/// Difference between the answers of a model with a KV cache and with one in `f32`, over one text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KvCacheLoss {
    /// Relative change of the perplexity.
    pub perplexity_change: f64,
    /// Mean Kullback-Leibler divergence of the distributions, in nats.
    pub divergence: f64,
    /// Number of compared distributions.
    pub positions: usize,
}

impl fmt::Display for KvCacheStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", KvCacheDtype::from(self.dtype))?;
        let Some(KvCacheLoss { perplexity_change, divergence, positions }) = self.loss else { return Ok(()) };
        let percent = perplexity_change * 100.0;
        write!(
            f,
            ": perplexity {percent:+.2} % and {divergence:.4} nats from f32, over {positions} positions"
        )
    }
}

/// Result of a comparison of one element type with single precision.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct TextComparison {
    /// Number of compared distributions.
    pub(crate) positions: usize,
    /// Mean divergence in nats; `None` if a logit is not finite.
    pub(crate) divergence: Option<f64>,
    /// Relative change of the perplexity of the text.
    pub(crate) perplexity_change: Option<f64>,
    /// Number of distributions with the same most likely token.
    pub(crate) agreeing: usize,
}

/// Result of the comparison of all element types.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct PrecisionComparison {
    pub(crate) version: u32,
    /// Result with integers of eight bits.
    pub(crate) i8: TextComparison,
    /// Result with half precision, if integers were refused.
    pub(crate) f16: Option<TextComparison>,
}

impl TextComparison {
    /// Returns the reason to refuse the cache.
    pub(crate) fn refusal(&self) -> Option<String> {
        match self.divergence {
            None => Some("logits are not finite".to_owned()),
            Some(mean) if mean > MEAN_DIVERGENCE => Some(format!(
                "distributions differ from f32's by {mean:.4} nats on average, above {MEAN_DIVERGENCE}"
            )),
            Some(_) => None,
        }
    }

    fn loss(&self) -> Option<KvCacheLoss> {
        let Self { positions, divergence, perplexity_change, .. } = *self;
        Some(KvCacheLoss { perplexity_change: perplexity_change?, divergence: divergence?, positions })
    }
}

impl PrecisionComparison {
    /// Returns the smallest precision that was not refused.
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

    /// Returns the element type that a setting selects, with its loss.
    pub(crate) fn status(&self, setting: KvCacheDtype) -> KvCacheStatus {
        let precision = setting.precision().unwrap_or_else(|| self.precision());
        let comparison = match precision {
            KvPrecision::I8 => Some(self.i8),
            KvPrecision::F16 => self.f16,
            KvPrecision::F32 => None,
        };
        KvCacheStatus { dtype: precision, loss: comparison.and_then(|comparison| comparison.loss()) }
    }
}

/// Returns the KV cache that a package has on the CPU with a setting. For [`KvCacheDtype::Auto`] it is known after the
/// first load, which stores the comparison.
pub(crate) fn status(setting: KvCacheDtype, store: &Store, package: &Path) -> Option<KvCacheStatus> {
    let comparison = stored(store, package);
    let stated = setting.precision().map(|precision| KvCacheStatus { dtype: precision, loss: None });
    comparison.map(|comparison| comparison.status(setting)).or(stated)
}

/// Returns the stored comparison of a package.
fn stored(store: &Store, package: &Path) -> Option<PrecisionComparison> {
    let folder = store.machine(package, DeviceName::Cpu.as_str()).ok()?;
    let bytes = folder.read(RECORD).ok()??;
    let comparison: PrecisionComparison = serde_json::from_slice(&bytes).ok()?;
    (comparison.version == CHECK_VERSION).then_some(comparison)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(divergence: Option<f64>) -> TextComparison {
        TextComparison { positions: 500, divergence, perplexity_change: Some(0.001), agreeing: 499 }
    }

    #[test]
    fn refusals_state_the_divergence() {
        assert_eq!(with(Some(0.004)).refusal(), None);
        assert!(with(Some(0.006)).refusal().unwrap().contains("0.0060 nats"));
        assert!(with(None).refusal().unwrap().contains("not finite"));
    }

    #[test]
    fn the_selected_type_has_its_loss() {
        let check = |i8: f64, f16: Option<f64>, setting, expect: &str| {
            let f16 = f16.map(|divergence| with(Some(divergence)));
            let comparison = PrecisionComparison { version: CHECK_VERSION, i8: with(Some(i8)), f16 };
            assert_eq!(comparison.status(setting).to_string(), expect);
        };
        let loss = "perplexity +0.10 % and 0.0040 nats from f32, over 500 positions";
        check(0.004, None, KvCacheDtype::Auto, &format!("i8: {loss}"));
        check(0.006, Some(0.004), KvCacheDtype::Auto, &format!("f16: {loss}"));
        check(0.006, Some(0.006), KvCacheDtype::Auto, "f32");
        check(0.004, None, KvCacheDtype::F16, "f16");
        check(0.004, None, KvCacheDtype::F32, "f32");
    }

    #[test]
    fn a_stored_comparison_of_another_version_is_not_used() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(Some(home.path().join("home"))).unwrap();
        let package = home.path().join("package");
        std::fs::create_dir(&package).unwrap();
        std::fs::write(package.join("manifest.json"), "{}").unwrap();
        let now = |setting| status(setting, &store, &package).map(|status| status.to_string());
        assert_eq!((now(KvCacheDtype::Auto), now(KvCacheDtype::I8)), (None, Some("i8".to_owned())));
        let write = |version| {
            let comparison = PrecisionComparison { version, i8: with(Some(0.001)), f16: None };
            let bytes = serde_json::to_vec(&comparison).unwrap();
            store.machine(&package, "cpu").unwrap().write(RECORD, &bytes).unwrap();
        };
        write(CHECK_VERSION - 1);
        assert_eq!(now(KvCacheDtype::Auto), None);
        write(CHECK_VERSION);
        assert!(now(KvCacheDtype::Auto).unwrap().starts_with("i8: perplexity +0.10 %"));
    }
}
