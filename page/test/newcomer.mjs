// A new user with an installed program and an empty store: the page in the browser, a first answer, a second model, an
// alias, a pinned model and a schema. Everything is found on the screen, without the book.
//
//     node test/newcomer.mjs PROGRAM STORE SCREENSHOTS
//
// Each step writes a picture and prints a line for the record. The models come from pip.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { delimiter, join } from "node:path";
import { chromium } from "playwright-core";
import { browserPath } from "./browser.mjs";

const [program, store, screenshots] = process.argv.slice(2);
assert(screenshots, "usage: node test/newcomer.mjs PROGRAM STORE SCREENSHOTS");
assert(browserPath, "there is no Chromium; on Debian: apt-get install chromium");
assert(!existsSync(store), `expected no store at ${store}`);
const MODEL = "smollm2:135m";
const SECOND = "all-minilm-l6-v2";
const MINUTES = 60_000;
mkdirSync(screenshots, { recursive: true });

/** A program in the place of the one that opens browsers. It writes the address to a file. */
function fakeBrowser() {
  const folder = join(screenshots, "bin");
  mkdirSync(folder, { recursive: true });
  const opened = join(folder, "opened");
  writeFileSync(opened, "");
  writeFileSync(join(folder, "xdg-open"), `#!/bin/sh\nprintf %s "$1" >'${opened}'\n`);
  chmodSync(join(folder, "xdg-open"), 0o755);
  return { folder, address: () => readFileSync(opened, "utf8") };
}

let number = 0;
let last = performance.now();

/** Prints a line of the record, and takes a picture of the page. */
async function step(text, page) {
  number += 1;
  const seconds = ((performance.now() - last) / 1000).toFixed(1);
  const name = `${String(number).padStart(2, "0")}.png`;
  if (page) await page.screenshot({ path: join(screenshots, name) });
  console.log(`${page ? name : "-"}\t${seconds} s\t${text}`);
  last = performance.now();
}

const browserProgram = fakeBrowser();
const env = { ...process.env, NARTHEX_HOME: store, PATH: `${browserProgram.folder}${delimiter}${process.env.PATH}` };
const welcome = execFileSync(program, { env, encoding: "utf8" });
assert.match(welcome, /^ {2}narthex serve --open$/m);
await step("`narthex` without arguments names `narthex serve --open`");

const server = spawn(program, ["serve", "--open", "--port", "0"], { env, stdio: ["ignore", "ignore", "inherit"] });
const browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox"] });
try {
  for (let tries = 0; !browserProgram.address() && tries < 600; tries += 1) await new Promise((resolve) => setTimeout(resolve, 100));
  const address = browserProgram.address();
  assert.match(address, /^http:\/\/127\.0\.0\.1:\d+\/$/);
  await use(await browser.newPage({ viewport: { width: 1024, height: 640 }, reducedMotion: "reduce" }), address);
} finally {
  await browser.close();
  server.kill();
}

async function use(page, address) {
  page.setDefaultTimeout(5 * MINUTES);
  const show = (view) => page.click(`.navigation a[href='#/${view}']`);
  await page.goto(address);
  await page.locator(".welcome").waitFor();
  await step("the page opens", page);

  await show("models");
  await page.getByText("No model is installed on this machine yet.").waitFor();
  await page.locator(".offer").first().waitFor();
  await page.getByLabel("Name", { exact: true }).fill("smollm2 135m");
  const offer = page.locator(".offer", { has: page.getByRole("heading", { name: MODEL, exact: true }) });
  await offer.getByRole("button", { name: `Plan of ${MODEL}`, exact: true }).click();
  await offer.locator(".plan .scroller").nth(1).waitFor();
  await offer.scrollIntoViewIfNeeded();
  await step(`the plan of ${MODEL}, before its download`, page);
  await offer.getByRole("button", { name: `Plan of ${MODEL}`, exact: true }).click();
  await offer.getByRole("button", { name: `Install ${MODEL}` }).click();
  await offer.getByRole("progressbar").waitFor();
  await page.waitForTimeout(1500);
  await step("the installation shows its progress", page);
  const card = page.locator(".card", { hasText: MODEL });
  await card.waitFor();
  await card.scrollIntoViewIfNeeded();
  await step(`${MODEL} is installed`, page);

  await card.getByRole("button", { name: `Chat with ${MODEL}` }).click();
  await page.fill("#prompt", "What is the capital of France?");
  await page.keyboard.press("Enter");
  await page.locator(".answer .message-bar").waitFor();
  assert.match(await page.locator(".answer .markdown").innerText(), /Paris/);
  await step("the first answer, with its device, speed and first token", page);

  await show("proof");
  await page.locator(".verdict").waitFor();
  await step("the proof: where every node of the model runs", page);

  await show("models");
  await page.getByLabel("Kind").selectOption("embedding");
  await page.getByLabel("Name", { exact: true }).fill(SECOND);
  await page.getByRole("button", { name: `Install ${SECOND}`, exact: true }).click();
  const second = page.locator(".card", { hasText: SECOND });
  await second.waitFor();
  await second.getByRole("button", { name: `Load ${SECOND}`, exact: true }).click();
  await second.getByRole("button", { name: `Unload ${SECOND}` }).waitFor();
  await second.scrollIntoViewIfNeeded();
  await step(`a second model, ${SECOND}, is installed and in memory`, page);

  await card.getByRole("button", { name: `Add a name for ${MODEL}` }).click();
  await page.keyboard.type("gpt-4o");
  await page.keyboard.press("Enter");
  await card.getByRole("button", { name: "Remove the name gpt-4o" }).waitFor();
  await card.getByLabel("Keep in memory").click();
  await card.getByRole("checkbox", { name: "Keep in memory", checked: true }).waitFor();
  await card.scrollIntoViewIfNeeded();
  await step(`${MODEL} has the alias gpt-4o and is pinned`, page);
  const settings = readFileSync(join(store, "narthex.toml"), "utf8");
  assert.match(settings, /gpt-4o = "smollm2:135m"[\s\S]*pin = true/);

  await show("chat");
  await page.getByLabel("Model").selectOption("gpt-4o");
  await page.click("[aria-label='Settings of the conversation']");
  const schema = { type: "object", properties: { city: { type: "string", maxLength: 20 } }, required: ["city"] };
  await page.getByLabel("JSON schema", { exact: true }).fill(JSON.stringify(schema));
  await page.fill("#prompt", "Which city has the Eiffel Tower?");
  await page.keyboard.press("Enter");
  await page.locator(".answer .message-bar").nth(1).waitFor();
  const answer = JSON.parse(await page.locator(".answer .markdown").last().innerText());
  assert.equal(typeof answer.city, "string");
  await step("an answer that follows a schema, by the alias", page);

  await show("system");
  await page.getByText("Last requests").waitFor();
  await step("the system: memory, models and the last requests", page);
}
