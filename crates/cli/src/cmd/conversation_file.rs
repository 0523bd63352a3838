//! Files with conversations, as JSON with messages in OpenAI's format.

use std::path::Path;

use anyhow::{Context, ensure};
use narthex_gateway::request::{Message, Role};
use serde::{Deserialize, Serialize};

use crate::output::NewFile;

/// Maximum size of a file in bytes.
const LIMIT: u64 = 16 << 20;

#[derive(Serialize)]
struct Written<'a> {
    model: &'a str,
    messages: &'a [Message],
}

#[derive(Deserialize)]
struct Read {
    messages: Vec<Message>,
}

/// Writes a conversation.
pub(super) fn save(path: &Path, model: &str, messages: &[Message]) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(&Written { model, messages })?;
    NewFile::create(path)?.write(format!("{text}\n"))
}

/// Reads the messages of a conversation.
pub(super) fn load(path: &Path) -> anyhow::Result<Vec<Message>> {
    let shown = path.display();
    let text = narthex_files::read(path, LIMIT).and_then(narthex_files::user_text);
    let text = text.with_context(|| format!("cannot read {shown}"))?;
    let read: Read =
        serde_json::from_str(&text).with_context(|| format!("{shown} is not a saved conversation"))?;
    ensure!(!read.messages.is_empty(), "expected at least one message in {shown}, found none");
    Ok(read.messages)
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
        let messages = [
            Message::new(Role::System, "be brief".to_owned()),
            Message::new(Role::User, "hello".to_owned()),
            Message {
                reasoning_content: Some("hm".to_owned()),
                ..Message::new(Role::Assistant, "hi".to_owned())
            },
        ];
        save(&path, "tiny@w8", &messages).unwrap();
        let found = load(&path).unwrap();
        assert_eq!((found.as_slice(), instructions(&found).as_deref()), (&messages[..], Some("be brief")));
        for (text, expect) in [("{", "is not a saved conversation"), (r#"{"messages": []}"#, "found none")] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", load(&path).unwrap_err());
            assert!(error.contains(expect), "{error}");
        }
        let absent = format!("{:#}", load(&folder.path().join("absent")).unwrap_err());
        assert!(absent.starts_with("cannot read"), "{absent}");
    }
}
