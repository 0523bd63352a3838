//! Voices of Kokoro 82M: the exports of kokoro-onnx and of onnx-community, with the styles of their speakers.
//!
//! The styles are files of the folder `voices`, one for each speaker, or an archive of NumPy beside the graph.

use std::{
    fs::{self, File},
    io::{BufReader, Read},
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use narthex_graph::Graph;
use narthex_spec::{
    DType, ProgressSink,
    arch::{ImportedVoice, VoiceFamily},
    dtype::Dim,
    manifest::{PhonemeSource, Pronunciation, Slot, Speaker, VoiceEntry},
    progress::Progress,
};
use serde::Deserialize;
use serde_json::{Map, Value};
use zip::ZipArchive;

use super::{
    MAX_BYTES, NamedSlot, VoiceParts, english, graph_entry, read, read_file, unreadable, write_graph,
};
use crate::{
    error::{CompileError, Result},
    import::refused,
    package::PackageWriter,
};

/// Ids of the phonemes of Kokoro 82M 1.0 (hexgrad, Apache-2.0), for folders that do not state them.
const ALPHABET: &[u8] = include_bytes!("kokoro_alphabet.json");

/// File with the styles of all speakers in a package.
const STYLES: &str = "styles.bin";

/// Width of a style.
const WIDTH: usize = 256;

/// Maximum number of phonemes that the graph reads at once.
const MAX_PHONEMES: usize = 510;

/// Samples per second.
const SAMPLE_RATE: u32 = 24_000;

/// Graph that is the default of several.
const USUAL_GRAPH: &str = "model.onnx";

/// Speaker that is the default where it exists.
const DEFAULT_SPEAKER: &str = "af_heart";

/// Number of inputs and outputs.
const BOUND: usize = 4;

/// Inputs and outputs of the exports.
const NAMES: [NamedSlot; 6] = [
    ("tokens", Slot::Phonemes, DType::I64),
    ("input_ids", Slot::Phonemes, DType::I64),
    ("style", Slot::Style, DType::F32),
    ("speed", Slot::Speed, DType::F32),
    ("audio", Slot::Samples, DType::F32),
    ("waveform", Slot::Samples, DType::F32),
];

/// Languages of the first letters of speakers, in the order of the list of speakers, with the voices of espeak-ng that
/// misaki uses. Dictionaries pronounce English.
const LANGUAGES: [(char, &str, Option<&str>); 7] = [
    ('a', "en-US", None),
    ('b', "en-GB", None),
    ('e', "es", Some("es")),
    ('f', "fr-FR", Some("fr-fr")),
    ('h', "hi", Some("hi")),
    ('i', "it", Some("it")),
    ('p', "pt-BR", Some("pt-br")),
];

/// First letters of the speakers of Japanese and Chinese, which need pronunciations that espeak-ng does not have.
const UNREADABLE: [char; 2] = ['j', 'z'];

/// The files of a voice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KokoroFiles {
    folder: PathBuf,
    /// Graphs in the folder and in its folder `onnx`.
    graphs: Vec<PathBuf>,
    styles: StyleFiles,
}

/// Files of the styles.
#[derive(Debug, Clone, PartialEq, Eq)]
enum StyleFiles {
    /// A file for each speaker.
    Each(Vec<PathBuf>),
    /// An archive of NumPy.
    Archive(PathBuf),
}

/// A speaker with its styles.
struct Style {
    name: String,
    bytes: Vec<u8>,
}

impl KokoroFiles {
    /// Returns the files of a folder, or of a graph in it; `None` if they are no voice of Kokoro.
    pub(super) fn find(path: &Path) -> Option<Self> {
        let mut folder = if path.is_file() { path.parent()? } else { path };
        if path.is_file() && folder.file_name().is_some_and(|name| name == "onnx") {
            folder = folder.parent()?;
        }
        let each = files(&folder.join("voices"), "bin");
        let styles = if each.is_empty() {
            let archives = [files(folder, "bin"), files(folder, "npz")].concat();
            StyleFiles::Archive(archives.into_iter().find(|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("voices"))
                    && is_archive(path)
            })?)
        } else {
            StyleFiles::Each(each)
        };

        let graphs = if path.is_file() {
            vec![path.to_owned()]
        } else {
            let graphs = [files(folder, "onnx"), files(&folder.join("onnx"), "onnx")].concat();
            graphs.into_iter().filter(|path| !english::is_graph(path)).collect()
        };
        (!graphs.is_empty()).then(|| Self { folder: folder.to_owned(), graphs, styles })
    }

    /// Returns whether a speaker has a language that English dictionaries pronounce, which are not in the folder.
    pub(super) fn needs_english(&self) -> Result<bool> {
        if english::is_in(&self.folder) {
            return Ok(false);
        }
        let names = match &self.styles {
            StyleFiles::Each(files) => files.iter().map(|file| stem(file)).collect(),
            StyleFiles::Archive(path) => archived_names(path)?,
        };
        Ok(names.iter().any(|name| matches!(language(name), Some((_, _, None)))))
    }

    /// Returns the graph that `file` names, and the files of the styles.
    pub(super) fn large_files(&self, file: Option<&str>) -> Result<Vec<PathBuf>> {
        let mut paths = vec![self.graph(file)?.to_owned()];
        match &self.styles {
            StyleFiles::Each(styles) => paths.extend(styles.iter().cloned()),
            StyleFiles::Archive(archive) => paths.push(archive.clone()),
        }
        Ok(paths)
    }

    /// Returns the graph that `file` names, or else the only one or the one without a suffix.
    fn graph(&self, file: Option<&str>) -> Result<&Path> {
        let mut chosen: Vec<&PathBuf> = self.graphs.iter().collect();
        if let Some(file) = file {
            chosen.retain(|path| path.strip_prefix(&self.folder).is_ok_and(|inside| inside.ends_with(file)));
        }
        if let [graph] = chosen[..] {
            return Ok(graph);
        }
        let usual = chosen.iter().find(|path| path.file_name().is_some_and(|name| name == USUAL_GRAPH));
        if let Some(graph) = usual {
            return Ok(graph);
        }
        let names: Vec<String> =
            self.graphs.iter().filter_map(|path| Some(path.file_name()?.to_string_lossy().into())).collect();
        let expected = match file {
            Some(file) => format!("one graph that is named {file}"),
            None => "one graph; choose it with --file".to_owned(),
        };
        Err(refused(format!("graphs of {}", self.folder.display()), expected, names.join(", ")))
    }

    /// Writes the files of the voice. `english` is the folder with the files of the English pronunciation.
    pub(super) fn write(
        &self,
        file: Option<&str>,
        english: Option<&Path>,
        package: &PackageWriter,
        progress: &dyn ProgressSink,
        cancel: &AtomicBool,
    ) -> Result<VoiceParts> {
        let path = self.graph(file)?;
        let graph = write_graph(path, package, cancel)?;
        let graph_entry = graph_entry(&graph, &path.display().to_string(), &NAMES, BOUND)?;
        check_width(&graph)?;
        package.write("phonemes.json", &self.alphabet()?)?;

        let readable = readable(self.speakers()?, progress)?;
        let rows = rows(&readable)?;
        let bytes: Vec<u8> =
            readable.iter().flat_map(|style| &style.bytes[..rows * WIDTH * 4]).copied().collect();
        package.write(STYLES, &bytes)?;
        let speakers = readable.iter().enumerate().filter_map(|(number, style)| {
            let (_, language, _) = language(&style.name)?;
            Some(Speaker { name: style.name.clone(), language: language.to_owned(), number })
        });
        let speakers: Vec<Speaker> = speakers.collect();
        let pronunciations = self.pronunciations(&speakers, english, package, cancel)?;
        Ok(VoiceParts {
            voice: ImportedVoice { sample_rate: SAMPLE_RATE, family: VoiceFamily::Kokoro },
            entry: VoiceEntry {
                alphabet: "phonemes.json".to_owned(),
                styles: Some(STYLES.to_owned()),
                noise: None,
                speakers,
                pronunciations,
            },
            graph: graph_entry,
            max_phonemes: rows,
        })
    }

    /// Returns the ids of phonemes, as the folder or else Kokoro 82M states them.
    fn alphabet(&self) -> Result<Vec<u8>> {
        let stated = [("config.json", "/vocab"), ("tokenizer.json", "/model/vocab")];
        for (file, pointer) in stated {
            if !self.folder.join(file).is_file() {
                continue;
            }
            let json: Value = serde_json::from_slice(&read(&self.folder, file)?)
                .map_err(|error| refused(file, "a JSON file", error))?;
            if let Some(vocabulary) = json.pointer(pointer) {
                let ids = Map::deserialize(vocabulary)
                    .map_err(|error| refused(file, "an object with the ids of phonemes", error))?;
                // The pad is no phoneme.
                let ids: Map<String, Value> =
                    ids.into_iter().filter(|(phoneme, id)| phoneme != "$" && id.is_i64()).collect();
                return serde_json::to_vec(&ids).map_err(|error| refused(file, "ids of phonemes", error));
            }
        }
        Ok(ALPHABET.to_vec())
    }

    /// Returns the styles of every speaker, in the order of their languages and names, after the default one.
    fn speakers(&self) -> Result<Vec<Style>> {
        let mut styles = match &self.styles {
            StyleFiles::Each(files) => {
                let read = files.iter().map(|path| Ok(Style { name: stem(path), bytes: read_file(path)? }));
                read.collect::<Result<Vec<_>>>()?
            }
            StyleFiles::Archive(path) => archived_styles(path)?,
        };
        styles.sort_by_key(|style| {
            let place = LANGUAGES.iter().position(|known| language(&style.name) == Some(*known));
            (style.name != DEFAULT_SPEAKER, place, style.name.clone())
        });
        Ok(styles)
    }

    /// Returns the pronunciations of the speakers' languages, and writes the files of the English ones.
    fn pronunciations(
        &self,
        speakers: &[Speaker],
        english: Option<&Path>,
        package: &PackageWriter,
        cancel: &AtomicBool,
    ) -> Result<Vec<Pronunciation>> {
        let is_spoken = |name: &str| speakers.iter().any(|speaker| speaker.language == name);
        let accents: Vec<&str> = LANGUAGES
            .into_iter()
            .filter_map(|(_, name, espeak)| (espeak.is_none() && is_spoken(name)).then_some(name))
            .collect();
        let mut pronunciations = Vec::new();
        if !accents.is_empty() {
            let folder = english.unwrap_or(&self.folder);
            pronunciations = english::write(folder, &accents, package, cancel)?;
        }
        pronunciations.extend(LANGUAGES.into_iter().filter_map(|(_, name, espeak)| {
            let source = PhonemeSource::Espeak { voice: espeak.filter(|_| is_spoken(name))?.to_owned() };
            Some(Pronunciation { language: name.to_owned(), source })
        }));
        Ok(pronunciations)
    }
}

/// Returns the language of a speaker: that of the first letter of names such as `af_heart`, or else American English.
/// `None` for languages that cannot be read.
fn language(name: &str) -> Option<(char, &'static str, Option<&'static str>)> {
    let mut letters = name.chars();
    let prefix = match (letters.next(), letters.next(), letters.next()) {
        (Some(letter), Some('f' | 'm'), Some('_')) => letter,
        _ => 'a',
    };
    if UNREADABLE.contains(&prefix) {
        return None;
    }
    Some(LANGUAGES.into_iter().find(|(letter, ..)| *letter == prefix).unwrap_or(LANGUAGES[0]))
}

/// Fails if the graph does not read styles of the usual width.
fn check_width(graph: &Graph) -> Result<()> {
    let style = graph.inputs.iter().find(|input| input.name == "style");
    match style.and_then(|style| style.shape.last()) {
        Some(Dim::Fixed(width)) if *width != WIDTH as u64 => {
            Err(refused("input style", format!("{WIDTH} numbers"), width))
        }
        _ => Ok(()),
    }
}

/// Returns the styles of the speakers whose languages can be read. Notes the others.
fn readable(styles: Vec<Style>, progress: &dyn ProgressSink) -> Result<Vec<Style>> {
    let (readable, unreadable): (Vec<Style>, Vec<Style>) =
        styles.into_iter().partition(|style| language(&style.name).is_some());
    if readable.is_empty() {
        return Err(refused("speakers", "a speaker of a language that can be read", "none"));
    }
    if !unreadable.is_empty() {
        let names: Vec<&str> = unreadable.iter().map(|style| style.name.as_str()).collect();
        let note = format!(
            "Speakers of Japanese and Chinese are left out, because their texts cannot be pronounced: {}.",
            names.join(", ")
        );
        progress.event(Progress::Note(note));
    }
    Ok(readable)
}

/// Returns the number of rows that every style has, which is the maximum number of phonemes.
fn rows(styles: &[Style]) -> Result<usize> {
    let mut rows = MAX_PHONEMES;
    for style in styles {
        let count = style.bytes.len() / (WIDTH * 4);
        if count == 0 || style.bytes.len() % (WIDTH * 4) != 0 {
            let expected = format!("rows of {WIDTH} numbers in single precision");
            return Err(refused(format!("styles of {}", style.name), expected, bytes_of(style)));
        }
        rows = rows.min(count);
    }
    Ok(rows)
}

fn bytes_of(style: &Style) -> String {
    format!("{} bytes", style.bytes.len())
}

/// Returns the names of the files in an archive of NumPy.
fn archived_names(path: &Path) -> Result<Vec<String>> {
    let archive = open_archive(path)?;
    let mut names = Vec::new();
    for index in 0..archive.len() {
        let member = archive.by_index_data(index).map_err(bad_archive(path))?;
        names.push(member.name().map_err(bad_archive(path))?.into_owned());
    }
    Ok(names)
}

/// Returns the styles of an archive of NumPy.
fn archived_styles(path: &Path) -> Result<Vec<Style>> {
    let mut archive = open_archive(path)?;
    let mut styles = Vec::new();
    let mut rest = MAX_BYTES;
    for index in 0..archive.len() {
        let member = archive.by_index(index).map_err(bad_archive(path))?;
        let name = member.name().map_err(bad_archive(path))?.into_owned();
        let mut bytes = Vec::new();
        let mut limited = member.take(rest + 1);
        limited.read_to_end(&mut bytes).map_err(unreadable(path))?;
        rest = rest.checked_sub(bytes.len() as u64).ok_or_else(|| {
            refused(path.display().to_string(), format!("at most {MAX_BYTES} bytes of styles"), "more")
        })?;
        let bytes = array_elements(&name, bytes)?;
        styles.push(Style { name: name.trim_end_matches(".npy").to_owned(), bytes });
    }
    Ok(styles)
}

/// Returns the elements of an array of NumPy in single precision.
fn array_elements(name: &str, array: Vec<u8>) -> Result<Vec<u8>> {
    let wrong = |found: String| refused(name, "an array of NumPy with little-endian f32 in rows", found);
    let Some(version) = array.strip_prefix(b"\x93NUMPY").and_then(|rest| rest.first().copied()) else {
        return Err(wrong("another file".to_owned()));
    };
    let field = if version == 1 { 8..10 } else { 8..12 };
    let mut length = [0; 8];
    let stated = array.get(field.clone()).ok_or_else(|| wrong("an incomplete file".to_owned()))?;
    length[..stated.len()].copy_from_slice(stated);
    let start = field.end.saturating_add(u64::from_le_bytes(length) as usize);
    let header = array.get(field.end..start).ok_or_else(|| wrong("an incomplete file".to_owned()))?;
    let header = String::from_utf8_lossy(header);
    if !header.contains("'<f4'") || !header.contains("'fortran_order': False") {
        return Err(wrong(header.trim().to_owned()));
    }
    Ok(array[start..].to_vec())
}

fn open_archive(path: &Path) -> Result<ZipArchive<BufReader<File>>> {
    let file = narthex_files::open_regular(path).map_err(unreadable(path))?;
    let archive = ZipArchive::new(BufReader::new(file)).map_err(bad_archive(path))?;
    if archive.len() > VoiceEntry::MAX_SPEAKERS {
        let expected = format!("at most {} speakers", VoiceEntry::MAX_SPEAKERS);
        return Err(refused(path.display().to_string(), expected, archive.len()));
    }
    Ok(archive)
}

fn bad_archive(path: &Path) -> impl Fn(zip::result::ZipError) -> CompileError {
    move |error| refused(path.display().to_string(), "an archive of NumPy", error)
}

/// Returns whether a file begins as an archive.
fn is_archive(path: &Path) -> bool {
    let mut beginning = [0; 2];
    let opened = narthex_files::open_regular(path);
    opened.and_then(|mut file| file.read_exact(&mut beginning)).is_ok() && beginning == *b"PK"
}

/// Returns the files of a folder with an extension, in order; none if there is no folder.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(std::result::Result::ok);
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_file() && path.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    files
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::{io::Write, sync::Mutex};

    use narthex_spec::progress::Quiet;

    use super::*;

    #[test]
    fn the_first_letter_of_a_speaker_is_its_language() {
        let check = |name: &str, expect: Option<&str>| {
            assert_eq!(language(name).map(|(_, tag, _)| tag), expect, "{name}");
        };
        check("af_heart", Some("en-US"));
        check("bm_george", Some("en-GB"));
        check("ff_siwis", Some("fr-FR"));
        check("jf_alpha", None);
        check("zm_yunxi", None);
        check("af", Some("en-US"));
        check("my_voice", Some("en-US"));
        check("bob", Some("en-US"));
    }

    #[test]
    fn arrays_of_numpy_are_read() {
        let array = |header: &str| {
            let length = (header.len() as u16).to_le_bytes();
            [&b"\x93NUMPY\x01\0"[..], &length, header.as_bytes(), &[1, 2, 3, 4]].concat()
        };
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n";
        assert_eq!(array_elements("a", array(header)).unwrap(), [1, 2, 3, 4]);
        let check = |bytes: Vec<u8>, expect: &str| {
            let message = array_elements("a", bytes).unwrap_err().to_string();
            assert!(message.contains(expect), "{message}");
        };
        check(array(&header.replace("<f4", "<f8")), "<f8");
        check(array(&header.replace("False", "True")), "True");
        check(array(header)[..20].to_vec(), "an incomplete file");
        check(b"\x93NUMPY\x02\0\xff\xff".to_vec(), "an incomplete file");
        check(b"PK".to_vec(), "another file");
    }

    #[test]
    fn styles_of_an_archive_are_those_of_its_arrays() {
        let folder = tempfile::tempdir().unwrap();
        let mut archive = zip::ZipWriter::new(File::create(folder.path().join("voices-v1.0.bin")).unwrap());
        for (name, value) in [("bm_george", 2), ("af_heart", 1)] {
            archive.start_file(format!("{name}.npy"), zip::write::SimpleFileOptions::default()).unwrap();
            let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1, 256), }\n";
            let length = (header.len() as u16).to_le_bytes();
            let array = [&b"\x93NUMPY\x01\0"[..], &length, header.as_bytes(), &[value; 2048]].concat();
            archive.write_all(&array).unwrap();
        }
        archive.finish().unwrap();
        fs::write(folder.path().join("kokoro-v1.0.onnx"), "").unwrap();

        let files = KokoroFiles::find(folder.path()).unwrap();
        assert!(files.needs_english().unwrap());
        assert_eq!(KokoroFiles::find(&folder.path().join("kokoro-v1.0.onnx")).unwrap(), files);
        let styles = files.speakers().unwrap();
        let found: Vec<(&str, usize, u8)> =
            styles.iter().map(|style| (style.name.as_str(), style.bytes.len(), style.bytes[0])).collect();
        assert_eq!(found, [("af_heart", 2048, 1), ("bm_george", 2048, 2)]);
        assert_eq!(rows(&styles).unwrap(), 2);

        fs::write(folder.path().join("voices-v1.0.bin"), "PK").unwrap();
        let message = files.speakers().err().unwrap().to_string();
        assert!(message.contains("an archive of NumPy"), "{message}");
    }

    #[test]
    fn rows_are_those_of_speakers_that_can_be_read() {
        let style = |name: &str, rows: usize| Style { name: name.to_owned(), bytes: vec![0; rows * 1024] };
        let notes = Mutex::new(Vec::new());
        let sink = |event: Progress| notes.lock().unwrap().push(event);
        let styles = vec![style("af_heart", 500), style("jf_alpha", 0), style("bm_george", 400)];
        let found = readable(styles, &sink).unwrap();
        assert_eq!(
            found.iter().map(|style| style.name.as_str()).collect::<Vec<_>>(),
            ["af_heart", "bm_george"]
        );
        assert_eq!(rows(&found).unwrap(), 400);
        let notes = notes.into_inner().unwrap();
        assert!(matches!(&notes[..], [Progress::Note(note)] if note.ends_with(": jf_alpha.")), "{notes:?}");
        assert!(readable(vec![style("zm_yunxi", 500)], &Quiet).is_err());
    }

    #[test]
    fn styles_have_whole_rows() {
        let style = |bytes: usize| Style { name: "af_heart".to_owned(), bytes: vec![0; bytes] };
        assert_eq!(rows(&[style(511 * 1024), style(600 * 1024)]).unwrap(), 510);
        assert_eq!(rows(&[style(511 * 1024), style(300 * 1024)]).unwrap(), 300);
        for wrong in [0, 1023, 1025] {
            let message = rows(&[style(wrong)]).unwrap_err().to_string();
            assert!(message.contains("expected rows of 256 numbers"), "{message}");
        }
    }
}
