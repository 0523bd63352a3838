//! Live transcripts over a real WebSocket, by a tiny Whisper whose text is fixed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{net::TcpStream, num::NonZeroU32};

use base64::{Engine, engine::general_purpose::STANDARD};
use narthex_audio::pcm;
use narthex_gateway::{
    Gateway,
    keys::{ApiKey, KeyLimits, KeyRole},
};
use narthex_server::{AccessOptions, ServeOptions};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{
    Error, Message, WebSocket, client::IntoClientRequest, handshake::HandshakeError,
    protocol::frame::coding::CloseCode,
};

use crate::support::{Live, PATIENCE, Tiny, local};

const TEXT: &str = " Hallo Welt, ja.";

/// A session of a client.
struct Session(WebSocket<TcpStream>);

impl Session {
    /// Opens a session with these headers.
    fn open(live: &Live, query: &str, headers: &[(&'static str, &str)]) -> Result<Self, u16> {
        let mut request = format!("ws://{}/v1/realtime{query}", live.address).into_client_request().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        let stream = TcpStream::connect(live.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        match tokio_tungstenite::tungstenite::client(request, stream) {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(HandshakeError::Failure(Error::Http(response))) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    fn send(&mut self, event: Value) {
        self.0.send(Message::text(event.to_string())).unwrap();
    }

    /// Sends samples of 24 kHz.
    fn append(&mut self, samples: &[f32]) {
        for part in samples.chunks(2_400) {
            let audio = STANDARD.encode(pcm::to_i16_le(part));
            self.send(json!({"type": "input_audio_buffer.append", "audio": audio}));
        }
    }

    /// Returns the next event, or the code of a close.
    fn next(&mut self) -> Result<Value, CloseCode> {
        loop {
            match self.0.read().unwrap() {
                Message::Text(json) => return Ok(serde_json::from_str(&json).unwrap()),
                Message::Close(frame) => return Err(frame.unwrap().code),
                _ => {}
            }
        }
    }

    /// Closes the session, and waits for its end.
    fn leave(mut self) {
        self.0.close(None).unwrap();
        while self.0.read().is_ok() {}
    }

    /// Returns the events up to one of this type.
    fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut events = vec![self.next().unwrap()];
        while events.last().unwrap()["type"] != kind {
            let event = self.next().unwrap();
            assert_ne!(event["type"], "error", "{event}");
            events.push(event);
        }
        events
    }
}

/// Sound with the overtones and the syllables of a voice.
fn voice(seconds: f64) -> Vec<f32> {
    let circle = std::f64::consts::TAU;
    let formants = [(700.0, 250.0), (1200.0, 300.0), (2600.0, 400.0)];
    let at = |sample: usize| {
        let time = sample as f64 / 24_000.0;
        let pitch = circle * (140.0 * time - 20.0 / 3.0 * (3.0 * time).cos());
        let overtones = (1..25).map(|overtone| {
            let overtone = f64::from(overtone);
            let weights = formants
                .map(|(formant, width): (f64, f64)| (-((140.0 * overtone - formant) / width).powi(2)).exp());
            (0.2 + weights.iter().sum::<f64>()) * (overtone * pitch).sin() / 8.0
        });
        (overtones.sum::<f64>() * (circle * 2.0 * time).sin().max(0.0)) as f32
    };
    (0..(seconds * 24_000.0) as usize).map(at).collect()
}

fn completed(events: &[Value]) -> &str {
    let transcript = events.last().unwrap()["transcript"].as_str().unwrap();
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, transcript);
    transcript
}

const COMPLETED: &str = "conversation.item.input_audio_transcription.completed";

#[test]
fn speech_is_found_and_transcribed() {
    let tiny = Tiny::new();
    tiny.with_speech_detector();
    let model = tiny.whisper(TEXT);
    let live = Live::start(tiny.config());
    let mut session = Session::open(&live, &format!("?intent=transcription&model={model}"), &[]).unwrap();
    let created = session.next().unwrap();
    assert_eq!(
        (&created["type"], &created["session"]["type"]),
        (&json!("session.created"), &json!("transcription"))
    );
    assert_eq!(created["session"]["audio"]["input"]["transcription"]["model"], model);

    session.append(&voice(4.0));
    session.append(&[0.0; 36_000]);
    let events = session.until(COMPLETED);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[0], "input_audio_buffer.speech_started");
    assert!(kinds.contains(&"input_audio_buffer.speech_stopped"), "{kinds:?}");
    assert_eq!(completed(&events), "Hallo Welt, ja.");
    assert_eq!(live.metric("narthex_open_streams"), Some(1.0));

    let update = json!({"type": "transcription", "audio": {"input": {"turn_detection": null}}});
    session.send(json!({"type": "session.update", "session": update}));
    session.until("session.updated");
    session.append(&voice(2.0));
    session.send(json!({"type": "input_audio_buffer.commit"}));
    assert_eq!(completed(&session.until(COMPLETED)), "Hallo Welt, ja.");

    // The document of the API has all of these events.
    let document = live.get("/openapi.json").json();
    let response = &document["paths"]["/v1/realtime"]["get"]["responses"]["101"];
    let mut schema = response["content"]["application/json"]["schema"].clone();
    schema["components"] = document["components"].clone();
    let validator = jsonschema::validator_for(&schema).unwrap();
    for event in events.iter().chain([&created]) {
        assert!(validator.is_valid(event), "{event}");
    }

    session.leave();
    let listed = || {
        let list = live.get("/health/requests").json();
        list["requests"]
            .as_array()
            .unwrap()
            .iter()
            .find(|request| request["route"] == "GET /v1/realtime")
            .cloned()
    };
    crate::support::eventually("the session is listed", || listed().is_some());
    let request = listed().unwrap();
    assert_eq!(request["status"], 101, "{request}");
    assert!(request["model"].as_str().unwrap().starts_with(&model), "{request}");
    assert!(
        request["tokens"].as_u64().unwrap() > 0 && request["total_ms"].as_f64().unwrap() > 0.0,
        "{request}"
    );

    // A shutdown ends a session with a reason.
    let mut session = Session::open(&live, "", &[]).unwrap();
    session.until("session.created");
    live.signal();
    assert_eq!(session.next(), Err(CloseCode::Away));
    drop(session);
    live.join();
}

#[test]
fn errors_are_events_and_oversized_messages_end_the_session() {
    let live = Live::start(Tiny::new().config());
    let mut session = Session::open(&live, "?model=no-such-model", &[]).unwrap();
    session.until("session.created");
    session.append(&[0.0; 24_000]);
    let error = session.next().unwrap();
    assert_eq!(error["error"]["code"], "model_not_found");
    assert_eq!(error["error"]["param"], "session.audio.input.transcription.model");
    let audio = "A".repeat(2 << 20);
    // The server may close the connection before all of it is sent.
    let _ = session
        .0
        .send(Message::text(json!({"type": "input_audio_buffer.append", "audio": audio}).to_string()));
    assert_eq!(session.next(), Err(CloseCode::Size));
}

#[test]
fn a_request_that_opens_no_socket_is_told_so() {
    let live = Live::start(Tiny::new().config());
    let plain = live.get("/v1/realtime");
    assert_eq!((plain.status, plain.header("upgrade")), (426, Some("websocket")));
    assert!(plain.json()["error"]["message"].as_str().unwrap().contains("ws://"));
    live.post("/v1/realtime", &json!({})).error(405);
    let headers =
        [("Connection", "close, upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")];
    let keyless = live.raw(
        format!(
            "GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
            headers.map(|(n, v)| format!("{n}: {v}\r\n")).concat()
        )
        .as_bytes(),
    );
    assert_eq!(keyless.status, 400);
    assert_eq!(Session::open(&live, "?intent=conversation", &[]).err(), Some(400));
    assert_eq!(Session::open(&live, "", &[("Origin", "https://evil.example")]).err(), Some(403));
    assert!(Session::open(&live, "", &[("Origin", "http://localhost:3000")]).is_ok());
}

#[test]
fn sessions_need_a_key_and_count_as_its_answers() {
    let secret = "a-secret-of-sixteen";
    let key = ApiKey::from_secret("app", secret, KeyRole::User).unwrap();
    let limits = KeyLimits { concurrency: NonZeroU32::new(1), ..key.limits.clone() };
    let access = AccessOptions { keys: vec![ApiKey { limits, ..key }], ..AccessOptions::default() };
    let gateway = Gateway::open(Tiny::new().config()).unwrap();
    let live = Live::over(gateway, ServeOptions { access, ..local() });
    assert_eq!(Session::open(&live, "", &[]).err(), Some(401));
    let protocols = format!("realtime, openai-insecure-api-key.{secret}");
    let of_page = [("Sec-WebSocket-Protocol", protocols.as_str())];
    let mut session = Session::open(&live, "", &of_page).unwrap();
    session.until("session.created");
    let bearer = format!("Bearer {secret}");
    let of_client = [("Authorization", bearer.as_str())];
    assert_eq!(Session::open(&live, "", &of_client).err(), Some(429));
    session.leave();
    crate::support::eventually("the place is free", || Session::open(&live, "", &of_client).is_ok());
}
