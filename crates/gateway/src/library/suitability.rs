//! Usefulness of a model on this machine: its room in memory, its expected speed and what its weight scheme costs.

use std::{hint::black_box, thread, time::Instant};

use narthex_catalog::store::Store;
use narthex_device::inventory;
use narthex_spec::Scheme;
use serde::{Deserialize, Serialize};

use crate::{config::RESERVED, report::models::ModelListing};

/// Memory and speed of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MachineSpeed {
    /// Bytes of memory, if the system reports them.
    pub memory: Option<u64>,
    /// Memory bandwidth of all cores together in bytes per second: the highest one measured so far, rounded.
    pub bandwidth: f64,
}

/// Record of the highest measured memory bandwidth, so that a ranking does not change with the load of the machine.
#[derive(Debug, Clone, Deserialize)]
struct MeasuredBandwidth {
    /// Name of the processor. A store may move to another machine.
    cpu: String,
    /// Number of cores that Narthex could use.
    cores: usize,
    /// Bytes per second.
    bandwidth: f64,
}

/// File name of [`MeasuredBandwidth`].
const BANDWIDTH_RECORD: &str = "bandwidth.json";

/// Expected speed: how many times a second the measured memory bandwidth can read all weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SpeedClass {
    /// At least 20 tokens or texts a second.
    Fast,
    /// At least 5.
    Medium,
    /// Fewer.
    Slow,
}

impl SpeedClass {
    /// Returns the class of a number of readings a second.
    fn new(rate: f64) -> Self {
        match rate {
            rate if rate >= 20.0 => Self::Fast,
            rate if rate >= 5.0 => Self::Medium,
            _ => Self::Slow,
        }
    }
}

/// Usefulness of a model in the best of its schemes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Suitability {
    /// Scheme.
    pub scheme: Scheme,
    /// Bytes of the weights in it.
    pub bytes: u64,
    /// Presence of room for the weights.
    pub fits: bool,
    /// Expected speed.
    pub speed: SpeedClass,
    /// Quality of the answers in this scheme as a share of those in f32, if it was measured with this model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quality: Option<f64>,
    /// Usefulness, 0 to 100; 0 if it does not fit.
    pub score: f64,
}

/// A model with its usefulness.
#[derive(Debug, Clone, Serialize)]
pub struct RankedModel {
    /// The model.
    #[serde(flatten)]
    pub model: ModelListing,
    /// Usefulness on this machine, for a model whose sizes are known.
    pub here: Option<Suitability>,
}

/// Size of the measurement's buffer in bytes, which exceeds the CPU's caches.
const BUFFER: usize = 128 << 20;

/// Number of passes over the buffer.
const PASSES: usize = 10;

/// Tokens per second above which more speed does not raise the score; faster than people read.
pub(crate) const READING: f64 = 10.0;

impl MachineSpeed {
    /// Measures this machine, in a fraction of a second, and keeps the highest bandwidth in the store.
    pub(crate) fn measure(store: &Store) -> Self {
        let cpu = inventory::cpu();
        let bandwidth = measured_bandwidth();
        let measured = MeasuredBandwidth { cpu: cpu.name, cores: cpu.usable_cores, bandwidth };
        Self { memory: inventory::memory_bytes(), bandwidth: rounded(measured.highest(store)) }
    }
}

impl MeasuredBandwidth {
    /// Returns the higher of this bandwidth and the recorded one of the same machine. Records a new maximum, unless the
    /// store cannot be written.
    fn highest(self, store: &Store) -> f64 {
        let records = store.own_machine();
        let recorded = records.read(BANDWIDTH_RECORD).ok().flatten();
        let recorded = recorded.and_then(|bytes| serde_json::from_slice::<Self>(&bytes).ok());
        if let Some(known) = recorded.filter(|known| (&known.cpu, known.cores) == (&self.cpu, self.cores))
            && known.bandwidth >= self.bandwidth
        {
            return known.bandwidth;
        }
        let text = serde_json::json!({"cpu": self.cpu, "cores": self.cores, "bandwidth": self.bandwidth});
        if let Err(error) = records.write(BANDWIDTH_RECORD, text.to_string().as_bytes()) {
            tracing::debug!(%error, "the memory bandwidth cannot be stored");
        }
        self.bandwidth
    }
}

/// Measures the memory bandwidth of all cores together, in bytes per second.
fn measured_bandwidth() -> f64 {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(16);
    let buffer = vec![1u64; BUFFER / size_of::<u64>()];
    let mut best: f64 = 0.0;
    for _ in 0..PASSES {
        let start = Instant::now();
        thread::scope(|scope| {
            for part in buffer.chunks(buffer.len().div_ceil(threads)) {
                if thread::Builder::new().spawn_scoped(scope, move || read(part)).is_err() {
                    read(part);
                }
            }
        });
        // The best pass counts, because the first one is slowed by cold pages, and others by other programs.
        best = best.max(BUFFER as f64 / start.elapsed().as_secs_f64().max(1e-6));
    }
    best
}

/// Reads memory.
fn read(values: &[u64]) {
    black_box(values.iter().fold(0u64, |sum, value| sum.wrapping_add(*value)));
}

/// Rounds to a power of the square root of two, so that small differences between measurements do not change a ranking.
fn rounded(bandwidth: f64) -> f64 {
    ((bandwidth.log2() * 2.0).round() / 2.0).exp2()
}

/// Returns the share of quality that a scheme keeps, for a model with which it was not measured: the perplexity in f32
/// divided by that in the scheme. It is that of smollm2:135m with weights that were rounded from floats
/// (`bench/runs/quality-2026-11-28.md`). Larger models usually lose less in w4, and files in 4 bits lose almost nothing.
pub fn kept_quality(scheme: Scheme) -> f64 {
    if scheme.of_weights() == Scheme::W4 { 0.878 } else { 1.0 }
}

/// Returns true if weights of this size and what the system needs fit into a memory.
pub fn has_room(memory: u64, weights: u64) -> bool {
    memory.saturating_sub(RESERVED) >= weights
}

/// Returns the usefulness of a model in the better of w8 and w4; `None` if its sizes are unknown.
pub(crate) fn suitability(model: &ModelListing, machine: &MachineSpeed) -> Option<Suitability> {
    let figures = model.figures?;
    let parameters = model.parameters? as f64;
    // Larger models answer better, with diminishing returns: 0 at ten million parameters, 1 at a hundred billion.
    let strength = ((parameters / 1e7).log10() / 4.0).clamp(0.01, 1.0);
    let [w8, w4] = [
        (Scheme::W8, figures.w8, model.quality.map(|quality| quality.w8)),
        (Scheme::W4, figures.w4, model.quality.map(|quality| quality.w4)),
    ]
    .map(|(scheme, bytes, quality)| {
        let fits = machine.memory.is_none_or(|memory| has_room(memory, bytes));
        let rate = machine.bandwidth / bytes.max(1) as f64;
        let speed = SpeedClass::new(rate);
        let share = quality.unwrap_or_else(|| kept_quality(scheme));
        let score = if fits { 100.0 * strength * share * (rate / READING).min(1.0) } else { 0.0 };
        Suitability { scheme, bytes, fits, speed, quality, score }
    });
    // If neither fits, the smaller one is returned, which shows how much memory is missing.
    let w4_is_better = if w4.fits { !w8.fits || w4.score > w8.score } else { true };
    Some(if w4_is_better { w4 } else { w8 })
}

/// Returns the best of several sizes of a model for this machine in w8: the largest one that fits and is not slow, or else
/// the smallest. The sizes have their numbers of parameters and of bytes.
pub(crate) fn best_size<T>(sizes: Vec<(T, u64, u64)>, machine: &MachineSpeed) -> Option<T> {
    let (usable, other): (Vec<_>, Vec<_>) = sizes.into_iter().partition(|&(_, _, bytes)| {
        let fits = machine.memory.is_none_or(|memory| has_room(memory, bytes));
        fits && SpeedClass::new(machine.bandwidth / bytes.max(1) as f64) != SpeedClass::Slow
    });
    let best = usable.into_iter().max_by_key(|(_, parameters, _)| *parameters);
    best.or_else(|| other.into_iter().min_by_key(|(_, parameters, _)| *parameters)).map(|(size, ..)| size)
}

/// Sorts models by kind in the order of [`ModelKind`], then by usefulness, then by size. Models of unknown size are the
/// last ones of their kind.
///
/// [`ModelKind`]: crate::report::models::ModelKind
pub(crate) fn rank(models: Vec<ModelListing>, machine: &MachineSpeed) -> Vec<RankedModel> {
    let mut ranked: Vec<RankedModel> =
        models.into_iter().map(|model| RankedModel { here: suitability(&model, machine), model }).collect();
    ranked.sort_by(|a, b| {
        let [(score, bytes), (other_score, other_bytes)] =
            [a, b].map(|ranked| ranked.here.map_or((-1.0, u64::MAX), |here| (here.score, here.bytes)));
        (a.model.kind as u8)
            .cmp(&(b.model.kind as u8))
            .then(other_score.total_cmp(&score))
            .then(bytes.cmp(&other_bytes))
            .then_with(|| a.model.name.cmp(&b.model.name))
    });
    ranked
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::report::models::{Access, Figures, MeasuredQuality, ModelKind};

    fn model(name: &str, billions: f64) -> ModelListing {
        let bytes = (billions * 1e9) as u64;
        ModelListing {
            name: name.parse().unwrap(),
            kind: ModelKind::Chat,
            reads: Vec::new(),
            title: String::new(),
            parameters: Some(bytes),
            download_bytes: None,
            figures: Some(Figures { w8: bytes, w4: bytes / 2, score: 100.0, scheme: Scheme::W8, runs: true }),
            license: None,
            quality: None,
            access: Access::Open,
            pick: None,
            notes: None,
            source: String::new(),
            installed: Vec::new(),
            auto_pull: false,
        }
    }

    fn ranking(memory: u64, bandwidth: f64) -> Vec<(String, Suitability)> {
        let models = [("tiny", 0.1), ("small", 1.0), ("middle", 8.0), ("large", 70.0)];
        let models = models.into_iter().map(|(name, billions)| model(name, billions)).collect();
        let ranked = rank(models, &MachineSpeed { memory: Some(memory), bandwidth });
        ranked.into_iter().map(|ranked| (ranked.model.name.to_string(), ranked.here.unwrap())).collect()
    }

    #[test]
    fn near_bandwidths_are_rounded_alike() {
        assert_eq!(rounded(40e9), rounded(36e9));
        assert!((0.8..1.2).contains(&(rounded(40e9) / 40e9)));
        assert!(rounded(20e9) < rounded(40e9));
    }

    #[test]
    fn the_quality_of_a_measured_model_is_its_own() {
        let machine = MachineSpeed { memory: Some(6 << 30), bandwidth: 100e9 };
        let here =
            |quality| suitability(&ModelListing { quality, ..model("middle", 8.0) }, &machine).unwrap();
        let found = here(Some(MeasuredQuality { w8: 0.999, w4: 0.97 }));
        assert_eq!((found.scheme, found.quality), (Scheme::W4, Some(0.97)));
        let assumed = here(None);
        assert_eq!(assumed.quality, None, "no figure of another model");
        assert!(found.score > assumed.score);
    }

    #[test]
    fn the_most_useful_model_here_comes_first() {
        let names = |memory, bandwidth| {
            ranking(memory, bandwidth).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names(16 << 30, 100e9), ["middle", "small", "tiny", "large"]);
        assert_eq!(names(128 << 30, 2000e9), ["large", "middle", "small", "tiny"]);
        assert_eq!(names(2 << 30, 5e9), ["small", "tiny", "middle", "large"]);
    }

    #[test]
    fn the_best_size_fits_and_is_not_slow() {
        let best = |memory, bandwidth| {
            let sizes = [("8b", 8), ("0.6b", 1), ("4b", 4)].map(|(name, size)| (name, size, size << 30));
            best_size(sizes.into(), &MachineSpeed { memory, bandwidth })
        };
        assert_eq!(best(Some(16 << 30), 100e9), Some("8b"));
        assert_eq!(best(Some(8 << 30), 100e9), Some("4b"), "of memory");
        assert_eq!(best(None, 30e9), Some("4b"), "of speed");
        assert_eq!(best(Some(1 << 30), 100e9), Some("0.6b"), "nothing fits");
        assert_eq!(
            best_size(Vec::<((), u64, u64)>::new(), &MachineSpeed { memory: None, bandwidth: 1.0 }),
            None
        );
    }

    #[test]
    fn models_of_a_kind_are_together() {
        let of_kind = |name: &str, billions, kind| ModelListing { kind, ..model(name, billions) };
        let models = vec![
            of_kind("ranker", 1.0, ModelKind::Rerank),
            of_kind("vectors", 8.0, ModelKind::Embedding),
            ModelListing { figures: None, ..of_kind("own", 1.0, ModelKind::Chat) },
            of_kind("small", 1.0, ModelKind::Chat),
            of_kind("writer", 1.0, ModelKind::Text),
            of_kind("middle", 8.0, ModelKind::Chat),
        ];
        let ranked = rank(models, &MachineSpeed { memory: Some(16 << 30), bandwidth: 100e9 });
        let names: Vec<&str> = ranked.iter().map(|ranked| ranked.model.name.as_str()).collect();
        assert_eq!(names, ["middle", "small", "own", "writer", "vectors", "ranker"]);
    }

    #[test]
    fn the_highest_bandwidth_of_this_machine_is_kept() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(Some(home.path().join("store"))).unwrap();
        let highest = |store: &Store, cpu: &str, bandwidth| {
            MeasuredBandwidth { cpu: cpu.to_owned(), cores: 2, bandwidth }.highest(store)
        };
        assert_eq!(highest(&store, "one", 20e9), 20e9);
        assert_eq!(highest(&store, "one", 10e9), 20e9, "other programs slowed the second measurement");
        assert_eq!(highest(&store, "one", 40e9), 40e9);
        assert_eq!(highest(&store, "one", 30e9), 40e9);
        assert_eq!(highest(&store, "another", 30e9), 30e9, "the store was moved");
        store.own_machine().write(BANDWIDTH_RECORD, b"{").unwrap();
        assert_eq!(highest(&store, "another", 5e9), 5e9);
        // Nothing can be written below a file.
        std::fs::write(home.path().join("file"), "").unwrap();
        let store = Store::open(Some(home.path().join("file/store"))).unwrap();
        assert_eq!(highest(&store, "one", 20e9), 20e9);
    }

    #[test]
    fn what_has_no_room_scores_nothing() {
        let (name, here) = ranking(16 << 30, 100e9).pop().unwrap();
        assert_eq!((name.as_str(), here.fits, here.score, here.scheme), ("large", false, 0.0, Scheme::W4));
    }

    #[test]
    fn four_bits_are_taken_for_room_or_speed_alone() {
        let scheme = |memory, bandwidth, name: &str| {
            ranking(memory, bandwidth).into_iter().find(|(found, _)| found == name).unwrap().1
        };
        assert_eq!(scheme(16 << 30, 100e9, "middle").scheme, Scheme::W8);
        assert_eq!(scheme(6 << 30, 100e9, "middle").scheme, Scheme::W4);
        let slow = scheme(16 << 30, 20e9, "middle");
        assert_eq!((slow.scheme, slow.speed), (Scheme::W4, SpeedClass::Medium));
    }
}
