//! Malformed pictures, videos and sounds, and hostile requests with them, against a live server with a tiny Gemma 3n, whose towers
//! read both, and a tiny Whisper.

use std::{collections::BTreeMap, fs, path::Path, time::Instant};

use anyhow::ensure;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use narthex_testkit::checkpoint::{tiny_gemma3n, tiny_whisper_safetensors};
use serde_json::{Value, json};
use xtask_tools::http;

use super::{
    Outcome, Subject,
    live::{Cases, Live},
    mutation::{Random, mutate},
};
use crate::fuzz::{Target, seeds};

/// Numbers of malformed files.
const SOUNDS: usize = 300;
const PICTURES: usize = 200;
const VIDEOS: usize = 100;

/// Number of hostile requests with media of each kind.
const REQUESTS: usize = 100;

/// Names of the models, which have those of their folders.
const CHAT: &str = "local/tiny-gemma3n";
const SPEECH: &str = "local/tiny-whisper";

/// Library of decoders whose panics `narthex-audio` catches. The build that tests run has checks of overflows, which a release
/// build has not.
const CONTAINED: &str = "/symphonia-";

/// Width and height of a picture that is refused before it is decoded.
const HUGE_SIDE: u32 = 32_768;

/// A request with a description of its contents.
struct Request {
    what: String,
    bytes: Vec<u8>,
}

/// Sends malformed files to the routes that read them, and then hostile requests with valid and malformed files.
pub(super) fn run(subject: &Subject<'_>) -> anyhow::Result<Vec<Outcome>> {
    let sounds = valid_files(Target::Audio)?;
    let pictures = valid_files(Target::Image)?;
    let videos = valid_files(Target::Video)?;
    let mut random = Random::new(subject.seed);
    let wav = narthex_audio::Pcm { sample_rate: 16_000, samples: vec![0.25; 8_000] }.to_wav();
    Ok(vec![
        attack(subject, "malformed sounds", |live| malformed_sounds(live, &sounds, &mut random))?,
        attack(subject, "malformed pictures", |live| {
            malformed(live, Shown::Picture, &pictures, PICTURES, &mut random)
        })?,
        attack(subject, "malformed videos", |live| {
            malformed(live, Shown::Video, &videos, VIDEOS, &mut random)
        })?,
        attack(subject, "requests with sounds", |live| hostile(&sound_requests(live, &wav), &mut random))?,
        attack(subject, "requests with pictures", |live| {
            hostile(&picture_requests(live, &pictures), &mut random)
        })?,
    ])
}

/// Sends requests to a new server, one after another. An answer of the server's own fault is a finding.
fn attack(
    subject: &Subject<'_>,
    what: &str,
    requests: impl FnOnce(&Live) -> Vec<Request>,
) -> anyhow::Result<Outcome> {
    let live = Live::of(subject, ":", &["-m", CHAT, "-m", SPEECH], None, |home| models(subject, home))?;
    let mut cases = Cases::default();
    let mut statuses = BTreeMap::<String, usize>::new();
    for (case, Request { what, bytes }) in requests(&live).into_iter().enumerate() {
        let start = Instant::now();
        match live.send(&bytes) {
            Ok(answer) => {
                let status = answer.get(9..12).unwrap_or("none").to_owned();
                if status.starts_with('5') || status == "none" {
                    let end: String = answer.chars().rev().take(200).collect();
                    let end: String = end.chars().rev().collect();
                    cases.findings.push(format!("case {case}, {what}: status {status}: {end}"));
                }
                *statuses.entry(status).or_default() += 1;
            }
            Err(error) => cases.findings.push(format!("case {case}, {what}: {error:#}")),
        }
        cases.cases += 1;
        cases.slowest = cases.slowest.max(start.elapsed());
    }
    let counts: Vec<String> = statuses.iter().map(|(status, count)| format!("{status}: {count}")).collect();
    cases.note = counts.join(", ");
    let mut outcome = live.outcome(what.to_owned(), cases)?;
    let contained = outcome.findings.extract_if(.., |finding| finding.contains(CONTAINED)).count();
    if contained > 0 {
        outcome.note += &format!("; {contained} panics of symphonia became errors");
    }
    Ok(outcome)
}

/// Compiles the models into the store at `home`.
fn models(subject: &Subject<'_>, home: &Path) -> anyhow::Result<()> {
    let checkpoints = tempfile::tempdir()?;
    let [chat, speech] = [CHAT, SPEECH].map(|name| checkpoints.path().join(name));
    fs::create_dir_all(&speech)?;
    tiny_gemma3n(&chat)?;
    tiny_whisper_safetensors(&speech, "a")?;
    for checkpoint in [chat, speech] {
        let path = checkpoint.to_string_lossy();
        let ended = subject.watch(home, &["compile", &path, "--scheme", "f32", "--calibrate", "none"])?;
        let is_compiled = ended.status.is_some_and(|status| status.success());
        ensure!(is_compiled, "{path} was not compiled: {}", ended.stderr);
    }
    Ok(())
}

/// Returns the seeds of a fuzz target, with their names.
fn valid_files(target: Target) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    Ok(seeds::of(target)?.into_iter().map(|seed| (seed.name, seed.bytes)).collect())
}

/// Returns requests with malformed sounds: two thirds in forms, and one third in messages.
fn malformed_sounds(live: &Live, files: &[(String, Vec<u8>)], random: &mut Random) -> Vec<Request> {
    let request = |case: usize| {
        let (name, valid) = &files[case % files.len()];
        let bytes = mutate(valid, random);
        let bytes = match case % 3 {
            0 => chat(live, &json!({"type": "input_audio", "input_audio": {"data": STANDARD.encode(bytes)}})),
            1 => live.request("POST", "/v1/audio/transcriptions", &form(&bytes, &[])),
            _ => live.request("POST", "/v1/audio/transcriptions", &form(&bytes, &[("vad_filter", "false")])),
        };
        Request { what: name.clone(), bytes }
    };
    (0..SOUNDS).map(request).collect()
}

/// Kind of a medium that a model sees.
#[derive(Debug, Clone, Copy)]
enum Shown {
    Picture,
    Video,
}

impl Shown {
    /// Returns the part of a message with a file.
    fn part(self, file: &[u8]) -> Value {
        let encoded = STANDARD.encode(file);
        match self {
            Self::Picture => {
                json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{encoded}")}})
            }
            Self::Video => {
                json!({"type": "video_url", "video_url": {"url": format!("data:video/mp4;base64,{encoded}")}})
            }
        }
    }
}

/// Returns this number of requests with malformed pictures or videos in messages.
fn malformed(
    live: &Live,
    shown: Shown,
    files: &[(String, Vec<u8>)],
    count: usize,
    random: &mut Random,
) -> Vec<Request> {
    let request = |case: usize| {
        let (name, valid) = &files[case % files.len()];
        Request { what: name.clone(), bytes: chat(live, &shown.part(&mutate(valid, random))) }
    };
    (0..count).map(request).collect()
}

/// Returns requests, each one of these whole or with a mutated body.
fn hostile(requests: &[Vec<u8>], random: &mut Random) -> Vec<Request> {
    let request = |case: usize| {
        let request = &requests[case % requests.len()];
        if case < requests.len() {
            return Request { what: format!("request {case}"), bytes: request.clone() };
        }
        let body = request.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4);
        let (head, body) = request.split_at(body);
        let body = mutate(body, random);
        let head = String::from_utf8_lossy(head).replace(
            &format!("Content-Length: {}", request.len() - head.len()),
            &format!("Content-Length: {}", body.len()),
        );
        let what = format!("mutated request {}", case % requests.len());
        Request { what, bytes: [head.as_bytes(), &body].concat() }
    };
    (0..REQUESTS).map(request).collect()
}

/// Returns requests with a valid sound and unusual fields.
fn sound_requests(live: &Live, wav: &[u8]) -> Vec<Vec<u8>> {
    let long = "a".repeat(100_000);
    let fields: [&[(&str, &str)]; 10] = [
        &[],
        &[("language", "en"), ("language", "de")],
        &[("language", "klingon")],
        &[("response_format", "verbose_json"), ("timestamp_granularities[]", "word")],
        &[("temperature", "1e999")],
        &[("temperature", "-1")],
        &[("prompt", &long)],
        &[("chunking_strategy", r#"{"type":"server_vad","threshold":1e300,"silence_duration_ms":-1}"#)],
        &[("stream", "true"), ("include[]", "logprobs")],
        &[("file", "a second file"), ("model", "another")],
    ];
    let mut requests: Vec<Vec<u8>> = fields
        .into_iter()
        .map(|fields| live.request("POST", "/v1/audio/transcriptions", &form(wav, fields)))
        .collect();
    requests.push(live.request("POST", "/v1/audio/translations", &form(wav, &[])));
    requests.push(live.request("POST", "/v1/audio/transcriptions", &form(&days_of_silence(), &[])));
    let encoded = STANDARD.encode(wav);
    for format in [json!("wav"), json!("mp3"), json!(7), Value::Null] {
        let part = json!({"type": "input_audio", "input_audio": {"data": encoded, "format": format}});
        requests.push(chat(live, &part));
    }
    let silence = STANDARD.encode(days_of_silence());
    requests.push(chat(live, &json!({"type": "input_audio", "input_audio": {"data": silence}})));
    requests
}

/// Returns requests with pictures in every protocol, among them a huge one and many.
fn picture_requests(live: &Live, files: &[(String, Vec<u8>)]) -> Vec<Vec<u8>> {
    let file = |wanted: &str| {
        files.iter().find(|(name, _)| name == wanted).map_or(&[][..], |(_, bytes)| bytes.as_slice())
    };
    let encoded = STANDARD.encode(file("rgb.png"));
    let huge = STANDARD.encode(huge_picture(file("plain.bmp")));
    let url = |encoded: &str| format!("data:image/png;base64,{encoded}");
    let part = |encoded: &str| json!({"type": "image_url", "image_url": {"url": url(encoded)}});
    let video = json!({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAAIGZ0eXBpc29t"}});
    let asked = |content: Value| json!({"model": CHAT, "max_tokens": 1, "messages": [{"role": "user", "content": content}]});

    let bodies = [
        ("/v1/chat/completions", asked(json!([part(&encoded)]))),
        ("/v1/chat/completions", asked(json!([part(&huge)]))),
        ("/v1/chat/completions", asked(Value::Array(vec![part(&encoded); 100]))),
        ("/v1/chat/completions", asked(Value::Array(vec![part(&encoded); 101]))),
        ("/v1/chat/completions", asked(json!([part("")]))),
        ("/v1/chat/completions", asked(json!([video]))),
        ("/v1/chat/completions", asked(json!([part(&encoded[1..])]))),
        (
            "/v1/chat/completions",
            asked(json!([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}])),
        ),
        (
            "/v1/chat/completions",
            asked(json!([{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}])),
        ),
        (
            "/v1/messages",
            asked(json!([{
                "type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": encoded}
            }])),
        ),
        (
            "/v1/responses",
            json!({"model": CHAT, "max_output_tokens": 1, "input": [{
                "role": "user", "content": [{"type": "input_image", "image_url": url(&encoded)}]
            }]}),
        ),
        (
            "/api/chat",
            json!({"model": CHAT, "stream": false, "options": {"num_predict": 1}, "messages": [
                {"role": "user", "content": "What?", "images": [encoded, encoded]}
            ]}),
        ),
        (
            "/api/generate",
            json!({"model": CHAT, "stream": false, "prompt": "What?", "images": [huge],
            "options": {"num_predict": 1}}),
        ),
    ];
    bodies.into_iter().map(|(path, body)| live.request("POST", path, body.to_string().as_bytes())).collect()
}

/// Returns a request for one token about a medium.
fn chat(live: &Live, part: &Value) -> Vec<u8> {
    let body = json!({
        "model": CHAT, "max_tokens": 1,
        "messages": [{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}],
    });
    live.request("POST", "/v1/chat/completions", body.to_string().as_bytes())
}

/// Returns a form with a file and further fields.
fn form(file: &[u8], fields: &[(&str, &str)]) -> Vec<u8> {
    let mut all = vec![("model", SPEECH.as_bytes()), ("file", file)];
    all.extend(fields.iter().map(|&(name, value)| (name, value.as_bytes())));
    http::form(&all)
}

/// Returns a WAV file whose header states as many samples as it can, and has a few.
fn days_of_silence() -> Vec<u8> {
    let mut wav = narthex_audio::Pcm { sample_rate: 8_000, samples: vec![0.0; 400] }.to_wav();
    wav[4..8].fill(0xff);
    wav[40..44].fill(0xff);
    wav
}

/// Returns a BMP file whose header states a gigapixel.
fn huge_picture(bmp: &[u8]) -> Vec<u8> {
    let mut bmp = bmp.to_vec();
    for side in [18, 22] {
        if let Some(bytes) = bmp.get_mut(side..side + 4) {
            bytes.copy_from_slice(&HUGE_SIDE.to_le_bytes());
        }
    }
    bmp
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_valid_files_to_mutate() {
        for target in [Target::Audio, Target::Image] {
            assert!(valid_files(target).unwrap().len() > 15);
        }
        assert!(valid_files(Target::Video).unwrap().len() > 8);
        let pictures = valid_files(Target::Image).unwrap();
        let (_, bmp) = pictures.iter().find(|(name, _)| name == "plain.bmp").unwrap();
        let error = narthex_image::Decoder::open(&huge_picture(bmp)).err().unwrap().to_string();
        assert!(error.contains("pixels"), "{error}");
    }
}
