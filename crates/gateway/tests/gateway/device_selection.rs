//! Choice of the device that a model is loaded on, and the reports on devices that refused it. NPUs are Qualcomm's HTP
//! emulation.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use narthex_catalog::store::Store;
use narthex_gateway::{
    Cancel, CompileRequest, Config, Error, ErrorKind, Gateway, LoadStart, Rebuild,
    models::DeviceRefusal,
    request::{
        CallLimit, ChatRequest, FinishReason, GenerateOptions, Grammar, Strictness, Tool, ToolChoice,
        ToolSettings,
    },
    unshared_weights,
};
use narthex_graph::Graph;
use narthex_spec::{
    BlockSize, DeviceName, Ep, HeadOrder, KvCacheDtype, NpuPolicy, Pass, Power, Recipe, Scheme, Sha256,
    Speculation, manifest::Quality, progress::Quiet, recipe::FixedShapes,
};
use serde_json::{Value, json};

use crate::support::{Tiny, ask, greedy, question, ready};

fn config(tiny: &Tiny, providers: &str) -> Config {
    Config { providers: providers.parse().unwrap(), scheme: Some(Scheme::W8), ..tiny.config() }
}

fn load(config: Config, model: &str) -> Result<narthex_gateway::models::ModelStatus, Error> {
    Gateway::open(config).unwrap().load(model, &Quiet, &Cancel::new())
}

/// Compiles the tiny Llama with static graphs in addition. Returns its name.
fn fixed(tiny: &Tiny) -> String {
    let request = CompileRequest { contexts: vec![64], ..CompileRequest::new(Scheme::W8) };
    let compiled = tiny.gateway().compile(&tiny.checkpoint(), &request, &Quiet, &Cancel::new());
    compiled.unwrap_or_else(|error| panic!("{error}")).1.name.to_string()
}

fn only(passed_over: &[DeviceRefusal]) -> &DeviceRefusal {
    let [passed] = passed_over else { panic!("{passed_over:?}") };
    passed
}

#[test]
fn a_machine_without_an_npu_is_no_news() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let gateway = tiny.gateway();
    let status = gateway.load(&model, &Quiet, &Cancel::new()).unwrap();
    assert_eq!(status.device(), Some(DeviceName::Cpu));
    let qnn = status.passed_over.iter().find(|passed| passed.device == DeviceName::Qnn).unwrap();
    assert!(qnn.reason.contains("Snapdragon") && !qnn.announced, "{qnn:?}");
    assert!(status.passed_over.iter().all(|passed| passed.device.as_str() != "qnn:emulation"));
}

#[test]
fn a_device_that_was_asked_for_is_missed_aloud() {
    let tiny = Tiny::new();
    let model = fixed(&tiny);
    let status = load(config(&tiny, "qnn:emulation,cpu"), &model).unwrap();
    assert_eq!(status.device(), Some(DeviceName::Cpu));
    let passed = only(&status.passed_over);
    assert!(passed.announced && passed.reason.contains("not installed"), "{passed:?}");
    assert_eq!(passed.fix.as_deref(), Some("narthex runtime install qnn"));
}

#[test]
fn an_order_that_ends_without_the_cpu_fails_closed() {
    let tiny = Tiny::new();
    let model = fixed(&tiny);
    // The split and the order both contain the same device, whose reason is reported once.
    let place = Some("prefill=qnn:emulation,decode=cpu".parse().unwrap());
    let gateway = Gateway::open(Config { place, ..config(&tiny, "qnn:emulation") }).unwrap();
    let error = gateway.load(&model, &Quiet, &Cancel::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let reason = "qnn:emulation: the qnn runtime is not installed";
    assert_eq!(error.to_string().matches(reason).count(), 1, "{error}");
    assert_eq!(error.hint().as_deref(), Some("narthex runtime install qnn"));
    // The failure remains until a person fixes it. The status lists the reason of each device.
    let again = gateway.load(&model, &Quiet, &Cancel::new()).unwrap_err();
    assert!(matches!(&again, Error::LoadFailed { .. }) && again.retry_after().is_none(), "{again}");
    assert!(only(&gateway.status()[0].passed_over).announced);
}

#[test]
fn a_device_map_is_satisfied_or_the_load_fails() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let encoder = tiny.embedding();
    let open = |map: &str| {
        let device_map = Some(map.parse().unwrap());
        Gateway::open(Config { device_map, ..tiny.config() }).unwrap()
    };
    let load = |map: &str, model: &str| open(map).load(model, &Quiet, &Cancel::new());
    for (map, model) in
        [("layers=cpu,head=cpu", &model), ("prefill=cpu,decode=cpu", &model), ("layers=cpu", &encoder)]
    {
        assert_eq!(load(map, model).unwrap().device(), Some(DeviceName::Cpu), "{map}");
    }
    for (map, expected) in [
        ("layers=npu", "qnn: Hexagon NPUs are part of Snapdragon chips"),
        ("prefill=npu,decode=cpu", "openvino: no Intel NPU driver"),
        ("layers=webgpu,head=cpu", "webgpu: "),
    ] {
        let error = load(map, &model).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{map}: {error}");
        assert!(error.to_string().contains(expected), "{map}: {error}");
    }
    // No advice for a vendor's NPU that this machine lacks.
    let hint = load("layers=npu", &model).unwrap_err().hint().unwrap();
    assert!(hint.contains("narthex doctor"), "{hint}");
    let error = load("prefill=cpu,decode=cpu", &encoder).unwrap_err();
    assert!(error.to_string().contains("only chat and text models"), "{error}");
}

#[test]
fn a_map_of_a_request_loads_the_model_there_or_leaves_no_state() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let gateway = tiny.gateway();
    let start = |map: &str| {
        let map = map.parse().unwrap();
        match gateway.start_load_on(&model, Some(&map)) {
            Ok(LoadStart::Pending(load)) => load.wait_for_end(&Cancel::new()).map(drop),
            other => other.map(drop),
        }
    };
    let refused = start("layers=npu").unwrap_err().to_string();
    assert!(
        refused.contains("the device map layers=npu does not apply") && refused.contains("qnn: "),
        "{refused}"
    );

    // Another request loads the model at once.
    assert_eq!(ready(&gateway, &model).ran_on().device, "cpu");
    start("layers=cpu").unwrap();
    let error = start("layers=npu").unwrap_err();
    assert_eq!((error.kind(), error.param()), (ErrorKind::BadRequest, Some("device_map")));
    assert!(error.to_string().contains("it is in memory and runs on cpu"), "{error}");
    assert!(error.hint().unwrap().contains("narthex stop"), "{error}");
}

#[test]
fn an_npu_that_is_required_is_not_replaced() {
    let tiny = Tiny::new();
    tiny.with_qnn();
    let model = fixed(&tiny);
    let config = Config { npu: NpuPolicy::Require, ..config(&tiny, "qnn:emulation,cpu") };
    let error = load(config, &model).unwrap_err().to_string();
    for expected in ["an NPU is required", "HTP emulation is not an NPU", "cpu: "] {
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_model_answers_under_htp_emulation_and_every_node_is_placed_there() {
    let tiny = Tiny::new();
    tiny.with_qnn();
    let model = fixed(&tiny);
    let gateway = Gateway::open(config(&tiny, "qnn:emulation")).unwrap();
    let answer = ask(&gateway, &model, question("the cat", greedy(3)));
    assert_eq!((answer.summary.completion_tokens, answer.summary.times), (3, None));
    let status = &gateway.status()[0];
    let report = status.placement.as_ref().unwrap();
    // The emulation is not an NPU, so the NPU's share is 0 although every graph runs on it completely.
    assert_eq!((report.device, report.npu_share), (DeviceName::QnnEmulation, 0.0));
    assert_eq!(report.lines.len(), 3, "{report:?}");
    for line in &report.lines {
        assert_eq!((line.ep, line.subgraphs, line.compute_share), (Ep::Qnn, 1, 1.0), "{line:?}");
        assert!(line.weight_bytes > 0 && line.ops["MatMulNBits"] > 0, "{line:?}");
    }
}

/// Returns whether an entry of a model's folder has files for a device other than the CPU, whose packed weights are
/// stored at any load.
fn is_accelerator(entry: &Path) -> bool {
    entry.is_dir() && !entry.ends_with("cpu")
}

/// Returns the folders with files that this machine stores for a model on devices other than the CPU, one for each
/// model. Records of verified files are beside them.
fn machine_folders(tiny: &Tiny) -> Vec<PathBuf> {
    let entries = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let has_devices = |folder: &PathBuf| entries(folder).iter().any(|entry| is_accelerator(entry));
    entries(&tiny.home().join("machine")).into_iter().filter(has_devices).collect()
}

/// Returns the folder with files that this machine stores for the model on the emulation.
fn kept(tiny: &Tiny) -> PathBuf {
    let folder = machine_folders(tiny).remove(0);
    let mut entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|entry| is_accelerator(entry)).unwrap()
}

fn record(tiny: &Tiny, name: &str) -> serde_json::Value {
    serde_json::from_slice(&fs::read(kept(tiny).join(name)).unwrap()).unwrap()
}

#[test]
fn contexts_are_kept_and_refused_once_they_are_stale_or_damaged() {
    let tiny = Tiny::new();
    tiny.with_qnn();
    let model = fixed(&tiny);
    let notes = || {
        let status = load(config(&tiny, "qnn:emulation"), &model).unwrap();
        let report = status.placement.unwrap();
        assert!(report.lines.iter().all(|line| line.compute_share == 1.0), "{report:?}");
        report.notes
    };
    assert_eq!(notes(), Vec::<String>::new());
    let contexts = kept(&tiny).join("contexts");
    let binary = fs::read_dir(&contexts)
        .unwrap()
        .flatten()
        .find(|file| file.path().extension() == Some("bin".as_ref()));
    let binary = binary.unwrap().path();
    let made = fs::metadata(&binary).unwrap().modified().unwrap();
    assert_eq!(notes(), Vec::<String>::new());
    assert_eq!(fs::metadata(&binary).unwrap().modified().unwrap(), made, "it was made again without need");

    let mut bytes = fs::read(&binary).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&binary, bytes).unwrap();
    assert!(notes()[0].contains("is damaged"), "a changed byte was not seen");
    assert_eq!(notes(), Vec::<String>::new());

    let check = |change: &dyn Fn(&mut serde_json::Value), expected: &str| {
        let mut record = record(&tiny, "contexts.json");
        change(&mut record["key"]);
        fs::write(kept(&tiny).join("contexts.json"), record.to_string()).unwrap();
        let found = notes();
        assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
        assert_eq!(notes(), Vec::<String>::new());
    };
    check(&|record| record["provider"] = "onnxruntime-qnn 2.6.0".into(), "made by onnxruntime-qnn 2.6.0");
    check(&|record| record["settings"]["soc_model"] = "69".into(), "soc_model 69, but this is 60");
}

#[test]
fn a_device_is_checked_against_the_cpu_once_and_stays_in_quarantine() {
    let tiny = Tiny::new();
    tiny.with_qnn();
    let model = fixed(&tiny);
    load(config(&tiny, "qnn:emulation"), &model).unwrap();
    let mut found = record(&tiny, "verification.json");
    let positions = found["positions"].as_array().unwrap();
    assert!(
        positions.len() >= 8 && positions.iter().all(|p| p["divergence"].as_f64().unwrap() < 0.01),
        "{found}"
    );
    // Half precision on another device always differs in some bits; a divergence of 0 would mean that the CPU ran the
    // graph.
    assert!(positions.iter().any(|position| position["divergence"].as_f64().unwrap() > 0.0), "{found}");
    assert_eq!(found["quarantine"], serde_json::Value::Null);
    found["quarantine"] = "it returned logits that are not finite".into();
    fs::write(kept(&tiny).join("verification.json"), found.to_string()).unwrap();
    let status = load(config(&tiny, "qnn:emulation,cpu"), &model).unwrap();
    assert_eq!(status.device(), Some(DeviceName::Cpu));
    let passed = only(&status.passed_over);
    assert!(passed.announced && passed.reason.contains("quarantine"), "{passed:?}");
}

#[test]
fn prompts_are_read_under_htp_emulation_and_answers_written_on_the_cpu() {
    let tiny = Tiny::new();
    tiny.with_qnn();
    let model = fixed(&tiny);
    let place = Some("prefill=qnn:emulation,decode=cpu".parse().unwrap());
    let gateway = Gateway::open(Config { place, ..config(&tiny, "auto") }).unwrap();
    let answer = ask(&gateway, &model, question("the cat sat on the mat and slept", greedy(6)));
    assert_eq!(answer.summary.completion_tokens, 6);
    let status = &gateway.status()[0];
    let report = status.placement.as_ref().unwrap();
    assert_eq!(report.name(), "prefill=qnn:emulation,decode=cpu");
    let eps: Vec<Ep> = report.lines.iter().map(|line| line.ep).collect();
    assert_eq!(eps, [Ep::Qnn, Ep::Qnn, Ep::Qnn, Ep::Cpu]);
    assert!(status.passed_over.is_empty(), "{status:?}");
}

#[test]
fn tools_grammars_prefixes_and_drafts_work_on_every_placement() {
    let tiny = Tiny::new();
    tiny.with_qnn();
    let request = CompileRequest { contexts: vec![512], ..CompileRequest::new(Scheme::W8) };
    let compiled = tiny.gateway().compile(&tiny.long_checkpoint(), &request, &Quiet, &Cancel::new());
    let model = compiled.unwrap_or_else(|error| panic!("{error}")).1.name.to_string();
    let parameters = json!({
        "type": "object",
        "properties": {"on": {"type": "boolean"}},
        "required": ["on"],
        "additionalProperties": false,
    });
    let check = |providers: &str, place: Option<&str>| {
        let place = place.map(|place| place.parse().unwrap());
        let config = Config { place, speculation: Speculation::Auto, ..config(&tiny, providers) };
        let gateway = Gateway::open(config.clone()).unwrap();

        let regex = Some(Grammar::Regex("(yes|no)!".to_owned()).into());
        let options = GenerateOptions { grammar: regex, ..greedy(16) };
        let answer = ask(&gateway, &model, question("the cat", options));
        assert!(["yes!", "no!"].contains(&answer.text.as_str()), "{answer:?}");

        let (description, strictness) = (None, Strictness::BestEffort);
        let (name, parameters) = ("set".to_owned(), parameters.clone());
        let tool =
            Tool { name, description, parameters: parameters.into(), strictness, text: None, field: None };
        let tools = ToolSettings { tools: vec![tool], choice: ToolChoice::Required, calls: CallLimit::One };
        let question_with_tools = ChatRequest { tools, ..question("the cat", greedy(64)) };
        let answer = ask(&gateway, &model, question_with_tools);
        assert_eq!(answer.reason, FinishReason::ToolCalls, "{answer:?}");
        let arguments: Value = serde_json::from_str(&answer.arguments).unwrap();
        assert!(arguments["on"].is_boolean(), "{answer:?}");

        // The answer repeats itself, so drafts are found in it.
        let prompt = "the cat sat on the mat and slept and the cat sat on the mat and slept";
        let first = ask(&gateway, &model, question(prompt, greedy(24)));
        let again = ask(&gateway, &model, question(prompt, greedy(24)));
        assert!(again.summary.cached_tokens * 2 > again.summary.prompt_tokens, "{again:?}");
        assert_eq!(first.text, again.text);
        drop(gateway);
        let plain = Gateway::open(Config { speculation: Speculation::Off, ..config }).unwrap();
        assert_eq!(ask(&plain, &model, question(prompt, greedy(24))).text, first.text);
    };
    check("qnn:emulation", None);
    check("auto", Some("prefill=qnn:emulation,decode=cpu"));
    check("auto", Some("layers=qnn:emulation,head=cpu"));
}

#[test]
fn layers_and_head_run_where_each_is_put() {
    let tiny = Tiny::new();
    tiny.with_qnn();
    let model = fixed(&tiny);
    let check = |name: &str, expected: &[Ep]| {
        let place = Some(name.parse().unwrap());
        let gateway = Gateway::open(Config { place, ..config(&tiny, "auto") }).unwrap();
        let answer = ask(&gateway, &model, question("the cat sat on the mat and slept", greedy(4)));
        assert_eq!(answer.summary.completion_tokens, 4);
        let status = gateway.status().remove(0);
        let report = status.placement.unwrap();
        assert_eq!(report.name(), name);
        let (heads, layers): (Vec<_>, Vec<_>) =
            report.lines.iter().partition(|line| line.graph.contains("head"));
        assert!(layers.len() == 2 && layers.iter().all(|line| line.ep == expected[0]), "{layers:?}");
        assert!(heads.len() == 1 && heads[0].ep == expected[1], "{heads:?}");
        assert!(status.passed_over.is_empty() && report.npu_share == 0.0);
    };
    check("layers=qnn:emulation,head=cpu", &[Ep::Qnn, Ep::Cpu]);
    check("layers=cpu,head=qnn:emulation", &[Ep::Cpu, Ep::Qnn]);
    // Each pair of devices was compared with the CPU separately.
    let package = machine_folders(&tiny).remove(0);
    let checked = fs::read_dir(package).unwrap().flatten();
    assert_eq!(checked.filter(|device| device.path().join("verification.json").is_file()).count(), 2);
}

#[test]
fn a_head_that_was_compiled_at_a_load_is_kept_for_the_next() {
    let check = |name: &str, expected: &[&str]| {
        let tiny = Tiny::new();
        tiny.with_qnn();
        let (model, place) = (fixed(&tiny), Some(name.parse().unwrap()));
        let load = || {
            let status = load(Config { place, ..config(&tiny, "cpu") }, &model).unwrap();
            let report = status.placement.unwrap();
            assert_eq!(report.name(), name);
            report.notes
        };
        assert_eq!(load(), Vec::<String>::new());
        let machine = kept(&tiny);
        let contexts = machine.join("contexts");
        let made = || {
            let files = fs::read_dir(&contexts).unwrap().flatten();
            let mut files: Vec<_> = files
                .map(|file| {
                    let time = file.metadata().unwrap().modified().unwrap();
                    (file.file_name().into_string().unwrap(), time)
                })
                .filter(|(name, _)| name.ends_with(".onnx"))
                .collect();
            files.sort();
            files
        };
        let first = made();
        let names: Vec<&str> = first.iter().map(|(name, _)| name.as_str()).collect();
        // Graphs for the other device are not compiled.
        assert_eq!(names, expected);
        assert_eq!(load(), Vec::<String>::new());
        assert_eq!(made(), first, "they were made again without need");
        let record = fs::read_to_string(machine.join("contexts.json")).unwrap();
        fs::write(
            machine.join("contexts.json"),
            record.replace("onnxruntime-qnn 2.7.0", "onnxruntime-qnn 2.6.0"),
        )
        .unwrap();
        let notes = load();
        assert!(notes.len() == 1 && notes[0].contains("onnxruntime-qnn 2.6.0"), "{notes:?}");
        assert_ne!(made(), first);
    };
    check("layers=cpu,head=qnn:emulation", &["head.onnx"]);
    check("layers=qnn:emulation,head=cpu", &["layers-1x64.onnx", "layers-64x64.onnx"]);
}

#[test]
fn a_device_without_parts_refuses_them() {
    let tiny = Tiny::new();
    let model = fixed(&tiny);
    let place = Some("layers=cpu,head=webgpu".parse().unwrap());
    let status = load(Config { place, ..config(&tiny, "cpu") }, &model).unwrap();
    assert_eq!(status.placement.unwrap().name(), "cpu");
    let passed = only(&status.passed_over);
    assert!(passed.announced && passed.device == DeviceName::WebGpu, "{passed:?}");
    assert!(passed.reason.contains("only static graphs have parts"), "{passed:?}");
}

#[test]
fn a_model_that_cannot_be_divided_runs_on_the_order_and_says_so() {
    let tiny = Tiny::new();
    let model = fixed(&tiny);
    let place = Some("prefill=qnn:emulation,decode=cpu".parse().unwrap());
    let status = load(Config { place, ..config(&tiny, "cpu") }, &model).unwrap();
    assert_eq!(status.device(), Some(DeviceName::Cpu));
    let passed = only(&status.passed_over);
    assert!(passed.announced && passed.device == DeviceName::QnnEmulation, "{passed:?}");
}

/// Writes a record of invented times for the emulation and the CPU under this cache key. From eleven tokens on, the
/// emulation is faster.
fn write_times(tiny: &Tiny, emulation: &serde_json::Value) {
    let cpu = serde_json::json!({
        "device": "cpu", "runtime": emulation["runtime"], "provider": "onnxruntime", "settings": {},
    });
    let phases = |device: &str, chunk, chunk_ms, short_ms| {
        serde_json::json!({
            "device": device, "chunk": chunk, "chunk_ms": chunk_ms, "short_ms": short_ms, "token_ms": 1.0,
        })
    };
    let record = serde_json::json!({
        "version": 1,
        "keys": [emulation, cpu],
        "threads": tiny.config().threads,
        "measured": {
            "devices": [phases("qnn:emulation", 32, 10.0, 10.0), phases("cpu", 256, 256.0, 2.0)],
            "handover": {"prefill": "qnn:emulation", "decode": "cpu", "token_ms": 0.0},
        },
        "refused": [],
    });
    let package = machine_folders(tiny).remove(0);
    fs::create_dir_all(package.join("auto")).unwrap();
    fs::write(package.join("auto/placement-burst.json"), record.to_string()).unwrap();
}

#[test]
fn a_split_reads_short_prompts_where_it_writes_once_that_was_measured() {
    let tiny = Tiny::new();
    tiny.with_qnn();
    let model = fixed(&tiny);
    let why_at = |power| {
        let place = Some("prefill=qnn:emulation,decode=cpu".parse().unwrap());
        let gateway = Gateway::open(Config { place, power, ..config(&tiny, "auto") }).unwrap();
        ask(&gateway, &model, question("the cat", greedy(3)));
        gateway.status().remove(0).placement.unwrap().why
    };
    let why = || why_at(Power::Burst);
    assert_eq!(why(), None);
    let mut key = record(&tiny, "verification.json")["key"].clone();
    write_times(&tiny, &key);
    let found = why().unwrap();
    assert!(found.contains("cpu reads fewer than 11 new tokens"), "{found}");
    // Times with another power preset or another provider version are not used.
    assert_eq!(why_at(Power::Saver), None);
    key["provider"] = "onnxruntime-qnn 2.6.0".into();
    write_times(&tiny, &key);
    assert_eq!(why(), None);
}

#[test]
fn nothing_is_measured_where_a_stand_in_is_the_other_device() {
    let tiny = Tiny::new();
    tiny.with_qnn();
    let model = fixed(&tiny);
    let (place, kv_cache_dtype) = (Some("auto".parse().unwrap()), KvCacheDtype::F32);
    let config = Config { place, kv_cache_dtype, ..config(&tiny, "cpu,qnn:emulation") };
    let status = load(config, &model).unwrap();
    let report = status.placement.unwrap();
    assert_eq!((report.name().as_str(), report.why), ("cpu", None));
    assert!(machine_folders(&tiny).is_empty(), "something was measured or checked");
}

#[test]
fn graphs_for_intel_s_npu_are_made_without_its_compiler() {
    let tiny = Tiny::new();
    let (gateway, checkpoint) = (tiny.gateway(), tiny.checkpoint());
    let compile = |target: &str, block: Option<BlockSize>| {
        let target = Some(target.parse().unwrap());
        let request = CompileRequest { target, block, contexts: vec![64], ..CompileRequest::new(Scheme::W8) };
        gateway.compile(&checkpoint, &request, &Quiet, &Cancel::new()).map(|(_, manifest)| manifest)
    };
    let manifest = compile("openvino:npu", None).unwrap();
    let Recipe { targets, block, head_order, .. } = &manifest.recipe;
    assert_eq!(targets, &["openvino:npu".parse().unwrap()]);
    assert_eq!((*block, *head_order), (BlockSize::Channel, HeadOrder::TokensFirst));
    assert!(manifest.contexts.is_empty() && manifest.recipe.fixed.is_some());
    // A chip's graphs have the same form.
    let manifest = compile("openvino:lunar-lake", None).unwrap();
    assert_eq!(manifest.recipe.head_order, HeadOrder::TokensFirst);
    let targets: Vec<String> = manifest.recipe.targets.iter().map(ToString::to_string).collect();
    assert_eq!(targets, ["openvino:npu", "openvino:lunar-lake"]);
    let manifest = compile("openvino:npu", Some(BlockSize::Elements(16))).unwrap();
    assert_eq!(manifest.recipe.block, BlockSize::Elements(16));
    let check = |target, block, expected: &str| {
        let error = compile(target, block).unwrap_err();
        assert!(error.kind() == ErrorKind::BadRequest && error.to_string().contains(expected), "{error}");
    };
    check("qnn:x-elite", None, "accept different graphs");
    check("qnn:x-elite", Some(BlockSize::Channel), "or --scheme w8a16");
    check("openvino:cpu", None, "not ahead of time");
}

#[test]
fn another_target_joins_the_first() {
    let tiny = Tiny::new();
    tiny.with_qnn();
    let (gateway, checkpoint) = (tiny.gateway(), tiny.checkpoint());
    let compile = |target: &str, contexts: &[usize]| {
        let (target, contexts) = (Some(target.parse().unwrap()), contexts.to_vec());
        let request = CompileRequest { target, contexts, ..CompileRequest::new(Scheme::W8) };
        gateway.compile(&checkpoint, &request, &Quiet, &Cancel::new()).unwrap().1
    };
    let first = compile("qnn:x-elite", &[64, 32]);
    let graphs: Vec<&str> = first.contexts.iter().map(|context| context.graph.as_str()).collect();
    assert_eq!(graphs, ["layers-1x32.onnx", "layers-1x64.onnx", "layers-64x64.onnx", "head.onnx"]);
    let both = compile("qnn:x-elite,8-elite,8-gen-3", &[]);
    let kept: Vec<usize> = both.recipe.fixed.iter().flat_map(FixedShapes::contexts).collect();
    assert_eq!(kept, [32, 64], "the contexts of before are kept");
    let targets: Vec<String> = both.recipe.targets.iter().map(ToString::to_string).collect();
    assert_eq!(targets, ["qnn:x-elite", "qnn:x-elite,8-gen-3,8-elite"]);
    assert_eq!(both.contexts.len(), 8);
    let binaries = |target: &str| {
        let own = format!("contexts/{target}/");
        both.files.keys().filter(|file| file.starts_with(&own) && file.ends_with(".bin")).count()
    };
    // Graphs for one chip share a binary; graphs for several chips cannot.
    assert_eq!((binaries("qnn-x-elite"), binaries("qnn-x-elite-8-gen-3-8-elite")), (1, 4));
    let [cost] = &unshared_weights(&both)[..] else { panic!("of two targets one is of several chips") };
    let own = both.files.iter().filter(|(file, _)| file.starts_with("contexts/qnn-x-elite-8-gen-3-8-elite/"));
    assert_eq!((&cost.target, cost.bytes), (&both.recipe.targets[1], own.map(|(_, file)| file.bytes).sum()));
    assert!(cost.shared < cost.bytes * 9 / 10, "{cost:?}");
    for context in &both.contexts {
        assert_eq!(context.placement.subgraphs, [(Ep::Qnn, 1)].into(), "{context:?}");
    }
}

#[test]
fn passes_are_measured_and_stay_when_a_package_is_made_again() {
    let tiny = Tiny::new();
    let (gateway, checkpoint) = (tiny.gateway(), tiny.checkpoint());
    let compile = |contexts: &[usize], passes: Option<&[Pass]>| {
        let passes = passes.map(|passes| passes.iter().copied().collect());
        let contexts = contexts.to_vec();
        let request = CompileRequest { contexts, passes, ..CompileRequest::new(Scheme::W8) };
        gateway.compile(&checkpoint, &request, &Quiet, &Cancel::new()).unwrap().1
    };
    assert_eq!(compile(&[], None).quality, None);
    let request = CompileRequest { rebuild: Rebuild::Always, ..CompileRequest::new(Scheme::W8) };
    let passes = Some([Pass::GroupedProjections, Pass::SplitHeads].into());
    let request = CompileRequest { passes, ..request };
    let changed = gateway.compile(&checkpoint, &request, &Quiet, &Cancel::new()).unwrap().1;
    assert!(changed.recipe.fixed.is_some(), "passes are for graphs of fixed shape");
    let Some(Quality::Decoder { positions, divergence, .. }) = changed.quality else {
        panic!("{:?}", changed.quality)
    };
    assert!(positions > 0 && divergence.abs() < 0.01, "{:?}", changed.quality);
    let again = compile(&[48], None);
    assert_eq!((again.recipe.fixed.unwrap().context, again.recipe.passes), (48, changed.recipe.passes));
    assert!(again.quality.is_some());
}

#[test]
fn prefill_graphs_have_the_lengths_that_were_asked_for() {
    let tiny = Tiny::new();
    let (gateway, checkpoint) = (tiny.gateway(), tiny.checkpoint());
    let check = |contexts: &[usize], prefill: &[usize], expected: &[usize]| {
        let (contexts, prefill) = (contexts.to_vec(), prefill.to_vec());
        let request = CompileRequest { contexts, prefill, ..CompileRequest::new(Scheme::W8) };
        let manifest = gateway.compile(&checkpoint, &request, &Quiet, &Cancel::new()).unwrap().1;
        assert_eq!(manifest.recipe.fixed.unwrap().prefill, expected);
        for length in expected {
            let file = format!("layers-{length}x48.onnx");
            assert!(manifest.graphs.iter().any(|graph| graph.file == file), "{file}");
        }
    };
    check(&[48], &[16, 8], &[8, 16]);
    // Existing graphs are kept if the request has no lengths.
    check(&[48], &[], &[8, 16]);
    check(&[48], &[32], &[32]);
}

#[test]
fn a_divided_model_has_a_context_for_each_part() {
    let tiny = Tiny::new();
    tiny.with_qnn();
    let (gateway, checkpoint) = (tiny.gateway(), tiny.checkpoint());
    let target = Some("qnn:x-elite".parse().unwrap());
    let request =
        CompileRequest { target, contexts: vec![64], part_bytes: Some(1), ..CompileRequest::new(Scheme::W8) };
    let (folder, manifest) = gateway.compile(&checkpoint, &request, &Quiet, &Cancel::new()).unwrap();
    assert_eq!(manifest.recipe.part_bytes, 1);
    assert_eq!(manifest.contexts.len(), 5, "prefill and decode of two parts, and the head");
    // Binaries that the contexts refer to, by part.
    let mut binaries: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for context in &manifest.contexts {
        let graph = Graph::decode(&fs::read(folder.join(&context.file)).unwrap()).unwrap();
        let binary = graph.nodes[0].text("ep_cache_context").unwrap().to_owned();
        let part = context.graph.rsplit_once("x64.").map_or("head", |(_, part)| part).to_owned();
        binaries.entry(part).or_default().insert(binary);
        assert_eq!(context.placement.subgraphs, [(Ep::Qnn, 1)].into(), "{context:?}");
    }
    let parts: Vec<&str> = binaries.keys().map(String::as_str).collect();
    assert_eq!(parts, ["0-0.onnx", "1-1.onnx", "head"]);
    let all: BTreeSet<&String> = binaries.values().flatten().collect();
    assert!(all.len() == 3 && binaries.values().all(|part| part.len() == 1), "{binaries:?}");
    // Every graph of the divided model runs completely on one device.
    let gateway = Gateway::open(config(&tiny, "qnn:emulation")).unwrap();
    ask(&gateway, manifest.name.as_str(), question("the cat", greedy(2)));
    let report = gateway.status().remove(0).placement.unwrap();
    assert!(
        report.lines.len() == 5 && report.lines.iter().all(|line| line.compute_share == 1.0),
        "{report:?}"
    );
    // An equal request reuses the package; a request for one part compiles it again.
    let again = |part_bytes| {
        let request = CompileRequest { part_bytes, ..request.clone() };
        gateway.compile(&checkpoint, &request, &Quiet, &Cancel::new()).unwrap().1.contexts.len()
    };
    assert_eq!((again(None), again(Some(1 << 30))), (5, 3));
}

/// Rewrites a graph of an installed package, as another exporter might have written it.
fn rewrite(folder: &Path, file: &str, change: impl FnOnce(&mut Graph)) {
    let mut graph = Graph::decode(&fs::read(folder.join(file)).unwrap()).unwrap();
    change(&mut graph);
    let bytes = graph.encode();
    let path = folder.join("manifest.json");
    let mut manifest: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    manifest["files"][file]["bytes"] = bytes.len().into();
    manifest["files"][file]["sha256"] = Sha256::of(&bytes).to_string().into();
    // The digest is that of the manifest before.
    manifest["digest"] = serde_json::Value::Null;
    fs::write(folder.join(file), bytes).unwrap();
    fs::write(path, manifest.to_string()).unwrap();
}

#[test]
fn a_graph_that_the_npu_refuses_is_named_and_the_next_device_takes_over() {
    let tiny = Tiny::new();
    tiny.with_qnn();
    let model = fixed(&tiny);
    let folder =
        Store::open(Some(tiny.home())).unwrap().package(&model.parse().unwrap(), Scheme::W8).unwrap();
    let manifest = tiny.gateway().manifest(&model).unwrap();
    let file = manifest.graphs.iter().find(|graph| graph.file.contains("layers-1x")).unwrap().file.clone();
    rewrite(&folder, &file, |graph| {
        let norm = graph.nodes.iter_mut().find(|node| node.op == "SimplifiedLayerNormalization").unwrap();
        // Replaces the norm by one that adds its input to itself first, which does not change the normalised result.
        norm.op = "SkipSimplifiedLayerNormalization".to_owned();
        norm.domain = "com.microsoft".to_owned();
        norm.attributes.retain(|(name, _)| name == "epsilon");
        norm.inputs.insert(1, norm.inputs[0].clone());
    });
    let status = load(config(&tiny, "qnn:emulation,cpu"), &model).unwrap();
    assert_eq!(status.device(), Some(DeviceName::Cpu));
    let passed = only(&status.passed_over);
    assert!(passed.announced && passed.reason.contains("SkipSimplifiedLayerNormalization"), "{passed:?}");
    let error = load(config(&tiny, "qnn:emulation"), &model).unwrap_err();
    assert!(error.to_string().contains(&file), "{error}");
}
