//! Choice of the device for a model. The machine's facts are those of a Snapdragon X Elite, and Qualcomm's emulation
//! runs the graphs in place of the NPU.

mod caches;
mod refused;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use narthex_catalog::{runtimes, store::Store};
use narthex_device::{
    ep::Facts,
    inventory::{Accelerator, AcceleratorKind},
};
use narthex_graph::{
    Attribute, Builder, Element, Graph, Initializer, InitializerData, Node, graph::MICROSOFT,
};
use narthex_spec::{
    Ep, ProgressSink, Scheme,
    dtype::{DType, Dim},
    manifest::{BoundDevice, Context, FileEntry, MANIFEST_FILE, Manifest},
    progress::{Progress, Quiet},
    target::{QnnChip, Target},
};
use narthex_testkit::checkpoint;

use super::*;
use crate::{
    Cancel, CompileRequest, ErrorKind, Gateway,
    compile::precompile,
    fixtures,
    inspect::check::{CheckRequest, VendorCompiler, Verdict},
    library::{package, package_key::PackageKey},
    load::{
        eligibility, loaded_model::LoadedModel, runtime_choice::cpu_runtime,
        tokenizer_reader::TokenizerReader,
    },
};

/// Package of the tiny Llama with static graphs, in a temporary store.
struct Package {
    home: tempfile::TempDir,
    key: PackageKey,
    folder: PathBuf,
}

impl Package {
    fn new() -> Self {
        Self::of(Scheme::W8)
    }

    fn of(scheme: Scheme) -> Self {
        narthex_device::runtime::disable_telemetry();
        let home = tempfile::tempdir().unwrap();
        let checkpoint = home.path().join("tiny.gguf");
        fs::write(&checkpoint, checkpoint::tiny_llama_gguf(7)).unwrap();
        let gateway = gateway(&home, NpuPolicy::Prefer);
        let request = CompileRequest { contexts: vec![64], ..CompileRequest::new(scheme) };
        let compiled = gateway.compile(checkpoint.to_str().unwrap(), &request, &Quiet, &Cancel::new());
        let (folder, manifest) = compiled.unwrap();
        Self { home, key: PackageKey { name: manifest.name, scheme }, folder }
    }

    /// Creates a package whose decode graph `change` has edited, as another exporter might have written it.
    fn with(change: impl FnOnce(&mut Graph)) -> Self {
        let package = Self::new();
        let mut manifest = package.manifest();
        let decode = |(file, _): &(&String, &mut FileEntry)| file.starts_with("layers-1x");
        let (file, entry) = manifest.files.iter_mut().find(decode).unwrap();
        let path = package.folder.join(file);
        let mut graph = Graph::decode(&fs::read(&path).unwrap()).unwrap();
        change(&mut graph);
        graph.check_values().unwrap();
        let bytes = graph.encode();
        entry.bytes = bytes.len() as u64;
        fs::write(path, bytes).unwrap();
        package.write(&manifest);
        package
    }

    fn manifest(&self) -> Manifest {
        package::read_manifest(&self.folder, &self.key).unwrap()
    }

    /// Compiles the package's graphs ahead of time, with the compiler of the tests' shared store. Returns the manifest
    /// with the contexts.
    fn compiled_for(&self, chips: &[QnnChip]) -> Result<Manifest, Error> {
        let config = gateway(&self.home, NpuPolicy::Prefer).config().clone();
        let gateway = Gateway::open(Config { home: None, ..config })?;
        let (target, mut manifest) = (Target::Qnn(chips.to_vec()), self.manifest());
        let library = gateway.library();
        precompile::compile_for(library, &target, &self.folder, &mut manifest, &Quiet, &Cancel::new())?;
        Ok(manifest)
    }

    fn write(&self, manifest: &Manifest) {
        fs::write(self.folder.join(MANIFEST_FILE), serde_json::to_vec(manifest).unwrap()).unwrap();
    }

    fn load(&self, npu: NpuPolicy) -> Result<LoadedModel, Error> {
        self.load_watched(npu, &Quiet, &Cancel::new())
    }

    /// Loads the package with a required NPU that must run at least `npu_share` of the work.
    fn load_with(&self, npu_share: f64) -> Result<LoadedModel, Error> {
        let config = gateway(&self.home, NpuPolicy::Require).config().clone();
        self.load_by(Config { npu_share, ..config }, (&Quiet, &Cancel::new()))
    }

    fn load_watched(
        &self,
        npu: NpuPolicy,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<LoadedModel, Error> {
        self.load_in(&gateway(&self.home, npu), &snapdragon(), (progress, cancel))
    }

    /// Loads the package with these settings.
    fn load_by(&self, config: Config, watched: (&dyn ProgressSink, &Cancel)) -> Result<LoadedModel, Error> {
        self.load_in(&Gateway::open(config).unwrap(), &snapdragon(), watched)
    }

    /// Loads the package with these settings and the facts of a machine.
    fn load_in(
        &self,
        gateway: &Gateway,
        facts: &Facts,
        watched: (&dyn ProgressSink, &Cancel),
    ) -> Result<LoadedModel, Error> {
        let library = gateway.library();
        let (progress, cancel) = watched;
        let request = LoadRequest {
            package: Arc::new(package::Package::open(&self.key, &self.folder)?),
            runtime: cpu_runtime(library, &Quiet, &Cancel::new()).unwrap(),
            facts: Arc::new(facts.clone()),
            config: library.config.clone(),
            store: library.store.clone(),
            reservation: None,
            progress,
            cancel: cancel.clone(),
        };
        let tokenizer = TokenizerReader::start(&request.package)?;
        LoadedModel::load(&request, tokenizer, None, None, select)
    }
}

fn gateway(home: &tempfile::TempDir, npu: NpuPolicy) -> Gateway {
    gateway_of(home, npu, "qnn,cpu")
}

fn gateway_of(home: &tempfile::TempDir, npu: NpuPolicy, providers: &str) -> Gateway {
    let runtime = runtimes::core_library(&Store::open(None).unwrap()).unwrap();
    let runtime = Some(runtime.expect("no ONNX Runtime: run `cargo xtask test --only store` once"));
    let providers = providers.parse().unwrap();
    let home = Some(home.path().join("home"));
    Gateway::open(Config { home, runtime, providers, npu, threads: 1, ..Config::standard() }).unwrap()
}

/// Returns the facts of a Mac, whose NPU needs no library.
fn mac() -> Facts {
    Facts { os: "macos".into(), arch: "aarch64".into(), processor: "aarch64".into(), ..Facts::default() }
}

fn snapdragon() -> Facts {
    let info = runtimes::locate(&Store::open(None).unwrap(), Ep::Qnn);
    let library = info.expect("no QNN runtime: run `cargo xtask test --only store` once").library;
    fixtures::snapdragon([(Ep::Qnn, library)])
}

/// Runs `work`. Returns its result and the log messages.
fn logged<T>(work: impl FnOnce() -> T) -> (T, String) {
    struct Log(Arc<Mutex<String>>);
    impl tracing::field::Visit for Log {
        fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
            if field.name() == "message" {
                self.0.lock().unwrap().push_str(&format!("{value:?}\n"));
            }
        }
    }
    impl tracing::Subscriber for Log {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.level() <= &tracing::Level::INFO
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            event.record(&mut Log(self.0.clone()));
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }
    let text = Arc::new(Mutex::new(String::new()));
    let found = tracing::subscriber::with_default(Log(text.clone()), work);
    let text = text.lock().unwrap().clone();
    (found, text)
}

#[test]
fn a_graph_that_an_npu_takes_whole_counts_as_the_npu_s() {
    let loaded = Package::new().load(NpuPolicy::Require).unwrap_or_else(|error| panic!("{error}"));
    let report = loaded.placement();
    assert_eq!((report.device, report.npu_share), (DeviceName::Qnn, 1.0));
    assert!(report.fallback.is_empty() && loaded.ran_on().fallback.is_none());
}

/// Names of the stages that a load starts.
#[derive(Default)]
struct Stages(Mutex<Vec<String>>);

impl Stages {
    /// Records the start of a stage.
    fn hear(&self, event: &Progress) {
        if let Progress::Started { stage, .. } = event {
            self.0.lock().unwrap().push(stage.clone());
        }
    }
}

const COMPILING: &str = "Compiling for the Hexagon NPU";
const CHECKING: &str = "Checking the Hexagon NPU against the CPU, once";

#[test]
fn what_takes_long_at_a_load_is_told_and_can_be_interrupted() {
    let package = Package::new();
    for stage in [COMPILING, CHECKING] {
        let (stages, cancel) = (Stages::default(), Cancel::new());
        let sink = |event: Progress| {
            stages.hear(&event);
            if matches!(&event, Progress::Started { stage: begun, .. } if begun == stage) {
                cancel.cancel();
            }
        };
        let error = package.load_watched(NpuPolicy::Prefer, &sink, &cancel).err();
        let told = stages.0.lock().unwrap();
        assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::Cancelled), "{told:?}");
        assert_eq!(told.last().map(String::as_str), Some(stage));
    }
}

#[test]
fn of_two_loads_at_once_one_compiles() {
    let package = Package::new();
    let gateway = gateway(&package.home, NpuPolicy::Prefer);
    let lock = format!("contexts-{}-{}-qnn", package.key.name.file_stem(), package.key.scheme);
    let held = Mutex::new(Some(gateway.library().store.try_lock(&lock).unwrap().expect("it is free")));
    let (stages, other) = (Stages::default(), Stages::default());
    let sink = |event: Progress| {
        stages.hear(&event);
        // The other process releases its lock and completes its load in the meantime.
        if let (Progress::Note(_), Some(held)) = (&event, held.lock().unwrap().take()) {
            drop(held);
            let hear = |event: Progress| other.hear(&event);
            package.load_watched(NpuPolicy::Require, &hear, &Cancel::new()).map(drop).unwrap();
        }
    };
    let loaded = package.load_watched(NpuPolicy::Require, &sink, &Cancel::new()).unwrap();
    assert_eq!(loaded.placement().npu_share, 1.0);
    assert_eq!(*other.0.lock().unwrap(), [COMPILING, CHECKING]);
    assert!(stages.0.lock().unwrap().is_empty());
}

#[test]
fn graphs_of_fixed_shape_are_wanted_where_they_would_run() {
    let check = |providers: &str, place: Option<&str>, npu, expected| {
        let place = place.map(|place| place.parse().unwrap());
        let config = Config { providers: providers.parse().unwrap(), place, npu, ..Config::standard() };
        assert_eq!(
            eligibility::needs_static_graphs(&config, Scheme::W8, &snapdragon()),
            expected,
            "{providers}, {place:?}, {npu}"
        );
    };
    let prefer = NpuPolicy::Prefer;
    check("qnn,cpu", None, prefer, true);
    check("cpu,qnn", None, prefer, false);
    check("qnn,cpu", None, NpuPolicy::Off, false);
    check("openvino,cpu", None, prefer, false);
    check("cpu,qnn", Some("auto"), prefer, true);
    check("cpu", Some("auto"), prefer, false);
    check("cpu", Some("prefill=qnn,decode=cpu"), prefer, true);
    // A place that is not usable on this machine needs no graphs.
    check("cpu", Some("prefill=openvino,decode=cpu"), prefer, false);
    check("cpu", Some("layers=cpu,head=qnn"), prefer, true);
    check("cpu", Some("layers=cpu,head=openvino"), prefer, false);
}

#[test]
fn a_required_npu_that_is_not_there_is_missed_before_anything_is_made() {
    let key = PackageKey { name: "tiny".parse().unwrap(), scheme: Scheme::W8 };
    let check = |providers: &str, place: Option<&str>, npu, facts: &Facts, expected: Option<&[&str]>| {
        let place = place.map(|place| place.parse().unwrap());
        let config = Config { providers: providers.parse().unwrap(), place, npu, ..Config::standard() };
        let told = match eligibility::check_required_npu(&config, &key, facts) {
            Ok(()) => None,
            Err(Error::NoDevice { passed_over, .. }) => {
                Some(passed_over.iter().map(|passed| passed.device.as_str()).collect::<Vec<_>>())
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(told.as_deref(), expected, "{providers}, {place:?}, {npu}");
    };
    let (there, require) = (snapdragon(), NpuPolicy::Require);
    let bare = Facts { libraries: BTreeMap::new(), ..snapdragon() };
    check("qnn,cpu", None, require, &there, None);
    check("qnn,cpu", None, require, &bare, Some(&["qnn", "cpu"]));
    check("qnn,cpu", None, NpuPolicy::Prefer, &bare, None);
    check("cpu", Some("prefill=qnn,decode=cpu"), require, &there, None);
    check("cpu", Some("prefill=qnn,decode=cpu"), require, &bare, Some(&["qnn", "cpu"]));
    check("cpu,qnn", Some("prefill=openvino,decode=cpu"), require, &there, None);
    check("coreml,cpu", None, require, &mac(), Some(&["coreml", "cpu"]));

    // No device can satisfy the policy, so nothing is fetched.
    let home = tempfile::tempdir().unwrap();
    let gateway = gateway_of(&home, require, "coreml,cpu");
    let error = gateway.load("smollm2:135m@w8", &Quiet, &Cancel::new()).unwrap_err();
    assert!(matches!(error, Error::NoDevice { .. }), "{error}");
}

#[test]
fn amd_s_npu_names_its_reason_only_where_it_is() {
    let package = Package::new();
    let gateway = gateway_of(&package.home, NpuPolicy::Prefer, "auto");
    let npu = Accelerator {
        kind: AcceleratorKind::Npu,
        driver: "amdxdna".to_owned(),
        text: "AMD XDNA NPU".to_owned(),
        memory: None,
    };
    for (accelerators, is_announced) in [(vec![npu], true), (Vec::new(), false)] {
        let facts = Facts { os: "linux".into(), arch: "x86_64".into(), accelerators, ..Facts::default() };
        let loaded = package.load_in(&gateway, &facts, (&Quiet, &Cancel::new())).unwrap();
        let passed_over = loaded.status().passed_over;
        let passed = passed_over.iter().find(|passed| passed.device == DeviceName::VitisAi).unwrap();
        assert!(passed.reason.contains("AMD's tools have compiled"), "{passed:?}");
        assert_eq!((passed.announced, passed.fix.is_some()), (is_announced, is_announced), "{passed:?}");
    }
}

#[test]
fn what_was_made_for_one_device_runs_there_alone_and_says_so() {
    let load = |bound: BoundDevice, npu: NpuPolicy| {
        let package = Package::new();
        let mut manifest = package.manifest();
        manifest.bound = Some(bound);
        package.write(&manifest);
        let loaded = package.load(npu);
        let listed = gateway(&package.home, npu).models().unwrap();
        let bound = listed.into_iter().flat_map(|listing| listing.installed).map(|package| package.bound);
        assert!(bound.collect::<Vec<_>>().contains(&manifest.bound));
        loaded
    };
    let bound = |ep, device: &str, target| {
        let (device, holds) = (device.to_owned(), "2 compiled contexts".to_owned());
        BoundDevice { ep, device, holds, target }
    };
    let refused = |bound: BoundDevice, expected: &[&str]| {
        let error = load(bound, NpuPolicy::Prefer).err().expect("it was loaded elsewhere");
        let told = format!("{error}, {:?}", error.hint());
        assert!(expected.iter().all(|part| told.contains(part)), "{told}");
    };
    let amd = bound(Ep::VitisAi, "an AMD Ryzen AI NPU", None);
    let alone = "the package runs only on an AMD Ryzen AI NPU";
    refused(amd, &[&format!("qnn: {alone}"), &format!("cpu: {alone}")]);
    let elite = bound(Ep::Qnn, "the NPU of X", Some(Target::Qnn(vec![QnnChip::Elite])));
    refused(elite, &["runs only on the NPU of X, but this is Snapdragon X Elite"]);
    // On the device that the package is bound to, nothing is compared. Nodes that its maker left to the CPU do not
    // count as fallback.
    let own = || bound(Ep::Qnn, "the NPU of Y", Some(Target::Qnn(vec![QnnChip::XElite])));
    let loaded = load(own(), NpuPolicy::Prefer).unwrap_or_else(|error| panic!("{error}"));
    let report = loaded.placement();
    assert_eq!(report.device, DeviceName::Qnn);
    assert!(
        report.fallback.is_empty() && report.notes.iter().any(|note| note == eligibility::UNVERIFIED_NOTE)
    );
    // The tiny model's own graph has no compiled context, so all of it runs on the CPU.
    assert_eq!(report.npu_share, 0.0);
    assert!(load(own(), NpuPolicy::Require).is_err());
}

#[test]
fn what_is_not_verified_is_warned_of_once() {
    let package = Package::new();
    let mut manifest = package.manifest();
    let target = Some(Target::Qnn(vec![QnnChip::XElite]));
    let holds = "2 compiled contexts".to_owned();
    manifest.bound = Some(BoundDevice { ep: Ep::Qnn, device: "the NPU of Y".to_owned(), holds, target });
    package.write(&manifest);
    let warns = || {
        let (loaded, log) = logged(|| package.load(NpuPolicy::Prefer));
        assert!(loaded.is_ok());
        log.contains(eligibility::UNVERIFIED_NOTE)
    };
    assert_eq!([warns(), warns()], [true, false]);
}
