//! What can be said of a model before anything of it is downloaded but its settings: sizes, cache, and what NPUs make of
//! it. Every figure is taken from a compile on paper; nothing here is estimated.

use std::collections::BTreeMap;

use narthex_check::{CheckOptions, Report, Score, Verdict, graph_limit, program_limit, same_facts};
use narthex_compile::{
    CompileError,
    paper::{self, Paper},
};
use narthex_spec::{DType, Recipe, Scheme, Target, arch::Architecture, manifest::KvLayout};
use serde::Serialize;

use crate::inspect::check::architecture::{check_paper, refused};

/// A model as it would be.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outlook {
    /// Its structure in words.
    pub structure: String,
    /// Parameters: the elements of every weight that is compiled.
    pub parameters: u64,
    /// The longest sequence that its weights allow, in tokens.
    pub longest: usize,
    /// What each scheme makes of it.
    pub schemes: Vec<SchemeOutlook>,
    /// Its KV cache on CPUs and GPUs; empty for encoders.
    pub cache: Vec<CacheOutlook>,
    /// Bytes that a token takes in the KV cache of an NPU's graphs.
    pub npu_token_bytes: u64,
}

/// A model in one scheme.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SchemeOutlook {
    /// The scheme.
    pub scheme: Scheme,
    /// Bytes of the weights' file, for CPUs and GPUs.
    pub bytes: u64,
    /// Bytes of the weights' file with what graphs for NPUs need besides; nothing where there are none in this scheme.
    pub fixed_bytes: Option<u64>,
    /// What each NPU makes of it.
    pub targets: Vec<TargetOutlook>,
}

/// A model in one scheme on one NPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TargetOutlook {
    /// The NPU.
    pub target: Target,
    /// Bytes of weights of the largest graph, which the NPU must hold.
    pub graph_bytes: u64,
    /// Bytes of weights that a graph may have there.
    pub limit: u64,
    /// What must have room there: each graph, and all of them where the driver sets a bound.
    pub held: Vec<RequiredMemory>,
    /// Whether it runs there, as `narthex check` says.
    pub verdict: Verdict,
    /// How well it suits the NPU, as `narthex check` says.
    pub score: Score,
}

/// Weights and the cache beside them, and what there is for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RequiredMemory {
    /// Bytes of the weights.
    pub bytes: u64,
    /// Bytes that a token takes in the KV cache of the layers that have these weights.
    pub token_bytes: u64,
    /// Bytes that there are.
    pub limit: u64,
}

/// The layers whose cache is alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheOutlook {
    /// How many.
    pub layers: usize,
    /// The tokens that they look back at most, where there is a bound.
    pub window: Option<usize>,
    /// Element type.
    pub dtype: DType,
    /// Bytes that a token takes in all of them.
    pub token_bytes: u64,
}

impl Outlook {
    /// Compiles an architecture on paper in every scheme, and checks what comes out for each target.
    ///
    /// # Errors
    /// As [`paper::compile`], for an architecture that no scheme can be had of.
    pub fn new(architecture: &Architecture, targets: &[Target]) -> Result<Self, CompileError> {
        let mut schemes = Vec::new();
        let (mut layers, mut npu_token_bytes) = (Vec::new(), 0);
        for scheme in Scheme::ALL {
            let paper = paper::compile("model", architecture, &Recipe::new(scheme))?;
            if let Some((_, entry)) = paper.graphs.into_iter().next() {
                layers = entry.kv;
            }
            let fixed = paper::compile_static(architecture, scheme);
            if let Ok(fixed) = &fixed {
                npu_token_bytes = npu_token_bytes.max(fixed.token_bytes());
            }
            let mut seen: Vec<TargetOutlook> = Vec::new();
            for target in targets {
                let known = seen.iter().find(|known| same_facts(&known.target, target));
                let outlook = match known {
                    Some(known) => TargetOutlook { target: target.clone(), ..known.clone() },
                    None => TargetOutlook::new(&fixed, target),
                };
                seen.push(outlook);
            }
            schemes.push(SchemeOutlook {
                scheme,
                bytes: paper.data_bytes,
                targets: seen,
                fixed_bytes: fixed.ok().map(|fixed| fixed.data_bytes),
            });
        }
        Ok(Self {
            structure: architecture.describe(),
            parameters: narthex_checkpoint::parameters(architecture),
            longest: architecture.longest(),
            schemes,
            cache: alike(&layers),
            npu_token_bytes,
        })
    }

    /// One scheme's part.
    pub fn scheme(&self, scheme: Scheme) -> Option<&SchemeOutlook> {
        self.schemes.iter().find(|outlook| outlook.scheme == scheme)
    }

    /// Bytes that a token takes in the KV cache on CPUs and GPUs.
    pub fn token_bytes(&self) -> u64 {
        self.cache.iter().map(|cache| cache.token_bytes).sum()
    }

    /// The scheme and the target, among some, that suit each other best: one that takes the model before one that does
    /// not, then by score.
    pub fn best(&self, among: impl Fn(&Target) -> bool) -> Option<(Scheme, &TargetOutlook)> {
        let all = self
            .schemes
            .iter()
            .flat_map(|outlook| outlook.targets.iter().map(move |found| (outlook.scheme, found)));
        let suits = |found: &TargetOutlook| (found.runs(), found.score.total);
        // Of equals the first: 8 bits before 4.
        all.filter(|(_, found)| among(&found.target))
            .reduce(|best, next| if suits(next.1) > suits(best.1) { next } else { best })
    }
}

impl TargetOutlook {
    fn new(fixed: &Result<Paper, CompileError>, target: &Target) -> Self {
        let options = CheckOptions { target: target.clone(), extents: BTreeMap::new() };
        let report = match fixed {
            Ok(fixed) => check_paper("model", fixed, &options),
            Err(error) => refused("model", error.to_string(), &options),
        };
        Self {
            held: fixed.as_ref().map_or_else(|_| Vec::new(), |fixed| held(fixed, &report)),
            target: report.target,
            graph_bytes: report.parts.iter().map(|part| part.npu_weight_bytes).max().unwrap_or(0),
            limit: graph_limit(target),
            verdict: report.verdict,
            score: report.score,
        }
    }

    /// Whether the NPU takes it.
    pub fn runs(&self) -> bool {
        !matches!(self.verdict, Verdict::Refused { .. })
    }
}

/// What the graphs of a compile on paper need on the NPU that they were checked for.
fn held(fixed: &Paper, report: &Report) -> Vec<RequiredMemory> {
    let limit = graph_limit(&report.target);
    let graphs = fixed.static_graphs().zip(&report.parts).map(|((_, entry), part)| {
        let token_bytes = entry.kv.iter().map(|layer| layer.bytes_per_token() as u64).sum();
        RequiredMemory { bytes: part.npu_weight_bytes, token_bytes, limit }
    });
    let (bytes, token_bytes) = (report.npu_weight_bytes, fixed.token_bytes());
    let all = program_limit(&report.target).map(|limit| RequiredMemory { bytes, token_bytes, limit });
    graphs.chain(all).collect()
}

/// Layers gathered by their windows, those without one first.
fn alike(layers: &[KvLayout]) -> Vec<CacheOutlook> {
    let mut found: BTreeMap<Option<usize>, CacheOutlook> = BTreeMap::new();
    for layer in layers {
        let cache = found.entry(layer.window).or_insert(CacheOutlook {
            layers: 0,
            window: layer.window,
            dtype: layer.dtype,
            token_bytes: 0,
        });
        cache.layers += 1;
        cache.token_bytes += layer.bytes_per_token() as u64;
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outlook(found: &[(Scheme, &str, f64, bool)]) -> Outlook {
        let target = |&(_, target, total, runs): &(Scheme, &str, f64, bool)| TargetOutlook {
            target: target.parse().unwrap(),
            graph_bytes: 0,
            limit: 0,
            held: Vec::new(),
            verdict: if runs {
                Verdict::Whole
            } else {
                Verdict::Refused { reason: "it is large".to_owned() }
            },
            score: Score { total, components: Vec::new() },
        };
        let scheme = |found: &(Scheme, &str, f64, bool)| SchemeOutlook {
            scheme: found.0,
            bytes: 0,
            fixed_bytes: None,
            targets: vec![target(found)],
        };
        Outlook {
            structure: String::new(),
            parameters: 0,
            longest: 0,
            schemes: found.iter().map(scheme).collect(),
            cache: Vec::new(),
            npu_token_bytes: 0,
        }
    }

    #[test]
    fn what_takes_the_model_goes_before_what_refuses_it() {
        const QNN: &str = "qnn:x-elite";
        let check = |found: &[(Scheme, &str, f64, bool)], expect: Scheme| {
            let target: Target = QNN.parse().unwrap();
            assert_eq!(outlook(found).best(|known| *known == target).unwrap().0, expect, "{found:?}");
        };
        check(&[(Scheme::W8, QNN, 100.0, false), (Scheme::W4, QNN, 100.0, true)], Scheme::W4);
        check(&[(Scheme::W8, QNN, 100.0, false), (Scheme::W4, QNN, 60.0, true)], Scheme::W4);
        check(&[(Scheme::W8, QNN, 90.0, true), (Scheme::W4, QNN, 100.0, true)], Scheme::W4);
        check(&[(Scheme::W8, QNN, 100.0, true), (Scheme::W4, QNN, 100.0, true)], Scheme::W8);
        check(&[(Scheme::W8, QNN, 100.0, false), (Scheme::W4, QNN, 100.0, false)], Scheme::W8);
        check(&[(Scheme::W8, QNN, 90.0, true), (Scheme::W4, "openvino:npu", 100.0, true)], Scheme::W8);
        let two = outlook(&[(Scheme::W8, QNN, 100.0, false), (Scheme::W4, "openvino:npu", 80.0, true)]);
        assert_eq!(two.best(|_| true).unwrap().1.target.to_string(), "openvino:npu");
    }
}
