//! Templates that exceed the limits of a rendering.

use std::collections::BTreeMap;

use narthex_spec::Date;
use serde_json::json;

use super::{ChatTemplate, Message, RenderOptions, RenderedPrompt, Role, TemplateError};

fn render(source: &str) -> Result<String, TemplateError> {
    let message = Message::new(Role::User, "x".to_owned());
    let template = ChatTemplate::new(source, BTreeMap::new())?;
    template
        .render(&[message], &RenderOptions::answer(Date { year: 2026, month: 3, day: 7 }))
        .map(RenderedPrompt::into_text)
}

fn fails(source: &str) {
    let found = render(source);
    let shown: String = source.chars().take(200).collect();
    assert!(
        matches!(found, Err(TemplateError::Failed { .. } | TemplateError::Malformed { .. })),
        "{shown}: {:?}",
        found.map(|text| text.len())
    );
}

/// Renders a template and checks that nothing panics; any result is accepted.
fn ends(source: &str) {
    let found = render(source);
    assert!(
        !matches!(&found, Err(TemplateError::Failed { reason }) if reason.contains("panicked")),
        "{found:?}"
    );
}

fn looped(rounds: usize, step: &str) -> String {
    format!(
        "{{% set ns = namespace(x='abcd', l=['a'], d={{}}) %}}{{% for i in range({rounds}) %}}{step}{{% endfor %}}\
         {{{{ ns.x | length }}}}"
    )
}

#[test]
fn work_is_bounded() {
    fails("{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}");
    let backwards = render("{{ 'abc'[0:2:-1] }}");
    assert!(matches!(backwards, Ok(_) | Err(TemplateError::Failed { .. })), "{backwards:?}");
    assert!(matches!(render("{% for %}"), Err(TemplateError::Malformed { .. })));
    assert!(matches!(render("{{ nothing.at.all }}"), Err(TemplateError::Failed { .. })));
}

#[test]
fn growth_is_bounded() {
    let steps = [
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x * 9 %}",
        "{% set ns.x = 9 * ns.x %}",
        "{% set ns.x = [ns.x, ns.x] | join(ns.x) %}",
        "{% set ns.x = ns.x.join([ns.x, ns.x]) %}",
        "{% set ns.x = ns.x | replace('a', ns.x) %}",
        "{% set ns.x = ns.x.replace('', ns.x) %}",
        "{% set ns.x = '%s%s' | format(ns.x, ns.x) %}",
        "{% set ns.x = '{0}{0}'.format(ns.x) %}",
        "{% set ns.x = '%999999999d' | format(1) %}",
        "{% set ns.x = '{:>999999999}'.format(1) %}",
        "{% set ns.x = ns.x | indent(999999999, true) %}",
        "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
        "{% set ns.x = [ns.x, ns.x] | tojson %}",
        "{% set ns.l = ns.l + ns.l %}",
        "{% set ns.l = ns.l * 99 %}",
        "{% set ns.l = [ns.l, ns.l] %}{% set ns.x = ns.l | string %}",
        "{% set ns.l = [ns.l, ns.l] %}",
        "{% set ns.l = [ns.l, ns.l] %}{{ ns.l == [ns.l] }}",
        "{% set ns.l = (ns.l, ns.l) %}",
        "{% set ns.l = {'a': ns.l, 'b': ns.l} %}",
        "{% set ns.l = ns.l | batch(999999999, 'x') | list %}",
        "{% set ns.l = ns.l | slice(999999999) | list %}",
        "{% macro m(t) %}{{ t }}{{ t }}{% endmacro %}{% set ns.x = m(ns.x) %}",
        "{% set ns.x = ns.x ~ ns.x | escape %}",
        "{% set ns.x = ns.x ~ ns.x | list | pprint %}",
    ];
    for step in steps {
        fails(&looped(40, step));
    }
    let shy = looped(40, "{% if ns.x | length < 64 %}{% set ns.x = ns.x + ns.x %}{% endif %}");
    assert_eq!(render(&shy).unwrap(), "64");
    let raw = "r".repeat(100_000);
    fails(&looped(90_000, &format!("{{% set x %}}{raw}{{% endset %}}")));
    fails(&looped(90_000, &raw));
}

#[test]
fn comparisons_and_dates_are_measured() {
    let texts = "{% set x = 'ab' * 2000000 %}{% set y = 'ab' * 2000000 %}";
    fails(&format!("{texts}{}", looped(90_000, "{% if x is sameas y %}{% endif %}")));
    let format = "{% set ns.x = ('%B' | upper) * 2000000 %}";
    fails(&format!("{{% set ns = namespace() %}}{format}{{% set y = strftime_now(ns.x) %}}"));
    let list = "{% set l = [['b' * 100000] * 50] %}";
    fails(&format!("{list}{}", looped(20_000, "{% set z = l | safe %}")));
    fails(&looped(20_000, "{% set z = range(99999) | last %}"));
    assert_eq!(render("{{ range(9) | last }} {{ [1] | safe }} {{ '<' | safe }}").unwrap(), "8 [1] <");
    assert_eq!(render("{{ 'a' is sameas 'a' }} {{ strftime_now('%Y') }}").unwrap(), "True 2026");
}

/// Templates whose result is refused before it exists, whether its strings are the template's or the conversation's.
#[test]
fn results_are_bounded_before_they_are_made() {
    let list = "{% set l = range(90000) | list %}";
    let deep = "'[' * 120 ~ '0,' * 100000 ~ '0' ~ ']' * 120";
    let sources = [
        "{{ '%99999999999d' | format(1) }}",
        "{{ '%900000000d' | format(1) }}",
        "{{ '%-900000000s|' | format('x') }}",
        "{{ '%(a%b)900000000d' | format({'a%b': 1}) }}",
        "{{ '%.900000000f' | format(1.5) }}",
        "{{ '%9999999999999999999999d' | format(1) }}",
        "{{ ('%' ~ 900000000 ~ 'd') | format(1) }}",
        "{{ ['%900000000d'] | map('format', 1) | first }}",
        "{{ '{:99999999999}'.format(1) }}",
        "{{ '{:>900000000}'.format('x') }}",
        "{{ '{:}^900000000}'.format('x') }}",
        "{{ '{:0900000000,}'.format(1) }}",
        "{{ '{:_.900000000f}'.format(1.5) }}",
        "{{ '{a[:]:900000000}'.format(a={':': 1}) }}",
        "{{ '{:\u{10FFFF}<9000000}'.format('x') }}",
        "{{ ('{0}' * 1000).format('y' * 2000000) }}",
        "{{ ('%(a)s' * 1000) | format({'a': 'y' * 2000000}) }}",
        "{{ ('a\\n' * 100000) | indent(100000) }}",
        "{{ 'a' | indent(99999999999, true) }}",
        "{{ 'a' | indent(width=99999999999) }}",
        "{{ messages[-1].content | replace('h', 'b' * 2000000) }}",
        "{{ messages[-1].content.replace('h', 'b' * 2000000) }}",
        "{{ messages[-1].content | replace('', 'b' * 2000000) }}",
        "{{ ('h' * 9000) | replace('h', 'b' * 2000000) }}",
        "{{ messages[-1].content | replace('h', l) }}",
        "{{ l | replace('1', 'b' * 2000000) }}",
        "{{ l | replace(1, 'b' * 2000000) }}",
        "{{ messages[-1].content | join('b' * 500000) }}",
        "{{ range(90000) | join('b' * 500000) }}",
        "{{ range(90000) | join(l) }}",
        "{{ l | join(d='b' * 500000) }}",
        "{{ ('b' * 500000).join(messages[-1].content) }}",
        "{{ l | tojson(separators=('b' * 2000000, ':')) }}",
        &format!("{{{{ ({deep}) | fromjson | tojson(indent=64) }}}}"),
        &format!("{{{{ ({deep}) | fromjson | pprint }}}}"),
        "{{ (['a' * 20] * 50000) | sum(start='') }}",
        "{{ ([[1]] * 50000) | sum('0', []) }}",
        "{{ ('[' ~ '0,' * 800000 ~ '0]') | fromjson }}",
        "{{ l | batch(999999999, 'x') | list }}",
    ];
    let message = Message::new(Role::User, "h".repeat(1500));
    for source in sources {
        let template = ChatTemplate::new(&format!("{list}{source}"), BTreeMap::new()).unwrap();
        let options = RenderOptions::answer(Date { year: 2026, month: 3, day: 7 });
        let reason = match template.render(std::slice::from_ref(&message), &options) {
            Err(TemplateError::Failed { reason }) => reason,
            other => panic!("{source}: {:?}", other.map(|rendered| rendered.text().len())),
        };
        assert!(reason.contains("expected bytes in a result of at most"), "{source}: {reason}");
    }
}

#[test]
fn ordinary_results_are_within_the_bounds() {
    let check = |source: &str, expected: &str| assert_eq!(render(source).unwrap(), expected, "{source}");
    check("{{ '**%s** 20261231: %05.1f%%' | format('a', 2.25) }}", "**a** 20261231: 002.2%");
    check("{{ '20261231 {:>4} {{}} 100% * {}'.format(1, 'b') }}", "20261231    1 {} 100% * b");
    check("{{ ('a\n' * 20000) | indent(8) | length }}", "199991");
    check("{{ range(5000) | list | tojson(indent=4, separators=(',', ':')) | length }}", "48892");
    check("{{ range(9000) | sum }} {{ [[1], [2, 3]] | sum(start=[]) | length }}", "40495500 3");
    check(
        "{{ range(3) | join(', ') }}{{ ', '.join(['a', 'b']) }}{{ [1] | replace(1, 2) }}",
        "0, 1, 2a, b[2]",
    );
}

#[test]
fn constants_are_not_folded_into_large_ones() {
    let large = ["'x' * 99999999"; 200].join(" ~ ");
    fails(&format!("{{{{ {large} }}}}"));
    fails("{{ (true,) * 2 ** 26 }}");
    fails(
        "{{ (true,) * (true + true) ** (true + true + true) ** (true + true + true) ** (true + true + true) }}",
    );
    fails("{{ [1] * 99999999 }}");
    fails("{% if false %}{{ 'x' * 99999999 }}{% endif %}{{ 'x' * 99999999 }}");
    assert_eq!(render("{% if false %}{{ 'x' * 99999999 }}{% endif %}").unwrap(), "");
}

#[test]
fn values_are_as_deep_as_a_stack_can_walk() {
    for step in [
        "{% set ns.x = [ns.x] %}",
        "{% set ns.x = (ns.x,) %}",
        "{% set ns.x = {'a': ns.x} %}",
        "{% set ns.x = dict(a=ns.x) %}",
        "{% set ns.x = [ns.x] | map('list') %}",
        "{% set ns.d = {'a': ns.d} | items %}",
    ] {
        fails(&looped(20_000, step));
    }
    let deep = "[".repeat(60) + "ns.x" + &"]".repeat(60);
    fails(&looped(5000, &format!("{{% set ns.x = {deep} %}}")));
    let shown = looped(2, &format!("{{% set ns.x = {deep} %}}")) + "{{ ns.x | tojson | length }}{{ ns.x }}";
    assert!(render(&shown).unwrap().starts_with("1246"), "{}", render(&shown).unwrap());
    // Lazy views of lists are stored as lists, so views of views do not nest.
    for step in [
        "{% set ns.l = ns.l[0:] %}",
        "{% set ns.l = ns.l | reverse %}",
        "{% set ns.l = ns.l + [] %}",
        "{% set ns.l = ns.l | map('upper') %}",
        "{% set ns.l = ns.l | unique %}",
    ] {
        assert_eq!(render(&looped(20_000, step)).unwrap(), "4", "{step}");
    }
}

#[test]
fn namespaces_cannot_be_stored() {
    for source in [
        "{% set ns.x = ns %}",
        "{% set ns.x = [ns] %}",
        "{% set x = {'a': ns} %}",
        "{% set x = (ns, 1) %}",
        "{% set x = dict(a=ns) %}",
        "{% set x = namespace(a=ns) %}",
        "{% set x = [none] | map('default', ns, true) | list %}",
        "{% set x = [1] | batch(2, ns) | list %}",
    ] {
        fails(&format!("{{% set ns = namespace(x=1) %}}{source}"));
    }
    let passed = "{% macro m(n) %}{% set n.x = n.x + 1 %}{% endmacro %}{% set ns = namespace(x=1) %}{{ m(ns) }}{{ ns.x }}";
    assert_eq!(render(passed).unwrap(), "2");
}

#[test]
fn recursion_is_bounded() {
    fails("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    fails("{% macro m(a) %}{{ n(a) }}{% endmacro %}{% macro n(a) %}{{ m([a]) }}{% endmacro %}{{ m(1) }}");
    fails(
        "{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% endcall %}{% endmacro %}{{ n() }}",
    );
    fails("{% block b %}{{ self.b() }}{% endblock %}");
    fails("{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}");
    fails("{% for a in [1] recursive %}{% set x = loop([1]) %}{{ x }}{% endfor %}");
}

#[test]
fn other_templates_cannot_be_loaded() {
    for source in ["include 'chat template'", "extends 'chat template'", "import 'chat template' as t"] {
        fails(&format!("{{% {source} %}}"));
    }
}

#[test]
fn nested_sources_are_bounded() {
    let nested = |before: &str, count: usize, middle: &str, after: &str| {
        format!("{}{middle}{}", before.repeat(count), after.repeat(count))
    };
    for count in [100, 3000, 20_000] {
        ends(&format!("{{{{ {} }}}}", nested("(", count, "1", ")")));
        ends(&format!("{{{{ {} }}}}", nested("[", count, "1", "]")));
        ends(&format!("{{{{ {} }}}}", nested("not ", count, "a", "")));
        ends(&format!("{{{{ {} }}}}", nested("- ", count, "1", "")));
        ends(&format!("{{{{ a{} }}}}", ".b".repeat(count)));
        ends(&format!("{{{{ a{} }}}}", "[0]".repeat(count)));
        ends(&format!("{{{{ a{} }}}}", "|e".repeat(count)));
        ends(&format!("{{{{ 1{} }}}}", "+1".repeat(count)));
        ends(&format!("{{{{ a{} }}}}", "+1".repeat(count)));
        ends(&format!("{{{{ a{} }}}}", "**a".repeat(count)));
        ends(&format!("{{{{ a{} }}}}", " is defined".repeat(count)));
        ends(&format!("{{{{ {} }}}}", nested("a if b else ", count, "c", "")));
        ends(&nested("{% if a %}", count, "x", "{% endif %}"));
        ends(&format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(count)));
        ends(&nested("{% for a in [1] %}", count, "x", "{% endfor %}"));
    }
}

#[test]
fn written_text_is_bounded() {
    const LITERAL: usize = 200_000;
    let source = |rounds| format!("{{% for i in range({rounds}) %}}{}{{% endfor %}}", "+".repeat(LITERAL));
    // Characters of the template count four times.
    assert_eq!(render(&source(80)).unwrap().len(), 80 * LITERAL);
    fails(&source(100));
}

#[test]
fn reading_is_bounded() {
    let long = "{% set x = 'ab' * 8000000 %}{% set y = 'ab' * 8000000 %}{% set l = range(90000) | list %}";
    for step in [
        "{% if x == y %}{% endif %}",
        "{% if 'c' in x %}{% endif %}",
        "{% if x is eq y %}{% endif %}",
        "{% if x < y < x %}{% endif %}",
        "{% if 99999999 in l %}{% endif %}",
        "{% if l == l %}{% endif %}",
        "{% set z = x[15999999] %}",
        "{% set z = x[15999998:] %}",
        "{% set z = x | length %}",
        "{% set z = {}.get(l) %}",
        "{% set z = {}[l] %}",
        "{% set z = x.find('c') %}",
        "{% set z = x | trim('c') %}",
        "{% set z = {x: 1} %}",
        "{% for c in x %}{% break %}{% endfor %}",
        "{% set z = l | sort %}",
        "{% set z = l | tojson %}",
    ] {
        fails(&format!("{long}{{% for i in range(90000) %}}{step}{{% endfor %}}"));
    }
    fails(&looped(1, "{{ ('[0' ~ ',0' * 4000000 ~ ']') | fromjson | length }}"));
    fails(&looped(1, "{{ ('a ' * 4000000).split(' ') | length }}"));
    fails(&looped(1, "{{ ('a' * 8000000) | list | length }}"));
}

#[test]
fn characters_that_take_seven_times_their_bytes_are_bounded() {
    const MOST: usize = 256 << 10;
    let template = ChatTemplate::new("{{ messages | length }}", BTreeMap::new()).unwrap();
    let options = |tool: &str| RenderOptions {
        tools: vec![json!({tool: ""}).into()],
        ..RenderOptions::answer(Date { year: 2026, month: 3, day: 7 })
    };
    let message = |text: String| Message::new(Role::User, text);
    let marked = |text: String| {
        let mut message = message(text);
        message.content.push_marker("<call>");
        message
    };
    let passes = |messages: &[Message], tool: &str| match template.render(messages, &options(tool)) {
        Ok(rendered) => rendered.text() == messages.len().to_string(),
        Err(TemplateError::Failed { reason }) => {
            assert!(reason.contains("expected at most 262144 characters of the private planes"), "{reason}");
            false
        }
        other => panic!("{other:?}"),
    };
    for char in ['\u{FDD0}', '\u{F0000}'] {
        let text = |count: usize| char.to_string().repeat(count);
        assert!(passes(&[message(text(MOST))], "") && !passes(&[message(text(MOST + 1))], ""));
        assert!(passes(&[marked(text(MOST))], "") && !passes(&[marked(text(MOST + 1))], ""));
        let halves = [message(text(MOST / 2)), message(text(MOST / 2))];
        assert!(passes(&halves, "") && !passes(&halves, &text(1)));
    }
    assert!(passes(&[message("é".repeat(MOST + 1))], ""));
}

#[test]
fn literals_mean_what_they_say() {
    let check = |source: &str, expected: &str| assert_eq!(render(source).unwrap(), expected, "{source}");
    check("{{ 'a' \"b\" 'c' }}{{- 'd' -}} e", "abcde");
    check(
        "{{ -1 }} {{ 2 ** 3 }} {{ 1.5 }} {{ 1 + 2 * 3 }} {{ 170141183460469231731687303715884105727 }}",
        "-1 8 1.5 7 170141183460469231731687303715884105727",
    );
    check(
        "{{ [1, 2].1 }}{{ {'a': 'b'}['a'] }}{{ 'x'.upper() }}{{ [1, 2, 3][-1] }}{{ [1, 2, 3][1:] }}",
        "2bX3[2, 3]",
    );
    check(
        "{{ true is true }} {{ 1 is not false }} {{ not false }} {{ 9 is divisibleby 3 }} {{ 'a' is eq 'a' }}",
        "True True True True True",
    );
    check(
        "{{ 1 if true else 2 }}{{ (1, 'a') }}{{ 'a' in ['a'] }}{{ '=' * 5 }}{{ [0] * 2 }}{{ 3 * 4 }}",
        "1(1, 'a')True=====[0, 0]12",
    );
    check("{% raw %}{{ 'a' }}{% endraw %}{# 'b' #}{% set x %}{{ 1 }}c{% endset %}{{ x }}", "{{ 'a' }}1c");
    check("{% for a in [1, 2] if a > 1 %}{{ a }}{{ loop.last }}{% else %}none{% endfor %}", "2True");
    check("{% for a in [[1, [2]]] recursive %}{{ a if a is number else loop(a) }}{% endfor %}", "12");
    check("{% macro m(a, b='y') %}{{ a }}{{ b }}{% endmacro %}{{ m('x') }}{{ m(b=1, a=2) }}", "xy21");
}
