// Vercel's AI SDK against a live Narthex server, over the protocols of OpenAI and Anthropic.
//
//     node vercel.mjs http://127.0.0.1:8000      # needs: npm install ai @ai-sdk/openai @ai-sdk/anthropic
//
// Prints a line per check and a count; exits 1 where one failed. Needs the model smollm2:135m.
import assert from "node:assert";
import { createRequire } from "node:module";
import { join } from "node:path";

import { run } from "./checks.mjs";

const require = createRequire(join(process.cwd(), "x.js"));
const { generateText, jsonSchema, stepCountIs, streamText, tool } = require("ai");
const settings = { baseURL: `${process.argv[2]}/v1`, apiKey: "unused" };
const openai = require("@ai-sdk/openai").createOpenAI(settings);
const anthropic = require("@ai-sdk/anthropic").createAnthropic(settings);
const name = "smollm2:135m";
const models = { chat: openai.chat(name), responses: openai.responses(name), messages: anthropic(name) };
const schema = jsonSchema({
  type: "object",
  properties: { city: { type: "string", maxLength: 20 } },
  required: ["city"],
  additionalProperties: false,
});

const checks = {};
for (const [protocol, model] of Object.entries(models)) {
  const request = { model, temperature: 0, maxRetries: 0, prompt: "What is the capital of France?" };
  checks[`${protocol}: texts whole and streamed`] = async () => {
    const { text, usage } = await generateText({ ...request, maxOutputTokens: 16 });
    assert.match(text, /Paris/);
    assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0);
    let streamed = "";
    for await (const piece of streamText({ ...request, maxOutputTokens: 16 }).textStream) {
      streamed += piece;
    }
    assert.equal(streamed, text);
  };
  checks[`${protocol}: a tool is called, and its result is read`] = async () => {
    const called = [];
    const execute = async (input) => {
      called.push(input);
      return "12 degrees";
    };
    const weather = tool({ description: "The weather of a city", inputSchema: schema, execute });
    // The first call is forced, because the model is too small to choose a tool by itself.
    const first = { toolChoice: "required" };
    const prepareStep = ({ stepNumber }) => (stepNumber === 0 ? first : { toolChoice: "none" });
    const ask = { ...request, tools: { weather }, maxOutputTokens: 100, stopWhen: stepCountIs(2), prepareStep };
    const { steps } = await generateText(ask);
    assert.equal(steps.length, 2);
    assert.ok(called.length > 0 && called.every((input) => typeof input.city === "string"));
    assert.ok(steps[1].text);
  };
}

await run(checks);
