//! Forecast of a load: the memory that it would take, and the models that would leave for it.

use std::fmt;

use narthex_spec::{ModelName, Scheme};
use serde::Serialize;

/// Outcome of a load, as far as it is known before.
///
/// ```
/// use narthex_gateway::{LoadForecast, LoadRoom};
/// use narthex_spec::Scheme;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let forecast = LoadForecast {
///     name: "qwen3:4b".parse()?,
///     scheme: Scheme::W8,
///     package_bytes: 5_100_000_000,
///     free_bytes: Some(3_900_000_000),
///     unloads: vec!["smollm2:135m".parse()?],
///     room: LoadRoom::Enough,
/// };
/// let expect = "needs 5.1 GB of memory, 3.9 GB are free; smollm2:135m would be unloaded";
/// assert_eq!(forecast.to_string(), expect);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LoadForecast {
    /// The model.
    pub name: ModelName,
    /// Weight scheme.
    pub scheme: Scheme,
    /// Bytes of its package, which are mostly weights.
    pub package_bytes: u64,
    /// Bytes of memory that the system can provide without swapping, if it reports them.
    pub free_bytes: Option<u64>,
    /// Models that would be unloaded, the least recently used first.
    pub unloads: Vec<ModelName>,
    /// Memory after that.
    pub room: LoadRoom,
}

/// Memory for a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadRoom {
    /// The model is in memory already.
    Loaded,
    /// There is enough memory.
    Enough,
    /// The model would be loaded, but the free memory is smaller than its package: the system would swap, or read
    /// weights from the disk again and again.
    Short,
    /// The load would wait for models in use, or fail.
    Full,
}

impl fmt::Display for LoadForecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
        if self.room == LoadRoom::Loaded {
            return write!(f, "is in memory, with {}", gigabytes(self.package_bytes));
        }
        write!(f, "needs {} of memory", gigabytes(self.package_bytes))?;
        if let Some(free) = self.free_bytes {
            write!(f, ", {} are free", gigabytes(free))?;
        }
        if !self.unloads.is_empty() {
            let names: Vec<_> = self.unloads.iter().map(ModelName::as_str).collect();
            write!(f, "; {} would be unloaded", names.join(", "))?;
        }
        match self.room {
            LoadRoom::Short => f.write_str("; it would be slow"),
            LoadRoom::Full => f.write_str("; it would wait for models in use"),
            LoadRoom::Loaded | LoadRoom::Enough => Ok(()),
        }
    }
}
