//! Tiny voices of Kokoro and Piper, whose samples state the inputs of their graphs, and a script in place of espeak-ng.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    io::Write,
    ops::ControlFlow,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use narthex_gateway::{
    Cancel, Config, Error, ErrorKind, Gateway, ImportRequest, LoadStart,
    request::{SpeechEvent, SpeechRequest},
};
use narthex_graph::Builder;
use narthex_spec::{
    DType, ProgressSink,
    dtype::Dim,
    manifest::Manifest,
    progress::{Progress, Quiet},
};
use parking_lot::Mutex;

use crate::support::Tiny;

/// Ids of the phonemes of the tiny Kokoro, with its pad.
const KOKORO_TOKENIZER: &str =
    r#"{"model": {"vocab": {"$": 0, "h": 1, "a": 2, "l": 3, "O": 4, ".": 5, "ˈ": 6, " ": 7, "ʒ": 8}}}"#;

/// Rows of a style.
const ROWS: usize = 510;

/// Progress that keeps the notes.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl ProgressSink for Notes {
    fn event(&self, event: Progress) {
        if let Progress::Note(note) = event {
            self.0.lock().push(note);
        }
    }
}

/// Writes a graph whose samples are the mean of the style times the speed, one for each token.
fn write_kokoro_graph(path: &Path) {
    let mut graph = Builder::new("kokoro", &[("", 17)]);
    let length = Dim::symbol("length");
    let tokens = graph.input("input_ids", DType::I64, &[Dim::Fixed(1), length.clone()]);
    let style = graph.input("style", DType::F32, &[Dim::Fixed(1), Dim::Fixed(256)]);
    let speed = graph.input("speed", DType::F32, &[Dim::Fixed(1)]);
    let numbers = graph.cast("numbers", &tokens, DType::F32);
    let zero = graph.scalar(0.0);
    let zeros = graph.op("zeros", "Mul", &[&numbers, &zero]);
    let mean = graph.op("mean", "ReduceMean", &[&style]);
    let samples = graph.op("samples", "Add", &[&zeros, &mean]);
    let samples = graph.op("faster", "Mul", &[&samples, &speed]);
    graph.rename(&samples, "waveform");
    graph.output("waveform", DType::F32, &[Dim::Fixed(1), length]);
    fs::write(path, graph.finish().encode()).unwrap();
}

/// Writes the styles of a speaker: each row has its number of phonemes divided by 1000, plus a number.
fn write_styles(path: &Path, summand: f32) {
    let rows = (1..=ROWS).flat_map(|row| [row as f32 / 1000.0 + summand; 256]);
    let bytes: Vec<u8> = rows.flat_map(f32::to_le_bytes).collect();
    fs::write(path, bytes).unwrap();
}

/// Writes the files of the American pronunciation with two words.
fn write_english(folder: &Path) {
    let write = |name: &str, text: &str| {
        let mut encoder = GzEncoder::new(fs::File::create(folder.join(name)).unwrap(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap();
    };
    write("tagger.json.gz", r#"{"tags": ["NN"], "tagdict": {}, "vocab": [], "weights": {}}"#);
    write("lexicon_us_gold.json.gz", r#"{"hello": "halˈO", "hall": "hal"}"#);
    write("lexicon_us_silver.json.gz", "{}");
    fs::write(folder.join("tokenizer_exceptions.json"), "{}").unwrap();
    fs::write(folder.join("oov.json"), r#"{"in": ["z"], "out": ["a"], "maxlen": 24}"#).unwrap();
    let mut graph = Builder::new("letters", &[("", 17)]);
    let shape = [Dim::Fixed(1), Dim::symbol("N")];
    let letters = graph.input("chars", DType::I64, &shape);
    let classes = graph.op("classes", "Identity", &[&letters]);
    graph.rename(&classes, "classes");
    graph.output("classes", DType::I64, &shape);
    fs::write(folder.join("oov.onnx"), graph.finish().encode()).unwrap();
}

/// Writes a script in place of espeak-ng.
fn write_program(tiny: &Tiny, body: &str) -> PathBuf {
    let program = tiny.home().parent().unwrap().join("espeak");
    fs::write(&program, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

fn gateway(tiny: &Tiny, espeak: PathBuf) -> Gateway {
    Gateway::open(Config { espeak: Some(espeak), ..tiny.config() }).unwrap()
}

fn import(gateway: &Gateway, path: PathBuf, progress: &dyn ProgressSink) -> Result<Manifest, Error> {
    let request = ImportRequest { path, name: None, file: None, pooling: None };
    Ok(gateway.import(&request, progress, &Cancel::new())?.1)
}

/// Writes the files of a voice of Kokoro.
fn kokoro_folder(tiny: &Tiny) -> PathBuf {
    let folder = tiny.home().parent().unwrap().join("tiny-kokoro");
    fs::create_dir_all(folder.join("voices")).unwrap();
    fs::create_dir_all(folder.join("onnx")).unwrap();
    write_kokoro_graph(&folder.join("onnx/model.onnx"));
    for (name, summand) in [("am_bob", 0.1), ("af_heart", 0.2), ("ff_eve", 0.3), ("jf_kai", 0.4)] {
        write_styles(&folder.join(format!("voices/{name}.bin")), summand);
    }
    fs::write(folder.join("tokenizer.json"), KOKORO_TOKENIZER).unwrap();
    write_english(&folder);
    folder
}

/// Speaks a text. Returns the sample rate and the samples of each sentence.
fn speak(gateway: &Gateway, request: &SpeechRequest) -> Result<(u32, Vec<Vec<f32>>), Error> {
    let mut rate = 0;
    let mut sentences = Vec::new();
    gateway.speak(request, &mut |SpeechEvent { sample_rate, samples }| {
        rate = sample_rate;
        sentences.push(samples);
        ControlFlow::Continue(())
    })?;
    Ok((rate, sentences))
}

fn assert_near(found: &[f32], expect: &[f32]) {
    assert_eq!(found.len(), expect.len(), "{found:?}");
    assert!(found.iter().zip(expect).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?}, not {expect:?}");
}

#[test]
fn kokoro_speaks_in_the_style_of_a_number_of_phonemes() {
    let tiny = Tiny::new();
    let gateway = gateway(&tiny, write_program(&tiny, "cat >/dev/null; echo 'h^aʒ-(^e^n)'"));
    let notes = Notes::default();
    let manifest = import(&gateway, kokoro_folder(&tiny), &notes).unwrap();
    let notes = notes.0.into_inner().join("\n");
    assert!(notes.contains("Japanese and Chinese") && notes.contains("jf_kai"), "{notes}");
    let speakers = &manifest.voice.as_ref().unwrap().speakers;
    let found: Vec<(&str, &str)> =
        speakers.iter().map(|speaker| (speaker.name.as_str(), speaker.language.as_str())).collect();
    assert_eq!(found, [("af_heart", "en-US"), ("am_bob", "en-US"), ("ff_eve", "fr-FR")]);

    let model = manifest.name.to_string();
    let request = SpeechRequest::new(&model, "Hello. Hall");
    let check = |request: &SpeechRequest, expect: &[(usize, f32)]| {
        let (rate, sentences) = speak(&gateway, request).unwrap();
        assert_eq!((rate, sentences.len()), (24_000, expect.len()));
        for (samples, (count, value)) in sentences.iter().zip(expect) {
            assert_near(samples, &vec![*value; *count]);
        }
    };
    // `halˈO.` and `hal.`, each between two zeros.
    check(&request, &[(8, 0.206), (6, 0.204)]);
    let named = |voice: &str| SpeechRequest { voice: Some(voice.to_owned()), ..request.clone() };
    check(&named("am_bob"), &[(8, 0.106), (6, 0.104)]);
    check(&SpeechRequest { speed: 2.0, ..request.clone() }, &[(8, 0.412), (6, 0.408)]);

    // `haʒ, haʒ.` of the program, without the mark that the voice does not know.
    check(&SpeechRequest { text: "Bonjour, Ève.".to_owned(), ..named("ff_eve") }, &[(10, 0.308)]);

    // A sentence with more phonemes than the graph reads is divided and not cut.
    let (_, sentences) = speak(&gateway, &SpeechRequest { text: "hello ".repeat(200), ..request }).unwrap();
    assert_eq!(sentences.len(), 1);
    let phonemes = sentences[0].len();
    assert!(phonemes >= 200 * 6, "{phonemes}");
}

#[test]
fn a_client_that_leaves_ends_a_long_sentence() {
    let tiny = Tiny::new();
    let clauses = tiny.home().parent().unwrap().join("clauses");
    let body = format!("cat >/dev/null; echo >>'{}'; sleep 0.05; echo a", clauses.display());
    let gateway = gateway(&tiny, write_program(&tiny, &body));
    let model = import(&gateway, kokoro_folder(&tiny), &Notes::default()).unwrap().name.to_string();
    // The import ran the program once.
    let clauses_read = || fs::read_to_string(&clauses).map_or(0, |text| text.lines().count());
    let before = clauses_read();
    gateway.load(&model, &Quiet, &Cancel::new()).unwrap();
    let LoadStart::Ready(ready) = gateway.start_load(&model).unwrap() else { panic!("not loaded") };
    let text = "Bonjour, ".repeat(200);
    let request = SpeechRequest { voice: Some("ff_eve".to_owned()), ..SpeechRequest::new(&model, &text) };
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while clauses_read() == before {
                std::thread::yield_now();
            }
            cancel.cancel();
        });
        let error = ready.speak(&request, &mut |_| ControlFlow::Continue(()), &cancel).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    });
    assert!(clauses_read() < before + 200, "{}", clauses_read());
}

#[test]
fn a_text_for_a_program_that_is_not_installed_names_it() {
    let tiny = Tiny::new();
    let gateway = gateway(&tiny, tiny.home().join("none"));
    let notes = Notes::default();
    let model = import(&gateway, kokoro_folder(&tiny), &notes).unwrap().name.to_string();
    assert!(notes.0.into_inner().join("\n").contains("apt install espeak-ng"));

    let request = SpeechRequest::new(&model, "Hello.");
    assert!(speak(&gateway, &request).is_ok(), "English needs no program");
    let french = SpeechRequest { voice: Some("ff_eve".to_owned()), ..request };
    let error = speak(&gateway, &french).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("is not installed"), "{error}");
    assert!(error.hint().unwrap().contains("apt install espeak-ng"));
}

#[test]
fn a_voice_that_is_not_complete_is_refused() {
    let tiny = Tiny::new();
    let gateway = gateway(&tiny, tiny.home().join("none"));
    let check = |folder: &Path, expect: &str| {
        let error = import(&gateway, folder.to_owned(), &Quiet).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    };
    let folder = kokoro_folder(&tiny);
    fs::write(folder.join("voices/af_heart.bin"), [0; 100]).unwrap();
    check(&folder, "found 100 bytes, expected rows of 256 numbers in single precision");
    let folder = kokoro_folder(&tiny);
    fs::rename(folder.join("onnx/model.onnx"), folder.join("onnx/model_q8.onnx")).unwrap();
    fs::copy(folder.join("oov.onnx"), folder.join("onnx/other.onnx")).unwrap();
    check(&folder, "found model_q8.onnx, other.onnx, expected one graph; choose it with --file");
    fs::rename(folder.join("onnx/other.onnx"), folder.join("onnx/model.onnx")).unwrap();
    check(&folder, "expected tokens (I64), input_ids (I64), style (F32)");
}

/// Writes a voice of Piper with this graph and these settings.
fn write_piper(tiny: &Tiny, name: &str, graph: Builder, settings: &str) -> PathBuf {
    let folder = tiny.home().parent().unwrap().join("piper-voices");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("{name}.onnx"));
    fs::write(&path, graph.finish().encode()).unwrap();
    let settings = format!(
        r#"{{"audio": {{"sample_rate": 22050}}, "espeak": {{"voice": "en-us"}},
            "inference": {{"noise_scale": 0.2, "length_scale": 0.5, "noise_w": 0.4}},
            "phoneme_id_map": {{"_": [0], "^": [1], "$": [2], "h": [3], "ə": [4], "l": [5], ".": [6], "oʊ": [7]}}{settings}}}"#
    );
    fs::write(folder.join(format!("{name}.onnx.json")), settings).unwrap();
    path
}

/// Returns the beginning of a graph of Piper, and its inputs.
fn piper_inputs(graph: &mut Builder) -> [String; 3] {
    let batch = Dim::symbol("batch_size");
    [
        graph.input("input", DType::I64, &[batch.clone(), Dim::symbol("phonemes")]),
        graph.input("input_lengths", DType::I64, &[batch]),
        graph.input("scales", DType::F32, &[Dim::Fixed(3)]),
    ]
}

fn end_piper(graph: &mut Builder, samples: &str) {
    let shape = graph.ints(&[4], &[1, 1, 1, -1]);
    let output = graph.op("end", "Reshape", &[samples, &shape]);
    graph.rename(&output, "output");
    graph.output("output", DType::F32, &[Dim::Fixed(1), Dim::Fixed(1), Dim::Fixed(1), Dim::symbol("time")]);
}

#[test]
fn piper_reads_scales_speakers_and_padded_phonemes() {
    let tiny = Tiny::new();
    let gateway = gateway(&tiny, write_program(&tiny, "cat >/dev/null; echo 'həl'"));
    // The samples are the scales, and the tens of the length and of the speaker; their peak is 1.
    let mut graph = Builder::new("piper", &[("", 15)]);
    let [ids, lengths, scales] = piper_inputs(&mut graph);
    let speaker = graph.input("sid", DType::I64, &[Dim::symbol("batch_size")]);
    let tenth = graph.scalar(0.1);
    let hundredth = graph.scalar(0.01);
    let length = graph.cast("length", &lengths, DType::F32);
    let length = graph.op("length", "Mul", &[&length, &hundredth]);
    let number = graph.cast("speaker", &speaker, DType::F32);
    let number = graph.op("speaker", "Mul", &[&number, &tenth]);
    let padded = graph.cast("ids", &ids, DType::F32);
    let padded = graph.op("ids", "Mul", &[&padded, &hundredth]);
    let flat = graph.ints(&[1], &[-1]);
    let padded = graph.op("flat", "Reshape", &[&padded, &flat]);
    let one = graph.op("same", "Div", &[&tenth, &tenth]);
    let one = graph.op("one", "Reshape", &[&one, &flat]);
    let parts = [scales.as_str(), &length, &number, &padded, &one];
    let samples = graph.op_with("all", "Concat", &parts, &[("axis", 0i64.into())]);
    end_piper(&mut graph, &samples);

    let settings = r#", "num_speakers": 2, "speaker_id_map": {"ann": 1, "bob": 0}"#;
    let path = write_piper(&tiny, "en_US-two-low", graph, settings);
    let manifest = import(&gateway, path, &Quiet).unwrap();
    assert_eq!(manifest.name.as_str(), "en_us-two-low");

    let request = SpeechRequest { speed: 2.0, ..SpeechRequest::new(manifest.name.as_str(), "Hello") };
    let named = SpeechRequest { voice: Some("ann".to_owned()), ..request.clone() };
    for (request, speaker) in [(request, 0.0), (named, 0.1)] {
        let (rate, sentences) = speak(&gateway, &request).unwrap();
        assert_eq!(rate, 22_050);
        // `həl.` with pads: ^ _ h _ ə _ l _ . _ $.
        let ids = [1, 0, 3, 0, 4, 0, 5, 0, 6, 0, 2].map(|id| id as f32 / 100.0);
        assert_near(&sentences.concat(), &[&[0.2, 0.25, 0.4, 0.11, speaker][..], &ids, &[1.0]].concat());
    }
}

#[test]
fn the_noise_of_piper_is_normal_and_decided_by_the_seed() {
    let tiny = Tiny::new();
    let gateway = gateway(&tiny, write_program(&tiny, "cat >/dev/null; echo 'həl'"));
    let mut graph = Builder::new("noise", &[("", 15)]);
    let [ids, lengths, scales] = piper_inputs(&mut graph);
    let numbers = graph.cast("numbers", &ids, DType::F32);
    let zero = graph.scalar(0.0);
    let zeros = graph.op("zeros", "Mul", &[&numbers, &zero]);
    let lengths = graph.cast("lengths", &lengths, DType::F32);
    let none = graph.op("none", "Mul", &[&lengths, &zero]);
    let shape = graph.ints(&[2], &[4_000, 1]);
    let wide = graph.op("wide", "Expand", &[&zeros, &shape]);
    let noise = graph.op("noise", "RandomNormalLike", &[&wide]);
    let first = graph.ints(&[], &[0]);
    let scale = graph.op("scale", "Gather", &[&scales, &first]);
    let samples = graph.op("scaled", "Mul", &[&noise, &scale]);
    let samples = graph.op("samples", "Add", &[&samples, &none]);
    end_piper(&mut graph, &samples);

    let path = write_piper(&tiny, "noise", graph, r#", "language": {"code": "en_GB"}, "dataset": "sea""#);
    let manifest = import(&gateway, path, &Quiet).unwrap();
    let voice = &manifest.voice.as_ref().unwrap().speakers[0];
    assert_eq!((voice.name.as_str(), voice.language.as_str()), ("sea", "en-GB"));

    let of_seed = |seed: u64| {
        let request =
            SpeechRequest { seed: Some(seed), ..SpeechRequest::new(manifest.name.as_str(), "Hello.") };
        speak(&gateway, &request).unwrap().1.concat()
    };
    let samples = of_seed(1);
    assert_eq!(samples.len(), 11 * 4_000);
    assert_eq!(of_seed(1), samples, "the same seed");
    assert_ne!(of_seed(2), samples, "another seed");

    let moment = |power: i32| {
        let sum: f64 = samples.iter().map(|sample| f64::from(*sample).powi(power)).sum();
        sum / samples.len() as f64
    };
    let deviation = moment(2).sqrt();
    assert!(moment(1).abs() < 0.02 * deviation, "mean {}", moment(1));
    let kurtosis = moment(4) / moment(2).powi(2);
    assert!((kurtosis - 3.0).abs() < 0.1, "kurtosis {kurtosis}");
    for lag in [1, 2, 3, 7, 4_000] {
        let pairs = samples.iter().zip(&samples[lag..]);
        let sum: f64 = pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        let correlation = sum / (samples.len() - lag) as f64 / moment(2);
        assert!(correlation.abs() < 0.02, "lag {lag}: {correlation}");
    }
}
