//! Checkpoints on the local disk that belong to the user. They are used in place and never changed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use narthex_files::PartName;
use narthex_spec::{
    ModelName, ProgressSink, Sha256,
    progress::{Stage, Unit},
};

use crate::{
    CancelFlag,
    error::Error,
    files,
    source::{cached_snapshot::CachedSnapshot, hub::glob},
};

/// The kind of a local path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocalKind {
    /// A GGUF file, or a folder with a checkpoint.
    Checkpoint,
    /// A wheel.
    Wheel,
}

pub(crate) fn classify(path: &Path) -> Result<LocalKind, Error> {
    let unfit = |found| Error::NotACheckpoint { path: path.to_path_buf(), found };
    if path.is_dir() {
        let has_weights = files_of(path)?.iter().any(|(name, _)| glob::is_weights(name));
        return if has_weights { Ok(LocalKind::Checkpoint) } else { Err(unfit("a folder without weights")) };
    }
    if !path.exists() {
        return Err(Error::LocalMissing { path: path.to_path_buf() });
    }
    match path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase).as_deref() {
        Some("gguf") => Ok(LocalKind::Checkpoint),
        Some("whl") => Ok(LocalKind::Wheel),
        Some("safetensors") => Err(unfit("one file of a checkpoint; use its folder instead")),
        _ => Err(unfit("a file of another kind")),
    }
}

/// Names of a local checkpoint.
pub(crate) struct LocalName {
    /// Name of its file or folder with unsafe characters replaced: `local/tiny`.
    pub(crate) short: ModelName,
    /// The same name followed by [`Self::version`].
    pub(crate) exact: ModelName,
    /// Eight hexadecimal digits that depend on its path, sizes and times, so that another file of the same name is
    /// another model.
    pub(crate) version: String,
}

/// Returns the names of a local checkpoint.
pub(crate) fn name(path: &Path) -> Result<LocalName, Error> {
    let absolute = own_path(path)?;
    let files = files_of(&absolute)?;
    // Every part of a divided file identifies the same model.
    let identified = match (absolute.is_dir(), files.first()) {
        (false, Some((_, first))) => first,
        _ => &absolute,
    };
    let mut identity = identified.to_string_lossy().into_owned();
    for (name, file) in files {
        let meta = fs::metadata(&file).map_err(Error::io("look at", &file))?;
        let modified = meta.modified().map_or(0, files::nanos);
        identity.push_str(&format!("\n{name} {} {modified}", meta.len()));
    }
    let Sha256(digest) = Sha256::of(identity.as_bytes());
    let version: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let file_name = absolute.file_name().unwrap_or_default().to_string_lossy();
    let repository = CachedSnapshot::of(&absolute);
    let repository = repository.as_ref().and_then(CachedSnapshot::name);
    let stem = match repository {
        Some(name) => safe_name(name),
        None if absolute.is_dir() => safe_name(&file_name),
        None => safe_name(stem(&file_name)),
    };
    let exact = format!("local/{stem}-{version}").parse()?;
    Ok(LocalName { short: format!("local/{stem}").parse()?, exact, version })
}

/// Returns the absolute path of a file or folder, in which a link to a file keeps its name.
pub(crate) fn own_path(path: &Path) -> Result<PathBuf, Error> {
    narthex_files::own_path(path).map_err(Error::io("find", path))
}

/// Returns the name of a file without its extension, and without the number of a part.
pub(crate) fn stem(file_name: &str) -> &str {
    match PartName::parse(file_name) {
        Some(part) => part.stem,
        None => file_name.rsplit_once('.').map_or(file_name, |(stem, _)| stem),
    }
}

/// Returns a name with only ASCII letters in lower case, digits, `_` and `.`, at most 80 characters; each run of others
/// becomes one `-`.
pub(crate) fn safe_name(name: &str) -> String {
    let mut safe = String::new();
    for c in name.to_lowercase().chars().take(80) {
        let c = if c.is_ascii_alphanumeric() || c == '_' || c == '.' { c } else { '-' };
        let doubled = matches!(c, '-' | '.') && safe.ends_with(c);
        let begins_well = !safe.is_empty() || c.is_ascii_alphanumeric();
        if begins_well && !doubled {
            safe.push(c);
        }
    }
    if safe.is_empty() { "model".to_owned() } else { safe }
}

/// Returns the digests of a local checkpoint's files. Those in the hub's cache must be the hub's.
///
/// # Errors
/// [`Error::Damaged`] and [`Error::LinkLeaves`] for files of the hub's cache; errors of reading.
pub(crate) fn digests(
    path: &Path,
    progress: &dyn ProgressSink,
    cancel: &CancelFlag,
) -> Result<BTreeMap<String, Sha256>, Error> {
    let files = files_of(path)?;
    let cached = CachedSnapshot::of(&own_path(path)?);
    if let Some(snapshot) = &cached {
        snapshot.check_links()?;
    }
    let total = files.iter().map(|(_, file)| fs::metadata(file).map_or(0, |meta| meta.len())).sum();
    let stage = Stage::start(progress, "Reading the checkpoint", Unit::Bytes, Some(total));
    let mut before = 0;
    let mut digests = BTreeMap::new();
    for (name, file) in files {
        let mut last = 0;
        let digest = files::digest_file(&file, cancel, |bytes| {
            last = bytes;
            stage.advance(before + bytes);
        })?;
        before += last;
        if cached.is_some() {
            CachedSnapshot::check_digest(&file, digest)?;
        }
        digests.insert(name, digest);
    }
    Ok(digests)
}

/// Returns the files of a checkpoint, by name: the file itself with all of its parts, or the folder's files that a
/// compiler may read. Fails with the name of a missing part.
fn files_of(path: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
    if !path.is_dir() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let names = PartName::parse(&name).map_or(vec![name.clone()], |part| part.all().collect());
        let files: Vec<_> = names.into_iter().map(|name| (name.clone(), path.with_file_name(name))).collect();
        return match files.iter().find(|(_, file)| !file.exists()) {
            Some((_, missing)) => Err(Error::LocalMissing { path: missing.clone() }),
            None => Ok(files),
        };
    }

    let mut found = Vec::new();
    for folder in ["", "1_Pooling", "1_LogitScore", "2_Dense", "3_Dense"].map(|folder| path.join(folder)) {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for file in entries.flatten().map(|entry| entry.path()).filter(|file| file.is_file()) {
            let Ok(relative) = file.strip_prefix(path) else { continue };
            let name = relative.to_string_lossy().replace('\\', "/");
            if glob::wanted(&name, &[]) {
                found.push((name, file));
            }
        }
    }

    found.sort();
    let names: Vec<String> = found.iter().map(|(name, _)| name.clone()).collect();
    let weights = glob::gguf_of(&names).and_then(|name| PartName::parse(name));
    match weights.and_then(|part| glob::missing_part(part, &names)) {
        Some(missing) => Err(Error::LocalMissing { path: path.join(missing) }),
        None => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::progress::Quiet;

    use super::*;

    #[test]
    fn names_are_made_safe() {
        let check = |name: &str, expect: &str| assert_eq!(safe_name(name), expect);
        check("SmolLM2-135M-Instruct.Q4_1", "smollm2-135m-instruct.q4_1");
        check("Mein Modell (1)", "mein-modell-1-");
        check("..", "model");
        check("a..b", "a.b");
        check("模型", "model");
    }

    #[test]
    fn a_changed_file_is_another_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("Tiny.gguf");
        fs::write(&path, b"one").unwrap();
        let first = name(&path).unwrap();
        assert_eq!(first.short.as_str(), "local/tiny");
        assert_eq!(first.exact.as_str(), format!("local/tiny-{}", first.version));
        assert_eq!(name(&path).unwrap().exact, first.exact);
        fs::write(&path, b"longer").unwrap();
        assert_ne!(name(&path).unwrap().exact, first.exact);
    }

    #[test]
    fn every_part_names_the_same_model() {
        let folder = tempfile::tempdir().unwrap();
        let parts = [1, 2].map(|number| folder.path().join(format!("Big-0000{number}-of-00002.gguf")));
        parts.iter().for_each(|part| fs::write(part, "GGUF").unwrap());
        let names = parts.each_ref().map(|part| name(part).unwrap());
        assert_eq!(names[0].short.as_str(), "local/big");
        assert_eq!(names[0].exact, names[1].exact);
        let files = digests(&parts[1], &Quiet, &CancelFlag::new(false)).unwrap();
        assert_eq!(files, digests(folder.path(), &Quiet, &CancelFlag::new(false)).unwrap());
        fs::remove_file(&parts[0]).unwrap();
        for path in [&parts[1], folder.path()] {
            let error = classify(path).map_or_else(|e| e, |_| name(path).err().unwrap()).to_string();
            assert!(error.contains("Big-00001-of-00002.gguf"), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_linked_file_is_named_after_the_link() {
        let folder = tempfile::tempdir().unwrap();
        let blob = folder.path().join("0123abcd");
        fs::write(&blob, "GGUF").unwrap();
        let link = folder.path().join("tiny.gguf");
        std::os::unix::fs::symlink(&blob, &link).unwrap();
        assert_eq!(name(&link).unwrap().short.as_str(), "local/tiny");
    }

    #[test]
    fn kinds_of_paths_are_distinguished() {
        let folder = tempfile::tempdir().unwrap();
        let check = |name: &str, expect: Result<LocalKind, &str>| {
            let path = folder.path().join(name);
            match (classify(&path), expect) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{name}"),
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
                other => panic!("{name}: {other:?}"),
            }
        };
        fs::create_dir_all(folder.path().join("empty")).unwrap();
        fs::create_dir_all(folder.path().join("full")).unwrap();
        fs::create_dir_all(folder.path().join("ct2")).unwrap();
        for file in ["a.GGUF", "b.whl", "c.safetensors", "d.txt", "full/model.safetensors", "ct2/model.bin"] {
            fs::write(folder.path().join(file), b"x").unwrap();
        }
        check("a.GGUF", Ok(LocalKind::Checkpoint));
        check("b.whl", Ok(LocalKind::Wheel));
        check("c.safetensors", Err("use its folder"));
        check("d.txt", Err("a file of another kind"));
        check("full", Ok(LocalKind::Checkpoint));
        check("ct2", Ok(LocalKind::Checkpoint));
        check("empty", Err("a folder without weights"));
        check("none", Err("does not exist"));
    }

    #[test]
    fn digests_cover_the_files_a_compiler_reads() {
        let folder = tempfile::tempdir().unwrap();
        for module in ["1_Pooling", "2_Dense"] {
            fs::create_dir(folder.path().join(module)).unwrap();
        }
        let modules = ["1_Pooling/config.json", "2_Dense/model.safetensors"];
        for file in modules.into_iter().chain(["config.json", "model.safetensors", "README.md"]) {
            fs::write(folder.path().join(file), file).unwrap();
        }
        let found = digests(folder.path(), &Quiet, &CancelFlag::new(false)).unwrap();
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            ["1_Pooling/config.json", "2_Dense/model.safetensors", "config.json", "model.safetensors"]
        );
        assert_eq!(found["config.json"], Sha256::of(b"config.json"));
    }
}
