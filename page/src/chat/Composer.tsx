import { useLayoutEffect, useRef } from "preact/hooks";
import { Close, Microphone, Paperclip, Send, Stop } from "../icons";
import { current, preferredModel, send, stop } from "./chats";
import { cancel, canRecord, dictation, finish, seconds, transcriber } from "./dictation";
import { attach, attachments, filesOf, hearsSounds, refusal, seesPictures, speak, text } from "./draft";
import { type Attachments, NOTHING } from "./files";
import { Pictures } from "./PictureList";
import { Sounds } from "./SoundList";

/** The field for the next message, with its pictures, its sounds and the microphone. */
export function Composer({ isRunning }: { isRunning: boolean }) {
  const area = useRef<HTMLTextAreaElement>(null);
  const id = current.value?.id;
  const hasModel = Boolean(current.value?.model || preferredModel.value);
  const { pictures, sounds } = attachments.value;
  const isEmpty = !text.value.trim() && pictures.length === 0 && sounds.length === 0;
  const isBusy = dictation.value !== "off";
  useLayoutEffect(() => {
    // On a touch screen, the focus would open the keyboard.
    if (matchMedia("(hover: hover)").matches) area.current?.focus();
  }, [id]);
  useLayoutEffect(() => {
    const element = area.current!;
    element.style.height = "auto";
    element.style.height = `${Math.min(element.scrollHeight, 240)}px`;
  }, [text.value]);
  useLayoutEffect(() => {
    // The text of a recording is to be read and sent.
    if (!isBusy && text.value) area.current?.focus();
  }, [isBusy]);
  const submit = () => {
    if (isEmpty || isRunning || !hasModel || isBusy) return;
    const prompt = text.value.trim();
    text.value = "";
    attachments.value = NOTHING;
    refusal.value = "";
    void send(prompt, { pictures, sounds });
  };
  const keep = (kept: Partial<Attachments>) => {
    attachments.value = { pictures, sounds, ...kept };
    area.current?.focus();
  };
  return (
    <form
      class="composer"
      onKeyDown={(event) => {
        if (event.key === "Escape" && isBusy) cancel();
        else if (event.key === "Escape" && isRunning) stop();
      }}
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      {refusal.value && (
        <p class="error refusal" role="alert">
          {refusal.value}
        </p>
      )}
      <div class="composer-box">
        {pictures.length > 0 && (
          <Pictures
            pictures={pictures}
            remove={(index) => keep({ pictures: pictures.filter((_, other) => other !== index) })}
          />
        )}
        {sounds.length > 0 && (
          <Sounds sounds={sounds} remove={(index) => keep({ sounds: sounds.filter((_, other) => other !== index) })} />
        )}
        <div class="composer-row">
          {(seesPictures.value || hearsSounds.value || transcriber.value) && <AttachButton />}
          <label class="sr-only" for="prompt">
            Message
          </label>
          <textarea
            id="prompt"
            ref={area}
            rows={1}
            value={text.value}
            placeholder="Ask the model"
            onInput={(event) => {
              text.value = event.currentTarget.value;
              refusal.value = "";
            }}
            onPaste={(event) => {
              const files = filesOf(event.clipboardData);
              // A copied table has a text and a picture of it.
              if (files.length === 0 || event.clipboardData?.types.includes("text/plain")) return;
              event.preventDefault();
              void attach(files);
            }}
            onKeyDown={(event) => {
              if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
                event.preventDefault();
                if (dictation.value === "recording") finish();
                else submit();
              }
            }}
          />
          {transcriber.value && <MicrophoneButton />}
          {isRunning ? (
            // Without keys, the click that stops would end on the button that sends.
            <button key="stop" type="button" class="round stop" aria-label="Stop" title="Stop (Esc)" onClick={stop}>
              <Stop />
            </button>
          ) : (
            <button
              key="send"
              type="submit"
              class="round"
              aria-label="Send"
              title="Send (Enter)"
              disabled={isEmpty || !hasModel || isBusy}
            >
              <Send />
            </button>
          )}
        </div>
      </div>
    </form>
  );
}

/** A button that adds files: pictures if the model reads them, sounds if it reads them or another model transcribes them. */
function AttachButton() {
  const input = useRef<HTMLInputElement>(null);
  const [sees, hears] = [seesPictures.value, hearsSounds.value || Boolean(transcriber.value)];
  const sound = hearsSounds.value ? "Add a sound" : "Add the text of a sound";
  const label = sees ? (hears ? "Add pictures or a sound" : "Add pictures") : sound;
  return (
    <>
      <button
        type="button"
        class="icon-button"
        aria-label={label}
        title={label}
        disabled={dictation.value !== "off"}
        onClick={() => input.current?.click()}
      >
        <Paperclip />
      </button>
      <input
        ref={input}
        type="file"
        multiple
        accept={[...(sees ? ["image/*"] : []), ...(hears ? ["audio/*", "video/mp4", "video/webm"] : [])].join(",")}
        class="sr-only"
        tabIndex={-1}
        aria-label="Files for the message"
        onChange={(event) => {
          const files = [...(event.currentTarget.files ?? [])];
          event.currentTarget.value = "";
          void attach(files);
        }}
      />
    </>
  );
}

/** A button that records, and shows how long; or that the text of the recording is awaited. */
function MicrophoneButton() {
  const state = dictation.value;
  if (state === "transcribing") {
    return (
      <button type="button" class="icon-button recorder" title="Discard (Esc)" onClick={cancel}>
        <span>Transcribing…</span>
        <span class="sr-only">Discard the transcript</span>
        <Close />
      </button>
    );
  }
  if (state === "recording") {
    const time = `${Math.floor(seconds.value / 60)}:${String(seconds.value % 60).padStart(2, "0")}`;
    return (
      <button type="button" class="icon-button recorder" title="End (Enter)" onClick={finish}>
        <i class="pulse" />
        <span class="sr-only">End the recording of</span>
        <span>{time}</span>
        <Stop />
      </button>
    );
  }
  if (!canRecord) return null;
  return (
    <button
      type="button"
      class="icon-button"
      aria-label="Record what you say"
      title="Record what you say"
      onClick={() => state === "off" && void speak()}
    >
      <Microphone />
    </button>
  );
}
