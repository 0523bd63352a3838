//! Files of the English pronunciation: misaki's dictionaries, a tagger and a model for unknown words, as the wheel of
//! hibari has them.

use std::{io::Read, path::Path, sync::atomic::AtomicBool};

use flate2::read::GzDecoder;
use narthex_spec::manifest::{EnglishPronunciation, PhonemeSource, Pronunciation};

use super::{MAX_BYTES, open_graph, read};
use crate::{error::Result, import::refused, package::PackageWriter};

/// Tagger of the words.
pub(super) const TAGGER: &str = "tagger.json.gz";
/// Texts that are divided into tokens differently.
const EXCEPTIONS: &str = "tokenizer_exceptions.json";

/// Returns whether a file is one of the graphs for unknown words.
pub(super) fn is_graph(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "oov.onnx" || name == "oov_gb.onnx")
}

/// Returns whether a folder has the files.
pub(super) fn is_in(folder: &Path) -> bool {
    folder.join(TAGGER).is_file()
}

/// Writes the files of the pronunciations of some English languages.
pub(super) fn write(
    folder: &Path,
    languages: &[&str],
    package: &PackageWriter,
    cancel: &AtomicBool,
) -> Result<Vec<Pronunciation>> {
    package.write("tagger.json", &decompressed(folder, TAGGER)?)?;
    package.write("exceptions.json", &read(folder, EXCEPTIONS)?)?;
    let mut pronunciations = Vec::new();
    for language in languages {
        let english = write_accent(folder, Accent::of(language), package, cancel)?;
        let source = PhonemeSource::English(english);
        pronunciations.push(Pronunciation { language: (*language).to_owned(), source });
    }
    Ok(pronunciations)
}

/// Names of an accent's files.
struct Accent {
    name: &'static str,
    letters: &'static str,
}

impl Accent {
    fn of(language: &str) -> Self {
        match language {
            "en-GB" => Self { name: "gb", letters: "oov_gb" },
            _ => Self { name: "us", letters: "oov" },
        }
    }
}

/// Writes the dictionaries of an accent and its model for unknown words.
fn write_accent(
    folder: &Path,
    accent: Accent,
    package: &PackageWriter,
    cancel: &AtomicBool,
) -> Result<EnglishPronunciation> {
    let Accent { name, letters } = accent;
    let gold = format!("{name}-gold.json");
    package.write(&gold, &decompressed(folder, &format!("lexicon_{name}_gold.json.gz"))?)?;
    let silver = format!("{name}-silver.json");
    package.write(&silver, &decompressed(folder, &format!("lexicon_{name}_silver.json.gz"))?)?;

    let alphabet = format!("{name}-letters.json");
    package.write(&alphabet, &read(folder, &format!("{letters}.json"))?)?;
    let letters_graph = format!("{name}-letters.onnx");
    let graph = folder.join(format!("{letters}.onnx"));
    open_graph(&graph)?;
    package.copy(&letters_graph, &graph, cancel)?;
    Ok(EnglishPronunciation {
        gold,
        silver,
        tagger: "tagger.json".to_owned(),
        exceptions: "exceptions.json".to_owned(),
        letters_graph,
        letters: alphabet,
    })
}

/// Reads a file and decompresses it.
fn decompressed(folder: &Path, file: &str) -> Result<Vec<u8>> {
    let compressed = read(folder, file)?;
    let mut bytes = Vec::new();
    let mut decoder = GzDecoder::new(compressed.as_slice()).take(MAX_BYTES + 1);
    decoder.read_to_end(&mut bytes).map_err(|error| refused(file, "a gzip file", error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(refused(file, format!("at most {MAX_BYTES} bytes"), "more"));
    }
    Ok(bytes)
}
