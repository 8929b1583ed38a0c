/**
 * Terminals and TCP connections of a sandbox over WebSockets.
 *
 * A terminal survives a lost connection: it is reopened after the last byte that arrived.
 */

import { type CallOptions, ExecResult, type Signal } from "./commands.js";
import { type Connection, sessionPath } from "./connection.js";
import { bodyError } from "./error_bodies.js";
import { BackendUnavailable, InvalidRequest, ProtocolViolation } from "./generated/error_classes.js";
import { decoded, isRecord, type Json } from "./json.js";
import type { Socket } from "./runtime.js";
import { Patience, within } from "./waiting.js";

const HELLO_MS = 30_000;
// How long a program may take to end when its terminal is closed; the daemon kills it before.
const HANG_UP_MS = 5_000;
// The size of one message; the daemon accepts up to 16 MiB.
const PIECE = 1 << 20;
const END = "end";

export interface TerminalOptions extends CallOptions {
  /** The program; by default a login shell. */
  command?: string | readonly string[] | undefined;
  rows?: number | undefined;
  cols?: number | undefined;
  env?: Record<string, string> | undefined;
  cwd?: string | undefined;
  /** The `execId` of a terminal that was left by `detach`, to return to it. */
  execId?: string | undefined;
  /** With `execId`: the number of bytes that were seen, so that the rest follows. */
  offset?: number | undefined;
  /** How long it lives without a client. */
  keepSeconds?: number | undefined;
}

/** A program on its own terminal. Iterate it to read what it shows. */
export class Terminal implements AsyncIterable<Uint8Array>, AsyncDisposable {
  /** The id of its command. */
  execId: string = "";
  private socket: Socket | undefined;
  private joining: Promise<void> | undefined;
  private seen: number;
  private ended: ExecResult | undefined;
  private closed = false;
  private readonly patience = new Patience();

  private constructor(
    private readonly connection: Connection,
    private readonly sessionId: string,
    private rows: number,
    private cols: number,
    private readonly options: TerminalOptions,
  ) {
    this.seen = options.offset ?? 0;
  }

  /** Made by `terminal` of a session. */
  static async open(
    connection: Connection,
    sessionId: string,
    options: TerminalOptions,
  ): Promise<Terminal> {
    const { rows = 24, cols = 80, execId, command, env } = options;
    const made = new Terminal(connection, sessionId, rows, cols, options);
    const words = typeof command === "string" ? ["/bin/sh", "-c", command] : command;
    await made.join(
      execId === undefined
        ? {
            command: words === undefined ? undefined : JSON.stringify(words),
            env: env === undefined ? undefined : JSON.stringify(env),
            cwd: options.cwd,
          }
        : { exec_id: execId, offset: made.seen },
    );
    return made;
  }

  /** The number of bytes that were received, for a later return with `execId`. */
  get offset(): number {
    return this.seen;
  }

  /** Send input. */
  async send(data: string | Uint8Array): Promise<void> {
    await this.say(typeof data === "string" ? new TextEncoder().encode(data) : data);
  }

  async resize(rows: number, cols: number): Promise<void> {
    this.rows = rows;
    this.cols = cols;
    await this.say(JSON.stringify({ type: "resize", rows, cols }));
  }

  async signal(signal: Signal): Promise<void> {
    await this.say(JSON.stringify({ type: "signal", signal }));
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    while (this.ended === undefined) {
      const { socket } = this;
      if (socket === undefined || this.closed) {
        throw closed();
      }
      const message = await socket.receive();
      this.options.signal?.throwIfAborted();
      if (message === null) {
        if (this.closed) {
          return;
        }
        await this.rejoin(socket);
      } else if (typeof message === "string") {
        this.hear(told(message));
      } else {
        this.seen += message.length;
        yield message;
      }
    }
  }

  /** Wait for the program to end and return its result; the rest of its output is dropped. */
  async result(): Promise<ExecResult> {
    for await (const _ of this) {
      // Dropped.
    }
    if (this.ended === undefined) {
      throw closed();
    }
    return this.ended;
  }

  /** Leave without ending the program; `terminal({execId, offset})` returns to it. */
  detach(): string {
    this.closed = true;
    this.socket?.close();
    return this.execId;
  }

  /** Hang up, as closing a window does, unless it has ended. */
  async close(): Promise<void> {
    const { socket } = this;
    if (socket === undefined || this.closed) {
      return;
    }
    this.closed = true;
    try {
      await within(this.hangUp(socket), HANG_UP_MS, () => new Error("it does not end"));
    } catch {
      // The connection may close while we send the close frame.
    }
    socket.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  private async hangUp(socket: Socket): Promise<void> {
    if (this.ended === undefined) {
      await socket.send('{"type":"close"}');
    }
    while (this.ended === undefined) {
      const message = await socket.receive();
      if (message === null) {
        return;
      }
      if (typeof message === "string") {
        this.hear(told(message));
      }
    }
  }

  private async join(more: Record<string, string | number | undefined>): Promise<void> {
    const { signal, keepSeconds } = this.options;
    const socket = await this.connection.socket(
      sessionPath(this.sessionId, "pty"),
      { rows: this.rows, cols: this.cols, keep_seconds: keepSeconds, ...more },
      sessionPath(this.sessionId),
      signal,
    );
    try {
      const late = (): Error => new BackendUnavailable("the daemon did not open the terminal");
      const hello = await within(socket.receive(), HELLO_MS, late);
      const first = typeof hello === "string" ? told(hello) : undefined;
      const execId = first?.["exec_id"];
      if (first?.["type"] !== "started" || typeof execId !== "string") {
        throw hello === null
          ? new BackendUnavailable("the connection to the terminal broke")
          : new ProtocolViolation("the daemon did not say which terminal it opened");
      }
      this.execId = execId;
    } catch (error) {
      socket.close();
      throw error;
    }
    this.socket = socket;
    this.patience.there();
    signal?.addEventListener("abort", () => socket.close(), { once: true });
  }

  private hear(message: Json): void {
    if (message["type"] === "exit") {
      this.ended = new ExecResult(decoded("ExecAnswer", message));
    } else if (message["type"] === "gap") {
      this.seen += Number(message["bytes"]) || 0;
    }
  }

  private async say(message: Uint8Array | string): Promise<void> {
    while (this.ended === undefined) {
      const { socket } = this;
      if (socket === undefined || this.closed) {
        throw closed();
      }
      try {
        await socket.send(message);
        return;
      } catch {
        await this.rejoin(socket);
      }
    }
  }

  /** Reconnect once, also if a reader and a writer both lost the connection. */
  private async rejoin(broken: Socket): Promise<void> {
    this.options.signal?.throwIfAborted();
    if (this.socket !== broken) {
      return;
    }
    this.joining ??= this.reopened().finally(() => {
      this.joining = undefined;
    });
    await this.joining;
  }

  private async reopened(): Promise<void> {
    let cause: unknown;
    for (;;) {
      const what = "the connection to the terminal broke";
      const { signal } = this.options;
      await this.patience.wait(what, "the daemon may be gone", cause, signal);
      try {
        await this.join({ exec_id: this.execId, offset: this.seen });
        return;
      } catch (error) {
        if (!(error instanceof BackendUnavailable)) {
          throw error;
        }
        cause = error;
      }
    }
  }
}

/** A TCP connection to a server inside. Iterate it to read what the server sends. */
export class PortConnection implements AsyncIterable<Uint8Array>, AsyncDisposable {
  private constructor(private readonly socket: Socket) {}

  /** Made by `connect` of a session. */
  static async open(
    connection: Connection,
    sessionId: string,
    port: number,
    options: CallOptions,
  ): Promise<PortConnection> {
    const path = sessionPath(sessionId, `tunnels/${port}`);
    const question = sessionPath(sessionId);
    return new PortConnection(await connection.socket(path, {}, question, options.signal));
  }

  async send(data: string | Uint8Array): Promise<void> {
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
    try {
      for (let at = 0; at < bytes.length; at += PIECE) {
        await this.socket.send(bytes.subarray(at, at + PIECE));
      }
    } catch (error) {
      throw portLost(error);
    }
  }

  /** Close our side. The server's answer can still be read. */
  async end(): Promise<void> {
    try {
      await this.socket.send(END);
    } catch (error) {
      throw portLost(error);
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    for (;;) {
      const message = await this.socket.receive();
      if (message === END) {
        return;
      }
      if (message === null || typeof message === "string") {
        throw portLost(undefined);
      }
      yield message;
    }
  }

  close(): void {
    this.socket.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }
}

/** Decode a text message; throw the error that it reports. */
function told(message: string): Json {
  let found: unknown;
  try {
    found = JSON.parse(message);
  } catch {
    found = undefined;
  }
  if (!isRecord(found)) {
    throw new ProtocolViolation("a message of the daemon is not JSON");
  }
  if (found["type"] === "error") {
    throw bodyError(found);
  }
  return found;
}

function closed(): InvalidRequest {
  return new InvalidRequest("the terminal is closed", { hint: "open another one" });
}

function portLost(cause: unknown): BackendUnavailable {
  return new BackendUnavailable("the connection to the port was lost", {
    hint: "the sandbox, its server or the daemon may have ended",
    cause,
  });
}
