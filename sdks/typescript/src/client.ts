/** A daemon as an object. */

import { Agents } from "./agents.js";
import type { CallOptions } from "./commands.js";
import { Connection, type ConnectionOptions, lost } from "./connection.js";
import { EVENTS, events } from "./events.js";
import { BackendUnavailable } from "./generated/error_classes.js";
import type {
  AuditEntry,
  AuditVerification,
  CreateBody,
  BackendLine,
  Doctor,
  Identity,
  Login,
  Ready,
  RunBody,
  RunFile,
  RunResult,
  SessionInfo,
  Setting,
  Usage,
  Version,
  Workspace,
} from "./generated/schema.js";
import { decoded, decodedList, encoded, inputFields, toBase64 } from "./json.js";
import { SessionReplay } from "./replay.js";
import { Session } from "./session.js";
import { Images, Keys, Secrets, Snapshots, StoredFiles, Workspaces } from "./stores.js";

// A sandbox, and an image that must be fetched for it first.
const CREATE_MS = 1_800_000;
// A backend that hangs is given up after a minute.
const DOCTOR_MS = 120_000;

/** Options of a session: everything that the route takes, in camelCase. */
export interface SessionOptions extends CallOptions, CreateBody {}

export interface ListOptions extends CallOptions {
  status?: string | undefined;
  /** `name=value`. */
  label?: string | undefined;
  /** Of all tenants; requires a key with the scope admin. */
  allTenants?: boolean | undefined;
  /** Add what each session uses; it wakes none of them. */
  usage?: boolean | undefined;
}

/** How a piece of code runs in its own sandbox. */
export interface OneShotOptions
  extends CallOptions,
    Omit<RunBody, "code" | "files" | "stdin" | "stdinB64"> {
  /** Files to write first, by path: contents, or `{ fileKey }` for a file of the daemon's store. */
  files?: Record<string, string | Uint8Array | { fileKey: string }> | undefined;
  stdin?: string | Uint8Array | undefined;
  /** Get output as it comes. */
  onStdout?: ((text: string) => void) | undefined;
  onStderr?: ((text: string) => void) | undefined;
}

export interface AuditOptions extends CallOptions {
  tenant?: string | undefined;
  /** The oldest records after this one; otherwise the newest. */
  sinceSeq?: number | undefined;
  sinceUnix?: number | undefined;
  kind?: string | undefined;
  action?: string | undefined;
  target?: string | undefined;
  sessionId?: string | undefined;
  keyId?: string | undefined;
  limit?: number | undefined;
}

/** A daemon. Sends nothing before the first call; sessions live on without it. */
export class SandboxClient extends Agents implements AsyncDisposable {
  readonly images: Images;
  readonly workspaces: Workspaces;
  readonly snapshots: Snapshots;
  /** The file store. */
  readonly files: StoredFiles;
  readonly secrets: Secrets;
  readonly keys: Keys;

  constructor(options: ConnectionOptions = {}) {
    const connection = new Connection(options);
    super(connection);
    this.images = new Images(connection);
    this.workspaces = new Workspaces(connection);
    this.snapshots = new Snapshots(connection);
    this.files = new StoredFiles(connection);
    this.secrets = new Secrets(connection);
    this.keys = new Keys(connection);
  }

  /** The address of the daemon. */
  get baseUrl(): string {
    return this.connection.url;
  }

  /**
   * Create a session, or with `sessionKey` return the live one of that key.
   *
   * `workspaceId` names a workspace that outlives the session, created at first use. Aborting the
   * signal destroys a session that was being created.
   */
  async createSession(options: SessionOptions = {}): Promise<Session> {
    const { signal, ...fields } = options;
    const more = {
      json: encoded("CreateBody", fields),
      // Under a key the second request finds what the first one made.
      repeatable: typeof fields.sessionKey === "string",
      answerMs: CREATE_MS,
    };
    const answer = await this.ordered("POST", "/v1/sessions", more, { signal });
    const info = decoded("SessionInfo", answer);
    const session = new Session(this.connection, info);
    if (!info.created) {
      // Another caller's: `await using` leaves it.
      session.detach();
    }
    return session;
  }

  /** Return an existing session; SessionNotFound or SessionExpired if there is none. */
  async getSession(id: string, options: CallOptions = {}): Promise<Session> {
    const answer = await this.fetched(`/v1/sessions/${encodeURIComponent(id)}`, options);
    const session = new Session(this.connection, decoded("SessionInfo", answer));
    session.detach();
    return session;
  }

  /** Return the past of a session of this tenant, also of one that has ended. Sends nothing yet. */
  replay(id: string): SessionReplay {
    return new SessionReplay(this.connection, id);
  }

  /** Return every session, oldest first. */
  async listSessions(options: ListOptions = {}): Promise<SessionInfo[]> {
    const { status, label, allTenants, usage, signal } = options;
    const found: SessionInfo[] = [];
    let cursor: string | null = null;
    do {
      const page: { value: unknown; headers: Headers } = await this.connection.askPage({
        method: "GET",
        path: "/v1/sessions",
        query: {
          status,
          label,
          all_tenants: allTenants === true ? true : undefined,
          usage: usage === true ? true : undefined,
          cursor,
        },
        repeatable: true,
        signal,
      });
      const sessions = decodedList("SessionInfo", page.value);
      found.push(...sessions);
      cursor = sessions.length === 0 ? null : page.headers.get("x-next-cursor");
    } while (cursor !== null);
    return found.sort((a, b) => a.createdAtUnix - b.createdAtUnix);
  }

  /** Return the named workspaces. */
  listWorkspaces(options: CallOptions = {}): Promise<Workspace[]> {
    return this.workspaces.list(options);
  }

  /** Delete a workspace with everything in it; Conflict while a session uses it. */
  deleteWorkspace(name: string, options: CallOptions = {}): Promise<void> {
    return this.workspaces.delete(name, options);
  }

  /**
   * Run a piece of code in its own sandbox, which is gone afterwards.
   *
   * Code that fails is a result. Aborting ends it.
   */
  async run(code: string, options: OneShotOptions = {}): Promise<RunResult> {
    const { signal, files = {}, stdin, onStdout, onStderr, ...fields } = options;
    const json = {
      ...encoded("RunBody", { ...fields, code, files: fileBodies(files) }),
      ...inputFields("stdin", stdin),
    };
    // As events, so that no proxy takes a long silence for the end.
    const request = { method: "POST", path: "/v1/run", json, headers: EVENTS, answerMs: null };
    const response = await this.connection.stream({ ...request, signal });
    try {
      for await (const event of events(response, signal)) {
        if (event.name === "chunk") {
          const show = event.data["stream"] === "stderr" ? onStderr : onStdout;
          show?.(String(event.data["text"] ?? ""));
        } else if (event.name === "done") {
          return decoded("RunResult", event.data);
        }
      }
    } catch (error) {
      throw lost(this.connection, "the code ran", error);
    }
    throw new BackendUnavailable("the connection was lost while the code ran", {
      hint: "the daemon ended the run; start it again",
    });
  }

  // ---- who the client is

  /**
   * Exchange a key for a cookie that scripts cannot read. For pages of the daemon itself.
   *
   * A client with the answer's `proof` as `loginProof` acts with that key.
   */
  async login(apiKey: string, options: CallOptions = {}): Promise<Login> {
    const more = { json: encoded("LoginBody", { apiKey }), login: true };
    return decoded("Login", await this.ordered("POST", "/v1/login", more, options));
  }

  /** Log out. Streams and terminals of the login end too. */
  async logout(options: CallOptions = {}): Promise<void> {
    await this.ordered("DELETE", "/v1/login", { repeatable: true }, options);
  }

  /** Return tenant and scopes of the key or login. */
  async identity(options: CallOptions = {}): Promise<Identity> {
    return decoded("Identity", await this.fetched("/v1/login", options));
  }

  // ---- the daemon itself

  async version(options: CallOptions = {}): Promise<Version> {
    return decoded("Version", await this.fetched("/v1/version", options));
  }

  /** Return whether it can create sandboxes, and what it lacks; BackendUnavailable if not. */
  async ready(options: CallOptions = {}): Promise<Ready> {
    return decoded("Ready", await this.fetched("/readyz", options));
  }

  /** Return what the machine of the daemon has and lacks; requires a key with the scope admin. */
  async doctor(options: CallOptions = {}): Promise<Doctor> {
    const more = { repeatable: true, answerMs: DOCTOR_MS };
    return decoded("Doctor", await this.ordered("GET", "/v1/doctor", more, options));
  }

  /** Return what each backend can do, whether it is ready, and how many sandboxes it has. */
  async backends(options: CallOptions = {}): Promise<BackendLine[]> {
    const more = { repeatable: true, answerMs: DOCTOR_MS };
    return decoded("BackendList", await this.ordered("GET", "/v1/backends", more, options)).backends;
  }

  /** Return name, value and origin of each setting. */
  async settings(options: CallOptions = {}): Promise<Setting[]> {
    return decoded("Settings", await this.fetched("/v1/settings", options)).settings;
  }

  /** Return what the tenant of the key uses, and its quota. */
  async usage(options: CallOptions = {}): Promise<Usage> {
    return decoded("Usage", await this.fetched("/v1/usage", options));
  }

  /** Return entries of the audit. */
  async audit(options: AuditOptions = {}): Promise<AuditEntry[]> {
    const { tenant, kind, action, target, limit } = options;
    const query = {
      ...{ tenant, kind, action, target, limit },
      since_seq: options.sinceSeq,
      since_unix: options.sinceUnix,
      session_id: options.sessionId,
      key_id: options.keyId,
    };
    return decoded("EntryList", await this.fetched("/v1/audit", options, query)).entries;
  }

  /**
   * Check that no record of the audit was changed, removed or moved.
   *
   * `seq` and `hash` are those of a record that was noted elsewhere: it must still be there.
   */
  async verifyAudit(
    options: CallOptions & { seq?: number | undefined; hash?: string | undefined } = {},
  ): Promise<AuditVerification> {
    const { seq, hash } = options;
    const more = { query: { seq, hash }, repeatable: true, answerMs: null };
    return decoded("AuditVerification", await this.ordered("GET", "/v1/audit/verify", more, options));
  }

  /** Close idle connections. Sessions and runs live on; the next call reconnects. */
  close(): Promise<void> {
    return this.connection.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

function fileBodies(
  files: Record<string, string | Uint8Array | { fileKey: string }>,
): Record<string, string | RunFile> {
  return Object.fromEntries(
    Object.entries(files).map(([path, content]) => [
      path,
      // Not renamed on the way: what is below `files` is data.
      typeof content === "string"
        ? content
        : ((content instanceof Uint8Array
            ? { content_base64: toBase64(content) }
            : { file_key: content.fileKey }) as unknown as RunFile),
    ]),
  );
}
