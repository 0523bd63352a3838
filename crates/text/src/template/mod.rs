//! Chat templates: Jinja as in Hugging Face's `apply_chat_template`, with bounded work.
//!
//! Templates are untrusted. Rendering is limited in steps, in bytes produced and read, and in the size and depth of
//! values (`limits`, which `instructions` and `functions` apply). It reads no clock: the date is an argument. The
//! result states which of its characters the template wrote ([`RenderedPrompt`]).

mod content;
mod functions;
#[cfg(test)]
#[path = "../../tests/template/goldens.rs"]
mod goldens;
mod growth;
#[cfg(test)]
#[path = "../../tests/template/hostile.rs"]
mod hostile;
mod instructions;
mod large_integer;
mod limits;
mod message;
mod origin;
mod python;
mod size;
mod system_tools;

use std::{collections::BTreeMap, slice, sync::Arc};

use minijinja::{
    AutoEscape, Environment, ErrorKind, Value, context,
    machinery::{self, Instructions},
    syntax::SyntaxConfig,
};
use narthex_spec::Date;
use serde_json::{Map, json};

pub use content::{Content, Media, Origin, Part, RemoteMedia};
pub use message::{FunctionCall, Message, Role, ToolCall};
pub use origin::RenderedPrompt;

use crate::{
    catch_panic::contain,
    compile_thread::{self, ThreadStartError},
    exact_json::{ExactJson, ExactPart},
};
use large_integer::template_value;
use message::{ContentForm, escaped_json};
use origin::{Escaper, Read};

/// Maximum number of steps of one rendering, checks included. A conversation takes a few hundred per message.
const FUEL: u64 = 1_000_000;

/// Bytes of stack for compiling a template; the compiler recurses as deep as the source nests.
const COMPILE_STACK: usize = 64 << 20;

/// Name of the one template in an environment.
const NAME: &str = "chat template";

/// A failure to render a conversation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template is not valid Jinja.
    #[error("the chat template is malformed: {reason}")]
    Malformed {
        /// The parser's error with its line.
        reason: String,
    },
    /// The template refuses these messages.
    #[error("{message}")]
    Refused {
        /// Message of the template's `raise_exception`.
        message: String,
    },
    /// Rendering failed or exceeded a limit.
    #[error("the chat template failed: {reason}")]
    Failed {
        /// The renderer's error.
        reason: String,
    },
    /// The compiler cannot run.
    #[error(transparent)]
    Thread(#[from] ThreadStartError),
}

/// Choice of the end of the rendered text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationPrompt {
    /// The text ends with the start of the assistant's next message.
    Add,
    /// The text ends with the last message.
    Leave,
}

/// Inputs of a template besides the messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderOptions {
    /// End of the text.
    pub generation_prompt: GenerationPrompt,
    /// Date for `strftime_now`.
    pub date: Date,
    /// Tools that the assistant may call, each an object of OpenAI's `tools`.
    pub tools: Vec<ExactJson>,
    /// Further variables, such as `enable_thinking`. They do not replace the standard ones.
    pub variables: serde_json::Map<String, serde_json::Value>,
}

impl RenderOptions {
    /// Returns options for an answer on a date, without tools.
    pub fn answer(date: Date) -> Self {
        Self { generation_prompt: GenerationPrompt::Add, date, tools: Vec::new(), variables: Map::new() }
    }
}

/// A compiled chat template. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    /// The compiled template without checks, which are inserted for each conversation.
    env: Arc<Environment<'static>>,
    /// Spellings of special tokens by name, marked as the template's.
    special_tokens: BTreeMap<String, String>,
    knows_developer: bool,
    /// Set if the template reads the tools from the system message.
    reads_system_tools: bool,
    /// Set if the template refuses or omits the second call of a message.
    has_single_calls: bool,
    content_form: ContentForm,
}

/// Parts of a conversation with tools that a template renders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Abilities {
    /// Declarations of tools.
    pub tools: bool,
    /// Calls of the assistant.
    pub calls: bool,
    /// Results of calls, as messages of their own role.
    pub results: bool,
}

impl ChatTemplate {
    /// Compiles a template. `special_tokens` has the spellings of special tokens by the names that templates use, such
    /// as `bos_token`.
    pub fn new(source: &str, special_tokens: BTreeMap<String, String>) -> Result<Self, TemplateError> {
        let source = without_generation_blocks(source);
        let knows_developer = source.contains("developer");
        let reads_system_tools = system_tools::are_read_by(&source);
        let env = compile_thread::run(COMPILE_STACK, || {
            let mut env = functions::environment()?;
            env.add_template_owned(NAME, instructions::shield_literals(&source, syntax()?)?)?;
            checked(&env).map(drop)?;
            Ok(env)
        })?;
        let env = env
            .ok_or_else(panicked)?
            .map_err(|error: minijinja::Error| TemplateError::Malformed { reason: format!("{error:#}") })?;
        let special_tokens =
            special_tokens.into_iter().map(|(name, text)| (name, origin::mark(&text))).collect();
        let content_form = ContentForm::Text;
        let template = Self {
            env: Arc::new(env),
            special_tokens,
            knows_developer,
            reads_system_tools,
            has_single_calls: false,
            content_form,
        };
        // Templates with parts compare their types.
        let template = if source.contains("type") { template.with_content_form() } else { template };
        let has_single_calls = source.contains("tool_calls") && template.has_single_calls();
        Ok(Self { has_single_calls, ..template })
    }

    /// Returns the template with the form of content whose text it writes, a string if possible.
    fn with_content_form(self) -> Self {
        const TEXT: &str = "probetext";
        let options = RenderOptions::answer(Date { year: 2026, month: 1, day: 1 });
        let message = Message::new(Role::User, TEXT);
        let writes = |template: &Self| {
            let rendered = template.render_as_is(slice::from_ref(&message), &options);
            // A list that is written as a whole has its keys.
            rendered.is_ok_and(|rendered| {
                let text = rendered.text();
                text.contains(TEXT) && !text.contains("'text'") && !text.contains("\"text\"")
            })
        };
        if writes(&self) {
            return self;
        }
        let with_parts = Self { content_form: ContentForm::Parts, ..self.clone() };
        if writes(&with_parts) { with_parts } else { self }
    }

    /// Returns the parts of a conversation with tools that the template renders, found by rendering a small conversation. Its ids
    /// have nine letters and digits, which Mistral's templates require.
    pub fn abilities(&self) -> Abilities {
        let (messages, options) = probe_conversation(&["probe0001"]);
        let writes = |count: usize, probe: &str| {
            self.render(&messages[..count], &options).is_ok_and(|rendered| rendered.text().contains(probe))
        };
        let tools = writes(1, "probefunction");
        Abilities {
            tools,
            calls: tools && writes(2, "argument of probe0001"),
            results: tools && writes(3, "result of probe0001"),
        }
    }

    /// Returns true if the template refuses or omits the second call of a message.
    fn has_single_calls(&self) -> bool {
        let writes = |ids: &[&str]| {
            let (messages, options) = probe_conversation(ids);
            let rendered = self.render_as_is(&messages, &options);
            rendered.is_ok_and(|rendered| {
                ids.iter().all(|id| rendered.text().contains(&format!("argument of {id}")))
            })
        };
        writes(&["probe0001"]) && !writes(&["probe0001", "probe0002"])
    }

    /// Returns the white space that the template writes between the start of an answer and its text; `None` if it writes
    /// something else between them.
    pub fn answer_separator(&self, options: &RenderOptions) -> Option<String> {
        const TEXT: &str = "x";
        let messages = [Role::User, Role::Assistant].map(|role| Message::new(role, TEXT));
        let render = |messages: &[Message], generation_prompt| {
            let options = RenderOptions { generation_prompt, ..options.clone() };
            self.render(messages, &options).ok().map(RenderedPrompt::into_text)
        };
        let start = render(&messages[..1], GenerationPrompt::Add)?;
        let whole = render(&messages, GenerationPrompt::Leave)?;
        let rest = whole.strip_prefix(&start)?;
        let text = rest.trim_start();
        text.starts_with(TEXT).then(|| rest[..rest.len() - text.len()].to_owned())
    }

    /// Renders a conversation.
    ///
    /// If the template refuses consecutive messages of one role, they are joined. If it refuses or omits system messages after
    /// the first message, later ones become user messages. If it refuses or omits all system messages, the text of the leading
    /// ones also moves to the head of the first user message. If it refuses or omits the second call of a message, each call has
    /// a message of its own. If it reads the tools from the system message, they are added there. Any other refusal is an error
    /// with the template's message.
    pub fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<RenderedPrompt, TemplateError> {
        let mut parts = messages.iter().flat_map(|message| message.content.parts());
        if parts.any(|part| matches!(part, Part::Remote(_))) {
            return Err(failed("a medium at an address has not been read".to_owned()));
        }
        let mut messages =
            if self.knows_developer { messages.to_vec() } else { message::without_developer(messages) };
        if self.reads_system_tools && !options.tools.is_empty() {
            messages = system_tools::added(&messages, &options.tools)
                .map_err(|error| failed(format!("{error:#}")))?;
        }
        if self.has_single_calls {
            messages = message::with_single_calls(messages);
        }
        let mut fallback = match self.render_as_is(&messages, options) {
            Ok(rendered) if self.writes_system(&messages, options, rendered.text()) => return Ok(rendered),
            other @ (Ok(_) | Err(TemplateError::Refused { .. })) => other,
            failed => return failed,
        };

        let renamed = message::without_developer(&messages);
        let joined = message::join_runs(&renamed);
        let led = message::lead_with_system(&messages);
        let led_and_joined = message::join_runs(&led);
        let folded = message::fold_system(&messages);
        let folded_and_joined = message::join_runs(&folded);
        for adapted in [renamed, joined, led, led_and_joined, folded, folded_and_joined] {
            if adapted.as_slice() != messages.as_slice()
                && let Ok(rendered) = self.render_as_is(&adapted, options)
            {
                if message::has_system_texts(&messages, rendered.text()) {
                    return Ok(rendered);
                }
                fallback = fallback.or(Ok(rendered));
            }
        }
        fallback
    }

    /// Returns true if the template writes the text of every system message. `rendered` is its rendering of the conversation.
    fn writes_system(&self, messages: &[Message], options: &RenderOptions, rendered: &str) -> bool {
        message::has_system_texts(messages, rendered) || {
            let probes = message::with_probes(messages);
            let rendered = self.render_as_is(&probes, options);
            rendered.is_ok_and(|rendered| message::has_system_texts(&probes, rendered.text()))
        }
    }

    fn render_as_is(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<RenderedPrompt, TemplateError> {
        contain(|| self.evaluate(messages, options)).map_err(|_| panicked())?.map_err(|error| {
            match python::refusal(&error) {
                Some(message) => TemplateError::Refused { message },
                None => failed(format!("{error:#}")),
            }
        })
    }

    fn evaluate(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<RenderedPrompt, minijinja::Error> {
        let mut env = (*self.env).clone();
        let date = options.date;
        let strftime = Value::from_function(move |format: String| python::strftime(&format, date));
        env.add_function("strftime_now", limits::measured("strftime_now", Read::Text, strftime));
        let (instructions, blocks) = checked(&env)?;
        let escaper = Escaper::default();
        let form = self.content_form;
        let messages: serde_json::Value = messages
            .iter()
            .map(|message| message.template_value(form, &escaper))
            .collect::<Result<_, _>>()?;
        let tools: Vec<_> = options
            .tools
            .iter()
            .map(|tool| escaped_json(tool.tree().root(), &escaper))
            .collect::<Result<_, _>>()?;
        let variables = options.variables.iter().map(|(name, value)| {
            let value = escaped_json(ExactPart::plain(value), &escaper)?;
            Ok::<_, minijinja::Error>((name.clone(), template_value(&value)))
        });
        let mut variables: BTreeMap<String, Value> = variables.collect::<Result<_, _>>()?;
        variables.extend(self.special_tokens.iter().map(|(name, text)| (name.clone(), text.clone().into())));
        let values = context! {
            messages => template_value(&messages),
            add_generation_prompt => options.generation_prompt == GenerationPrompt::Add,
            // Templates test these variables for `none`, which differs from undefined.
            tools => (!tools.is_empty()).then(|| template_value(&tools.into())),
            documents => Value::from(()),
            ..Value::from_pairs(variables),
        };
        let mut text = String::new();
        let mut output = machinery::make_string_output(&mut text);
        machinery::eval(&env, &instructions, values, &blocks, &mut output, AutoEscape::None)?;
        Ok(RenderedPrompt::new(&text))
    }
}

/// Instructions of a template and of its blocks, by name.
type TemplateInstructions<'env> = (Instructions<'env>, BTreeMap<&'env str, Instructions<'env>>);

/// Returns the template's instructions with checks.
fn checked<'env>(env: &'env Environment<'env>) -> Result<TemplateInstructions<'env>, minijinja::Error> {
    let template = env.get_template(NAME)?;
    let compiled = machinery::get_compiled_template(&template);
    let blocks = compiled.blocks.iter().map(|(name, block)| Ok((*name, instructions::insert_checks(block)?)));
    Ok((
        instructions::insert_checks(&compiled.instructions)?,
        blocks.collect::<Result<_, minijinja::Error>>()?,
    ))
}

fn syntax() -> Result<SyntaxConfig, minijinja::Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// Returns a question, a message with a call for each id, and their results.
fn probe_conversation(ids: &[&str]) -> (Vec<Message>, RenderOptions) {
    let mut options = RenderOptions::answer(Date { year: 2026, month: 1, day: 1 });
    let parameters = json!({"type": "object", "properties": {"a": {"type": "string", "description": "a"}}});
    let function = json!({"name": "probefunction", "description": "b", "parameters": parameters});
    options.tools.push(json!({"type": "function", "function": function}).into());
    let call = |id: &&str| {
        let arguments = json!({"a": format!("argument of {id}")});
        let function = FunctionCall { name: "probefunction".to_owned(), arguments: arguments.into() };
        ToolCall { id: Some((*id).to_owned()), function }
    };
    let result = |id: &&str| Message {
        tool_call_id: Some((*id).to_owned()),
        ..Message::new(Role::Tool, format!("result of {id}"))
    };
    let tool_calls = ids.iter().map(call).collect();
    let assistant = Message { tool_calls, ..Message::new(Role::Assistant, "") };
    let messages = [Message::new(Role::User, "c"), assistant].into_iter().chain(ids.iter().map(result));
    (messages.collect(), options)
}

fn failed(reason: String) -> TemplateError {
    TemplateError::Failed { reason }
}

fn panicked() -> TemplateError {
    failed("the template engine panicked".to_owned())
}

/// Replaces `{% generation %}` blocks, which matter only in training, by `{% if true %}`.
fn without_generation_blocks(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start + 2..].find("%}") else { break };
        let tag = &rest[start..start + length + 4];
        let word = tag[2..tag.len() - 2].trim_matches(['-', '+', ' ', '\t', '\r', '\n']);
        text.push_str(&rest[..start]);
        match word {
            "generation" => text.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => text.push_str(&tag.replace("endgeneration", "endif")),
            _ => text.push_str(tag),
        }
        rest = &rest[start + length + 4..];
    }
    text.push_str(rest);
    text
}

/// Kind of the error that a template raises to refuse a conversation.
pub(crate) const REFUSAL: ErrorKind = ErrorKind::InvalidOperation;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn options() -> RenderOptions {
        RenderOptions::answer(Date { year: 2026, month: 3, day: 7 })
    }

    #[test]
    fn variables_are_those_of_the_conversation_and_replace_no_other() {
        let source = "{{ bos_token }}{{ mode }}{{ messages | length }}{{ enable_thinking is false }}";
        let specials = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
        let variables = json!({"mode": "<s>", "bos_token": "x", "messages": "y", "enable_thinking": false});
        let variables = variables.as_object().unwrap().clone();
        let message = Message::new(Role::User, String::new());
        let options = RenderOptions { variables, ..options() };
        let rendered = ChatTemplate::new(source, specials).unwrap().render(&[message], &options).unwrap();
        assert_eq!(rendered.text(), "<s><s>1True");
        // The result of a function does not count as the template's text.
        assert_eq!(rendered.written(), std::slice::from_ref(&(0..3)));
    }

    #[test]
    fn integers_beyond_64_bits_keep_their_digits() {
        let large = "115792089237316195423570985008687907853269984665640564039457584007913129639935";
        let arguments = format!(r#"{{"n": {large}, "s": "\ufdd15", "list": [-9223372036854775809]}}"#);
        let arguments = ExactJson::parse(&arguments).unwrap();
        let call = ToolCall { id: None, function: FunctionCall { name: "f".to_owned(), arguments } };
        let message = Message { tool_calls: vec![call], ..Message::new(Role::Assistant, String::new()) };
        let tool = format!(r#"{{"type": "function", "function": {{"maximum": {large}}}}}"#);
        let options = RenderOptions { tools: vec![ExactJson::parse(&tool).unwrap()], ..options() };
        let rendered = |source: &str| {
            let source =
                format!("{{% set a = messages[0].tool_calls[0].function.arguments %}}{{{{ {source} }}}}");
            let template = ChatTemplate::new(&source, BTreeMap::new()).unwrap();
            template.render(std::slice::from_ref(&message), &options).unwrap().into_text()
        };
        let list = r#""list": [-9223372036854775809]"#;
        let check = |source: &str, expect: &str| assert_eq!(rendered(source), expect, "{source}");
        check("tools | tojson", &format!("[{tool}]"));
        check("a | tojson", &format!("{{\"n\": {large}, \"s\": \"\u{fdd1}5\", {list}}}"));
        check(
            "a | tojson | fromjson | tojson(sort_keys=true)",
            &format!("{{{list}, \"n\": {large}, \"s\": \"\u{fdd1}5\"}}"),
        );
        check("a.n", large);
        check("'n: ' + a.n | string", &format!("n: {large}"));
        check("a.list", "[-9223372036854775809]");
        check("a.n is string", "False");
    }

    fn render(source: &str, messages: &[(Role, &str)]) -> Result<String, TemplateError> {
        let specials = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
        let messages: Vec<Message> =
            messages.iter().map(|(role, text)| Message::new(*role, (*text).to_owned())).collect();
        ChatTemplate::new(source, specials)?.render(&messages, &options()).map(RenderedPrompt::into_text)
    }

    fn check(source: &str, messages: &[(Role, &str)], expected: &str) {
        assert_eq!(render(source, messages).unwrap(), expected, "{source}");
    }

    #[test]
    fn chatml() {
        let source = "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}\
            {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
        let expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
        check(source, &[(Role::User, "hi")], expected);
    }

    #[test]
    fn python_habits() {
        let one = &[(Role::User, " <a> & 'b' ")];
        check("{{ messages[0].content | tojson }}", one, "\" <a> & 'b' \"");
        check("{{ {'b': [1, 2.0, 1e-7], 'a': none} | tojson }}", one, r#"{"b": [1, 2.0, 1e-07], "a": null}"#);
        check("{{ {'b': 1} | tojson(indent=2) }}", one, "{\n  \"b\": 1\n}");
        check("{{ 'é' | tojson(ensure_ascii=true) }}", one, "\"\\u00e9\"");
        check("{{ messages[0]['content'].strip().split(' ')[0] }}", one, "<a>");
        check("{{ strftime_now('%d %b %Y') }}", one, "07 Mar 2026");
        check("{{ bos_token }}{% generation %}x{%- endgeneration %}", one, "<s>x");
        check(
            "{% for i in range(3) %}\n  {% if i == 1 %}{% continue %}{% endif %}\n  {{ i }}\n{% endfor %}",
            one,
            "  0\n  2\n",
        );
        check("{{ ('{\"a\": 3}' | fromjson).a }}", one, "3");
        check("{{ none }} {{ true }} {{ 1.0 }}", one, "None True 1.0");
        check("{{ tools is defined }} {{ tools is none }} {{ documents is none }}", one, "True True True");
        check("{{ 'a' is sequence }} {{ {} is iterable }} {{ 1 is sequence }}", one, "True True False");
    }

    const ALTERNATING: &str = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}\
        {% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}\
        [{{ m.role }}:{{ m.content }}]{% endfor %}";

    #[test]
    fn templates_that_refuse_are_met_halfway() {
        check(ALTERNATING, &[(Role::System, "s"), (Role::User, "u")], "[user:s\n\nu]");
        check(ALTERNATING, &[(Role::Developer, "s"), (Role::User, "u")], "[user:s\n\nu]");
        let no_developer = "{% for m in messages %}{% if m.role == 'developer' %}{{ raise_exception('no') }}{% endif %}[{{ m.role }}]{% endfor %}";
        check(no_developer, &[(Role::Developer, "s"), (Role::User, "u")], "[system][user]");
        check(ALTERNATING, &[(Role::User, "a"), (Role::User, "b")], "[user:a\n\nb]");
        check(
            ALTERNATING,
            &[(Role::System, "s"), (Role::User, "a"), (Role::User, "b")],
            "[user:s\n\na\n\nb]",
        );
        let refused = render(ALTERNATING, &[(Role::Assistant, "a")]).unwrap_err();
        assert_eq!(refused, TemplateError::Refused { message: "must alternate".to_owned() });
    }

    #[test]
    fn system_messages_that_a_template_omits_are_met_halfway() {
        let first_only = "{% if messages[0].role == 'system' %}<{{ messages[0].content }}>{% endif %}\
            {% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% endif %}{% endfor %}";
        check(first_only, &[(Role::System, "s"), (Role::User, "u")], "<s>[u]");
        check(first_only, &[(Role::System, "s"), (Role::System, "t"), (Role::User, "u")], "<s\n\nt>[u]");
        check(first_only, &[(Role::System, "s"), (Role::User, "u"), (Role::System, "t")], "<s>[u][t]");
        check(first_only, &[(Role::User, "u"), (Role::Developer, "t")], "[u][t]");
        let none = "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% endif %}{% endfor %}";
        check(none, &[(Role::System, "s"), (Role::User, "u")], "[s\n\nu]");
        // A text that the template changes is not omitted.
        let changed =
            "{% for m in messages %}{{ m.content | replace('/no_think', '') | trim | tojson }}{% endfor %}";
        check(changed, &[(Role::System, "a \"b\" /no_think"), (Role::User, "u")], r#""a \"b\"""u""#);
    }

    #[test]
    fn one_conversation_does_not_spoil_the_next() {
        let source = "{% if messages[0].content == 'much' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}\
            {% endfor %}{% endif %}{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ messages[0].content }}";
        let template = ChatTemplate::new(source, BTreeMap::new()).unwrap();
        std::thread::scope(|scope| {
            for asker in 0..4 {
                let template = template.clone();
                scope.spawn(move || {
                    for round in 0..8 {
                        let text = format!("{asker} {round}");
                        let says = |text: &str| {
                            let message = Message::new(Role::User, text.to_owned());
                            template.render(&[message], &options()).map(RenderedPrompt::into_text)
                        };
                        assert_eq!(says(&text).unwrap(), format!("1{text}"));
                        assert!(matches!(says("much"), Err(TemplateError::Failed { .. })));
                    }
                });
            }
        });
    }

    proptest! {
        #[test]
        fn no_template_panics(source in "(\\{\\{|\\{%|%\\}|\\}\\}|[a-z .'|()\\[\\]]|for|in|if|messages|tojson|endif|endfor){0,30}") {
            let _ = render(&source, &[(Role::User, "x")]);
        }
    }
}
