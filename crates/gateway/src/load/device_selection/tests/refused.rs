//! Graphs with nodes that an NPU refuses, and the messages about them.

use super::*;

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

/// Replaces the attention of layer 0 by one operator with a boolean mask.
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

/// Replaces a product by one over two axes, with a Reshape before and after it.
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

/// Replaces a norm by one that adds its input to itself first, which does not change the normalised result.
fn skip_norm(graph: &mut Graph) {
    let norm = graph.nodes.iter_mut().find(|node| node.op == "SimplifiedLayerNormalization").unwrap();
    norm.op = "SkipSimplifiedLayerNormalization".to_owned();
    norm.domain = MICROSOFT.to_owned();
    norm.attributes.retain(|(name, _)| name == "epsilon");
    norm.inputs.insert(1, norm.inputs[0].clone());
}

/// Checks that every report about a refused node has its path, the reason and the fix: the check, the error, the
/// status, the log and the reply.
fn check(change: impl FnOnce(&mut Graph), (path, why, fix): (&str, &str, &str)) {
    let package = Package::with(change);
    let named = |text: &str| text.contains(path) && text.contains(why);

    let request = CheckRequest {
        subject: package.key.name.to_string(),
        target: Target::Qnn(vec![QnnChip::XElite]),
        extents: BTreeMap::new(),
        fix: None,
        compiler: VendorCompiler::Skip,
    };
    let report = gateway(&package.home, NpuPolicy::Prefer).check(&request, &Cancel::new()).unwrap();
    assert_ne!(*report.verdict(), Verdict::Whole);
    let at = |places: &[String]| places.iter().any(|place| place == path);
    let finding = report.report.findings.iter().find(|finding| at(&finding.places)).unwrap();
    assert!(finding.fix.as_ref().is_some_and(|found| found.text.contains(fix)), "{finding:?}");

    // With a required NPU, the load fails and the error names the node.
    let error = package.load(NpuPolicy::Require).err().expect("it was loaded elsewhere");
    assert!(named(&error.to_string()) && error.hint().is_some_and(|hint| hint.contains(fix)), "{error}");

    // With a preferred NPU, the next device runs the model, and the status, the log and the reply name the node.
    let (loaded, log) = logged(|| package.load(NpuPolicy::Prefer));
    let loaded = loaded.unwrap();
    assert_eq!(loaded.placement().device, DeviceName::Cpu);
    let status = loaded.status();
    let passed = &status.passed_over[0];
    assert!(passed.announced && passed.device == DeviceName::Qnn && named(&passed.reason), "{passed:?}");
    let node = passed.fallback.nodes.iter().find(|node| node.path == path).unwrap();
    assert!(node.why.contains("the qnn provider reports: "), "{node:?}");
    assert!(node.fix.as_ref().is_some_and(|found| found.contains(fix)), "{node:?}");
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
    check(boolean_mask, ("/layers.0/attn/mix/MatMul", "its mask is boolean", "convert the mask to numbers"));
}

#[test]
fn a_flat_product_is_told_everywhere() {
    let path = "/layers.0/attn/qkv_proj/MatMulNBits";
    check(flat_product, (path, "its activations have 2 axes", "a Reshape to [1, rows, K] before it"));
}

#[test]
fn a_skip_norm_is_told_everywhere() {
    let path = "/layers.0/attn_norm/SimplifiedLayerNormalization";
    check(skip_norm, (path, "contributed operators", "replace it with Add and SimplifiedLayerNormalization"));
}

/// Quantises the graph's input to 8-bit floats, which the NPU does not support, and back.
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
    // The first load compiles the contexts, and the second one uses them.
    for _ in 0..2 {
        let loaded = package.load(NpuPolicy::Require).unwrap_or_else(|error| panic!("{error}"));
        let report = loaded.placement();
        assert_eq!((report.device, report.npu_share), (DeviceName::Qnn, 1.0), "{report:?}");
        // ONNX Runtime duplicates a DequantizeLinear that two nodes read.
        let ops: BTreeSet<&str> = report.fallback.nodes.iter().map(|node| node.op.as_str()).collect();
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
    let node = report.fallback.nodes.iter().find(|node| node.op == "MatMulNBits").unwrap();
    assert!(node.why.contains("its activations have 2 axes") && node.fix.is_some(), "{node:?}");
    assert_eq!((node.path.as_str(), report.fallback.count), ("/layers.0/attn/qkv_proj/MatMulNBits", 1));
    // A share that is too low is an error with the node. At the default share, the graph is refused before it runs.
    let told = |share| package.load_with(share).err().expect("it was loaded").to_string();
    let (few, whole) = (told(0.985), told(0.99));
    assert!(few.contains("98.50 % are required: /layers.0/attn/qkv_proj"), "{few}");
    assert!(whole.contains("1 of ") && whole.contains("cannot run on qnn"), "{whole}");
}

/// Replaces the first norm by the operators that PyTorch's exporter writes. Qualcomm's compiler fails on them, although
/// it supports each one.
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
    // During a compile ahead of time, there is no package to check yet. The target has several chips, because a failed
    // compile for one chip would prevent other tests in this process from sharing weights.
    let compiled = package.compiled_for(&[QnnChip::XElite, QnnChip::Elite]);
    check(compiled.unwrap_err(), "qnn:x-elite,8-elite", &["with `--context` instead of `--target`"]);
}
