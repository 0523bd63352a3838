// Vercel's AI SDK with pictures against a live Narthex server, over the protocols of OpenAI and Anthropic.
//
//     node media.mjs http://127.0.0.1:8000 local/tiny-gemma3n      # needs: npm install ai @ai-sdk/openai @ai-sdk/anthropic
//
// Prints a line per check and a count; exits 1 where one failed. The model is that of `media_client.py`.
import assert from "node:assert";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

import { run } from "./checks.mjs";

const require = createRequire(join(process.cwd(), "x.js"));
const { generateText } = require("ai");
const settings = { baseURL: `${process.argv[2]}/v1`, apiKey: "unused" };
const openai = require("@ai-sdk/openai").createOpenAI(settings);
const anthropic = require("@ai-sdk/anthropic").createAnthropic(settings);
const name = process.argv[3];
const models = { chat: openai.chat(name), responses: openai.responses(name), messages: anthropic(name) };
const picture = readFileSync(new URL("../crates/image/tests/fixtures/rgb.png", import.meta.url));
const forms = {
  "an image part": { type: "image", image: picture },
  "a data URL": { type: "image", image: `data:image/png;base64,${picture.toString("base64")}` },
  "a file part": { type: "file", data: picture, mediaType: "image/png" },
};
// Positions of a picture in the prompt of this model.
const POSITIONS = 10;

const checks = {};
for (const [protocol, model] of Object.entries(models)) {
  const tokens = async (...parts) => {
    const messages = [{ role: "user", content: [...parts, { type: "text", text: "what?" }] }];
    const { usage } = await generateText({ model, messages, maxOutputTokens: 16, maxRetries: 0 });
    return usage.inputTokens;
  };
  for (const [form, part] of Object.entries(forms)) {
    checks[`${protocol}: ${form}`] = async () => assert.equal(await tokens(part), (await tokens()) + POSITIONS);
  }
}

await run(checks);
