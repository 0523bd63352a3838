//! The saver of Qualcomm's provider. It changes the current folder while it runs, so its test has a process of its own.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{env, fs};

use narthex_device::{
    ep::{Device, QnnOptions},
    precompile::{control, save, try_out},
};
use narthex_graph::Builder;
use narthex_spec::{DType, Ep, dtype::Dim, target::QnnChip};
use support::{fixed::plugin, runtime};

#[test]
fn each_call_of_the_backend_is_written_into_the_folder() {
    let library = plugin(Ep::Qnn);
    runtime().register(Ep::Qnn, &library).unwrap_or_else(|error| panic!("{error}"));
    let (device, place) =
        (Device::Qnn(QnnOptions::new(&library, &[QnnChip::XElite])), tempfile::tempdir().unwrap());
    let mut b = Builder::new("relu", &[("", 20)]);
    let x = b.input("x", DType::F32, &[1, 4].map(Dim::from));
    let y = b.op("/only", "Relu", &[&x]);
    b.output(&y, DType::F32, &[1, 4].map(Dim::from));
    let graph = place.path().join("graph.onnx");
    fs::write(&graph, b.finish().encode()).unwrap();
    // The order is that of a check's process: first the control, then the saver, then the compiler.
    assert!(control(runtime(), &device, &graph, place.path()).unwrap().is_ok());
    let before = env::current_dir().unwrap();
    save(runtime(), &device, &graph, place.path()).unwrap();
    assert_eq!(env::current_dir().unwrap(), before);
    let program = fs::read_to_string(place.path().join("saver_output/saver_output.c")).unwrap();
    assert!(program.contains("Relu") && program.contains("graphFinalize"), "{program}");
    assert_eq!(try_out(runtime(), &device, &graph), Ok(1));
    assert!(save(runtime(), &Device::Cpu, &graph, &place.path().join("absent")).is_ok());
    assert!(save(runtime(), &device, &graph, &place.path().join("absent")).is_err());
}
