//! Chat templates: Jinja as Hugging Face's `apply_chat_template` runs it, with bounded work.
//!
//! Templates come from outside; rendering is limited in steps, in what they produce and in output, and reads no clock:
//! the date is given. Rendering is in [`renderer`], what is limited in [`budget`] and [`bounded`], and where in [`guard`].

mod bounded;
mod budget;
#[cfg(test)]
mod goldens;
mod guard;
mod message;
mod python;
mod renderer;

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use minijinja::{Environment, ErrorKind, syntax::SyntaxConfig};

use budget::Budget;
use renderer::Renderer;

pub use message::{FunctionCall, Message, Role, ToolCall};

/// Steps that one rendering may take; a conversation takes some hundred a message.
const FUEL: u64 = 500_000;

/// Bytes that one rendering may give.
const MAX_OUTPUT: usize = 64 << 20;

/// Why a conversation was not rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template is not valid Jinja.
    #[error("the chat template is malformed: {reason}")]
    Malformed {
        /// The parser's reason, with the line.
        reason: String,
    },
    /// The template refuses these messages, in its own words.
    #[error("{message}")]
    Refused {
        /// What it said.
        message: String,
    },
    /// Rendering failed or ran over a limit.
    #[error("the chat template failed: {reason}")]
    Failed {
        /// The renderer's reason.
        reason: String,
    },
}

/// Whether the text ends where the assistant begins to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationPrompt {
    /// It does: an answer is wanted.
    Add,
    /// It ends with the last message.
    Leave,
}

/// What a template may ask for besides the messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderOptions {
    /// Whether the assistant is to speak next.
    pub generation_prompt: GenerationPrompt,
    /// The day that `strftime_now` prints: year, month from 1, day from 1.
    pub date: (i64, u8, u8),
    /// The tools that the assistant may call, each an object of OpenAI's `tools`.
    pub tools: Vec<serde_json::Value>,
}

impl RenderOptions {
    /// An answer is wanted on that day; there are no tools.
    pub fn answer(date: (i64, u8, u8)) -> Self {
        Self { generation_prompt: GenerationPrompt::Add, date, tools: Vec::new() }
    }

    /// The options with each text of the tools changed.
    pub fn map_text<'a>(&'a self, change: impl Fn(&'a str) -> Cow<'a, str>) -> Self {
        let tools = self.tools.iter().map(|tool| message::map_json(tool, &change)).collect();
        Self { tools, ..*self }
    }
}

/// A parsed chat template. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    renderer: Arc<Renderer>,
    knows_developer: bool,
}

impl ChatTemplate {
    /// Parses a template; `special_tokens` are the texts that it names, such as `bos_token`.
    pub fn new(source: &str, special_tokens: BTreeMap<String, String>) -> Result<Self, TemplateError> {
        let source = without_generation_blocks(source);
        let knows_developer = source.contains("developer");
        Ok(Self { renderer: Arc::new(Renderer::start(source, special_tokens)?), knows_developer })
    }

    /// The conversation as text.
    ///
    /// A template that refuses a system message gets its text at the head of the first user message; one that refuses
    /// two messages of one role in a row gets them joined. What it refuses still is refused in its own words.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, TemplateError> {
        let messages =
            if self.knows_developer { messages.to_vec() } else { message::without_developer(messages) };
        let first = match self.render_as_is(&messages, options) {
            Err(error @ TemplateError::Refused { .. }) => error,
            other => return other,
        };
        let renamed = message::without_developer(&messages);
        let joined = message::join_runs(&renamed);
        let folded = message::fold_system(&messages);
        let both = message::join_runs(&folded);
        for adapted in [renamed, joined, folded, both] {
            if adapted.as_slice() != messages.as_slice()
                && let Ok(text) = self.render_as_is(&adapted, options)
            {
                return Ok(text);
            }
        }
        Err(first)
    }

    fn render_as_is(&self, messages: &[Message], options: &RenderOptions) -> Result<String, TemplateError> {
        self.renderer.render(messages.to_vec(), options.clone())
    }
}

fn syntax() -> Result<SyntaxConfig, minijinja::Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

fn environment(date: (i64, u8, u8)) -> Result<Environment<'static>, minijinja::Error> {
    let mut env = Environment::new();
    env.set_syntax(syntax()?);
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(100);
    env.set_unknown_method_callback(python::method);
    env.add_filter("tojson", python::to_json);
    env.add_filter("fromjson", python::from_json);
    env.add_filter("trim", python::trim);
    env.add_test("sequence", python::is_sequence);
    env.add_test("iterable", python::is_iterable);
    env.add_function("raise_exception", python::raise);
    // It prints everything that it can reach.
    env.remove_global("debug");
    bounded::install(&mut env);
    Budget::default().install(&mut env);
    env.add_function("strftime_now", move |format: String| python::strftime(&format, date));
    Ok(env)
}

/// `{% generation %}` blocks, which only training looks at, as blocks that are always taken.
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

/// A raised refusal is told from a defect of the template by its kind.
pub(crate) const REFUSAL: ErrorKind = ErrorKind::InvalidOperation;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OPTIONS: RenderOptions =
        RenderOptions { generation_prompt: GenerationPrompt::Add, date: (2026, 3, 7), tools: Vec::new() };

    fn render(source: &str, messages: &[(Role, &str)]) -> Result<String, TemplateError> {
        let specials = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
        let messages: Vec<Message> =
            messages.iter().map(|(role, text)| Message::new(*role, (*text).to_owned())).collect();
        ChatTemplate::new(source, specials)?.render(&messages, &OPTIONS)
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
    fn work_is_bounded() {
        let user = &[(Role::User, "x")];
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}";
        assert!(matches!(render(endless, user), Err(TemplateError::Failed { .. })));
        let deep = "[".repeat(60) + "ns.x" + &"]".repeat(60);
        let nest = format!(
            "{{% set ns = namespace(x=1) %}}{{% for i in range(99999) %}}{{% set ns.x = {deep} %}}{{% endfor %}}"
        );
        assert!(matches!(render(&nest, user), Err(TemplateError::Failed { .. })));
        let shown = nest.replace("99999", "5000") + "{{ ns.x | tojson | length }}";
        check(&shown, user, "600001");
        let backwards = render("{{ 'abc'[0:2:-1] }}", user);
        assert!(matches!(backwards, Ok(_) | Err(TemplateError::Failed { .. })), "{backwards:?}");
        assert!(matches!(render("{% for %}", user), Err(TemplateError::Malformed { .. })));
        assert!(matches!(render("{{ nothing.at.all }}", user), Err(TemplateError::Failed { .. })));
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
                            template.render(&[Message::new(Role::User, text.to_owned())], &OPTIONS)
                        };
                        assert_eq!(says(&text).unwrap(), format!("1{text}"));
                        assert!(matches!(says("much"), Err(TemplateError::Failed { .. })));
                    }
                });
            }
        });
    }

    #[test]
    fn memory_is_bounded() {
        let user = &[(Role::User, "x")];
        let doubling = |step: &str| {
            format!(
                "{{% set ns = namespace(x='abcd', l=['a']) %}}{{% for i in range(40) %}}{step}{{% endfor %}}{{{{ ns.x | length }}}}"
            )
        };
        let steps = [
            "{% set ns.x = ns.x + ns.x %}",
            "{% set ns.x = ns.x ~ ns.x %}",
            "{% set ns.x = ns.x * 9 %}",
            "{% set ns.x = [ns.x, ns.x] | join(ns.x) %}",
            "{% set ns.x = ns.x.join([ns.x, ns.x]) %}",
            "{% set ns.x = ns.x | replace('a', ns.x) %}",
            "{% set ns.x = ns.x.replace('', ns.x) %}",
            "{% set ns.x = '%s%s' | format(ns.x, ns.x) %}",
            "{% set ns.x = '%999999999d' | format(1) %}",
            "{% set ns.x = ns.x | indent(999999999, true) %}",
            "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
            "{% set ns.x = [ns.x, ns.x] | tojson %}",
            "{% set ns.l = ns.l + ns.l %}",
            "{% set ns.l = [ns.l, ns.l] %}{% set ns.x = ns.l | string %}",
            "{% set ns.l = ns.l | batch(999999999, 'x') | list %}",
            "{% macro m(t) %}{{ t }}{{ t }}{% endmacro %}{% set ns.x = m(ns.x) %}",
        ];
        for step in steps {
            let found = render(&doubling(step), user);
            assert!(matches!(found, Err(TemplateError::Failed { .. })), "{step}: {found:?}");
        }
        let shy = doubling("{% if ns.x | length < 64 %}{% set ns.x = ns.x + ns.x %}{% endif %}");
        check(&shy, user, "64");
    }

    proptest! {
        #[test]
        fn no_template_panics(source in "(\\{\\{|\\{%|%\\}|\\}\\}|[a-z .'|()\\[\\]]|for|in|if|messages|tojson|endif|endfor){0,30}") {
            let _ = render(&source, &[(Role::User, "x")]);
        }
    }
}
