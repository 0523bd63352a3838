// OpenAI's client for Node and Vercel's AI SDK against a live Narthex server that hears and speaks.
//
//     node speech_clients.mjs http://127.0.0.1:8000/v1      # needs: npm install openai ai @ai-sdk/openai
//
// Prints a line per check and a count; exits 1 where one failed. Needs the models hibari and whisper:tiny.en. The speech that
// is transcribed is that of hibari.
import assert from "node:assert";
import { createRequire } from "node:module";
import { join } from "node:path";

import { run } from "./checks.mjs";

const require = createRequire(join(process.cwd(), "x.js"));
const { default: OpenAI, toFile } = require("openai");
const { experimental_generateSpeech: generateSpeech, experimental_transcribe: transcribe } = require("ai");
const settings = { baseURL: process.argv[2], apiKey: "unused" };
const client = new OpenAI({ ...settings, maxRetries: 0 });
const openai = require("@ai-sdk/openai").createOpenAI(settings);
const [hears, speaks] = ["whisper:tiny.en", "hibari"];
const text = "The quick brown fox jumps over the lazy dog.";

const words = (text) => text.toLowerCase().match(/[a-z]+/g);

async function speech() {
  const request = { model: speaks, voice: "default", input: text, response_format: "wav" };
  return Buffer.from(await (await client.audio.speech.create(request)).arrayBuffer());
}

async function recording() {
  return await toFile(await speech(), "fox.wav");
}

const checks = {
  async "openai speaks"() {
    const wav = await speech();
    assert.equal(wav.subarray(0, 4).toString(), "RIFF");
    assert.ok(wav.length > 60_000, `${wav.length}`);
  },
  async "openai transcribes whole and with times"() {
    const whole = await client.audio.transcriptions.create({ model: hears, file: await recording() });
    assert.deepEqual(words(whole.text), words(text));
    const verbose = await client.audio.transcriptions.create({
      model: hears,
      file: await recording(),
      response_format: "verbose_json",
      timestamp_granularities: ["word"],
    });
    assert.deepEqual(verbose.words.flatMap(({ word }) => words(word)), words(text));
  },
  async "openai streams a transcript"() {
    const request = { model: hears, file: await recording(), stream: true };
    let [streamed, last] = ["", undefined];
    for await (const event of await client.audio.transcriptions.create(request)) {
      streamed += event.type === "transcript.text.delta" ? event.delta : "";
      last = event;
    }
    assert.equal(last.type, "transcript.text.done");
    assert.equal(last.text, streamed.trim());
    assert.deepEqual(words(streamed), words(text));
  },
  async "openai's translations are refused by a model of one language"() {
    const request = { model: hears, file: await recording() };
    await assert.rejects(client.audio.translations.create(request), { status: 400, param: "model" });
  },
  async "the AI SDK generates speech and transcribes it"() {
    const { audio } = await generateSpeech({ model: openai.speech(speaks), text, voice: "default", outputFormat: "wav" });
    assert.ok(audio.uint8Array.length > 60_000);
    const { text: heard, segments } = await transcribe({ model: openai.transcription(hears), audio: audio.uint8Array });
    assert.deepEqual(words(heard), words(text));
    assert.ok(Array.isArray(segments));
  },
};

await run(checks);
