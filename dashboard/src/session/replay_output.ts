/** Output of a command of the past: with its times if it was recorded, else what is kept. */

import { type ExecPast, SandkastenError, type SessionReplay } from "sandkasten";
import { bytes } from "../components/units.js";

export interface Piece {
  /** Seconds since the command started. */
  at: number;
  text: string;
  /** The terminal got this size, before the text. */
  size?: Size;
}

export interface Size {
  rows: number;
  cols: number;
}

export interface PastOutput {
  pieces: readonly Piece[];
  size: Size;
  /** A program drew it: it has more than lines of text. */
  drawn: boolean;
  /** Its lines end as on a terminal. */
  terminal: boolean;
  /** What is missing, and why. */
  notes: readonly string[];
}

const USUAL: Size = { rows: 24, cols: 80 };
const LARGEST: Size = { rows: 200, cols: 500 };

/** Return the output of a command. `recorded` has the ids of the commands with a recording. */
export async function pastOutput(
  replay: SessionReplay,
  command: ExecPast,
  recorded: ReadonlySet<string>,
): Promise<PastOutput> {
  const written = command.stdoutBytes + command.stderrBytes;
  if (recorded.has(command.execId)) {
    const found = parsedRecording(await replay.recording(command.execId));
    return withNotes(found.pieces, found.size, [...found.notes, ...missing(found.pieces, written, "recorded")]);
  }
  const kept = command.outputKept ? await keptOutput(replay, command.execId) : undefined;
  if (kept !== undefined) {
    const pieces = kept === "" ? [] : [{ at: 0, text: kept }];
    const notes = pieces.length > 0 ? ["Not recorded: the sandbox kept this output, without its times."] : [];
    return withNotes(pieces, USUAL, [...notes, ...missing(pieces, written, "kept")]);
  }
  const lost = `Its output (${bytes(written)}) was not recorded, and the sandbox keeps none of it.`;
  return withNotes([], USUAL, written > 0 ? [lost] : []);
}

/** Read an asciicast v2 file. A line that the daemon has not written whole is left out. */
export function parsedRecording(cast: string): Pick<PastOutput, "pieces" | "size" | "notes"> {
  const [head = "", ...lines] = cast.split("\n");
  const header = parsed(head) as { width?: unknown; height?: unknown } | undefined;
  const size = sizeOf(header?.height, header?.width);
  const pieces: Piece[] = [];
  const notes: string[] = [];
  for (const line of lines) {
    const event = parsed(line);
    if (!Array.isArray(event) || typeof event[0] !== "number" || typeof event[2] !== "string") {
      continue;
    }
    const [at, code, text] = event as [number, unknown, string];
    if (code === "o") {
      pieces.push({ at, text });
    } else if (code === "r") {
      const [cols, rows] = text.split("x");
      pieces.push({ at, text: "", size: sizeOf(Number(rows), Number(cols)) });
    } else if (code === "m") {
      notes.push(`Then ${text}; what came later is missing.`);
    }
  }
  return { pieces, size, notes };
}

function withNotes(pieces: readonly Piece[], size: Size, notes: readonly string[]): PastOutput {
  const terminal = pieces.some(({ text }) => text.includes("\r\n"));
  // eslint-disable-next-line no-control-regex
  const drawn = pieces.some(({ text }) => /[\x1b\x08]|\r(?!\n)/.test(text));
  return { pieces, size, drawn, terminal, notes };
}

function missing(pieces: readonly Piece[], written: number, how: string): string[] {
  const encoder = new TextEncoder();
  const found = pieces.reduce((sum, { text }) => sum + encoder.encode(text).length, 0);
  return found < written ? [`Only ${bytes(found)} of ${bytes(written)} were ${how}.`] : [];
}

async function keptOutput(replay: SessionReplay, execId: string): Promise<string | undefined> {
  try {
    return (await replay.output(execId)).map(({ text }) => text).join("");
  } catch (error) {
    if (error instanceof SandkastenError && error.code !== "UNAUTHORIZED") {
      // The sandbox has ended, or has forgotten it.
      return undefined;
    }
    throw error;
  }
}

function sizeOf(rows: unknown, cols: unknown): Size {
  const within = (value: unknown, usual: number, most: number): number =>
    typeof value === "number" && value >= 1 ? Math.min(Math.floor(value), most) : usual;
  return {
    rows: within(rows, USUAL.rows, LARGEST.rows),
    cols: within(cols, USUAL.cols, LARGEST.cols),
  };
}

function parsed(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}
