//! Checks whether a model would run on an NPU, and compiles it with graphs for one:
//! `cargo run --example compile_for_npu -p narthex-gateway -- smollm2:135m`.
//!
//! The rules of the check need neither the NPU nor its vendor's software.

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::{collections::BTreeMap, error::Error};

use narthex_gateway::{
    Cancel, CompileRequest, Config, Gateway,
    check::{CheckRequest, VendorCompiler, Verdict},
};
use narthex_spec::{Scheme, progress::Quiet};

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "smollm2:135m".to_owned());
    narthex_gateway::disable_telemetry();
    let gateway = Gateway::open(Config::standard())?;
    let cancel = Cancel::new();
    let check = CheckRequest {
        subject: model.clone(),
        target: "qnn:x-elite".parse()?,
        extents: BTreeMap::new(),
        fix: None,
        compiler: VendorCompiler::Skip,
    };
    let found = gateway.check(&check, &cancel)?;
    println!("{}", found.report);
    if let Verdict::Refused { reason } = found.verdict() {
        return Err(format!("{model} does not run on the NPU: {reason}").into());
    }
    // With `target`, the vendor's compiler would also compile the graphs now, if it is installed.
    let request = CompileRequest { contexts: vec![128], ..CompileRequest::new(Scheme::W8) };
    let (folder, manifest) = gateway.compile(&model, &request, &Quiet, &cancel)?;
    println!("{} graphs in {}", manifest.graphs.len(), folder.display());
    Ok(())
}
