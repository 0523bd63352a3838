//! Comparison of one model on several devices.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use narthex_gateway::{
    Cancel, Config, Error, ErrorKind, Gateway,
    bench::{BenchOptions, Comparison, Outcome},
};
use narthex_spec::progress::Quiet;

use crate::support::Tiny;

const OPTIONS: BenchOptions =
    BenchOptions { prompt_tokens: 12, generate_tokens: 4, rounds: 2, engine_only: true };

fn compare(tiny: &Tiny, model: &str, places: &str) -> Result<Comparison, Error> {
    tiny.gateway().compare(model, &places.parse().unwrap(), OPTIONS, &Quiet, &Cancel::new())
}

#[test]
fn a_device_that_cannot_be_used_is_a_row_with_its_reason() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let found = compare(&tiny, &model, "qnn,cpu,prefill=cpu,decode=qnn").unwrap();
    let places: Vec<String> = found.contenders.iter().map(|c| c.place.to_string()).collect();
    assert_eq!(places, ["qnn", "cpu", "prefill=cpu,decode=qnn"]);
    let [qnn, cpu, split] = [0, 1, 2].map(|index| &found.contenders[index].outcome);
    let Outcome::Measured(figures) = cpu else { panic!("{cpu:?}") };
    assert!(figures.first_token_ms.min > 0.0 && figures.load_ms > 0.0, "{figures:?}");
    assert_eq!(figures.to_cpu.unwrap().decode.max, 1.0);
    assert!(figures.placement.lines.iter().all(|line| line.compute_share == 1.0), "{figures:?}");
    let reason = |outcome: &Outcome| match outcome {
        Outcome::Refused { reason, .. } => reason.clone(),
        Outcome::Measured(figures) => panic!("{figures:?}"),
    };
    assert!(reason(qnn).contains("Snapdragon"), "{qnn:?}");
    assert!(reason(split).starts_with("qnn: "), "{split:?}");
    assert_eq!(found.package.to_string().len(), 64);
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["contenders"][0]["outcome"], "refused");
    assert_eq!(
        (&json["contenders"][1]["outcome"], &json["contenders"][1]["place"]),
        (&"ran".into(), &"cpu".into())
    );
}

#[test]
fn a_comparison_of_nothing_fails() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let error = compare(&tiny, &model, "qnn").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("Snapdragon"), "{error}");
    let error = compare(&tiny, &tiny.embedding(), "cpu").unwrap_err();
    assert!(matches!(error, Error::WrongKind { .. }), "{error}");
}

#[test]
fn stand_ins_are_never_timed() {
    let tiny = Tiny::new();
    for places in ["cpu,qnn:emulation", "prefill=cpu,decode=openvino:cpu"] {
        // The request is refused before the model is looked up.
        let error = compare(&tiny, "no-such-model", places).unwrap_err();
        assert_eq!((error.kind(), error.param()), (ErrorKind::BadRequest, Some("devices")), "{error}");
        assert!(error.to_string().contains("so its times are meaningless"), "{error}");
    }
    let refused = |config: Config, param| {
        let gateway = Gateway::open(config).unwrap();
        let error = gateway.bench("no-such-model", OPTIONS, &Quiet, &Cancel::new()).unwrap_err();
        assert_eq!((error.kind(), error.param()), (ErrorKind::BadRequest, Some(param)), "{error}");
    };
    refused(Config { providers: "qnn:emulation,cpu".parse().unwrap(), ..tiny.config() }, "providers");
    let place = Some("prefill=openvino:cpu,decode=cpu".parse().unwrap());
    refused(Config { place, ..tiny.config() }, "place");
}
