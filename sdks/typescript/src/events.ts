/**
 * Server-sent events: the parser, and streams that survive lost connections.
 *
 * A command belongs to its sandbox, a run to its daemon; this only follows them. A lost connection
 * is reopened after the last event that arrived, so nothing is shown twice and nothing runs twice.
 */

import { type Connection, ConnectionLost, type HttpRequest, pieces } from "./connection.js";
import { bodyError } from "./error_bodies.js";
import { BackendUnavailable, ProtocolViolation } from "./generated/error_classes.js";
import { isRecord, type Json } from "./json.js";
import { Patience } from "./waiting.js";

// The last event holds all kept output, in base64 if it is not UTF-8. A string cannot be longer.
const MAX_EVENT_LENGTH = 256 << 20;
// A daemon sends something every 15 s, if only a sign that it lives.
const SILENCE_MS = 60_000;
export const EVENTS: Readonly<Record<string, string>> = { Accept: "text/event-stream" };

export interface ServerEvent {
  name: string;
  data: Json;
}

/** Parses text into events; comments and unused fields are dropped. */
export class EventParser {
  private readonly decoder = new TextDecoder();
  private rest: string[] = [];
  private name = "";
  private data: string[] = [];
  private length = 0;

  feed(bytes: Uint8Array): ServerEvent[] {
    const lines = this.decoder.decode(bytes, { stream: true }).split("\n");
    const found: ServerEvent[] = [];
    for (const [at, part] of lines.entries()) {
      this.rest.push(part);
      this.length += part.length;
      if (this.length > MAX_EVENT_LENGTH) {
        throw new ProtocolViolation("an event of the daemon is larger than any it sends");
      }
      if (at < lines.length - 1) {
        const event = this.line(this.rest.join("").replace(/\r$/, ""));
        this.rest = [];
        if (event !== undefined) {
          found.push(event);
        }
      }
    }
    return found;
  }

  private line(line: string): ServerEvent | undefined {
    if (line === "") {
      const { name, data } = this;
      this.name = "";
      this.data = [];
      this.length = 0;
      return data.length === 0 ? undefined : { name: name || "message", data: parsed(data) };
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") {
      this.name = value;
    } else if (field === "data") {
      this.data.push(value);
    }
    return undefined;
  }
}

/** Iterate over the events of one response. An `error` event is raised. */
export async function* events(
  response: Response,
  signal?: AbortSignal,
): AsyncGenerator<ServerEvent> {
  const parser = new EventParser();
  for await (const piece of pieces(response, SILENCE_MS, signal)) {
    for (const event of parser.feed(piece)) {
      if (event.name === "error") {
        throw bodyError(event.data);
      }
      yield event;
    }
  }
}

/** What is followed: the event of its items, how items and the end are decoded, and messages. */
export interface Followed<P extends { seq: number }, E> {
  piece: string;
  pieceOf: (data: Json) => P;
  endOf: (data: Json) => E;
  what: string;
  hint: string;
}

export type Item<P, E> = { piece: P; end?: never } | { end: E; piece?: never };

/** Yield items, then the end. `requestAfter(seq)` asks for what comes after `seq`. */
export async function* follow<P extends { seq: number }, E>(
  connection: Connection,
  requestAfter: (seq: number) => HttpRequest,
  followed: Followed<P, E>,
  since = 0,
  signal?: AbortSignal,
): AsyncGenerator<Item<P, E>> {
  const patience = new Patience();
  let seen = since;
  for (;;) {
    let cause: unknown;
    try {
      const response = await connection.stream({ ...requestAfter(seen), signal });
      patience.there();
      for await (const event of events(response, signal)) {
        if (event.name === followed.piece) {
          const piece = followed.pieceOf(event.data);
          if (piece.seq > seen) {
            seen = piece.seq;
            yield { piece };
          }
        } else if (event.name === "done") {
          yield { end: followed.endOf(event.data) };
          return;
        }
      }
    } catch (error) {
      if (!isAway(error, patience)) {
        throw error;
      }
      cause = error;
    }
    const what = `the connection broke while ${followed.what} was being followed`;
    await patience.wait(what, followed.hint, cause, signal);
  }
}

/** Return whether an error means that a known daemon is unreachable. */
export function isAway(error: unknown, patience: Patience): boolean {
  return (
    error instanceof ConnectionLost || (error instanceof BackendUnavailable && patience.reached)
  );
}

function parsed(lines: string[]): Json {
  try {
    const found: unknown = JSON.parse(lines.join("\n"));
    if (isRecord(found)) {
      return found;
    }
  } catch {
    // See below.
  }
  throw new ProtocolViolation("an event of the daemon is not JSON");
}
