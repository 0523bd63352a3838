//! Transcripts of a tiny Whisper, whose text is fixed.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::ops::ControlFlow;

use narthex_gateway::{
    Cancel, CompileRequest, Config, Error, ErrorKind, Gateway,
    models::ModelKind,
    request::{
        ActivitySettings, BeamSearch, ChatRequest, Task, Transcript, TranscriptionEvent, TranscriptionRequest,
    },
};
use narthex_spec::{DeviceName, Ep, Scheme, manifest::Part, progress::Quiet};

use crate::support::Tiny;

const TEXT: &str = " Hallo Welt, ja.";

/// Returns chunks of one second: noise, then silence.
fn audio(noise: usize, silence: usize) -> Vec<Vec<f32>> {
    let mut state = 1u32;
    let mut sample = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let noise = (0..noise).map(|_| (0..16_000).map(|_| sample()).collect()).collect::<Vec<Vec<f32>>>();
    noise.into_iter().chain((0..silence).map(|_| vec![0.0; 16_000])).collect()
}

/// Transcribes audio, and returns the events too.
fn transcribe(
    gateway: &Gateway,
    request: &TranscriptionRequest,
    audio: Vec<Vec<f32>>,
) -> Result<(Transcript, Vec<TranscriptionEvent>), Error> {
    let mut events = Vec::new();
    let mut chunks = audio.into_iter().map(Ok);
    let transcript = gateway.transcribe(request, &mut chunks, &mut |event| {
        events.push(event);
        ControlFlow::Continue(())
    })?;
    Ok((transcript, events))
}

#[test]
fn speech_is_transcribed_in_windows() {
    let tiny = Tiny::new();
    let model = tiny.whisper(TEXT);
    let gateway = tiny.gateway();
    let request = TranscriptionRequest::new(&model);
    let (found, events) = transcribe(&gateway, &request, audio(3, 30)).unwrap();
    assert_eq!((found.text.as_str(), found.language.as_deref()), ("Hallo Welt, ja.", Some("de")));
    assert_eq!((found.duration, found.task), (33.0, Task::Transcribe));
    let [segment] = &found.segments[..] else { panic!("{:?}", found.segments) };
    assert_eq!((segment.id, segment.start, segment.end, segment.text.as_str()), (0, 0.0, 1.5, TEXT));
    assert!(segment.avg_logprob > -0.1 && segment.no_speech_prob < 0.1 && segment.temperature == 0.0);
    assert!(found.words.is_empty());

    let place = events.iter().position(|event| *event == TranscriptionEvent::Segment(segment.clone()));
    assert!(place.is_some_and(|place| place > TEXT.len()), "an event comes with every token");
    let seconds: Vec<f64> = events
        .iter()
        .filter_map(|event| match event {
            TranscriptionEvent::Progress { seconds } => Some(*seconds),
            TranscriptionEvent::Segment(_) => None,
        })
        .collect();
    assert!(seconds.is_sorted() && seconds.last() == Some(&33.0), "{seconds:?}");
    assert_eq!(gateway.status()[0].kind, Some(ModelKind::Transcription));

    assert!(segment.logprobs.is_empty());
    let request = TranscriptionRequest { logprobs: true, ..request };
    let (found, _) = transcribe(&gateway, &request, audio(3, 0)).unwrap();
    let logprobs = found.plain().logprobs;
    let text: Vec<u8> = logprobs.iter().flat_map(|token| token.bytes.clone()).collect();
    assert_eq!(String::from_utf8(text).unwrap(), TEXT);
    assert!(logprobs.iter().all(|token| (-0.1..=0.0).contains(&token.logprob)), "{logprobs:?}");
}

#[test]
fn words_have_times_and_a_stated_language_is_kept() {
    let tiny = Tiny::new();
    let model = tiny.whisper(TEXT);
    let gateway = tiny.gateway();
    let request = TranscriptionRequest {
        language: Some("English".to_owned()),
        words: true,
        ..TranscriptionRequest::new(&model)
    };
    let (found, _) = transcribe(&gateway, &request, audio(2, 0)).unwrap();
    assert_eq!(found.language.as_deref(), Some("en"));
    let words: Vec<&str> = found.words.iter().map(|word| word.word.as_str()).collect();
    assert_eq!(words, ["Hallo", "Welt,", "ja."]);
    assert!(
        found.words.iter().all(|word| (0.0..=2.0).contains(&word.start) && word.start <= word.end),
        "{:?}",
        found.words
    );
    assert!(found.words.is_sorted_by(|a, b| a.start <= b.start));
}

#[test]
fn beams_find_a_likelier_transcript() {
    let tiny = Tiny::new();
    let model = tiny.whisper_with_choice("Hallo Welt, ja.", b'J');
    let gateway = tiny.gateway();
    let greedy = TranscriptionRequest::new(&model);
    let text = |request: &TranscriptionRequest| transcribe(&gateway, request, audio(2, 0)).unwrap().0.text;
    let first = text(&greedy);
    assert!(first.starts_with('H') && first.ends_with("llo Welt, ja."), "{first}");
    for (size, expect) in [(1, first.as_str()), (2, "Jallo Welt, ja."), (5, "Jallo Welt, ja.")] {
        let request = TranscriptionRequest { beams: Some(BeamSearch::new(size)), ..greedy.clone() };
        assert_eq!(text(&request), expect, "{size} beams");
    }
}

#[test]
fn a_preliminary_text_is_that_of_a_short_window() {
    let tiny = Tiny::new();
    let model = tiny.whisper(TEXT);
    let gateway = tiny.gateway();
    let request =
        TranscriptionRequest { words: true, preliminary: true, ..TranscriptionRequest::new(&model) };
    for seconds in [1, 3, 7, 30] {
        let (found, _) = transcribe(&gateway, &request, audio(seconds, 0)).unwrap();
        assert_eq!(found.text, "Hallo Welt, ja.", "{seconds} s");
        let words: Vec<&str> = found.words.iter().map(|word| word.word.as_str()).collect();
        assert_eq!(words, ["Hallo", "Welt,", "ja."]);
    }
}

#[test]
fn silence_and_short_audio_have_no_text() {
    let tiny = Tiny::new();
    let model = tiny.whisper(TEXT);
    let gateway = tiny.gateway();
    for (audio, duration) in [(Vec::new(), 0.0), (vec![vec![0.9; 800]], 0.05), (audio(0, 2), 2.0)] {
        let (found, _) = transcribe(&gateway, &TranscriptionRequest::new(&model), audio).unwrap();
        assert_eq!((found.text.as_str(), found.segments.len(), found.duration), ("", 0, duration));
    }
}

#[test]
fn noise_is_not_decoded_if_speech_is_found_first() {
    let tiny = Tiny::new();
    let model = tiny.whisper(TEXT);
    let gateway = tiny.gateway();
    let request =
        TranscriptionRequest { vad: Some(ActivitySettings::default()), ..TranscriptionRequest::new(&model) };
    let error = transcribe(&gateway, &request, audio(1, 0)).unwrap_err();
    assert_eq!((error.kind(), error.param()), (ErrorKind::BadRequest, Some("vad")), "{error}");

    tiny.with_speech_detector();
    let (found, events) = transcribe(&gateway, &request, audio(40, 2)).unwrap();
    assert_eq!((found.text.as_str(), found.segments.len(), found.duration), ("", 0, 42.0));
    assert!(events.is_empty(), "{events:?}");
    let vad = Some(ActivitySettings { threshold: 1.5, ..ActivitySettings::default() });
    let error = transcribe(&gateway, &TranscriptionRequest { vad, ..request }, audio(1, 0)).unwrap_err();
    assert!(error.to_string().contains("between 0 and 1, found 1.5"), "{error}");
}

#[test]
fn a_transcription_ends_when_nobody_listens() {
    let tiny = Tiny::new();
    let model = tiny.whisper(TEXT);
    let gateway = tiny.gateway();
    let mut events = 0;
    let mut chunks = audio(2, 0).into_iter().map(Ok);
    let outcome = gateway.transcribe(&TranscriptionRequest::new(&model), &mut chunks, &mut |_| {
        events += 1;
        if events == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(outcome, Err(Error::Cancelled)));
    assert_eq!(events, 3);
}

#[test]
fn requests_that_cannot_be_fulfilled_are_refused() {
    let tiny = Tiny::new();
    let (model, chat) = (tiny.whisper(TEXT), tiny.chat());
    let gateway = tiny.gateway();
    let refused = |request: TranscriptionRequest, expect: &str| {
        let error = transcribe(&gateway, &request, audio(1, 0)).unwrap_err();
        assert!(error.to_string().contains(expect), "{error} lacks {expect}");
        assert_eq!(error.kind(), ErrorKind::BadRequest, "{error}");
    };
    let request = TranscriptionRequest::new(&model);
    refused(
        TranscriptionRequest { language: Some("fr".to_owned()), ..request.clone() },
        "one of the 2 languages",
    );
    refused(
        TranscriptionRequest { language: Some("klingon".to_owned()), ..request.clone() },
        "a code such as en",
    );
    let with = |beams: BeamSearch| TranscriptionRequest { beams: Some(beams), ..request.clone() };
    refused(with(BeamSearch::new(0)), "beam_size: expected 1 to 16 beams, found 0");
    refused(
        with(BeamSearch { patience: f32::NAN, ..BeamSearch::new(2) }),
        "patience: expected a number above 0",
    );
    refused(
        with(BeamSearch { length_penalty: Some(1.5), ..BeamSearch::new(2) }),
        "length_penalty: expected a number from 0 to 1, found 1.5",
    );
    refused(TranscriptionRequest { temperature: Some(1.5), ..request }, "a number from 0 to 1, found 1.5");
    refused(TranscriptionRequest::new(&chat), "is a chat model, not a speech recognition model");
    let error = gateway.stream(&model, ChatRequest::user("Hi")).err().unwrap().to_string();
    assert!(error.contains("is a speech recognition model, not a chat model"), "{error}");
}

#[test]
#[ignore = "minutes of emulation; `cargo xtask npu` runs it"]
fn a_model_for_an_npu_gives_the_cpu_s_transcript_under_htp_emulation() {
    let tiny = Tiny::new();
    tiny.with_qnn();
    let target = "qnn:x-elite".parse().unwrap();
    let request = CompileRequest { target: Some(target), ..CompileRequest::new(Scheme::W8) };
    let checkpoint = tiny.whisper_checkpoint(TEXT);
    let compiled = tiny.gateway().compile(checkpoint.to_str().unwrap(), &request, &Quiet, &Cancel::new());
    let manifest = compiled.unwrap_or_else(|error| panic!("{error}")).1;
    // The encoder, the layers for one token and for a prompt, and the head.
    assert_eq!(manifest.contexts.len(), 4);
    assert!(
        manifest.graphs.iter().any(|graph| matches!(graph.part, Part::Layers { tokens: 1, past: 48, .. }))
    );

    let model = manifest.name.to_string();
    let request = TranscriptionRequest { words: true, ..TranscriptionRequest::new(&model) };
    let run = |providers: &str| {
        let providers = providers.parse().unwrap();
        let config = Config { providers, scheme: Some(Scheme::W8), ..tiny.config() };
        let gateway = Gateway::open(config).unwrap();
        gateway.load(&model, &Quiet, &Cancel::new()).unwrap_or_else(|error| panic!("{error}"));
        let (found, _) = transcribe(&gateway, &request, audio(3, 0)).unwrap();
        (found, gateway.status().remove(0).placement.unwrap())
    };
    let (expected, _) = run("cpu");
    let (found, report) = run("qnn:emulation");
    assert_eq!((found.text.as_str(), found.language.as_deref()), ("Hallo Welt, ja.", Some("de")));
    assert_eq!((found.segments.len(), found.words.len()), (1, 3));
    let starts = |transcript: &Transcript| transcript.words.iter().map(|word| word.start).collect::<Vec<_>>();
    assert!(starts(&found).iter().zip(starts(&expected)).all(|(a, b)| (a - b).abs() <= 0.02), "{found:?}");
    assert_eq!((report.device, report.lines.len(), report.phases), (DeviceName::QnnEmulation, 4, None));
    for line in &report.lines {
        assert_eq!((line.ep, line.subgraphs, line.compute_share), (Ep::Qnn, 1, 1.0), "{line:?}");
    }
    println!(
        "HTP emulation: tiny Whisper of 1,500 positions in w8: the transcript and the times of words are the CPU's"
    );
}
