/** The transcript of a run. Everything in it is text of a model or a sandbox. */

import type { VNode } from "preact";
import { useMemo, useState } from "preact/hooks";
import type { RunEvent } from "sandkasten";
import { counted, duration } from "../components/units.js";
import { address } from "../router.js";
import { type Item, itemsOf, type ToolUse } from "./transcript_items.js";

// More are drawn on request, so that a long run opens at once.
const DRAWN = 300;

interface TranscriptProps {
  events: readonly RunEvent[];
  dropped: number;
}

export function Transcript({ events, dropped }: TranscriptProps): VNode {
  const items = useMemo(() => itemsOf(events), [events]);
  const [all, setAll] = useState(false);
  const shown = all ? items : items.slice(-DRAWN);
  return (
    <section class="transcript" aria-label="Transcript">
      <h2>Transcript</h2>
      {dropped > 0 && <p class="muted">Not shown: the first {counted(dropped, "event")}.</p>}
      {shown.length < items.length && (
        <button type="button" onClick={() => setAll(true)}>
          Show {counted(items.length - shown.length, "earlier entry", "earlier entries")}
        </button>
      )}
      {items.length === 0 && <p class="muted">Nothing has happened yet.</p>}
      <ol>
        {shown.map((item) => (
          <li key={item.seq}>
            <Entry item={item} />
          </li>
        ))}
      </ol>
    </section>
  );
}

function Entry({ item }: { item: Item }): VNode {
  if (item.kind === "tool") {
    return <Tool use={item} />;
  }
  if (item.kind === "message") {
    return (
      <details class={`message ${roleOf(item.role)}`} open={item.role !== "system"}>
        <summary>{item.role}</summary>
        <pre tabIndex={0}>{item.text}</pre>
      </details>
    );
  }
  return (
    <p class={`note ${item.bad ? "bad" : ""}`}>
      {item.text}{" "}
      {item.runId !== undefined && <a href={address(["runs", item.runId])}>Open its run</a>}
    </p>
  );
}

function Tool({ use }: { use: ToolUse }): VNode {
  const state = use.answer === undefined ? "runs" : use.ok ? duration(use.ms) : "failed";
  return (
    <details class={`message tool ${use.ok ? "" : "bad"}`}>
      <summary>
        <span class="mono">{use.name}</span> <span class="muted">{state}</span>
        <span class="mono muted line">{use.input.slice(0, 300)}</span>
      </summary>
      {use.runId !== undefined && (
        <p>
          <a href={address(["runs", use.runId])}>Open the run of the agent</a>
        </p>
      )}
      <h3>Arguments</h3>
      <pre tabIndex={0}>{indented(use.input)}</pre>
      <h3>Answer</h3>
      <pre tabIndex={0}>{use.answer === undefined ? "It still runs." : indented(use.answer)}</pre>
    </details>
  );
}

function roleOf(role: string): string {
  return ["system", "user", "assistant"].includes(role) ? role : "";
}

/** Return JSON with line breaks; what is not JSON stays. */
export function indented(value: unknown): string {
  if (typeof value !== "string") {
    return JSON.stringify(value, null, 2) ?? "";
  }
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}
