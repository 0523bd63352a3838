import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, key, keyDemand, messageFor, setKey } from "./api";
import { pollNow, refreshModels } from "./server";

/** Asks for the key of the server. */
export function KeyDialog() {
  const demand = keyDemand.value;
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [failure, setFailure] = useState("");
  useEffect(() => {
    if (demand !== "none" && !dialog.current!.open) dialog.current!.showModal();
    if (demand === "none" && dialog.current!.open) dialog.current!.close();
  }, [demand]);
  const submit = async () => {
    setKey(text.trim());
    setText("");
    setFailure("");
    try {
      await refreshModels();
      keyDemand.value = "none";
      await pollNow();
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 401)) setFailure(messageFor(error));
    }
  };
  const isWrong = demand === "wrong";
  return (
    <dialog ref={dialog} class="key-dialog" aria-labelledby="key-title" onCancel={(event) => event.preventDefault()}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (text.trim()) void submit();
        }}
      >
        <h2 id="key-title">This server needs a key</h2>
        <p>
          <code>narthex key add NAME</code> creates one. This tab keeps it until it is closed, and sends it to this
          server alone.
        </p>
        <label class="field">
          <span>Key</span>
          <input
            type="password"
            autocomplete="off"
            autofocus
            value={text}
            aria-invalid={isWrong}
            aria-describedby={isWrong ? "key-error" : undefined}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
        {((isWrong && key.value) || failure) && (
          <p class="error" id="key-error" role="alert">
            {failure || "The server does not know this key."}
          </p>
        )}
        <div class="row end">
          <button type="submit" class="button primary" disabled={!text.trim()}>
            Use the key
          </button>
        </div>
      </form>
    </dialog>
  );
}
