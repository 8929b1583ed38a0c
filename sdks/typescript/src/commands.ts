/** Results of commands, and commands while they run: followed, or in the background. */

import type { Item } from "./events.js";
import type { Commands } from "./exec_requests.js";
import { CommandTimeout, InvalidRequest, SandboxLost } from "./generated/error_classes.js";
import type { Chunk, ExecAnswer, ExecBody } from "./generated/schema.js";
import { fromBase64 } from "./json.js";

// One question to the daemon waits at most this long; a longer wait asks again.
const WAIT_SLICE_S = 300;

/** A string goes to the persistent shell; a list is a fresh process. */
export type Command = string | readonly string[];

/** A signal: 15, "TERM" or "SIGTERM". */
export type Signal = number | string;

/** What every call takes. */
export interface CallOptions {
  /** Aborting stops the request. It never stops what the daemon already does. */
  signal?: AbortSignal | undefined;
}

/** How a command runs. */
export interface ExecOptions
  extends CallOptions,
    Pick<
      ExecBody,
      | "cwd"
      | "env"
      | "timeoutMs"
      | "shell"
      | "stateful"
      | "pty"
      | "user"
      | "maxOutputBytes"
      | "rawOutput"
      | "idempotencyKey"
    > {
  stdin?: string | Uint8Array | undefined;
}

export interface StartOptions extends ExecOptions {
  /** Leave its stdin open for `writeStdin`. */
  keepStdinOpen?: boolean | undefined;
}

/** Raised by `check` for a command that ran and failed. It is not an error of Sandkasten. */
export class CommandFailed extends Error {
  constructor(readonly result: ExecResult) {
    const how =
      Number.isNaN(result.exitCode)
        ? `was ended by signal ${result.signal}`
        : `ended with exit status ${result.exitCode}`;
    super(`the command ${how}: ${result.stderr.trim().slice(-500)}`);
    this.name = "CommandFailed";
  }
}

export interface ExecResult extends Omit<ExecAnswer, "exitCode"> {
  /**
   * The exit code; NaN if there is none: a signal ended the command, it still runs, or its end is
   * unknown. NaN equals nothing, so an unknown end is never taken for success; in JSON it is null.
   */
  exitCode: number;
}

/** How a command ended, or that it still runs. A failed command is a result, not an error. */
export class ExecResult {
  /** Made by the methods that run commands. */
  constructor(answer: ExecAnswer) {
    Object.assign(this, answer, { exitCode: answer.exitCode ?? Number.NaN });
  }

  /** Whether it ended by itself with exit status 0. */
  get ok(): boolean {
    return this.status === "completed" && this.exitCode === 0;
  }

  get running(): boolean {
    return this.status === "running";
  }

  /** What a shell would put in `$?`: the exit code, or 128 + the signal; null if neither is known. */
  get exitStatus(): number | null {
    if (!Number.isNaN(this.exitCode)) {
      return this.exitCode;
    }
    return this.signal === null ? null : 128 + this.signal;
  }

  /** The bytes of its stdout, also if they are not UTF-8. */
  get stdoutData(): Uint8Array {
    return bytesOf(this.stdout, this.stdoutB64);
  }

  /** The bytes of its stderr, also if they are not UTF-8. */
  get stderrData(): Uint8Array {
    return bytesOf(this.stderr, this.stderrB64);
  }

  /** The bytes of both streams in order of arrival. */
  get outputData(): Uint8Array {
    return bytesOf(this.output, this.outputB64);
  }

  /**
   * Return itself when `ok`; otherwise throw.
   *
   * CommandTimeout when the deadline ended it, SandboxLost when its end is unknown, and
   * CommandFailed when it ran and failed.
   */
  check(): this {
    if (this.ok) {
      return this;
    }
    if (this.timedOut) {
      throw new CommandTimeout(`the command timed out after ${this.durationMs} ms`, {
        hint: "give it a longer timeout, or start it in the background",
        details: { exec_id: this.execId },
      });
    }
    if (this.exitStatus === null) {
      throw new SandboxLost(`the end of the command is unknown (status ${this.status})`, {
        hint: "the sandbox may be lost; check its status with info()",
        details: { exec_id: this.execId },
      });
    }
    throw new CommandFailed(this);
  }
}

/** A piece of output. */
export interface Output {
  seq: number;
  /** `stdout`, `stderr` or `pty`. */
  stream: string;
  data: Uint8Array;
  /** `data` decoded; a character cut in two by a chunk's end comes whole in the next one. */
  text: string;
  /** Bytes that were written before it and not kept. */
  gapBytes: number;
}

/** Output of one command as it comes; `result` is set when iteration has ended. */
export class ExecStream implements AsyncIterable<Output>, AsyncDisposable {
  private ended: ExecResult | undefined;
  private readonly outputs: AsyncGenerator<Output>;

  /** Made by `execStream` and `Process.follow`. */
  constructor(items: AsyncGenerator<Item<Chunk, ExecAnswer>>) {
    this.outputs = this.read(items);
  }

  get result(): ExecResult {
    if (this.ended === undefined) {
      throw new InvalidRequest("the command has not ended yet", {
        hint: "iterate to the end, then read `result`",
      });
    }
    return this.ended;
  }

  [Symbol.asyncIterator](): AsyncGenerator<Output> {
    return this.outputs;
  }

  /** Drop the rest of the output and wait for the end. */
  async wait(): Promise<ExecResult> {
    for (;;) {
      const next = await this.outputs.next();
      if (next.done === true) {
        return this.result;
      }
    }
  }

  /** Stop following. The command goes on. */
  async close(): Promise<void> {
    await this.outputs.return(undefined);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  private async *read(items: AsyncGenerator<Item<Chunk, ExecAnswer>>): AsyncGenerator<Output> {
    const decoders = new Map<string, TextDecoder>();
    for await (const item of items) {
      if (item.end !== undefined) {
        this.ended = new ExecResult(item.end);
        return;
      }
      yield outputOf(item.piece as Chunk, decoders);
    }
  }
}

/** A command that runs in the background of its sandbox. Dropping the handle does not stop it. */
export class Process {
  /** Made by `start` and `process` of a session. */
  constructor(
    private readonly commands: Commands,
    readonly execId: string,
  ) {}

  /** Return its state now; see `running`. */
  async poll(options: CallOptions = {}): Promise<ExecResult> {
    return new ExecResult(await this.commands.get(this.execId, 0, options));
  }

  /** Wait for its end. If the time runs out first, the result shows that it still runs. */
  async wait(options: CallOptions & { timeoutMs?: number | undefined } = {}): Promise<ExecResult> {
    let left = options.timeoutMs === undefined ? Infinity : options.timeoutMs / 1000;
    for (;;) {
      const step = Math.max(0, Math.min(WAIT_SLICE_S, left));
      const answer = await this.commands.get(this.execId, step, options);
      left -= step;
      if (answer.status !== "running" || left <= 0) {
        return new ExecResult(answer);
      }
    }
  }

  /** Return its kept output after `sinceSeq`, without waiting. */
  async output(options: CallOptions & { sinceSeq?: number | undefined } = {}): Promise<Output[]> {
    const found: Output[] = [];
    const items = this.commands.kept(this.execId, options.sinceSeq ?? 0, options);
    for await (const piece of new ExecStream(items)) {
      found.push(piece);
    }
    return found;
  }

  /** Follow its output from `sinceSeq` until it ends. */
  follow(options: CallOptions & { sinceSeq?: number | undefined } = {}): ExecStream {
    return new ExecStream(this.commands.followed(this.execId, options.sinceSeq ?? 0, options));
  }

  /** Send a signal to everything the command started. */
  async signal(signal: Signal, options: CallOptions = {}): Promise<void> {
    await this.commands.signal(this.execId, signal, options);
  }

  async kill(options: CallOptions = {}): Promise<void> {
    await this.signal(9, options);
  }

  /** Write to its stdin; requires `keepStdinOpen` at the start. */
  async writeStdin(data: string | Uint8Array, options: CallOptions = {}): Promise<void> {
    await this.commands.stdin(this.execId, data, false, options);
  }

  async closeStdin(options: CallOptions = {}): Promise<void> {
    await this.commands.stdin(this.execId, undefined, true, options);
  }
}

function bytesOf(text: string, base64: string | null | undefined): Uint8Array {
  return typeof base64 === "string" ? fromBase64(base64) : new TextEncoder().encode(text);
}

export function dataOf(chunk: Chunk): Uint8Array {
  return bytesOf(chunk.text ?? "", chunk.dataB64);
}

function outputOf(chunk: Chunk, decoders: Map<string, TextDecoder>): Output {
  const gapBytes = chunk.gapBytes ?? 0;
  let decoder = decoders.get(chunk.stream);
  // After a gap, what was held back belongs to bytes that are gone.
  if (decoder === undefined || gapBytes > 0) {
    decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    decoders.set(chunk.stream, decoder);
  }
  const data = dataOf(chunk);
  const text = decoder.decode(data, { stream: true });
  return { seq: chunk.seq, stream: chunk.stream, data, text, gapBytes };
}
