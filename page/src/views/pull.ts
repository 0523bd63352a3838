// The installation of a model: one at a time, which goes on while other views are shown.

import { signal } from "@preact/signals";
import { jsonLines, messageFor } from "../api";
import { refreshCatalogue, refreshModels } from "../server";

/** A running or failed installation. */
export interface Pull {
  model: string;
  status: string;
  share: number | null;
  error: string;
  control: AbortController | null;
}

export const pull = signal<Pull | null>(null);

interface PullLine {
  status?: string;
  total?: number;
  completed?: number;
}

/** Installs a model. Leaving the page cancels it. */
export async function startPull(model: string): Promise<void> {
  const control = new AbortController();
  const set = (fields: Partial<Pull>) => {
    if (pull.value?.control === control) pull.value = { ...pull.value, ...fields };
  };
  pull.value = { model, status: "Starting", share: null, error: "", control };
  try {
    for await (const line of jsonLines<PullLine>("/api/pull", { model }, control.signal)) {
      const share = line.total ? (line.completed ?? 0) / line.total : null;
      set({ status: line.status ?? "", share });
    }
    pull.value = null;
    await Promise.all([refreshModels(), refreshCatalogue()]);
  } catch (error) {
    if (control.signal.aborted) pull.value = null;
    else set({ error: messageFor(error), control: null });
  }
}
