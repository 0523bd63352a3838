//! The store when processes are killed: no incomplete folder remains, regardless of the moment of death.
#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::{
    collections::BTreeSet,
    env, fs,
    path::Path,
    process::{self, Command},
    time::{Duration, Instant},
};

use narthex_catalog::{
    CancelFlag, Error,
    store::{Staging, Store},
};
use narthex_spec::{ModelName, Scheme, progress::Quiet};

/// Variable with the path of the store, for a child process of this test.
const STORE: &str = "NARTHEX_TEST_STORE";
/// Variable with the action of a child process before it dies.
const DEED: &str = "NARTHEX_TEST_DEED";

fn name(text: &str) -> ModelName {
    text.parse().unwrap()
}

fn open(root: &Path) -> Store {
    Store::open(Some(root.to_path_buf())).unwrap()
}

fn fill(staging: &Staging, name: &ModelName, payload: &str) {
    fs::create_dir(staging.path().join("graphs")).unwrap();
    fs::write(staging.path().join("graphs/model.onnx"), payload).unwrap();
    fs::write(staging.path().join("manifest.json"), format!(r#"{{"name":"{name}","more":1}}"#)).unwrap();
}

fn install(store: &Store, name: &ModelName, scheme: Scheme, payload: &str) {
    let staging = store.stage_package(name, scheme).unwrap();
    fill(&staging, name, payload);
    staging.commit().unwrap();
}

fn payload(store: &Store, name: &ModelName, scheme: Scheme) -> Option<String> {
    fs::read_to_string(store.package(name, scheme)?.join("graphs/model.onnx")).ok()
}

/// Returns the names in a folder of the store; empty if it is missing.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// Runs the test `dies` of this binary in a child process, with an action, and waits for its death.
fn child(root: &Path, deed: &str) {
    let status = Command::new(env::current_exe().unwrap())
        .args(["dies", "--exact", "--nocapture", "--test-threads=1"])
        .env(STORE, root)
        .env(DEED, deed)
        .status()
        .unwrap();
    assert!(!status.success(), "the child must have died");
}

#[test]
fn a_file_is_not_a_store() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = Store::open(Some(file.path().to_path_buf())).unwrap_err();
    assert!(error.to_string().contains("cannot open the store"), "{error}");
}

/// Body of the child processes of the other tests; not a test of its own.
#[test]
fn dies() {
    let (Some(root), Ok(deed)) = (env::var_os(STORE), env::var(DEED)) else { return };
    let store = open(Path::new(&root));
    let model = name("a:b");
    let staging = store.stage_package(&model, Scheme::W8).unwrap();
    match deed.as_str() {
        "half" => fs::write(staging.path().join("half"), "half").unwrap(),
        "whole" => fill(&staging, &model, "never committed"),
        "committed" => {
            fill(&staging, &model, "committed");
            staging.commit().unwrap();
        }
        "locked" => {
            let guard = store.lock("job", &Quiet, &CancelFlag::new(false)).unwrap();
            std::mem::forget(guard);
        }
        other => panic!("no deed {other}"),
    }
    process::abort();
}

#[test]
fn packages_are_committed_listed_replaced_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let (a, b) = (name("a:b"), name("owner/c"));
    assert!(store.packages().unwrap().is_empty());
    install(&store, &a, Scheme::W8, "one");
    install(&store, &a, Scheme::W4, "two");
    install(&store, &b, Scheme::W8, "three");
    let found: Vec<(String, Scheme)> =
        store.packages().unwrap().into_iter().map(|info| (info.name.to_string(), info.scheme)).collect();
    let expect = [("a:b", Scheme::W8), ("a:b", Scheme::W4), ("owner/c", Scheme::W8)];
    assert_eq!(found, expect.map(|(name, scheme)| (name.to_owned(), scheme)));
    assert!(store.packages().unwrap().iter().all(|info| info.bytes > 20 && info.dir.is_dir()));
    install(&store, &a, Scheme::W8, "newer");
    assert_eq!(payload(&store, &a, Scheme::W8).as_deref(), Some("newer"));
    assert!(store.remove(&a, Some(Scheme::W8)).unwrap() > 0);
    assert!(store.package(&a, Scheme::W8).is_none() && store.package(&a, Scheme::W4).is_some());
    store.remove(&a, None).unwrap();
    assert!(matches!(store.remove(&a, None), Err(Error::NoPackage { .. })));
    assert_eq!(names(&folder.path().join("packages")), BTreeSet::from(["owner--c".to_owned()]));
    assert!(names(&folder.path().join("tmp")).is_empty());
}

#[test]
fn a_package_without_a_manifest_is_not_committed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    install(&store, &name("a"), Scheme::W8, "old");
    let staging = store.stage_package(&name("a"), Scheme::W8).unwrap();
    fs::write(staging.path().join("model.onnx"), "new").unwrap();
    assert!(matches!(staging.commit(), Err(Error::NoManifest { .. })));
    assert_eq!(payload(&store, &name("a"), Scheme::W8).as_deref(), Some("old"));
    assert!(names(&folder.path().join("tmp")).is_empty());
}

#[test]
fn a_dropped_staging_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let staging = store.stage_package(&name("a"), Scheme::W8).unwrap();
    fill(&staging, &name("a"), "x");
    drop(staging);
    assert!(store.package(&name("a"), Scheme::W8).is_none());
    assert!(names(&folder.path().join("tmp")).is_empty());
}

#[test]
fn what_a_killed_process_staged_is_swept() {
    for deed in ["half", "whole"] {
        let folder = tempfile::tempdir().unwrap();
        install(&open(folder.path()), &name("a:b"), Scheme::W8, "old");
        child(folder.path(), deed);
        assert_eq!(names(&folder.path().join("tmp")).len(), 2, "the child left its folder and lock");
        let store = open(folder.path());
        assert!(names(&folder.path().join("tmp")).is_empty(), "{deed}");
        assert_eq!(payload(&store, &name("a:b"), Scheme::W8).as_deref(), Some("old"), "{deed}");
    }
}

#[test]
fn what_a_killed_process_committed_stays() {
    let folder = tempfile::tempdir().unwrap();
    child(folder.path(), "committed");
    let store = open(folder.path());
    assert_eq!(payload(&store, &name("a:b"), Scheme::W8).as_deref(), Some("committed"));
}

#[test]
fn what_a_living_process_stages_is_not_swept() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let staging = store.stage_package(&name("a"), Scheme::W8).unwrap();
    fill(&staging, &name("a"), "alive");
    open(folder.path());
    staging.commit().unwrap();
    assert_eq!(payload(&store, &name("a"), Scheme::W8).as_deref(), Some("alive"));
}

#[test]
fn a_swap_that_was_cut_in_two_is_settled() {
    let folder = tempfile::tempdir().unwrap();
    let model = name("a");
    install(&open(folder.path()), &model, Scheme::W8, "old");
    let package = folder.path().join("packages/a/w8");
    let aside = folder.path().join("packages/a/w8.old");
    // Killed after the old folder was moved aside: it is restored.
    fs::rename(&package, &aside).unwrap();
    let store = open(folder.path());
    assert_eq!(payload(&store, &model, Scheme::W8).as_deref(), Some("old"));
    // Killed after the new folder was moved into place: the old one is removed.
    fs::create_dir_all(aside.join("graphs")).unwrap();
    open(folder.path());
    assert!(!aside.exists());
    assert_eq!(payload(&store, &model, Scheme::W8).as_deref(), Some("old"));
}

#[test]
fn a_dead_process_holds_no_lock() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let held = store.try_lock("job").unwrap().unwrap();
    assert!(store.try_lock("job").unwrap().is_none());
    assert!(store.try_lock("other job").unwrap().is_some());
    drop(held);
    child(folder.path(), "locked");
    let began = Instant::now();
    store.lock("job", &Quiet, &CancelFlag::new(false)).unwrap();
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_folder_that_is_no_package_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    install(&store, &name("good"), Scheme::W8, "x");
    for (dir, manifest) in [("bad/w8", "not json"), ("worse/w8", r#"{"name":"../evil"}"#)] {
        let dir = folder.path().join("packages").join(dir);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("manifest.json"), manifest).unwrap();
    }
    fs::write(folder.path().join("packages/file"), "x").unwrap();
    assert_eq!(store.packages().unwrap().len(), 1);
}

#[cfg(unix)]
#[test]
fn a_package_without_a_regular_manifest_is_installed_until_it_is_removed() {
    use std::os::unix::fs::symlink;

    let check = |what: &str, put: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        install(&store, &name("a"), Scheme::W8, "x");
        let package = store.package(&name("a"), Scheme::W8).unwrap();
        let manifest = package.join("manifest.json");
        fs::remove_file(&manifest).unwrap();
        assert_eq!(store.package(&name("a"), Scheme::W8), None);
        put(&manifest);
        assert_eq!(store.package(&name("a"), Scheme::W8), Some(package), "{what}");
        assert!(store.packages().unwrap().is_empty(), "{what}");
        store.remove(&name("a"), None).unwrap();
        assert_eq!(store.package(&name("a"), Scheme::W8), None, "{what}");
        install(&store, &name("a"), Scheme::W8, "y");
        assert_eq!(store.packages().unwrap().len(), 1, "{what}");
    };
    check("a folder", &|path| fs::create_dir(path).unwrap());
    check("a link to itself", &|path| symlink("manifest.json", path).unwrap());
    check("a link to nothing", &|path| symlink("none", path).unwrap());
    check("a device", &|path| symlink("/dev/zero", path).unwrap());
    check("a named pipe", &|path| {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    });
}

#[test]
fn a_store_that_cannot_be_written_opens_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "in the way").unwrap();
    let store = open(&file.join("store"));
    assert!(store.packages().unwrap().is_empty());
    assert!(matches!(store.check_writable(), Err(Error::Io { .. })));
    assert!(matches!(store.stage_package(&name("a"), Scheme::W8), Err(Error::Io { .. })));
    open(folder.path()).check_writable().unwrap();
}

#[test]
fn the_files_of_others_stay() {
    let (folder, model) = (tempfile::tempdir().unwrap(), name("a"));
    let file = |path: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "x").unwrap();
        #[cfg(unix)]
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        path
    };
    let own = [
        file("tmp/thesis/a.tex"),
        file("tmp/1-2"),
        file("packages/app/dist.old/f"),
        file("runtimes/x.old/f"),
        file("notes/today"),
        file("tmp/2026-11-26/a"),
    ];
    let unchanged = |path: &std::path::PathBuf| {
        #[cfg(unix)]
        let is_readable = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).unwrap().permissions())
            & 0o777
            == 0o644;
        #[cfg(not(unix))]
        let is_readable = true;
        fs::read(path).is_ok_and(|text| text == b"x") && is_readable
    };
    open(folder.path());
    for path in &own {
        assert!(unchanged(path), "{}", path.display());
    }
    // Later the folder is a store as well.
    install(&open(folder.path()), &model, Scheme::W8, "new");
    let store = open(folder.path());
    assert_eq!(payload(&store, &model, Scheme::W8).as_deref(), Some("new"));
    for path in [&own[0], &own[1], &own[2], &own[5]] {
        assert!(path.exists(), "{}", path.display());
    }
    assert!(unchanged(&own[4]));
}

#[cfg(unix)]
#[test]
fn only_its_user_can_read_the_store() {
    use std::os::unix::fs::PermissionsExt;

    fn modes(path: &Path, found: &mut Vec<(std::path::PathBuf, u32)>) {
        let meta = fs::symlink_metadata(path).unwrap();
        if meta.is_symlink() {
            return;
        }
        found.push((path.to_path_buf(), meta.permissions().mode() & 0o777));
        if meta.is_dir() {
            fs::read_dir(path).unwrap().for_each(|entry| modes(&entry.unwrap().path(), found));
        }
    }
    let check = |root: &Path| {
        let mut found = Vec::new();
        modes(root, &mut found);
        assert!(found.len() > 4);
        for (path, mode) in found {
            let expect = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode, expect, "{}", path.display());
        }
    };
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("store");
    let store = Store::open(Some(root.clone())).unwrap();
    let name = "tiny".parse().unwrap();
    let staging = store.stage_package(&name, Scheme::F32).unwrap();
    // The files of a compile have the usual mode until they are moved into place.
    fs::create_dir(staging.path().join("parts")).unwrap();
    for file in ["manifest.json", "parts/model.onnx"] {
        fs::write(staging.path().join(file), "{}").unwrap();
        fs::set_permissions(staging.path().join(file), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let package = staging.commit().unwrap();
    store.machine(&package, "cpu").unwrap().write("record.json", b"{}").unwrap();
    check(&root);
    // A store of an earlier version with open permissions, and a link that leads out of it.
    let outside = home.path().join("outside");
    fs::write(&outside, "").unwrap();
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o644)).unwrap();
    std::os::unix::fs::symlink(&outside, root.join("packages/link")).unwrap();
    for path in [root.clone(), package.clone(), package.join("manifest.json")] {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    Store::open(Some(root.clone())).unwrap();
    check(&root);
    assert_eq!(fs::metadata(&outside).unwrap().permissions().mode() & 0o777, 0o644);
}
