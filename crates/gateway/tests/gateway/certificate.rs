//! Measured losses of quantised packages, and comparisons of packages.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use narthex_gateway::{
    Cancel, Certification, CompileRequest, ErrorKind, Rebuild, compare::CompareOptions, width_plan,
    width_plan_text,
};
use narthex_spec::{
    BlockSize, Calibration, HeadOrder, RangeMethod, RoundingMethod, ScalingMethod, Scheme, Variant,
    manifest::{CertificateFigures, Manifest},
    progress::Quiet,
};

use crate::support::Tiny;

fn compile(tiny: &Tiny, checkpoint: &str, scheme: Scheme, certification: Certification) -> Manifest {
    let request = CompileRequest { rebuild: Rebuild::Always, certification, ..CompileRequest::new(scheme) };
    tiny.gateway().compile(checkpoint, &request, &Quiet, &Cancel::new()).unwrap().1
}

#[test]
fn a_quantised_package_states_its_loss() {
    let tiny = Tiny::new();
    let checkpoint = tiny.checkpoint();
    let compile = |scheme, certification| compile(&tiny, &checkpoint, scheme, certification);
    let manifest = compile(Scheme::W8, Certification::IfAffordable);
    let certificate = manifest.certificate.clone().unwrap();
    let CertificateFigures::Decoder { positions, perplexity, reference_perplexity, divergence, agreement } =
        certificate.figures
    else {
        panic!("{certificate:?}")
    };
    assert!(positions > 10 && perplexity > 1.0 && (0.5..=1.0).contains(&agreement), "{certificate:?}");
    assert!((perplexity / reference_perplexity - 1.0).abs() < 0.01, "{certificate:?}");
    assert!(divergence > 0.0 && divergence < 0.01, "{certificate:?}");
    assert!(!certificate.accepted_loss && certificate.date.len() == 10);
    assert!(compile(Scheme::W4, Certification::AcceptLoss).certificate.is_some());
    assert_eq!(compile(Scheme::F32, Certification::Always).certificate, None);
    assert_eq!(compile(Scheme::W8, Certification::Never).certificate, None);
}

/// Returns the request for a package with integer activations.
fn integers(scheme: Scheme) -> CompileRequest {
    CompileRequest {
        rebuild: Rebuild::Always,
        certification: Certification::Always,
        contexts: vec![48],
        ..CompileRequest::new(scheme)
    }
}

#[test]
fn integer_activations_are_measured_in_the_graphs_that_have_them() {
    let tiny = Tiny::new();
    let checkpoint = tiny.checkpoint();
    let compile = |request| tiny.gateway().compile(&checkpoint, &request, &Quiet, &Cancel::new());
    for scheme in [Scheme::W8A16, Scheme::W8A8, Scheme::W4A16] {
        let (_, manifest) = compile(integers(scheme)).unwrap();
        let is_copied = manifest.source_weights.iter().any(|weights| weights.copied);
        assert_eq!(is_copied, scheme == Scheme::W4A16, "{scheme}");
        let certificate = manifest.certificate.unwrap();
        assert_eq!(certificate.variant, Variant::Static);
        assert_eq!(certificate.rounding, RoundingMethod::Nearest);
        let CertificateFigures::Decoder { divergence, .. } = certificate.figures else { panic!("{scheme}") };
        assert!(divergence > 0.0 && divergence < 0.1, "{scheme}: {divergence}");
    }
    let hybrid = |budget: &str, rounding| CompileRequest {
        rounding: Some(rounding),
        budget: Some(budget.parse().unwrap()),
        // Blocks of 32 would be copied from the checkpoint.
        block: Some(BlockSize::Elements(16)),
        ..integers(Scheme::W4A16)
    };
    for rounding in [RoundingMethod::Gptq, RoundingMethod::Nearest] {
        let manifest = compile(hybrid("size=+20%", rounding)).unwrap().1;
        assert_eq!(manifest.certificate.unwrap().rounding, rounding);
        let wide = manifest.layer_widths.iter().filter(|layer| layer.is_wide()).count();
        assert!((1..manifest.layer_widths.len()).contains(&wide), "{wide}");
        assert!(manifest.layer_widths.iter().all(|layer| layer.loss.is_some_and(|loss| loss > 0.0)));
    }

    for (scheme, scaling) in [(Scheme::W4A16, ScalingMethod::Awq), (Scheme::W8A8, ScalingMethod::Smooth)] {
        let block = (scheme == Scheme::W4A16).then_some(BlockSize::Elements(16));
        let scaled = CompileRequest { scaling: Some(scaling), block, ..integers(scheme) };
        let manifest = compile(scaled).unwrap().1;
        let certificate = manifest.certificate.unwrap();
        assert_eq!((manifest.recipe.scaling, certificate.scaling), (scaling, scaling));
        let CertificateFigures::Decoder { divergence, .. } = certificate.figures else { panic!("{scheme}") };
        assert!(divergence > 0.0, "{scheme}");
    }
}

#[test]
fn requests_for_integer_activations_are_checked() {
    let tiny = Tiny::new();
    let checkpoint = tiny.checkpoint();
    let compile = |request| tiny.gateway().compile(&checkpoint, &request, &Quiet, &Cancel::new());
    // Graphs with fixed shapes are made without being asked for.
    let plain = CompileRequest {
        contexts: Vec::new(),
        certification: Certification::Never,
        ranges: Some(RangeMethod::Percentile),
        ..integers(Scheme::W8A16)
    };
    let recipe = compile(plain.clone()).unwrap().1.recipe;
    assert!(recipe.fixed.is_some());
    assert_eq!(recipe.activations.unwrap().ranges, RangeMethod::Percentile);

    let refused = |request, expected: &str| {
        let error = compile(request).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    };
    refused(CompileRequest { calibration: Calibration::None, ..plain.clone() }, "--calibrate standard");
    refused(CompileRequest { scheme: Scheme::W8, ..plain.clone() }, "expected --scheme w8a16, w8a8 or w4a16");
    refused(
        CompileRequest { budget: Some("kl=0.1".parse().unwrap()), ..plain.clone() },
        "expected --scheme w4 or w4a16",
    );
    let compensated = CompileRequest { rounding: Some(RoundingMethod::Gptq), ..plain.clone() };
    refused(compensated.clone(), "expected --scheme w4 or w4a16, found w8a16");
    let unmeasured = CompileRequest { scheme: Scheme::W4, calibration: Calibration::None, ..compensated };
    refused(unmeasured, "GPTQ measures the inputs of layers on a text; expected --calibrate standard");
    let scaled = CompileRequest { scaling: Some(ScalingMethod::Awq), ..plain.clone() };
    refused(scaled.clone(), "expected --scheme w4 or w4a16, found w8a16");
    let scaled = CompileRequest { ranges: None, ..scaled };
    let unmeasured = CompileRequest { scheme: Scheme::W4, calibration: Calibration::None, ..scaled.clone() };
    refused(unmeasured, "awq measures the inputs of layers on a text; expected --calibrate standard");
    let float = CompileRequest { scheme: Scheme::F16, scaling: Some(ScalingMethod::Smooth), ..scaled };
    refused(float, "only weights of integers are scaled");
    refused(
        CompileRequest { block: Some(BlockSize::Elements(32)), ..plain.clone() },
        "expected channel, as its weights",
    );
    let channel = CompileRequest { scheme: Scheme::W4A16, block: Some(BlockSize::Channel), ..plain.clone() };
    refused(channel.clone(), "expected a number of elements, or a target of Intel's");
    let intel = CompileRequest { target: Some("openvino:npu".parse().unwrap()), ..channel };
    for (scheme, block) in [(Scheme::W4A16, intel.block), (Scheme::W4A16, None), (Scheme::W8A8, None)] {
        let recipe = compile(CompileRequest { scheme, block, ..intel.clone() }).unwrap().1.recipe;
        assert_eq!(
            (recipe.block, recipe.head_order),
            (BlockSize::Channel, HeadOrder::TokensFirst),
            "{scheme}"
        );
        let is_narrow = scheme == Scheme::W4A16;
        let choices = (recipe.rounding == RoundingMethod::Gptq, recipe.budget.is_some());
        assert_eq!(choices, (is_narrow, is_narrow), "{scheme}");
    }
}

#[test]
fn a_divergence_limits_the_layers_in_4_bits() {
    let tiny = Tiny::new();
    let checkpoint = tiny.checkpoint();
    let compile = |request| tiny.gateway().compile(&checkpoint, &request, &Quiet, &Cancel::new());
    let request = |budget: Option<f64>| CompileRequest {
        rebuild: Rebuild::Always,
        certification: Certification::AcceptLoss,
        contexts: vec![48],
        block: Some(BlockSize::Elements(16)),
        budget: budget.map(|most| format!("kl={most:.6}").parse().unwrap()),
        ..CompileRequest::new(Scheme::W4A16)
    };
    let figures = |manifest: &Manifest| {
        let wide = manifest.layer_widths.iter().filter(|layer| layer.is_wide()).count();
        match manifest.certificate.as_ref().unwrap().figures {
            CertificateFigures::Decoder { divergence, .. } => (wide, divergence),
            CertificateFigures::Encoder { .. } => panic!("a decoder was compiled"),
        }
    };
    let (none, whole) = figures(&compile(request(None)).unwrap().1);
    assert_eq!(none, 0);
    let limited = compile(request(Some(whole / 2.0))).unwrap().1;
    let (some, divergence) = figures(&limited);
    assert!(some > 0 && some < limited.layer_widths.len(), "{some}");
    // The text of the certificate is another one, and activations are integers.
    assert!(divergence < 0.8 * whole, "{divergence} {whole}");
    let (loose, _) = figures(&compile(request(Some(whole * 4.0))).unwrap().1);
    assert_eq!(loose, 0);

    // The plan of a package makes the same package.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.toml");
    std::fs::write(&file, width_plan_text(&limited)).unwrap();
    let plan = width_plan(&file).unwrap();
    let planned = compile(CompileRequest { plan: Some(plan.clone()), ..request(None) }).unwrap().1;
    assert_eq!((planned.recipe.plan, planned.recipe.budget), (Some(plan.sha256()), None));
    assert_eq!(planned.files["model.onnx.data"].sha256, limited.files["model.onnx.data"].sha256);
    let both = CompileRequest { plan: Some(plan), ..request(Some(0.1)) };
    assert!(compile(both).unwrap_err().to_string().contains("found both"));
    let unknown = "[layers]\n\"/layers.0/attn/qkv_proj\" = 8\n\"/layers.99/attn/qkv_proj\" = 8\n";
    std::fs::write(&file, unknown).unwrap();
    let wrong = CompileRequest { plan: Some(width_plan(&file).unwrap()), ..request(None) };
    let error = compile(wrong).unwrap_err().to_string();
    assert!(error.contains("plan.toml, line 3: expected a layer of the model, from /layers.0/"), "{error}");
}

#[test]
fn packages_of_one_model_are_compared() {
    let tiny = Tiny::new();
    let checkpoint = tiny.checkpoint();
    let name = compile(&tiny, &checkpoint, Scheme::F32, Certification::Never).name;
    let certificate = compile(&tiny, &checkpoint, Scheme::W8, Certification::Always).certificate.unwrap();
    let [float, quantised] = [Scheme::F32, Scheme::W8].map(|scheme| format!("{name}@{scheme}"));
    let gateway = tiny.gateway();
    let compare = |reference: &str, model: &str, options: &CompareOptions| {
        gateway.compare_packages(reference, model, options, &Quiet, &Cancel::new())
    };

    let comparison = compare(&float, &quantised, &CompareOptions::default()).unwrap();
    assert_eq!(comparison.agreement, certificate.figures);
    assert_eq!(comparison.text, certificate.text);
    let [reference, other] = &comparison.packages;
    assert_eq!((reference.scheme, other.scheme), (Scheme::F32, Scheme::W8));
    assert!(reference.bytes > other.bytes);
    assert!(comparison.packages.iter().all(|package| {
        package.speed.as_ref().is_some_and(|speed| speed.decode_tokens_per_second.median > 0.0)
    }));

    let short = CompareOptions { text: Some("the cat".to_owned()), skip_speed: true };
    let error = compare(&float, &quantised, &short).unwrap_err();
    assert_eq!((error.kind(), error.param()), (ErrorKind::BadRequest, Some("text")), "{error}");
    assert!(compare(&float, "no-such-model", &short).is_err());
}
