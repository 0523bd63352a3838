// Tests of the page in Chromium, against running servers.
//
//     node test/run.mjs URL KEYED_URL KEY [SCREENSHOTS]
//
// The first server needs no key and has the model smollm2:135m; the second needs the key. With a folder, it also writes
// the screenshots of the book.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { browserPath } from "./browser.mjs";
import { answerChunks, benchReport, comparison, conversation, picture, sound } from "./samples.mjs";

const [base, keyedBase, key, screenshots] = process.argv.slice(2);
assert(key, "usage: node test/run.mjs URL KEYED_URL KEY [SCREENSHOTS]");
const MODEL = "smollm2:135m";
const WAIT = 60_000;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const npu = JSON.parse(readFileSync(new URL("npu.json", import.meta.url), "utf8"));

assert(browserPath, "there is no Chromium; on Debian: apt-get install chromium");
// Without its own sandbox, Chromium also runs as root. It visits only the servers of the test.
const browser = await chromium.launch({
  executablePath: browserPath,
  // A microphone that beeps, and its permission without a question.
  args: ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"],
});

/** What the browser reported besides the answers that a test expects. */
const faults = [];

/** Opens a page in a fresh browser profile. */
async function open(path, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT);
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("console", (message) => {
    // A refused request is also in the console; the tests look at what the page makes of it.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) faults.push(message.text());
  });
  page.on("request", (request) => {
    const { origin, protocol } = new URL(request.url());
    const own = [base, keyedBase].some((url) => origin === new URL(url).origin);
    if (!own && protocol.startsWith("http")) faults.push(`the page asked another host: ${request.url()}`);
  });
  await page.goto(path);
  return page;
}

/** Fails if axe finds a serious violation. */
async function accessible(page, where) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  const text = serious.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).slice(0, 3).join(" | ")}`);
  assert.deepEqual(text, [], `${where} has violations`);
}

/** Scrolls through all messages for a second. Returns the number of frames. It runs in the page. */
function scrollForASecond() {
  const box = document.querySelector(".messages");
  const begin = performance.now();
  let frames = 0;
  return new Promise((resolve) => {
    const step = (now) => {
      if (now - begin >= 1000) return resolve(frames);
      frames += 1;
      box.scrollTop = box.scrollHeight * (1 - (now - begin) / 1000);
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  });
}

/** Fails if the page is wider than the window. */
async function fits(page, where) {
  const [width, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert(width <= window, `${where} is ${width} px wide in a window of ${window} px`);
}

async function shot(page, name) {
  if (screenshots) await page.screenshot({ path: join(screenshots, `page-${name}.png`) });
}

/** Returns the number of finished answers on the page. */
const answers = (page) => page.locator(".answer .message-bar").count();

async function ask(page, text) {
  const before = await answers(page);
  await page.fill("#prompt", text);
  await page.keyboard.press("Enter");
  await page.waitForFunction((count) => document.querySelectorAll(".answer .message-bar").length > count, before);
}

/** Sets fields of the conversation. */
async function configure(page, fields) {
  await page.click("[aria-label='Settings of the conversation']");
  for (const [label, value] of Object.entries(fields)) await page.getByLabel(label, { exact: true }).fill(value);
  await page.click("[aria-label='Close the settings']");
}

const show = (page, view) => page.click(`.navigation a[href='#/${view}']`);
const lastAnswer = (page) => page.locator(".answer").last();

/** Answers the next requests of a page with streams, and returns the bodies of the requests. */
async function answerWith(page, streams) {
  const bodies = [];
  await page.route("**/v1/chat/completions", async (route) => {
    bodies.push(route.request().postDataJSON());
    const body = streams[Math.min(bodies.length, streams.length) - 1];
    await route.fulfill({ contentType: "text/event-stream", body });
  });
  return bodies;
}

/** Opens the page, which learns of other models than the server has: `change` gets the list of `/v1/models`. */
async function openWith(change, path = base, options = {}) {
  const page = await open("about:blank", options);
  await page.route("**/v1/models?*", async (route) => {
    const report = await (await route.fetch()).json();
    await route.fulfill({ json: { ...report, data: change(report.data) } });
  });
  await page.goto(path);
  return page;
}

/** Lets the model of the tests have a capability. */
const capable = (capability) => (list) =>
  list.map((model) => (model.id === MODEL ? { ...model, capabilities: [...model.capabilities, capability] } : model));
const seeing = capable("vision");
const hearing = capable("audio");

/** Adds a model. */
const adding = (id, kind) => (list) => [
  ...list.filter((model) => model.kind !== kind),
  { id, kind, capabilities: [], installed: true, context_length: 448 },
];

/** Gives files to an element by a paste or a drop. */
const give = (page, selector, event, file) =>
  page.locator(selector).evaluate(
    async (element, { event, file }) => {
      const data = new DataTransfer();
      const bytes = Uint8Array.from(atob(file.base64), (char) => char.charCodeAt(0));
      data.items.add(new File([bytes], file.name, { type: file.mimeType }));
      const options = { bubbles: true, cancelable: true };
      element.dispatchEvent(
        event === "paste"
          ? new ClipboardEvent(event, { ...options, clipboardData: data })
          : new DragEvent(event, { ...options, dataTransfer: data }),
      );
    },
    { event, file: { ...file, base64: file.buffer.toString("base64") } },
  );

const tests = {
  async "the first visit is small and loads nothing from other hosts"() {
    let bytes = 0;
    const context = await browser.newContext();
    const page = await context.newPage();
    const sizes = [];
    page.on("requestfinished", (request) => {
      if (!/\/(v1|api|health|metrics)/.test(request.url())) sizes.push(request.sizes());
    });
    const response = await page.goto(base);
    await page.waitForSelector("#prompt");
    const headers = response.headers();
    assert.match(headers["content-security-policy"], /default-src 'none'; script-src 'self'; style-src 'self'/);
    for (const size of await Promise.all(sizes)) bytes += size.responseBodySize + size.responseHeadersSize;
    assert(bytes > 10_000 && bytes <= 300_000, `the first visit has ${bytes} bytes`);
    const ready = await page.evaluate(() => performance.getEntriesByType("navigation")[0].domInteractive);
    await context.close();
    return `${bytes} bytes, interactive after ${Math.round(ready)} ms`;
  },

  async "a chat streams, stops, and keeps its branches"() {
    const page = await open(base);
    await page.waitForSelector(".prompts button:enabled");
    await accessible(page, "the first visit");
    await configure(page, { Temperature: "0", "Maximum tokens": "40" });
    await ask(page, "What is the capital of France?");
    const first = await lastAnswer(page).locator(".markdown").innerText();
    assert.match(first, /Paris/);
    assert.match(await lastAnswer(page).locator(".facts").innerText(), /CPU[\s\S]*tokens\/s · first token .* · \d+ tokens/);
    await accessible(page, "a chat");

    // An edited message is a new branch, and the first is kept.
    await page.locator(".message.user").hover();
    await page.click("[aria-label='Edit message']");
    await page.fill(".editing textarea", "What is the capital of Italy?");
    const [request] = await Promise.all([
      page.waitForRequest("**/v1/chat/completions"),
      page.click("text=Send as a new branch"),
    ]);
    // The words of a small model differ between processors, so the request is checked instead of the answer.
    assert.equal(request.postDataJSON().messages.at(-1).content, "What is the capital of Italy?");
    await page.waitForSelector(".message.user >> text=2/2");
    await page.waitForSelector(".answer .message-bar");
    const second = await lastAnswer(page).locator(".markdown").innerText();
    assert(second && second !== first, `the second branch shows ${second}`);
    await page.click(".message.user [aria-label='Previous version']");
    await page.waitForSelector(".message.user >> text=France");
    assert.equal(await lastAnswer(page).locator(".markdown").innerText(), first);

    // A second answer to the same message.
    await page.click("[aria-label='Answer again']");
    await page.waitForSelector(".answer >> text=2/2");

    // A long answer is stopped, and the server stops too.
    const numbers = { type: "array", minItems: 900, items: { type: "integer", minimum: 1, maximum: 9 } };
    await configure(page, { "Maximum tokens": "4000", "JSON schema": JSON.stringify(numbers) });
    await page.fill("#prompt", "Count.");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".answer:last-child .markdown");
    // The next message may be written meanwhile; the click that stops does not send it.
    await page.fill("#prompt", "Later.");
    const count = await page.locator(".message.user").count();
    await page.click("[aria-label='Stop']");
    await page.waitForSelector(".answer .facts >> text=stopped");
    assert.deepEqual([await page.locator(".message.user").count(), await page.inputValue("#prompt")], [count, "Later."]);
    await page.waitForFunction(async () => {
      const { models } = await (await fetch("/health")).json();
      return models.every((model) => !model.engine || model.engine.running === 0);
    });

    // The conversation survives a reload, with the chosen branch.
    await page.reload();
    await page.waitForSelector(".message.user >> text=France");
    assert.equal(await page.locator(".conversations li").count(), 1);

    // Export and import.
    await page.click("[aria-label='Settings of the conversation']");
    const [markdown] = await Promise.all([page.waitForEvent("download"), page.click("text=Export as Markdown")]);
    assert.match(readFileSync(await markdown.path(), "utf8"), /^# What is the capital of France\?[\s\S]*## User/);
    const [json] = await Promise.all([page.waitForEvent("download"), page.click("text=Export as JSON")]);
    const exported = await json.path();
    assert.equal(Object.values(JSON.parse(readFileSync(exported, "utf8")).messages).length, 7);
    await page.setInputFiles("[aria-label='File with a conversation']", exported);
    await page.waitForFunction(() => document.querySelectorAll(".conversations li").length === 2);
    await page.setInputFiles("[aria-label='File with a conversation']", { name: "x.json", mimeType: "application/json", buffer: Buffer.from("{}") });
    await page.waitForSelector("text=x.json: expected a conversation that this page exported");
    await accessible(page, "the settings");
    await page.context().close();
  },

  async "a message waits while the model is loading"() {
    const page = await open(base);
    await page.waitForSelector(".prompts button:enabled");
    let requests = 0;
    const loading = { status: 503, headers: { "Retry-After": "1" }, json: { error: { message: "it is still loading" } } };
    await page.route("**/v1/chat/completions", async (route) => {
      requests += 1;
      const stream = { contentType: "text/event-stream", body: answerChunks({ content: "Ready." }) };
      await route.fulfill(requests === 2 ? stream : loading);
    });
    await ask(page, "Hello");
    assert.deepEqual([requests, await lastAnswer(page).locator(".markdown").innerText()], [2, "Ready."]);
    // The wait can be stopped.
    const refused = page.waitForResponse("**/v1/chat/completions");
    await page.fill("#prompt", "Again");
    await page.keyboard.press("Enter");
    await refused;
    await page.click("[aria-label='Stop']");
    await page.waitForFunction(() => document.querySelectorAll(".answer .message-bar").length === 2);
    assert.equal(await page.locator(".answer .error").count(), 0);
    await page.waitForTimeout(1500);
    assert.equal(requests, 3);
    await page.context().close();
  },

  async "an answer follows a JSON schema"() {
    const page = await open(base);
    await page.waitForSelector(".prompts button:enabled");
    const schema = {
      type: "object",
      properties: { city: { type: "string", maxLength: 12 } },
      required: ["city"],
      additionalProperties: false,
    };
    await configure(page, { Temperature: "0", "JSON schema": JSON.stringify(schema) });
    await ask(page, "Name a city.");
    const answer = JSON.parse(await lastAnswer(page).locator(".markdown").innerText());
    assert.equal(typeof answer.city, "string");
    await configure(page, { "JSON schema": "{" });
    await ask(page, "Again.").catch(() => undefined);
    assert.match(await lastAnswer(page).locator(".error").innerText(), /JSON schema: expected JSON/);
    await page.context().close();
  },

  async "reasoning is folded, and calls of tools are answered"() {
    const page = await open(base);
    await page.waitForSelector(".prompts button:enabled");
    const bodies = await answerWith(page, [
      answerChunks({ reasoning: "The user asks for weather.", call: { name: "weather", arguments: '{"city":"Paris"}' } }),
      answerChunks({ content: "It is **mild** in Paris." }),
    ]);
    await configure(page, { Tools: '[{"name": "weather", "parameters": {"type": "object"}}]' });
    await page.fill("#prompt", "How is the weather?");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".call >> text=weather");
    assert.equal(await page.locator("details.reasoning").getAttribute("open"), null);
    await page.fill(".call textarea", "18 degrees");
    await accessible(page, "a call");
    await page.click("text=Send the result");
    await page.waitForSelector(".answer strong >> text=mild");
    assert.deepEqual(bodies[0].tools, [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }]);
    const [, call, result] = bodies[1].messages;
    assert.equal(call.tool_calls[0].function.name, "weather");
    assert.deepEqual(result, { role: "tool", tool_call_id: "call_1", content: "18 degrees" });
    await page.context().close();
  },

  async "pictures are added, sent, kept and exported"() {
    const page = await openWith(seeing);
    await page.waitForSelector(".prompts button:enabled");
    const bodies = await answerWith(page, [answerChunks({ content: "A red square." })]);
    const small = picture(40, 30);
    const composed = page.locator(".composer .picture img");
    await page.setInputFiles("[aria-label='Files for the message']", { ...small, name: "square.png" });
    await composed.nth(0).waitFor();
    await give(page, "#prompt", "paste", { ...small, name: "pasted.png" });
    await composed.nth(1).waitFor();
    await give(page, ".chat-main", "drop", { ...picture(3000, 1500), name: "large.png" });
    await composed.nth(2).waitFor();
    await accessible(page, "a message with pictures");
    await page.click("[aria-label='Remove pasted.png']");
    assert.equal(await composed.count(), 2);
    await ask(page, "What is it?");
    assert.equal(await composed.count(), 0);

    // The small picture is sent as it is, and the large one within the longest side that models see.
    const { content } = bodies[0].messages.at(-1);
    const urls = content.filter((part) => part.type === "image_url").map((part) => part.image_url.url);
    assert.equal(urls[0], `data:image/png;base64,${small.buffer.toString("base64")}`);
    assert.match(urls[1], /^data:image\/jpeg;base64,/);
    assert.deepEqual(content.at(-1), { type: "text", text: "What is it?" });
    const sizes = await page.locator(".message.user .picture img").evaluateAll((all) => all.map((image) => image.naturalWidth));
    assert.deepEqual(sizes, [40, 2048]);

    // The pictures survive a reload, are shown in their whole size, and belong to every branch.
    await page.reload();
    await page.click(".message.user .picture >> nth=1");
    const dialog = page.getByRole("dialog", { name: "large.png" });
    await dialog.waitFor();
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "hidden" });
    await page.locator(".message.user").hover();
    await page.click("[aria-label='Edit message']");
    await page.click(".editing [aria-label='Remove large.png']");
    await page.fill(".editing textarea", "");
    await page.click("text=Send as a new branch");
    await page.waitForSelector(".message.user >> text=2/2");
    await page.waitForSelector(".answer .message-bar");
    assert.deepEqual(bodies[1].messages.at(-1).content, content.slice(0, 1));

    await page.click("[aria-label='Settings of the conversation']");
    const [markdown] = await Promise.all([page.waitForEvent("download"), page.click("text=Export as Markdown")]);
    assert(readFileSync(await markdown.path(), "utf8").includes(`![square.png](${urls[0]})`));
    const [json] = await Promise.all([page.waitForEvent("download"), page.click("text=Export as JSON")]);
    const exported = readFileSync(await json.path(), "utf8");
    const file = (text) => ({ name: "x.json", mimeType: "application/json", buffer: Buffer.from(text) });
    await page.setInputFiles("[aria-label='File with a conversation']", file(exported));
    await page.waitForFunction(() => document.querySelectorAll(".conversations li").length === 2);
    await page.waitForSelector(".message.user .picture img");
    const hostile = exported.replaceAll("data:image/png", "data:text/html");
    await page.setInputFiles("[aria-label='File with a conversation']", file(hostile));
    await page.waitForSelector("text=expected pictures with a name and a data URL of type png");
    await page.context().close();
  },

  async "sounds are added, sent, kept and exported"() {
    const page = await openWith(hearing);
    await page.waitForSelector(".prompts button:enabled");
    const bodies = await answerWith(page, [answerChunks({ content: "Silence." })]);
    const file = { name: "talk.wav", mimeType: "audio/wav", buffer: sound() };
    const composed = page.locator(".composer .sounds audio");
    await page.setInputFiles("[aria-label='Files for the message']", file);
    await composed.nth(0).waitFor();
    await give(page, ".chat-main", "drop", { ...file, name: "dropped.wav" });
    await composed.nth(1).waitFor();
    await accessible(page, "a message with sounds");
    await page.click("[aria-label='Remove dropped.wav']");
    assert.equal(await composed.count(), 1);
    await ask(page, "What is it?");
    assert.equal(await composed.count(), 0);
    const data = file.buffer.toString("base64");
    const part = { type: "input_audio", input_audio: { data } };
    assert.deepEqual(bodies[0].messages.at(-1).content, [part, { type: "text", text: "What is it?" }]);

    // The browser reads the file, also after a reload.
    await page.reload();
    const player = page.locator(".message.user .sounds audio");
    await player.waitFor();
    await page.waitForFunction(() => document.querySelector(".message.user audio").duration > 0.05);
    await page.click("[aria-label='Settings of the conversation']");
    const [json] = await Promise.all([page.waitForEvent("download"), page.click("text=Export as JSON")]);
    const exported = readFileSync(await json.path(), "utf8");
    const hostile = { name: "x.json", mimeType: "application/json", buffer: Buffer.from(exported.replaceAll("data:audio/wav", "data:text/html")) };
    await page.setInputFiles("[aria-label='File with a conversation']", hostile);
    await page.waitForSelector("text=expected sounds with a name and a data URL of a type of audio or video");
    await page.context().close();
  },

  async "a picture for a model that reads text is refused"() {
    // The page knows of the model's abilities.
    const page = await open(base);
    await page.waitForSelector(".prompts button:enabled");
    await give(page, "#prompt", "paste", { ...picture(4, 4), name: "pasted.png" });
    await page.waitForSelector(`.refusal >> text=${MODEL} reads no pictures`);
    await give(page, ".chat-main", "drop", { name: "a.pdf", mimeType: "application/pdf", buffer: Buffer.from("%PDF") });
    await page.waitForSelector(".refusal >> text=a.pdf: expected a picture or a sound");
    await page.fill("#prompt", "a");
    assert.equal(await page.locator(".refusal").count(), 0);
    await page.context().close();

    // The server refuses what the page let through.
    const deceived = await openWith(seeing);
    await deceived.waitForSelector(".prompts button:enabled");
    await give(deceived, "#prompt", "paste", { ...picture(4, 4), name: "pasted.png" });
    await deceived.waitForSelector(".composer .picture");
    await ask(deceived, "What is it?");
    assert.match(await lastAnswer(deceived).locator(".error").innerText(), /image/);
    await deceived.context().close();
  },

  async "speech and files of sound become text"() {
    const page = await openWith(adding("whisper:base", "transcription"));
    await page.waitForSelector(".prompts button:enabled");
    const forms = [];
    await page.route("**/v1/audio/transcriptions", async (route) => {
      forms.push(route.request().postDataBuffer().toString("latin1"));
      await new Promise((resolve) => setTimeout(resolve, 200));
      if (forms.length < 4) await route.fulfill({ json: { text: ` Sentence ${forms.length}. ` } });
      else await route.fulfill({ status: 400, json: { error: { message: "file: expected a sound" } } });
    });
    const value = () => page.inputValue("#prompt");
    await page.fill("#prompt", "Dictated:");
    await page.click("[aria-label='Record what you say']");
    await page.getByRole("button", { name: "End the recording" }).waitFor();
    await accessible(page, "a recording");
    await page.waitForTimeout(1200);
    assert.match(await page.locator(".recorder").innerText(), /0:01/);
    await page.keyboard.press("Enter");
    await page.getByText("Transcribing…").waitFor();
    await page.getByRole("button", { name: "Record what you say" }).waitFor();
    assert.equal(await value(), "Dictated: Sentence 1.");
    assert.match(forms[0], /name="file"; filename="recording.webm"[\s\S]*name="model"\r\n\r\nwhisper:base/);
    assert(forms[0].length > 2000, "the recording is empty");

    // A discarded recording sends nothing.
    await page.click("[aria-label='Record what you say']");
    await page.getByRole("button", { name: "End the recording" }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Record what you say" }).waitFor();

    // Files, by the button and by a drop; and one that the server refuses.
    const recording = { name: "talk.wav", mimeType: "audio/wav", buffer: sound() };
    await page.setInputFiles("[aria-label='Files for the message']", recording);
    await page.waitForFunction(() => document.querySelector("#prompt").value.endsWith("Sentence 2."));
    await give(page, ".chat-main", "drop", recording);
    await page.waitForFunction(() => document.querySelector("#prompt").value.endsWith("Sentence 3."));
    await give(page, ".chat-main", "drop", recording);
    await page.waitForSelector(".refusal >> text=file: expected a sound");
    assert.equal(await value(), "Dictated: Sentence 1. Sentence 2. Sentence 3.");
    assert.equal(forms.length, 4);
    await page.context().close();
  },

  async "an answer is read by a voice of the server"() {
    const page = await openWith(adding("hibari", "speech"), "about:blank");
    const bodies = [];
    let answer;
    await page.route("**/v1/audio/voices", (route) =>
      route.fulfill({ json: { voices: [{ id: "heart", model: "hibari", language: "en-US", default: true, installed: true }] } }),
    );
    await page.route("**/v1/audio/speech", async (route) => {
      bodies.push(route.request().postDataJSON());
      await route.fulfill(answer);
    });
    await page.goto(base);
    await page.waitForSelector(".prompts button:enabled");
    const long = `${"A sentence of some words. ".repeat(200)}\n\nThe end.`;
    await answerWith(page, [answerChunks({ content: long })]);
    await ask(page, "Speak.");
    const pcm = (bytes) => ({ contentType: "audio/pcm", body: Buffer.alloc(bytes) });

    // A text of two parts ends by itself. An odd number of bytes at the end of a part must not shift the samples.
    answer = pcm(9_601);
    await page.click("[aria-label='Read aloud']");
    await page.waitForSelector("[aria-label='Stop reading']");
    await page.waitForSelector("[aria-label='Read aloud']");
    assert.equal(bodies.length, 2);
    assert.equal(bodies.map((body) => body.input).join(" "), long.trim());
    assert(bodies.every((body) => body.model === "hibari" && body.voice === "heart" && body.input.length <= 4000));

    // A minute is stopped.
    answer = pcm(24_000 * 2 * 60);
    await page.click("[aria-label='Read aloud']");
    await page.click("[aria-label='Stop reading']");
    await page.waitForSelector("[aria-label='Read aloud']");
    assert.equal(await page.locator(".answer .error").count(), 0);

    answer = { status: 503, json: { error: { message: "the voice is not in memory" } } };
    await page.click("[aria-label='Read aloud']");
    await page.waitForSelector(".answer .error >> text=the voice is not in memory");
    await page.waitForSelector("[aria-label='Read aloud']");
    await page.context().close();
  },

  async "the text of a model cannot become code"() {
    const page = await open(base);
    await page.waitForSelector(".prompts button:enabled");
    const hostile = [
      "<img src=x onerror=\"document.title='taken'\"> <script>document.title='taken'</script>",
      "<iframe srcdoc='<script>1</script>'></iframe>",
      "[link](javascript:alert(1)) ![p](http://evil.example/p.png) [data](data:text/html,x)",
      "<style>body{display:none}</style>\n\n| a | b |\n|---|---|\n| <b onclick=x>1</b> | 2 |",
    ].join("\n\n");
    await answerWith(page, [answerChunks({ content: hostile })]);
    await ask(page, "Hello");
    const answer = lastAnswer(page).locator(".markdown").first();
    assert.equal(await answer.locator("img, script, iframe, style, b, [onclick], [onerror]").count(), 0);
    const links = await answer.locator("a").evaluateAll((all) => all.map((link) => link.getAttribute("href")));
    assert.deepEqual(links, ["http://evil.example/p.png"]);
    assert.match(await answer.innerText(), /<script>/);
    assert.equal(await answer.locator("td").count(), 2);
    assert.doesNotMatch(await page.title(), /taken/);
    await page.context().close();
  },

  async "an answer of 10,000 tokens stays smooth"() {
    const page = await open(base);
    await page.waitForSelector(".prompts button:enabled");
    // The stream comes in small parts over some seconds, as from a fast model.
    await page.evaluate(() => {
      const original = fetch;
      window.longest = 0;
      new PerformanceObserver((list) => {
        for (const { duration } of list.getEntries()) window.longest = Math.max(window.longest, duration);
      }).observe({ type: "longtask" });
      window.fetch = (path, options) => {
        if (path !== "/v1/chat/completions") return original(path, options);
        const encoder = new TextEncoder();
        let token = 0;
        const part = () => {
          let text = "";
          for (let index = 0; index < 40; index += 1, token += 1) {
            const word = token % 60 === 59 ? "\n\n" : token % 600 === 300 ? "\n\n```js\nlet x = 1;\n```\n\n" : " word";
            text += `data: ${JSON.stringify({ choices: [{ delta: { content: word }, finish_reason: null }] })}\n\n`;
          }
          return encoder.encode(text);
        };
        const stream = new ReadableStream({
          async pull(controller) {
            await new Promise((resolve) => setTimeout(resolve, 8));
            if (token >= 10_000) controller.close();
            else controller.enqueue(part());
          },
        });
        return Promise.resolve(new Response(stream, { headers: { "content-type": "text/event-stream" } }));
      };
    });
    await ask(page, "Write a long text.");
    assert((await lastAnswer(page).locator("pre").count()) > 10);
    const [longest, distance] = await page.evaluate(() => {
      const box = document.querySelector(".messages");
      return [window.longest, box.scrollHeight - box.scrollTop - box.clientHeight];
    });
    assert(distance < 80, `the end of the answer is ${distance} px below the window`);
    const frames = await page.evaluate(scrollForASecond);
    await page.context().close();
    return `longest task ${Math.round(longest)} ms, ${frames} frames in a second of scrolling`;
  },

  async "models are loaded, unloaded, and refused by name"() {
    const page = await open(`${base}/#/models`);
    const card = page.locator(".card", { hasText: MODEL });
    await card.getByRole("button", { name: `Unload ${MODEL}` }).click();
    await card.getByText("not in memory").waitFor();
    // A load that unloads another model asks first.
    const text = "needs 5.1 GB of memory, 3.9 GB are free; other would be unloaded";
    const forecast = { id: MODEL, unloads: ["other"], room: "enough", text };
    await page.route("**/v1/load/**", (route) => route.fulfill({ json: forecast }));
    const load = card.getByRole("button", { name: `Load ${MODEL}`, exact: true });
    // The click may end only after the answer, so the question is answered as it appears.
    const question = page.waitForEvent("dialog").then(async (dialog) => (await dialog.dismiss(), dialog.message()));
    await load.click();
    assert.equal(await question, `${MODEL} ${text}. Load it?`);
    await card.getByText("not in memory").waitFor();
    await page.unroute("**/v1/load/**");
    await load.click();
    await card.getByRole("button", { name: `Unload ${MODEL}` }).waitFor();
    await page.getByRole("button", { name: "Read narthex.toml again" }).click();
    await page.getByText("the settings are unchanged").waitFor();
    await page.fill("#pull-name", "no-such-model");
    await page.keyboard.press("Enter");
    assert.match(await page.getByRole("alert").innerText(), /no-such-model/);
    await accessible(page, "the models");
    await page.fill("#pull-name", "");
    await page.context().close();
  },

  async "the catalogue is ranked for the machine and planned before a download"() {
    const page = await open(`${base}/#/models`);
    const { models } = await (await fetch(`${base}/v1/catalogue`)).json();
    const offers = models.filter((model) => model.kind === "chat" && !model.installed);
    const isFirst = (model) => Boolean(model.pick && model.here?.fits);
    const chat = [...offers.filter(isFirst), ...offers.filter((model) => !isFirst(model))].map((model) => model.id);
    assert(offers.some(isFirst));
    const names = page.locator(".offer h3");
    await page.getByRole("button", { name: `Show all ${chat.length}` }).waitFor();
    assert.deepEqual(await names.allInnerTexts(), chat.slice(0, 6));
    const first = page.locator(".offer").first();
    assert.match(await first.innerText(), /(fast|medium|slow)[\s\S]*[GM]iB of memory in w[48]/);
    assert.match(await first.innerText(), new RegExp(`narthex pull ${chat[0]}`));
    await first.getByRole("button", { name: `Plan of ${chat[0]}` }).click();
    await first.locator(".plan").waitFor();
    assert.match(await first.locator(".plan").innerText(), /w8[\s\S]*tokens[\s\S]*Structure[\s\S]*layers/);
    // The memory of several conversations, as `narthex plan --context --users` plans it.
    const memory = first.locator(".scroller[aria-label^='Memory of']");
    await memory.and(page.locator("[aria-label^='Memory of 1 conversations of ']")).waitFor();
    await first.getByLabel("Tokens of each").fill("1024");
    await first.getByLabel("Conversations at once").fill("8");
    await first.getByLabel("Conversations at once").blur();
    await memory.and(page.locator("[aria-label^='Memory of 8 conversations of 1,024 tokens']")).waitFor();
    assert.match(await memory.innerText(), /CPU|w8[\s\S]*weights are mapped from files[\s\S]*GiB/);
    await first.getByLabel("Tokens of each").fill("999999999");
    await first.getByLabel("Tokens of each").blur();
    await first.getByRole("alert").getByText(/expected 1 to \d+ tokens/).waitFor();
    await accessible(page, "a plan");
    await page.getByLabel("Name", { exact: true }).fill("gemma3n e2b");
    await page.waitForFunction(() => document.querySelectorAll(".offer").length === 1);
    assert.deepEqual(await page.locator(".offer .sense").allInnerTexts(), ["sees pictures", "hears"]);
    await page.getByLabel("Name", { exact: true }).fill("smollm2 1.7b");
    await page.waitForFunction(() => document.querySelectorAll(".offer").length === 1);
    assert.deepEqual(await names.allInnerTexts(), ["smollm2:1.7b"]);
    await page.getByLabel("Name", { exact: true }).fill("");
    await page.getByLabel("Kind").selectOption("embedding");
    await page.waitForFunction((count) => document.querySelectorAll(".offer").length === count, 6);
    assert(models.find((model) => model.id === chat[0]).kind === "chat" && !(await names.allInnerTexts()).includes(chat[0]));
    await page.context().close();
  },

  async "a model is installed with progress, and removed"() {
    const here = { scheme: "w8", bytes: 380_000_000, fits: true, speed: "fast", quality: 0.998, score: 40 };
    const model = (id, fields) => ({
      ...{ id, title: id, kind: "chat", parameters: 361_821_120, license: "Apache-2.0", gated: false, notes: null },
      ...{ download_bytes: 724_000_000, reads: [], installed: false, available: true, here, ...fields },
    });
    const large = { ...here, bytes: 70_000_000_000_000, fits: false, score: 0 };
    let isInstalled = false;
    const page = await openWith(
      (list) => (isInstalled ? [...list, { id: "new:1b", kind: "chat", capabilities: [], installed: true }] : list),
      "about:blank",
    );
    await page.route("**/v1/catalogue", (route) =>
      route.fulfill({ json: { models: [model("new:1b", { pick: "small", installed: isInstalled }), model("huge:70t", { here: large })] } }),
    );
    let finish;
    await page.route("**/api/pull", async (route) => {
      assert.deepEqual(route.request().postDataJSON(), { model: "new:1b" });
      await new Promise((resolve) => (finish = resolve));
      isInstalled = true;
      const body = '{"status":"weights","total":10,"completed":5}\n{"status":"success"}\n';
      await route.fulfill({ contentType: "application/x-ndjson", body });
    });
    const removed = [];
    await page.route("**/api/delete", async (route) => {
      removed.push([route.request().method(), route.request().postDataJSON()]);
      isInstalled = removed.length === 1;
      if (isInstalled) await route.fulfill({ status: 403, json: { error: "needs the key of an admin" } });
      else await route.fulfill({ status: 200, body: "" });
    });
    await page.goto(`${base}/#/models`);
    const offer = page.locator(".offer", { hasText: "new:1b" });
    assert.match(await offer.innerText(), /first choice for small machines[\s\S]*362 M parameters[\s\S]*690 MiB[\s\S]*99\.8 %/);
    await page.getByText(/Its weights take 63.7 TiB in w8, and this machine has/).waitFor();
    await accessible(page, "the catalogue");
    await offer.getByRole("button", { name: "Install new:1b" }).click();
    await offer.getByRole("button", { name: "Cancel the installation of new:1b" }).waitFor();
    await offer.getByRole("progressbar", { name: "Progress of new:1b" }).waitFor();
    assert.equal(await page.getByRole("button", { name: "Install huge:70t" }).isDisabled(), true);
    finish();
    const card = page.locator(".card", { hasText: "new:1b" });
    await card.waitFor();
    assert.equal(await offer.count(), 0);

    const questions = [];
    page.on("dialog", (dialog) => (questions.push(dialog.message()), questions.length === 1 ? dialog.dismiss() : dialog.accept()));
    const remove = card.getByRole("button", { name: "Remove new:1b" });
    await remove.click();
    await remove.click();
    await card.getByText("needs the key of an admin").waitFor();
    await remove.click();
    await card.waitFor({ state: "detached" });
    assert.deepEqual(removed, Array(2).fill(["DELETE", { model: "new:1b" }]));
    assert.match(questions[0], /Remove new:1b from this machine/);
    await page.context().close();
  },

  async "a model is pinned, made the default, and named"() {
    const page = await open("about:blank");
    let current = { editable: true, default_model: null, pinned: [], names: {} };
    const changes = [];
    await page.route("**/v1/settings", async (route) => {
      if (route.request().method() === "POST") {
        const { model, ...change } = route.request().postDataJSON();
        changes.push(change);
        if (change.add_name === MODEL) {
          await route.fulfill({ status: 400, json: { error: { message: "add_name: expected a new name" } } });
          return;
        }
        if ("pin" in change) current = { ...current, pinned: change.pin ? [model] : [] };
        if ("default" in change) current = { ...current, default_model: change.default ? model : null };
        if (change.add_name) current = { ...current, names: { [change.add_name]: model } };
        if (change.remove_name) current = { ...current, names: {} };
      }
      await route.fulfill({ json: current });
    });
    await page.goto(`${base}/#/models`);
    const card = page.locator(".card", { hasText: MODEL });
    for (const label of ["Keep in memory", "Answers unknown names"]) {
      await card.getByLabel(label).click();
      await card.getByRole("checkbox", { name: label, checked: true }).waitFor();
    }
    const add = async (name) => {
      await card.getByRole("button", { name: `Add a name for ${MODEL}` }).click();
      await page.keyboard.type(name);
      await page.keyboard.press("Enter");
    };
    await add(MODEL);
    await card.getByText("add_name: expected a new name").waitFor();
    await page.keyboard.press("Escape");
    await add("gpt-4o");
    await card.getByRole("button", { name: "Remove the name gpt-4o" }).waitFor();
    await accessible(page, "the settings of a model");
    await card.getByRole("button", { name: "Remove the name gpt-4o" }).click();
    await card.getByLabel("Keep in memory").click();
    await card.getByRole("checkbox", { name: "Keep in memory", checked: false }).waitFor();
    await page.waitForFunction(() => !document.querySelector(".name"));
    const expect = [{ pin: true }, { default: true }, { add_name: MODEL }, { add_name: "gpt-4o" }, { remove_name: "gpt-4o" }, { pin: false }];
    assert.deepEqual(changes, expect);

    // Without an admin's key, nothing can be set.
    await page.unroute("**/v1/settings");
    await page.route("**/v1/settings", (route) => route.fulfill({ status: 403, json: { error: { message: "admins only" } } }));
    await page.reload();
    await card.waitFor();
    await page.waitForTimeout(300);
    assert.equal(await page.locator(".card-settings").count(), 0);
    await page.context().close();
  },

  async "the proof shows every node"() {
    const page = await open(`${base}/#/proof`);
    await page.waitForSelector(".verdict");
    const { models } = await (await fetch(`${base}/health`)).json();
    const { placement: lines, certificate } = models.find((model) => model.id === MODEL);
    const nodes = lines.reduce((sum, line) => sum + line.nodes, 0);
    const proof = page.getByRole("region", { name: `Proof of ${MODEL}` });
    assert.match(await proof.locator(".verdict").innerText(), new RegExp(`All ${nodes} nodes run on the CPU`));
    const loss = certificate ? `Compared with f32 on ${certificate.date}: perplexity` : "was not measured";
    await proof.getByText(loss).waitFor();
    await accessible(page, "the proof");
    await shot(page, "proof");
    await page.context().close();
  },

  async "the proof names refused nodes and their reasons"() {
    const page = await open("about:blank");
    await page.route("**/health", async (route) => {
      const report = await (await route.fetch()).json();
      await route.fulfill({ json: { ...report, models: [npu] } });
    });
    await page.goto(`${base}/#/proof`);
    await page.waitForSelector(".verdict");
    assert.match(await page.locator(".verdict").innerText(), /2,872 of 2,940 nodes run on the Snapdragon NPU, 68 on the CPU/);
    const decode = page.getByRole("img", { name: "1402 of 1470 nodes on Snapdragon NPU, 68 of 1470 nodes on CPU" });
    assert.equal(await page.getByRole("heading", { name: "vision.onnx (reads images)" }).count(), 1);
    assert.equal(await decode.locator("[data-kind=npu]").count(), 8);
    assert.equal(await decode.locator("[data-kind=cpu]").count(), 4);
    const text = await page.locator(".proof").innerText();
    const certificate = "perplexity +0.35 % and 0.0042 nats, the same best token at 98.1 % of 512 positions";
    const numerics = "The Snapdragon NPU agrees with the CPU: 0.0011 nats on average, the same best token at 100 % of 16 positions";
    for (const part of [certificate, numerics, "/lm_head/MatMul", "compile with --head-parts 3", "quarantined", "i8: perplexity +0.21 % and 0.0031 nats", "another driver"]) {
      assert(text.includes(part), `${part} is missing in ${text}`);
    }
    await accessible(page, "a proof with refusals");
    await page.context().close();
  },

  async "the system view follows the server"() {
    const page = await open(`${base}/#/system`);
    await page.waitForSelector("text=Models in memory");
    await page.waitForSelector("text=Requests since the start");
    const bar = await page.getByRole("img", { name: /^Weights .*, KV cache .*, Other use .*, Free / }).boundingBox();
    assert(bar.width > 500);
    // The requests are listed without their texts.
    const list = page.locator(".scroller[aria-label='Last requests']");
    await list.waitFor();
    const all = page.getByRole("button", { name: /^Show all \d+/ });
    if ((await all.count()) > 0) await all.click();
    const name = new RegExp(`POST /v1/chat/completions .*${MODEL}@w8 .*CPU .*tokens/s 200$`);
    await list.getByRole("row", { name }).first().waitFor();
    const { requests } = await (await fetch(`${base}/health/requests`)).json();
    assert(requests.some((one) => one.generated_tokens > 0 && one.first_token_ms > 0));
    await page.waitForFunction(() => document.querySelectorAll(".spark .line").length === 3);
    await accessible(page, "the system view");
    await page.context().close();
  },

  async "the last hour is that of the server"() {
    const page = await open("about:blank");
    const now = Math.floor(Date.now() / 1000);
    const samples = Array.from({ length: 361 }, (_, index) => ({
      time: now - 10 * (360 - index),
      tokens_per_second: index === 180 ? 50 : 5,
      prompt_tokens_per_second: 80,
      cached_tokens_per_second: index === 180 ? 60 : 20,
      running: index % 3,
      waiting: index > 350 ? 4 : 0,
      weights_bytes: 1 << 30,
      kv_used_bytes: 1 << 20,
      free_bytes: 4 * 2 ** 30,
      watts: index < 10 ? null : 17.5,
    }));
    await page.route("**/health/history", (route) => route.fulfill({ json: { interval: 10, samples } }));
    await page.goto(`${base}/#/system`);
    await page.getByRole("img", { name: "Tokens per second over the last hour; generated: now 5.0, at most 50" }).waitFor();
    await page.getByRole("img", { name: "Requests over the last hour; answers that run: now 0, at most 2; waiting: now 4, at most 4" }).waitFor();
    await page.getByRole("img", { name: /^Memory over the last hour; weights: now 1.0 GiB.*KV caches: now 1.0 MiB.*free: now 4.0 GiB/ }).waitFor();
    await page.getByRole("img", { name: /^Prompt tokens per second over the last hour; computed: now 80.*from the cache: now 20, at most 60/ }).waitFor();
    await page.getByRole("img", { name: "Power over the last hour; machine: now 17.5 W, at most 17.5 W" }).waitFor();
    // The pointer shows the values of half an hour ago.
    const plot = page.locator(".plot").first();
    const { x, y, width, height } = await plot.locator(".plot-area").boundingBox();
    await page.mouse.move(x + width / 2, y + height / 2);
    await plot.locator(".plot-legend >> text=50").waitFor();
    await accessible(page, "the last hour");
    await page.unroute("**/health/history");
    const real = await (await fetch(`${base}/health/history`)).json();
    assert(real.interval === 10 && real.samples.length > 0 && real.samples.at(-1).free_bytes > 0, JSON.stringify(real));
    await page.context().close();
  },

  async "power and other servers are shown where the server reports them"() {
    const page = await open("about:blank");
    const power = { sensor: "RAPL: package", watts: 31.4, idle_watts: 9 };
    const counts = { running: 2, requests: 40, errors: 3, prompt_tokens: 1234, generated_tokens: 567 };
    const upstreams = [
      { name: "box", state: "ok", ...counts, first_byte_ms: 25, last_error: null },
      { name: "cloud", state: "skipped", ...counts, first_byte_ms: null, last_error: "timeout" },
    ];
    await page.route("**/health", async (route) => {
      const report = await (await route.fetch()).json();
      const engine = { running: 0, waiting: 0, slots: 4, kv_used_bytes: 0, kv_budget_bytes: 0, generated_tokens: 0 };
      const models = [{ ...npu, engine: { ...engine, prompt_tokens: 60, cached_tokens: 40 } }];
      await route.fulfill({ json: { ...report, power, upstreams, models } });
    });
    await page.goto(`${base}/#/system`);
    const watts = page.getByRole("region", { name: "Power", exact: true });
    await watts.waitFor();
    assert.match(await watts.innerText(), /31\.4 W\s+9\.0 W without requests, by RAPL: package/);
    assert.match(await page.getByRole("region", { name: "Prompt cache" }).innerText(), /40\.0 %\s+40 of 100 tokens/);
    const rows = page.locator(".scroller[aria-label='Upstreams'] tbody tr");
    assert.match(await rows.nth(0).innerText(), /box\s+ready\s+2\s+40\s+3\s+1,234\s+567\s+25 ms/);
    assert.match(await rows.nth(1).innerText(), /cloud\s+skipped after failures\s+last failure: timeout/);
    await accessible(page, "the upstreams");
    await page.context().close();
  },

  async "a benchmark is run, stored and compared"() {
    const page = await open(`${base}/#/benchmarks`);
    await page.getByLabel("Prompt tokens").selectOption("64");
    await page.getByLabel("Answer tokens").selectOption("16");
    for (const [index, parallel] of ["1", "2"].entries()) {
      await page.getByLabel("Requests at once").selectOption(parallel);
      await page.getByRole("button", { name: "Run", exact: true }).click();
      await page.waitForFunction((count) => document.querySelectorAll("tbody tr").length === count, index + 1);
    }
    const rows = page.locator("tbody tr");
    assert.match(await rows.first().innerText(), new RegExp(`${MODEL}[\\s\\S]*CPU[\\s\\S]*16\\s+2\\s+[\\d.]+ tokens/s`));
    assert.equal(await page.locator(".bars").count(), 4);
    assert.equal(await page.locator(".bars li").count(), 8);
    await accessible(page, "the benchmarks");
    await page.reload();
    await rows.nth(1).waitFor();
    const [file] = await Promise.all([page.waitForEvent("download"), page.click("text=Export as JSON")]);
    const stored = JSON.parse(readFileSync(await file.path(), "utf8"));
    assert(stored.every((run) => run.perSecond > 0 && run.promptPerSecond > 0 && run.firstToken > 0 && run.promptTokens > 32));
    await page.getByRole("button", { name: /^Delete the run/ }).first().click();
    await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);

    // Reports of the command line are compared with the runs, and a file that is read twice counts once.
    const reports = page.locator("[aria-label='Files with reports']");
    const report = (value) => ({ name: "report.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(value)) });
    const foreign = benchReport("other:1b");
    await reports.setInputFiles([report(foreign), { ...report(comparison("other:1b")), name: "devices.json" }]);
    await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 3);
    await reports.setInputFiles(report(foreign));
    const onNpu = page.locator("tbody tr", { hasText: "Snapdragon NPU" });
    assert.match(await onNpu.innerText(), /other:1b\s+w8\s+A Processor[\s\S]*256\s+64\s+1\s+20 tokens\/s\s+17 tokens\/s\s+800 tokens\/s\s+640 ms\s+0\.1\.0/);
    assert.equal(await rows.count(), 3);
    assert.equal(await page.locator(".bars").first().locator("li").count(), 3);
    await accessible(page, "the reports");
    for (const [wrong, reason] of [
      ["{", "report.json: expected a report of `narthex bench --json`, or runs that this page exported; found no JSON"],
      [JSON.stringify({ ...foreign, first_token_ms: { median: "<b>1</b>" } }), "report.json: expected a report"],
      [JSON.stringify({ ...comparison("x"), contenders: [] }), "report.json: expected a device with figures"],
    ]) {
      await reports.setInputFiles({ ...report({}), buffer: Buffer.from(wrong) });
      await page.getByRole("alert").getByText(reason).waitFor();
    }
    await reports.setInputFiles({ ...report(stored), name: "exported.json" });
    await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 4);
    for (let left = 3; left > 0; left -= 1) {
      await page.getByRole("button", { name: /^Delete the run/ }).first().click();
      await page.waitForFunction((count) => document.querySelectorAll("tbody tr").length === count, left);
    }

    // A cancelled run is not stored.
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.getByRole("button", { name: "Run", exact: true }).waitFor();
    assert.equal(await rows.count(), 1);
    await page.context().close();
  },

  async "a key is asked for, checked, and kept for the tab"() {
    const page = await open(keyedBase);
    const dialog = page.getByRole("dialog", { name: "This server needs a key" });
    await dialog.waitFor();
    await accessible(page, "the question for a key");
    await page.keyboard.type("wrong");
    await page.keyboard.press("Enter");
    await dialog.getByText("The server does not know this key.").waitFor();
    await page.keyboard.type(key);
    await page.keyboard.press("Enter");
    await dialog.waitFor({ state: "hidden" });
    await page.waitForSelector(".prompts button:enabled");
    await configure(page, { Temperature: "0", "Maximum tokens": "8" });
    await ask(page, "Hello");
    assert.equal(await page.locator(".answer .error").count(), 0);
    await page.reload();
    await page.waitForSelector(".answer");
    await page.waitForTimeout(500);
    assert.equal(await dialog.isVisible(), false);
    assert.equal(await page.evaluate(() => JSON.stringify({ ...localStorage })), "{}");
    await page.click("text=Forget the key");
    await dialog.waitFor();
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
    await page.context().close();
  },

  async "every view fits 360 px, in the dark"() {
    const page = await open(base, { viewport: { width: 360, height: 740 }, colorScheme: "dark", hasTouch: true });
    await page.waitForSelector(".prompts button:enabled");
    await fits(page, "the first visit");
    await answerWith(page, [answerChunks({ content: conversation })]);
    await ask(page, "Show me everything that Markdown has.");
    await fits(page, "a chat");
    await accessible(page, "a chat in the dark");
    await page.click(".list-toggle");
    await page.waitForSelector(".conversations li >> visible=true");
    await accessible(page, "the list of conversations");
    await page.click(".list-toggle");
    await page.click("[aria-label='Settings of the conversation']");
    await fits(page, "the settings");
    for (const view of ["models", "proof", "system", "benchmarks"]) {
      await show(page, view);
      await page.waitForSelector("h1");
      await page.waitForTimeout(300);
      await fits(page, view);
      await accessible(page, `${view} in the dark`);
    }
    await page.context().close();
  },

  async "the keyboard alone is enough"() {
    const page = await open(`${base}/#/system`);
    await page.waitForSelector("text=Models in memory");
    const focused = () =>
      page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent.trim());
    const tabTo = async (name, key = "Tab") => {
      for (let step = 0; step < 40; step += 1) {
        await page.keyboard.press(key);
        if ((await focused()).startsWith(name)) return;
      }
      assert.fail(`${name} cannot be reached; the focus is on ${await focused()}`);
    };
    await page.keyboard.press("Tab");
    assert.equal(await focused(), "Skip to the content");
    await tabTo("Chat");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".prompts button:enabled");
    // The prompt has the focus at once.
    await configureByKeyboard(page, tabTo);
    await page.locator("#prompt").focus();
    await page.keyboard.type("What is the capital of France?");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".answer .message-bar");
    await tabTo("Answer again", "Shift+Tab");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".answer >> text=2/2");
    await page.locator("#prompt").focus();
    await tabTo("Edit message", "Shift+Tab");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".editing textarea:focus");
    await page.keyboard.press("Escape");
    await page.waitForSelector(".bubble");
    await page.context().close();
  },

  async "the screenshots of the book"() {
    if (!screenshots) return "not asked for";
    const windows = {
      chat: { colorScheme: "light" },
      dark: { colorScheme: "dark" },
      narrow: { viewport: { width: 360, height: 740 }, hasTouch: true },
    };
    for (const [name, options] of Object.entries(windows)) {
      const page = await open(base, options);
      await page.waitForSelector(".prompts button:enabled");
      await configure(page, { Temperature: "0", "Maximum tokens": "160" });
      await ask(page, "What is the capital of France?");
      await ask(page, "Write a Python function that adds two numbers.");
      await page.waitForTimeout(2500);
      await shot(page, name);
      if (name === "chat") {
        await show(page, "system");
        await page.waitForSelector("text=Requests since the start");
        await shot(page, "system");
      }
      await page.context().close();
    }
    const page = await open(`${base}/#/models`);
    await page.waitForSelector(".offer");
    await page.waitForTimeout(500);
    await shot(page, "models");
    await show(page, "benchmarks");
    for (const parallel of ["1", "4"]) {
      await page.getByLabel("Requests at once").selectOption(parallel);
      await page.getByRole("button", { name: "Run", exact: true }).click();
      await page.getByRole("button", { name: "Cancel" }).waitFor();
      await page.getByRole("button", { name: "Run", exact: true }).waitFor();
    }
    await shot(page, "benchmarks");
    await page.context().close();
  },
};

/** Sets the sampling without a pointer. */
async function configureByKeyboard(page, tabTo) {
  await page.locator("#prompt").focus();
  await tabTo("Settings of the conversation", "Shift+Tab");
  await page.keyboard.press("Enter");
  await page.getByLabel("System prompt", { exact: true }).waitFor();
  await page.keyboard.press("Tab");
  await page.keyboard.type("0");
  for (let step = 0; step < 4; step += 1) await page.keyboard.press("Tab");
  await page.keyboard.type("20");
  await page.keyboard.press("Escape");
  await page.waitForSelector(".panel", { state: "detached" });
}

const only = process.env.ONLY;
let failed = 0;
let total = 0;
for (const [name, test] of Object.entries(tests)) {
  if (only && !name.includes(only)) continue;
  total += 1;
  const start = performance.now();
  faults.length = 0;
  try {
    const remark = await test();
    assert.deepEqual(faults, [], "the browser reported faults");
    const seconds = ((performance.now() - start) / 1000).toFixed(1);
    console.log(`ok     ${name} (${seconds} s${remark ? `; ${remark}` : ""})`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${name}: ${error.stack ?? error}`);
    await Promise.all(browser.contexts().map((context) => context.close()));
  }
}
await browser.close();
console.log(failed ? `${failed} of ${total} tests of the page failed` : `${total} tests of the page passed`);
process.exit(failed ? 1 : 0);
