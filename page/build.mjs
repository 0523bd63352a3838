// Builds the page into crates/server/page, which the program contains.
//
//     node build.mjs          writes the files
//     node build.mjs --check  fails if the files differ from the sources

import { createHash } from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

/** Maximum bytes of the first visit, compressed. */
const BUDGET = 300_000;

const path = (relative) => fileURLToPath(new URL(relative, import.meta.url));
const target = (name) => path(`../crates/server/page/${name}`);

/** Packages whose code is in the page. Their licences ask for a copy of their notices. */
const PACKAGES = ["preact", "@preact/signals", "@preact/signals-core", "marked"];

const notices = async () => {
  const texts = PACKAGES.map(async (name) => {
    const text = await readFile(path(`node_modules/${name}/LICENSE`), "utf8");
    return `${name}\n\n${text.trim()}`;
  });
  return `/*!\n${(await Promise.all(texts)).join("\n\n").replaceAll("*/", "* /")}\n*/`;
};

const bundle = async (entry, name) => {
  const result = await build({
    entryPoints: [path(entry)],
    outfile: target(name),
    bundle: true,
    minify: true,
    write: false,
    format: "iife",
    target: ["chrome109", "firefox115", "safari16.4"],
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "none",
    footer: name.endsWith(".js") ? { js: await notices() } : {},
    define: { "process.env.NODE_ENV": '"production"' },
  });
  return result.outputFiles[0].text;
};

const files = new Map([
  ["app.js", await bundle("src/main.tsx", "app.js")],
  ["app.css", await bundle("src/styles/main.css", "app.css")],
  ["icon.svg", await readFile(path("src/icon.svg"), "utf8")],
]);

// The digest in the address lets browsers keep a file for good.
let index = await readFile(path("src/index.html"), "utf8");
for (const [name, content] of files) {
  const digest = createHash("sha256").update(content).digest("hex").slice(0, 16);
  index = index.replaceAll(`/page/${name}`, `/page/${name}?${digest}`);
}
files.set("index.html", index);

const compressed = [...files.values()].reduce((sum, content) => sum + gzipSync(content).length, 0);
if (compressed > BUDGET) throw new Error(`the page has ${compressed} bytes compressed and may have ${BUDGET}`);

let different = 0;
for (const [name, content] of files) {
  const current = await readFile(target(name), "utf8").catch(() => "");
  if (current === content) continue;
  different += 1;
  if (process.argv.includes("--check")) console.error(`crates/server/page/${name} is not that of the sources`);
  else await writeFile(target(name), content);
}
if (different > 0 && process.argv.includes("--check")) {
  console.error("run `npm run build` in the folder page and commit the result");
  process.exit(1);
}
console.log(`the page has ${compressed} bytes compressed`);
