//! `cargo xtask genai`: what `narthex export` writes, in onnxruntime-genai, which must complete prompts as Narthex does.
//!
//! What is asked and compared stands in `conformance/export/genai.py`; here is only what it needs: a Python environment with
//! the pinned library, and a model exported in every scheme. Both stay under `target/genai`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};

use crate::{
    stamp::{self, Keep},
    terminal,
    test::{
        self,
        session::{self, Session},
        tools,
    },
    workspace::Workspace,
};

/// The libraries' exact versions.
const LIBRARIES: [&str; 3] = ["onnxruntime-genai==0.18.0", "onnxruntime==1.31.1", "tokenizers==0.23.3"];

/// What asks both sides, relative to the root.
const SCRIPT: &str = "conformance/export/genai.py";

const MODEL: &str = "smollm2:135m";

const SCHEMES: [&str; 3] = ["w8", "w4", "f32"];

const PROMPTS: [&str; 2] = ["The capital of France is", "The three primary colours are"];

/// Exports the model in every scheme and has both sides complete every prompt; fails where their texts differ.
pub(crate) fn run(workspace: &Workspace, keep: Keep) -> anyhow::Result<()> {
    let (commit, session) = test::prepared(workspace)?;
    let narthex = session.build_narthex()?;
    let folder = workspace.target.join("genai");
    let python = tools::environment(&session, &folder, &LIBRARIES)?;
    let mut findings = Vec::new();
    for scheme in SCHEMES {
        let export = export(&session, &narthex, (scheme, &folder))?;
        for prompt in PROMPTS {
            let mut script = session.command(&python);
            script
                .args([SCRIPT, &format!("{MODEL}@{scheme}")])
                .arg(&export)
                .arg(prompt)
                .env("NARTHEX", &narthex);
            session::each_line(&mut script, |line| {
                terminal::line(line);
                findings.extend(finding(line, prompt));
            })?;
        }
    }
    ensure!(findings.len() >= SCHEMES.len() * PROMPTS.len(), "{SCRIPT} printed no line of {MODEL}");
    if keep == Keep::Record {
        stamp::keep(workspace, stamp::CONFORMANCE, "genai", &report(&commit, &findings))?;
    }
    terminal::line("genai: every text is the same");
    Ok(())
}

/// The model in a scheme, as a folder of onnxruntime-genai.
fn export(session: &Session<'_>, narthex: &Path, (scheme, folder): (&str, &Path)) -> anyhow::Result<PathBuf> {
    let out = folder.join(scheme);
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| out.display().to_string())?;
    }
    // An answer of one token compiles the model where the store lacks it in this scheme.
    let ask = ["chat", "--quiet", "--model", MODEL, "--scheme", scheme, "--max-tokens", "1", "Hello"];
    session::run(session.command(narthex).args(ask))?;
    session::run(session.command(narthex).args(["export", &format!("{MODEL}@{scheme}")]).arg(&out))?;
    Ok(out)
}

/// What is kept of a line that the script prints: how many tokens were read and written, and where the libraries make other
/// tokens of the prompt.
fn finding(line: &str, prompt: &str) -> Option<String> {
    let kept = line.starts_with(MODEL) || line.trim_start().starts_with("note: ");
    kept.then(|| format!("{prompt:?}: {}", line.trim()))
}

fn report(commit: &str, findings: &[String]) -> String {
    let list = stamp::list(findings);
    format!(
        "# Exports in onnxruntime-genai, {}\n\nCommit {commit}; {}; {}, CPU. The model was exported in each scheme with \
         `narthex export`, loaded from there by onnxruntime-genai, and completed each prompt greedily as Narthex did over its \
         API (`cargo xtask genai`). All texts are the same.\n\n{list}",
        stamp::today(),
        LIBRARIES.join(", "),
        stamp::platform(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_told_from_texts() {
        let check = |line: &str, expect: Option<&str>| {
            assert_eq!(finding(line, "Why").as_deref(), expect, "{line}");
        };
        check("smollm2:135m@w8: 5 tokens read", Some("\"Why\": smollm2:135m@w8: 5 tokens read"));
        check("  note: its own tokenizer gives [1]", Some("\"Why\": note: its own tokenizer gives [1]"));
        check("  Narthex:           ' Paris'", None);
        check("  the same", None);
    }
}
