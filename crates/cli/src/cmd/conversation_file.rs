//! Files with conversations, as JSON with messages in OpenAI's format. Images are data URLs.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use narthex_gateway::request::{Content, MediaKind, Message, Part, Role};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::media;
use crate::output::NewFile;

/// Maximum size of a file in bytes.
const LIMIT: u64 = 256 << 20;

#[derive(Serialize)]
struct Written<'a> {
    model: &'a str,
    messages: Vec<Value>,
}

#[derive(Deserialize)]
struct Read {
    messages: Vec<Value>,
}

/// Writes a conversation.
pub(super) fn save(path: &Path, model: &str, messages: &[Message]) -> anyhow::Result<()> {
    let messages = messages.iter().map(written).collect::<anyhow::Result<_>>()?;
    let text = serde_json::to_string_pretty(&Written { model, messages })?;
    NewFile::create(path)?.write(format!("{text}\n"))
}

/// Reads the messages of a conversation.
pub(super) fn load(path: &Path) -> anyhow::Result<Vec<Message>> {
    let shown = path.display();
    let text = narthex_files::read(path, LIMIT).and_then(narthex_files::user_text);
    let text = text.with_context(|| format!("cannot read {shown}"))?;
    let read = serde_json::from_str::<Read>(&text).map_err(anyhow::Error::from);
    let messages =
        read.and_then(|read| read.messages.into_iter().map(message).collect::<Result<Vec<_>, _>>());
    let messages = messages.with_context(|| format!("{shown} is not a saved conversation"))?;
    ensure!(!messages.is_empty(), "expected at least one message in {shown}, found none");
    Ok(messages)
}

/// Returns a message as JSON. Content with media is a list of parts.
fn written(message: &Message) -> anyhow::Result<Value> {
    let mut written = serde_json::to_value(message)?;
    if message.content.has_media() {
        let parts = message.content.parts().iter().map(|part| match part {
            Part::Text { text, .. } => json!({"type": "text", "text": text}),
            Part::Remote(remote) => json!({"type": "image_url", "image_url": {"url": remote.url}}),
            Part::Media(media) => match media.kind() {
                // Frames stand for videos here, so that there are none.
                MediaKind::Image | MediaKind::Video => {
                    json!({"type": "image_url", "image_url": {"url": media.data_url()}})
                }
                MediaKind::Audio => {
                    let format = media.media_type().and_then(|found| found.strip_prefix("audio/"));
                    let audio = json!({"data": media.base64(), "format": format});
                    json!({"type": "input_audio", "input_audio": audio})
                }
            },
        });
        written["content"] = parts.collect();
    }
    Ok(written)
}

/// Reads a message.
fn message(mut value: Value) -> anyhow::Result<Message> {
    let Some(parts) = value["content"].as_array() else { return Ok(serde_json::from_value(value)?) };
    let content = parts.iter().map(part).collect::<anyhow::Result<Content>>()?;
    value["content"] = Value::String(String::new());
    Ok(Message { content, ..serde_json::from_value(value)? })
}

/// Reads a part of a message.
fn part(value: &Value) -> anyhow::Result<Part> {
    let audio = &value["input_audio"];
    match (&value["text"], &value["image_url"]["url"], &audio["data"]) {
        (Value::String(text), Value::Null, Value::Null) => Ok(Part::text(text)),
        (Value::Null, Value::String(url), Value::Null) => Ok(Part::Media(media::of_data_url(url)?)),
        (Value::Null, Value::Null, Value::String(data)) => {
            Ok(Part::Media(media::of_base64(data, audio["format"].as_str())?))
        }
        _ => bail!(
            "expected a part with a text, an image_url or an input_audio, found one of the type {}",
            value["type"]
        ),
    }
}

/// Returns the instructions at the beginning of a conversation.
pub(super) fn instructions(messages: &[Message]) -> Option<String> {
    let first = messages.first().filter(|message| message.role == Role::System);
    first.map(|message| message.content.text().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_conversation_is_loaded_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk.json");
        let picture =
            media::read(MediaKind::Image, Path::new("../image/tests/fixtures/rgb.png")).unwrap().remove(0);
        let sound = folder.path().join("tone.wav");
        let wav = narthex_audio::Pcm { samples: vec![0.25; 1600], sample_rate: 16_000 }.to_wav();
        std::fs::write(&sound, wav).unwrap();
        let sound = media::read(MediaKind::Audio, &sound).unwrap().remove(0);
        let messages = [
            Message::new(Role::System, "be brief".to_owned()),
            Message::new(Role::User, media::question(vec![picture, sound], "what is it?".to_owned())),
            Message {
                reasoning_content: Some("hm".to_owned()),
                ..Message::new(Role::Assistant, "hi".to_owned())
            },
        ];
        save(&path, "tiny@w8", &messages).unwrap();
        let found = load(&path).unwrap();
        assert_eq!((found.as_slice(), instructions(&found).as_deref()), (&messages[..], Some("be brief")));
        let absent = format!("{:#}", load(&folder.path().join("absent")).unwrap_err());
        assert!(absent.starts_with("cannot read"), "{absent}");
    }

    #[test]
    fn a_file_that_is_no_conversation_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk.json");
        let parts = |part: &str| format!(r#"{{"messages": [{{"role": "user", "content": [{part}]}}]}}"#);
        for (text, expect) in [
            ("{".to_owned(), "is not a saved conversation"),
            (r#"{"messages": []}"#.to_owned(), "found none"),
            (r#"{"messages": [{"role": "user", "content": 5}]}"#.to_owned(), "expected a string"),
            (parts(r#"{"type": "input_audio"}"#), "found one of the type \"input_audio\""),
            (parts(r#"{"input_audio": {"data": "!"}}"#), "expected audio in base64"),
            (parts(r#"{"input_audio": {"data": "AAAA"}}"#), "expected audio (wav"),
            (parts(r#"{"image_url": {"url": "https://example.org"}}"#), "expected an image as a data URL"),
            (parts(r#"{"image_url": {"url": "data:image/png;base64,!"}}"#), "in base64"),
            (parts(r#"{"image_url": {"url": "data:image/png;base64,AAAA"}}"#), "expected a picture"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = format!("{:#}", load(&path).unwrap_err());
            assert!(error.contains("talk.json") && error.contains(expect), "{text}: {error}");
        }
    }
}
