//! Comparison of a machine with Linux on x86-64: greedy tokens, embeddings, and the bytes of packages.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};

use super::{
    first_hour::{CHAT, CHAT_COMMAND, copy, package},
    machine::Machine,
    requests::{self, MachineAnswers},
    steps::Steps,
};

/// Maximum distance between the two best tokens, in log probability, at which two machines may choose different ones:
/// sums in another order differ by this much.
const NEAR_TIE: f64 = 0.05;

/// Maximum difference between elements of two embeddings.
const EMBEDDING_BOUND: f32 = 1e-4;

/// Packages that every machine compiles.
const COMPILED: [&str; 2] = ["local/tiny", "local/llama"];

/// Compares the answers and the packages of a machine with those of Linux.
pub(super) fn run(steps: &mut Steps, machine: &Machine<'_>, linux: &Machine<'_>, more: &[&str]) {
    steps.run("greedy tokens as on Linux x86-64", || {
        tokens(&requests::read(machine)?, &requests::read(linux)?)
    });
    steps.run("embeddings as on Linux x86-64", || {
        embeddings(&requests::read(machine)?, &requests::read(linux)?)
    });
    for name in COMPILED.iter().chain(more) {
        steps.run(&format!("the package {name} is that of Linux x86-64"), || {
            packages(&package(&machine.store(), name)?, &package(&linux.store(), name)?)
        });
    }
    for (title, writer, reader) in [
        ("a store that Linux x86-64 wrote", linux, machine),
        ("a store for Linux x86-64 that this platform wrote", machine, linux),
    ] {
        steps.run(title, || exchange(writer, reader));
    }
}

/// Compares greedy tokens. After a near tie, the answers may differ.
fn tokens(found: &MachineAnswers, linux: &MachineAnswers) -> anyhow::Result<String> {
    let mut equal = 0;
    let mut ties = 0;
    ensure!(!found.tokens.is_empty(), "expected answers, found none");
    for (found, linux) in found.tokens.iter().zip(&linux.tokens) {
        for (found, linux) in found.iter().zip(linux) {
            if found.text == linux.text {
                equal += 1;
            } else if linux.margin < NEAR_TIE {
                ties += 1;
                break;
            } else {
                bail!("expected {:?} by a margin of {:.3}, found {:?}", linux.text, linux.margin, found.text);
            }
        }
    }
    Ok(format!("{equal} tokens equal, {ties} near ties"))
}

/// Compares embeddings.
fn embeddings(found: &MachineAnswers, linux: &MachineAnswers) -> anyhow::Result<String> {
    ensure!(
        found.vectors.len() == linux.vectors.len() && !found.vectors.is_empty(),
        "expected as many vectors"
    );
    let mut greatest = 0.0f32;
    for (found, linux) in found.vectors.iter().zip(&linux.vectors) {
        ensure!(found.len() == linux.len(), "expected {} elements, found {}", linux.len(), found.len());
        let differences = found.iter().zip(linux).map(|(found, linux)| (found - linux).abs());
        greatest = differences.fold(greatest, f32::max);
    }
    ensure!(greatest <= EMBEDDING_BOUND, "expected differences up to {EMBEDDING_BOUND}, found {greatest}");
    Ok(format!("greatest difference {greatest:.1e}"))
}

/// Compares the files of a model's packages in the schemes that both machines have: one may still hold a package that
/// the other has removed.
fn packages(found: &Path, linux: &Path) -> anyhow::Result<String> {
    let (mut found, mut linux) = (files(found)?, files(linux)?);
    let schemes = |files: &BTreeMap<PathBuf, Vec<u8>>| -> BTreeSet<PathBuf> {
        files.keys().filter_map(|name| name.iter().next()).map(PathBuf::from).collect()
    };
    let both: BTreeSet<PathBuf> = schemes(&found).intersection(&schemes(&linux)).cloned().collect();
    for files in [&mut found, &mut linux] {
        files.retain(|name, _| both.iter().any(|scheme| name.starts_with(scheme)));
    }
    ensure!(!found.is_empty(), "expected a package in the same scheme, found none");
    let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    ensure!(names(&found) == names(&linux), "expected {:?}, found {:?}", names(&linux), names(&found));
    let different: Vec<String> = found
        .iter()
        .filter(|(name, bytes)| linux.get(*name) != Some(bytes))
        .map(|(name, _)| name.display().to_string())
        .collect();
    ensure!(different.is_empty(), "different files: {}", different.join(", "));
    let bytes: usize = found.values().map(Vec::len).sum();
    Ok(format!("{} files, {bytes} bytes, equal", found.len()))
}

/// Reads the files below a folder.
fn files(folder: &Path) -> anyhow::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).with_context(|| next.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder)?.to_owned();
                let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
                files.insert(name, without_machine_fields(bytes)?);
            }
        }
    }
    Ok(files)
}

/// Removes from a manifest what depends on the machine: the path and the time of a local checkpoint, the certificate,
/// whose figures depend on the kernels, and the digest of the manifest's own text. Other files are returned as they are.
fn without_machine_fields(bytes: Vec<u8>) -> anyhow::Result<Vec<u8>> {
    let Ok(serde_json::Value::Object(mut manifest)) = serde_json::from_slice(&bytes) else {
        return Ok(bytes);
    };
    let source = manifest.get_mut("provenance").and_then(|provenance| provenance.get_mut("source"));
    let Some(source) = source else { return Ok(bytes) };
    if source.as_str().is_some_and(|text| text.starts_with("local ")) {
        *source = "local".into();
    }
    for field in ["certificate", "digest"] {
        manifest.remove(field);
    }
    Ok(serde_json::to_vec(&manifest)?)
}

/// Copies the packages of one machine into a new store of another, which lists, verifies and runs them.
fn exchange(writer: &Machine<'_>, reader: &Machine<'_>) -> anyhow::Result<String> {
    let store = reader.folder.join("foreign");
    if store.exists() {
        fs::remove_dir_all(&store)?;
    }
    copy(&writer.store().join("packages"), &store.join("packages"))?;
    copy(&reader.store().join("runtimes"), &store.join("runtimes"))?;
    let home = reader.path(&store);
    reader.expect(&["--home", &home, "list"], CHAT)?;
    let verified = reader.run(&["--home", &home, "verify"])?;
    reader.expect(&[&["--home", &home][..], &CHAT_COMMAND].concat(), "Paris")?;
    let last = verified.stdout.lines().chain(verified.stderr.lines()).last().unwrap_or_default().to_owned();
    fs::remove_dir_all(&store)?;
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platforms::requests::Token;

    fn answers(tokens: &[(&str, f64)], vector: &[f32]) -> MachineAnswers {
        let token = |(text, margin): &(&str, f64)| Token { text: (*text).to_owned(), margin: *margin };
        MachineAnswers { tokens: vec![tokens.iter().map(token).collect()], vectors: vec![vector.to_vec()] }
    }

    #[test]
    fn tokens_may_differ_only_after_a_near_tie() {
        let linux = answers(&[("a", 2.0), ("b", 0.01), ("c", 3.0)], &[]);
        let check = |found: &[(&str, f64)], expect: Option<&str>| {
            let found = tokens(&answers(found, &[]), &linux).ok();
            assert_eq!(found.as_deref(), expect);
        };
        check(&[("a", 2.0), ("b", 0.0)], Some("2 tokens equal, 0 near ties"));
        check(&[("a", 2.0), ("x", 0.0), ("y", 0.0)], Some("1 tokens equal, 1 near ties"));
        check(&[("x", 2.0)], None);
        check(&[("a", 2.0), ("b", 0.0), ("x", 0.0)], None);
    }

    #[test]
    fn embeddings_are_close() {
        let linux = answers(&[], &[0.5, -0.5]);
        assert!(embeddings(&answers(&[], &[0.50005, -0.5]), &linux).is_ok());
        assert!(embeddings(&answers(&[], &[0.5002, -0.5]), &linux).is_err());
        assert!(embeddings(&answers(&[], &[0.5]), &linux).is_err());
    }

    #[test]
    fn packages_are_compared_byte_by_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["a", "b", "c"] {
            fs::create_dir_all(path(name).join("w8")).unwrap();
            fs::write(path(name).join("w8/manifest.json"), if name == "c" { "{ }" } else { "{}" }).unwrap();
        }
        assert_eq!(packages(&path("a"), &path("b")).unwrap(), "1 files, 2 bytes, equal");
        let error = packages(&path("c"), &path("a")).unwrap_err().to_string();
        assert!(error.contains("w8/manifest.json"), "{error}");
        fs::create_dir(path("b").join("w4")).unwrap();
        fs::write(path("b").join("w4/manifest.json"), "").unwrap();
        assert_eq!(packages(&path("a"), &path("b")).unwrap(), "1 files, 2 bytes, equal");
        fs::write(path("b").join("w8/more"), "").unwrap();
        assert!(packages(&path("a"), &path("b")).is_err());
    }

    #[test]
    fn fields_of_a_machine_are_not_compared() {
        let check = |source: &str, expect: &str| {
            let manifest =
                format!(r#"{{"provenance":{{"source":"{source}"}},"certificate":{{}},"digest":"a"}}"#);
            let compared = without_machine_fields(manifest.into_bytes()).unwrap();
            let expect = format!(r#"{{"provenance":{{"source":"{expect}"}}}}"#);
            assert_eq!(String::from_utf8(compared).unwrap(), expect, "{source}");
        };
        check("local /home/a/tiny.gguf, version 1", "local");
        check("hf owner/tiny", "hf owner/tiny");
        assert_eq!(without_machine_fields(b"\x08\x07".to_vec()).unwrap(), b"\x08\x07");
    }
}
