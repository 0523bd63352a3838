// The shown view, which the address states after `#`.

import { signal } from "@preact/signals";

export const VIEWS = ["chat", "models", "proof", "system", "benchmarks"] as const;
export type View = (typeof VIEWS)[number];

function read(): View {
  const name = location.hash.replace(/^#\/?/, "").split("/")[0];
  return VIEWS.find((view) => view === name) ?? "chat";
}

export const view = signal<View>(read());

addEventListener("hashchange", () => {
  view.value = read();
});

/** Shows a view. */
export function go(to: View): void {
  location.hash = `/${to}`;
}
