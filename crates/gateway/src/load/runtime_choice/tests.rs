//! Libraries for device orders on recorded machines, over a store with a runtime that was never unpacked.

use std::{fs, path::Path};

use narthex_catalog::{network::Network, store::Store};
use narthex_device::inventory::{Accelerator, AcceleratorKind};
use narthex_spec::progress::Quiet;

use super::*;
use crate::{
    gateway::Gateway,
    inspect::doctor::{Finding, Level},
};

/// Returns the facts of a machine with these accelerators and libraries.
fn machine([os, processor]: [&str; 2], drivers: &[(AcceleratorKind, &str)], libraries: &[Ep]) -> Facts {
    let accelerator = |&(kind, driver): &(AcceleratorKind, &str)| Accelerator {
        kind,
        driver: driver.to_owned(),
        text: driver.to_owned(),
        memory: None,
    };
    Facts {
        os: os.to_owned(),
        arch: "x86_64".to_owned(),
        processor: processor.to_owned(),
        accelerators: drivers.iter().map(accelerator).collect(),
        libraries: libraries.iter().map(|&ep| (ep, PathBuf::from(format!("/lib/{ep}")))).collect(),
        ..Facts::default()
    }
}

const WINDOWS: [&str; 2] = ["windows", "Intel(R) Core(TM) Ultra 7 155H"];
const LINUX: [&str; 2] = ["linux", "Intel(R) Core(TM) Ultra 7 155H"];

fn config(providers: &str, place: Option<&str>) -> Config {
    let place = place.map(|place| place.parse().unwrap());
    Config { providers: providers.parse().unwrap(), place, ..Config::standard() }
}

#[test]
fn the_first_usable_device_decides_the_library() {
    use AcceleratorKind::{Gpu, Npu};
    let drivers = [(Npu, "intel_vpu"), (Gpu, "nvidia")];
    let linux = |libraries: &[Ep]| machine(LINUX, &drivers, libraries);
    let windows = |libraries: &[Ep]| machine(WINDOWS, &[], libraries);
    let check = |providers: &str, place: Option<&str>, machine: Facts, expected: Ep| {
        let config = config(providers, place);
        assert_eq!(
            required_runtime(&config, requested_devices(&config), &machine),
            expected,
            "{providers}, {place:?}"
        );
    };
    check("dml,qnn,cpu", None, windows(&[Ep::DirectMl]), Ep::DirectMl);
    check("dml,qnn,cpu", None, windows(&[]), Ep::Cpu);
    check("auto", None, windows(&[Ep::DirectMl, Ep::Cuda]), Ep::DirectMl);
    check("nvidia", None, windows(&[Ep::DirectMl, Ep::Cuda]), Ep::Cuda);
    check("auto", None, windows(&[Ep::DirectMl, Ep::OpenVino]), Ep::Cpu);
    check("cuda,cpu", None, linux(&[Ep::Cuda]), Ep::Cuda);
    check("openvino,cuda,cpu", None, linux(&[Ep::Cuda, Ep::OpenVino]), Ep::Cpu);
    check("openvino,cuda,cpu", None, linux(&[Ep::Cuda]), Ep::Cuda);
    check("cpu,cuda", None, linux(&[Ep::Cuda]), Ep::Cpu);
    // If devices are combined, the CPU does not decide, because it runs with any library.
    check("cpu,cuda", Some("auto"), linux(&[Ep::Cuda]), Ep::Cuda);
    check("cpu", Some("prefill=cpu,decode=cuda"), linux(&[Ep::Cuda]), Ep::Cuda);
}

#[test]
fn a_provider_that_needs_another_library_is_refused() {
    let all = || machine(WINDOWS, &[], &[Ep::OpenVino, Ep::WebGpu, Ep::DirectMl, Ep::Cuda]);
    let check = |kind: Ep, usable: &[&str], refused: &[(&str, &str)]| {
        let seen = RuntimeLibrary::Installed(kind).restrict(all());
        for name in usable {
            assert!(ep::probe(name.parse().unwrap(), &seen).is_ok(), "{name} with {kind}");
        }
        for (name, reason) in refused {
            let refusal = ep::probe(name.parse().unwrap(), &seen).unwrap_err();
            assert_eq!((refusal.cause, refusal.reason.as_str()), (Cause::Refused, *reason));
            let fix = format!("name it first in a separate process: --providers {name},cpu");
            assert_eq!(refusal.fix, Some(fix));
        }
    };
    let own = |has: &str| {
        format!("it needs a separate ONNX Runtime, and this process has {has}; a process loads only one")
    };
    let cpu = own("that of the cpu runtime, 1.31.1");
    check(Ep::Cpu, &["openvino", "webgpu", "cpu"], &[("directml", &cpu), ("cuda", &cpu)]);
    let directml = "that of the directml runtime, 1.24.4";
    let plugin = format!(
        "its plugin needs ONNX Runtime 1.31.1, and this process has {directml}; a process loads only one"
    );
    let refused = [("openvino", plugin.as_str()), ("webgpu", &plugin), ("cuda", &own(directml))];
    check(Ep::DirectMl, &["directml", "cpu"], &refused);
    // The cuda runtime has the ONNX Runtime version of the plugins.
    let cuda = own("that of the cuda runtime, 1.31.1");
    check(Ep::Cuda, &["cuda", "openvino", "webgpu", "cpu"], &[("directml", &cuda)]);
    // The library of the provider itself does not change.
    assert_eq!(
        RuntimeLibrary::Installed(Ep::Cuda).restrict(all()).libraries[&Ep::Cuda],
        Path::new("/lib/cuda")
    );
}

#[test]
fn a_named_library_brings_the_providers_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let core = folder.path().join("onnxruntime.dll");
    let seen =
        || RuntimeLibrary::File(core.clone()).restrict(machine(WINDOWS, &[], &[Ep::DirectMl, Ep::OpenVino]));
    let refusal = ep::probe(DeviceName::DirectMl, &seen()).unwrap_err();
    assert!(refusal.fix.is_some_and(|fix| fix.starts_with("unset ORT_DYLIB_PATH and name it first")));
    for name in ["DirectML.dll", "onnxruntime_providers_cuda.dll"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let found = [Ep::DirectMl, Ep::Cuda, Ep::OpenVino].map(|ep| seen().libraries[&ep].clone());
    assert_eq!(found, [core.clone(), core.clone(), "/lib/openvino".into()]);
}

/// Writes the receipt of a runtime whose library is a few bytes, which do not have the digest in the receipt; `None` if
/// this platform has no such runtime.
pub(crate) fn pretend(store: &Store, kind: Ep) -> Option<PathBuf> {
    let pin = runtimes::pinned(kind).ok()?;
    let folder = store.root().join(format!("runtimes/{kind}-{}", pin.package.version));
    let library = folder.join(&pin.wheel.library);
    fs::create_dir_all(library.parent().unwrap()).unwrap();
    fs::write(&library, "lib").unwrap();
    let digest = pin.wheel.sha256.to_string();
    let receipt = serde_json::json!({
        "made_for": kind.as_str(),
        "source": "a test",
        "archive": digest,
        "files": { pin.wheel.library: { "bytes": 3, "sha256": digest } },
    });
    fs::write(folder.join("receipt.json"), receipt.to_string()).unwrap();
    Some(library)
}

#[test]
fn runtimes_of_the_store_are_found_with_their_libraries() {
    let home = tempfile::tempdir().unwrap();
    // A library in the settings takes precedence over the one that is loaded in this process, and adds no providers.
    let core = Some(home.path().join("libonnxruntime.so"));
    let config = Config { home: Some(home.path().join("home")), runtime: core, ..Config::standard() };
    let gateway = Gateway::open(config).unwrap();
    let library = gateway.library();
    let made = Ep::ALL.map(|ep| (ep, pretend(&library.store, ep)));
    let facts = RuntimeChoice::of(library).facts;
    for (ep, library) in made.into_iter().filter(|(ep, _)| *ep != Ep::Cpu) {
        match (ep, library) {
            (Ep::Cuda | Ep::DirectMl, Some(_)) => {
                assert!(facts.unloadable.contains_key(&ep) && !facts.libraries.contains_key(&ep));
            }
            (_, Some(library)) => assert_eq!(facts.libraries.get(&ep), Some(&library)),
            (_, None) => assert!(!facts.unloadable.contains_key(&ep)),
        }
    }
}

#[test]
fn the_chosen_library_is_loaded() {
    narthex_device::runtime::disable_telemetry();
    let home = tempfile::tempdir().unwrap();
    let gateway =
        Gateway::open(Config { home: Some(home.path().join("home")), ..Config::standard() }).unwrap();
    let library = gateway.library();
    let Some(file) = pretend(&library.store, Ep::Cuda) else { return };
    let cuda = RuntimeLibrary::Installed(Ep::Cuda);
    let facts = cuda.restrict(machine(LINUX, &[(AcceleratorKind::Gpu, "nvidia")], &[Ep::Cuda]));
    let choice = RuntimeChoice { library: cuda, facts };
    if named_file(&library.config).is_none() {
        assert_eq!(choice.file(library).unwrap(), Some(file.clone()));
        // The file is not a valid library.
        let told = choice.load_early(library).unwrap_err().to_string();
        assert!(told.contains(&narthex_files::canonicalize(&file).unwrap().display().to_string()), "{told}");
    }
}

#[test]
fn a_load_verifies_the_runtime() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(Some(home.path().join("home"))).unwrap();
    let Some(core) = pretend(&store, Ep::Cpu) else { return };
    let config = Config {
        home: Some(home.path().join("home")),
        runtime: Some(core.clone()),
        network: Network::CacheOnly,
        ..Config::standard()
    };
    let gateway = Gateway::open(config).unwrap();
    let told = gateway.load("smollm2:135m", &Quiet, &Cancel::new()).unwrap_err().to_string();
    assert!(told.contains(&format!("{} is damaged: expected SHA-256 ", core.display())), "{told}");
}

#[test]
fn a_provider_whose_library_is_damaged_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let config = Config { home: Some(home.path().join("home")), ..Config::standard() };
    let gateway = Gateway::open(config).unwrap();
    let library = gateway.library();
    let Some(file) = pretend(&library.store, Ep::Cuda) else { return };
    let facts = Facts { libraries: [(Ep::Cuda, file)].into(), ..Facts::default() };
    let mut choice = RuntimeChoice { library: RuntimeLibrary::File(home.path().join("core")), facts };
    choice.verify(library, &Quiet, &Cancel::new()).unwrap();
    assert!(choice.facts.libraries.is_empty());
    let refusal = &choice.facts.unloadable[&Ep::Cuda];
    assert!(refusal.reason.contains("is damaged: expected SHA-256 "), "{}", refusal.reason);
    assert!(
        refusal.fix.as_ref().is_some_and(|fix| fix.contains("narthex runtime install cuda")),
        "{:?}",
        refusal.fix
    );
}

/// Opens a gateway with an empty store and the ONNX Runtime of the machine.
fn with_real_core(home: &tempfile::TempDir) -> Gateway {
    let runtime = runtimes::core_library(&Store::open(None).unwrap()).unwrap();
    let runtime = Some(runtime.expect("no ONNX Runtime: run `cargo xtask test --only store` once"));
    Gateway::open(Config { home: Some(home.path().join("home")), runtime, ..Config::standard() }).unwrap()
}

#[test]
fn doctor_names_damaged_libraries_and_does_not_load_them() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(Some(home.path().join("home"))).unwrap();
    let (Some(core), Some(plugin)) = (pretend(&store, Ep::Cpu), pretend(&store, Ep::Qnn)) else {
        return;
    };
    let config = Config {
        home: Some(home.path().join("home")),
        runtime: Some(core.clone()),
        network: Network::CacheOnly,
        ..Config::standard()
    };
    let report = Gateway::open(config).unwrap().doctor();
    for (file, ep) in [(core, "cpu"), (plugin, "qnn")] {
        let damage = format!("{} is damaged: expected SHA-256 ", file.display());
        let is_damage = |found: &&Finding| found.subject == "runtime" && found.text.starts_with(&damage);
        let found = report.findings.iter().find(is_damage).unwrap_or_else(|| panic!("{report:?}"));
        let fix = format!("replace it with `narthex runtime rm {ep}` and `narthex runtime install {ep}`");
        assert_eq!((found.level, found.fix.as_deref()), (Level::Problem, Some(fix.as_str())));
    }
    let emulation = report.findings.iter().find(|found| found.subject == "qnn:emulation");
    assert!(emulation.is_some_and(|found| found.level == Level::Note), "{report:?}");
}

#[test]
fn vendors_compilers_are_verified() {
    let home = tempfile::tempdir().unwrap();
    let gateway = with_real_core(&home);
    let library = gateway.library();
    let Some(plugin) = pretend(&library.store, Ep::Qnn) else { return };
    let (quiet, cancel) = (&Quiet, &Cancel::new());
    let runtime = cpu_runtime(library, quiet, cancel).unwrap();
    let provider = runtimes::locate(&library.store, Ep::Qnn).unwrap();
    let registered = register_verified(library, runtime, &provider, quiet, cancel);
    let tried = gateway.try_out(&"qnn:x-elite".parse().unwrap(), Path::new("/none.onnx"), cancel);
    for error in [registered.unwrap_err(), tried.unwrap_err()] {
        let told = error.to_string();
        assert!(told.contains(&format!("{} is damaged: expected SHA-256 ", plugin.display())), "{told}");
    }
}
