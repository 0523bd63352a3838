import { signal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { key, setKey, keyDemand } from "./api";
import { ChatView } from "./chat/ChatView";
import { begin, conversations, currentId, running, select, start } from "./chat/chats";
import { bytes } from "./format";
import { BenchmarksIcon, ChatIcon, Mark, Menu, ModelsIcon, Plus, ProofIcon, SystemIcon } from "./icons";
import { KeyDialog } from "./KeyDialog";
import { go, type View, view } from "./route";
import { catalogue, health, models, outage, refreshCatalogue, refreshModels, refreshSettings, settings, watch } from "./server";
import { BenchmarksView } from "./views/BenchmarksView";
import { ModelsView } from "./views/ModelsView";
import { ProofView } from "./views/ProofView";
import { SystemView } from "./views/SystemView";

const NAVIGATION: [View, string, () => preact.JSX.Element][] = [
  ["chat", "Chat", ChatIcon],
  ["models", "Models", ModelsIcon],
  ["proof", "Proof", ProofIcon],
  ["system", "System", SystemIcon],
  ["benchmarks", "Benchmarks", BenchmarksIcon],
];

/** Whether the list of conversations is open, on a narrow screen. */
const listOpen = signal(false);

function App() {
  const shown = view.value;
  useEffect(() => {
    document.title = `${NAVIGATION.find(([name]) => name === shown)![1]} · Narthex`;
    // A failure is an outage, or the key is asked for; the polls report both.
    if (shown === "models") {
      void Promise.all([refreshModels(), refreshSettings(), refreshCatalogue()]).catch(() => undefined);
    }
  }, [shown, keyDemand.value === "none"]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to the content
      </a>
      <div class="shell" data-list={listOpen.value}>
        <Sidebar shown={shown} />
        <main id="main" tabIndex={-1}>
          {outage.value && (
            <p class="outage" role="alert">
              {outage.value}
            </p>
          )}
          {shown === "chat" && <ChatView />}
          {shown === "models" && <ModelsView />}
          {shown === "proof" && <ProofView />}
          {shown === "system" && <SystemView />}
          {shown === "benchmarks" && <BenchmarksView />}
        </main>
      </div>
      <KeyDialog />
    </>
  );
}

function Sidebar({ shown }: { shown: View }) {
  return (
    <div class="sidebar">
      <div class="brand">
        <button
          type="button"
          class="icon-button list-toggle"
          aria-label="Conversations"
          aria-expanded={listOpen.value}
          onClick={() => (listOpen.value = !listOpen.value)}
        >
          <Menu />
        </button>
        <a href="#/chat" class="wordmark">
          <Mark />
          <span>Narthex</span>
        </a>
      </div>
      <nav class="navigation" aria-label="Views">
        {NAVIGATION.map(([name, label, Icon]) => (
          <a key={name} href={`#/${name}`} aria-current={shown === name ? "page" : undefined}>
            <Icon />
            <span>{label}</span>
          </a>
        ))}
      </nav>
      <Conversations />
    </div>
  );
}

function Conversations() {
  const open = (work: () => void) => {
    work();
    listOpen.value = false;
    go("chat");
  };
  return (
    <section class="conversations" aria-label="Conversations">
      <button type="button" class="button new" onClick={() => open(begin)}>
        <Plus /> New conversation
      </button>
      <ul>
        {conversations.value.map((conversation) => (
          <li key={conversation.id}>
            <button
              type="button"
              aria-current={conversation.id === currentId.value ? "true" : undefined}
              onClick={() => open(() => select(conversation.id))}
            >
              <span class="ellipsis">{conversation.title || "New conversation"}</span>
              {running.value[conversation.id] && <i class="pulse" role="img" aria-label="An answer runs" />}
            </button>
          </li>
        ))}
      </ul>
      <Status />
    </section>
  );
}

function Status() {
  const report = health.value;
  const loaded = report?.models.filter((model) => model.state.state === "ready").length ?? 0;
  const used = report ? report.memory.weights_bytes + report.memory.kv_used_bytes : 0;
  return (
    <footer class="status">
      {outage.value ? (
        <span>not connected</span>
      ) : (
        report && (
          <span>
            {loaded === 1 ? "1 model" : `${loaded} models`} in memory
            {used > 0 && `, ${bytes(used)}`}
          </span>
        )
      )}
      {key.value && (
        <button
          type="button"
          class="link"
          onClick={() => {
            setKey("");
            health.value = null;
            models.value = null;
            catalogue.value = null;
            settings.value = null;
            keyDemand.value = "missing";
          }}
        >
          Forget the key
        </button>
      )}
    </footer>
  );
}

render(<App />, document.getElementById("app")!);
void start();
void watch(() => view.value === "system");
