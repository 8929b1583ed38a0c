/**
 * The HTTP connection to one daemon: sends requests, retries where that is safe, maps errors.
 *
 * A request is retried only if it cannot have been processed (nothing listened, or the daemon was
 * busy) or if it is idempotent; the number of attempts is limited.
 */

import { responseError } from "./error_bodies.js";
import { SandkastenError } from "./errors.js";
import { BackendUnavailable, InvalidRequest, ProtocolViolation } from "./generated/error_classes.js";
import { isRecord } from "./json.js";
import { runtime, HandshakeRefused, type FetchOptions, type Socket } from "./runtime.js";
import { backoffMs, Deadline, retryAfterMs, sleep, within } from "./waiting.js";

const TRIES = 5;
// For a daemon that was there before: it is being restarted, and takes its time.
const PATIENT_TRIES = 8;
const FIRST_PAUSE_MS = 100;
// What a server may make us wait by Retry-After; the caller decides about more than that.
const MAX_PAUSE_MS = 10_000;
export const ANSWER_MS = 60_000;
const HANDSHAKE_MS = 30_000;
const URL_HINT = "say http://host:8080, https://host or, in Node, unix:///path/daemon.sock";
const UNSENT = /ECONNREFUSED|ConnectionRefused|connection refused|ENOTFOUND|EAI_AGAIN|ENOENT|EACCES/i;
const CERTIFICATE = /CERT|SELF_SIGNED|ERR_TLS|ERR_SSL|certificate/i;

/** Bytes to send. A stream is sent as it comes; in a browser it is collected first. */
export type Data =
  | string
  | Uint8Array
  | ArrayBuffer
  | Blob
  | ReadableStream<Uint8Array>
  | AsyncIterable<Uint8Array>;

export interface ConnectionOptions {
  /** The address of the daemon. Default: SANDKASTEN_URL, the origin of the page, or port 8080 here. */
  baseUrl?: string | undefined;
  /** Default: SANDKASTEN_API_KEY, where there is an environment. */
  apiKey?: string | undefined;
  /** Act as another tenant; requires a key with the scope admin. */
  tenant?: string | undefined;
  /** Of a page that logged in (`login`): its proof, which is sent with the cookie. */
  loginProof?: string | undefined;
  /** Open each WebSocket with a single-use ticket, so that no key is sent with it. */
  tickets?: boolean | undefined;
  /** A replacement of the global `fetch`, for example one that uses a proxy. */
  fetch?: typeof fetch | undefined;
}

export interface HttpRequest {
  method: string;
  path: string;
  query?: Record<string, string | number | boolean | null | undefined> | undefined;
  json?: unknown;
  body?: Data;
  headers?: Record<string, string>;
  /** Doing it twice is the same as doing it once. */
  repeatable?: boolean;
  /** Null: for as long as it takes. */
  answerMs?: number | null;
  signal?: AbortSignal | undefined;
  /** Its answer sets the cookie of a login. */
  login?: boolean;
}

/** Raised inside of this client while a body is read; its readers reconnect or map it. */
export class ConnectionLost extends Error {}

export class Connection {
  readonly url: string;
  private readonly base: string;
  private readonly socketPath: string | undefined;
  private readonly apiKey: string | undefined;
  private readonly tenant: string | undefined;
  private readonly loginProof: string | undefined;
  private readonly tickets: boolean;
  private readonly fetch: typeof fetch;
  private options: Promise<FetchOptions> | undefined;
  private reached = false;

  constructor(options: ConnectionOptions) {
    this.url = options.baseUrl ?? runtime().variable("SANDKASTEN_URL") ?? runtime().defaultUrl();
    [this.base, this.socketPath] = addressOf(this.url);
    this.apiKey = options.apiKey ?? runtime().variable("SANDKASTEN_API_KEY");
    this.tenant = options.tenant;
    this.loginProof = options.loginProof;
    this.tickets = options.tickets ?? options.loginProof !== undefined;
    this.fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
  }

  /** Return the JSON answer. */
  async ask(request: HttpRequest): Promise<unknown> {
    return (await this.askPage(request)).value;
  }

  /** Return the JSON answer and its headers. */
  askPage(request: HttpRequest): Promise<{ value: unknown; headers: Headers }> {
    return this.attempts(request, async (response, deadline) => {
      const text = await response.text();
      deadline.release();
      try {
        return { value: JSON.parse(text) as unknown, headers: response.headers };
      } catch {
        throw new ProtocolViolation(`${request.method} ${request.path} did not return JSON`, {
          hint: `check that ${this.url} is a Sandkasten daemon`,
        });
      }
    });
  }

  /** Return the response while its body arrives (see `pieces`). */
  stream(request: HttpRequest): Promise<Response> {
    return this.attempts(request, (response, deadline) => {
      // From here on `pieces` listens to the caller's signal.
      deadline.release();
      return Promise.resolve(response);
    });
  }

  /** Open a WebSocket; `question` is a path that answers why not, if it is refused. */
  async socket(
    path: string,
    query: HttpRequest["query"],
    question: string,
    signal?: AbortSignal,
  ): Promise<Socket> {
    for (let turn = 1; ; turn += 1) {
      const ticket = this.tickets ? await this.ticket(signal) : undefined;
      const deadline = new Deadline(signal, HANDSHAKE_MS);
      let failure: unknown;
      try {
        const socket = await runtime().openSocket({
          url: this.address(path, query).replace(/^http/, "ws"),
          apiKey: ticket === undefined ? this.apiKey : undefined,
          tenant: ticket === undefined ? this.tenant : undefined,
          ticket,
          socketPath: this.socketPath,
          signal: deadline.signal,
        });
        this.reached = true;
        return socket;
      } catch (error) {
        failure = error;
      } finally {
        deadline.release();
      }
      signal?.throwIfAborted();
      if (failure instanceof HandshakeRefused) {
        if (failure.status !== 0) {
          throw responseError(failure.status, failure.body);
        }
        // A page cannot read the status. An ordinary request shows whether the daemon is unreachable,
        // and often why it refuses.
        await this.ask({ method: "GET", path: question, repeatable: true, signal });
        failure = undefined;
      }
      const pause = this.again({ method: "GET", path, repeatable: true }, failure, turn);
      if (pause === undefined) {
        throw failure === undefined
          ? new BackendUnavailable(`the daemon refused the WebSocket ${path}`, {
              hint: "a proxy between may not pass WebSockets on",
            })
          : this.trouble({ method: "GET", path }, failure, false);
      }
      await sleep(pause, signal);
    }
  }

  /** Close idle connections. The next request opens new ones. */
  async close(): Promise<void> {
    const options = this.options;
    this.options = undefined;
    await (await options)?.close();
  }

  // ---- below

  private async ticket(signal: AbortSignal | undefined): Promise<string> {
    // One that is not used expires.
    const request = { method: "POST", path: "/v1/tickets", repeatable: true, signal };
    const answer = await this.ask(request);
    const ticket = isRecord(answer) ? answer["ticket"] : undefined;
    if (typeof ticket !== "string") {
      throw new ProtocolViolation("the daemon did not issue a ticket");
    }
    return ticket;
  }

  private async attempts<T>(
    request: HttpRequest,
    use: (response: Response, deadline: Deadline) => Promise<T>,
  ): Promise<T> {
    const source = request.body === undefined ? undefined : await sourceOf(request.body);
    for (let turn = 1; ; turn += 1) {
      request.signal?.throwIfAborted();
      const answerMs = request.answerMs === undefined ? ANSWER_MS : request.answerMs;
      const deadline = new Deadline(request.signal, answerMs);
      let failure: SandkastenError;
      let pause: number | undefined;
      try {
        const response = await this.send(request, source, deadline.signal);
        this.reached = true;
        if (response.ok) {
          return await use(response, deadline);
        }
        const id = response.headers.get("x-request-id") ?? undefined;
        failure = responseError(response.status, await response.text(), id);
        pause = after(request, response, failure, turn, source);
      } catch (error) {
        if (error instanceof SandkastenError) {
          throw error;
        }
        request.signal?.throwIfAborted();
        // What the caller's own stream raised is the caller's, not the connection's.
        if (source?.failure !== undefined) {
          throw source.failure.error;
        }
        failure = this.trouble(request, error, deadline.expired);
        pause = deadline.expired || source?.spent === true
          ? undefined
          : this.again(request, error, turn);
      }
      deadline.release();
      if (pause === undefined) {
        throw failure;
      }
      await sleep(pause, request.signal);
    }
  }

  private async send(
    request: HttpRequest,
    source: Source | undefined,
    signal: AbortSignal,
  ): Promise<Response> {
    this.options ??= runtime().fetchOptions(this.socketPath);
    const headers: Record<string, string> = { ...request.headers };
    if (this.apiKey !== undefined) {
      headers["Authorization"] = `Bearer ${this.apiKey}`;
    }
    if (this.tenant !== undefined) {
      headers["X-Sandkasten-Tenant"] = this.tenant;
    }
    if (this.loginProof !== undefined) {
      headers["X-Sandkasten-Login"] = this.loginProof;
    }
    let body: BodyInit | undefined = source?.body;
    if (request.json !== undefined) {
      body = JSON.stringify(request.json);
      headers["Content-Type"] = "application/json";
    }
    if (source !== undefined && source.body instanceof ReadableStream) {
      source.spent = true;
    }
    return this.fetch(this.address(request.path, request.query), {
      method: request.method,
      headers,
      signal,
      // A daemon never sends one, and it could carry the key elsewhere.
      redirect: "manual",
      // Cookies only of a login, and of its answer.
      credentials: this.loginProof === undefined && !request.login ? "omit" : "same-origin",
      cache: "no-store",
      ...(body === undefined ? {} : { body }),
      ...(body instanceof ReadableStream ? { duplex: "half" } : {}),
      ...(await this.options).init,
    });
  }

  private address(path: string, query: HttpRequest["query"]): string {
    const given = new URLSearchParams();
    for (const [name, value] of Object.entries(query ?? {})) {
      if (value !== undefined && value !== null) {
        given.set(name, String(value));
      }
    }
    return `${this.base}${path}${given.size === 0 ? "" : `?${given.toString()}`}`;
  }

  private again(request: HttpRequest, error: unknown, turn: number): number | undefined {
    const about = described(error);
    const tries = this.reached ? PATIENT_TRIES : TRIES;
    if (
      turn >= tries ||
      CERTIFICATE.test(about) ||
      !(UNSENT.test(about) || request.repeatable === true)
    ) {
      return undefined;
    }
    return backoffMs(turn, FIRST_PAUSE_MS, MAX_PAUSE_MS);
  }

  private trouble(request: HttpRequest, error: unknown, expired: boolean): SandkastenError {
    const about = described(error);
    const what = `${request.method} ${request.path}`;
    if (expired) {
      return new BackendUnavailable(
        `the daemon did not answer ${what} within ${(request.answerMs ?? ANSWER_MS) / 1000} s`,
        { hint: "it may be overloaded; check its log", cause: error },
      );
    }
    if (CERTIFICATE.test(about)) {
      return new BackendUnavailable(`the daemon at ${this.url} cannot be trusted: ${about}`, {
        hint: "its certificate must be signed by an authority that this machine trusts",
        cause: error,
      });
    }
    if (UNSENT.test(about) || !this.reached) {
      return new BackendUnavailable(`no daemon answers at ${this.url} (${about})`, {
        hint: "start it with: sandkasten serve; or check baseUrl and SANDKASTEN_URL",
        cause: error,
      });
    }
    return new BackendUnavailable(
      `the connection was lost before ${what} was answered (${about})`,
      {
        hint:
          request.repeatable === true
            ? "the daemon may have been restarted"
            : "it may have been done; check before you retry",
        cause: error,
      },
    );
  }
}

/** Iterate over a body. ConnectionLost if it breaks, or is silent for too long. */
export async function* pieces(
  response: Response,
  stallMs: number,
  signal?: AbortSignal,
): AsyncGenerator<Uint8Array<ArrayBuffer>> {
  const reader = response.body?.getReader();
  if (reader === undefined) {
    return;
  }
  const stop = (): void => void reader.cancel(signal?.reason).catch(() => undefined);
  signal?.addEventListener("abort", stop, { once: true });
  try {
    for (;;) {
      signal?.throwIfAborted();
      let read: ReadableStreamReadResult<Uint8Array<ArrayBuffer>>;
      try {
        read = await within(reader.read(), stallMs, () => new Error("it is silent"));
      } catch (error) {
        signal?.throwIfAborted();
        throw new ConnectionLost(described(error), { cause: error });
      }
      signal?.throwIfAborted();
      if (read.done) {
        return;
      }
      yield read.value;
    }
  } finally {
    signal?.removeEventListener("abort", stop);
    await reader.cancel().catch(() => undefined);
  }
}

/** Map a lost connection to an error while a body is read. */
export function lost(connection: Connection, what: string, error: unknown): unknown {
  if (!(error instanceof ConnectionLost)) {
    return error;
  }
  return new BackendUnavailable(
    `the connection to ${connection.url} was lost while ${what} (${error.message})`,
    { hint: "the daemon may have been restarted; retry", cause: error },
  );
}

export function sessionPath(id: string, verb = ""): string {
  const base = `/v1/sessions/${encodeURIComponent(id)}`;
  return verb === "" ? base : `${base}/${verb}`;
}

/** Return the base of every path, and the Unix socket to go through instead of the network. */
function addressOf(url: string): [string, string | undefined] {
  let parts: URL;
  try {
    parts = new URL(url);
  } catch {
    throw new InvalidRequest(`${JSON.stringify(url.slice(0, 200))} is not a valid daemon URL`, {
      hint: URL_HINT,
    });
  }
  if (parts.username !== "" || parts.password !== "") {
    throw new InvalidRequest("the URL contains a user name or a password", {
      hint: "give the key as apiKey",
    });
  }
  if (parts.protocol === "unix:" && parts.host === "" && parts.pathname.startsWith("/")) {
    // The name is only there because HTTP wants one: a listener on a socket is local.
    return ["http://localhost", decodeURIComponent(parts.pathname)];
  }
  if (!/^https?:$/.test(parts.protocol) || parts.search !== "" || parts.hash !== "") {
    throw new InvalidRequest(`${JSON.stringify(url.slice(0, 200))} is not a valid daemon URL`, {
      hint: URL_HINT,
    });
  }
  return [parts.origin + parts.pathname.replace(/\/+$/, ""), undefined];
}

/** Return what is known of an error of `fetch`, which hides the reason in causes. */
function described(error: unknown): string {
  const found: string[] = [];
  for (let one = error; one instanceof Error && found.length < 8; one = one.cause) {
    const code = (one as { code?: unknown }).code;
    found.push(typeof code === "string" ? `${one.message} ${code}` : one.message);
  }
  return found.filter((text) => text !== "").join(": ") || String(error);
}

function after(
  request: HttpRequest,
  response: Response,
  failure: SandkastenError,
  turn: number,
  source: Source | undefined,
): number | undefined {
  if (turn >= TRIES || source?.spent === true || !mayPass(response.status, failure, request)) {
    return undefined;
  }
  const wanted = retryAfterMs(response.headers, Date.now());
  return wanted > MAX_PAUSE_MS
    ? undefined
    : Math.max(wanted, backoffMs(turn, FIRST_PAUSE_MS, MAX_PAUSE_MS));
}

/** Return whether the daemon was busy and did nothing. */
function mayPass(status: number, failure: SandkastenError, request: HttpRequest): boolean {
  if (status === 429) {
    // Asked too often; having too much of something does not pass by waiting.
    const quota = failure.details["quota"];
    return quota === undefined || quota === null || quota === "rate" || quota === "connections";
  }
  return status === 503 && request.repeatable === true && failure.retryable;
}

interface Source {
  body: BodyInit;
  /** A stream that was started cannot be sent again. */
  spent: boolean;
  failure: { error: unknown } | undefined;
}

async function sourceOf(data: Data): Promise<Source> {
  if (typeof data === "string" || data instanceof Uint8Array || isPlain(data)) {
    return { body: data as BodyInit, spent: false, failure: undefined };
  }
  const source: Source = { body: "", spent: false, failure: undefined };
  const iterator = iterated(data);
  const stream = new ReadableStream<Uint8Array>({
    async pull(controller): Promise<void> {
      try {
        const next = await iterator.next();
        if (next.done === true) {
          controller.close();
        } else {
          controller.enqueue(next.value);
        }
      } catch (error) {
        source.failure = { error };
        controller.error(error);
      }
    },
    async cancel(): Promise<void> {
      await iterator.return?.();
    },
  });
  source.body = runtime().streamsBodies ? stream : await collected(stream, source);
  return source;
}

function isPlain(data: unknown): data is ArrayBuffer | Blob {
  return data instanceof ArrayBuffer || (typeof Blob === "function" && data instanceof Blob);
}

async function collected(stream: ReadableStream<Uint8Array>, source: Source): Promise<Blob> {
  try {
    return await new Response(stream as ReadableStream<Uint8Array<ArrayBuffer>>).blob();
  } catch (error) {
    throw source.failure?.error ?? error;
  }
}

function iterated(
  data: ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>,
): AsyncIterator<Uint8Array> {
  if (Symbol.asyncIterator in data) {
    return data[Symbol.asyncIterator]();
  }
  // Not every browser iterates over streams.
  const reader = (data as ReadableStream<Uint8Array>).getReader();
  return {
    next: async () => {
      const read = await reader.read();
      return read.done ? { done: true, value: undefined } : { done: false, value: read.value };
    },
    return: async () => {
      await reader.cancel();
      return { done: true, value: undefined };
    },
  };
}

/** Return the fields that are given; the daemon has defaults for the others. */
export function given(fields: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(fields).filter(
      ([, value]) =>
        value !== undefined &&
        value !== null &&
        !(Array.isArray(value) && value.length === 0) &&
        !(isRecord(value) && Object.keys(value).length === 0),
    ),
  );
}
