//! Answers with reasoning and tool calls. The three bytes before each select the parser, as in `fuzz/src/answers.rs`.

use super::Input;

pub(super) fn seeds() -> Vec<Input> {
    let object = r#"{"name": "get_weather", "arguments": {"city": "S\u00e3o \"P\"", "days": 2}}"#;
    let parameters = object.replace("arguments", "parameters");
    let coder = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n\
                 </parameter>\n</function>\n</tool_call>";
    let valid = |prefix: &str, name: &str, answer: String| Input::valid(name, format!("{prefix}{answer}"));
    let bomb = |prefix: &str, name: &str, answer: String| Input::bomb(name, format!("{prefix}{answer}"));
    let hermes = format!("<tool_call>\n{object}\n</tool_call>");
    vec![
        valid("H0\u{1}", "hermes", hermes.clone()),
        valid("H1\u{3}", "reasoning", format!("<think>\nhm\n</think>\n\nLook: {hermes}\n{hermes}")),
        valid("H5\u{2}", "mistral-think", format!("[THINK]hm[/THINK]{hermes}")),
        valid("L1\u{2}", "llama", parameters),
        valid("P1\u{5}", "pythonic", "[get_weather(city='Paris', days=2), stop()]".to_owned()),
        valid("Q0\u{4}", "coder", coder.to_owned()),
        valid("40\u{7}", "phi4", format!("<|tool_call|>[{object}]<|/tool_call|>")),
        valid("M0\u{6}", "mistral", format!("[TOOL_CALLS][{object}, {object}]")),
        valid("G0\u{9}", "granite", format!("<|tool_call|>[{object}]")),
        valid(
            "C0\u{2}",
            "chatglm3",
            "get_weather\n```python\ntool_call(city='Paris', days=2)\n```".to_owned(),
        ),
        bomb("H3\u{1}", "cut", hermes[..hermes.len() - 20].to_owned()),
        bomb("H1\u{20}", "nested", format!("<tool_call>{{\"arguments\":{}", "[".repeat(9000))),
        bomb("P1\u{20}", "pythonic-nested", format!("[get_weather(city={}", "{'a':[".repeat(1500))),
        bomb("H1\u{10}", "markers", "<tool_call>".repeat(900)),
    ]
}
