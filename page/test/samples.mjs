// Answers that the tests of the page stand in for the server's.

const event = (value) => `data: ${JSON.stringify(value)}\n\n`;
const delta = (fields) => event({ choices: [{ index: 0, delta: fields, finish_reason: null }] });

/** Returns the stream of an answer. */
export function answerChunks({ content, reasoning, call }) {
  const parts = [delta({ role: "assistant", content: "" })];
  if (reasoning) parts.push(...reasoning.split(/(?<= )/).map((text) => delta({ reasoning_content: text })));
  if (content) parts.push(...content.split(/(?<=[ \n])/).map((text) => delta({ content: text })));
  if (call) {
    const first = { index: 0, id: "call_1", type: "function", function: { name: call.name, arguments: "" } };
    parts.push(delta({ tool_calls: [first] }));
    parts.push(...call.arguments.split(/(?<=:)/).map((text) => delta({ tool_calls: [{ index: 0, function: { arguments: text } }] })));
  }
  const timings = { device: "cpu", cache_n: 4, prompt_n: 12, predicted_n: 20, draft_n: 0, draft_n_accepted: 0 };
  parts.push(event({ choices: [{ index: 0, delta: {}, finish_reason: call ? "tool_calls" : "stop" }], timings }));
  parts.push("data: [DONE]\n\n");
  return parts.join("");
}

/** Every kind of block, some of them wider than a telephone. */
export const conversation = `# A heading

A paragraph with **strong**, *emphasised* and ~~deleted~~ text, \`code\`, a [link](https://example.com) and an address
that is very long: https://example.com/${"a".repeat(120)}

1. First
2. Second
   - nested
   - [x] done

> A quotation.

\`\`\`rust
fn main() { println!("a line that is far wider than the screen of a telephone, so that it scrolls by itself"); }
\`\`\`

| Planet | Diameter in kilometres | Distance from the sun | Number of moons | Discovered |
|:---|---:|---:|:---:|---|
| Mercury | 4,879 | 57,900,000 km | 0 | in antiquity |
| Jupiter | 142,984 | 778,500,000 km | 95 | in antiquity |

---

The end.
`;
