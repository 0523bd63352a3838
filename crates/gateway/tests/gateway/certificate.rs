//! Measured losses of quantised packages, and comparisons of packages.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use narthex_gateway::{Cancel, Certification, CompileRequest, ErrorKind, Rebuild, compare::CompareOptions};
use narthex_spec::{
    Scheme,
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
