//! Loading ONNX Runtime: refused libraries, and one library per process. A single test, because the order matters.

mod support;

use std::fs;

use narthex_device::{
    DeviceError,
    runtime::{Runtime, disable_telemetry, probe},
};
use support::library;

#[test]
fn one_library_and_no_telemetry() {
    let library = library();
    let folder = tempfile::tempdir().unwrap();
    let garbage = folder.path().join("libonnxruntime.so");
    fs::write(&garbage, "this is no library").unwrap();
    let missing = folder.path().join("missing.so");

    // SAFETY: this is the only test of its process, and no other thread reads the environment.
    unsafe { std::env::remove_var("ORT_DISABLE_TELEMETRY") };
    assert_eq!(Runtime::load(&library).unwrap_err(), DeviceError::TelemetryOn);
    disable_telemetry();

    for path in [&garbage, &missing] {
        let error = Runtime::load(path).unwrap_err();
        assert!(matches!(&error, DeviceError::Load { .. }), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("narthex runtime install cpu")));
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        assert_eq!(probe(path), None);
    }
    let minor = probe(&library).expect("the library is ONNX Runtime");
    assert!(minor >= 24, "{minor}");

    let runtime = Runtime::load(&library).unwrap_or_else(|error| panic!("{error}"));
    assert!(runtime.version().starts_with(&format!("1.{minor}")), "{}", runtime.version());
    assert_eq!(runtime.library(), narthex_files::canonicalize(&library).unwrap());
    assert!(
        runtime
            .devices()
            .iter()
            .any(|device| device.ep == "CPUExecutionProvider" && device.hardware == "CPU")
    );

    let again = Runtime::load(&library).unwrap_or_else(|error| panic!("{error}"));
    assert!(std::ptr::eq(runtime, again));
    let error = Runtime::load(&garbage).unwrap_err();
    assert!(
        matches!(&error, DeviceError::AlreadyLoaded { wanted, .. } if wanted.ends_with("libonnxruntime.so"))
    );
}
