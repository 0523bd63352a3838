//! What becomes of graphs that an NPU does not take. The machine's facts are those of a Snapdragon, and Qualcomm's emulation
//! answers in the NPU's place, as it would for a graph that is compiled there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use narthex_catalog::{
    runtimes::{self, RuntimeKind},
    store::Store,
};
use narthex_device::inventory::{Accelerator, AcceleratorKind};
use narthex_graph::{
    Attribute, Builder, Element, Graph, Initializer, InitializerData, Node, graph::MICROSOFT,
};
use narthex_spec::{
    Ep, ProgressSink, Scheme,
    dtype::{DType, Dim},
    manifest::{Bound, Context, FileEntry, MANIFEST_FILE, Manifest},
    progress::{Progress, Quiet},
    target::{QnnChip, Target},
};
use narthex_testkit::checkpoint;

use super::*;
use crate::{
    Cancel, CompileRequest, Gateway,
    check::{Asked, CheckRequest, Verdict},
    loaded::Loaded,
    names::PackageKey,
    package, vendor,
};

/// A package of the tiny Llama with graphs of fixed shape, in a store of its own.
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

    /// The package with its decode graph as another exporter might have written it.
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

    /// Compiles its graphs ahead of time, with the compiler of the tests' own store; gives the manifest with the contexts.
    fn compiled_for(&self, chips: &[QnnChip]) -> Result<Manifest, Error> {
        let config = gateway(&self.home, NpuPolicy::Prefer).inner().config.clone();
        let gateway = Gateway::open(Config { home: None, ..config })?;
        let (target, mut manifest) = (Target::Qnn(chips.to_vec()), self.manifest());
        let whole = (self.folder.as_path(), &mut manifest);
        vendor::compile_for(gateway.inner(), &target, whole, &Quiet, &Cancel::new())?;
        Ok(manifest)
    }

    fn write(&self, manifest: &Manifest) {
        fs::write(self.folder.join(MANIFEST_FILE), serde_json::to_vec(manifest).unwrap()).unwrap();
    }

    fn load(&self, npu: NpuPolicy) -> Result<Loaded, Error> {
        self.load_watched(npu, &Quiet, &Cancel::new())
    }

    /// Loads it where the NPU must do that share of the work.
    fn load_with(&self, npu_share: f64) -> Result<Loaded, Error> {
        let config = gateway(&self.home, NpuPolicy::Require).inner().config.clone();
        self.load_by(Config { npu_share, ..config }, (&Quiet, &Cancel::new()))
    }

    fn load_watched(
        &self,
        npu: NpuPolicy,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<Loaded, Error> {
        self.load_in(&gateway(&self.home, npu), &snapdragon(), (progress, cancel))
    }

    /// Loads it as a gateway with these settings would.
    fn load_by(&self, config: Config, watched: (&dyn ProgressSink, &Cancel)) -> Result<Loaded, Error> {
        self.load_in(&Gateway::open(config).unwrap(), &snapdragon(), watched)
    }

    /// Loads it as a gateway would on a machine.
    fn load_in(
        &self,
        gateway: &Gateway,
        facts: &Facts,
        watched: (&dyn ProgressSink, &Cancel),
    ) -> Result<Loaded, Error> {
        let inner = gateway.inner();
        let runtime = inner.runtime(&Quiet, &Cancel::new()).unwrap();
        Loaded::open(&self.key, &self.folder, runtime, (&inner.config, &inner.store, facts), watched)
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

/// A Mac, whose NPU needs no library.
fn mac() -> Facts {
    Facts {
        os: "macos".into(),
        arch: "aarch64".into(),
        processor: "aarch64".into(),
        accelerators: Vec::new(),
        drivers: Vec::new(),
        libraries: BTreeMap::new(),
        elsewhere: BTreeMap::new(),
    }
}

fn snapdragon() -> Facts {
    let info = runtimes::locate(&Store::open(None).unwrap(), RuntimeKind::Qnn);
    let library = info.expect("no QNN runtime: run `cargo xtask test --only store` once").library;
    Facts {
        os: "linux".into(),
        arch: "aarch64".into(),
        processor: "Snapdragon X Elite".into(),
        accelerators: vec![Accelerator {
            kind: AcceleratorKind::Npu,
            driver: "fastrpc".into(),
            text: "Hexagon".into(),
            memory: None,
        }],
        drivers: Vec::new(),
        libraries: BTreeMap::from([(Ep::Qnn, library)]),
        elsewhere: BTreeMap::new(),
    }
}

/// What is logged while `work` runs.
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

fn node<'a>(graph: &'a mut Graph, name: &str) -> &'a mut Node {
    graph.nodes.iter_mut().find(|node| node.name == name).unwrap()
}

fn constant(graph: &mut Graph, values: &[i64]) -> String {
    let mut builder = narthex_graph::Builder::new("c", &[]);
    let name = builder.ints(&[values.len()], values);
    graph.initializers.extend(builder.finish().initializers);
    name
}

fn open_dimension(graph: &mut Graph) {
    let embeds = graph.inputs.iter_mut().find(|input| input.name == "embeds").unwrap();
    embeds.shape[1] = Dim::symbol("tokens");
}

/// Attention as one operator, whose mask says yes or no.
fn boolean_mask(graph: &mut Graph) {
    graph.opsets.iter_mut().filter(|(domain, _)| domain.is_empty()).for_each(|(_, version)| *version = 23);
    let query = node(graph, "/layers.0/attn/scores/MatMul").inputs[0].clone();
    let mix = node(graph, "/layers.0/attn/mix/MatMul");
    let values = mix.inputs[1].clone();
    mix.op = "Attention".to_owned();
    mix.inputs = [query.as_str(), &values, &values, "seen"].map(str::to_owned).into();
    let cast = Node {
        name: "/seen/Cast".to_owned(),
        op: "Cast".to_owned(),
        domain: String::new(),
        inputs: vec!["mask".to_owned()],
        outputs: vec!["seen".to_owned()],
        attributes: vec![("to".to_owned(), Attribute::Int(9))],
    };
    graph.nodes.insert(0, cast);
}

/// A product over two axes, with a Reshape on either side.
fn flat_product(graph: &mut Graph) {
    let at = graph.nodes.iter().position(|node| node.op == "MatMulNBits").unwrap();
    let (rows, cols) = (graph.nodes[at].int("N").unwrap(), graph.nodes[at].int("K").unwrap());
    let (flat, back) = (constant(graph, &[1, cols]), constant(graph, &[1, 1, rows]));
    let reshape = |name: &str, inputs: [&str; 2], output: &str| Node {
        name: name.to_owned(),
        op: "Reshape".to_owned(),
        domain: String::new(),
        inputs: inputs.map(str::to_owned).into(),
        outputs: vec![output.to_owned()],
        attributes: Vec::new(),
    };
    let product = &mut graph.nodes[at];
    let before = reshape("/flat/Reshape", [&product.inputs[0], &flat], "flat");
    let after = reshape("/back/Reshape", ["product", &back], &product.outputs[0]);
    product.inputs[0] = "flat".to_owned();
    product.outputs[0] = "product".to_owned();
    graph.nodes.insert(at + 1, after);
    graph.nodes.insert(at, before);
}

/// The sum of a row with itself has the same direction.
fn skip_norm(graph: &mut Graph) {
    let norm = graph.nodes.iter_mut().find(|node| node.op == "SimplifiedLayerNormalization").unwrap();
    norm.op = "SkipSimplifiedLayerNormalization".to_owned();
    norm.domain = MICROSOFT.to_owned();
    norm.attributes.retain(|(name, _)| name == "epsilon");
    norm.inputs.insert(1, norm.inputs[0].clone());
}

#[test]
fn a_graph_that_an_npu_takes_whole_counts_as_the_npu_s() {
    let loaded = Package::new().load(NpuPolicy::Require).unwrap_or_else(|error| panic!("{error}"));
    let report = loaded.placement();
    assert_eq!((report.device, report.npu_share), (DeviceName::Qnn, 1.0));
    assert!(report.fallen.is_empty() && loaded.ran_on().fallback.is_none());
}

/// The stages that begin while something is loaded.
#[derive(Default)]
struct Stages(Mutex<Vec<String>>);

impl Stages {
    /// Notes a stage that begins.
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
    let held = Mutex::new(Some(gateway.inner().store.try_lock(&lock).unwrap().expect("it is free")));
    let (stages, other) = (Stages::default(), Stages::default());
    let sink = |event: Progress| {
        stages.hear(&event);
        // The other process is done in the meantime.
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

/// What a node that falls back is called, why it does, and what helps, told by every part that has a say.
fn check(change: impl FnOnce(&mut Graph), (path, why, fix): (&str, &str, &str)) {
    let package = Package::with(change);
    let named = |text: &str| text.contains(path) && text.contains(why);

    let request = CheckRequest {
        subject: package.key.name.to_string(),
        target: Target::Qnn(vec![QnnChip::XElite]),
        extents: BTreeMap::new(),
        fix: None,
        compiler: Asked::Never,
    };
    let report = gateway(&package.home, NpuPolicy::Prefer).check(&request, &Cancel::new()).unwrap();
    assert_ne!(*report.verdict(), Verdict::Whole);
    let at = |places: &[String]| places.iter().any(|place| place == path);
    let finding = report.report.findings.iter().find(|finding| at(&finding.places)).unwrap();
    assert!(finding.fix.as_ref().is_some_and(|found| found.text.contains(fix)), "{finding:?}");

    // Required, the NPU is not replaced, and the refusal names the node.
    let error = package.load(NpuPolicy::Require).err().expect("it was loaded elsewhere");
    assert!(named(&error.to_string()) && error.hint().is_some_and(|hint| hint.contains(fix)), "{error}");

    // Preferred, the next device takes over, and everyone says so.
    let (loaded, log) = logged(|| package.load(NpuPolicy::Prefer));
    let loaded = loaded.unwrap();
    assert_eq!(loaded.placement().device, DeviceName::Cpu);
    let status = loaded.status();
    let passed = &status.passed_over[0];
    assert!(passed.announced && passed.device == DeviceName::Qnn && named(&passed.reason), "{passed:?}");
    let fallen = passed.fallen.nodes.iter().find(|node| node.path == path).unwrap();
    assert!(fallen.why.contains("the qnn provider says: "), "{fallen:?}");
    assert!(fallen.fix.as_ref().is_some_and(|found| found.contains(fix)), "{fallen:?}");
    assert!(named(&log) && log.contains(fix), "{log}");
    assert!(loaded.ran_on().fallback.is_some_and(|told| named(&told)));
}

#[test]
fn a_dynamic_dimension_is_told_everywhere() {
    let told = ("/layers.0/attn_norm/SimplifiedLayerNormalization", "(\"tokens\")", "--set tokens=64");
    check(open_dimension, told);
}

#[test]
fn a_boolean_mask_is_told_everywhere() {
    check(boolean_mask, ("/layers.0/attn/mix/MatMul", "its mask is boolean", "turn the mask into numbers"));
}

#[test]
fn a_flat_product_is_told_everywhere() {
    let path = "/layers.0/attn/qkv_proj/MatMulNBits";
    check(flat_product, (path, "its activations have 2 axes", "a Reshape to [1, rows, K] before it"));
}

#[test]
fn a_skip_norm_is_told_everywhere() {
    let path = "/layers.0/attn_norm/SimplifiedLayerNormalization";
    check(skip_norm, (path, "contributed operators", "write it as Add and SimplifiedLayerNormalization"));
}

/// What goes in is quantised to 8-bit floats, which the NPU has not, and back.
fn quantised_edge(graph: &mut Graph) {
    let mut b = Builder::new("edge", &[]);
    let (scale, zero) = (b.half_scalar(0x3c00), "zero");
    let quantised = b.op("/edge", "QuantizeLinear", &["embeds", &scale, zero]);
    let back = b.op("/edge", "DequantizeLinear", &[&quantised, &scale, zero]);
    let inputs = graph.nodes.iter_mut().flat_map(|node| &mut node.inputs);
    inputs.filter(|name| *name == "embeds").for_each(|name| name.clone_from(&back));
    let part = b.finish();
    graph.nodes.splice(0..0, part.nodes);
    graph.initializers.extend(part.initializers);
    let float8 = Element::from_code(17);
    graph.initializers.push(constant_of(zero, float8, Vec::new(), vec![0]));
}

fn constant_of(name: &str, dtype: Element, shape: Vec<usize>, bytes: Vec<u8>) -> Initializer {
    Initializer { name: name.to_owned(), dtype, shape, data: InitializerData::Inline(bytes.into()) }
}

#[test]
fn conversions_at_a_graph_s_edges_may_run_on_the_cpu() {
    let package = Package::with(quantised_edge);
    // The contexts are made by the first load, and kept for the second.
    for _ in 0..2 {
        let loaded = package.load(NpuPolicy::Require).unwrap_or_else(|error| panic!("{error}"));
        let report = loaded.placement();
        assert_eq!((report.device, report.npu_share), (DeviceName::Qnn, 1.0), "{report:?}");
        // Of a conversion back that two nodes read, ONNX Runtime makes two.
        let ops: BTreeSet<&str> = report.fallen.nodes.iter().map(|node| node.op.as_str()).collect();
        assert_eq!(ops, BTreeSet::from(["DequantizeLinear", "QuantizeLinear"]), "{report:?}");
        assert_eq!(report.notes, Vec::<String>::new());
    }
}

#[test]
fn a_smaller_share_that_is_required_decides_about_the_rest() {
    let package = Package::with(flat_product);
    let loaded = package.load_with(0.5).unwrap_or_else(|error| panic!("{error}"));
    let report = loaded.placement();
    assert_eq!(report.device, DeviceName::Qnn);
    assert!(report.npu_share > 0.5 && report.npu_share < 0.99, "{report:?}");
    let fallen = report.fallen.nodes.iter().find(|node| node.op == "MatMulNBits").unwrap();
    assert!(fallen.why.contains("its activations have 2 axes") && fallen.fix.is_some(), "{fallen:?}");
    assert_eq!((fallen.path.as_str(), report.fallen.count), ("/layers.0/attn/qkv_proj/MatMulNBits", 1));
    // Where more is required the share is told with the node; where the usual is, the graph is refused as it was.
    let told = |share| package.load_with(share).err().expect("it was loaded").to_string();
    let (few, whole) = (told(0.985), told(0.99));
    assert!(few.contains("98.50 % are required: /layers.0/attn/qkv_proj"), "{few}");
    assert!(whole.contains("1 of ") && whole.contains("cannot run on qnn"), "{whole}");
}

/// Its first norm as PyTorch's exporter writes one, on which Qualcomm's compiler fails though it takes each operator.
fn written_out_norm(graph: &mut Graph) {
    let at = graph.nodes.iter().position(|node| node.op == "SimplifiedLayerNormalization").unwrap();
    let norm = graph.nodes.remove(at);
    let width = graph.initializers.iter().find(|found| found.name == norm.inputs[1]).unwrap().shape[0];
    let mut b = Builder::new("norm", &[]);
    let to = |dtype| [("to", Attribute::Int(dtype))];
    let x = b.op_with("/norm/in", "Cast", &[&norm.inputs[0]], &to(1));
    let (two, tiny, axis) = (b.scalar(2.0), b.scalar(1e-6), b.ints(&[1], &[-1]));
    let square = b.op("/norm", "Pow", &[&x, &two]);
    let mean = b.op("/norm", "ReduceMean", &[&square, &axis]);
    let shifted = b.op("/norm", "Add", &[&mean, &tiny]);
    let root = b.op("/norm", "Sqrt", &[&shifted]);
    let scale = b.op("/norm", "Reciprocal", &[&root]);
    let scaled = b.op("/norm", "Mul", &[&x, &scale]);
    let gained = b.op("/norm/gain", "Mul", &["gain", &scaled]);
    let out = b.op_with("/norm/out", "Cast", &[&gained], &to(10));
    b.rename(&out, &norm.outputs[0]);
    let part = b.finish();
    graph.nodes.splice(at..at, part.nodes);
    graph.initializers.extend(part.initializers);
    let ones = vec![0x3f; 4 * width];
    graph.initializers.push(constant_of("gain", DType::F32.into(), vec![width], ones));
}

#[test]
fn a_number_of_the_vendor_s_compiler_is_told_in_words_with_the_next_step() {
    let package = Package::with(written_out_norm);
    let check = |error: Error, target: &str, next: &[&str]| {
        let hint = error.hint().unwrap_or_default();
        let asked = format!("`narthex check {}@w8 --target {target}`", package.key.name);
        assert!(error.to_string().contains("1002"), "{error}");
        let words = ["1002 (QNN_COMMON_ERROR_MEM_ALLOC): the graph could not be prepared", &asked];
        assert!(words.iter().chain(next).all(|words| hint.contains(words)), "{hint}");
    };
    let refused = package.load(NpuPolicy::Require).err().expect("it was loaded elsewhere");
    check(refused, "qnn:x-elite", &[]);
    // Compiled ahead of time, there is no package to check yet. A failed compile for one chip would keep others in this
    // process, such as other tests', from sharing weights.
    let compiled = package.compiled_for(&[QnnChip::XElite, QnnChip::Elite]);
    check(compiled.unwrap_err(), "qnn:x-elite,8-elite", &["with `--context` in the place of `--target`"]);
}

#[test]
fn a_package_s_contexts_that_do_not_hold_are_refused_with_the_reason_and_made_anew() {
    let package = Package::new();
    let made = package.compiled_for(&[QnnChip::Elite]).unwrap();
    let check = |edit: &dyn Fn(&mut Context), expected: &str, begun: &[&str]| {
        let mut manifest = made.clone();
        manifest.contexts.iter_mut().for_each(edit);
        package.write(&manifest);
        let stages = Stages::default();
        let sink = |event: Progress| stages.hear(&event);
        let loaded = package.load_watched(NpuPolicy::Require, &sink, &Cancel::new());
        let loaded = loaded.unwrap_or_else(|error| panic!("{error}"));
        let report = loaded.placement();
        assert_eq!((report.device, report.npu_share), (DeviceName::Qnn, 1.0));
        let [note] = &report.notes[..] else { panic!("{:?}", report.notes) };
        let told = note.strip_prefix("the package's contexts were refused: ");
        assert!(told.is_some_and(|told| told.contains(expected)), "{note}");
        assert_eq!(*stages.0.lock().unwrap(), begun);
    };
    let anew = [COMPILING, CHECKING];
    check(&|_| (), "they are for qnn:8-elite, and this is qnn:x-elite", &anew);
    let here = |context: &mut Context| context.target = Target::Qnn(vec![QnnChip::XElite]);
    let old = |context: &mut Context| {
        here(context);
        context.compiler = "onnxruntime-qnn 2.6.0".to_owned();
    };
    check(&old, "they were made by onnxruntime-qnn 2.6.0, and this is onnxruntime-qnn ", &anew);
    let binary = made.files.keys().find(|file| file.ends_with(".bin")).unwrap();
    let whole = fs::read(package.folder.join(binary)).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    fs::write(package.folder.join(binary), damaged).unwrap();
    check(&here, &format!("{binary} is damaged"), &anew);
    // Whole ones come to the provider, which takes no weights in common on this machine; what was made before is kept.
    fs::write(package.folder.join(binary), whole).unwrap();
    check(&here, "failed to load the graph", &[]);
}

#[test]
fn graphs_of_fixed_shape_are_wanted_where_they_would_run() {
    let check = |providers: &str, place: Option<&str>, npu, expected| {
        let place = place.map(|place| place.parse().unwrap());
        let config = Config { providers: providers.parse().unwrap(), place, npu, ..Config::standard() };
        assert_eq!(
            wants_fixed(&config, Scheme::W8, &snapdragon()),
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
    // A place that cannot be had here needs no graphs.
    check("cpu", Some("prefill=openvino,decode=cpu"), prefer, false);
    check("cpu", Some("layers=cpu,head=qnn"), prefer, true);
    check("cpu", Some("layers=cpu,head=openvino"), prefer, false);
}

/// Loads a package on a Mac; gives it, and whether CoreML was given a folder for what it compiles.
fn on_a_mac(scheme: Scheme) -> (Loaded, bool) {
    let package = Package::of(scheme);
    let gateway = gateway_of(&package.home, NpuPolicy::Prefer, "coreml,cpu");
    let loaded = package.load_in(&gateway, &mac(), (&Quiet, &Cancel::new())).unwrap();
    let machine = gateway.inner().store.machine(&package.folder, "coreml").unwrap();
    (loaded, machine.folder("compiled").is_some())
}

#[test]
fn a_provider_that_keeps_what_it_compiles_has_a_folder_for_it() {
    assert!(on_a_mac(Scheme::F16).1);
}

#[test]
fn coreml_refuses_weights_in_blocks_before_it_is_tried() {
    let (loaded, tried) = on_a_mac(Scheme::W8);
    let passed_over = loaded.status().passed_over;
    let [passed] = &passed_over[..] else { panic!("{passed_over:?}") };
    assert!(!tried && passed.announced);
    assert_eq!(passed.reason, "it takes no weights in blocks, such as w8, but those in f16");
    assert!(passed.fix.as_ref().is_some_and(|fix| fix.contains("--scheme f16")), "{passed:?}");
    let config = Config { providers: "coreml,cpu".parse().unwrap(), ..Config::standard() };
    let wanted = |scheme| wants_fixed(&config, scheme, &mac());
    assert_eq!([Scheme::W8, Scheme::W4, Scheme::F16].map(wanted), [false, false, true]);
}

#[test]
fn a_required_npu_that_is_not_there_is_missed_before_anything_is_made() {
    let key = PackageKey { name: "tiny".parse().unwrap(), scheme: Scheme::W8 };
    let check = |providers: &str, place: Option<&str>, npu, facts: &Facts, expected: Option<&[&str]>| {
        let place = place.map(|place| place.parse().unwrap());
        let config = Config { providers: providers.parse().unwrap(), place, npu, ..Config::standard() };
        let told = match check_possible(&config, &key, facts) {
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

    // No machine has an NPU for this: nothing is fetched.
    let home = tempfile::tempdir().unwrap();
    let gateway = gateway_of(&home, require, "coreml,cpu");
    let error = gateway.load("smollm2:135m@w8", &Quiet, &Cancel::new()).unwrap_err();
    assert!(matches!(error, Error::NoDevice { .. }), "{error}");
}

#[test]
fn what_was_made_for_one_device_runs_there_alone_and_says_so() {
    let load = |bound: Bound, npu: NpuPolicy| {
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
        Bound { ep, device, holds, target }
    };
    let refused = |bound: Bound, expected: &[&str]| {
        let error = load(bound, NpuPolicy::Prefer).err().expect("it was loaded elsewhere");
        let told = format!("{error}, {:?}", error.hint());
        assert!(expected.iter().all(|part| told.contains(part)), "{told}");
    };
    let amd = bound(Ep::VitisAi, "an AMD Ryzen AI NPU", None);
    let alone = "the package runs on an AMD Ryzen AI NPU alone";
    refused(amd, &[&format!("qnn: {alone}"), &format!("cpu: {alone}")]);
    let elite = bound(Ep::Qnn, "the NPU of X", Some(Target::Qnn(vec![QnnChip::Elite])));
    refused(elite, &["runs on the NPU of X alone, and this is Snapdragon X Elite"]);
    // On its device nothing is compared, and what its maker left to the CPU has not fallen.
    let own = || bound(Ep::Qnn, "the NPU of Y", Some(Target::Qnn(vec![QnnChip::XElite])));
    let loaded = load(own(), NpuPolicy::Prefer).unwrap_or_else(|error| panic!("{error}"));
    let report = loaded.placement();
    assert_eq!(report.device, DeviceName::Qnn);
    assert!(report.fallen.is_empty() && report.notes.iter().any(|note| note == bound::UNCHECKED));
    // The tiny model's own graph has no context, so that all of it runs on the CPU.
    assert_eq!(report.npu_share, 0.0);
    assert!(load(own(), NpuPolicy::Require).is_err());
}
