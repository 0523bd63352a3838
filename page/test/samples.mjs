// Answers that the tests of the page stand in for the server's.

import { crc32, deflateSync } from "node:zlib";

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

const spread = (median) => ({ min: median * 0.9, median, max: median * 1.1 });
const figures = (prefill, decode, first) => ({
  prefill_tokens_per_second: spread(prefill),
  decode_tokens_per_second: spread(decode),
  first_token_ms: spread(first),
});
const measured = (model) => ({
  ...{ model, scheme: "w8", prompt_tokens: 256, generate_tokens: 64, rounds: 5 },
  machine: { cpu: "A Processor", narthex: "0.1.0", onnxruntime: "1.31.1" },
});

/** Returns a report of `narthex bench --json`. */
export const benchReport = (model) => ({ ...measured(model), device: "cpu", ...figures(400, 100, 640) });

/** Returns a report of `narthex bench --devices --json`. */
export const comparison = (model) => ({
  ...measured(model),
  date: "2026-11-21",
  contenders: [
    { place: "qnn", outcome: "ran", ...figures(800, 20, 640) },
    { place: "openvino", outcome: "refused", reason: "there is no such device", fix: null },
  ],
});

/** Returns a red picture as a PNG file. */
export function picture(width, height) {
  const chunk = (type, data) => {
    const body = Buffer.concat([Buffer.from(type), data]);
    const frame = Buffer.alloc(8);
    frame.writeUInt32BE(data.length, 0);
    frame.writeUInt32BE(crc32(body), 4);
    return Buffer.concat([frame.subarray(0, 4), body, frame.subarray(4)]);
  };
  const header = Buffer.from([0, 0, 0, 0, 0, 0, 0, 0, 8, 2, 0, 0, 0]);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  const row = Buffer.concat([Buffer.from([0]), Buffer.alloc(3 * width).map((_, index) => (index % 3 ? 40 : 220))]);
  const rows = deflateSync(Buffer.concat(Array(height).fill(row)));
  const signature = Buffer.from([0x89, 0x50, 0x4e, 0x47, 13, 10, 26, 10]);
  const parts = [signature, chunk("IHDR", header), chunk("IDAT", rows), chunk("IEND", Buffer.alloc(0))];
  return { mimeType: "image/png", buffer: Buffer.concat(parts) };
}

/** Returns a tenth of a second of silence as a WAV file. */
export function sound() {
  const samples = Buffer.alloc(3200);
  const header = Buffer.from("RIFF____WAVEfmt ____________________data____");
  header.writeUInt32LE(36 + samples.length, 4);
  header.writeUInt32LE(16, 16);
  header.writeUInt16LE(1, 20);
  header.writeUInt16LE(1, 22);
  header.writeUInt32LE(16_000, 24);
  header.writeUInt32LE(32_000, 28);
  header.writeUInt16LE(2, 32);
  header.writeUInt16LE(16, 34);
  header.writeUInt32LE(samples.length, 40);
  return Buffer.concat([header, samples]);
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
