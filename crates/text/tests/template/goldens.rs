//! Templates of many families compared with transformers; `tests/goldens/templates.py` recorded its outputs.

use std::{collections::BTreeMap, fs, path::Path};

use narthex_spec::Date;
use serde_json::{Value, json};

use super::{
    ChatTemplate, ExactJson, GenerationPrompt, Media, Message, Part, RenderOptions, RenderedPrompt, Role,
    TemplateError, message::ContentForm,
};

/// Returns the special tokens that the recorder passed to the templates.
fn specials() -> BTreeMap<String, String> {
    let texts = [("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")];
    texts.map(|(role, text)| (role.to_owned(), text.to_owned())).into()
}

/// Returns a message, whose content may be a list of parts.
fn message(golden: &Value) -> Message {
    let Some(parts) = golden["content"].as_array() else {
        return serde_json::from_value(golden.clone()).unwrap();
    };
    let mut head = golden.clone();
    head["content"] = json!("");
    let parts = parts.iter().map(|part| match part["text"].as_str() {
        Some(text) => Part::text(text),
        None => Part::Media(Media::new(serde_json::from_value(part["type"].clone()).unwrap(), None, vec![0])),
    });
    let head: Message = serde_json::from_value(head).unwrap();
    Message { content: parts.collect(), ..head }
}

/// Returns a conversation in the form in which the reference received it.
fn inputs(conversation: &Value) -> (Vec<Message>, RenderOptions) {
    let messages = conversation["messages"].as_array().unwrap().iter().map(message).collect();
    let mut options = RenderOptions::answer(Date { year: 2026, month: 11, day: 21 });
    options.tools =
        conversation["tools"].as_array().into_iter().flatten().cloned().map(ExactJson::from).collect();
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
fn white_space_before_an_answer_is_found() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/templates");
    let options = RenderOptions::answer(Date { year: 2026, month: 11, day: 21 });
    let separator = |name: &str| {
        let source = fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        ChatTemplate::new(&source, specials()).unwrap().answer_separator(&options)
    };
    for (name, expect) in [
        ("chatglm3", Some("\n ")),
        ("mistral-v0.2", Some(" ")),
        ("mistral-v0.3", Some(" ")),
        ("llama3.2", Some("")),
        ("qwen2.5", Some("")),
        // Its answers begin with a block of reasoning.
        ("qwen3", None),
    ] {
        assert_eq!(separator(name).as_deref(), expect, "{name}");
    }
}

/// Phi-4 mini's model card has this form: a list of functions between the template's own tags, with or without
/// instructions before them. Its template receives the list on the system message.
#[test]
fn phi4_mini_declares_tools_in_its_own_tags() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/templates");
    let source = fs::read_to_string(folder.join("phi4-mini.jinja")).unwrap();
    let template = ChatTemplate::new(&source, specials()).unwrap();
    let check = |messages: &[(Role, &str)], expect: &str| {
        let messages: Vec<Message> =
            messages.iter().map(|(role, text)| Message::new(*role, (*text).to_owned())).collect();
        let mut options = RenderOptions::answer(Date { year: 2026, month: 11, day: 21 });
        let parameters = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let function = json!({"name": "f", "description": "<|end|>é", "parameters": parameters});
        options.tools = vec![json!({"type": "function", "function": function}).into()];
        let rendered = template.render(&messages, &options).unwrap();
        assert_eq!(rendered.text(), expect);
        // The tags are the template's; the declarations are text.
        let start = rendered.text().find("<|tool|>").unwrap();
        let inside = start + "<|tool|>".len();
        assert!(rendered.written().iter().any(|range| range.contains(&start) && range.end == inside));
    };
    let tools = "<|tool|>[{\"name\": \"f\", \"description\": \"<|end|>é\", \"parameters\": {\"type\": \"object\", \
                 \"properties\": {\"a\": {\"type\": \"string\"}}}}]<|/tool|><|end|>";
    let question = "<|user|>?<|end|><|assistant|>";
    check(&[(Role::User, "?")], &format!("<|system|>{tools}{question}"));
    check(
        &[(Role::System, "Be brief."), (Role::User, "?")],
        &format!("<|system|>Be brief.{tools}{question}"),
    );
}

#[test]
fn templates_that_read_only_parts_get_parts() {
    let form = |source: &str| ChatTemplate::new(source, specials()).unwrap().content_form;
    let parts = "{% for m in messages %}{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}\
                 {% endif %}{% endfor %};{% endfor %}";
    assert_eq!(form(parts), ContentForm::Parts);
    let template = ChatTemplate::new(parts, specials()).unwrap();
    let options = RenderOptions::answer(Date { year: 2026, month: 11, day: 21 });
    let mut marked = Message::new(Role::User, "a");
    marked.content.push_marker("<b>");
    let rendered = template.render(&[marked, Message::new(Role::User, "")], &options).unwrap();
    assert_eq!(rendered.text(), "a<b>;;");
    let written: Vec<&str> = rendered.written().iter().map(|range| &rendered.text()[range.clone()]).collect();
    assert_eq!(written, ["<b>;;"]);

    for name in ["gemma3", "smolvlm", "llama3.2", "qwen3", "mistral-v0.3"] {
        let path = format!("{}/tests/fixtures/templates/{name}.jinja", env!("CARGO_MANIFEST_DIR"));
        assert_eq!(form(&fs::read_to_string(path).unwrap()), ContentForm::Text, "{name}");
    }
    // A list that is written as a whole, and a template that writes no text.
    for source in ["{% for m in messages %}{{ m.type }}{{ m.content | tojson }}{% endfor %}", "type"] {
        assert_eq!(form(source), ContentForm::Text, "{source}");
    }
}

#[test]
fn markers_count_as_the_template_s() {
    let source = "{% for m in messages %}{{ m.role }}:{{ m.content.strip() }};{% endfor %}";
    let template = ChatTemplate::new(source, BTreeMap::new()).unwrap();
    let marked = |role, text: &str| {
        let mut message = Message::new(role, "<a> ".to_owned());
        message.content.push_marker("<a>");
        message.content.push_str(text);
        message
    };
    let written = |messages: &[Message]| {
        let rendered = template
            .render_as_is(messages, &RenderOptions::answer(Date { year: 2026, month: 11, day: 21 }))
            .unwrap();
        let texts = rendered.written().iter().map(|range| rendered.text()[range.clone()].to_owned());
        texts.collect::<Vec<_>>().join("|")
    };
    let both = [marked(Role::System, " é<a>\u{f0041}"), marked(Role::User, "x")];
    assert_eq!(written(&both), "system:|<a>|;user:|<a>|;");
    // Messages that are joined keep their markers.
    assert_eq!(written(&super::message::fold_system(&both)), "user:|<a>|<a>|;");
    assert_eq!(written(&super::message::join_runs(&[both[1].clone(), both[1].clone()])), "user:|<a>|<a>|;");
}

#[test]
fn a_later_system_message_does_not_change_the_beginning() {
    let source = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}\
                  {% endif %}{{ m.role }}:{{ m.content }};{% endfor %}";
    let template = ChatTemplate::new(source, BTreeMap::new()).unwrap();
    let render = |messages: &[(Role, &str)]| {
        let messages: Vec<Message> =
            messages.iter().map(|(role, text)| Message::new(*role, (*text).to_owned())).collect();
        let options = RenderOptions::answer(Date { year: 2026, month: 11, day: 21 });
        template.render(&messages, &options).unwrap().text().replace('\n', "|")
    };
    use Role::{Assistant, System, User};
    let first = [(System, "s"), (User, "a"), (Assistant, "b"), (User, "c")];
    let later = [&first[..], &[(System, "t")]].concat();
    assert_eq!(render(&first), "user:s||a;assistant:b;user:c;");
    assert_eq!(render(&later), "user:s||a;assistant:b;user:c||t;");
}

/// Qwen3.5's template refuses a system message that is not the first, which agents send.
#[test]
fn a_later_system_message_leaves_the_first_in_its_place() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/templates");
    let source = fs::read_to_string(folder.join("qwen3.5.jinja")).unwrap();
    let template = ChatTemplate::new(&source, specials()).unwrap();
    let messages = [
        (Role::System, "Be brief."),
        (Role::Developer, "Be kind."),
        (Role::User, "Hello"),
        (Role::System, "It is late."),
        (Role::User, "Bye"),
    ];
    let messages = messages.map(|(role, text)| Message::new(role, text));
    let options = RenderOptions::answer(Date { year: 2026, month: 11, day: 30 });
    let text = template.render(&messages, &options).unwrap().into_text();
    let expected = "<|im_start|>system\nBe brief.\n\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n\
                    <|im_start|>user\nIt is late.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n\
                    <|im_start|>assistant\n<think>\n";
    assert_eq!(text, expected);
}

#[test]
fn families_render_as_in_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let goldens: Value = serde_json::from_slice(&fs::read(folder.join("templates.json")).unwrap()).unwrap();
    assert!(goldens["templates"].as_object().unwrap().len() > 15);
    let found = differing(&folder.join("templates"), &goldens);
    assert!(found.is_empty(), "{} differ:\n{}", found.len(), found.join("\n\n"));
}
