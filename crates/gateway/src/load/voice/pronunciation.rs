//! Phonemes of sentences in one language.

use narthex_device::cpu_graph::CpuGraph;
use narthex_spec::{
    Elements, Feed,
    manifest::{EnglishPronunciation, PhonemeSource, Pronunciation},
};
use narthex_speech::{
    english::{Accent, English, EnglishFiles, LetterModel},
    espeak::{self, ClauseReader, Notation},
};

use super::espeak::Espeak;
use crate::{
    cancel::Cancel,
    error::Error,
    library::package::{self, bad_package},
    load::{cpu_model::open_graph, request::LoadRequest},
};

/// Pronunciation of a language.
pub(super) struct SpokenLanguage {
    pub(super) language: String,
    reader: Reader,
}

/// Source of the phonemes of a sentence.
enum Reader {
    /// Dictionaries and rules, with the graph for unknown words.
    English(Box<English>, LetterGraph),
    /// A program.
    Espeak(Espeak),
}

/// Clauses of a sentence, which the program reads one by one.
struct Clauses<'a> {
    program: &'a Espeak,
    cancel: &'a Cancel,
}

impl ClauseReader for Clauses<'_> {
    type Error = Error;

    fn read(&mut self, clause: &str) -> Result<String, Error> {
        self.cancel.check()?;
        self.program.run(clause)
    }
}

/// Graph that spells the pronunciation of a word from its letters.
struct LetterGraph {
    graph: CpuGraph,
    input: String,
    output: String,
}

impl SpokenLanguage {
    /// Opens a pronunciation. Phonemes of espeak-ng are in a notation.
    pub(super) fn open(
        request: &LoadRequest<'_>,
        pronunciation: &Pronunciation,
        notation: Notation,
    ) -> Result<Self, Error> {
        let Pronunciation { language, source } = pronunciation;
        let reader = match source {
            PhonemeSource::English(files) => open_english(request, accent(language), files)?,
            PhonemeSource::Espeak { voice } => Reader::Espeak(Espeak::new(&request.config, voice, notation)),
        };
        Ok(Self { language: language.clone(), reader })
    }

    /// Returns the phonemes of a normalised sentence.
    pub(super) fn phonemes(&mut self, sentence: &str, cancel: &Cancel) -> Result<String, Error> {
        match &mut self.reader {
            Reader::English(english, letters) => english.phonemes(sentence, letters),
            Reader::Espeak(program) => {
                espeak::phonemes(sentence, program.notation(), &mut Clauses { program, cancel })
            }
        }
    }
}

/// Reads the files of an English pronunciation.
fn open_english(
    request: &LoadRequest<'_>,
    accent: Accent,
    files: &EnglishPronunciation,
) -> Result<Reader, Error> {
    let EnglishPronunciation { gold, silver, tagger, exceptions, letters_graph, letters } = files;
    let read = |file: &String| package::read(&request.package.folder, file);
    let english = English::new(
        accent,
        EnglishFiles {
            gold: &read(gold)?,
            silver: &read(silver)?,
            tagger: &read(tagger)?,
            exceptions: &read(exceptions)?,
            letters: &read(letters)?,
        },
    );

    let english = english.map_err(|error| bad_package(&request.package.key, error.to_string()))?;
    let graph = open_graph(request, letters_graph)?;
    let names = [graph.inputs().first().copied(), graph.outputs().first().copied()];
    let [input, output] = names.map(|name| name.unwrap_or_default().to_owned());
    Ok(Reader::English(Box::new(english), LetterGraph { graph, input, output }))
}

/// Returns whether a language tag is one of English, whose texts are normalised.
pub(crate) fn is_english(language: &str) -> bool {
    language.split('-').next() == Some("en")
}

/// Returns the accent of a language tag.
pub(crate) fn accent(language: &str) -> Accent {
    if language == "en-GB" { Accent::British } else { Accent::American }
}

impl LetterModel for LetterGraph {
    type Error = Error;

    fn run(&mut self, letters: &[i64]) -> Result<Vec<i64>, Error> {
        let letters = Feed {
            name: self.input.clone(),
            shape: vec![1, letters.len()],
            elements: Elements::I64(letters.to_vec()),
        };
        let tensors = self.graph.run(vec![letters], &[&self.output])?;
        Ok(match tensors.into_iter().next().map(|tensor| tensor.elements) {
            Some(Elements::I64(classes)) => classes,
            Some(Elements::I32(classes)) => classes.into_iter().map(i64::from).collect(),
            Some(Elements::F32(_) | Elements::Bool(_)) | None => Vec::new(),
        })
    }
}
