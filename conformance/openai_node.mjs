// OpenAI's own client for Node against a live Narthex server.
//
//     node openai_node.mjs http://127.0.0.1:8000/v1      # needs: npm install openai
//
// Prints a line per check and a count; exits 1 where one failed. Needs the models smollm2:135m and all-minilm-l6-v2.
import assert from "node:assert";
import { createRequire } from "node:module";
import { join } from "node:path";

import { run } from "./checks.mjs";

const OpenAI = createRequire(join(process.cwd(), "x.js"))("openai").default;
const client = new OpenAI({ baseURL: process.argv[2], apiKey: "unused", maxRetries: 0 });
const [model, embedding] = ["smollm2:135m", "all-minilm-l6-v2"];
const messages = [{ role: "user", content: "What is the capital of France?" }];
const parameters = {
  type: "object",
  properties: { city: { type: "string", maxLength: 20 }, unit: { enum: ["C", "F"] } },
  required: ["city", "unit"],
  additionalProperties: false,
};

const checks = {
  async "chat whole and streamed"() {
    const request = { model, messages, temperature: 0, max_tokens: 16 };
    const { choices } = await client.chat.completions.create(request);
    let text = "";
    for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
      text += chunk.choices[0]?.delta.content ?? "";
    }
    assert.match(text, /Paris/);
    assert.equal(text, choices[0].message.content);
  },
  async "tools whole and streamed"() {
    const tools = [{ type: "function", function: { name: "weather", parameters } }];
    const request = { model, messages, tools, tool_choice: "required", parallel_tool_calls: false, temperature: 0 };
    const { choices } = await client.chat.completions.create({ ...request, max_tokens: 200 });
    const whole = choices[0].message.tool_calls[0].function.arguments;
    const final = await client.chat.completions.stream({ ...request, max_tokens: 200 }).finalChatCompletion();
    assert.equal(final.choices[0].message.tool_calls[0].function.arguments, whole);
    assert.ok(["C", "F"].includes(JSON.parse(whole).unit));
    const call = choices[0].message.tool_calls[0];
    const history = [...messages, choices[0].message, { role: "tool", tool_call_id: call.id, content: "12 degrees" }];
    const answer = await client.chat.completions.create({ model, messages: history, tools, temperature: 0, max_tokens: 60 });
    assert.ok(answer.choices[0].message.content);
  },
  async "tools of responses whole and streamed"() {
    const tools = [{ type: "function", name: "weather", parameters, strict: true }];
    const ask = { model, tools, temperature: 0, max_output_tokens: 200 };
    const request = { ...ask, input: messages[0].content, tool_choice: "required", parallel_tool_calls: false };
    const answer = await client.responses.create(request);
    const call = answer.output.find((item) => item.type === "function_call");
    assert.ok(["C", "F"].includes(JSON.parse(call.arguments).unit));
    let pieces = 0;
    const stream = client.responses.stream(request).on("response.function_call_arguments.delta", () => (pieces += 1));
    const streamed = (await stream.finalResponse()).output.find((item) => item.type === "function_call");
    assert.equal(streamed.arguments, call.arguments);
    assert.ok(pieces > 2);
    const input = [{ type: "function_call_output", call_id: call.call_id, output: "12 degrees" }];
    assert.ok((await client.responses.create({ ...ask, input, previous_response_id: answer.id })).output_text);
  },
  async "responses whole, streamed and continued"() {
    const request = { model, input: messages[0].content, temperature: 0, max_output_tokens: 16 };
    const answer = await client.responses.create(request);
    assert.match(answer.output_text, /Paris/);
    const final = await client.responses.stream(request).finalResponse();
    assert.equal(final.output_text, answer.output_text);
    const next = await client.responses.create({ ...request, input: "And of Italy?", previous_response_id: answer.id });
    assert.ok(next.usage.input_tokens > answer.usage.input_tokens);
  },
  async "embeddings and models"() {
    const { data } = await client.embeddings.create({ model: embedding, input: ["a cat", "a dog"] });
    assert.deepEqual(data.map((item) => item.embedding.length), [384, 384]);
    const listed = (await client.models.list()).data.map((entry) => entry.id);
    assert.ok(listed.includes(model));
  },
};

await run(checks);
