//! Speech of a tiny voice, whose graph gives a frame for each phoneme.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::{fs, io::Write, ops::ControlFlow, path::Path};

use flate2::{Compression, write::GzEncoder};
use narthex_gateway::{
    Cancel, CompileRequest, Error, ErrorKind, Gateway, ImportRequest,
    request::{EmbedRequest, SpeechEvent, SpeechRequest, SpeechSummary},
};
use narthex_graph::Builder;
use narthex_spec::{DType, ModelKind, Scheme, dtype::Dim, progress::Quiet};

use crate::support::{Tiny, greedy, question};

/// Number of samples in a frame.
const FRAME: usize = 300;

/// Writes a graph that returns the same spectrum for each phoneme.
fn write_graph(path: &Path) {
    let mut graph = Builder::new("voice", &[("", 17)]);
    let length = Dim::symbol("L");
    let ids = graph.input("ids", DType::I64, &[Dim::Fixed(1), length.clone()]);
    let speed = graph.input("speed", DType::F32, &[Dim::Fixed(1)]);
    let zero = graph.scalar(0.0);
    let numbers = graph.cast("numbers", &ids, DType::F32);
    let zeros = graph.op("zeros", "Mul", &[&numbers, &zero]);
    let base = graph.scalar(150.0);
    let pitch = graph.op("pitch", "Add", &[&zeros, &base]);
    let pitch = graph.op("slowed", "Mul", &[&pitch, &speed]);
    graph.rename(&pitch, "f0");
    let axis = graph.ints(&[1], &[1]);
    let bins = graph.ints(&[3], &[1, 601, 1]);
    let row = graph.op("row", "Unsqueeze", &[&zeros, &axis]);
    for (name, value) in [("lh", -4.0), ("theta", 0.1), ("ln", -6.0), ("lr", -9.0), ("phi", 0.5)] {
        let value = graph.scalar(value);
        let part = graph.op(&format!("{name}.row"), "Add", &[&row, &value]);
        let part = graph.op(&format!("{name}.part"), "Expand", &[&part, &bins]);
        graph.rename(&part, name);
        graph.output(name, DType::F32, &[Dim::Fixed(1), Dim::Fixed(601), length.clone()]);
    }
    graph.output("f0", DType::F32, &[Dim::Fixed(1), length]);
    fs::write(path, graph.finish().encode()).unwrap();
}

/// Writes a graph that returns the letters that it reads.
fn write_letters(path: &Path) {
    let mut graph = Builder::new("letters", &[("", 17)]);
    let shape = [Dim::Fixed(1), Dim::symbol("N")];
    let letters = graph.input("chars", DType::I64, &shape);
    let classes = graph.op("classes", "Identity", &[&letters]);
    graph.rename(&classes, "classes");
    graph.output("classes", DType::I64, &shape);
    fs::write(path, graph.finish().encode()).unwrap();
}

fn write_compressed(path: &Path, text: &str) {
    let mut encoder = GzEncoder::new(fs::File::create(path).unwrap(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap();
}

/// Writes the files of a voice, and imports it as `tiny-voice`.
fn voice(tiny: &Tiny, gateway: &Gateway) -> String {
    let folder = tiny.home().parent().unwrap().join("tiny-voice");
    fs::create_dir_all(&folder).unwrap();
    write_graph(&folder.join("voice.onnx"));
    write_letters(&folder.join("oov.onnx"));
    let files = [
        ("voices.json", r#"{"ann": {"language": "en-US", "file": "voice.onnx"}}"#),
        ("vocab.json", r#"{"h": 1, "O": 2, "l": 3, ".": 4, "a": 5, "b": 6, "ˈ": 7, " ": 8}"#),
        ("tokenizer_exceptions.json", "{}"),
        ("oov.json", r#"{"in": ["z", "y"], "out": ["a", "b"], "maxlen": 24}"#),
    ];
    files.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
    let tagger = r#"{"tags": ["NN"], "tagdict": {}, "vocab": [], "weights": {}}"#;
    write_compressed(&folder.join("tagger.json.gz"), tagger);
    write_compressed(&folder.join("lexicon_us_gold.json.gz"), r#"{"hello": "halˈO", "hall": "hal"}"#);
    write_compressed(&folder.join("lexicon_us_silver.json.gz"), "{}");
    let request = ImportRequest { path: folder, name: None, file: None, pooling: None };
    gateway.import(&request, &Quiet, &Cancel::new()).unwrap().1.name.to_string()
}

/// Speaks a text, and returns the samples of each sentence.
fn speak(gateway: &Gateway, request: &SpeechRequest) -> Result<(Vec<Vec<f32>>, SpeechSummary), Error> {
    let mut sentences = Vec::new();
    let summary = gateway.speak(request, &mut |SpeechEvent { sample_rate, samples }| {
        assert_eq!(sample_rate, 24_000);
        sentences.push(samples);
        ControlFlow::Continue(())
    })?;
    Ok((sentences, summary))
}

#[test]
fn a_voice_speaks_sentence_by_sentence() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    let model = voice(&tiny, &gateway);
    let request = SpeechRequest { seed: Some(5), ..SpeechRequest::new(&model, "Hello. # \n\nHall zzy") };
    let (sentences, summary) = speak(&gateway, &request).unwrap();
    // `halˈO.` and `hal ab.`, each between two zeros.
    let lengths: Vec<usize> = sentences.iter().map(Vec::len).collect();
    assert_eq!(lengths, [8 * FRAME, 9 * FRAME]);
    assert!(sentences.concat().iter().all(|sample| sample.abs() <= 1.0));
    assert!(sentences.concat().iter().any(|sample| sample.abs() > 1e-3));
    assert_eq!((summary.voice.as_str(), summary.sentences, summary.samples), ("ann", 2, 17 * FRAME));
    assert_eq!(summary.ran_on.device, "cpu");

    assert_eq!(speak(&gateway, &request).unwrap().0, sentences, "the same seed");
    let other = SpeechRequest { seed: Some(6), ..request.clone() };
    assert_ne!(speak(&gateway, &other).unwrap().0, sentences, "another seed");
    let named = SpeechRequest { voice: Some("ann".to_owned()), ..request.clone() };
    assert_eq!(speak(&gateway, &named).unwrap().0, sentences);
    assert_eq!(gateway.status()[0].kind, Some(ModelKind::Speech));

    // A long sentence is spoken in parts.
    let long = SpeechRequest { text: "hello ".repeat(100), ..request };
    let (sentences, _) = speak(&gateway, &long).unwrap();
    assert_eq!(sentences.len(), 1);
    assert!(sentences[0].len() > 600 * FRAME);
}

#[test]
fn speech_ends_when_the_listener_leaves() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    let request = SpeechRequest::new(voice(&tiny, &gateway), "Hello. Hello. Hello.");
    let mut count = 0;
    let error = gateway.speak(&request, &mut |_| {
        count += 1;
        ControlFlow::Break(())
    });
    assert_eq!((error.unwrap_err().kind(), count), (ErrorKind::Cancelled, 1));
}

#[test]
fn requests_that_no_voice_can_fulfil_have_clear_errors() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    let model = voice(&tiny, &gateway);
    let check = |request: SpeechRequest, expect: &str| {
        let error = speak(&gateway, &request).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    };
    let hello = SpeechRequest::new(&model, "Hello.");
    let named = |voice: &str| SpeechRequest { voice: Some(voice.to_owned()), ..hello.clone() };
    check(named("bob"), "expected a voice of tiny-voice: ann; found \"bob\"");
    check(SpeechRequest { speed: 0.1, ..hello.clone() }, "expected a number from 0.25 to 4, found 0.1");
    check(SpeechRequest { text: "  ".to_owned(), ..hello.clone() }, "expected a text, found an empty one");
    check(SpeechRequest { text: "—!".to_owned(), ..hello }, "expected words that a voice for en-US can read");
    check(SpeechRequest::new(tiny.chat(), "Hello."), "is a chat model, not a voice");

    let chat = gateway.stream(&model, question("Hi", greedy(1))).err().unwrap();
    assert!(chat.to_string().contains("tiny-voice is a voice, not a chat model"), "{chat}");
    let embed = gateway.embed(&model, &EmbedRequest::new(["x"]), &Cancel::new()).unwrap_err();
    assert!(embed.to_string().contains("is a voice, not an embedding model"), "{embed}");
}

#[test]
fn voices_are_listed_with_their_models() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    let voices = gateway.voices().unwrap();
    let hibari = voices.iter().find(|voice| voice.id == "heart").unwrap();
    assert_eq!((hibari.model.as_str(), hibari.language.as_str()), ("hibari", "en-US"));
    assert!(hibari.is_default && !hibari.is_installed);

    let model = voice(&tiny, &gateway);
    let voices = gateway.voices().unwrap();
    assert_eq!((voices[0].id.as_str(), voices[0].model.as_str()), ("ann", model.as_str()));
    assert!(voices[0].is_installed);
    let listing = gateway.model(&model).unwrap();
    assert_eq!(listing.kind, ModelKind::Speech);
    let compile = gateway.compile(&model, &CompileRequest::new(Scheme::W8), &Quiet, &Cancel::new());
    assert!(compile.unwrap_err().to_string().contains("is a voice, which is imported and not compiled"));
}
