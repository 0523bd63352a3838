//! Imports of voices as packages. The graphs are not compiled, but noise that they draw is made to depend on a seed.
//!
//! Each family has a file with its layout: `hibari`, `kokoro` and `piper`. `english` has the files of the English
//! pronunciation.

mod english;
mod hibari;
mod kokoro;
mod piper;

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use narthex_graph::{
    Graph,
    noise::seed_noise,
    onnx::files::{OnnxFile, open_files},
};
use narthex_spec::{
    DType, ModelName, ProgressSink,
    arch::{ImportedVoice, Structure},
    manifest::{GraphEntry, Manifest, Provenance, Slot, VoiceEntry},
};

use crate::{
    error::Result,
    import::refused,
    imported_graph::{self, MAX_BYTES, NamedSlot, imported_manifest, read_file, total_bytes, unreadable},
    package::{GRAPH_FILE, PackageWriter},
};

pub use self::{kokoro::KokoroFiles, piper::PiperFiles};

/// Input with the seed of the noise, which is added to graphs that draw random numbers.
const SEED: NamedSlot<'static> = ("narthex.seed", Slot::Seed, DType::I64);

/// A voice to import.
#[derive(Clone)]
pub struct VoiceJob<'a> {
    /// Files of the voice.
    pub files: &'a VoiceFiles,
    /// Name of the graph's file, if the folder has several.
    pub file: Option<&'a str>,
    /// Folder with the files of the English pronunciation, for voices that [need them](VoiceFiles::needs_english).
    pub english: Option<&'a Path>,
    /// Name of the package.
    pub name: ModelName,
    /// An empty folder; on success it contains the package.
    pub out: &'a Path,
    /// Origin of the voice.
    pub provenance: Provenance,
    /// Receiver of notes.
    pub progress: &'a dyn ProgressSink,
}

/// Files of a voice, by its family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VoiceFiles {
    /// Folder of a voice of hibari.
    Hibari(PathBuf),
    /// Kokoro 82M.
    Kokoro(KokoroFiles),
    /// A voice of Piper.
    Piper(PiperFiles),
}

impl VoiceFiles {
    /// Returns the files of a voice in a folder, or of the voice of a graph; `None` for other files. `file` is the name
    /// of the graph's file, if the folder has several.
    pub fn find(path: &Path, file: Option<&str>) -> Option<Self> {
        if hibari::is_layout(path) {
            return Some(Self::Hibari(path.to_owned()));
        }
        let kokoro = KokoroFiles::find(path).map(Self::Kokoro);
        kokoro.or_else(|| PiperFiles::find(path, file).map(Self::Piper))
    }

    /// Returns whether the voice needs the files of the English pronunciation, which its folder does not have.
    ///
    /// # Errors
    /// [`CompileError::Foreign`](crate::CompileError::Foreign) for a list of speakers that cannot be read.
    pub fn needs_english(&self) -> Result<bool> {
        match self {
            Self::Hibari(_) | Self::Piper(_) => Ok(false),
            Self::Kokoro(files) => files.needs_english(),
        }
    }

    /// Returns the files that become most of the package: the graph that `file` names, and the styles.
    fn large_files(&self, file: Option<&str>) -> Result<Vec<PathBuf>> {
        match self {
            Self::Hibari(folder) => Ok(vec![hibari::graph(folder, file)?]),
            Self::Kokoro(files) => files.large_files(file),
            Self::Piper(files) => Ok(vec![files.graph().to_owned()]),
        }
    }

    /// Returns the name of a voice that is one file of several in its folder; `None` for a voice with a folder of its own.
    pub fn name(&self) -> Option<String> {
        match self {
            Self::Hibari(_) | Self::Kokoro(_) => None,
            Self::Piper(files) => Some(files.name()),
        }
    }
}

/// Parts of the manifest that a family states.
struct VoiceParts {
    voice: ImportedVoice,
    entry: VoiceEntry,
    graph: GraphEntry,
    /// Maximum number of phonemes that the graph reads at once.
    max_phonemes: usize,
}

/// Writes the package of a voice.
///
/// # Errors
/// [`CompileError::Open`](crate::CompileError::Open) for files that cannot be read,
/// [`CompileError::Foreign`](crate::CompileError::Foreign) for a voice of another kind,
/// [`CompileError::Write`](crate::CompileError::Write), [`CompileError::Cancelled`](crate::CompileError::Cancelled).
pub fn import(job: VoiceJob<'_>, cancel: &AtomicBool) -> Result<Manifest> {
    let package = PackageWriter::new(job.out);
    package.check_space(total_bytes(&job.files.large_files(job.file)?)?)?;

    let parts = match job.files {
        VoiceFiles::Hibari(folder) => hibari::write(folder, job.file, &package, cancel)?,
        VoiceFiles::Kokoro(files) => files.write(job.file, job.english, &package, job.progress, cancel)?,
        VoiceFiles::Piper(files) => files.write(&package, cancel)?,
    };
    let structure = Structure::ImportedVoice(parts.voice);
    let mut manifest = Manifest {
        max_length: parts.max_phonemes,
        voice: Some(parts.entry),
        ..imported_manifest(job.name, structure, vec![parts.graph], job.provenance)
    };
    package.finish(&mut manifest)?;
    Ok(manifest)
}

/// Opens a graph without data files.
fn open_graph(path: &Path) -> Result<OnnxFile> {
    let mut files = open_files(&[path.to_owned()])?;
    let what = || path.display().to_string();
    match files.pop() {
        Some(file) if file.data_files.is_empty() => Ok(file),
        Some(file) => {
            let names: Vec<&str> = file.data_files.keys().map(String::as_str).collect();
            Err(refused(what(), "a graph in one file", names.join(", ")))
        }
        None => Err(refused(what(), "a graph", "none")),
    }
}

/// Writes the graph of a voice and returns it. Noise that it draws depends on the seed of a run.
fn write_graph(path: &Path, package: &PackageWriter, cancel: &AtomicBool) -> Result<Graph> {
    let mut file = open_graph(path)?;
    let (name, ..) = SEED;
    let replaced = seed_noise(&mut file.graph, name)
        .map_err(|error| refused(path.display().to_string(), "noise that a seed decides", error))?;
    if replaced == 0 {
        package.copy(GRAPH_FILE, path, cancel)?;
    } else {
        if let Some(part) = file.graph.unread.first() {
            return Err(refused(path.display().to_string(), "a graph that can be written again", part));
        }
        package.write(GRAPH_FILE, &file.graph.encode())?;
    }
    file.check_unchanged()?;
    Ok(file.graph)
}

/// Returns the entry of the graph of a voice. All of its inputs and `count` inputs and outputs together must have these
/// names, beside the seed.
fn graph_entry(graph: &Graph, file: &str, names: &[NamedSlot], count: usize) -> Result<GraphEntry> {
    let draws = graph.inputs.iter().any(|input| input.name == SEED.0);
    let names = [names, &[SEED]].concat();
    imported_graph::graph_entry(graph, file, &names, count + usize::from(draws))
}

fn read(folder: &Path, file: &str) -> Result<Vec<u8>> {
    read_file(&folder.join(file))
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        fs::{self, File},
    };

    use narthex_spec::progress::Quiet;

    use super::*;
    use crate::error::CompileError;

    /// The graph of 4 TiB is a hole. A machine with that much free space is left out.
    #[test]
    fn a_voice_that_does_not_fit_is_refused_before_it_is_written() {
        const BYTES: u64 = 4 << 40;
        let folder = tempfile::tempdir().unwrap();
        let graph = folder.path().join("voice.onnx");
        let is_made = File::create(&graph).and_then(|file| file.set_len(BYTES)).is_ok();
        let out = tempfile::tempdir().unwrap();
        if !is_made || narthex_files::environment::check_space(out.path(), BYTES).is_ok() {
            return;
        }

        let settings = r#"{"audio": {"sample_rate": 22050}, "phoneme_id_map": {"_": [0]}}"#;
        fs::write(folder.path().join("voice.onnx.json"), settings).unwrap();
        let files = VoiceFiles::find(&graph, None).unwrap();
        let job = VoiceJob {
            files: &files,
            file: None,
            english: None,
            name: "tiny".parse().unwrap(),
            out: out.path(),
            provenance: Provenance {
                source: String::new(),
                checkpoint: BTreeMap::new(),
                license: None,
                compiler: String::new(),
            },
            progress: &Quiet,
        };
        match import(job, &AtomicBool::new(false)).unwrap_err() {
            CompileError::Write { source, .. } => assert_eq!(source.kind(), std::io::ErrorKind::StorageFull),
            other => panic!("{other}"),
        }
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    }
}
