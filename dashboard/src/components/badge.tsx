/** A state as a coloured word. */

import type { VNode } from "preact";

const GOOD = ["ready", "running", "completed", "succeeded", "allowed", "ok", "valid", "active"];
const BAD = ["failed", "lost", "killed", "refused", "error", "timed_out", "invalid", "revoked", "damaged", "missing"];
// The code of an error, such as UNAUTHORIZED.
const CODE = /^[A-Z_]+$/;
const WARN = ["paused", "creating", "stopping", "pending", "queued", "cancelled", "interrupted", "warning", "stopped", "expired", "in use", "full"];

interface BadgeProps {
  state: string;
  /** Default: that of the word. */
  kind?: "good" | "bad" | "warn";
}

export function Badge({ state, kind }: BadgeProps): VNode {
  const known = GOOD.includes(state)
    ? "good"
    : BAD.includes(state) || CODE.test(state)
      ? "bad"
      : WARN.includes(state)
        ? "warn"
        : "";
  return <span class={`badge ${kind ?? known}`}>{state.replaceAll("_", " ")}</span>;
}
