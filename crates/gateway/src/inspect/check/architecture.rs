//! Check of a model before it is compiled or downloaded: its graphs are built without weights and checked like any
//! others.

use std::{collections::BTreeMap, path::PathBuf};

use narthex_check::{Basis, CheckOptions, Finding, Fix, Report, Rule, Score, Severity, Verdict, check};
use narthex_compile::{dry_run::DryRun, package::DATA_FILE};
use narthex_graph::onnx::files::OnnxFile;
use narthex_spec::{Scheme, arch::Architecture};

/// Checks the graphs that `narthex compile` would build for NPUs with the default shapes.
pub(crate) fn check_architecture(
    subject: &str,
    architecture: &Architecture,
    scheme: Scheme,
    options: &CheckOptions,
) -> Report {
    let dry_run = match DryRun::with_static_shapes(architecture, scheme, &options.target) {
        Ok(dry_run) => dry_run,
        Err(error) => return refused(subject, error.to_string(), options),
    };
    let mut report = check_dry_run(subject, &dry_run, options);
    let described = match architecture {
        Architecture::Decoder(_) => format!("a decoder that Narthex compiles: {}", architecture.describe()),
        Architecture::Encoder(_) => format!("an encoder that Narthex compiles: {}", architecture.describe()),
        Architecture::Embedder(arch) => {
            let article = if arch.classifier.is_some() { "a" } else { "an" };
            format!("{article} {} that Narthex compiles: {}", arch.kind(), architecture.describe())
        }
        Architecture::Speech(_) => {
            format!("a model for speech that Narthex compiles: {}", architecture.describe())
        }
    };
    report.findings.push(Finding::new(Rule::Architecture, Severity::Note, described));
    if dry_run.token_bytes() > 0 {
        report.findings.push(cache(dry_run.token_bytes(), architecture.longest()));
    }

    if scheme == Scheme::W8
        && matches!(report.verdict, Verdict::Refused { .. })
        && let Ok(small) = DryRun::with_static_shapes(architecture, Scheme::W4, &options.target)
        && !matches!(check_dry_run(subject, &small, options).verdict, Verdict::Refused { .. })
    {
        let message = "in w4 it fits the target";
        let fix = Fix::manual(format!("narthex compile --scheme w4 --target {}", options.target));
        report.findings.push(Finding::new(Rule::PartSize, Severity::Note, message).fix(fix));
    }
    report
}

/// Checks the static graphs of a compile without weights.
pub(crate) fn check_dry_run(subject: &str, dry_run: &DryRun, options: &CheckOptions) -> Report {
    let parts: Vec<OnnxFile> = dry_run
        .static_graphs()
        .map(|(graph, entry)| OnnxFile {
            name: entry.file.clone(),
            folder: PathBuf::new(),
            graph: graph.clone(),
            data_files: BTreeMap::from([(DATA_FILE.to_owned(), Some(dry_run.data_bytes))]),
            watch: Default::default(),
        })
        .collect();
    check(subject, &parts, options)
}

/// Returns the report on a model that Narthex cannot compile.
pub(crate) fn refused(subject: &str, reason: String, options: &CheckOptions) -> Report {
    let fix = Fix::manual("check an ONNX export of it instead: narthex check FILE.onnx");
    let refusal = Finding::new(Rule::Architecture, Severity::Blocking, reason.clone()).fix(fix);
    Report {
        subject: subject.to_owned(),
        target: options.target.clone(),
        verdict: Verdict::Refused { reason },
        basis: Basis::Predicted,
        score: Score { total: 0.0, components: Vec::new(), factors: Vec::new() },
        assumed: BTreeMap::new(),
        parts: Vec::new(),
        npu_weight_bytes: 0,
        findings: vec![refusal],
        compiler: None,
        after_fix: None,
        fix_command: None,
    }
}

fn cache(per_token: u64, longest: usize) -> Finding {
    let message = format!(
        "its cache takes {:.1} MB for 1000 tokens in half precision (longest: {longest} tokens)",
        per_token as f64 / 1e3,
    );
    Finding::new(Rule::DecoderLoop, Severity::Note, message)
}

#[cfg(test)]
mod tests {
    use narthex_spec::arch::{
        Activation, Attention, Connector, DecoderArch, DecoderLayer, Mlp, PatchTower, Rope, RopeScaling,
        VisionArch,
    };
    use narthex_testkit::architecture as example;

    use super::*;

    #[test]
    fn architectures_are_checked_without_weights() {
        let options = CheckOptions { target: "qnn:x-elite".parse().unwrap(), extents: BTreeMap::new() };
        let attention = Attention::plain(9, 3, 64);
        let mlp = Mlp { inner: 1536, activation: Activation::Silu, gated: true, bias: false, cutoff: None };
        let arch = Architecture::Decoder(DecoderArch {
            vocab: 49152,
            hidden: 576,
            context: 8192,
            layers: vec![DecoderLayer::dense(attention, mlp); 30],
            rope: Some(Rope { theta: 1e5, dims: 64, scaling: RopeScaling::None }),
            ..example::llama()
        });
        insta::assert_snapshot!(check_architecture("smollm2:135m", &arch, Scheme::W8, &options));
        let unknown = refused("m", "not yet".to_owned(), &options);
        assert!(matches!(unknown.verdict, Verdict::Refused { .. }));
    }

    /// Checks that a decoder with one tower satisfies the rules of Snapdragon X.
    fn check_tower(arch: DecoderArch, file: &str) {
        let options = CheckOptions { target: "qnn:x-elite".parse().unwrap(), extents: BTreeMap::new() };
        let dry_run =
            DryRun::with_static_shapes(&Architecture::Decoder(arch), Scheme::W8, &options.target).unwrap();
        let report = check_dry_run("tower", &dry_run, &options);
        let tower = report.parts.last().unwrap();
        assert_eq!(tower.name, file);
        assert!(!matches!(report.verdict, Verdict::Refused { .. }), "{:?}", report.verdict);
        let blocking: Vec<_> =
            report.findings.iter().filter(|finding| finding.severity == Severity::Blocking).collect();
        assert!(blocking.is_empty(), "{blocking:?}");
    }

    #[test]
    fn the_towers_of_gemma_3n_are_checked_too() {
        let keys = serde_json::json!({
            "architectures": ["Gemma3nForConditionalGeneration"], "text_config": {}, "vision_config": {}, "audio_config": {}
        });
        let Architecture::Decoder(arch) = narthex_checkpoint::architecture_from_config(keys, None).unwrap()
        else {
            panic!("no decoder")
        };
        check_tower(DecoderArch { vision: arch.vision, ..example::llama() }, "vision-fixed.onnx");
        check_tower(DecoderArch { audio: arch.audio, ..example::llama() }, "audio-fixed.onnx");
    }

    #[test]
    fn the_vision_tower_of_gemma_3_is_checked_too() {
        let vision = PatchTower {
            side: 896,
            patch: 14,
            hidden: 1152,
            layers: 27,
            heads: 16,
            inner: 4304,
            activation: Activation::GeluTanh,
            norm_epsilon: 1e-6,
            connector: Connector::Pooled { pool: 4, norm_epsilon: 1e-6 },
        };
        assert_eq!(vision.rows(), 256);
        let vision = Some(Box::new(VisionArch::Patches(vision)));
        check_tower(DecoderArch { vision, ..example::llama() }, "vision-fixed.onnx");
    }
}
