//! Ctrl-C in a terminal: every command ends, or ends its work, within a second and without an error.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod support;

use std::{
    fs::{self, File},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use narthex_testkit::checkpoint::{GgufTensor, Meta, tiny_llama};
use serde_json::Value;

use support::{
    home::Home,
    terminal::{CTRL_D, ENTERED, PROMPT, Terminal},
};

/// Maximum time from Ctrl-C to the end of the program, which ends itself after 500 ms. The rest is for the end of the
/// process and of the terminal on a busy machine.
const STOP: Duration = Duration::from_secs(1);

/// Presses Ctrl-C, and checks the exit code and the time until the end.
#[track_caller]
fn check_interrupt(mut terminal: Terminal, words: &[&str], code: i32) {
    let (found, took) = terminal.interrupt();
    let words = &words[..words.len().min(9)];
    assert_eq!(found, code, "{words:?}\n{}", terminal.screen());
    assert!(took < STOP, "{words:?} took {took:?}");
    let written = terminal.written();
    assert!(!written.contains("error:") && !written.contains("panicked"), "{words:?}: {}", terminal.screen());
}

#[test]
fn a_download_stops_at_ctrl_c() {
    let home = Home::new();
    let started = home.path("started");
    home.add_program("aider", "raise SystemExit('it needs a server')\n");
    for words in [
        "run smollm2:135m hi",
        "chat hi",
        "complete -m smollm2:135m hi",
        "embed hi",
        "rerank -m reranker a b",
        "answer -m answers a --context context.txt",
        "fill -m masked a",
        "serve -m smollm2:135m",
        "pull smollm2:135m",
        "compile smollm2:135m",
        "export smollm2:135m out --format quark",
        "bench -m smollm2:135m",
        "runtime install",
        "launch aider --model smollm2:135m",
        "import sentence --name other --file onnx/model.onnx",
        "doctor",
    ] {
        let _ = fs::remove_file(&started);
        let words: Vec<&str> = words.split(' ').collect();
        let mut command = home.online(&words);
        if words == ["doctor"] {
            command.env("doctor", "1");
        }
        let terminal = Terminal::start(&command, 80);
        let began = Instant::now();
        while !started.exists() {
            assert!(began.elapsed() < Duration::from_secs(30), "{words:?}: pip was not started");
            thread::sleep(Duration::from_millis(5));
        }
        check_interrupt(terminal, &words, 130);
    }
    assert!(!home.path("store/packages/other").exists(), "an interrupted import leaves nothing behind");
}

#[test]
fn a_silent_hub_is_left_at_ctrl_c() {
    let home = Home::new();
    let hub = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", hub.local_addr().unwrap());
    for words in [["plan", "hf:owner/repo"], ["check", "hf:owner/repo"], ["pull", "hf:owner/repo"]] {
        let mut command = home.online(&words);
        command.env("HF_ENDPOINT", &endpoint);
        let terminal = Terminal::start(&command, 80);
        // The connection stays open without an answer.
        let _connection = hub.accept().unwrap();
        check_interrupt(terminal, &words, 130);
    }
}

/// Compiles a model whose greedy answers take a long time.
fn long_model(home: &Home) {
    let mut gguf = tiny_llama(7);
    gguf.set("llama.context_length", Meta::U32(32_768));
    fs::write(home.path("long.gguf"), gguf.to_bytes()).unwrap();
    home.run(&mut home.command(&["compile", "long.gguf", "--scheme", "f32", "--calibrate", "none"]));
}

#[test]
fn work_stops_at_ctrl_c() {
    let home = Home::new();
    let texts = "w1 w2 w3 w4 w5 w6 w7 w8 ".repeat(40_000 / 8);
    let texts: Vec<&str> = texts.split_whitespace().collect();
    let check = |words: &[&str], text: &str, code| {
        let mut terminal = Terminal::start(&home.command(words), 80);
        terminal.wait_for(text);
        check_interrupt(terminal, words, code);
    };
    check(&[&["embed", "-m", "tiny"], &texts[..]].concat(), "]", 130);
    let bench = "bench -m genai-dml --rounds 1000000 --prompt-tokens 8 --generate-tokens 4";
    check(&bench.split(' ').collect::<Vec<_>>(), "Measuring", 130);
    check(&bench.split(' ').chain(["--devices", "cpu"]).collect::<Vec<_>>(), "Measuring", 130);
    check(&["serve", "--port", "0", "-m", "tiny"], "listening on", 0);
    verify_stops(&home);
}

/// Checks `verify` over a file that takes long to read: a hole, of the size that the manifest states.
fn verify_stops(home: &Home) {
    const HOLE: u64 = 64 << 30;
    let package = home.path("store/packages/masked/f32");
    let manifest = package.join("manifest.json");
    let mut keys: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    keys["files"]["model.onnx.data"]["bytes"] = HOLE.into();
    // The digest is that of the manifest before.
    keys["digest"] = Value::Null;
    fs::write(&manifest, keys.to_string()).unwrap();
    File::options().write(true).open(package.join("model.onnx.data")).unwrap().set_len(HOLE).unwrap();
    let words = ["verify", "masked"];
    let mut terminal = Terminal::start(&home.command(&words), 80);
    terminal.wait_for("Verifying");
    check_interrupt(terminal, &words, 130);
}

/// Writes a checkpoint with so many layers that a compile takes longer than a test waits.
fn deep_checkpoint(home: &Home) {
    const LAYERS: usize = 1024;
    let mut gguf = tiny_llama(7);
    gguf.set("llama.block_count", Meta::U32(LAYERS as u32));
    let last: Vec<GgufTensor> =
        gguf.tensors.iter().filter(|tensor| tensor.name.starts_with("blk.1.")).cloned().collect();
    for layer in 2..LAYERS {
        gguf.tensors.extend(last.iter().map(|tensor| GgufTensor {
            name: tensor.name.replacen("blk.1.", &format!("blk.{layer}."), 1),
            ..tensor.clone()
        }));
    }
    fs::write(home.path("deep.gguf"), gguf.to_bytes()).unwrap();
}

#[test]
fn a_compile_stops_at_ctrl_c() {
    let home = Home::new();
    deep_checkpoint(&home);
    let words = ["compile", "deep.gguf", "--scheme", "w4", "--calibrate", "none"];
    let mut terminal = Terminal::start(&home.command(&words), 80);
    terminal.wait_for("Compiling local/deep in w4");
    terminal.wait_for("Compiling local/deep");
    check_interrupt(terminal, &words, 130);
    assert!(
        !home.path("store/packages/local--deep").exists(),
        "an interrupted compile leaves nothing behind"
    );
}

#[test]
fn a_conversation_goes_on_after_every_ctrl_c() {
    let home = Home::new();
    long_model(&home);
    let words = ["run", "local/long", "--max-tokens", "30000", "--temperature", "0"];
    let mut terminal = Terminal::start(&home.command(&words), 80);
    terminal.wait_for(PROMPT);
    // The second Ctrl-C comes within the grace of the first.
    for _ in 0..3 {
        terminal.press("the cat\r");
        terminal.wait_for(ENTERED);
        terminal.wait_for_more(40);
        terminal.press("\x03");
        terminal.wait_for(PROMPT);
    }
    terminal.press(CTRL_D);
    assert_eq!(terminal.end(), 0);
    let screen = terminal.screen();
    assert_eq!(screen.matches("tokens · stopped").count(), 3, "an answer was not interrupted: {screen}");
    for command in ["chat", "complete"] {
        let words = [command, "-m", "local/long", "--max-tokens", "30000", "--temperature", "0", "the cat"];
        let mut terminal = Terminal::start(&home.command(&words), 80);
        terminal.wait_for_more(40);
        check_interrupt(terminal, &words, 130);
    }
}

#[test]
fn typed_input_is_left_at_ctrl_c() {
    let home = Home::new();
    for words in [
        "complete -m genai-dml",
        "embed -m tiny",
        "rerank -m reranker w1",
        "answer -m answers w1 --context -",
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let mut terminal = Terminal::start(&home.command(&words), 80);
        terminal.wait_for("then press Ctrl-D on an empty line.");
        terminal.press("w1 w2\rw3");
        check_interrupt(terminal, &words, 130);
    }
    // The end of the input begins the work instead.
    let mut terminal = Terminal::start(&home.command(&["embed", "-m", "tiny"]), 80);
    terminal.wait_for("Type the texts, one per line, then press Ctrl-D on an empty line.");
    terminal.press("w1\rw2\r\x04");
    assert_eq!(terminal.end(), 0);
    let screen = terminal.screen();
    assert_eq!(screen.lines().filter(|line| line.starts_with('[')).count(), 2, "{screen}");
}

#[test]
fn an_mcp_server_ends_at_ctrl_c() {
    let home = Home::new();
    let mut terminal = Terminal::start(&home.command(&["mcp"]), 80);
    terminal.wait_for("Ctrl-C stops it.");
    check_interrupt(terminal, &["mcp"], 0);
}

#[test]
fn a_plan_of_a_folder_ends_at_ctrl_c() {
    let home = Home::new();
    // So many layers take longer than the test waits.
    let config = r#"{
        "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672,
        "num_hidden_layers": 900, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 131072, "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 500000.0
    }"#;
    fs::create_dir(home.path("large")).unwrap();
    fs::write(home.path("large/config.json"), config).unwrap();
    let words = ["plan", "./large"];
    let terminal = Terminal::start(&home.command(&words), 80);
    terminal.wait_until_interruptible();
    check_interrupt(terminal, &words, 130);
}

/// Agent that shows the server's address, and ends at the second Ctrl-C.
const AGENT: &str = r#"
import os, signal, time
def first(*_):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    print("caught", flush=True)
signal.signal(signal.SIGINT, first)
print("server at " + os.environ["AIDER_OPENAI_API_BASE"].split("/")[2] + ";", flush=True)
while True:
    time.sleep(60)
"#;

#[test]
fn an_agent_receives_ctrl_c_and_its_server_ends_with_it() {
    let home = Home::new();
    home.add_program("aider", AGENT);
    let words = ["launch", "aider", "--model", "genai-dml"];
    let mut terminal = Terminal::start(&home.command(&words), 80);
    terminal.wait_for("server at ");
    terminal.wait_for(";\r\n");
    let (_, address) = terminal.written().rsplit_once("server at ").unwrap();
    let address = address.trim_end().trim_end_matches(';').to_owned();
    assert!(TcpStream::connect(&address).is_ok(), "no server listens on {address}");
    terminal.press("\x03");
    terminal.wait_for("caught");
    assert!(TcpStream::connect(&address).is_ok(), "Ctrl-C reached the server of the agent");
    check_interrupt(terminal, &words, 130);
    assert!(TcpStream::connect(&address).is_err(), "the server still listens on {address}");
}
