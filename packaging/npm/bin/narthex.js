#!/usr/bin/env node
// Starts the program of this platform, which lies with ONNX Runtime's library in platforms/<os>-<cpu>.
"use strict";

const { spawn } = require("node:child_process");
const { existsSync } = require("node:fs");
const { join } = require("node:path");

const platform = `${process.platform}-${process.arch}`;
const file = process.platform === "win32" ? "narthex.exe" : "narthex";
const program = join(__dirname, "..", "platforms", platform, "bin", file);
if (!existsSync(program)) {
  console.error(`error: this package has no program for ${platform}`);
  console.error("hint: install Narthex with pip or cargo instead");
  process.exit(1);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
// The terminal sends Ctrl-C to both processes; the program decides what it stops.
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  process.on(signal, () => {
    if (signal !== "SIGINT") child.kill(signal);
  });
}
child.on("error", (error) => {
  console.error(`error: ${program} cannot be started: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  if (signal) {
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  } else {
    process.exit(code ?? 1);
  }
});
