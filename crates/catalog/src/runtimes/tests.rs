//! Tests of the table of wheels and of installing a wheel.

use std::{collections::BTreeSet, fs};

use narthex_spec::{ProviderLibrary, Sha256, progress::Quiet};

use super::*;
use crate::archive::tests::write_wheel;

#[test]
fn every_pin_is_sound() {
    let mut seen = BTreeSet::new();
    let pins: Vec<_> =
        all().flat_map(|package| package.wheels.iter().map(move |pin| (package, pin))).collect();
    for (package, pin) in &pins {
        let text = format!("{} on {}", package.kind, pin.platform);
        assert!(seen.insert((package.kind, pin.platform)), "{text} occurs twice");
        assert!(pin.bytes > 1_000_000, "{text}");
        assert!(pin.is_unpacked(&pin.library), "{text} unpacks its own library");
        let system = match pin.platform {
            _ if package.kind == RuntimeKind::OpenVinoCompiler => "win",
            Platform::LinuxX64 | Platform::LinuxArm64 => "manylinux",
            Platform::WindowsX64 | Platform::WindowsArm64 => "win",
            Platform::MacArm64 => "macosx",
        };
        assert!(pin.tag.starts_with(system), "{text}: {}", pin.tag);
    }
    // Linux has the compiler of Windows.
    let digests: BTreeSet<_> = pins.iter().map(|(_, pin)| pin.sha256).collect();
    assert_eq!(digests.len(), pins.len() - 1, "no two other pins are the same file");
}

#[test]
fn each_runtime_exists_where_its_publisher_makes_it() {
    fn check(kind: impl Into<RuntimeKind>, expect: &[Platform]) {
        let kind = kind.into();
        for platform in Platform::ALL {
            match pinned_for(kind, platform) {
                Ok(_) => assert!(expect.contains(&platform), "{kind} on {platform}"),
                Err(error) => {
                    assert!(!expect.contains(&platform), "{kind} on {platform}");
                    assert!(error.to_string().contains(&platform.to_string()), "{error}");
                    assert!(error.hint().is_some());
                }
            }
        }
    }
    use Platform::*;
    check(Ep::Cpu, &Platform::ALL);
    check(Ep::Qnn, &[LinuxX64, LinuxArm64, WindowsX64, WindowsArm64]);
    check(Ep::OpenVino, &[LinuxX64, WindowsX64]);
    check(Ep::WebGpu, &Platform::ALL);
    check(Ep::DirectMl, &[WindowsX64]);
    check(Ep::Cuda, &[LinuxX64, WindowsX64]);
    check(RuntimeKind::OpenVinoCompiler, &[LinuxX64, WindowsX64]);
}

#[test]
fn other_platforms_are_refused_by_name() {
    for (os, arch) in [("linux", "riscv64"), ("macos", "x86_64"), ("freebsd", "x86_64")] {
        assert!(Platform::of(os, arch).is_none());
        let error = Error::UnsupportedPlatform { os, arch };
        assert!(error.to_string().contains(os) && error.to_string().contains(arch));
    }
}

#[test]
fn a_provider_has_a_runtime_unless_its_library_is_external() {
    for ep in Ep::ALL {
        assert_eq!(package(ep).is_none(), ep.library() == ProviderLibrary::External, "{ep}");
        assert_eq!(parse(ep.as_str()).ok(), package(ep).map(|package| package.kind));
        assert_eq!(package(ep).and_then(|package| package.kind.ep()), package(ep).map(|_| ep));
    }
    assert_eq!(parse("openvino-compiler").ok(), Some(RuntimeKind::OpenVinoCompiler));
    assert!(parse("tpu").unwrap_err().to_string().contains("cpu, qnn"));
}

#[test]
fn libraries_and_licences_are_unpacked_and_pythons_own_are_not() {
    let check = |kind: Ep, platform: Platform, member: &str, expect: bool| {
        assert_eq!(pinned_for(kind, platform).unwrap().wheel.is_unpacked(member), expect, "{member}");
    };
    use Ep::*;
    use Platform::*;
    check(Cpu, LinuxX64, "onnxruntime/capi/libonnxruntime_providers_shared.so", true);
    check(
        Cpu,
        LinuxX64,
        "onnxruntime/capi/onnxruntime_pybind11_state.cpython-312-x86_64-linux-gnu.so",
        false,
    );
    check(Cpu, LinuxX64, "onnxruntime/capi/training/__init__.py", false);
    check(Cpu, LinuxX64, "onnxruntime/ThirdPartyNotices.txt", true);
    check(Cpu, LinuxX64, "onnxruntime/tools/x.so", false);
    check(Qnn, LinuxX64, "onnxruntime_qnn.libs/libc++-71bc274c.so.1.0", true);
    check(Qnn, LinuxX64, "onnxruntime_qnn/libDlModelToolsPy312.so", false);
    check(Qnn, LinuxX64, "onnxruntime_qnn/Qualcomm_LICENSE.pdf", true);
    check(Qnn, WindowsX64, "onnxruntime_qnn/libs/arm64ec/QnnHtp.dll", false);
    check(Qnn, WindowsArm64, "onnxruntime_qnn/libqnnhtpv73.cat", true);
    check(OpenVino, LinuxX64, "onnxruntime_ep_openvino/libopenvino.so.2641", true);
    check(OpenVino, LinuxX64, "onnxruntime_ep_openvino/cache.json", true);
    let check = |member: &str, expect: bool| {
        let pin = pinned_for(RuntimeKind::OpenVinoCompiler, LinuxX64).unwrap();
        assert_eq!(pin.wheel.is_unpacked(member), expect, "{member}");
    };
    check("openvino/libs/openvino_intel_npu_compiler.dll", true);
    check("openvino/libs/openvino_onnx_frontend.dll", true);
    check("openvino/libs/openvino_intel_cpu_plugin.dll", false);
    check("openvino/libs/openvino_tensorflow_lite_frontend.dll", false);
}

/// Writes a small wheel. Returns its path and a pin with its digest.
fn tiny(folder: &Path, members: &[(&str, &[u8])]) -> (PathBuf, Pin) {
    let wheel = folder.join("tiny.whl");
    write_wheel(&wheel, members);
    let bytes = fs::read(&wheel).unwrap();
    let mut pin = pinned_for(Ep::Cpu, Platform::LinuxX64).unwrap();
    (pin.wheel.sha256, pin.wheel.bytes) = (Sha256::of(&bytes), bytes.len() as u64);
    (wheel, pin)
}

const CORE: &str = "onnxruntime/capi/libonnxruntime.so.1.31.1";

#[test]
fn a_wheel_on_disk_is_installed_located_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Some(folder.path().join("store"))).unwrap();
    let (wheel, pin) = tiny(
        folder.path(),
        &[(CORE, b"elf"), ("onnxruntime/__init__.py", b"no"), ("onnxruntime/LICENSE", b"MIT")],
    );
    let install =
        || install_pin(&store, &pin, &WheelOrigin::File(wheel.clone()), &Quiet, &CancelFlag::new(false));
    let info = install().unwrap();
    assert_eq!(fs::read(&info.library).unwrap(), b"elf");
    assert_eq!(info.dir, store.root().join("runtimes/cpu-1.31.1"));
    assert!(info.dir.join("onnxruntime/LICENSE").is_file());
    assert!(!info.dir.join("onnxruntime/__init__.py").exists());
    assert!(wheel.is_file(), "a given wheel is left alone");
    // For an installed runtime, the wheel is not opened.
    fs::remove_file(&wheel).unwrap();
    assert_eq!(install().unwrap(), info);
    // A changed byte is found, although the file has its length.
    let verify = || verify_files(&store, &info, &Quiet, &CancelFlag::new(false));
    verify().unwrap();
    fs::write(&info.library, b"elg").unwrap();
    let error = verify().unwrap_err();
    assert!(error.to_string().contains("1.31.1 is damaged: expected SHA-256 "), "{error}");
    assert!(error.hint().unwrap().contains("`narthex runtime rm cpu`"), "{error}");
    // A runtime with a file of another length does not count as installed.
    fs::write(&info.library, b"el").unwrap();
    assert!(installed(&info.dir, &pin).is_none());
    remove(&store, Ep::Cpu).unwrap();
    assert!(!info.dir.exists());
    assert!(matches!(remove(&store, Ep::Cpu), Err(Error::RuntimeNotInstalled { .. })));
}

#[test]
fn another_wheel_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Some(folder.path().join("store"))).unwrap();
    let (wheel, pin) = tiny(folder.path(), &[(CORE, b"elf")]);
    fs::write(&wheel, b"something else").unwrap();
    let error =
        install_pin(&store, &pin, &WheelOrigin::File(wheel), &Quiet, &CancelFlag::new(false)).unwrap_err();
    assert!(matches!(error, Error::WrongHash { .. }), "{error}");
    assert!(error.to_string().contains("onnxruntime 1.31.1"), "{error}");
    assert!(list(&store).is_empty());
}

#[test]
fn a_wheel_without_the_library_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Some(folder.path().join("store"))).unwrap();
    let (wheel, pin) = tiny(folder.path(), &[("onnxruntime/LICENSE", b"MIT")]);
    let error =
        install_pin(&store, &pin, &WheelOrigin::File(wheel), &Quiet, &CancelFlag::new(false)).unwrap_err();
    assert!(matches!(error, Error::MissingMember { .. }), "{error}");
    assert!(!store.root().join("runtimes/cpu-1.31.1").exists());
    assert_eq!(fs::read_dir(store.root().join("tmp")).unwrap().count(), 0);
}

#[test]
fn a_named_library_comes_before_the_stores() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Some(folder.path().join("store"))).unwrap();
    let library = folder.path().join("libonnxruntime.so");
    fs::write(&library, b"elf").unwrap();
    assert_eq!(core_library_or(&store, Some(library.clone())).unwrap(), Some(library));
    let error = core_library_or(&store, Some(folder.path().join("none.so"))).unwrap_err();
    assert!(matches!(error, Error::DylibMissing { .. }) && error.hint().is_some(), "{error}");
    assert_eq!(core_library_or(&store, None).unwrap(), None);
}

#[test]
fn a_library_beside_the_program_is_found_in_the_pinned_version_alone() {
    let pin = pinned_for(Ep::Cpu, Platform::LinuxX64).unwrap();
    let prefix = tempfile::tempdir().unwrap();
    let found = || shipped_library::in_prefix(prefix.path(), &pin);
    let make = |path: &str| {
        let path = prefix.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, b"library").unwrap();
        path
    };
    assert_eq!(found(), None);
    let packages = "lib/python3.13/site-packages";
    let member = make(&format!("{packages}/{}", pin.wheel.library));
    make(&format!("{packages}/onnxruntime-1.0.0.dist-info/METADATA"));
    assert_eq!(found(), None, "another version is not used");
    make(&format!("{packages}/onnxruntime-{}.dist-info/METADATA", pin.package.version));
    assert_eq!(found(), Some(member));
    let file = pin.wheel.library.rsplit('/').next().unwrap();
    let own = make(&format!("lib/narthex/{file}"));
    assert_eq!(found(), Some(own), "the program's own library goes first");
}
