//! Chat templates with the constructs that publishers use, written for this project.

use super::Input;

const VALID: [(&str, &str); 9] = [
    (
        "chatml",
        "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    ),
    (
        "alternating",
        "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
         {{ raise_exception('must alternate') }}{% endif %}{% if m.role == 'user' %}{{ '[INST] ' ~ m.content | trim ~ \
         ' [/INST]' }}{% else %}{{ ' ' ~ m.content ~ eos_token }}{% endif %}{% endfor %}",
    ),
    (
        "system-block",
        "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'].strip() %}\
         {%- set rest = messages[1:] %}{%- else %}{%- set system = '' %}{%- set rest = messages %}{%- endif %}\
         {{- bos_token + system }}{%- for m in rest %}{{- '\n' + m.role + ': ' + m.content.split('</s>')[-1] }}{%- endfor %}",
    ),
    (
        "dated",
        "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}\
         {{ 'Today: ' + date_string }}{% generation %}{{ messages | length }}{% endgeneration %}",
    ),
    (
        "tools",
        "{% if tools is not none %}{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}{% endif %}\
         {{ {'b': [1, 2.5, none], 'a': '<é>'} | tojson(ensure_ascii=true, sort_keys=true) }}",
    ),
    (
        "namespace",
        "{% set ns = namespace(found=false, text='') %}{% for m in messages[::-1] %}{% if m.role == 'user' and not \
         ns.found %}{% set ns.found = true %}{% set ns.text = ns.text + m.content %}{% continue %}{% endif %}{% endfor %}\
         {{ ns.text }}",
    ),
    (
        "macro",
        "{% macro turn(m, end='\n') %}<{{ m.role|upper }}>{{ m.content|default('none', true) }}{{ end }}{% endmacro %}\
         {% for m in messages if m.role in ['user', 'assistant'] %}{{ turn(m) }}{% else %}empty{% endfor %}",
    ),
    (
        "captured",
        "{% set text %}{% for m in messages %}{{ m.content }};{% endfor %}{% endset %}\
         {% filter replace(';', ' | ') %}{{ text }}{% endfilter %}{{ text.split(';') | join(', ') }}",
    ),
    (
        "selected",
        "{% set users = messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list %}\
         {{ users | first }}{{ '%s of %d' | format('one', 2) }}{{ 'a,b'.replace(',', ';').title() }}",
    ),
];

pub(super) fn seeds() -> Vec<Input> {
    let mut inputs: Vec<Input> = VALID.into_iter().map(|(name, text)| Input::valid(name, text)).collect();
    inputs.extend([
        Input::bomb(
            "loops",
            "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}",
        ),
        Input::bomb("brackets", format!("{{{{ {}1{} }}}}", "[".repeat(3000), "]".repeat(3000))),
        Input::bomb("blocks", "{% if true %}".repeat(1200)),
        Input::bomb("operators", format!("{{{{ 1{} }}}}", " + 1".repeat(3000))),
        Input::bomb("recursion", "{% macro m(x) %}{{ m(x) }}{{ m(x) }}{% endmacro %}{{ m(1) }}"),
        Input::bomb(
            "list",
            "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}",
        ),
    ]);
    inputs
}
