//! Templates of many families compared with transformers; `tests/goldens/templates.py` recorded its outputs.

use std::{collections::BTreeMap, fs, path::Path};

use narthex_spec::Date;
use serde_json::Value;

use super::{ChatTemplate, GenerationPrompt, Message, RenderOptions, RenderedPrompt, TemplateError};

/// Returns the special tokens that the recorder passed to the templates.
fn specials() -> BTreeMap<String, String> {
    let texts = [("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")];
    texts.map(|(role, text)| (role.to_owned(), text.to_owned())).into()
}

/// Returns a conversation in the form in which the reference received it.
fn inputs(conversation: &Value) -> (Vec<Message>, RenderOptions) {
    let messages = serde_json::from_value(conversation["messages"].clone()).unwrap();
    let mut options = RenderOptions::answer(Date { year: 2026, month: 11, day: 21 });
    options.tools = conversation["tools"].as_array().cloned().unwrap_or_default();
    if conversation["add_generation_prompt"] == false {
        options.generation_prompt = GenerationPrompt::Leave;
    }
    (messages, options)
}

/// Returns the differences from the reference, by template and conversation.
fn differing(folder: &Path, goldens: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (name, cases) in goldens["templates"].as_object().unwrap() {
        let source = fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let template = match ChatTemplate::new(&source, specials()) {
            Ok(template) => template,
            Err(error) => {
                found.push(format!("{name}: {error}"));
                continue;
            }
        };
        for (case, golden) in cases.as_object().unwrap() {
            let (messages, options) = inputs(&goldens["conversations"][case]);
            let expect = match (&golden["text"], &golden["refused"]) {
                (Value::String(text), _) => Ok(text.clone()),
                (_, Value::String(message)) => Err(TemplateError::Refused { message: message.clone() }),
                // The reference failed with an error of Python, which has no counterpart.
                _ => continue,
            };
            let rendered = template.render_as_is(&messages, &options).map(RenderedPrompt::into_text);
            if rendered != expect {
                found.push(format!("{name} of {case}:\n{rendered:?}\ninstead of\n{expect:?}"));
            }
        }
    }
    found
}

#[test]
fn families_render_as_in_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let goldens: Value = serde_json::from_slice(&fs::read(folder.join("templates.json")).unwrap()).unwrap();
    assert!(goldens["templates"].as_object().unwrap().len() > 15);
    let found = differing(&folder.join("templates"), &goldens);
    assert!(found.is_empty(), "{} differ:\n{}", found.len(), found.join("\n\n"));
}
