//! Checks of text files: hosts of registries, broken links, and crates that the documents do not mention.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use xtask_workspace::workspace::{Package, relative};

use crate::finding::{Finding, Rule};

/// Hosts of package registries and model hubs. Narthex connects to them only through the tools and settings of the
/// user.
const HOSTS: &[&str] =
    &["huggingface.co", "hf.co", "pypi.org", "pythonhosted.org", "modelscope.cn", "crates.io", "npmjs.com"];

/// Files that may name them: the hub's default endpoint, and the list above.
const MAY_NAME_HOSTS: &[&str] = &["crates/catalog/src/source/hub.rs", "xtask/tidy/src/documents.rs"];

/// Extensions of the files that are checked.
const ENDINGS: &[&str] = &["rs", "toml", "md", "py", "sh", "yml", "yaml"];

/// Folders that are not part of the project's text.
const SKIPPED: &[&str] = &[".git", ".venv", "__pycache__", "artifacts", "corpus", "node_modules", "target"];

/// Documents that must mention every crate.
const MAPS: &[&str] = &["ARCHITECTURE.md"];

/// A text file.
#[derive(Debug)]
pub(crate) struct Document {
    /// Path relative to the root, with forward slashes.
    pub(crate) path: String,
    /// Its contents.
    pub(crate) text: String,
}

/// Reads every text file of the project, in order of path.
pub(crate) fn read_all(root: &Path) -> anyhow::Result<Vec<Document>> {
    let mut files = Vec::new();
    collect(root, &mut files)?;
    files.sort();
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Ok(Document { path: relative(path, root), text })
    };
    files.iter().map(read).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let (name, kind) = (name.to_string_lossy(), entry.file_type()?);
        if kind.is_dir() && !SKIPPED.contains(&name.as_ref()) {
            collect(&path, files)?;
        } else if kind.is_file()
            && (ENDINGS.iter().any(|e| name.ends_with(&format!(".{e}"))) || is_in_ci(&path))
        {
            files.push(path);
        }
    }
    Ok(())
}

fn is_in_ci(path: &Path) -> bool {
    path.parent().and_then(Path::file_name).is_some_and(|folder| folder == ".ci")
}

/// Finds hosts that only the tools and settings of the user may name.
pub(crate) fn check_hosts(document: &Document) -> Vec<Finding> {
    if MAY_NAME_HOSTS.contains(&document.path.as_str()) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, line) in document.text.lines().enumerate() {
        let line = line.to_ascii_lowercase();
        if let Some(host) = HOSTS.iter().find(|host| names_host(&line, host)) {
            let message = format!(
                "line {} names {host}; addresses come from the user's settings only {} may contain one",
                number + 1,
                MAY_NAME_HOSTS[0]
            );
            findings.push(Finding::firm(Rule::Hosts, &document.path, message));
        }
    }
    findings
}

fn names_host(line: &str, host: &str) -> bool {
    line.match_indices(host).any(|(at, _)| {
        let (before, after) = (line[..at].chars().next_back(), line[at + host.len()..].chars().next());
        let continues = |letter: Option<char>| letter.is_some_and(|c| c.is_ascii_alphanumeric() || c == '-');
        !continues(before) && !continues(after)
    })
}

/// Finds broken relative links in Markdown files; `exists` takes paths relative to the root.
pub(crate) fn check_links(document: &Document, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let folder = document.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut findings = Vec::new();
    for link in links(&document.text) {
        let file = link.split('#').next().unwrap_or_default();
        if file.is_empty() || file.contains("://") || file.starts_with("mailto:") {
            continue;
        }
        if !exists(&resolve(folder, file)) {
            let message = format!("links to {link}, which does not exist; fix the link");
            findings.push(Finding::firm(Rule::Documents, &document.path, message));
        }
    }
    findings
}

/// Returns the targets of `[text](target)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

fn resolve(folder: &str, link: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Finds crates that the documents do not mention.
pub(crate) fn check_maps(documents: &[Document], packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for map in MAPS {
        let Some(document) = documents.iter().find(|document| document.path == *map) else {
            findings.push(Finding::firm(Rule::Documents, *map, "does not exist; write it"));
            continue;
        };
        for package in packages.iter().filter(|package| !document.text.contains(&package.folder)) {
            let message = format!("does not name {}; add a line for it", package.folder);
            findings.push(Finding::firm(Rule::Documents, *map, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::brief;

    fn document(path: &str, text: &str) -> Document {
        Document { path: path.into(), text: text.into() }
    }

    fn hosts(path: &str, text: &str, expect: &[&str]) {
        assert_eq!(brief(&check_hosts(&document(path, text))), expect, "{text}");
    }

    #[test]
    fn registries_and_hubs_are_named_in_one_place() {
        hosts("README.md", "see https://huggingface.co/models", &["hosts README.md"]);
        hosts("crates/a/src/b.rs", "// PyPI.org\nfine\n\"hf.co\"", &["hosts crates/a/src/b.rs"; 2]);
        hosts("crates/catalog/src/source/hub.rs", "https://huggingface.co", &[]);
    }

    #[test]
    fn packages_agree_with_the_workspace() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
        // Returns the text between the first `before` and the quotation mark that follows it.
        let quoted = |path: &str, before: &str| {
            let text = read(path);
            let (_, rest) = text.split_once(before).expect(path);
            rest.split('"').next().unwrap_or_default().to_owned()
        };
        let version = quoted("Cargo.toml", "\nversion = \"");
        assert_eq!(quoted("packaging/npm/package.json", "\"version\": \""), version);
        assert_eq!(quoted("packaging/python/pyproject.toml", "\nversion = \""), version);
        let runtime = quoted("crates/catalog/runtimes.toml", "\nversion = \"");
        assert_eq!(quoted("packaging/python/pyproject.toml", "\"onnxruntime=="), runtime);
        assert_eq!(read("packaging/python/LICENSE"), read("LICENSE"));
    }

    #[test]
    fn similar_names_are_no_hosts() {
        hosts("a.rs", "hf.config, ~/.cache/huggingface/hub, half.com, shf.co", &[]);
        hosts("a.rs", "ünïcode before hf.conf", &[]);
    }

    #[test]
    fn links_resolve() {
        let exists = |path: &str| ["docs/a.md", "README.md"].contains(&path);
        let findings = |path: &str, text: &str| brief(&check_links(&document(path, text), exists));
        assert_eq!(findings("README.md", "[a](docs/a.md#part) [b](https://x.org) [c](#here)"), [""; 0]);
        assert_eq!(findings("docs/a.md", "[up](../README.md) [gone](b.md)"), ["documents docs/a.md"]);
    }

    #[test]
    fn the_documents_name_every_crate() {
        let package = Package { name: "narthex-a".into(), folder: "crates/a".into(), dependencies: vec![] };
        let documents = [document("README.md", "crates/a"), document("ARCHITECTURE.md", "crates/b")];
        assert_eq!(
            brief(&check_maps(&documents, std::slice::from_ref(&package))),
            ["documents ARCHITECTURE.md"]
        );
        assert_eq!(brief(&check_maps(&documents[..1], &[package])), ["documents ARCHITECTURE.md"]);
    }
}
