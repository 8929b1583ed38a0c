/** Files of a session or of a named workspace: streamed bytes, everything else as JSON. */

import type { CallOptions } from "./commands.js";
import { type Connection, type Data, type HttpRequest, lost, pieces } from "./connection.js";
import { EVENTS, events, isAway } from "./events.js";
import {
  FileNotFound,
  InvalidRequest,
  IsADirectory,
  PayloadTooLarge,
} from "./generated/error_classes.js";
import type { Entries, FileEntry, Uploaded } from "./generated/schema.js";
import { decoded, type Json, toBase64 } from "./json.js";
import { Patience } from "./waiting.js";

const MAX_WHOLE_READ = 512 << 20;
const MAX_LISTED = 100_000;
const PAGE = 5000;
// Between two pieces of a file: a sandbox that is busy is slow, and not gone.
const STALL_MS = 120_000;
const TAR = "application/x-tar";

/** A name inside a sandbox; bytes for a name that is not UTF-8. */
export type FilePath = string | Uint8Array;

export interface FileOptions extends CallOptions {
  /** `USER[:GROUP]` of the image, with profile dev; the sandbox's own user otherwise. */
  user?: string | undefined;
}

export interface WriteOptions extends FileOptions {
  /** Permissions, for example 0o755. */
  mode?: number | undefined;
  /** False: FileExists if there is one. */
  overwrite?: boolean | undefined;
  /** False: return before the file is on disk. */
  flush?: boolean | undefined;
}

export interface ReadOptions extends FileOptions {
  offset?: number | undefined;
  /** Read that many bytes. */
  limit?: number | undefined;
  /** Cut after that many bytes, which `truncated` shows. */
  maxBytes?: number | undefined;
}

/** A change below a watched path; `overflow` means that changes were missed. */
export interface Change {
  kind: "created" | "modified" | "deleted" | "moved" | "overflow";
  path: string;
  isDir: boolean;
}

/** The bytes of a file, with their path and whether they are complete. */
export class FileBytes extends Uint8Array<ArrayBuffer> {
  /** The path as it was asked for. */
  path: string = "";
  /** The true size of the file. */
  size: number = 0;
  truncated: boolean = false;

  static get [Symbol.species](): Uint8ArrayConstructor {
    return Uint8Array;
  }

  /** Made by `read`, without a copy. */
  static wrap(data: Uint8Array<ArrayBuffer>, path: string, size: number, cut: boolean): FileBytes {
    const made = new FileBytes(data.buffer, data.byteOffset, data.byteLength);
    made.path = path;
    made.size = size;
    made.truncated = cut;
    return made;
  }

  /** The bytes as text; what is not UTF-8 becomes replacement characters. */
  get text(): string {
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(this);
  }
}

/** The file methods that sessions and named workspaces share. */
export class FileTree {
  constructor(
    protected readonly connection: Connection,
    private readonly filesPath: string,
  ) {}

  /** Write a whole file; readers see the old file or the new one, never a part. */
  async write(path: FilePath, data: Data, options: WriteOptions = {}): Promise<FileEntry> {
    const { mode, overwrite = true, flush = true } = options;
    const answer = await this.connection.ask({
      method: "PUT",
      path: `${this.filesPath}/file`,
      query: {
        ...named(path, options.user),
        mode: mode?.toString(8).padStart(4, "0"),
        overwrite: overwrite ? undefined : false,
        flush: flush ? undefined : false,
      },
      body: data,
      headers: { "Content-Type": "application/octet-stream" },
      repeatable: overwrite,
      answerMs: null,
      signal: options.signal,
    });
    return decoded("FileEntry", answer);
  }

  /** Return the bytes of a file, or of a part of it. */
  async read(path: FilePath, options: ReadOptions = {}): Promise<FileBytes> {
    const { offset = 0, limit, maxBytes, signal } = options;
    const bounds = [limit, maxBytes].filter((one) => one !== undefined);
    const most = bounds.length === 0 ? undefined : Math.min(...bounds);
    const where = typeof path === "string" ? path : new TextDecoder().decode(path);
    if (most === 0) {
      const entry = await this.stat(path, { signal, user: options.user });
      return FileBytes.wrap(new Uint8Array(), entry.path, entry.size, offset < entry.size);
    }
    const part = rangeOf(offset, most);
    try {
      const response = await this.part(path, part, options);
      const told = Number(response.headers.get("content-length") ?? 0);
      if (told > MAX_WHOLE_READ) {
        await response.body?.cancel();
        throw new PayloadTooLarge(`${where} has ${told} bytes, more than ${MAX_WHOLE_READ} at once`, {
          hint: "use readStream, or read it in parts with offset and limit",
        });
      }
      const data = await whole(pieces(response, STALL_MS, signal), told);
      const found = /^bytes (?:\d+-\d+|\*)\/(\d{1,19})$/.exec(
        response.headers.get("content-range") ?? "",
      );
      const size = found === null ? data.length : Number(found[1]);
      return FileBytes.wrap(data, where, size, offset + data.length < size);
    } catch (error) {
      const behind = error instanceof InvalidRequest ? error.details["size"] : undefined;
      if (typeof behind === "number") {
        // A part behind the end is empty here, as in the file itself.
        return FileBytes.wrap(new Uint8Array(), where, behind, false);
      }
      throw lost(this.connection, `${where} was read`, error);
    }
  }

  /** Return the text of a file. */
  async readText(path: FilePath, options: ReadOptions = {}): Promise<string> {
    return (await this.read(path, options)).text;
  }

  /** Return the bytes of a file as they arrive. */
  async readStream(
    path: FilePath,
    options: ReadOptions = {},
  ): Promise<ReadableStream<Uint8Array>> {
    const { offset = 0, limit, signal } = options;
    const entry = await this.stat(path, { signal, user: options.user });
    if (limit === 0 || (offset > 0 && offset >= entry.size)) {
      return new Blob([]).stream();
    }
    const response = await this.part(path, rangeOf(offset, limit), options);
    return streamed(this.connection, response, `${entry.path} was read`, signal);
  }

  async stat(
    path: FilePath,
    options: FileOptions & { follow?: boolean | undefined } = {},
  ): Promise<FileEntry> {
    const query = { ...named(path, options.user), follow: options.follow };
    return decoded("FileEntry", await this.get("stat", query, options));
  }

  /** Return whether a path exists (a dangling link counts). */
  async exists(path: FilePath, options: FileOptions = {}): Promise<boolean> {
    try {
      await this.stat(path, { ...options, follow: false });
    } catch (error) {
      if (error instanceof FileNotFound) {
        return false;
      }
      throw error;
    }
    return true;
  }

  /** Return the entries of a directory by name: all, or the first `limit`. */
  async ls(
    path: FilePath = ".",
    options: FileOptions & { recursive?: boolean | undefined; limit?: number | undefined } = {},
  ): Promise<FileEntry[]> {
    const { recursive, limit = Infinity } = options;
    const found: FileEntry[] = [];
    let cursor: string | null = null;
    while (found.length < limit) {
      const size = Math.min(PAGE, limit - found.length);
      const name = named(path, options.user);
      const query: HttpRequest["query"] = { ...name, limit: size, recursive, cursor };
      const page: Entries = decoded("Entries", await this.get("list", query, options));
      found.push(...page.entries);
      cursor = page.nextCursor;
      // An empty page that promises more would keep us asking for ever.
      if (cursor === null || page.entries.length === 0) {
        break;
      }
      if (limit === Infinity && found.length > MAX_LISTED) {
        throw new PayloadTooLarge(`${page.path} has more than ${MAX_LISTED} entries`, {
          hint: "list a directory below it, or give a limit",
        });
      }
    }
    return found;
  }

  async mkdir(
    path: FilePath,
    options: FileOptions & { parents?: boolean | undefined; existOk?: boolean | undefined } = {},
  ): Promise<FileEntry> {
    const { parents = true, existOk = true } = options;
    const body = { ...named(path, options.user), parents, exist_ok: existOk };
    return decoded("FileEntry", await this.post("mkdir", body, existOk, options));
  }

  async move(
    source: FilePath,
    destination: FilePath,
    options: FileOptions & { overwrite?: boolean | undefined } = {},
  ): Promise<FileEntry> {
    const body = {
      ...userFields(options.user),
      ...nameFields("source", source),
      ...nameFields("destination", destination),
      overwrite: options.overwrite ?? false,
    };
    return decoded("FileEntry", await this.post("move", body, false, options));
  }

  /** Remove a file, or with `recursive` a tree; returns how many entries. */
  async remove(
    path: FilePath,
    options: FileOptions & {
      recursive?: boolean | undefined;
      missingOk?: boolean | undefined;
    } = {},
  ): Promise<number> {
    const { recursive = false, missingOk = false } = options;
    const body = { ...named(path, options.user), recursive, missing_ok: missingOk };
    return decoded("DeletedFiles", await this.post("delete", body, missingOk, options)).removed;
  }

  /** Unpack an uncompressed tar into a directory. A member that leads out of it is an error. */
  async uploadTar(
    data: Data,
    path: FilePath = ".",
    options: FileOptions & { flush?: boolean | undefined } = {},
  ): Promise<Uploaded> {
    const answer = await this.connection.ask({
      method: "POST",
      path: `${this.filesPath}/upload`,
      query: { ...named(path, options.user), flush: options.flush },
      body: data,
      headers: { "Content-Type": TAR },
      answerMs: null,
      signal: options.signal,
    });
    return decoded("Uploaded", answer);
  }

  /**
   * Return a tar of a directory as it arrives.
   *
   * Its members are the sandbox's: unpack it as you would any archive from elsewhere.
   */
  async downloadTar(
    path: FilePath = ".",
    options: FileOptions = {},
  ): Promise<ReadableStream<Uint8Array>> {
    const response = await this.connection.stream({
      method: "GET",
      path: `${this.filesPath}/download`,
      query: { ...named(path, options.user), format: "tar" },
      repeatable: true,
      answerMs: null,
      signal: options.signal,
    });
    return streamed(this.connection, response, "a directory was packed", options.signal);
  }

  private async part(
    path: FilePath,
    headers: Record<string, string>,
    options: FileOptions,
  ): Promise<Response> {
    const response = await this.connection.stream({
      method: "GET",
      path: `${this.filesPath}/download`,
      query: named(path, options.user),
      headers,
      repeatable: true,
      answerMs: null,
      signal: options.signal,
    });
    if (response.headers.get("content-type")?.startsWith(TAR) === true) {
      await response.body?.cancel();
      throw new IsADirectory("the path is a directory", { hint: "download it as a tar, or list it" });
    }
    return response;
  }

  private get(verb: string, query: HttpRequest["query"], options: CallOptions): Promise<unknown> {
    return this.connection.ask({
      method: "GET",
      path: `${this.filesPath}/${verb}`,
      query,
      repeatable: true,
      signal: options.signal,
    });
  }

  private post(
    verb: string,
    json: Json,
    repeatable: boolean,
    options: CallOptions,
  ): Promise<unknown> {
    return this.connection.ask({
      method: "POST",
      path: `${this.filesPath}/${verb}`,
      json,
      repeatable,
      signal: options.signal,
    });
  }
}

/** Changes to files as they happen, until closed. */
export async function* watch(
  connection: Connection,
  filesPath: string,
  path: FilePath,
  options: FileOptions & { recursive?: boolean | undefined },
): AsyncGenerator<Change, void, undefined> {
  const patience = new Patience();
  for (;;) {
    let cause: unknown;
    const again = patience.reached;
    try {
      const response = await connection.stream({
        method: "GET",
        path: `${filesPath}/watch`,
        query: { ...named(path, options.user), recursive: options.recursive ?? true },
        headers: EVENTS,
        repeatable: true,
        answerMs: null,
        signal: options.signal,
      });
      patience.there();
      for await (const event of events(response, options.signal)) {
        if (event.name === "change") {
          const { kind, path: changed, is_dir: isDir } = event.data;
          yield { kind: kind as Change["kind"], path: String(changed), isDir: isDir === true };
        } else if (event.name === "overflow" || (event.name === "ready" && again)) {
          // Changes during the interruption are unknown too.
          yield { kind: "overflow", path: "", isDir: false };
        }
      }
    } catch (error) {
      if (!isAway(error, patience)) {
        throw error;
      }
      cause = error;
    }
    const what = "the connection broke while a path was watched";
    await patience.wait(what, "watch it again", cause, options.signal);
  }
}

/** Return a body as a stream whose failures are errors of this client. */
export function streamed(
  connection: Connection,
  response: Response,
  what: string,
  signal: AbortSignal | undefined,
): ReadableStream<Uint8Array> {
  const source = pieces(response, STALL_MS, signal);
  return new ReadableStream<Uint8Array>({
    async pull(controller): Promise<void> {
      try {
        const next = await source.next();
        if (next.done === true) {
          controller.close();
        } else {
          controller.enqueue(next.value);
        }
      } catch (error) {
        controller.error(lost(connection, what, error));
      }
    },
    async cancel(): Promise<void> {
      await source.return(undefined);
    },
  });
}

function named(path: FilePath, user: string | undefined): Record<string, string> {
  return { ...nameFields("path", path), ...userFields(user) };
}

function userFields(user: string | undefined): Record<string, string> {
  return user === undefined ? {} : { user };
}

/** Return the fields of a name; one that is not UTF-8 is sent as base64 in a second field. */
export function nameFields(field: string, name: FilePath): Record<string, string> {
  if (typeof name !== "string") {
    return { [`${field}_b64`]: toBase64(name) };
  }
  if (/\p{Surrogate}/u.test(name)) {
    throw new InvalidRequest(`${field} has characters that no file name can have`, {
      hint: "remove the unpaired surrogates, or pass the bytes of the name",
      details: { field },
    });
  }
  return { [field]: name };
}

function rangeOf(offset: number, most: number | undefined): Record<string, string> {
  if (offset === 0 && most === undefined) {
    return {};
  }
  return { Range: `bytes=${offset}-${most === undefined ? "" : offset + most - 1}` };
}

async function whole(
  source: AsyncIterable<Uint8Array<ArrayBuffer>>,
  told: number,
): Promise<Uint8Array<ArrayBuffer>> {
  const parts: Uint8Array<ArrayBuffer>[] = [];
  let length = 0;
  for await (const part of source) {
    parts.push(part);
    length += part.length;
    if (length > MAX_WHOLE_READ) {
      throw new PayloadTooLarge(`the file has more than ${MAX_WHOLE_READ} bytes`, {
        hint: "use readStream, or read it in parts with offset and limit",
      });
    }
  }
  const [only] = parts;
  if (parts.length === 1 && only !== undefined && only.length === told) {
    return only;
  }
  const data = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    data.set(part, at);
    at += part.length;
  }
  return data;
}
