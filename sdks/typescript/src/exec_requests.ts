/** Commands of a session over HTTP: one method, one request. */

import { type CallOptions, type Command, dataOf, type ExecOptions } from "./commands.js";
import type { Signal, StartOptions } from "./commands.js";
import { ANSWER_MS, type Connection, given, type HttpRequest, sessionPath } from "./connection.js";
import { EVENTS, follow, type Followed, type Item } from "./events.js";
import { Conflict, ExecNotFound, InvalidRequest, SandboxLost } from "./generated/error_classes.js";
import type { Chunk, ExecAnswer } from "./generated/schema.js";
import { decoded, encoded, inputFields, type Json, randomHex } from "./json.js";

// The longest a command may run by the public contract; the daemon ends it, not we.
const LONGEST_EXEC_MS = 86_400_000;
const SLACK_MS = 60_000;
// Base64 makes it a third longer, and a daemon accepts JSON of 16 MB unless its operator sets less.
const LARGE_STDIN = 4 << 20;

const COMMAND: Followed<Chunk, ExecAnswer> = {
  piece: "chunk",
  pieceOf: (data) => decoded("Chunk", data),
  endOf: (data) => decoded("ExecAnswer", data),
  what: "a command",
  hint: "the command goes on; ask for it by its exec id",
};

/** The commands of one session: one method, one request. */
export class Commands {
  constructor(
    private readonly connection: Connection,
    private readonly sessionId: string,
  ) {}

  async run(command: Command, options: ExecOptions): Promise<ExecAnswer> {
    if (isLarge(options.stdin)) {
      return this.runLarge(command, options);
    }
    const answerMs = (options.timeoutMs ?? LONGEST_EXEC_MS) + SLACK_MS;
    const request = this.request("exec", command, options, { answerMs });
    return decoded("ExecAnswer", await this.connection.ask(request));
  }

  stream(command: Command, options: ExecOptions): AsyncGenerator<Item<Chunk, ExecAnswer>> {
    if (isLarge(options.stdin)) {
      return this.streamLarge(command, options);
    }
    // Asked again under the same key, the daemon shows the same command from its beginning.
    const request = this.request("exec/stream", command, options, { answerMs: null });
    return follow(this.connection, () => request, COMMAND, 0, options.signal);
  }

  async start(command: Command, options: StartOptions): Promise<ExecAnswer> {
    const { stdin } = options;
    const large = isLarge(stdin);
    const more = { background: true, keep_stdin_open: large || options.keepStdinOpen === true };
    const request = this.request(
      "exec",
      command,
      { ...options, stdin: large ? undefined : stdin },
      { answerMs: ANSWER_MS },
      more,
    );
    const begun = decoded("ExecAnswer", await this.connection.ask(request));
    if (large) {
      await this.feed(begun.execId, options);
    }
    return begun;
  }

  async get(execId: string, waitSeconds: number, options: CallOptions): Promise<ExecAnswer> {
    const request: HttpRequest = {
      method: "GET",
      path: this.path(execId),
      query: { wait_seconds: waitSeconds || undefined },
      repeatable: true,
      answerMs: waitSeconds * 1000 + SLACK_MS,
      signal: options.signal,
    };
    return decoded("ExecAnswer", await this.connection.ask(request));
  }

  followed(
    execId: string,
    sinceSeq: number,
    options: CallOptions,
  ): AsyncGenerator<Item<Chunk, ExecAnswer>> {
    const path = this.path(execId, "output");
    const after = (seq: number): HttpRequest => ({
      method: "GET",
      path,
      query: { since_seq: seq },
      headers: EVENTS,
      repeatable: true,
      answerMs: null,
    });
    return follow(this.connection, after, COMMAND, sinceSeq, options.signal);
  }

  async *kept(
    execId: string,
    sinceSeq: number,
    options: CallOptions,
  ): AsyncGenerator<Item<Chunk, ExecAnswer>> {
    for (let since = sinceSeq; ; ) {
      const request: HttpRequest = {
        method: "GET",
        path: this.path(execId, "output"),
        query: { since_seq: since },
        repeatable: true,
        signal: options.signal,
      };
      const page = decoded("OutputPage", await this.connection.ask(request));
      for (const piece of page.chunks) {
        yield { piece };
      }
      const last = page.chunks.at(-1);
      // A page may be full before the kept output ends.
      if (last === undefined || last.seq >= page.lastSeq) {
        yield { end: page };
        return;
      }
      since = last.seq;
    }
  }

  async signal(execId: string, signal: Signal, options: CallOptions): Promise<void> {
    await this.post(this.path(execId, "signal"), { signal }, ANSWER_MS, options);
  }

  async stdin(
    execId: string,
    data: string | Uint8Array | undefined,
    close: boolean,
    options: CallOptions,
  ): Promise<void> {
    const body = { ...inputFields("data", data), close };
    // A program reads its stdin when it likes.
    await this.post(this.path(execId, "stdin"), body, LONGEST_EXEC_MS, options);
  }

  async closeShell(name: string, options: CallOptions): Promise<void> {
    await this.connection.ask({
      method: "DELETE",
      path: sessionPath(this.sessionId, `shells/${encodeURIComponent(name)}`),
      signal: options.signal,
    });
  }

  // ---- a stdin that is too large for one JSON body

  private async runLarge(command: Command, options: ExecOptions): Promise<ExecAnswer> {
    const parts: Chunk[] = [];
    for await (const item of this.streamLarge(command, options)) {
      if (item.end !== undefined) {
        return options.rawOutput === true ? withOutput(item.end, parts) : item.end;
      }
      if (options.rawOutput === true) {
        parts.push(item.piece as Chunk);
      }
    }
    throw new SandboxLost("the end of the command is unknown", { hint: "check info()" });
  }

  private async *streamLarge(
    command: Command,
    options: ExecOptions,
  ): AsyncGenerator<Item<Chunk, ExecAnswer>> {
    // In the background a string would run beside the session's shell, and without a deadline.
    const inShell = typeof command === "string" && (options.user ?? null) === null;
    const body = given({
      keep_stdin_open: true,
      background: true,
      stateful: options.stateful ?? (inShell ? true : undefined),
      timeout_ms: await this.timeoutMs(options),
    });
    const plain = { ...options, stdin: undefined };
    const request = this.request("exec", command, plain, { answerMs: ANSWER_MS }, body);
    const { execId } = decoded("ExecAnswer", await this.connection.ask(request));
    const ending = new AbortController();
    const failed: { error?: unknown } = {};
    const feeding = this.feed(execId, { ...options, signal: ending.signal }).catch((error) => {
      failed.error = error;
    });
    try {
      for await (const item of this.followed(execId, 0, options)) {
        if (failed.error !== undefined) {
          throw failed.error;
        }
        yield item;
      }
    } finally {
      ending.abort();
      await feeding;
    }
  }

  private async timeoutMs(options: ExecOptions): Promise<number | undefined> {
    const session = await this.connection.ask({
      method: "GET",
      path: sessionPath(this.sessionId),
      repeatable: true,
      signal: options.signal,
    });
    const limits = decoded("SessionInfo", session).limits;
    const seconds = options.timeoutMs ? options.timeoutMs / 1000 : limits["exec_timeout_seconds"];
    const most = limits["max_exec_timeout_seconds"];
    if (seconds !== undefined && most !== undefined && seconds > most) {
      throw new InvalidRequest(
        `a timeout of ${seconds} s is over max_exec_timeout_seconds (${most})`,
        { hint: "lower it, or start the command in the background" },
      );
    }
    return seconds === undefined ? undefined : seconds * 1000;
  }

  private async feed(execId: string, options: StartOptions): Promise<void> {
    const { stdin } = options;
    const data = typeof stdin === "string" ? new TextEncoder().encode(stdin) : stdin;
    try {
      for (let at = 0; data !== undefined && at < data.length; at += LARGE_STDIN) {
        await this.connection.ask({
          method: "POST",
          path: this.path(execId, "stdin"),
          body: data.subarray(at, at + LARGE_STDIN),
          headers: { "Content-Type": "application/octet-stream" },
          answerMs: LONGEST_EXEC_MS,
          signal: options.signal,
        });
      }
      if (options.keepStdinOpen !== true) {
        await this.stdin(execId, undefined, true, options);
      }
    } catch (error) {
      // It ended, or closed its input.
      if (!(error instanceof Conflict || error instanceof ExecNotFound)) {
        throw error;
      }
    }
  }

  // ---- below

  private request(
    verb: string,
    command: Command,
    options: ExecOptions,
    request: Partial<HttpRequest>,
    more: Json = {},
  ): HttpRequest {
    const { signal, stdin, idempotencyKey, keepStdinOpen: _, ...rest } = options as StartOptions;
    const { check: __, ...fields } = rest as typeof rest & { check?: boolean };
    const body = {
      ...encoded("ExecBody", fields),
      ...inputFields("stdin", stdin),
      ...more,
      cmd: command,
      // One for every command, so that a broken connection can be asked again and runs nothing
      // twice.
      idempotency_key: idempotencyKey ?? `auto-${randomHex(12)}`,
    };
    return {
      method: "POST",
      path: sessionPath(this.sessionId, verb),
      json: body,
      repeatable: true,
      signal,
      ...request,
    };
  }

  private async post(
    path: string,
    json: Json,
    answerMs: number,
    options: CallOptions,
  ): Promise<void> {
    await this.connection.ask({ method: "POST", path, json, answerMs, signal: options.signal });
  }

  private path(execId: string, verb = ""): string {
    const base = sessionPath(this.sessionId, `execs/${encodeURIComponent(execId)}`);
    return verb === "" ? base : `${base}/${verb}`;
  }
}

function isLarge(stdin: string | Uint8Array | undefined): boolean {
  return stdin !== undefined && stdin.length > LARGE_STDIN;
}

function withOutput(answer: ExecAnswer, chunks: Chunk[]): ExecAnswer {
  const joined = (wanted: (one: Chunk) => boolean, name: string): Json => {
    const parts = chunks.filter(wanted).map(dataOf);
    const data = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) {
      data.set(part, at);
      at += part.length;
    }
    const fields = inputFields(name, data);
    const text = new TextDecoder().decode(data);
    return { [name]: text, [`${name}B64`]: fields[`${name}_b64`] ?? null };
  };
  return {
    ...answer,
    ...joined((one) => one.stream !== "stderr", "stdout"),
    ...joined((one) => one.stream === "stderr", "stderr"),
    ...joined(() => true, "output"),
  };
}
