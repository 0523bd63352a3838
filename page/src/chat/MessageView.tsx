import { Component } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { deviceName, duration, kindOf, rate } from "../format";
import { Edit, Left, Retry, Right } from "../icons";
import { CopyButton, Markdown } from "../markdown";
import { SpeakButton } from "../speech";
import { retry, send, sendResults, update } from "./chats";
import { children, choose, type Conversation, type Message } from "./conversation";
import { Pictures } from "./PictureList";
import { Sounds } from "./SoundList";
import { type Attachments, NOTHING } from "./files";

interface Props {
  message: Message;
  conversation: Conversation;
  isLast: boolean;
  isRunning: boolean;
}

/** A message, which is drawn again only if something of it changes: an answer changes with each token. */
export class MessageView extends Component<Props> {
  shouldComponentUpdate(next: Props) {
    const { message, isLast, isRunning, conversation } = this.props;
    return (
      next.message !== message ||
      next.isLast !== isLast ||
      next.isRunning !== isRunning ||
      Object.keys(next.conversation.messages).length !== Object.keys(conversation.messages).length
    );
  }

  render() {
    const { message } = this.props;
    if (message.role === "user") return <UserMessage {...this.props} />;
    if (message.role === "tool") return <ToolResult {...this.props} />;
    return <Answer {...this.props} />;
  }
}

/** Moves between the alternatives of a message. */
function Branches({ message, conversation, isRunning }: Props) {
  const all = children(conversation, message.parent);
  if (all.length < 2) return null;
  const at = all.findIndex((other) => other.id === message.id);
  const move = (by: number) => update(choose(conversation, all[at + by]!));
  return (
    <span class="branches">
      <button
        type="button"
        class="icon-button"
        aria-label="Previous version"
        disabled={at === 0 || isRunning}
        onClick={() => move(-1)}
      >
        <Left />
      </button>
      <span aria-label={`Version ${at + 1} of ${all.length}`}>
        {at + 1}/{all.length}
      </span>
      <button
        type="button"
        class="icon-button"
        aria-label="Next version"
        disabled={at === all.length - 1 || isRunning}
        onClick={() => move(1)}
      >
        <Right />
      </button>
    </span>
  );
}

function UserMessage(props: Props) {
  const { message, isRunning } = props;
  const [draft, setDraft] = useState<string | null>(null);
  const [kept, setKept] = useState<Attachments>(NOTHING);
  const area = useRef<HTMLTextAreaElement>(null);
  const isEditing = draft !== null;
  useLayoutEffect(() => {
    if (isEditing) area.current?.focus();
  }, [isEditing]);
  const submit = () => {
    const text = draft?.trim() ?? "";
    if ((!text && kept.pictures.length === 0 && kept.sounds.length === 0) || isRunning) return;
    setDraft(null);
    void send(text, kept, message.parent);
  };
  if (isEditing) {
    return (
      <article class="message user editing" aria-label="Your message">
        {kept.pictures.length > 0 && (
          <Pictures
            pictures={kept.pictures}
            remove={(index) => setKept({ ...kept, pictures: kept.pictures.filter((_, other) => other !== index) })}
          />
        )}
        {kept.sounds.length > 0 && (
          <Sounds
            sounds={kept.sounds}
            remove={(index) => setKept({ ...kept, sounds: kept.sounds.filter((_, other) => other !== index) })}
          />
        )}
        <label class="sr-only" for={`edit-${message.id}`}>
          Edit the message
        </label>
        <textarea
          id={`edit-${message.id}`}
          ref={area}
          rows={Math.min(12, draft.split("\n").length + 1)}
          value={draft}
          onInput={(event) => setDraft(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Escape") setDraft(null);
            if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit();
          }}
        />
        <div class="row end">
          <button type="button" class="button" onClick={() => setDraft(null)}>
            Cancel
          </button>
          <button type="button" class="button primary" onClick={submit} disabled={isRunning}>
            Send as a new branch
          </button>
        </div>
      </article>
    );
  }
  return (
    <article class="message user" aria-label="Your message">
      {message.pictures && <Pictures pictures={message.pictures} />}
      {message.sounds && <Sounds sounds={message.sounds} />}
      {message.content && <div class="bubble">{message.content}</div>}
      <div class="message-bar">
        <Branches {...props} />
        {message.content && <CopyButton text={message.content} label="Copy message" />}
        <button
          type="button"
          class="icon-button"
          aria-label="Edit message"
          title="Edit"
          disabled={isRunning}
          onClick={() => {
            setKept({ pictures: message.pictures ?? [], sounds: message.sounds ?? [] });
            setDraft(message.content);
          }}
        >
          <Edit />
        </button>
      </div>
    </article>
  );
}

function ToolResult({ message }: Props) {
  return (
    <article class="message tool" aria-label="Result of a tool">
      <details>
        <summary>Result of the tool</summary>
        <pre tabIndex={0}>{message.content}</pre>
      </details>
    </article>
  );
}

function Answer(props: Props) {
  const { message, isLast, isRunning } = props;
  const { content, reasoning, calls, error, end } = message;
  const isGrowing = isLast && isRunning;
  const isEmpty = !content && !reasoning && !calls?.length && !error;
  return (
    <article class="message answer" aria-label={`Answer of ${message.model}`} aria-busy={isGrowing}>
      {reasoning && (
        <details class="reasoning" open={isGrowing && !content}>
          <summary>{isGrowing && !content ? "Reasoning…" : "Reasoning"}</summary>
          <Markdown text={reasoning} />
        </details>
      )}
      {content && <Markdown text={content} />}
      {isGrowing && isEmpty && (
        <p class="waiting">
          <i />
          <i />
          <i />
          <span class="sr-only">The model reads the prompt.</span>
        </p>
      )}
      {calls?.length ? <Calls {...props} /> : null}
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      {!isGrowing && isEmpty && end !== "stopped" && <p class="quiet">The answer is empty.</p>}
      {!isGrowing && (
        <div class="message-bar">
          <Facts message={message} />
          <Branches {...props} />
          {content && <SpeakButton text={content} />}
          {content && <CopyButton text={content} label="Copy answer" />}
          <button
            type="button"
            class="icon-button"
            aria-label="Answer again"
            title="Answer again"
            disabled={isRunning}
            onClick={() => void retry(message)}
          >
            <Retry />
          </button>
        </div>
      )}
    </article>
  );
}

/** Device, speed and counts of an answer, as the server reports them. */
function Facts({ message }: { message: Message }) {
  const { timings, firstToken, end, model } = message;
  const facts: string[] = [];
  if (timings) {
    if (timings.predicted_per_second && timings.predicted_n > 1) facts.push(rate(timings.predicted_per_second));
    const first = timings.prompt_ms ?? firstToken;
    if (first !== undefined) facts.push(`first token ${duration(first)}`);
    facts.push(`${timings.predicted_n} tokens`);
    if (timings.cache_n) facts.push(`${timings.cache_n} of ${timings.cache_n + timings.prompt_n} prompt tokens cached`);
    if (timings.draft_n) facts.push(`${timings.draft_n_accepted} of ${timings.draft_n} drafts accepted`);
  }
  if (end === "stopped") facts.push("stopped");
  if (end === "length") facts.push("ended at the maximum length");
  return (
    <span class="facts">
      {timings && (
        <a class="device" data-kind={kindOf(timings.device)} href="#/proof" title={`${model}: where its nodes run`}>
          {deviceName(timings.device)}
        </a>
      )}
      <span>{facts.join(" · ")}</span>
    </span>
  );
}

/** The calls of an answer. The user enters the results, because this page runs no tools. */
function Calls({ message, isLast, isRunning }: Props) {
  const calls = message.calls ?? [];
  const [results, setResults] = useState<Record<string, string>>({});
  const isOpen = isLast && !isRunning;
  return (
    <div class="calls">
      {calls.map((call) => (
        <section key={call.id} class="call" aria-label={`Call of ${call.name}`}>
          <h3>
            <span class="quiet">calls</span> {call.name}
          </h3>
          <pre tabIndex={0}>{pretty(call.arguments)}</pre>
          {isOpen && (
            <label class="field">
              <span>Result</span>
              <textarea
                rows={2}
                value={results[call.id] ?? ""}
                onInput={(event) => setResults({ ...results, [call.id]: event.currentTarget.value })}
              />
            </label>
          )}
        </section>
      ))}
      {isOpen && (
        <button type="button" class="button primary" onClick={() => void sendResults(message, results)}>
          {calls.length > 1 ? "Send the results" : "Send the result"}
        </button>
      )}
    </div>
  );
}

function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
