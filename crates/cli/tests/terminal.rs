//! Every command as a user sees it: in terminals of 80 and 200 columns, through pipes and as JSON.
//!
//! [`cases`] lists the commands. Models are tiny imports, so that a start takes a fraction of a second.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod support;

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use support::{
    home::Home,
    offline,
    terminal::{CTRL_D, PROMPT, Terminal},
};

/// Maximum time from Ctrl-C to the end of the program.
const STOP: Duration = Duration::from_millis(1500);

/// One command line.
struct Case {
    /// The command with its subcommand, as in `key add`.
    command: &'static str,
    arguments: &'static str,
    /// Name of the case, if the command has several.
    name: &'static str,
    /// Exit code.
    code: i32,
    /// Texts that are waited for in a terminal, with the keys that follow.
    typed: &'static [(&'static str, &'static str)],
    /// Part of the output that is the same on every machine.
    shown: Shown,
    /// Lines that are wider than a terminal, because programs read them.
    wide: Wide,
    /// Output with `--json`.
    json: Json,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    All,
    /// Numbers are measured or belong to a release.
    WithoutNumbers,
    /// A measurement, without the names of the processor and the energy counter.
    Measurement,
    /// The line below an answer, which is random.
    AnswerLine,
    /// The text without the numbers of a vector.
    Vector,
    /// Each line up to its colon: what follows depends on the machine.
    Subjects,
    /// The text before "this machine".
    BeforeThisMachine,
    /// The header of the catalogue's table, and the name, the kind and the state of a model.
    Catalogue,
    /// The first lines of a long text.
    FirstLines,
    /// The text without the secret of a key.
    Key,
    /// The start of a server, without its port and the devices of the machine.
    ServerStart,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wide {
    None,
    Data,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Json {
    None,
    Same,
}

impl Case {
    const fn new(command: &'static str, arguments: &'static str) -> Self {
        let (typed, shown, wide, json) = (&[], Shown::All, Wide::None, Json::None);
        Self { command, arguments, name: "", code: 0, typed, shown, wide, json }
    }

    const fn json(command: &'static str, arguments: &'static str) -> Self {
        Self { json: Json::Same, ..Self::new(command, arguments) }
    }

    /// A command that is refused with this exit code.
    const fn refused(command: &'static str, arguments: &'static str, code: i32) -> Self {
        Self { code, ..Self::new(command, arguments) }
    }

    const fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    const fn shown(self, shown: Shown) -> Self {
        Self { shown, ..self }
    }

    const fn wide(self) -> Self {
        Self { wide: Wide::Data, ..self }
    }

    const fn typed(self, typed: &'static [(&'static str, &'static str)]) -> Self {
        Self { typed, ..self }
    }

    /// Returns the name of the snapshot.
    fn snapshot(&self) -> String {
        match (self.command, self.name) {
            ("", _) => "welcome".to_owned(),
            (command, "") => command.replace(' ', "-"),
            (command, name) => format!("{}-{name}", command.replace(' ', "-")),
        }
    }

    fn words(&self) -> Vec<&'static str> {
        self.command.split(' ').chain(self.arguments.split(' ')).filter(|word| !word.is_empty()).collect()
    }
}

/// Returns the command lines. Commands that need the network are refused.
fn cases() -> Vec<Case> {
    vec![
        Case::new("", ""),
        Case::new("run", "genai-dml").typed(&[(PROMPT, "/help\r"), (PROMPT, CTRL_D)]),
        Case::new("chat", "-m genai-dml the --max-tokens 4").shown(Shown::AnswerLine),
        Case::new("complete", "the --max-tokens 4").shown(Shown::AnswerLine),
        Case::json("embed", "-m tiny w1").shown(Shown::Vector).wide(),
        Case::json("rerank", "-m reranker w1 w2 w3"),
        Case::json("classify", "-m reranker w1 w2"),
        Case::json("decide", "-m genai-dml w1 --context context.txt"),
        Case::json("answer", "-m answers w1 --context context.txt"),
        Case::json("fill", "-m masked w1[MASK] --top-k 1"),
        Case::refused("serve", "--model no-such-model", 3),
        Case::new("mcp", "").typed(&[("", CTRL_D)]),
        Case::new("launch", "aider --model genai-dml --print").wide(),
        Case::new("service install", "--print").wide(),
        Case::refused("service status", "", 3),
        Case::refused("service uninstall", "", 3),
        Case::refused("pull", "smollm2:135m", 4),
        Case::json("list", ""),
        Case::new("list", "--available").named("available").shown(Shown::Catalogue),
        Case::json("show", "tiny"),
        Case::refused("rm", "no-such-model", 3),
        Case::json("df", "").shown(Shown::WithoutNumbers),
        Case::new("prune", ""),
        Case::json("verify", "tiny"),
        Case::json("ps", ""),
        Case::json("top", "--once"),
        Case::refused("load", "no-such-model", 3),
        Case::new("stop", ""),
        Case::refused("create", "pirate --from no-such-model", 3),
        Case::refused("config check", "context.txt", 9),
        Case::new("config show", "").wide(),
        Case::new("config path", "").wide(),
        Case::new("config reload", ""),
        Case::refused("config edit", "--config context.txt/narthex.toml", 1),
        Case::refused("transcribe", "no-such.wav", 3),
        Case::refused("say", "Hello. -o hello.wav", 4),
        Case::new("compile", "tiny.gguf --scheme f32 --calibrate none").shown(Shown::WithoutNumbers),
        Case::new("compare", "masked masked --skip-speed").shown(Shown::Measurement),
        Case::json("plan", "gemma3n:e2b").shown(Shown::BeforeThisMachine),
        Case::new("import", "sentence --name tiny --file onnx/model.onnx").shown(Shown::WithoutNumbers),
        Case::refused("export", "genai-dml out", 10),
        Case { code: 8, ..Case::json("check", "masked/model.onnx") },
        Case::json("doctor", "").shown(Shown::Subjects),
        Case::json("bench", "-m genai-dml --devices cpu --rounds 1 --prompt-tokens 8 --generate-tokens 4")
            .shown(Shown::Measurement),
        Case::refused("runtime install", "", 4).shown(Shown::WithoutNumbers),
        Case::json("runtime list", "").shown(Shown::WithoutNumbers),
        Case::refused("runtime rm", "toaster", 2),
        Case::refused("key add", "boss@ --admin", 2),
        Case::json("key list", ""),
        Case::refused("key rm", "nobody", 3),
        Case::refused("completions", "cmd", 2),
        Case::new("completions", "bash").named("bash").shown(Shown::FirstLines).wide(),
        Case::new("man", "man"),
    ]
}

/// Replaces the folder and the program.
fn without_paths(home: &Home, text: &str) -> String {
    let text = text.replace(home.path("").to_str().unwrap().trim_end_matches('/'), "/home");
    text.replace(env!("CARGO_BIN_EXE_narthex"), "/bin/narthex")
}

/// Returns output without what depends on the folder and the version.
fn masked(home: &Home, shown: Shown, text: &str) -> String {
    let text = without_paths(home, text).replace(env!("CARGO_PKG_VERSION"), "VERSION");
    match shown {
        Shown::All => text,
        Shown::WithoutNumbers => without_numbers(&text),
        Shown::Measurement => measurement(&text),
        Shown::AnswerLine => answer_line(&text),
        Shown::Vector => vector(&text),
        Shown::Subjects => subjects(&text),
        Shown::BeforeThisMachine => text.split("\nthis machine").next().unwrap().to_owned(),
        Shown::Catalogue => catalogue(&text),
        Shown::FirstLines => text.lines().take(11).collect::<Vec<_>>().join("\n"),
        Shown::Key => without_key(&text),
        Shown::ServerStart => server_start(&text),
    }
}

/// Replaces numbers with `N`, and the space that depends on their lengths with one space.
fn without_numbers(text: &str) -> String {
    let number = |word: &str| {
        let digits = word.trim_matches(|c: char| "()[],:".contains(c));
        let is_number = digits.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit())
            && digits.chars().all(|c| c.is_ascii_digit() || "-.,e".contains(c));
        if is_number { word.replace(digits, "N") } else { word.to_owned() }
    };
    let line = |line: &str| line.split_whitespace().map(number).collect::<Vec<_>>().join(" ");
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the lines of a measurement up to the name of the processor or the energy counter.
fn measurement(text: &str) -> String {
    let line = |line: &str| {
        line.split(" threads of ").next().unwrap().split(" · medians").next().unwrap().to_owned()
    };
    let lines = without_numbers(text);
    // The widths of the figures decide where the head of the table is broken.
    let varies = ["DEVICE", "TOKEN MS", "T/S", "prompts of", "no energy", "energy of", "ONNX Runtime"];
    let lines = lines.lines().filter(|line| varies.iter().all(|start| !line.starts_with(start)));
    lines.map(line).collect::<Vec<_>>().join("\n")
}

/// Returns what follows an answer as one line.
fn answer_line(text: &str) -> String {
    let line = text.rfind("genai-dml (w4)").map_or(text, |at| &text[at..]);
    without_numbers(&line.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Replaces the numbers of a vector.
fn vector(text: &str) -> String {
    match (text.find('['), text.find(']')) {
        (Some(from), Some(to)) => format!("{}[…{}", &text[..from], &text[to..]),
        _ => text.to_owned(),
    }
}

/// Returns the subject of each finding.
fn subjects(text: &str) -> String {
    let subject = |line: &str| Some(line.get(6..)?.split(": ").next()?.to_owned());
    let is_finding = |line: &&str| ["ok  ", "note", "FIX "].iter().any(|mark| line.starts_with(mark));
    let findings = text.lines().filter(is_finding);
    findings.filter_map(subject).collect::<Vec<_>>().join("\n")
}

/// Returns the header of the catalogue's table, and the name, the kind and the state of a model, which do not depend on
/// the machine.
fn catalogue(text: &str) -> String {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    // The table of the first choices depends on the machine.
    let header =
        text.lines().map(words).find(|row| row.iter().any(|word| word == "KIND")).unwrap_or_default();
    let row = text.lines().map(words).find(|row| row.first().is_some_and(|name| name == "smollm2:135m"));
    let row = row.unwrap_or_else(|| panic!("no row of smollm2:135m:\n{text}"));
    format!("{}\n{} {} … {}", header.join(" "), row[0], row[1], row[row.len() - 1])
}

/// Replaces the secret of a key, which is the only long word.
fn without_key(text: &str) -> String {
    let secret = text.split_whitespace().find(|word| word.len() > 30);
    let secret = secret.unwrap_or_else(|| panic!("no key was shown:\n{text}"));
    text.replace(secret, "KEY")
}

/// Replaces the port of a server and the devices of the machine.
fn server_start(text: &str) -> String {
    let line = |line: &str| match line.split_once("//127.0.0.1:") {
        _ if line.starts_with("devices: ") => "devices: …".to_owned(),
        Some((before, after)) => {
            format!("{before}//127.0.0.1:PORT{}", after.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        None => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the keys of a JSON value with the types of their values. An array has the type of its first element.
fn shape(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(items) => format!("[{}]", items.first().map(shape).unwrap_or_default()),
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name}: {}", shape(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
    }
}

/// Fails if a text for users has the path of a Rust module.
fn check_no_modules(text: &str) {
    for (at, _) in text.match_indices("narthex_") {
        let rest = text[at..].trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
        assert!(!rest.starts_with("::"), "a module path is shown:\n{text}");
    }
}

/// Returns what a terminal shows after a command.
fn in_terminal(home: &Home, case: &Case, columns: u16) -> String {
    let mut terminal = Terminal::start(&home.command(&case.words()), columns);
    for (text, keys) in case.typed {
        terminal.wait_for(text);
        terminal.press(keys);
    }
    let code = terminal.end();
    let screen = match case.wide {
        // The terminal breaks the lines, and must not break them inside a path of this machine.
        Wide::Data => terminal.screen_with(|text| without_paths(home, text)),
        Wide::None => terminal.screen(),
    };
    assert_eq!(code, case.code, "{:?}\n{screen}", case.words());
    let mut wide = terminal.wide_lines();
    // A command stays whole, so that it can be copied.
    wide.retain(|line| !line.starts_with("narthex "));
    assert!(case.wide == Wide::Data || wide.is_empty(), "{:?} at {columns}: {wide:#?}", case.words());
    check_no_modules(&screen);
    screen
}

/// Returns what a command writes to pipes.
fn piped(home: &Home, case: &Case) -> String {
    let output = home.command(&case.words()).output().unwrap();
    let [out, error] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let ended_by_pipe = case.words() == ["run", "genai-dml"];
    let code = if ended_by_pipe { 2 } else { case.code };
    assert_eq!(output.status.code(), Some(code), "{:?}\n{out}\n{error}", case.words());
    check_no_modules(&error);
    for text in [&out, &error] {
        assert!(!text.contains('\x1b'), "{:?}: a pipe gets no escape sequences: {text:?}", case.words());
    }
    format!("{out}--- standard error\n{error}")
}

/// Returns the keys of the JSON of a command.
fn json_shape(home: &Home, case: &Case) -> String {
    let output = home.command(&[&case.words()[..], &["--json"]].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(case.code), "{}", String::from_utf8_lossy(&output.stderr));
    let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{:?}: {error}: {}", case.words(), String::from_utf8_lossy(&output.stdout))
    });
    shape(&value)
}

#[test]
fn every_command_is_listed() {
    let home = tempfile::tempdir().unwrap();
    let pages = home.path().join("pages");
    assert!(offline(home.path(), &["man", pages.to_str().unwrap()]).status().unwrap().success());
    let pages: BTreeSet<String> = fs::read_dir(pages)
        .unwrap()
        .map(|page| page.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let has_page_below = |page: &String| pages.iter().any(|other| other.starts_with(&format!("{page}-")));
    let commands: BTreeSet<String> = pages.iter().filter(|page| !has_page_below(page)).cloned().collect();
    let page = |case: Case| format!("narthex-{}", case.command.replace(' ', "-"));
    let listed: BTreeSet<String> =
        cases().into_iter().filter(|case| !case.command.is_empty()).map(page).collect();
    assert_eq!(listed, commands, "every command has a case in this file");
    for page in &pages {
        let words = page.trim_start_matches("narthex").replace('-', " ");
        let words: Vec<&str> = words.split_whitespace().chain(["--help"]).collect();
        let mut terminal = Terminal::start(&offline(home.path(), &words), 80);
        assert_eq!(terminal.end(), 0);
        assert_eq!(terminal.wide_lines(), Vec::<String>::new(), "{words:?}");
        check_no_modules(&terminal.screen());
    }
}

#[test]
fn every_command_looks_as_it_should() {
    let home = Home::new();
    for case in cases() {
        let terminals = [80, 200].map(|columns| in_terminal(&home, &case, columns));
        let mut text = page(&home, &case, terminals, &piped(&home, &case));
        if case.json == Json::Same {
            write!(text, "\n=== json\n{}", json_shape(&home, &case)).unwrap();
        }
        insta::assert_snapshot!(case.snapshot(), text);
    }
}

/// Returns a command with its output in narrow and wide terminals and to pipes.
fn page(home: &Home, case: &Case, terminals: [String; 2], pipes: &str) -> String {
    let [narrow, wide] = terminals.map(|screen| masked(home, case.shown, &screen));
    let wide = if wide == narrow { "the same".to_owned() } else { wide };
    let pipes = masked(home, case.shown, pipes);
    format!(
        "$ narthex {}\n\n=== 80 columns\n{narrow}\n\n=== 200 columns\n{wide}\n\n=== pipes\n{pipes}",
        case.words().join(" ")
    )
}

#[test]
fn a_new_key_is_shown_once() {
    let home = Home::new();
    let arguments = "app --model tiny --requests-per-minute 60";
    let case = Case::new("key add", arguments).named("app").shown(Shown::Key);
    let remove = || home.run(&mut home.command(&["key", "rm", "app"]));
    let terminals = [80, 200].map(|columns| {
        let screen = in_terminal(&home, &case, columns);
        remove();
        screen
    });
    insta::assert_snapshot!(case.snapshot(), page(&home, &case, terminals, &piped(&home, &case)));
}

/// End of the last line at the start of a server.
const LISTENING: &str = "(OpenAI API under /v1)";

#[test]
fn a_server_states_its_models_and_access_rules() {
    let home = Home::new();
    let case = Case::new("serve", "--port 0 -m tiny").named("start").shown(Shown::ServerStart);
    let stopped = Case { typed: &[("(OpenAI API under /v1)\r\n", "\x03")], ..case };
    let terminals = [80, 200].map(|columns| in_terminal(&home, &stopped, columns));
    let mut command = home.command(&stopped.words());
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut error = BufReader::new(server.stderr.take().unwrap());
    let mut log = String::new();
    while !log.trim_end().ends_with(LISTENING) {
        assert!(error.read_line(&mut log).unwrap() > 0, "the server ended: {log}");
    }
    let stop = Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap();
    error.read_to_string(&mut log).unwrap();
    let mut out = String::new();
    server.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(stop.success() && server.wait().unwrap().success(), "{log}");
    let pipes = format!("{out}--- standard error\n{log}");
    insta::assert_snapshot!(stopped.snapshot(), page(&home, &stopped, terminals, &pipes));
}

#[test]
fn a_benchmark_reports_json() {
    let home = Home::new();
    let words = "bench -m genai-dml --rounds 1 --prompt-tokens 8 --generate-tokens 4 --json";
    let bench = |more: &[&str]| -> Value {
        let words: Vec<&str> = words.split(' ').chain(more.iter().copied()).collect();
        serde_json::from_slice(&home.command(&words).output().unwrap().stdout).unwrap()
    };
    assert!(bench(&["--engine-only"])["gateway"].is_null());
    let report = bench(&[]);
    assert!(report["gateway"].is_object());
    insta::assert_snapshot!("bench-json", shape(&report));
    assert_eq!((&report["rounds"], &report["model"]), (&1.into(), &"genai-dml".into()));
    assert!(report["decode_tokens_per_second"]["median"].as_f64().unwrap() > 0.0);
    let output = home.command(&["embed", "-m", "tiny", "w1", "w2 w3", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let texts: Vec<&Value> =
        report["embeddings"].as_array().unwrap().iter().map(|item| &item["text"]).collect();
    assert_eq!(texts, ["w1", "w2 w3"]);
    assert_eq!(report["embeddings"][1]["embedding"].as_array().unwrap().len(), 16);
    assert!(report["prompt_tokens"].as_u64().unwrap() > 2);
    // Without -v, the log has the device of a load once.
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.ends_with("…\ntiny: runs on the CPU\n") && error.matches("runs on").count() == 1,
        "{error}"
    );
}

#[test]
fn a_conversation_takes_several_lines_and_keeps_its_history() {
    let home = Home::new();
    let talk = |lines: &[&str]| {
        let command = home.command(&["run", "genai-dml", "--max-tokens", "2", "--temperature", "0"]);
        let mut terminal = Terminal::start(&command, 80);
        for keys in lines.iter().chain([&CTRL_D]) {
            terminal.wait_for(PROMPT);
            terminal.press(keys);
        }
        assert_eq!(terminal.end(), 0);
        terminal.screen()
    };
    let screen = talk(&["\"\"\"w1\rw2\"\"\"\r", "/regenerate\r", "/save talk.json\r", "/set seed 5\r"]);
    assert!(screen.contains("2 messages are in talk.json") && screen.contains("tokens/s"), "{screen}");
    let saved: Value = serde_json::from_slice(&fs::read(home.path("talk.json")).unwrap()).unwrap();
    assert_eq!(
        (&saved["messages"][0]["content"], &saved["model"]),
        (&"w1\nw2".into(), &"genai-dml@w4".into())
    );
    // The key for the line before, in another process.
    let screen = talk(&["\x1b[A\r", "/load talk.json\r", "/show\r", "/set warmth 1\r"]);
    for expect in
        ["seed              5", "2 messages from talk.json", "messages     2", "expected one of temperature"]
    {
        assert!(screen.contains(expect), "{expect}: {screen}");
    }
}

#[test]
fn a_conversation_uses_the_models_of_a_running_server() {
    let home = Home::new();
    let mut server = support::serve(&mut home.command(&["serve", "--port", "0"]));
    home.run(&mut home.command(&["load", "genai-dml"]));
    let mut terminal = Terminal::start(&home.command(&["run", "genai-dml", "--max-tokens", "2"]), 80);
    for keys in ["/model genai-dml@w4\r", "w1\r", CTRL_D] {
        terminal.wait_for(PROMPT);
        terminal.press(keys);
    }
    assert_eq!(terminal.end(), 0);
    let screen = terminal.screen();
    let uses = screen.matches("genai-dml is ready, in the memory of a running").count();
    assert!(uses == 2 && screen.contains("tokens/s"), "{screen}");
    server.process.kill().unwrap();
    server.process.wait().unwrap();
}

#[test]
fn a_removal_is_confirmed() {
    let home = Home::new();
    let is_installed = |name: &str| home.path("store/packages").join(name).exists();
    let answer = |keys: &str| {
        let mut terminal = Terminal::start(&home.command(&["rm", "masked"]), 80);
        terminal.wait_for("Remove masked (f32), ");
        terminal.wait_for("? [y/N] ");
        terminal.press(keys);
        let began = Instant::now();
        let code = terminal.end();
        assert!(began.elapsed() < STOP, "{:?}", began.elapsed());
        (code, terminal.screen())
    };
    for keys in ["n\r", "\r", "maybe\r", CTRL_D] {
        let (code, screen) = answer(keys);
        assert!(code == 0 && screen.contains("nothing was removed"), "{keys:?}: {code} {screen}");
        assert!(is_installed("masked"));
    }
    let (code, screen) = answer("\x03");
    assert!(code == 130 && is_installed("masked") && !screen.contains("removed"), "{code} {screen}");
    let (code, screen) = answer("y\r");
    assert!(code == 0 && screen.contains("removed masked (f32), freed "), "{code} {screen}");
    assert!(!is_installed("masked") && is_installed("tiny"));
}
