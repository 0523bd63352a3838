import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { KeyIcon, Mark, Settings as SettingsIcon } from "../icons";
import { key } from "../api";
import { deviceName, kindOf } from "../format";
import { chatModels, health, models } from "../server";
import { announcement, current, preferredModel, running, send, unsaved, update } from "./chats";
import { Composer } from "./Composer";
import { branch } from "./conversation";
import { attach, filesOf } from "./draft";
import { MessageView } from "./MessageView";
import { PictureDialog } from "./PictureList";
import { SettingsPanel } from "./SettingsPanel";

const settingsOpen = signal(false);

/** Whether files are dragged over the conversation. */
const isDropTarget = signal(false);

const hasFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;

const PROMPTS = [
  "Explain what a neural processing unit does, in three sentences.",
  "Write a haiku about a quiet machine.",
  "List the steps to make tea as a Markdown table.",
];

export function ChatView() {
  const conversation = current.value;
  const messages = conversation ? branch(conversation) : [];
  const isRunning = Boolean(conversation && running.value[conversation.id]);
  return (
    <div class="chat" data-settings={settingsOpen.value}>
      <div
        class="chat-main"
        data-drop={isDropTarget.value}
        onDragOver={(event) => {
          if (!hasFiles(event)) return;
          event.preventDefault();
          isDropTarget.value = true;
        }}
        onDragLeave={(event) => {
          if (!event.currentTarget.contains(event.relatedTarget as Node | null)) isDropTarget.value = false;
        }}
        onDrop={(event) => {
          isDropTarget.value = false;
          if (!hasFiles(event)) return;
          event.preventDefault();
          void attach(filesOf(event.dataTransfer));
        }}
      >
        <ChatHeader />
        {messages.length === 0 ? (
          <Welcome />
        ) : (
          <Messages key={conversation!.id} count={messages.length}>
            {messages.map((message, index) => (
              <MessageView
                key={message.id}
                message={message}
                conversation={conversation!}
                isLast={index === messages.length - 1}
                isRunning={isRunning}
              />
            ))}
          </Messages>
        )}
        {unsaved.value && <p class="notice">{unsaved.value}</p>}
        <Composer isRunning={isRunning} />
        <div class="sr-only" role="status" aria-live="polite">
          {announcement.value}
        </div>
      </div>
      {settingsOpen.value && <SettingsPanel close={() => (settingsOpen.value = false)} />}
      <PictureDialog />
    </div>
  );
}

function ChatHeader() {
  const model = current.value?.model || preferredModel.value;
  const names = chatModels.value;
  const isKnown = !model || names.some((one) => one.id === model);
  const state = health.value?.models.find((one) => one.id === model);
  return (
    <header class="view-header chat-header">
      <h1 class="sr-only">Chat</h1>
      <label class="picker">
        <span class="sr-only">Model</span>
        <select value={model} onChange={(event) => update({ model: event.currentTarget.value })}>
          {!model && <option value="">No model</option>}
          {!isKnown && <option value={model}>{model} (not available)</option>}
          {names.map((one) => (
            <option key={one.id} value={one.id}>
              {one.id}
            </option>
          ))}
        </select>
      </label>
      {state?.state.state === "ready" && state.device && (
        <a class="device" data-kind={kindOf(state.device)} href="#/proof" title="Where the nodes of this model run">
          {deviceName(state.device)}
        </a>
      )}
      {state?.state.state === "loading" && <span class="device">loading</span>}
      <span class="spring" />
      {key.value && (
        <span class="quiet with-icon" title="Requests of this tab have a key">
          <KeyIcon />
          <span class="sr-only">With a key</span>
        </span>
      )}
      <button
        type="button"
        class="icon-button"
        aria-label="Settings of the conversation"
        title="Settings"
        aria-expanded={settingsOpen.value}
        onClick={() => (settingsOpen.value = !settingsOpen.value)}
      >
        <SettingsIcon />
      </button>
    </header>
  );
}

function Welcome() {
  const none = models.value !== null && chatModels.value.length === 0;
  return (
    <div class="welcome">
      <Mark />
      <h2>{none ? "No chat model is installed" : "Ask this machine"}</h2>
      {none ? (
        <p>
          <a href="#/models">Install one</a>, or run <code>narthex pull smollm2:135m</code>.
        </p>
      ) : (
        <>
          <p>The model runs on this machine. Conversations stay in your browser.</p>
          <ul class="prompts">
            {PROMPTS.map((prompt) => (
              <li key={prompt}>
                <button type="button" disabled={!preferredModel.value} onClick={() => void send(prompt)}>
                  {prompt}
                </button>
              </li>
            ))}
          </ul>
        </>
      )}
    </div>
  );
}

/** The messages. They stay at the end while an answer grows, unless the reader has scrolled up. */
function Messages({ children, count }: { children: preact.ComponentChildren; count: number }) {
  const box = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  useLayoutEffect(() => {
    atEnd.current = true;
  }, [count]);
  useLayoutEffect(() => {
    const element = box.current!;
    if (atEnd.current) element.scrollTop = element.scrollHeight;
  });
  return (
    <div
      class="messages"
      ref={box}
      tabIndex={0}
      role="region"
      aria-label="Messages"
      onScroll={(event) => {
        const element = event.currentTarget;
        atEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < 60;
      }}
    >
      <div class="column">{children}</div>
    </div>
  );
}
