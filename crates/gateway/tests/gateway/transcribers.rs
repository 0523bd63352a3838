//! Imported models that transcribe speech: tiny random models in the layouts of onnx-asr and of Moonshine's package, whose
//! tokens are those of these packages. `tests/goldens/nemo/nemo.py` and `tests/goldens/moonshine/moonshine.py` made them.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use narthex_gateway::{
    Cancel, Config, Error, ErrorKind, Gateway, ImportRequest,
    models::ModelKind,
    request::{ActivitySettings, BeamSearch, Task, Transcript, TranscriptionEvent, TranscriptionRequest},
};
use narthex_spec::{DeviceName, Ep, NpuPolicy, manifest::Manifest, progress::Quiet};
use narthex_testkit::sound::voice as sound;
use serde::Deserialize;

use crate::support::{Tiny, speech_goldens as goldens};

/// Samples of a row of the tiny encoders.
const ROW: f64 = 0.08;

#[derive(Deserialize)]
struct NemoGolden {
    folder: String,
    file: Option<String>,
    tokens: Vec<u32>,
    rows: Vec<usize>,
    log_probabilities: Vec<f32>,
    text: String,
}

#[derive(Deserialize)]
struct MoonshineGolden {
    samples: usize,
    tokens: Vec<u32>,
    text: String,
}

fn import(gateway: &Gateway, path: PathBuf, file: Option<&str>, name: &str) -> Result<Manifest, Error> {
    let name = Some(name.parse().unwrap());
    let request = ImportRequest { path, name, file: file.map(str::to_owned), pooling: None };
    Ok(gateway.import(&request, &Quiet, &Cancel::new())?.1)
}

/// Transcribes chunks of a second, and returns the events too.
fn transcribe(
    gateway: &Gateway,
    request: &TranscriptionRequest,
    samples: &[f32],
) -> Result<(Transcript, Vec<TranscriptionEvent>), Error> {
    let mut events = Vec::new();
    let mut chunks = samples.chunks(16_000).map(|chunk| Ok(chunk.to_vec()));
    let transcript = gateway.transcribe(request, &mut chunks, &mut |event| {
        events.push(event);
        ControlFlow::Continue(())
    })?;
    Ok((transcript, events))
}

/// Copies a golden folder, so that a test can change it.
fn copy_of(tiny: &Tiny, folder: &str) -> PathBuf {
    let copy = tiny.home().parent().unwrap().join(folder.replace('/', "-"));
    fs::create_dir_all(&copy).unwrap();
    for entry in fs::read_dir(goldens(folder)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    copy
}

#[test]
fn tokens_and_times_of_nemo_are_those_of_onnx_asr() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    let cases: Vec<NemoGolden> =
        serde_json::from_slice(&fs::read(goldens("nemo/golden.json")).unwrap()).unwrap();
    assert_eq!(cases.len(), 4);
    for (index, case) in cases.iter().enumerate() {
        let name = format!("nemo-{index}");
        let manifest = import(&gateway, goldens("nemo").join(&case.folder), case.file.as_deref(), &name);
        assert_eq!(ModelKind::of(&manifest.unwrap()), ModelKind::Transcription);
        let request = TranscriptionRequest { words: true, ..TranscriptionRequest::new(&name) };
        let (found, events) = transcribe(&gateway, &request, &sound(96_000)).unwrap();

        let tokens: Vec<u32> = found.segments.iter().flat_map(|segment| segment.tokens.clone()).collect();
        assert_eq!(tokens, case.tokens, "{name}");
        let without_spaces = |text: &str| text.replace(' ', "");
        assert_eq!(without_spaces(&found.text), without_spaces(&case.text), "{name}");
        // Activations in 8 bits are rounded at other places if they differ in their last bit.
        let tolerance = if case.file.is_some() { 0.05 } else { 2e-3 };
        let mut first = 0;
        for segment in &found.segments {
            let end = first + segment.tokens.len();
            let mean = case.log_probabilities[first..end].iter().sum::<f32>() / segment.tokens.len() as f32;
            assert!((segment.avg_logprob - mean).abs() < tolerance, "{} and {mean}", segment.avg_logprob);
            assert!((segment.start - case.rows[first] as f64 * ROW).abs() < 1e-6, "{segment:?}");
            assert!(segment.end > segment.start && segment.end <= 6.0, "{segment:?}");
            first = end;
        }

        let has_sentences = [". ", "? "].iter().any(|end| case.text.contains(end));
        assert_eq!(found.segments.len() > 1, has_sentences, "{name}: {}", found.text);
        assert!(found.words.len() > 10, "{name}: {}", found.text);
        let words: String = found.words.iter().map(|word| word.word.as_str()).collect();
        assert_eq!(without_spaces(&words), without_spaces(&found.text));
        for word in &found.words {
            let row = word.start / ROW;
            assert!(case.rows.iter().any(|start| (*start as f64 - row).abs() < 1e-6), "{word:?}");
        }
        assert!(events.len() > found.segments.len(), "an event comes with every step");
    }
    let status = gateway.status();
    let placement = status[0].placement.as_ref().unwrap();
    assert_eq!((status[0].kind, placement.device), (Some(ModelKind::Transcription), DeviceName::Cpu));
    assert!(placement.lines.iter().all(|line| line.ep == Ep::Cpu), "{placement:?}");
}

#[test]
fn tokens_of_moonshine_are_those_of_its_package() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    import(&gateway, goldens("moonshine/tiny"), None, "tiny-moonshine").unwrap();
    let cases: Vec<MoonshineGolden> =
        serde_json::from_slice(&fs::read(goldens("moonshine/golden.json")).unwrap()).unwrap();
    for case in cases {
        let request = TranscriptionRequest::new("tiny-moonshine");
        let (found, _) = transcribe(&gateway, &request, &sound(case.samples)).unwrap();
        let [segment] = &found.segments[..] else { panic!("{:?}", found.segments) };
        assert_eq!((&segment.tokens, found.text.as_str()), (&case.tokens, case.text.trim()));
        assert_eq!((segment.start, segment.end), (0.0, case.samples as f64 / 16_000.0));
        assert!(segment.avg_logprob < 0.0 && segment.avg_logprob.is_finite());
    }
    let status = gateway.status();
    assert_eq!(status[0].placement.as_ref().unwrap().lines.len(), 2);

    let request = TranscriptionRequest { words: true, ..TranscriptionRequest::new("tiny-moonshine") };
    let error = transcribe(&gateway, &request, &sound(16_000)).unwrap_err();
    assert_eq!(error.param(), Some("timestamp_granularities"), "{error}");
}

#[test]
fn long_audio_is_cut_where_it_is_quiet() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    import(&gateway, goldens("nemo/tdt"), None, "tdt").unwrap();
    let spoken = sound(20 * 16_000);
    let whole = [&spoken[..], &vec![0.0; 16_000], &spoken, &vec![0.0; 40 * 16_000]].concat();
    let request = TranscriptionRequest { words: true, ..TranscriptionRequest::new("tdt") };
    let (found, _) = transcribe(&gateway, &request, &whole).unwrap();
    assert_eq!(found.duration, 81.0);
    assert!(found.words.is_sorted_by(|a, b| a.start <= b.start), "{:?}", found.words);
    // The first window ends in the middle of the first 0.3 s of the pause, which begins at 20 s: at 20.15 s, which is frame 2014.
    assert!(found.segments.iter().any(|segment| segment.seek == 2014), "{:?}", found.segments);
    let (alone, _) = transcribe(&gateway, &request, &whole[..322_400]).unwrap();
    let first: String =
        found.segments.iter().filter(|part| part.seek == 0).map(|part| part.text.clone()).collect();
    assert_eq!(first.trim(), alone.text);

    tiny.with_speech_detector();
    let vad = Some(ActivitySettings::default());
    let mut state = 1u32;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    });
    let noise: Vec<f32> = noise.take(5 * 16_000).collect();
    assert!(!transcribe(&gateway, &request, &noise).unwrap().0.text.is_empty());
    let (silent, _) = transcribe(&gateway, &TranscriptionRequest { vad, ..request }, &noise).unwrap();
    assert_eq!((silent.text.as_str(), silent.duration), ("", 5.0));
}

#[test]
fn requests_that_cannot_be_fulfilled_are_refused() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    import(&gateway, goldens("nemo/ctc"), None, "ctc").unwrap();
    let request = TranscriptionRequest::new("ctc");
    let refused = |request: TranscriptionRequest, expect: &str| {
        let error = transcribe(&gateway, &request, &sound(16_000)).unwrap_err();
        assert!(error.to_string().contains(expect), "{error} lacks {expect}");
        assert_eq!(error.kind(), ErrorKind::BadRequest, "{error}");
    };
    refused(TranscriptionRequest { task: Task::Translate, ..request.clone() }, "does not translate");
    refused(TranscriptionRequest { temperature: Some(0.5), ..request.clone() }, "expected 0, found 0.5");
    refused(
        TranscriptionRequest { beams: Some(BeamSearch::new(5)), ..request.clone() },
        "beam_size: ctc takes the likeliest tokens: expected 1 beam, found 5",
    );
    refused(
        TranscriptionRequest { prompt: Some("Narthex".to_owned()), ..request.clone() },
        "leave the prompt out",
    );
    refused(
        TranscriptionRequest { language: Some("klingon".to_owned()), ..request.clone() },
        "a code such as en",
    );

    let request = TranscriptionRequest {
        temperature: Some(0.0),
        prompt: Some(" ".to_owned()),
        context: Some("Earlier".to_owned()),
        language: Some("German".to_owned()),
        ..request
    };
    let (found, _) = transcribe(&gateway, &request, &sound(16_000)).unwrap();
    assert_eq!(found.language.as_deref(), Some("de"));

    let config = Config { npu: NpuPolicy::Require, ..tiny.config() };
    let gateway = Gateway::open(config).unwrap();
    let error = gateway.load("ctc", &Quiet, &Cancel::new()).unwrap_err();
    assert!(matches!(error, Error::NoDevice { .. }), "{error}");
}

#[test]
fn wrong_files_are_refused_with_what_was_expected() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    let refused = |golden: &str, change: &dyn Fn(&Path), expect: &str| {
        let folder = copy_of(&tiny, golden);
        change(&folder);
        let error = import(&gateway, folder, None, "wrong").unwrap_err().to_string();
        assert!(error.contains(expect), "{error}\nlacks {expect}");
    };
    let remove = |name: &'static str| move |folder: &Path| fs::remove_file(folder.join(name)).unwrap();
    let write = |name: &'static str, text: &'static str| {
        move |folder: &Path| fs::write(folder.join(name), text).unwrap()
    };
    refused("nemo/tdt", &remove("config.json"), "config.json with a model_type");
    refused("nemo/tdt", &remove("vocab.txt"), "vocab.txt");
    refused("nemo/tdt", &remove("decoder_joint-model.onnx"), "decoder_joint-model.onnx beside");
    refused("nemo/tdt", &remove("encoder-model.onnx.data"), "encoder-model.onnx.data");
    refused("nemo/rnnt", &write("vocab.txt", "a 0\nb 1\n"), "the token <blk>");
    refused("nemo/rnnt", &write("vocab.txt", "a 0\nb\n"), "in line 2");
    refused("nemo/ctc", &write("vocab.txt", "a 0\n<blk> 1\n"), "values of the 2 tokens of vocab.txt");
    refused("nemo/tdt", &write("config.json", r#"{"model_type": "nemo-conformer-tdt"}"#), "80 mel bands");
    refused(
        "nemo/tdt",
        &write("config.json", r#"{"model_type": "nemo-conformer-aed"}"#),
        "nemo-conformer-ctc",
    );
    let settings = r#"{"model_type": "nemo-conformer-rnnt", "features_size": 128}"#;
    refused("nemo/tdt", &write("config.json", settings), "values of the 20 tokens");
    refused("moonshine/tiny", &remove("tokenizer.json"), "tokenizer.json beside the graphs");
    refused("moonshine/tiny", &remove("encoder_model.onnx"), "decoder_model_merged");
    assert!(gateway.models().unwrap().iter().all(|model| model.installed.is_empty()));
}
