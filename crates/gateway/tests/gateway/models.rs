//! Life cycle of models: loaded on first use, several at once, and the errors of those that cannot be loaded.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use narthex_gateway::{
    AnswerSettings, AuditedFile, AutoPull, Cancel, CompileRequest, Config, Encryption, Error, ErrorKind,
    ExportFormat, ExportRequest, FileCondition, Gateway, ImportRequest, KeepAlive, LoadRoom, LoadSettings,
    LoadStart, ModelSettings, PendingLoad, Rebuild, ResidenceSettings, Rights,
    doctor::Level,
    models::{ModelKind, ModelState},
    request::{ChatRequest, EmbedRequest, InputOverflow, Message, Prompt, Role},
};
use narthex_spec::{
    Calibration, DeviceName, Ep, ProgressSink, Scheme,
    progress::{Progress, Quiet},
};
use narthex_testkit::checkpoint::{LLAMA_CONTEXT, tiny_llama_gguf};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{LONG_CONTEXT, PATIENCE, Tiny, ask, events, eventually, greedy, question, whole};

fn refused(gateway: &Gateway, model: &str) -> Error {
    let (sink, _events) = events();
    match gateway.chat(model, question("the cat", greedy(4)), sink) {
        Ok(_) => panic!("{model} answered"),
        Err(error) => error,
    }
}

fn states(gateway: &Gateway) -> Vec<(String, ModelState)> {
    gateway.status().into_iter().map(|status| (status.name.to_string(), status.state)).collect()
}

fn pending(gateway: &Gateway, model: &str) -> PendingLoad {
    match gateway.start_load(model).unwrap() {
        LoadStart::Pending(load) => load,
        LoadStart::Ready(_) => panic!("{model} is in memory"),
    }
}

/// Waits until a load waits for memory. Returns the error of a request whose time ends then.
fn without_memory(load: &PendingLoad) -> Error {
    let mut error = None;
    eventually("the wait for memory", || {
        error = load.model().err();
        !matches!(error, Some(Error::Loading { .. }))
    });
    error.expect("the model in use stays")
}

#[test]
fn a_model_is_loaded_on_first_use() {
    let tiny = Tiny::new();
    let (model, gateway) = (tiny.chat(), tiny.gateway());
    assert!(gateway.status().is_empty());
    let answer = ask(&gateway, &model, question("the cat", greedy(8)));
    assert_eq!(answer.summary.completion_tokens, 8);
    let status = &gateway.status()[0];
    assert_eq!((status.name.as_str(), &status.state), (model.as_str(), &ModelState::Ready));
    assert_eq!((status.kind, status.scheme), (Some(ModelKind::Chat), Scheme::F32));
    assert_eq!((status.device(), status.max_length), (Some(DeviceName::Cpu), Some(LLAMA_CONTEXT)));
    let report = status.placement.as_ref().unwrap();
    let [line] = report.lines.as_slice() else { panic!("{status:?}") };
    assert_eq!((line.ep, line.compute_share, report.npu_share), (Ep::Cpu, 1.0, 0.0));
    assert!(line.nodes > 0 && line.weight_bytes > 0, "{status:?}");
    // The counters are updated after the engine's last step.
    eventually("the last step", || {
        let engine = gateway.status()[0].engine.unwrap();
        (engine.running, engine.waiting, engine.generated_tokens) == (0, 0, 8)
    });
}

#[test]
fn the_weights_of_several_models_are_bounded_and_a_load_is_forecast() {
    let tiny = Tiny::new();
    let (chat, encoder) = (tiny.long_chat(), tiny.embedding());
    let gateway = Gateway::open(Config { weights_total: Some(1), ..tiny.config() }).unwrap();
    let forecast = || {
        let forecast = gateway.forecast_load(&encoder).unwrap();
        (forecast.room, forecast.unloads.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(forecast(), (LoadRoom::Enough, Vec::new()), "a single model may have any weights");
    ask(&gateway, &chat, question("the cat", greedy(2)));
    // The engine releases a request after its last event.
    eventually("the forecast after the request", || forecast() == (LoadRoom::Enough, vec![chat.clone()]));
    gateway.embed(&encoder, &EmbedRequest::new(["the cat"]), &Cancel::new()).unwrap();
    assert_eq!(states(&gateway), [(encoder.clone(), ModelState::Ready)]);
    assert_eq!(forecast(), (LoadRoom::Loaded, Vec::new()));

    let (sink, heard) = events();
    let running = gateway.chat(&chat, question("the cat", greedy(LONG_CONTEXT / 2)), sink).unwrap();
    heard.recv_timeout(PATIENCE).unwrap();
    assert_eq!(forecast(), (LoadRoom::Full, Vec::new()));
    let error = without_memory(&pending(&gateway, &encoder));
    assert!(error.hint().unwrap().contains("--weights-total"), "{error}");
    running.cancel();
    assert!(gateway.forecast_load("no-such-model").is_err());
}

#[test]
fn an_idle_model_leaves_for_another_and_one_in_use_stays() {
    let tiny = Tiny::new();
    let (chat, encoder) = (tiny.long_chat(), tiny.embedding());
    let gateway = Gateway::open(Config { max_models: 1, ..tiny.config() }).unwrap();
    let embed = || gateway.embed(&encoder, &EmbedRequest::new(["the cat"]), &Cancel::new());
    ask(&gateway, &chat, question("the cat", greedy(2)));
    embed().unwrap();
    assert_eq!(states(&gateway), [(encoder.clone(), ModelState::Ready)]);
    let (sink, heard) = events();
    let running = gateway.chat(&chat, question("the cat", greedy(LONG_CONTEXT / 2)), sink).unwrap();
    heard.recv_timeout(PATIENCE).unwrap();
    let load = pending(&gateway, &encoder);
    let error = without_memory(&load);
    assert!(error.to_string().contains("there is no room for") && error.retry_after().is_some(), "{error}");
    assert!(error.hint().unwrap().contains("--max-models"));
    running.cancel();
    embed().unwrap();
}

/// Settings of one model.
fn settings(model: &str, settings: ModelSettings) -> BTreeMap<String, ModelSettings> {
    [(model.to_owned(), settings)].into()
}

#[test]
fn a_pinned_model_makes_no_room_for_another() {
    let tiny = Tiny::new();
    let (chat, encoder) = (tiny.chat(), tiny.embedding());
    let residence = ResidenceSettings { pinned: true, keep_alive: None };
    let models = settings(&chat, ModelSettings { residence, ..ModelSettings::default() });
    let gateway = Gateway::open(Config { max_models: 1, models, ..tiny.config() }).unwrap();
    gateway.load(&chat, &Quiet, &Cancel::new()).unwrap();
    let load = pending(&gateway, &encoder);
    assert!(matches!(without_memory(&load), Error::ResidencyFull { .. }));
    gateway.unload(&chat).unwrap();
    eventually("memory", || load.model().is_ok());
}

#[test]
fn a_model_leaves_after_its_keep_alive_time() {
    let tiny = Tiny::new();
    let (chat, encoder) = (tiny.chat(), tiny.embedding());
    let residence = ResidenceSettings { pinned: false, keep_alive: Some(KeepAlive::Forever) };
    let models = settings(&encoder, ModelSettings { residence, ..ModelSettings::default() });
    let keep_alive = KeepAlive::For(Duration::ZERO);
    let gateway = Gateway::open(Config { keep_alive, models, ..tiny.config() }).unwrap();
    gateway.load(&encoder, &Quiet, &Cancel::new()).unwrap();
    gateway.load(&chat, &Quiet, &Cancel::new()).unwrap();
    eventually("the end of the chat model", || states(&gateway).len() == 1);
    assert_eq!(states(&gateway), [(encoder, ModelState::Ready)]);
}

#[test]
fn new_settings_apply_to_new_requests_and_to_models_in_memory() {
    let tiny = Tiny::new();
    let (chat, encoder) = (tiny.chat(), tiny.embedding());
    let gateway = Gateway::open(Config { max_models: 1, ..tiny.config() }).unwrap();
    gateway.load(&chat, &Quiet, &Cancel::new()).unwrap();
    let residence = ResidenceSettings { pinned: true, keep_alive: None };
    let models = settings(&chat, ModelSettings { residence, ..ModelSettings::default() });
    let aliases: BTreeMap<_, _> = [("pet".to_owned(), chat.clone())].into();
    let renewed = gateway.with_settings(Config { models, aliases, max_models: 9, ..tiny.config() }).unwrap();
    assert_eq!(renewed.config().max_models, 1, "only a restart changes it");
    assert!(renewed.is_alias("pet") && !gateway.is_alias("pet"));
    assert!(matches!(renewed.start_load("pet"), Ok(LoadStart::Ready(_))), "it is the model in memory");

    // The model in memory is pinned now.
    assert!(matches!(without_memory(&pending(&renewed, &encoder)), Error::ResidencyFull { .. }));

    let wrong = [("pet".to_owned(), "no-such-model".to_owned())].into();
    let refused = renewed.with_settings(Config { aliases: wrong, ..tiny.config() });
    assert!(matches!(refused.err().unwrap(), Error::Invalid { .. }));

    // Nor does a model stay longer than the new keep-alive time, although no thread watched it before.
    let keep_alive = KeepAlive::For(Duration::ZERO);
    let brief = renewed.with_settings(Config { keep_alive, ..tiny.config() }).unwrap();
    eventually("the end of the model", || states(&brief).iter().all(|(name, _)| *name != chat));
}

#[test]
fn a_name_of_its_own_has_its_system_prompt_and_sampling() {
    let tiny = Tiny::new();
    let chat = tiny.chat();
    let answers = AnswerSettings { system: Some("the dog".to_owned()), ..AnswerSettings::default() };
    let pet = ModelSettings { from: Some(chat.clone()), answers, ..ModelSettings::default() };
    let gateway = Gateway::open(Config { models: settings("pet", pet), ..tiny.config() }).unwrap();
    assert!(gateway.is_alias("pet") && !gateway.is_alias(&chat));
    gateway.load("pet", &Quiet, &Cancel::new()).unwrap();
    let prompt = |model: &str, roles: &[Role]| {
        let LoadStart::Ready(ready) = gateway.start_load(model).unwrap() else {
            panic!("{model} is not ready")
        };
        let messages = roles.iter().map(|role| Message::new(*role, "the cat".to_owned())).collect();
        ready.chat_prompt(ChatRequest::new(messages), &Cancel::new()).unwrap().text
    };
    assert!(prompt("pet", &[Role::User]).contains("the dog"));
    assert!(!prompt("pet", &[Role::System, Role::User]).contains("the dog"), "the conversation has its own");
    assert!(!prompt(&chat, &[Role::User]).contains("the dog"));
    assert_eq!(states(&gateway).len(), 1, "both names have one model in memory");
}

#[test]
fn settings_of_a_model_change_its_loading() {
    let tiny = Tiny::new();
    let chat = tiny.long_chat();
    let load = LoadSettings { context: Some(64), ..LoadSettings::default() };
    let models = settings(&chat, ModelSettings { load, ..ModelSettings::default() });
    let gateway = Gateway::open(Config { models, ..tiny.config() }).unwrap();
    assert_eq!(gateway.load(&chat, &Quiet, &Cancel::new()).unwrap().max_length, Some(64));
    let unknown = settings("nothing:1b", ModelSettings::default());
    let error = Gateway::open(Config { models: unknown, ..tiny.config() }).err().unwrap().to_string();
    assert!(error.contains("models") && error.contains("nothing:1b"), "{error}");
}

#[test]
fn a_model_stays_until_the_requests_that_waited_for_it_use_it() {
    let tiny = Tiny::new();
    let (chat, encoder) = (tiny.chat(), tiny.embedding());
    let gateway = Gateway::open(Config { max_models: 1, ..tiny.config() }).unwrap();
    for is_late in [false, true] {
        let load = pending(&gateway, &chat);
        let mut place = load.on_end(|| ()).unwrap();
        eventually("the load", || load.model().is_ok());
        if is_late {
            // A place that is taken after the end of the load has the same effect.
            place = load.on_end(|| ()).unwrap();
        }
        let next = pending(&gateway, &encoder);
        let error = without_memory(&next);
        assert!(matches!(error, Error::ResidencyFull { .. }), "{error}");
        drop(place);
        eventually("memory", || next.model().is_ok());
    }
}

#[test]
fn a_model_stays_while_a_request_holds_it() {
    let tiny = Tiny::new();
    let (chat, encoder) = (tiny.chat(), tiny.embedding());
    let gateway = Gateway::open(Config { max_models: 1, ..tiny.config() }).unwrap();
    gateway.load(&chat, &Quiet, &Cancel::new()).unwrap();
    let LoadStart::Ready(model) = gateway.start_load(&chat).unwrap() else {
        panic!("{chat} is not in memory")
    };
    let next = pending(&gateway, &encoder);
    assert!(matches!(without_memory(&next), Error::ResidencyFull { .. }));
    drop(model);
    eventually("memory", || next.model().is_ok());
    let model = next.model().unwrap();
    gateway.remove(&encoder).unwrap();
    // The name is not resolved again.
    model.embed(&EmbedRequest::new(["the cat"]), &Cancel::new()).unwrap();
}

#[test]
fn a_removed_model_keeps_its_memory_until_its_last_use_ends() {
    let tiny = Tiny::new();
    let (chat, encoder) = (tiny.long_chat(), tiny.embedding());
    let check = |config: Config, next: &str, remove: &dyn Fn(&Gateway)| {
        let gateway = Gateway::open(config).unwrap();
        gateway.load(&chat, &Quiet, &Cancel::new()).unwrap();
        let LoadStart::Ready(model) = gateway.start_load(&chat).unwrap() else {
            panic!("{chat} is not in memory")
        };
        let (sink, heard) = events();
        let running = model.chat(question("the cat", greedy(LONG_CONTEXT / 2)), sink).unwrap();
        heard.recv_timeout(PATIENCE).unwrap();
        remove(&gateway);
        assert_eq!(states(&gateway), []);
        let load = pending(&gateway, next);
        let error = without_memory(&load);
        assert!(matches!(error, Error::ResidencyFull { .. }), "{error}");
        drop(model);
        // The last use ends on the thread of the model.
        running.cancel();
        eventually("memory", || load.model().is_ok());
    };
    let one_model = || Config { max_models: 1, ..tiny.config() };
    let one_cache = Config { kv_budget: Some(1 << 30), kv_total: Some(1 << 30), ..tiny.config() };
    let unload = |gateway: &Gateway| gateway.unload(&chat).unwrap();
    check(one_model(), &encoder, &unload);
    check(one_model(), &chat, &unload);
    check(one_cache, &chat, &unload);
    check(one_model(), &encoder, &|gateway| assert!(gateway.remove(&chat).unwrap() > 0));
}

#[test]
fn the_kv_caches_of_all_models_are_bounded() {
    let tiny = Tiny::new();
    let (first, second, encoder) = (tiny.chat(), tiny.long_chat(), tiny.embedding());
    let (kv_budget, kv_total) = (Some(2 << 30), Some(3 << 30));
    let config = Config { kv_budget, kv_total, retry_failed_after: Duration::ZERO, ..tiny.config() };
    let gateway = Gateway::open(config).unwrap();
    gateway.load(&first, &Quiet, &Cancel::new()).unwrap();
    gateway.load(&encoder, &Quiet, &Cancel::new()).unwrap();
    // Two KV caches of 2 GiB exceed the total, so the first model is evicted. An encoder has no KV cache and stays.
    gateway.load(&second, &Quiet, &Cancel::new()).unwrap();
    let mut names: Vec<String> = states(&gateway).into_iter().map(|(name, _)| name).collect();
    names.sort();
    let mut expect = [second, encoder];
    expect.sort();
    assert_eq!(names, expect);
}

#[test]
fn requests_without_the_right_pull_nothing() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    let rights = |auto_pull| gateway.with_rights(Rights { auto_pull, ..Rights::default() }.into());
    let error = refused(&rights(AutoPull::Never), "smollm2:135m");
    assert!(error.kind() == ErrorKind::NotFound && error.hint().unwrap().contains("narthex pull"), "{error}");
    let listed = |auto_pull| {
        let models = rights(auto_pull).models().unwrap();
        models.iter().filter(|model| model.auto_pull).count()
    };
    let counts = [AutoPull::Never, AutoPull::Catalogue, AutoPull::Always].map(listed);
    assert!(counts[0] == 0 && 0 < counts[1] && counts[1] < counts[2], "{counts:?}");
    // The files of a hub repository are not pinned, so a request cannot start their download, however small they are.
    let error = refused(&rights(AutoPull::Catalogue), "smollm2:135m-hub");
    assert!(error.kind() == ErrorKind::NotFound && error.hint().unwrap().contains("narthex pull"), "{error}");
}

#[test]
fn a_caller_uses_its_models_alone() {
    let tiny = Tiny::new();
    let (chat, encoder, gateway) = (tiny.chat(), tiny.embedding(), tiny.gateway());
    let models = [encoder.parse().unwrap()].into();
    let caller = gateway.with_rights(Rights { models, auto_pull: AutoPull::Never }.into());
    caller.embed(&encoder, &EmbedRequest::new(["the cat"]), &Cancel::new()).unwrap();
    let error = refused(&caller, &format!("{chat}@f32"));
    assert!(error.kind() == ErrorKind::Forbidden && error.param() == Some("model"), "{error}");
    assert_eq!(caller.model(&chat).unwrap_err().kind(), ErrorKind::Forbidden);
    ask(&gateway, &chat, question("the cat", greedy(2)));
    assert_eq!((states(&gateway).len(), states(&caller).len(), caller.models().unwrap().len()), (2, 1, 1));
}

#[test]
fn a_checkpoint_is_compiled_when_it_is_loaded_by_its_path() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    let file = tiny.home().with_file_name("mine.gguf");
    fs::write(&file, tiny_llama_gguf(7)).unwrap();
    let path = file.to_str().unwrap();
    // A request may not read files of the server.
    assert_eq!(refused(&gateway, path).kind(), ErrorKind::NotFound);
    let status = gateway.load(path, &Quiet, &Cancel::new()).unwrap();
    assert_eq!(status.name.as_str(), "local/mine", "{status:?}");
    let name = status.name.as_str();
    assert_eq!(ask(&gateway, name, question("the cat", greedy(4))).summary.completion_tokens, 4);
    // The error does not reveal whether a file exists.
    let absent = path.replace("mine.gguf", "none.gguf");
    let told = |path: &str| refused(&gateway, path).to_string().replace(path, "PATH");
    assert_eq!(told(path), told(&absent));
    assert_eq!(told("d/../../../../../etc/passwd"), told("d/../../../../../etc/nothing"));
}

#[test]
fn requests_that_come_together_load_a_model_once() {
    let tiny = Tiny::new();
    let (model, gateway) = (tiny.chat(), tiny.gateway());
    let texts: Vec<String> = std::thread::scope(|scope| {
        let one = || ask(&gateway, &model, question("the cat", greedy(8))).text;
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    // All requests used the same engine.
    eventually("the last step", || gateway.status()[0].engine.unwrap().generated_tokens == 6 * 8);
}

#[test]
fn two_models_answer_at_once() {
    let tiny = Tiny::new();
    let (chat, embedding, gateway) = (tiny.long_chat(), tiny.embedding(), tiny.gateway());
    let (sink, received) = events();
    let turn = gateway.chat(&chat, question("the cat", greedy(LONG_CONTEXT)), sink).unwrap();
    received.recv_timeout(PATIENCE).unwrap();
    let inputs = vec![Prompt::Text("the cat".to_owned())];
    let request = EmbedRequest { inputs, overlong: InputOverflow::Refuse, dimensions: Some(8), prompt: None };
    assert_eq!(gateway.embed(&embedding, &request, &Cancel::new()).unwrap().vectors[0].len(), 8);
    assert_eq!(
        gateway.status().iter().filter_map(|status| status.engine).map(|e| e.running).sum::<usize>(),
        1
    );
    turn.cancel();
    whole(&received);
    let mut expected = vec![(chat.clone(), ModelState::Ready), (embedding.clone(), ModelState::Ready)];
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(states(&gateway), expected);
    assert!(matches!(refused(&gateway, &embedding), Error::WrongKind { .. }));
    assert!(matches!(gateway.embed(&chat, &request, &Cancel::new()), Err(Error::WrongKind { .. })));
}

#[test]
fn a_removed_model_finishes_its_answer_and_is_gone() {
    let tiny = Tiny::new();
    let (model, gateway) = (tiny.long_chat(), tiny.gateway());
    let (sink, received) = events();
    gateway.chat(&model, question("the cat", greedy(200)), sink).unwrap();
    received.recv_timeout(PATIENCE).unwrap();
    assert!(gateway.remove(&model).unwrap() > 0);
    assert_eq!(whole(&received).summary.completion_tokens, 200);
    assert!(gateway.status().is_empty());
    assert_eq!(refused(&gateway, &model).kind(), ErrorKind::NotFound);
}

#[test]
fn a_package_that_another_process_removes_or_replaces_leaves_the_memory() {
    let tiny = Tiny::new();
    let (path, gateway, other) = (tiny.checkpoint(), tiny.gateway(), tiny.gateway());
    let request = CompileRequest {
        calibration: Calibration::None,
        rebuild: Rebuild::Always,
        ..CompileRequest::new(Scheme::F32)
    };
    let compile = || other.compile(&path, &request, &Quiet, &Cancel::new()).unwrap().1.name.to_string();
    let model = compile();
    ask(&gateway, &model, question("the cat", greedy(2)));
    assert_eq!(states(&gateway), [(model.clone(), ModelState::Ready)]);
    compile();
    assert!(gateway.status().is_empty(), "it was replaced");
    ask(&gateway, &model, question("the cat", greedy(2)));
    other.remove(&model).unwrap();
    assert_eq!(refused(&gateway, &model).kind(), ErrorKind::NotFound);
    assert!(gateway.status().is_empty(), "it was removed");
}

#[test]
fn names_that_load_nothing_are_not_found_and_leave_no_trace() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    let check = |model: &str, expect: &str| {
        let error = refused(&gateway, model);
        let text = format!("{error} {}", error.hint().unwrap_or_default());
        assert_eq!(error.kind(), ErrorKind::NotFound, "{model}: {text}");
        assert!(text.contains(expect), "{model}: {text}");
    };
    check("smolm2:135m", "smollm2:135m");
    check("nothing like it", "narthex list --available");
    // One model is too large for a download by a request, the other is not in the catalogue.
    check("smollm2:1.7b", "narthex pull smollm2:1.7b");
    check("hf:owner/repo", "narthex pull");
    assert!(gateway.status().is_empty(), "{:?}", gateway.status());
}

/// Changes a file of a package. Returns the original content.
fn spoil(file: &Path, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let good = fs::read(file).unwrap();
    let mut bad = good.clone();
    change(&mut bad);
    fs::write(file, bad).unwrap();
    good
}

#[test]
fn a_failed_load_is_reported_and_tried_again_later() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let data = tiny.package(&model).join("model.onnx.data");
    let day = Duration::from_secs(86_400);
    let patient = Gateway::open(Config { retry_failed_after: day, ..tiny.config() }).unwrap();
    let eager = Gateway::open(Config { retry_failed_after: Duration::ZERO, ..tiny.config() }).unwrap();
    let good = spoil(&data, |bytes| bytes.truncate(100));
    for gateway in [&patient, &eager] {
        let error = refused(gateway, &model);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("model.onnx.data has 100 bytes"), "{error}");
        // A damaged file does not repair itself, so a retry is pointless.
        assert!(error.hint().unwrap().contains("narthex rm") && error.retry_after().is_none());
        let [(name, ModelState::Failed { reason, .. })] = &states(gateway)[..] else { panic!() };
        assert!(*name == model && error.to_string().contains(reason.as_str()), "{reason}");
    }
    fs::write(&data, good).unwrap();
    assert!(matches!(refused(&patient, &model), Error::LoadFailed { .. }));
    assert_eq!(ask(&eager, &model, question("the cat", greedy(4))).summary.completion_tokens, 4);
    assert_eq!(states(&eager), [(model, ModelState::Ready)]);
}

/// Removes a folder at the first progress of a load.
struct RemovingFolder(std::path::PathBuf);

impl ProgressSink for RemovingFolder {
    fn event(&self, _: Progress) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_model_that_is_removed_while_it_loads_is_not_installed() {
    let tiny = Tiny::new();
    let (model, gateway) = (tiny.chat(), tiny.gateway());
    let folder = tiny.package(&model);
    let error = gateway.load(&model, &RemovingFolder(folder.clone()), &Cancel::new()).unwrap_err();
    assert!(matches!(error, Error::NotInstalled { .. }) && !folder.exists(), "{error}");
    assert_eq!((error.kind(), refused(&gateway, &model).kind()), (ErrorKind::NotFound, ErrorKind::NotFound));
}

#[test]
fn the_name_of_a_folder_is_not_the_name_of_a_model() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let stem = tiny.package(&model).parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    assert!(stem != model && stem.contains("--"), "{stem}");
    let error = refused(&tiny.gateway(), &stem);
    assert!(matches!(error, Error::UnknownModel { .. }), "{error}");
}

#[test]
fn a_manifest_that_lost_a_field_is_refused() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let path = tiny.package(&model).join("manifest.json");
    let written = fs::read(&path).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_slice(&written).unwrap();
    manifest["tokenizer"]["stop"] = serde_json::json!([]);
    fs::write(&path, serde_json::to_vec_pretty(&manifest).unwrap()).unwrap();
    let error = refused(&tiny.gateway(), &model);
    assert!(error.to_string().contains("manifest.json was changed"), "{error}");
    let audited = tiny.gateway().verify(None, &Quiet, &Cancel::new()).unwrap();
    let damaged: Vec<_> = audited.iter().filter(|file| !file.state.is_intact()).collect();
    assert_eq!(damaged.iter().map(|file| &file.path).collect::<Vec<_>>(), [&path], "{damaged:?}");

    // Manifests without a digest, as authors and older versions write them, are accepted.
    manifest.as_object_mut().unwrap().remove("digest");
    fs::write(&path, serde_json::to_vec(&manifest).unwrap()).unwrap();
    ask(&tiny.gateway(), &model, question("the cat", greedy(2)));
}

#[test]
fn a_corrupt_package_is_an_error_that_names_the_file() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let folder = tiny.package(&model);
    let check = |file: &str, change: &dyn Fn(&mut Vec<u8>), expect: &str| {
        let path = folder.join(file);
        let good = spoil(&path, change);
        let error = refused(&tiny.gateway(), &model);
        let text = error.to_string();
        assert!(text.contains(expect) && text.contains(&model), "{file}: {text}");
        assert!(!text.contains("panicked"), "{text}");
        assert_ne!(error.kind(), ErrorKind::Internal, "{file}: {text}");
        fs::write(&path, good).unwrap();
    };
    check("manifest.json", &|bytes| bytes.truncate(10), "manifest.json");
    check("manifest.json", &|bytes| *bytes = b"{}".to_vec(), "manifest.json");
    check("manifest.json", &|bytes| *bytes = br#"{"format": 99999}"#.to_vec(), "99999");
    check("model.onnx", &|bytes| bytes.truncate(10), "model.onnx");
    for file in ["model.onnx", "model.onnx.data", "tokenizer.json", "chat_template.jinja"] {
        let expect = format!("{file} is damaged: expected SHA-256 ");
        check(file, &|bytes| *bytes.last_mut().unwrap() ^= 1, &expect);
    }
    let replace = |from: &'static str, to: &'static str| {
        move |bytes: &mut Vec<u8>| {
            let text = String::from_utf8(std::mem::take(bytes)).unwrap();
            assert!(text.contains(from), "{text}");
            *bytes = text.replace(from, to).into_bytes();
        }
    };
    // A manifest may name only files of the package that it lists with their digests.
    let template = "\"template\": \"chat_template.jinja\"";
    let leads_out = replace(template, "\"template\": \"/etc/passwd\"");
    check("manifest.json", &leads_out, "\"/etc/passwd\" is not the path of a package's file");
    check("manifest.json", &replace(template, "\"template\": \"none\""), "states no digest of none");
    check(
        "manifest.json",
        &replace("\"name\": \"local/", "\"name\": \"other/"),
        "its manifest is that of other/",
    );
    assert_eq!(ask(&tiny.gateway(), &model, question("the cat", greedy(4))).summary.completion_tokens, 4);
    // The command in the hint works.
    spoil(&folder.join("manifest.json"), |bytes| bytes.clear());
    tiny.gateway().remove(&model).unwrap();
    assert!(!folder.exists());
}

#[test]
fn a_load_and_an_audit_refuse_what_the_manifest_does_not_state() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let folder = tiny.package(&model);
    let manifest = folder.join("manifest.json");
    let audit = || {
        let files = tiny.gateway().verify(Some(&model), &Quiet, &Cancel::new()).unwrap();
        let reason = |file: AuditedFile| match file.state {
            FileCondition::Intact { .. } => None,
            FileCondition::Unreadable { reason } if file.path == manifest => Some(reason),
            state => panic!("{state:?}"),
        };
        files.into_iter().filter_map(reason).collect::<Vec<String>>()
    };
    assert_eq!(audit(), Vec::<String>::new());
    let check = |change: &dyn Fn(&mut Value), expect: &str| {
        let good = spoil(&manifest, |bytes| {
            let mut json = serde_json::from_slice(bytes).unwrap();
            change(&mut json);
            // With its digest, the manifest would be refused for any change.
            json.as_object_mut().unwrap().remove("digest");
            *bytes = serde_json::to_vec(&json).unwrap();
        });
        let error = refused(&tiny.gateway(), &model).to_string();
        assert!(error.contains(expect), "{error}");
        let found = audit();
        assert!(found.len() == 1 && found[0].contains(expect), "{found:?}");
        fs::write(&manifest, good).unwrap();
    };
    check(&|json| json["recipe"]["scheme"] = "w4".into(), "its manifest is that of");
    check(
        &|json| drop(json["files"].as_object_mut().unwrap().remove("tokenizer.json")),
        "no digest of tokenizer.json",
    );
    check(&|json| json["max_length"] = Value::Null, "manifest.json is malformed");
    // The graph names another file of the same folder, which has the same weights.
    fs::copy(folder.join("model.onnx.data"), folder.join("m0del.onnx.data")).unwrap();
    let renamed = |file: &str| {
        let good = spoil(&folder.join("model.onnx"), |bytes| {
            let name = b"model.onnx.data";
            while let Some(at) = bytes.windows(name.len()).position(|window| window == name) {
                bytes[at..at + name.len()].copy_from_slice(file.as_bytes());
            }
        });
        let digest = Sha256::digest(fs::read(folder.join("model.onnx")).unwrap());
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let expect = format!("model.onnx uses {file:?}, but manifest.json states no digest of it");
        check(&|json| json["files"]["model.onnx"]["sha256"] = digest.clone().into(), &expect);
        fs::write(folder.join("model.onnx"), good).unwrap();
    };
    renamed("m0del.onnx.data");
    renamed("../el.onnx.data");
    assert_eq!(audit(), Vec::<String>::new());
}

#[test]
fn a_manifest_that_contradicts_itself_or_its_graph_is_malformed() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let manifest = tiny.package(&model).join("manifest.json");
    let mut good: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    good.as_object_mut().unwrap().remove("digest");
    let check = |path: &str, value: Value, expect: &str| {
        let mut changed = good.clone();
        *changed.pointer_mut(path).unwrap() = value;
        fs::write(&manifest, serde_json::to_vec(&changed).unwrap()).unwrap();
        let error = tiny.gateway().load(&model, &Quiet, &Cancel::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Malformed, "{error}");
        assert!(error.to_string().contains(expect), "{path}: {error}");
    };
    check("/graphs", json!([]), "expected at least one graph, found none");
    check("/max_length", json!(0), "expected a maximum length of at least one token");
    check("/tokenizer/bos", json!(99_999_999), "expected a start token below the vocabulary size");
    check("/architecture/layers", json!([]), "expected at least one layer, found none");
    check(
        "/architecture/layers/0/attention/kv_heads",
        json!(3),
        "expected attention heads of layer 0 in groups",
    );
    check("/architecture/rope/theta", json!(0.0), "expected a rotary base above zero, found 0");
    check("/graphs/0/kv", json!([]), "of the KV cache for ");
    check("/graphs/0/kv/0/heads", json!(300), "in entry 0 of the KV cache of model.onnx, found 300 heads");
    let rows = json!({
        "heads": 1, "head_size": 8, "window": 2, "dtype": "f32", "content": "convolution_inputs",
    });
    let expected = "to be that of a layer, found 2 rows of a convolution with 16 elements";
    check("/graphs/0/kv/0", rows, expected);
    let state = json!({
        "heads": 4, "head_size": 16, "window": 3, "dtype": "f32",
        "content": {"recurrent_state": {"key_size": 8, "width": 96}},
    });
    let expected = "to be that of a layer, found 4 states of 8 × 16 elements and 3 rows of 96 elements";
    check("/graphs/0/kv/0", state, expected);
    check("/graphs/0/kv/0/head_size", json!(0), "expected heads with elements in entry 0");
    check("/graphs/0/inputs/0/name", json!("nothing"), "expected an input nothing of model.onnx");
    check("/graphs/0/outputs/0/name", json!("nothing"), "expected an output nothing of model.onnx");
    fs::write(&manifest, serde_json::to_vec(&good).unwrap()).unwrap();
    tiny.gateway().load(&model, &Quiet, &Cancel::new()).unwrap();
}

#[test]
fn a_store_that_cannot_be_written_serves_what_it_has() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    // A file in place of a folder prevents writing even for the administrator, whom permissions do not stop.
    for folder in ["tmp", "locks", "run"] {
        let path = tiny.home().join(folder);
        let _ = fs::remove_dir_all(&path);
        fs::write(&path, "").unwrap();
    }
    let gateway = tiny.gateway();
    assert_eq!(ask(&gateway, &model, question("the cat", greedy(4))).summary.completion_tokens, 4);
    assert!(gateway.models().unwrap().iter().any(|listing| listing.name.as_str() == model));
    let request = CompileRequest { rebuild: Rebuild::Always, ..CompileRequest::new(Scheme::W8) };
    let checkpoint = tiny.home().with_file_name("tiny.gguf");
    let error = gateway.compile(checkpoint.to_str().unwrap(), &request, &Quiet, &Cancel::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
    assert!(error.to_string().contains(tiny.home().to_str().unwrap()), "{error}");
    assert!(gateway.register_server("127.0.0.1:1", Encryption::None).is_err());
    assert!(
        gateway
            .doctor()
            .findings
            .iter()
            .any(|found| found.level == Level::Problem && found.subject == "store")
    );
}

#[test]
fn a_request_does_not_wait_for_a_load_longer_than_it_is_told() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let gateway = Gateway::open(Config { load_wait: Duration::ZERO, ..tiny.config() }).unwrap();
    let error = refused(&gateway, &model);
    assert!(matches!(error, Error::Loading { .. }) && error.retry_after().is_some(), "{error}");
    eventually("the load", || states(&gateway) == [(model.clone(), ModelState::Ready)]);
    assert_eq!(ask(&gateway, &model, question("the cat", greedy(4))).summary.completion_tokens, 4);
}

#[test]
fn a_package_is_carried_to_another_store_in_one_file() {
    let (from, to) = (Tiny::new(), Tiny::new());
    let (model, folder) = (from.chat(), tempfile::tempdir().unwrap());
    let file = folder.path().join("tiny.narthex");
    let export = |out: &Path| {
        let (model, format) = (model.clone(), ExportFormat::Package);
        let request = ExportRequest { model, format, group: None, out: out.to_owned() };
        from.gateway().export(&request, &Quiet, &Cancel::new())
    };
    export(&file).unwrap();
    assert_eq!(export(&folder.path().join("tiny")).unwrap_err().param(), Some("out"));

    let import = |path: &Path, name: Option<&str>| {
        let name = name.map(|name| name.parse().unwrap());
        let request = ImportRequest { path: path.to_owned(), name, file: None, pooling: None };
        to.gateway().import(&request, &Quiet, &Cancel::new())
    };
    let (_, manifest) = import(&file, None).unwrap();
    assert_eq!(manifest, from.gateway().manifest(&model).unwrap());
    let (_, renamed) = import(&file, Some("carried")).unwrap();
    assert_eq!((renamed.name.as_str(), &renamed.files), ("carried", &manifest.files));
    let answer = |tiny: &Tiny, model: &str| ask(&tiny.gateway(), model, question("the cat", greedy(8))).text;
    assert_eq!(answer(&to, "carried"), answer(&from, &model));

    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    let damaged = folder.path().join("damaged.narthex");
    fs::write(&damaged, bytes).unwrap();
    assert!(import(&damaged, Some("damaged")).is_err());
    assert!(to.gateway().manifest("damaged").is_err());
}

#[test]
fn a_named_package_is_compiled_in_another_scheme_by_its_name() {
    let tiny = Tiny::new();
    let compile = |model: &str, scheme, name: Option<&str>| {
        let name = name.map(|name| name.parse().unwrap());
        let request = CompileRequest { name, ..CompileRequest::new(scheme) };
        tiny.gateway().compile(model, &request, &Quiet, &Cancel::new())
    };
    let checkpoint = tiny.checkpoint();
    compile(&checkpoint, Scheme::F32, Some("mine")).unwrap();
    compile("mine", Scheme::F16, None).unwrap();
    fs::remove_file(&checkpoint).unwrap();
    let error = compile("mine", Scheme::W4, None).unwrap_err().to_string();
    assert!(error.ends_with("where the model is installed in f16 and f32"), "{error}");
    let error = refused(&tiny.gateway(), "mine@w4").to_string();
    assert!(error.starts_with("mine@w4 is not installed on this machine, where"), "{error}");
}

#[test]
fn the_name_of_a_family_stands_for_one_of_its_sizes() {
    let gateway = Tiny::new().gateway();
    let name = |text: &str| gateway.model(text).map(|model| model.name.to_string());
    let size = name("qwen3").unwrap();
    assert!(size.starts_with("qwen3:") && name(&size).unwrap() == size, "{size}");
    assert_eq!(name("qwen3").unwrap(), size, "it stays the same");
    assert_eq!(name("smollm2").unwrap(), "smollm2:135m", "a name of its own");
    assert_eq!(name("all-minilm").unwrap(), "all-minilm-l6-v2");
    match gateway.model("deepseek-r1:7b") {
        Err(Error::UnknownModel { near, .. }) => assert_eq!(near[0].as_str(), "qwen3:8b"),
        other => panic!("{other:?}"),
    }
}
