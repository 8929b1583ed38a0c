/** A row of the history as people read it: a command, a code cell, or the kernel of cells. */

import type { ExecPast } from "sandkasten";
import { daemon } from "../daemon.js";
import { parsedRecording } from "./replay_output.js";

const SIGHUP = 1;

export type PastRow = ExecPast & {
  /** `command`, `cell` or `kernel`; undefined from an older daemon. */
  kind?: string;
  /** Of a cell or a kernel. */
  language?: string | null;
  contextId?: string | null;
  /** The exception of a cell, or why it did not run. */
  errorName?: string | null;
};

export function isCommand({ kind }: PastRow): boolean {
  return kind === undefined || kind === "command";
}

/** Return what ran, in one line. */
export function titleOf(row: PastRow): string {
  if (row.command === null || row.command === "") {
    return "a command that was not recorded";
  }
  const [first = "", ...others] = row.command.trim().split("\n");
  return others.length > 0 ? `${first} …` : first;
}

/** Whether it is a shell alone whose terminal was closed: nothing failed, and nothing was cut off. */
export function wasClosed(row: PastRow): boolean {
  const shell = /^(?:\/\S*\/)?(?:ba|da|a|z|k|fi)?sh$/.test(row.command ?? "");
  return isCommand(row) && shell && row.shell === null && row.status === "killed" && row.signal === SIGHUP;
}

/** Return the peak of its memory; null if it is not known, which an old row has as 0. */
export function peakMemory({ usage }: PastRow): number | null {
  return usage.peakMemoryBytes || null;
}

/** Return how it ended, for a badge: an exit status that is not 0 is a failure. */
export function resultOf(row: PastRow): { state: string; kind?: "bad" } {
  const { status, exitCode, signal, errorName } = row;
  if (status === "error" && typeof errorName === "string") {
    return { state: errorName, kind: "bad" };
  }
  if (status !== "completed") {
    return { state: wasClosed(row) ? "closed" : status };
  }
  if (signal !== null) {
    return { state: `signal ${signal}`, kind: "bad" };
  }
  return exitCode === null || exitCode === 0
    ? { state: status }
    : { state: `exit ${exitCode}`, kind: "bad" };
}

/** Return what a recording of a row says, as text; undefined if there is none. */
export async function recordedText(
  sessionId: string,
  execId: string,
  signal: AbortSignal,
): Promise<string | undefined> {
  const replay = daemon().replay(sessionId);
  const recordings = await replay.recordings({ signal });
  if (!recordings.some((one) => one.execId === execId)) {
    return undefined;
  }
  const { pieces } = parsedRecording(await replay.recording(execId));
  return pieces.map(({ text }) => text).join("");
}
