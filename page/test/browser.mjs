// The browser of the tests: Chromium as the system installs it. Run as a program, this fails if there is none.

import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

const PATHS = [
  process.env.CHROMIUM,
  "/usr/bin/chromium",
  "/usr/bin/chromium-browser",
  "/usr/bin/google-chrome",
  "/Applications/Chromium.app/Contents/MacOS/Chromium",
  "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
];

/** Path of the browser, if there is one. */
export const browserPath = PATHS.find((path) => path && existsSync(path));

if (process.argv[1] === fileURLToPath(import.meta.url) && !browserPath) process.exit(1);
