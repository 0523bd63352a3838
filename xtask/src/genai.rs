//! `cargo xtask genai`: runs exports of `narthex export` in onnxruntime-genai, which must complete prompts with the
//! same texts as Narthex.
//!
//! `conformance/export/genai.py` queries both sides and compares. This module prepares its Python environment and
//! exports the model in every scheme. Both are kept under `target/genai`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use xtask_tools::{
    process,
    python::VirtualEnvironment,
    record::{self, RecordArgs},
    session::Session,
    terminal,
    workspace::Workspace,
};

use crate::test;

/// Exact versions of the libraries.
const LIBRARIES: [&str; 3] = ["onnxruntime-genai==0.18.0", "onnxruntime==1.31.1", "tokenizers==0.23.3"];

/// Script that compares both sides, relative to the root.
const SCRIPT: &str = "conformance/export/genai.py";

const MODEL: &str = "smollm2:135m";

const SCHEMES: [&str; 3] = ["w8", "w4", "f32"];

const PROMPTS: [&str; 2] = ["The capital of France is", "The three primary colours are"];

/// Exports the model in every scheme and completes every prompt on both sides. Fails if their texts differ.
pub(crate) fn run(workspace: &Workspace, args: RecordArgs) -> anyhow::Result<()> {
    let (commit, session) = test::prepare(workspace)?;
    let narthex = session.build_narthex()?;
    let folder = workspace.target.join("genai");
    let environment = VirtualEnvironment::prepare(&session, &folder)?;
    environment.install(&session, "genai", &LIBRARIES)?;
    let mut findings = Vec::new();
    for scheme in SCHEMES {
        let export = export(&session, &narthex, scheme, &folder)?;
        for prompt in PROMPTS {
            let mut script = session.command(&environment.python);
            script
                .args([SCRIPT, &format!("{MODEL}@{scheme}")])
                .arg(&export)
                .arg(prompt)
                .env("NARTHEX", &narthex);
            process::each_line(&mut script, |line| {
                terminal::line(line);
                findings.extend(finding(line, prompt));
            })?;
        }
    }
    ensure!(findings.len() >= SCHEMES.len() * PROMPTS.len(), "{SCRIPT} printed no line of {MODEL}");
    if args.record {
        record::write(workspace, record::CONFORMANCE, "genai", &report(&commit, &findings))?;
    }
    terminal::line("genai: every text is the same");
    Ok(())
}

/// Exports the model in a scheme and returns the folder for onnxruntime-genai.
fn export(session: &Session<'_>, narthex: &Path, scheme: &str, folder: &Path) -> anyhow::Result<PathBuf> {
    let out = folder.join(scheme);
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| out.display().to_string())?;
    }
    // Generating a token compiles the model if the store does not have it in this scheme.
    let ask = [
        "chat",
        "--quiet",
        "--model",
        MODEL,
        "--scheme",
        scheme,
        "--max-tokens",
        "1",
        "--temperature",
        "0",
        "Hello",
    ];
    process::run(session.command(narthex).args(ask))?;
    process::run(session.command(narthex).args(["export", &format!("{MODEL}@{scheme}")]).arg(&out))?;
    Ok(out)
}

/// Returns the finding in a line of the script's output: the numbers of tokens read and written, or a note that the
/// library's tokens of the prompt differ.
fn finding(line: &str, prompt: &str) -> Option<String> {
    let is_finding = line.starts_with(MODEL) || line.trim_start().starts_with("note: ");
    is_finding.then(|| format!("{prompt:?}: {}", line.trim()))
}

fn report(commit: &str, findings: &[String]) -> String {
    let list = record::list(findings);
    format!(
        "# Exports in onnxruntime-genai, {}\n\nCommit {commit}; {}; {}, CPU. The model was exported in each scheme with \
         `narthex export`, loaded from there by onnxruntime-genai, and completed each prompt greedily as Narthex did over its \
         API (`cargo xtask genai`). All texts are the same.\n\n{list}",
        record::today(),
        LIBRARIES.join(", "),
        record::platform(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_recognised() {
        let check = |line: &str, expect: Option<&str>| {
            assert_eq!(finding(line, "Why").as_deref(), expect, "{line}");
        };
        check("smollm2:135m@w8: 5 tokens read", Some("\"Why\": smollm2:135m@w8: 5 tokens read"));
        check("  note: its own tokenizer gives [1]", Some("\"Why\": note: its own tokenizer gives [1]"));
        check("  Narthex:           ' Paris'", None);
        check("  the same", None);
    }
}
