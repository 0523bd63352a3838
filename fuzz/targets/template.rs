//! Chat templates: they are parsed, and conversations are rendered under the limits of the product.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use narthex_spec::{Date, MediaKind};
use narthex_text::template::{ChatTemplate, Content, GenerationPrompt, Media, Message, Part, RenderOptions, Role};

/// Returns a conversation with every role.
fn conversation() -> Vec<Message> {
    let turns = [
        (Role::System, "Answer briefly."),
        (Role::Developer, "Be kind."),
        (Role::User, "Name <three> \"colours\" 🙂\n"),
        (Role::Assistant, "red, green, blue"),
        (Role::Tool, "{\"a\": [1, 2.5, null]}"),
        (Role::User, ""),
    ];
    let mut messages: Vec<Message> = turns.map(|(role, content)| Message::new(role, content)).into();
    let picture = Media::new(MediaKind::Image, None, vec![0]);
    let parts = [Part::text("What is "), Part::Media(picture), Part::text("?")];
    messages.push(Message::new(Role::User, parts.into_iter().collect::<Content>()));
    messages
}

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let names = ["bos_token", "eos_token", "unk_token"];
    let specials: BTreeMap<String, String> = names.map(|name| (name.to_owned(), format!("<{name}>"))).into();
    let Ok(template) = ChatTemplate::new(source, specials) else { return };
    let conversation = conversation();
    let options = RenderOptions::answer(Date { year: 2026, month: 3, day: 7 });
    let _ = template.render(&conversation, &options);
    let options = RenderOptions { generation_prompt: GenerationPrompt::Leave, ..RenderOptions::answer(Date { year: 2024, month: 2, day: 29 }) };
    let _ = template.render(&conversation[2..3], &options);
});
