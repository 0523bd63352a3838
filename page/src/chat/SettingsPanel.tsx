import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { messageFor } from "../api";
import { download } from "../download";
import { Close, Download, Trash, Upload } from "../icons";
import { chatModels } from "../server";
import { adopt, current, discard, update, updateSettings } from "./chats";
import { asMarkdown, fromJson, PLAIN, type Settings } from "./conversation";

const fileName = (title: string) => title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "conversation";

export function SettingsPanel({ close }: { close: () => void }) {
  const conversation = current.value;
  const settings = conversation?.settings ?? PLAIN;
  const sampling = chatModels.value.find((model) => model.id === conversation?.model)?.sampling ?? {};
  const first = useRef<HTMLTextAreaElement>(null);
  // Before the first paint, so that no key that follows goes elsewhere.
  useLayoutEffect(() => first.current?.focus(), []);
  const set = (name: keyof Settings) => (event: Event) =>
    updateSettings({ [name]: (event.currentTarget as HTMLInputElement).value });
  return (
    <aside class="panel" aria-label="Settings of the conversation" onKeyDown={(event) => event.key === "Escape" && close()}>
      <header class="panel-header">
        <h2>Conversation</h2>
        <button type="button" class="icon-button" aria-label="Close the settings" onClick={close}>
          <Close />
        </button>
      </header>
      <label class="field">
        <span>Title</span>
        <input value={conversation?.title ?? ""} onInput={(event) => update({ title: event.currentTarget.value })} />
      </label>
      <label class="field">
        <span>System prompt</span>
        <textarea ref={first} rows={4} value={settings.system} onInput={set("system")} />
      </label>
      <fieldset>
        <legend>Sampling</legend>
        <p class="hint">An empty field has the value of the model’s publisher.</p>
        <div class="grid2">
          <NumberField name="Temperature" value={settings.temperature} hint={sampling.temperature} set={set("temperature")} />
          <NumberField name="Top p" value={settings.top_p} hint={sampling.top_p} set={set("top_p")} />
          <NumberField name="Top k" value={settings.top_k} hint={sampling.top_k} set={set("top_k")} />
          <NumberField name="Seed" value={settings.seed} set={set("seed")} />
          <NumberField name="Maximum tokens" value={settings.max_tokens} set={set("max_tokens")} />
          <label class="field">
            <span>Reasoning</span>
            <select value={settings.reasoning} onInput={set("reasoning")}>
              <option value="">Default</option>
              <option value="none">None</option>
              <option value="low">Low</option>
              <option value="medium">Medium</option>
              <option value="high">High</option>
            </select>
          </label>
        </div>
      </fieldset>
      <JsonField
        name="JSON schema"
        hint="Answers are JSON of this schema."
        example={'{"type": "object", "properties": {"city": {"type": "string"}}}'}
        value={settings.schema}
        set={set("schema")}
      />
      <JsonField
        name="Tools"
        hint="Functions that the model may call. You enter their results."
        example={'[{"name": "weather", "parameters": {"type": "object"}}]'}
        value={settings.tools}
        set={set("tools")}
      />
      <Files close={close} />
    </aside>
  );
}

function NumberField(props: { name: string; value: string; hint?: number; set: (event: Event) => void }) {
  return (
    <label class="field">
      <span>{props.name}</span>
      <input
        inputMode="decimal"
        value={props.value}
        placeholder={props.hint === undefined ? "" : String(Number(props.hint.toFixed(3)))}
        onInput={props.set}
      />
    </label>
  );
}

function JsonField(props: { name: string; hint: string; example: string; value: string; set: (event: Event) => void }) {
  let fault = "";
  try {
    if (props.value.trim()) JSON.parse(props.value);
  } catch (error) {
    fault = messageFor(error);
  }
  const id = `setting-${props.name.toLowerCase().replace(" ", "-")}`;
  return (
    <div class="field">
      <label for={id}>{props.name}</label>
      <textarea
        id={id}
        aria-describedby={`${id}-hint`}
        class="code-input"
        rows={3}
        spellcheck={false}
        value={props.value}
        placeholder={props.example}
        aria-invalid={Boolean(fault)}
        onInput={props.set}
      />
      <small id={`${id}-hint`} class={fault ? "error" : "hint"}>
        {fault || props.hint}
      </small>
    </div>
  );
}

function Files({ close }: { close: () => void }) {
  const conversation = current.value;
  const [failure, setFailure] = useState("");
  const input = useRef<HTMLInputElement>(null);
  const read = async (file: File | undefined) => {
    if (!file) return;
    try {
      await adopt(fromJson(await file.text()));
      setFailure("");
    } catch (error) {
      setFailure(`${file.name}: ${messageFor(error)}`);
    }
  };
  const isEmpty = !conversation || Object.keys(conversation.messages).length === 0;
  return (
    <fieldset>
      <legend>Files</legend>
      <div class="stack">
        <button
          type="button"
          class="button"
          disabled={isEmpty}
          onClick={() => download(`${fileName(conversation!.title)}.md`, "text/markdown", asMarkdown(conversation!))}
        >
          <Download /> Export as Markdown
        </button>
        <button
          type="button"
          class="button"
          disabled={isEmpty}
          onClick={() =>
            download(`${fileName(conversation!.title)}.json`, "application/json", JSON.stringify(conversation, null, 2))
          }
        >
          <Download /> Export as JSON
        </button>
        <button type="button" class="button" onClick={() => input.current?.click()}>
          <Upload /> Import from JSON
        </button>
        <input
          ref={input}
          type="file"
          accept=".json,application/json"
          class="sr-only"
          tabIndex={-1}
          aria-label="File with a conversation"
          onChange={(event) => {
            void read(event.currentTarget.files?.[0]);
            event.currentTarget.value = "";
          }}
        />
        <button
          type="button"
          class="button danger"
          disabled={isEmpty}
          onClick={() => {
            if (confirm("Delete this conversation from this browser?")) {
              void discard(conversation!.id);
              close();
            }
          }}
        >
          <Trash /> Delete the conversation
        </button>
      </div>
      {failure && (
        <p class="error" role="alert">
          {failure}
        </p>
      )}
    </fieldset>
  );
}
