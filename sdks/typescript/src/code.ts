/** Code contexts of a session: kernels that keep their variables. */

import type { CallOptions } from "./commands.js";
import { type Connection, given, lost, sessionPath } from "./connection.js";
import { EVENTS, events } from "./events.js";
import { BackendUnavailable } from "./generated/error_classes.js";
import type { CodeContext, CodeDisplay, CodeResult } from "./generated/schema.js";
import { decoded, decodedList } from "./json.js";

// The daemon bounds the start of a kernel itself.
const START_MS = 200_000;

export interface CodeOptions extends CallOptions {
  /** Default: python. */
  language?: string | undefined;
  /** A context or its id; by default the one of the language. */
  context?: CodeContext | string | undefined;
  timeoutMs?: number | undefined;
  env?: Record<string, string> | undefined;
  /** Get output as it comes. */
  onStdout?: ((text: string) => void) | undefined;
  onStderr?: ((text: string) => void) | undefined;
  onResult?: ((display: CodeDisplay) => void) | undefined;
}

export interface ContextOptions extends CallOptions {
  language?: string | undefined;
  cwd?: string | undefined;
  env?: Record<string, string> | undefined;
}

/** The code contexts of one session. */
export class Contexts {
  /** Made by `contexts` of a session. */
  constructor(
    private readonly connection: Connection,
    private readonly sessionId: string,
  ) {}

  /** Start a context and wait until it is ready. */
  async create(options: ContextOptions = {}): Promise<CodeContext> {
    const { signal, ...fields } = options;
    const json = given({ language: "python", ...fields });
    const path = sessionPath(this.sessionId, "contexts");
    const request = { method: "POST", path, json, answerMs: START_MS, signal };
    return decoded("CodeContext", await this.connection.ask(request));
  }

  /** Return the contexts that run, oldest first. */
  async list(options: CallOptions = {}): Promise<CodeContext[]> {
    const path = sessionPath(this.sessionId, "contexts");
    const request = { method: "GET", path, repeatable: true, signal: options.signal };
    return decodedList("CodeContext", await this.connection.ask(request));
  }

  /** Return the languages that the image has a kernel for, sorted. */
  async languages(options: CallOptions = {}): Promise<string[]> {
    const path = sessionPath(this.sessionId, "languages");
    const request = { method: "GET", path, repeatable: true, signal: options.signal };
    return decoded("Languages", await this.connection.ask(request)).languages;
  }

  /** Replace the kernel of a context: its variables are gone. */
  async restart(context: CodeContext | string, options: CallOptions = {}): Promise<void> {
    await this.order("POST", context, "/restart", options, START_MS);
  }

  /** Interrupt the code that runs in a context; quiet if none does. */
  async interrupt(context: CodeContext | string, options: CallOptions = {}): Promise<void> {
    await this.order("POST", context, "/interrupt", options);
  }

  /** End a context. */
  async remove(context: CodeContext | string, options: CallOptions = {}): Promise<void> {
    await this.order("DELETE", context, "", options);
  }

  private async order(
    method: string,
    context: CodeContext | string,
    verb: string,
    options: CallOptions,
    answerMs?: number,
  ): Promise<void> {
    await this.connection.ask({
      method,
      path: sessionPath(this.sessionId, `contexts/${encodeURIComponent(idOf(context))}${verb}`),
      ...(method === "POST" ? { json: {} } : {}),
      ...(answerMs === undefined ? {} : { answerMs }),
      signal: options.signal,
    });
  }
}

/** Run code in a context. As events, so that no proxy takes a long silence for the end. */
export async function runCode(
  connection: Connection,
  sessionId: string,
  code: string,
  options: CodeOptions,
): Promise<CodeResult> {
  const { language = "python", context, timeoutMs, env, signal } = options;
  const json = {
    ...given({
      language,
      context: context === undefined ? undefined : idOf(context),
      env,
      timeout_seconds: timeoutMs === undefined ? undefined : timeoutMs / 1000,
    }),
    code,
  };
  const path = sessionPath(sessionId, "code");
  const request = { method: "POST", path, json, headers: EVENTS, answerMs: null, signal };
  const response = await connection.stream(request);
  try {
    for await (const event of events(response, signal)) {
      if (event.name === "chunk") {
        const show = event.data["stream"] === "stderr" ? options.onStderr : options.onStdout;
        show?.(String(event.data["text"]));
      } else if (event.name === "result") {
        options.onResult?.(decoded("CodeDisplay", event.data));
      } else if (event.name === "done") {
        return decoded("CodeResult", event.data);
      }
    }
  } catch (error) {
    throw lost(connection, "the code ran", error);
  }
  throw new BackendUnavailable("the connection was lost while the code ran", {
    hint: "the daemon interrupted the code; run it again",
  });
}

function idOf(context: CodeContext | string): string {
  return typeof context === "string" ? context : context.id;
}
