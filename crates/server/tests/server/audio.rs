//! The routes of speech: forms, files, and requests to models of other kinds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use narthex_audio::Pcm;
use serde_json::json;

use crate::support::{Answer, Live, Tiny};

pub(crate) const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
const SPEECH: &str = "/v1/audio/speech";

/// Half a second of silence.
fn wav() -> Vec<u8> {
    Pcm { sample_rate: 16_000, samples: vec![0.0; 8_000] }.to_wav()
}

fn form(fields: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, data) in fields {
        let file = if *name == "file" { "; filename=\"a.wav\"" } else { "" };
        let head = format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n");
        body.extend([head.as_bytes(), data, b"\r\n"].concat());
    }
    body.extend(b"--b--\r\n");
    body
}

pub(crate) fn post(live: &Live, path: &str, fields: &[(&str, &[u8])]) -> Answer {
    let headers = [("Content-Type", "multipart/form-data; boundary=b")];
    live.request("POST", path, &headers, &form(fields))
}

#[test]
fn forms_are_read_by_both_routes() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let wav = wav();
    for path in [TRANSCRIPTIONS, "/v1/audio/translations", "/audio/transcriptions"] {
        // The form and the file are read before the model is looked at.
        let error = post(&live, path, &[("file", &wav), ("model", model.as_bytes())]).error(400);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("speech recognition"), "{message}");

        let unknown = post(&live, path, &[("file", &wav), ("model", b"no-such-model")]).error(404);
        assert!(unknown["message"].as_str().unwrap().contains("no-such-model"));
        post(&live, path, &[("file", &wav), ("model", b"/etc/hostname")]).error(404);
    }
}

#[test]
fn invalid_forms_and_files_are_refused_by_name() {
    let live = Live::start(Tiny::new().config());
    let wav = wav();
    let whole: [(&str, &[u8]); 2] = [("file", &wav), ("model", b"m")];
    let check = |fields: &[(&str, &[u8])], param: &str, expect: &str| {
        let error = post(&live, TRANSCRIPTIONS, fields).error(400);
        let message = error["message"].as_str().unwrap();
        assert!(error["param"] == param && message.contains(expect), "{error}");
    };
    check(&whole[1..], "file", "file is required");
    check(&whole[..1], "model", "model is required");
    check(&[("file", b""), whole[1]], "file", "found an empty file");
    check(&[("file", b"Dear Sir or Madam"), whole[1]], "file", "found a file that starts with");
    check(&[("file", &wav[..40]), whole[1]], "file", "expected audio");
    check(&[whole[0], whole[1], ("response_format", b"doc")], "response_format", "one of json");
    check(&[whole[0], whole[1], ("beam_size", b"many")], "beam_size", "expected a number of beams");
    check(&[whole[0], whole[1], ("best_of", b"5")], "best_of", "not supported");
    check(&[whole[0], whole[1], whole[1]], "model", "more than once");

    let json = live.post(TRANSCRIPTIONS, &json!({"model": "m"})).error(415);
    assert!(json["message"].as_str().unwrap().contains("multipart/form-data"));
    let headers = [("Content-Type", "multipart/form-data; boundary=b")];
    let broken = live.request("POST", TRANSCRIPTIONS, &headers, b"--b\r\nno end").error(400);
    assert!(broken["message"].as_str().unwrap().contains("not valid multipart/form-data"));
}

#[test]
fn requests_for_speech_are_checked() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let error = live.post(SPEECH, &json!({"model": model, "input": "Hello."})).error(400);
    assert!(error["message"].as_str().unwrap().contains("voice"), "{error}");
    let format = json!({"model": model, "input": "Hello.", "response_format": "mp3"});
    assert_eq!(live.post(SPEECH, &format).error(400)["param"], "response_format");
    live.post(SPEECH, &json!({"model": "no-such-model", "input": "Hello."})).error(404);

    let voices = live.get("/v1/audio/voices").json();
    assert!(voices["voices"].is_array(), "{voices}");
}
