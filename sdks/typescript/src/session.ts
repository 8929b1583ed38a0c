/** A sandbox of a daemon as an object. */

import { type CodeOptions, Contexts, runCode } from "./code.js";
import {
  type CallOptions,
  type Command,
  type ExecOptions,
  ExecResult,
  ExecStream,
  Process,
  type StartOptions,
} from "./commands.js";
import {
  ANSWER_MS,
  type Connection,
  type Data,
  given,
  type HttpRequest,
  sessionPath,
} from "./connection.js";
import { bodyError } from "./error_bodies.js";
import type { SandkastenError } from "./errors.js";
import { Commands } from "./exec_requests.js";
import { type Change, type FileOptions, type FilePath, FileTree, watch } from "./files.js";
import { InvalidRequest, NotFound } from "./generated/error_classes.js";
import { RUNTIMES } from "./generated/model_tables.js";
import type {
  CodeResult,
  ExecPast,
  ForkBody,
  NetworkAttempt,
  NetworkStatus,
  PreviewBody,
  ProcessInfo,
  Published,
  PublishBody,
  SessionInfo,
  Snapshot,
  SnapshotBody,
  StagedFile,
  Stats,
  UpdateBody,
} from "./generated/schema.js";
import { decoded, decodedList, encoded, randomHex } from "./json.js";
import { PortConnection, Terminal, type TerminalOptions } from "./terminal.js";

/** How a piece of code runs in a session. */
export interface SessionRunOptions extends CallOptions {
  /** python (the default), node, bash or sh. */
  runtime?: string | undefined;
  /** Files to write first, relative to the workspace. */
  files?: Record<string, Data> | undefined;
  args?: readonly string[] | undefined;
  env?: Record<string, string> | undefined;
  stdin?: string | Uint8Array | undefined;
  timeoutMs?: number | undefined;
}

/**
 * An isolated Linux environment with a workspace and shells.
 *
 * `await using session = await client.createSession()` destroys it at the end of the block.
 */
export class Session extends FileTree implements AsyncDisposable {
  /** The last known description; `info()` asks for it again. */
  known: SessionInfo;
  private readonly commands: Commands;
  private destroyed = false;
  private kept = false;

  /** Made by `createSession` and `getSession` of a client. */
  constructor(connection: Connection, info: SessionInfo) {
    super(connection, sessionPath(info.id, "fs"));
    this.known = info;
    this.commands = new Commands(connection, info.id);
  }

  /** The id, also after the session has ended. */
  get id(): string {
    return this.known.id;
  }

  /** The code contexts of this session. */
  get contexts(): Contexts {
    return new Contexts(this.connection, this.id);
  }

  // ---- life

  async info(options: CallOptions = {}): Promise<SessionInfo> {
    return this.learned(await this.question("", options));
  }

  /** Change how long it lives, its labels (all of them), or what it may reach (at once). */
  async update(changes: UpdateBody, options: CallOptions = {}): Promise<SessionInfo> {
    // The same values again change nothing.
    const json = encoded("UpdateBody", changes);
    return this.learned(await this.order("PATCH", "", { json, repeatable: true }, options));
  }

  /** Stop everything inside until `resume`; commands and files answer Conflict meanwhile. */
  async pause(options: CallOptions = {}): Promise<SessionInfo> {
    return this.learned(await this.order("POST", "pause", { json: {} }, options));
  }

  /** Continue everything inside where it stopped. Quiet if it is not paused. */
  async resume(options: CallOptions = {}): Promise<SessionInfo> {
    return this.learned(await this.order("POST", "resume", { json: {} }, options));
  }

  /**
   * Keep its files, as they are now, for `createSession({ snapshot })`; it runs on.
   *
   * `keepLast: 3` then removes all but the newest three of this name.
   */
  async snapshot(
    name?: string,
    options: CallOptions & Pick<SnapshotBody, "labels" | "keepLast"> = {},
  ): Promise<Snapshot> {
    const { labels, keepLast: keep_last } = options;
    const json = given({ name, labels, keep_last });
    return decoded(
      "Snapshot",
      await this.order("POST", "snapshots", { json, answerMs: null }, options),
    );
  }

  /**
   * Create copies of it, all from one moment; it is stopped once and runs on.
   *
   * The array has an error in place of each copy that could not be created. Without
   * options, times, labels and network are those of this session; `labels` are added to them.
   */
  async fork(
    count = 1,
    options: CallOptions & Omit<ForkBody, "count"> = {},
  ): Promise<(Session | SandkastenError)[]> {
    const { signal, ...body } = options;
    const json = encoded("ForkBody", { ...body, count });
    const answer = await this.order("POST", "fork", { json, answerMs: null }, { signal });
    return decoded("Forked", answer).results.map(({ session, error }) =>
      session === null
        ? bodyError({ ...error, request_id: error?.requestId })
        : new Session(this.connection, session),
    );
  }

  /** Return unused memory (page cache) to the host; returns how many bytes. */
  async reclaim(options: CallOptions = {}): Promise<number> {
    return decoded("Reclaimed", await this.order("POST", "reclaim", { json: {} }, options)).bytes;
  }

  /** Destroy it and everything in it. Quiet if it has ended already. */
  async destroy(options: CallOptions = {}): Promise<void> {
    if (this.destroyed) {
      return;
    }
    try {
      const more = { repeatable: true, answerMs: 2 * ANSWER_MS };
      await this.order("DELETE", "", more, options);
    } catch (error) {
      if (!(error instanceof NotFound)) {
        throw error;
      }
    }
    this.destroyed = true;
  }

  /** Keep it alive after the block of `await using`; returns its id, for `getSession`. */
  detach(): string {
    this.kept = true;
    return this.id;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.kept) {
      await this.destroy();
    }
  }

  /** Return memory, CPU, processes and disk; if it is paused, only the kernel's counters. */
  async stats(options: CallOptions = {}): Promise<Stats> {
    return decoded("Stats", await this.question("stats", options));
  }

  async processes(options: CallOptions = {}): Promise<ProcessInfo[]> {
    return decodedList("ProcessInfo", await this.question("processes", options));
  }

  // ---- commands

  /**
   * Run a command and wait for its end.
   *
   * A string goes to the persistent shell, so `cd`, variables and jobs stay; a list is a fresh
   * process. A deadline that passes is a result (`timedOut`) with the output so far. With `check`,
   * anything but success throws (see `ExecResult.check`).
   */
  async exec(
    command: Command,
    options: ExecOptions & { check?: boolean | undefined } = {},
  ): Promise<ExecResult> {
    const { check, ...rest } = options;
    const result = new ExecResult(await this.commands.run(command, rest));
    return check === true ? result.check() : result;
  }

  /** Run a command and iterate over its output as it comes; `result` is set at the end. */
  execStream(command: Command, options: ExecOptions = {}): ExecStream {
    return new ExecStream(this.commands.stream(command, options));
  }

  /**
   * Start a command and return at once. It runs until it ends, or its session does.
   *
   * With a timeout it is stopped then. A string runs beside the persistent shell, with its
   * directory and exported variables; `stateful: true` runs it in the shell itself.
   */
  async start(command: Command, options: StartOptions = {}): Promise<Process> {
    return new Process(this.commands, (await this.commands.start(command, options)).execId);
  }

  /** Return a handle on a command that was started earlier, maybe by another program. */
  process(execId: string): Process {
    return new Process(this.commands, execId);
  }

  /** End a persistent shell with its jobs; ShellNotFound if it is not open. */
  async closeShell(name = "default", options: CallOptions = {}): Promise<void> {
    await this.commands.closeShell(name, options);
  }

  /** Return the commands that ran here, oldest first, as far back as the daemon remembers. */
  async execs(options: CallOptions & { limit?: number | undefined } = {}): Promise<ExecPast[]> {
    const query = { limit: options.limit };
    return decodedList("ExecPast", await this.question("execs", options, query)).reverse();
  }

  /** Open a terminal with a program (default: a login shell). */
  terminal(options: TerminalOptions = {}): Promise<Terminal> {
    return Terminal.open(this.connection, this.id, options);
  }

  /**
   * Run code in a context, which keeps variables; by default in the one of the language.
   *
   * Code that raises is a result with `error`. At the timeout the code is interrupted
   * (`timedOut`), and the context stays usable. Aborting interrupts the code too.
   */
  runCode(code: string, options: CodeOptions = {}): Promise<CodeResult> {
    return runCode(this.connection, this.id, code, options);
  }

  /** Run a piece of code in a fresh process in the workspace. */
  async run(code: string | Uint8Array, options: SessionRunOptions = {}): Promise<ExecResult> {
    const { runtime = "python", files = {}, args = [], signal, ...rest } = options;
    const chosen = Object.hasOwn(RUNTIMES, runtime) ? RUNTIMES[runtime] : undefined;
    if (chosen === undefined) {
      throw new InvalidRequest(`${JSON.stringify(runtime)} is not a valid runtime`, {
        hint: `use one of ${Object.keys(RUNTIMES).join(", ")}`,
      });
    }
    for (const [path, content] of Object.entries(files)) {
      await this.write(path, content, { signal });
    }
    // In the workspace, because imports beside the main file are found there; hidden and with a
    // name of its own, because the workspace is the caller's.
    const main = `/workspace/.run-${randomHex(6)}${chosen[1]}`;
    await this.write(main, code, { signal });
    try {
      return await this.exec([chosen[0], main, ...args], { ...rest, signal });
    } finally {
      // Also after an abort, which ended the signal.
      await this.remove(main, { missingOk: true });
    }
  }

  // ---- files

  /**
   * Iterate over changes below a path, until the loop is left.
   *
   * After a lost connection it continues, and reports `overflow`: changes may have been missed.
   */
  watch(
    path: FilePath = ".",
    options: FileOptions & { recursive?: boolean | undefined } = {},
  ): AsyncGenerator<Change, void, undefined> {
    return watch(this.connection, sessionPath(this.id, "fs"), path, options);
  }

  /** Put a file of the file store into the session, as a file named `destination`. */
  async stage(
    fileKey: string,
    destination: string,
    options: CallOptions & { overwrite?: boolean | undefined } = {},
  ): Promise<StagedFile> {
    const { overwrite = true } = options;
    const json = encoded("StageBody", { fileKey, destination, overwrite });
    const more = { json, repeatable: overwrite, answerMs: null };
    return decoded("StagedFile", await this.order("POST", "files/stage", more, options));
  }

  /** Keep a whole file of the session in the file store, where it outlives the session. */
  async publish(
    source: string,
    options: CallOptions &
      Pick<PublishBody, "fileKey" | "contentType" | "ttlSeconds" | "overwrite"> = {},
  ): Promise<Published> {
    const { signal, overwrite = true, ...rest } = options;
    const json = encoded("PublishBody", { source, overwrite, ...rest });
    // Without a key each request makes its own.
    const repeatable = overwrite && typeof rest.fileKey === "string";
    const more = { json, repeatable, answerMs: null };
    return decoded("Published", await this.order("POST", "files/publish", more, { signal }));
  }

  // ---- network

  /** Return what it may reach, what was counted, and the rules that it would need. */
  async network(options: CallOptions = {}): Promise<NetworkStatus> {
    return decoded("NetworkStatus", await this.question("network", options));
  }

  /** Return what it tried to reach, oldest first; only the newest attempts are kept. */
  async networkLog(
    options: CallOptions & { sinceSeq?: number | undefined } = {},
  ): Promise<NetworkAttempt[]> {
    const query = { since_seq: options.sinceSeq };
    return decodedList("NetworkAttempt", await this.question("network/log", options, query));
  }

  /**
   * Return a link to a port for a browser; the port has its own origin.
   *
   * It is private: the link is signed and works for an hour, or for `ttlSeconds`. `public: true`
   * opens the port to every client that reaches the daemon, `public: false` closes it again.
   */
  async url(
    port: number,
    options: CallOptions & Pick<PreviewBody, "public" | "ttlSeconds"> = {},
  ): Promise<string> {
    const { signal, ...rest } = options;
    const json = encoded("PreviewBody", { port, ...rest });
    const more = { json, repeatable: true };
    return decoded("Preview", await this.order("POST", "previews", more, { signal })).url;
  }

  /** Revoke a link that `url` returned, and the cookies that it set. */
  async revokeUrl(url: string, options: CallOptions = {}): Promise<void> {
    const link = linkIdOf(url);
    await this.order("DELETE", `previews/${link}`, { repeatable: true }, options);
  }

  /** Revoke all links to ports of this session. Ports that are public stay public. */
  async revokeUrls(options: CallOptions = {}): Promise<void> {
    await this.order("DELETE", "previews", { repeatable: true }, options);
  }

  /** Open a TCP connection to a port. */
  connect(port: number, options: CallOptions = {}): Promise<PortConnection> {
    return PortConnection.open(this.connection, this.id, port, options);
  }

  // ---- below

  private learned(answer: unknown): SessionInfo {
    this.known = decoded("SessionInfo", answer);
    return this.known;
  }

  private question(
    verb: string,
    options: CallOptions,
    query?: HttpRequest["query"],
  ): Promise<unknown> {
    return this.order("GET", verb, { repeatable: true, query }, options);
  }

  private order(
    method: string,
    verb: string,
    more: Partial<HttpRequest>,
    options: CallOptions,
  ): Promise<unknown> {
    const path = sessionPath(this.id, verb);
    return this.connection.ask({ method, path, signal: options.signal, ...more });
  }
}

function linkIdOf(url: string): string {
  let token: string | null = null;
  try {
    token = new URL(url).searchParams.get("sandkasten_token");
  } catch {
    // It may be the id of a link.
  }
  const found = token === null ? url : token.split(".")[1];
  if (found === undefined || !/^[0-9a-f]{16}$/.test(found)) {
    throw new InvalidRequest(`${JSON.stringify(url.slice(0, 80))} is not a link to a preview`, {
      hint: "give the URL of the link, or its linkId",
    });
  }
  return found;
}
