/** The login: a key is exchanged for a cookie. */

import type { TargetedEvent, VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { type Identity, SandkastenError } from "sandkasten";
import { logIn } from "./daemon.js";
import { Failure } from "./components/failure.js";

export function Login({ done }: { done: (identity: Identity) => void }): VNode {
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    document.title = "Log in · Sandkasten";
    field.current?.focus();
  }, []);
  const submit = async (event: TargetedEvent<HTMLFormElement>): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      done(await logIn(field.current?.value.trim() ?? ""));
    } catch (problem) {
      setError(problem);
      setBusy(false);
      field.current?.select();
    }
  };
  return (
    <main class="alone">
      <form class="card login" onSubmit={submit}>
        <h1>
          <img src="/dashboard/icon.svg" alt="" width="28" height="28" /> Sandkasten
        </h1>
        <label for="key">API key</label>
        <input
          id="key"
          ref={field}
          type="password"
          autocomplete="current-password"
          spellcheck={false}
          required
        />
        {error !== undefined &&
          (error instanceof SandkastenError && error.code === "UNAUTHORIZED" ? (
            <div class="failure" role="alert">
              <p>This key is not valid for this daemon. Check that it was copied whole.</p>
            </div>
          ) : (
            <Failure error={error} />
          ))}
        <button class="primary" type="submit" disabled={busy}>
          Log in
        </button>
        <p class="hint">
          <code>sandkasten init</code> has made a key in <code>sandkasten.key</code>;{" "}
          <code>sandkasten key create --scope admin</code> makes another. This page does not keep it.
        </p>
      </form>
    </main>
  );
}
