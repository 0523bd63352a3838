//! Seeds for streams of upstreams.

use super::Input;

/// First bytes: parts of 3 bytes, with the chunk of token counts passed on or hidden.
const MODES: [u8; 2] = [6, 7];

/// Last chunk of a stream, with its token counts.
const USAGE: &str = r#"data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#;

pub(super) fn seeds() -> Vec<Input> {
    let text = r#"data: {"choices":[{"delta":{"content":"é"}}],"usage":null}"#;
    let completions = format!(": note\r\n\r\n{text}\n\n{USAGE}\n\ndata: [DONE]\n\n");
    let response =
        r#"{"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":4}}}"#;
    let responses = format!("event: response.completed\ndata: {response}\n\n");
    let error = "data: {\"error\":{\"message\":\"x\"}}\n\n".to_owned();
    let streams = [("completions", completions), ("responses", responses), ("error", error)];

    let mut seeds = Vec::new();
    for mode in MODES {
        let input = |stream: &str| [&[mode], stream.as_bytes()].concat();
        for (name, stream) in &streams {
            seeds.push(Input::valid(&format!("{name}-{mode}"), input(stream)));
        }
        seeds.push(Input::bomb(&format!("line-{mode}"), input(&"data: ".repeat(5000))));
        seeds.push(Input::bomb(&format!("lines-{mode}"), input(&"\n".repeat(30_000))));
        seeds.push(Input::bomb(&format!("nested-{mode}"), input(&format!("data: {}", "[".repeat(30_000)))));
    }
    seeds
}
