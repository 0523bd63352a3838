//! Attacks with malformed files of every format on the commands that read them.
//!
//! Each attack has a folder of valid files, of which one is mutated. The program refuses mutated wheels by their digest
//! before it opens them; therefore, [`wheel_reader`] calls their reader itself, without the check of the digest.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use narthex_testkit::checkpoint::{tiny_llama_gguf, tiny_llama_safetensors};
use parking_lot::Mutex;

use super::{
    HANG, Outcome, Subject,
    child::{ProcessResult, peak_memory},
    mutation::{Random, mutate},
};
use crate::fuzz::{Target, seeds};

/// A format, and the commands that read its files. `{}` is replaced by the folder, `{file}` by the mutated file.
struct FileAttack {
    format: &'static str,
    /// Valid files in the folder.
    base: ValidFiles,
    /// File that is mutated, relative to the folder.
    file: &'static str,
    cases: usize,
    commands: &'static [&'static [&'static str]],
}

/// Sets of valid files.
#[derive(Clone, Copy)]
enum ValidFiles {
    Gguf,
    Llama,
    Encoder,
    Genai,
    Package,
    Wheel,
}

const COMPILE: &[&str] = &["compile", "{}", "--scheme", "f32", "--calibrate", "none"];
const COMPILE_FILE: &[&str] = &["compile", "{file}", "--scheme", "w8", "--calibrate", "none"];
const SHOW: &[&str] = &["--home", "{}", "show", "local/tiny"];

const ATTACKS: &[FileAttack] = &[
    FileAttack {
        format: "GGUF",
        base: ValidFiles::Gguf,
        file: "tiny.gguf",
        cases: 500,
        commands: &[&["plan", "{file}"], COMPILE_FILE, &["check", "{file}"]],
    },
    FileAttack {
        format: "safetensors",
        base: ValidFiles::Llama,
        file: "model.safetensors",
        cases: 300,
        commands: &[&["plan", "{}"], COMPILE],
    },
    FileAttack {
        format: "config.json",
        base: ValidFiles::Llama,
        file: "config.json",
        cases: 200,
        commands: &[&["plan", "{}"], COMPILE],
    },
    FileAttack {
        format: "tokenizer.json",
        base: ValidFiles::Llama,
        file: "tokenizer.json",
        cases: 300,
        commands: &[COMPILE],
    },
    FileAttack {
        format: "chat template",
        base: ValidFiles::Llama,
        file: "chat_template.jinja",
        cases: 200,
        commands: &[COMPILE],
    },
    FileAttack {
        format: "ONNX",
        base: ValidFiles::Encoder,
        file: "onnx/model.onnx",
        cases: 300,
        commands: &[&["check", "{file}"], &["import", "{}", "--name", "attack"]],
    },
    FileAttack {
        format: "genai_config.json",
        base: ValidFiles::Genai,
        file: "genai_config.json",
        cases: 100,
        commands: &[&["import", "{}", "--name", "attack"]],
    },
    FileAttack {
        format: "manifest",
        base: ValidFiles::Package,
        file: "packages/local--tiny/f32/manifest.json",
        cases: 200,
        commands: &[SHOW, &["--home", "{}", "verify"], &["--home", "{}", "list"]],
    },
    FileAttack {
        format: "wheel",
        base: ValidFiles::Wheel,
        file: "tiny.whl",
        cases: 100,
        commands: &[&["pull", "{file}"], &["runtime", "install", "cpu", "--from", "{file}"]],
    },
];

/// Runs every attack.
pub(super) fn run(subject: &Subject<'_>) -> anyhow::Result<Vec<Outcome>> {
    let of_program = ATTACKS.iter().map(|attack| attack.run(subject));
    of_program.chain([wheel_reader(subject.seed)]).collect()
}

/// Number of mutated wheels that the reader gets.
const READ_WHEELS: usize = 300;

/// Passes mutated wheels to their reader. A panic, a hang and a file outside the target folder are findings.
fn wheel_reader(seed: u64) -> anyhow::Result<Outcome> {
    let valid = seeds::of(Target::Wheel)?;
    let mut random = Random::new(seed);
    let (mut slowest, mut accepted, mut findings) = (Duration::ZERO, 0, Vec::new());
    for case in 0..READ_WHEELS {
        let scratch = tempfile::tempdir()?;
        let (wheel, into) = (scratch.path().join("w.whl"), scratch.path().join("into"));
        fs::write(&wheel, mutate(&valid[case % valid.len()].bytes, &mut random))?;
        let start = Instant::now();
        let read = std::panic::catch_unwind(|| narthex_catalog::fuzzing::unpack(&wheel, &into));
        slowest = slowest.max(start.elapsed());
        match read {
            Ok(read) => accepted += usize::from(read.is_ok()),
            Err(_) => findings.push(format!("wheel {case} panics")),
        }
        if start.elapsed() > HANG {
            findings.push(format!("wheel {case} takes {:?}", start.elapsed()));
        }
        let names = fs::read_dir(scratch.path())?.map(|entry| entry.map(|entry| entry.file_name()));
        let outside = names.collect::<std::io::Result<Vec<_>>>()?;
        if outside.iter().any(|name| name != "w.whl" && name != "into") {
            findings.push(format!("wheel {case} writes outside its folder: {outside:?}"));
        }
    }
    Ok(Outcome {
        what: "wheel files, in the reader itself".to_owned(),
        cases: READ_WHEELS,
        slowest,
        peak: peak_memory(std::process::id()).unwrap_or(0),
        note: format!("{accepted} accepted, {} refused", READ_WHEELS - accepted),
        findings,
    })
}

impl FileAttack {
    fn run(&self, subject: &Subject<'_>) -> anyhow::Result<Outcome> {
        let base = tempfile::tempdir()?;
        self.base.write(subject, base.path())?;
        let valid = fs::read(base.path().join(self.file)).with_context(|| self.file.to_owned())?;
        let (next, ends) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let threads = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| -> anyhow::Result<()> {
            let work = || -> anyhow::Result<()> {
                loop {
                    let case = next.fetch_add(1, Ordering::Relaxed);
                    if case >= subject.cases(self.cases, 10) {
                        return Ok(());
                    }
                    let ended = self.case(subject, base.path(), &valid, case)?;
                    ends.lock().push((case, ended));
                }
            };
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let ended = workers.into_iter().map(|worker| worker.join());
            ended.into_iter().try_for_each(|end| end.unwrap_or_else(|_| anyhow::bail!("a worker panicked")))
        })?;
        Ok(self.outcome(ends.into_inner()))
    }

    /// Runs a command on a copy of the valid files with a mutated file.
    fn case(
        &self,
        subject: &Subject<'_>,
        base: &Path,
        valid: &[u8],
        case: usize,
    ) -> anyhow::Result<ProcessResult> {
        let mut random = Random::new(subject.seed.wrapping_mul(1_000_003).wrapping_add(case as u64));
        let scratch = tempfile::tempdir()?;
        let folder = scratch.path().join("tiny");
        copy(base, &folder)?;
        fs::write(folder.join(self.file), mutate(valid, &mut random))?;
        let command = self.commands[case % self.commands.len()];
        let (all, file) = (folder.to_string_lossy(), folder.join(self.file).to_string_lossy().into_owned());
        let args: Vec<String> =
            command.iter().map(|word| word.replace("{file}", &file).replace("{}", &all)).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        subject.watch(&scratch.path().join("home"), &args)
    }

    fn outcome(&self, ends: Vec<(usize, ProcessResult)>) -> Outcome {
        let accepted =
            ends.iter().filter(|(_, ended)| ended.status.is_some_and(|status| status.success())).count();
        let finding = |(case, ended): &(usize, ProcessResult)| {
            let command = self.commands[case % self.commands.len()].join(" ");
            Some(format!("case {case} of `{command}` {}", ended.finding()?))
        };
        Outcome {
            what: format!("{} files", self.format),
            cases: ends.len(),
            slowest: ends.iter().map(|(_, ended)| ended.took).max().unwrap_or(Duration::ZERO),
            peak: ends.iter().map(|(_, ended)| ended.peak).max().unwrap_or(0),
            note: format!("{accepted} accepted, {} refused", ends.len() - accepted),
            findings: ends.iter().filter_map(finding).collect(),
        }
    }
}

impl ValidFiles {
    fn write(self, subject: &Subject<'_>, folder: &Path) -> anyhow::Result<()> {
        let export = |name: &str| {
            subject.session.workspace.root.join("crates/compile/tests/goldens/import").join(name)
        };
        match self {
            Self::Gguf => fs::write(folder.join("tiny.gguf"), tiny_llama_gguf(7))?,
            Self::Llama => llama(folder)?,
            Self::Encoder => copy(&export("sentence"), folder)?,
            Self::Genai => copy(&export("genai-cpu"), folder)?,
            Self::Package => package(subject, folder)?,
            Self::Wheel => wheel(&folder.join("tiny.whl"))?,
        }
        Ok(())
    }
}

/// Writes the tiny Llama with a chat template.
pub(super) fn llama(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    tiny_llama_safetensors(folder, 7)?;
    let template =
        "{% for message in messages %}<|{{ message.role }}|>{{ message.content | trim }}{% endfor %}";
    Ok(fs::write(folder.join("chat_template.jinja"), template)?)
}

/// Creates a store with the tiny Llama as `local/tiny`.
pub(super) fn package(subject: &Subject<'_>, home: &Path) -> anyhow::Result<()> {
    let checkpoint = tempfile::tempdir()?;
    llama(checkpoint.path())?;
    let path = checkpoint.path().to_string_lossy().into_owned();
    let ended = subject.watch(home, &["compile", &path, "--scheme", "f32", "--calibrate", "none"])?;
    let made = fs::read_dir(home.join("packages")).ok().and_then(|mut names| names.next());
    let made = made.with_context(|| format!("the valid model was not compiled: {}", ended.stderr))??.path();
    let name = home.join("packages/local--tiny");
    fs::rename(made, &name)?;
    let manifest = name.join("f32/manifest.json");
    let mut stated: serde_json::Value = serde_json::from_slice(&fs::read(&manifest)?)?;
    stated["name"] = "local/tiny".into();
    Ok(fs::write(manifest, serde_json::to_vec_pretty(&stated)?)?)
}

fn wheel(path: &PathBuf) -> anyhow::Result<()> {
    let mut zip = zip::ZipWriter::new(fs::File::create(path)?);
    for name in ["onnxruntime/capi/libonnxruntime.so", "onnxruntime/LICENSE"] {
        zip.start_file(name, zip::write::SimpleFileOptions::default())?;
        std::io::Write::write_all(&mut zip, &[7; 4096])?;
    }
    zip.finish()?;
    Ok(())
}

/// Copies a folder with all of its contents.
pub(super) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_enough_cases_and_every_base_has_its_file() {
        assert!(ATTACKS.iter().map(|attack| attack.cases).sum::<usize>() >= 2000);
        let folder = tempfile::tempdir().unwrap();
        llama(folder.path()).unwrap();
        for attack in ATTACKS.iter().filter(|attack| matches!(attack.base, ValidFiles::Llama)) {
            assert!(folder.path().join(attack.file).is_file(), "{}", attack.file);
        }
    }
}
