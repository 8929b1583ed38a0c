/** An error of the daemon: what went wrong, and what to do. */

import type { VNode } from "preact";
import { useEffect } from "preact/hooks";
import { SandkastenError } from "sandkasten";

/** Tell the page that the login has ended. */
export function announceLogout(): void {
  dispatchEvent(new Event("sandkasten:logged-out"));
}

export function Failure({ error, dismiss }: { error: unknown; dismiss?: () => void }): VNode {
  const known = error instanceof SandkastenError ? error : undefined;
  useEffect(() => {
    if (known?.code === "UNAUTHORIZED") {
      announceLogout();
    }
  }, [known]);
  return (
    <div class="failure" role="alert">
      <p>
        <strong>{known?.code ?? "Error"}</strong>{" "}
        {error instanceof Error ? error.message : String(error)}
      </p>
      {known !== undefined && known.hint !== "" && <p class="hint">{known.hint}</p>}
      {dismiss !== undefined && (
        <button type="button" onClick={dismiss}>
          Dismiss
        </button>
      )}
    </div>
  );
}
