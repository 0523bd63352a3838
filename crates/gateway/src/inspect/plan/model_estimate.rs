//! Sizes, cache and NPU verdicts of a model from its settings only. Every figure is that of a compile without weights.

use std::collections::BTreeMap;

use narthex_catalog::index::KnownDivergence;
use narthex_check::{CheckOptions, Factor, Report, Score, Verdict, graph_limit, program_limit, same_facts};
use narthex_compile::{CompileError, dry_run::DryRun};
use narthex_spec::{
    DType, Recipe, Scheme, Target,
    arch::{Architecture, DecoderArch},
    manifest::KvLayout,
};
use serde::Serialize;

use crate::{
    config::RESERVED,
    inspect::check::architecture::{check_dry_run, refused},
    library::suitability::{READING, kept_quality},
};

/// Figures of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelEstimate {
    /// Structure in words.
    pub structure: String,
    /// Vision tower, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vision: Option<TowerEstimate>,
    /// Audio tower, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio: Option<TowerEstimate>,
    /// Number of parameters: the elements of every compiled weight.
    pub parameters: u64,
    /// Maximum sequence length of the weights in tokens.
    pub longest: usize,
    /// Figures in each scheme.
    pub schemes: Vec<SchemeEstimate>,
    /// KV cache in the data type of the graphs, which GPUs use; empty for encoders. CPUs usually use fewer bits.
    pub cache: Vec<CacheEstimate>,
    /// Bytes of a token in the KV cache of an NPU's graphs.
    pub npu_token_bytes: u64,
    /// Bytes of the states of a sequence of any length, with those of its checkpoints; 0 if no layer has a state.
    pub state_bytes: u64,
}

/// A tower that reads media. The other figures include it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TowerEstimate {
    /// Structure in words.
    pub structure: String,
    /// Number of parameters.
    pub parameters: u64,
}

impl TowerEstimate {
    fn vision(architecture: &Architecture) -> Option<Self> {
        let Architecture::Decoder(decoder) = architecture else { return None };
        let structure = decoder.vision.as_ref()?.describe();
        let blind = DecoderArch { vision: None, ..decoder.clone() };
        Some(Self { structure, parameters: additional_parameters(architecture, blind) })
    }

    fn audio(architecture: &Architecture) -> Option<Self> {
        let Architecture::Decoder(decoder) = architecture else { return None };
        let structure = decoder.audio.as_ref()?.describe();
        let deaf = DecoderArch { audio: None, ..decoder.clone() };
        Some(Self { structure, parameters: additional_parameters(architecture, deaf) })
    }
}

/// Returns a decoder without its towers; `None` for an architecture without towers.
fn without_towers(architecture: &Architecture) -> Option<Architecture> {
    let Architecture::Decoder(decoder) = architecture else { return None };
    let has_tower = decoder.vision.is_some() || decoder.audio.is_some();
    has_tower.then(|| Architecture::Decoder(DecoderArch { vision: None, audio: None, ..decoder.clone() }))
}

/// Returns the number of parameters that an architecture has more than a decoder without one of its towers.
fn additional_parameters(architecture: &Architecture, without: DecoderArch) -> u64 {
    narthex_checkpoint::parameters(architecture)
        - narthex_checkpoint::parameters(&Architecture::Decoder(without))
}

/// Figures of a model in one scheme.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SchemeEstimate {
    /// Scheme.
    pub scheme: Scheme,
    /// Bytes of the weights file for CPUs and GPUs.
    pub bytes: u64,
    /// Bytes of the towers' weights among them.
    pub tower_bytes: u64,
    /// Bytes of the weights file with the additional weights of NPU graphs; `None` if the scheme has no such graphs.
    pub fixed_bytes: Option<u64>,
    /// Figures on each NPU.
    pub targets: Vec<TargetEstimate>,
}

/// Figures of a model in one scheme on one NPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TargetEstimate {
    /// NPU.
    pub target: Target,
    /// Bytes of weights of the largest graph.
    pub graph_bytes: u64,
    /// Bytes of weights of all graphs together. Shared weights count once.
    pub npu_bytes: u64,
    /// Maximum bytes of weights of a graph.
    pub limit: u64,
    /// Memory of each graph, and of all graphs if the driver limits their total.
    pub held: Vec<RequiredMemory>,
    /// Verdict of `narthex check`.
    pub verdict: Verdict,
    /// Score of `narthex check`.
    pub score: Score,
    /// Upper bound of tokens or texts a second: how often the memory of machines with this NPU can be read for all
    /// weights. `None` without an assumption about the machine.
    pub highest_rate: Option<f64>,
}

/// Assumption about the machines that have an NPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct NpuMachine {
    /// Bytes of memory.
    pub(super) memory: u64,
    /// Memory bandwidth in bytes per second.
    pub(super) bandwidth: u64,
}

/// Memory for weights and their cache, and its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RequiredMemory {
    /// Bytes of weights.
    pub bytes: u64,
    /// Bytes of a token in the KV cache of the layers with these weights.
    pub token_bytes: u64,
    /// Available bytes.
    pub limit: u64,
}

/// KV cache of layers with equal windows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheEstimate {
    /// Number of layers.
    pub layers: usize,
    /// Maximum number of past tokens that the layers attend to, if it is limited.
    pub window: Option<usize>,
    /// Element type.
    pub dtype: DType,
    /// Bytes of a token in all of these layers.
    pub token_bytes: u64,
    /// Bytes of a token in all of these layers on a CPU that keeps the cache in half precision.
    pub f16_token_bytes: u64,
    /// Bytes of a token in all of these layers on a CPU that keeps the cache in eight bits, with the scales.
    pub i8_token_bytes: u64,
}

impl ModelEstimate {
    /// Compiles an architecture without weights in every scheme with activations in floats, and checks the graphs for each target.
    ///
    /// # Errors
    /// As [`DryRun::new`], for an architecture that compiles in no scheme.
    pub fn new(architecture: &Architecture, targets: &[Target]) -> Result<Self, CompileError> {
        let mut schemes = Vec::new();
        let mut layers = Vec::new();
        let mut npu_token_bytes = 0;
        let without_towers = without_towers(architecture);
        for scheme in Scheme::OF_WEIGHTS {
            let dry_run = DryRun::new("model", architecture, &Recipe::new(scheme))?;
            let tower_bytes = match &without_towers {
                Some(rest) => {
                    let rest = DryRun::new("model", rest, &Recipe::new(scheme))?;
                    dry_run.data_bytes.saturating_sub(rest.data_bytes)
                }
                None => 0,
            };
            if let Some((_, entry)) = dry_run.graphs.into_iter().next() {
                layers = entry.kv;
            }
            // Graphs have one form for Intel's NPU, and one for all other targets.
            let mut forms: BTreeMap<bool, Result<DryRun, CompileError>> = BTreeMap::new();
            let mut seen: Vec<TargetEstimate> = Vec::new();
            for target in targets {
                let known = seen.iter().find(|known| same_facts(&known.target, target));
                let estimate = match known {
                    Some(known) => TargetEstimate { target: target.clone(), ..known.clone() },
                    None => {
                        let fixed = forms
                            .entry(target.is_intel_npu())
                            .or_insert_with(|| DryRun::with_static_shapes(architecture, scheme, target));
                        TargetEstimate::new(fixed, target)
                    }
                };
                seen.push(estimate);
            }
            let fixed = forms.values().flatten();
            npu_token_bytes = fixed.clone().map(DryRun::token_bytes).fold(npu_token_bytes, u64::max);
            let fixed_bytes = fixed.map(|fixed| fixed.data_bytes).max();
            let bytes = dry_run.data_bytes;
            schemes.push(SchemeEstimate { scheme, bytes, tower_bytes, targets: seen, fixed_bytes });
        }

        Ok(Self {
            structure: architecture.describe(),
            vision: TowerEstimate::vision(architecture),
            audio: TowerEstimate::audio(architecture),
            parameters: narthex_checkpoint::parameters(architecture),
            longest: architecture.longest(),
            schemes,
            cache: group_by_window(&layers),
            npu_token_bytes,
            state_bytes: narthex_device::bytes_per_slot(&layers) as u64,
        })
    }

    /// Adjusts the scores: a target whose weights exceed the memory is refused, scores are multiplied by the quality that
    /// the scheme keeps and by the share of a useful speed that the memory bandwidth allows, and a device with a known
    /// divergence of its answers scores 0.
    pub(super) fn adjust_scores(&mut self, machine: NpuMachine, known: &[KnownDivergence]) {
        let NpuMachine { memory, bandwidth } = machine;
        for SchemeEstimate { scheme, bytes, fixed_bytes, targets, .. } in &mut self.schemes {
            let needed = fixed_bytes.unwrap_or(*bytes).saturating_add(RESERVED);
            for TargetEstimate { target, npu_bytes, verdict, score, highest_rate, .. } in targets {
                let rate = bandwidth as f64 / (*npu_bytes).max(1) as f64;
                *highest_rate = Some(rate);
                if rate < READING {
                    let detail = format!(
                        "at most {rate:.1} tokens or texts a second, because each reads {:.0} GB of weights at {:.0} GB/s; \
                         {READING:.0} are as fast as people read",
                        *npu_bytes as f64 / 1e9,
                        bandwidth as f64 / 1e9
                    );
                    score.scale(Factor { name: "speed", value: rate / READING, detail });
                }
                if needed > memory && !matches!(verdict, Verdict::Refused { .. }) {
                    let reason = format!(
                        "it needs {:.0} GB of memory, and machines with this NPU have at most {:.0} GB",
                        needed as f64 / 1e9,
                        memory as f64 / 1e9
                    );
                    *verdict = Verdict::Refused { reason: reason.clone() };
                    score.scale(Factor { name: "memory", value: 0.0, detail: reason });
                }

                let quality = kept_quality(*scheme);
                if quality < 1.0 {
                    let detail =
                        format!("share of quality that {scheme} keeps, by perplexity of smollm2:135m");
                    score.scale(Factor { name: "quality", value: quality, detail });
                }

                if let Some(known) = known.iter().find(|known| known.provider == target.ep()) {
                    let KnownDivergence { divergence, measured, .. } = known;
                    let detail =
                        format!("its answers differ from the CPU's by {divergence} nats ({measured})");
                    score.scale(Factor { name: "numerics check", value: 0.0, detail });
                }
            }
        }
    }

    /// Returns the figures in one scheme.
    pub fn scheme(&self, scheme: Scheme) -> Option<&SchemeEstimate> {
        self.schemes.iter().find(|estimate| estimate.scheme == scheme)
    }

    /// Returns the bytes of a token in the KV cache on GPUs.
    pub fn token_bytes(&self) -> u64 {
        self.cache.iter().map(|cache| cache.token_bytes).sum()
    }

    /// Returns the bytes of a token in the KV cache on CPUs, in half precision. This is the larger of the usual types, so
    /// the sequences that fit are computed with it.
    pub fn cpu_token_bytes(&self) -> u64 {
        self.cache.iter().map(|cache| cache.f16_token_bytes).sum()
    }

    /// Returns the bytes of a token in the KV cache on CPUs, in eight bits. A CPU uses this type for a model whose answers
    /// stay the same with it, which is known after the first load.
    pub fn cpu_token_bytes_in_i8(&self) -> u64 {
        self.cache.iter().map(|cache| cache.i8_token_bytes).sum()
    }

    /// Returns the best scheme for one of the targets: one that runs before one that is refused, then by score.
    pub fn best(&self, among: impl Fn(&Target) -> bool) -> Option<(Scheme, &TargetEstimate)> {
        let all = self
            .schemes
            .iter()
            .flat_map(|estimate| estimate.targets.iter().map(move |target| (estimate.scheme, target)));
        // The first of equal schemes wins: 8 bits before 4.
        all.filter(|(_, estimate)| among(&estimate.target))
            .reduce(|best, next| if next.1.suitability() > best.1.suitability() { next } else { best })
    }
}

impl TargetEstimate {
    fn new(fixed: &Result<DryRun, CompileError>, target: &Target) -> Self {
        let options = CheckOptions { target: target.clone(), extents: BTreeMap::new() };
        let report = match fixed {
            Ok(fixed) => check_dry_run("model", fixed, &options),
            Err(error) => refused("model", error.to_string(), &options),
        };
        Self {
            held: fixed.as_ref().map_or_else(|_| Vec::new(), |fixed| required_memory(fixed, &report)),
            target: report.target,
            graph_bytes: report.parts.iter().map(|part| part.npu_weight_bytes).max().unwrap_or(0),
            npu_bytes: report.npu_weight_bytes,
            limit: graph_limit(target),
            verdict: report.verdict,
            score: report.score,
            highest_rate: None,
        }
    }

    /// Returns whether the NPU runs the model.
    pub fn runs(&self) -> bool {
        !matches!(self.verdict, Verdict::Refused { .. })
    }

    /// Returns whether the NPU runs the model, and the score, for comparisons.
    fn suitability(&self) -> (bool, f64) {
        (self.runs(), self.score.total)
    }
}

/// Returns the memory that static graphs need on the NPU that they were checked for.
fn required_memory(fixed: &DryRun, report: &Report) -> Vec<RequiredMemory> {
    let limit = graph_limit(&report.target);
    let graphs = fixed.static_graphs().zip(&report.parts).map(|((_, entry), part)| {
        let token_bytes = entry.kv.iter().map(|layer| layer.bytes_per_token() as u64).sum();
        RequiredMemory { bytes: part.npu_weight_bytes, token_bytes, limit }
    });
    let bytes = report.npu_weight_bytes;
    let token_bytes = fixed.token_bytes();
    let all = program_limit(&report.target).map(|limit| RequiredMemory { bytes, token_bytes, limit });
    graphs.chain(all).collect()
}

/// Groups layers with keys and values by their windows, those without one first.
fn group_by_window(layers: &[KvLayout]) -> Vec<CacheEstimate> {
    let mut found: BTreeMap<Option<usize>, CacheEstimate> = BTreeMap::new();
    for layer in layers.iter().filter(|layer| layer.recurrent_state().is_none()) {
        let cache = found.entry(layer.window).or_insert(CacheEstimate {
            layers: 0,
            window: layer.window,
            dtype: layer.dtype,
            token_bytes: 0,
            f16_token_bytes: 0,
            i8_token_bytes: 0,
        });
        let in_type = |dtype| layer.with_dtype(dtype).bytes_per_token() as u64;
        cache.layers += 1;
        cache.token_bytes += in_type(layer.dtype);
        cache.f16_token_bytes += in_type(DType::F16);
        cache.i8_token_bytes += in_type(DType::I8);
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(found: &[(Scheme, &str, f64, bool)]) -> ModelEstimate {
        let target = |&(_, target, total, runs): &(Scheme, &str, f64, bool)| TargetEstimate {
            target: target.parse().unwrap(),
            graph_bytes: 0,
            npu_bytes: 0,
            limit: 0,
            held: Vec::new(),
            verdict: if runs {
                Verdict::Whole
            } else {
                Verdict::Refused { reason: "it is large".to_owned() }
            },
            score: Score { total, components: Vec::new(), factors: Vec::new() },
            highest_rate: None,
        };
        let scheme = |found: &(Scheme, &str, f64, bool)| SchemeEstimate {
            scheme: found.0,
            bytes: 0,
            tower_bytes: 0,
            fixed_bytes: None,
            targets: vec![target(found)],
        };
        ModelEstimate {
            structure: String::new(),
            vision: None,
            audio: None,
            parameters: 0,
            longest: 0,
            schemes: found.iter().map(scheme).collect(),
            cache: Vec::new(),
            npu_token_bytes: 0,
            state_bytes: 0,
        }
    }

    #[test]
    fn a_cache_has_its_size_in_each_type_of_a_cpu() {
        let mut layers = vec![KvLayout::plain(3, 64); 30];
        layers.push(KvLayout { window: Some(512), dtype: DType::F16, ..KvLayout::plain(1, 128) });
        let found = group_by_window(&layers);
        let sizes: Vec<_> = found
            .iter()
            .map(|cache| [cache.token_bytes, cache.f16_token_bytes, cache.i8_token_bytes])
            .collect();
        assert_eq!(sizes, [[46_080, 23_040, 12_240], [512, 512, 264]]);
        let estimate = ModelEstimate { cache: found, ..estimate(&[]) };
        assert_eq!((estimate.cpu_token_bytes(), estimate.cpu_token_bytes_in_i8()), (23_552, 12_504));
    }

    #[test]
    fn scores_count_room_quality_and_known_divergence() {
        let found = [(Scheme::F16, "openvino:npu", 100.0, true), (Scheme::W4, "qnn:x-elite", 100.0, true)];
        let weighed = |memory, known: &[KnownDivergence]| {
            let mut estimate = estimate(&found);
            estimate.schemes[0].bytes = 142_000_000_000;
            estimate.adjust_scores(NpuMachine { memory, bandwidth: 10_000_000_000_000 }, known);
            estimate.schemes.iter().map(|scheme| scheme.targets[0].score.total).collect::<Vec<_>>()
        };
        assert_eq!(weighed(64_000_000_000, &[]), [0.0, 87.8]);
        assert_eq!(weighed(256_000_000_000, &[]), [100.0, 87.8]);
        let measured = "HTP emulation".to_owned();
        let known = [KnownDivergence { provider: narthex_spec::Ep::Qnn, divergence: 0.126, measured }];
        assert_eq!(weighed(256_000_000_000, &known), [100.0, 0.0]);
    }

    #[test]
    fn no_score_is_above_what_the_speed_allows() {
        let scores = |weights| {
            let mut estimate = estimate(&[(Scheme::W8, "openvino:npu", 100.0, true)]);
            estimate.schemes[0].targets[0].npu_bytes = weights;
            estimate.adjust_scores(NpuMachine { memory: 1 << 40, bandwidth: 100_000_000_000 }, &[]);
            let found = &estimate.schemes[0].targets[0];
            (found.score.total.round(), found.highest_rate.unwrap().round())
        };
        assert_eq!(scores(8_000_000_000), (100.0, 13.0));
        assert_eq!(scores(33_000_000_000), (30.0, 3.0));
        assert_eq!(scores(70_000_000_000), (14.0, 1.0));
    }

    #[test]
    fn a_target_that_runs_comes_before_one_that_refuses() {
        const QNN: &str = "qnn:x-elite";
        let check = |found: &[(Scheme, &str, f64, bool)], expect: Scheme| {
            let target: Target = QNN.parse().unwrap();
            assert_eq!(estimate(found).best(|known| *known == target).unwrap().0, expect, "{found:?}");
        };
        check(&[(Scheme::W8, QNN, 100.0, false), (Scheme::W4, QNN, 100.0, true)], Scheme::W4);
        check(&[(Scheme::W8, QNN, 100.0, false), (Scheme::W4, QNN, 60.0, true)], Scheme::W4);
        check(&[(Scheme::W8, QNN, 90.0, true), (Scheme::W4, QNN, 100.0, true)], Scheme::W4);
        check(&[(Scheme::W8, QNN, 100.0, true), (Scheme::W4, QNN, 100.0, true)], Scheme::W8);
        check(&[(Scheme::W8, QNN, 100.0, false), (Scheme::W4, QNN, 100.0, false)], Scheme::W8);
        check(&[(Scheme::W8, QNN, 90.0, true), (Scheme::W4, "openvino:npu", 100.0, true)], Scheme::W8);
        let two = estimate(&[(Scheme::W8, QNN, 100.0, false), (Scheme::W4, "openvino:npu", 80.0, true)]);
        assert_eq!(two.best(|_| true).unwrap().1.target.to_string(), "openvino:npu");
    }
}
