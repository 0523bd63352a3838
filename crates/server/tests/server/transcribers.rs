//! Imported models that transcribe speech, over HTTP: every format, events, and what they refuse.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use narthex_audio::Pcm;
use narthex_testkit::sound;
use serde_json::{Value, json};

use crate::{
    audio::{TRANSCRIPTIONS, post},
    support::{Live, Tiny},
};

/// Two seconds of a voice.
fn wav() -> Vec<u8> {
    Pcm { sample_rate: 16_000, samples: sound::voice(32_000) }.to_wav()
}

/// Returns the fields of a form: the file, the model and these.
fn form<'a>(wav: &'a [u8], model: &'a str, fields: &[(&'a str, &'a [u8])]) -> Vec<(&'a str, &'a [u8])> {
    [&[("file", wav), ("model", model.as_bytes())], fields].concat()
}

/// Checks a model in every format. `states_times` is true for a model that states when a word is spoken.
fn check_formats(folder: &str, states_times: bool) {
    let tiny = Tiny::new();
    let model = tiny.transcriber(folder);
    let live = Live::start(tiny.config());
    let wav = wav();
    let ask = |fields: &[(&str, &[u8])]| {
        let answer = post(&live, TRANSCRIPTIONS, &form(&wav, &model, fields));
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer
    };
    let in_format = |format: &str| ask(&[("response_format", format.as_bytes())]);

    let plain = ask(&[]);
    assert_eq!(plain.header("content-type"), Some("application/json"));
    let plain = plain.json();
    let text = plain["text"].as_str().unwrap();
    assert!(text.len() > 5 && text == text.trim(), "{text:?}");
    assert_eq!(plain, json!({"text": text, "usage": {"type": "duration", "seconds": 2}}));
    assert_eq!(in_format("json").json(), plain);

    let answer = in_format("text");
    assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(answer.text(), format!("{text}\n"));

    let verbose = in_format("verbose_json").json();
    assert_eq!((&verbose["text"], &verbose["duration"]), (&plain["text"], &json!(2.0)));
    assert_eq!((&verbose["task"], &verbose["language"]), (&json!("transcribe"), &Value::Null));
    let segments = verbose["segments"].as_array().unwrap();
    let joined: String = segments.iter().map(|segment| segment["text"].as_str().unwrap()).collect();
    assert_eq!(joined.trim(), text);
    let time = |part: &Value, name: &str| part[name].as_f64().unwrap();
    assert!(segments.iter().all(|segment| time(segment, "start") < time(segment, "end")), "{verbose}");

    let words = [("response_format", &b"verbose_json"[..]), ("timestamp_granularities[]", b"word")];
    if states_times {
        let verbose = ask(&words).json();
        assert!(verbose["segments"].is_null(), "{verbose}");
        let words = verbose["words"].as_array().unwrap();
        let joined: String = words.iter().map(|word| word["word"].as_str().unwrap()).collect();
        assert_eq!(joined.replace(' ', ""), text.replace(' ', ""));
        assert!(words.is_sorted_by(|a, b| time(a, "start") <= time(b, "start")), "{verbose}");
    } else {
        let error = post(&live, TRANSCRIPTIONS, &form(&wav, &model, &words)).error(400);
        assert_eq!(error["param"], "timestamp_granularities");
    }

    let cues = segments.len();
    let srt = in_format("srt");
    assert_eq!(srt.header("content-type"), Some("application/x-subrip; charset=utf-8"));
    let srt = srt.text();
    assert!(srt.starts_with("1\n00:00:00,") && srt.matches(" --> ").count() == cues, "{srt}");
    let vtt = in_format("vtt");
    assert_eq!(vtt.header("content-type"), Some("text/vtt; charset=utf-8"));
    let vtt = vtt.text();
    assert!(vtt.starts_with("WEBVTT\n\n00:00:00.") && vtt.matches(" --> ").count() == cues, "{vtt}");

    let stream = ask(&[("stream", b"true")]);
    assert_eq!(stream.header("content-type"), Some("text/event-stream"));
    let events: Vec<Value> = stream
        .text()
        .lines()
        .filter_map(|line| line.split_once("data: "))
        .map(|(_, event)| serde_json::from_str(event).unwrap())
        .collect();
    let (last, deltas) = events.split_last().unwrap();
    let usage = json!({"type": "duration", "seconds": 2});
    assert_eq!(*last, json!({"type": "transcript.text.done", "text": text, "usage": usage}));
    assert_eq!(deltas.len(), cues);
    assert!(deltas.iter().all(|event| event["type"] == "transcript.text.delta"), "{events:?}");
    let streamed: String = deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(streamed.trim(), text);

    let with_logprobs = ask(&[("include[]", b"logprobs")]).json();
    let logprobs = with_logprobs["logprobs"].as_array().unwrap();
    let tokens: usize = segments.iter().map(|segment| segment["tokens"].as_array().unwrap().len()).sum();
    assert_eq!((logprobs.len(), &with_logprobs["text"]), (tokens, &plain["text"]));
    assert!(logprobs.iter().all(|token| token["logprob"].as_f64().unwrap() <= 0.0), "{with_logprobs}");
}

#[test]
fn nemo_answers_in_every_format() {
    check_formats("nemo/ctc", true);
    check_formats("nemo/tdt", true);
}

#[test]
fn moonshine_answers_in_every_format() {
    check_formats("moonshine/tiny", false);
}

#[test]
fn what_an_imported_model_cannot_do_is_refused_by_name() {
    let tiny = Tiny::new();
    let model = tiny.transcriber("nemo/rnnt");
    let live = Live::start(tiny.config());
    let wav = wav();
    let check = |path: &str, fields: &[(&str, &[u8])], param: &str, expect: &str| {
        let error = post(&live, path, &form(&wav, &model, fields)).error(400);
        let message = error["message"].as_str().unwrap();
        assert!(error["param"] == param && message.contains(expect), "{error}");
    };
    check("/v1/audio/translations", &[], "model", "transcribes and does not translate");
    check(TRANSCRIPTIONS, &[("temperature", b"0.5")], "temperature", "expected 0, found 0.5");
    check(TRANSCRIPTIONS, &[("prompt", b"Narthex")], "prompt", "leave the prompt out");
    check(TRANSCRIPTIONS, &[("beam_size", b"5")], "beam_size", "expected 1 beam, found 5");
    check(TRANSCRIPTIONS, &[("language", b"klingon")], "language", "a code such as en");
    // A stream begins with the error, too.
    let fields: [(&str, &[u8]); 2] = [("stream", b"true"), ("temperature", b"0.5")];
    check(TRANSCRIPTIONS, &fields, "temperature", "expected 0, found 0.5");

    // Clients send these by default.
    let usual: [(&str, &[u8]); 4] =
        [("temperature", b"0"), ("prompt", b""), ("num_beams", b"1"), ("language", b"en")];
    let answer = post(&live, TRANSCRIPTIONS, &form(&wav, &model, &usual));
    assert_eq!(answer.status, 200, "{}", answer.text());
}
