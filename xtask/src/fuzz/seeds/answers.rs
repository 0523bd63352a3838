//! Answers with reasoning and tool calls. The three bytes before each select the parser, as in `fuzz/src/answers.rs`.

use narthex_spec::ToolFormat;
use narthex_text::{
    template::{FunctionCall, Message, Role},
    tools::write_calls,
};
use serde_json::json;

use super::Input;

pub(super) fn seeds() -> Vec<Input> {
    let valid = |name: &str, format, options: &str, answer: String| {
        Input::valid(name, input(format, options, &answer))
    };
    let bomb = |name: &str, format, options: &str, answer: String| {
        Input::bomb(name, input(format, options, &answer))
    };
    let of_format = |&format| valid(&format!("{format:?}").to_lowercase(), format, "0\u{3}", call(format));
    let mut seeds: Vec<Input> = ToolFormat::ALL.iter().map(of_format).collect();
    let (hermes, pythonic) = (ToolFormat::Hermes, ToolFormat::Pythonic);
    let one = call(hermes);
    let two = format!("<think>\nhm\n</think>\n\nLook: {one}\n{one}");
    let arrays = format!("<tool_call>{{\"arguments\":{}", "[".repeat(9000));
    let lists = format!("[get_weather(city={}", "{'a':[".repeat(1500));
    seeds.extend([
        valid("reasoning", hermes, "1\u{3}", two),
        valid("mistral-think", hermes, "5\u{2}", format!("[THINK]hm[/THINK]{one}")),
        bomb("cut", hermes, "3\u{1}", one[..one.len() - 20].to_owned()),
        bomb("nested", hermes, "1\u{20}", arrays),
        bomb("pythonic-nested", pythonic, "1\u{20}", lists),
        bomb("markers", hermes, "1\u{10}", "<tool_call>".repeat(900)),
    ]);
    seeds
}

/// Returns an input with an answer in a format. `options` holds two bytes: the options, and the length of the pieces.
fn input(format: ToolFormat, options: &str, answer: &str) -> Vec<u8> {
    let place = (0..).zip(ToolFormat::ALL).find_map(|(place, &other)| (other == format).then_some(place));
    [[place.unwrap_or_default()].as_slice(), options.as_bytes(), answer.as_bytes()].concat()
}

/// Returns a call in a format.
fn call(format: ToolFormat) -> String {
    let arguments = json!({"city": "S\u{e3}o \"P\"", "days": 2});
    let mut message = Message::new(Role::Assistant, String::new());
    write_calls(
        format,
        &[FunctionCall { name: "get_weather".to_owned(), arguments: arguments.into() }],
        &mut message,
    );
    message.content.text().into_owned()
}
