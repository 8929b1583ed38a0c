/** What a daemon keeps beside sessions: images, workspaces, files, secrets and keys. */

import type { CallOptions } from "./commands.js";
import { type Connection, type Data, given, type HttpRequest, lost } from "./connection.js";
import { EVENTS, events } from "./events.js";
import { FileTree, streamed } from "./files.js";
import { BackendUnavailable, FileNotFound } from "./generated/error_classes.js";
import { KNOWN_IMAGES } from "./generated/model_tables.js";
import type {
  ApiKey,
  Collected,
  CreatedKey,
  ImageInfo,
  ImageUsage,
  KeyBody,
  RemovedOne,
  Secret,
  SecretBody,
  Snapshot,
  StoredFile,
  Workspace,
} from "./generated/schema.js";
import { decoded, encoded } from "./json.js";

const SLOW_MS = 600_000;

/** The images of the store. A name is `repository[:tag]`, or an id. */
export class Images {
  /** The names that `build` takes: `datascience`, `base`, `code-interpreter-v1` and others. */
  readonly buildable: readonly string[] = KNOWN_IMAGES;

  /** Made by a client. */
  constructor(private readonly connection: Connection) {}

  /** Return every image, by name. */
  async list(options: CallOptions = {}): Promise<ImageInfo[]> {
    return decoded("AllImages", await ask(this.connection, "GET", "/v1/images", options)).images;
  }

  /** Return an image with its layers, its configuration and the sandboxes that use it. */
  async inspect(name: string, options: CallOptions = {}): Promise<ImageInfo> {
    return decoded("ImageInfo", await ask(this.connection, "GET", path("images", name), options));
  }

  /** Import a docker archive, an OCI layout as a tar, or a tar of a root file system. */
  async importArchive(
    data: Data,
    options: CallOptions & { name?: string | undefined; platform?: string | undefined } = {},
  ): Promise<ImageInfo[]> {
    const { name, platform } = options;
    const answer = await ask(this.connection, "POST", "/v1/images/import", options, {
      query: { name, platform },
      body: data,
      headers: { "Content-Type": "application/x-tar" },
      answerMs: null,
    });
    return decoded("AllImages", answer).images;
  }

  /** Pull an image from its registry. `onProgress` gets what is done and of how much. */
  async pull(
    name: string,
    options: CallOptions & {
      platform?: string | undefined;
      onProgress?: ((progress: Record<string, unknown>) => void) | undefined;
    } = {},
  ): Promise<ImageInfo> {
    const body = given({ name, platform: options.platform });
    return decoded("ImageInfo", await this.followed("pull", `${name} was pulled`, body, options));
  }

  /** Build an image by its name, one of `buildable`. `onProgress` gets the output, as `text`. */
  async build(
    name: string,
    options: CallOptions & {
      refresh?: boolean | undefined;
      onProgress?: ((progress: Record<string, unknown>) => void) | undefined;
    } = {},
  ): Promise<ImageInfo> {
    const body = given({ name, refresh: options.refresh });
    return decoded("ImageInfo", await this.followed("build", `${name} was built`, body, options));
  }

  private async followed(
    verb: "pull" | "build",
    what: string,
    json: Record<string, unknown>,
    options: CallOptions & {
      onProgress?: ((progress: Record<string, unknown>) => void) | undefined;
    },
  ): Promise<Record<string, unknown>> {
    const response = await this.connection.stream({
      method: "POST",
      path: `/v1/images/${verb}`,
      json,
      headers: EVENTS,
      // What has come stays, so that asking again goes on.
      repeatable: true,
      answerMs: null,
      signal: options.signal,
    });
    try {
      for await (const event of events(response, options.signal)) {
        if (event.name === "progress") {
          options.onProgress?.(event.data);
        } else if (event.name === "done") {
          return event.data;
        }
      }
    } catch (error) {
      throw lost(this.connection, what, error);
    }
    throw new BackendUnavailable(`the connection was lost while ${what}`, {
      hint: "ask again: what has come is kept",
    });
  }

  /** Add a name to an image; a name that another image has is moved. */
  async tag(name: string, newName: string, options: CallOptions = {}): Promise<ImageInfo> {
    const more = { json: { name, new: newName }, repeatable: true };
    const answer = await ask(this.connection, "POST", "/v1/images/tag", options, more);
    return decoded("ImageInfo", answer);
  }

  /** Remove a name, and the image with its last one. Conflict while a sandbox uses it. */
  async remove(name: string, options: CallOptions = {}): Promise<RemovedOne> {
    const where = path("images", name);
    return decoded("RemovedOne", await ask(this.connection, "DELETE", where, options));
  }

  /** Remove images without a name that no sandbox uses. */
  async collect(options: CallOptions = {}): Promise<Collected> {
    const more = { json: {}, answerMs: SLOW_MS };
    const answer = await ask(this.connection, "POST", "/v1/images/collect", options, more);
    return decoded("Collected", answer);
  }

  /** Return the disk usage of the store, and how much a collection would free. */
  async usage(options: CallOptions = {}): Promise<ImageUsage> {
    return decoded("ImageUsage", await ask(this.connection, "GET", "/v1/images/usage", options));
  }
}

/** The named workspaces of a daemon. */
export class Workspaces {
  /** Made by a client. */
  constructor(private readonly connection: Connection) {}

  /** Return all by name, without sizes; a damaged one has its problem. */
  async list(options: CallOptions = {}): Promise<Workspace[]> {
    const answer = await ask(this.connection, "GET", "/v1/workspaces", options);
    return decoded("AllWorkspaces", answer).workspaces;
  }

  /** Return one with its size, its use on the host, and the sandboxes that use it. */
  async get(name: string, options: CallOptions = {}): Promise<Workspace> {
    const where = path("workspaces", name);
    return decoded("Workspace", await ask(this.connection, "GET", where, options));
  }

  /** Create an empty one; a session creates a missing one by itself. */
  async create(
    name: string,
    options: CallOptions & { sizeMb?: number | undefined } = {},
  ): Promise<Workspace> {
    const more = { json: given({ name, size_mb: options.sizeMb }) };
    const answer = await ask(this.connection, "POST", "/v1/workspaces", options, more);
    return decoded("Workspace", answer);
  }

  /** Copy one with its content and size; Conflict while a session uses the source. */
  async copy(source: string, target: string, options: CallOptions = {}): Promise<Workspace> {
    const more = { json: { name: target }, answerMs: null };
    const where = `${path("workspaces", source)}/copy`;
    return decoded("Workspace", await ask(this.connection, "POST", where, options, more));
  }

  /** Enlarge it; Conflict while a session uses it. */
  async resize(name: string, sizeMb: number, options: CallOptions = {}): Promise<Workspace> {
    const more = { json: { size_mb: sizeMb }, answerMs: SLOW_MS };
    const where = `${path("workspaces", name)}/resize`;
    return decoded("Workspace", await ask(this.connection, "POST", where, options, more));
  }

  /** Delete it with everything in it; Conflict while a session uses it. */
  async delete(name: string, options: CallOptions = {}): Promise<void> {
    const more = { answerMs: SLOW_MS };
    await ask(this.connection, "DELETE", path("workspaces", name), options, more);
  }

  /** Return the files of a workspace, without a session. */
  files(name: string): FileTree {
    return new FileTree(this.connection, `${path("workspaces", name)}/fs`);
  }
}

/** The snapshots of a daemon. `Session.snapshot` takes one. */
export class Snapshots {
  /** Made by a client. */
  constructor(private readonly connection: Connection) {}

  /** Return all, oldest first. */
  async list(options: CallOptions = {}): Promise<Snapshot[]> {
    const answer = await ask(this.connection, "GET", "/v1/snapshots", options);
    return decoded("AllSnapshots", answer).snapshots;
  }

  /** Return one by its id, or the newest of a name. */
  async get(snapshot: string, options: CallOptions = {}): Promise<Snapshot> {
    const where = path("snapshots", snapshot);
    return decoded("Snapshot", await ask(this.connection, "GET", where, options));
  }

  /** Delete one by its id, or the newest of a name; sessions made from it keep their files. */
  async delete(snapshot: string, options: CallOptions = {}): Promise<void> {
    const more = { answerMs: SLOW_MS };
    await ask(this.connection, "DELETE", path("snapshots", snapshot), options, more);
  }
}

export interface PutOptions extends CallOptions {
  key?: string | undefined;
  contentType?: string | undefined;
  ttlSeconds?: number | undefined;
  metadata?: Record<string, string> | undefined;
  overwrite?: boolean | undefined;
}

/** The file store of a daemon: files that outlive sessions. */
export class StoredFiles {
  /** Made by a client. */
  constructor(private readonly connection: Connection) {}

  /** Store a file; without a key it gets one. */
  async put(data: Data, options: PutOptions = {}): Promise<StoredFile> {
    const { key, ttlSeconds, metadata, overwrite } = options;
    const answer = await ask(this.connection, "POST", "/v1/files", options, {
      query: {
        key,
        ttl_seconds: ttlSeconds,
        metadata: metadata === undefined ? undefined : JSON.stringify(metadata),
        overwrite: overwrite === true ? true : undefined,
      },
      body: data,
      headers: { "Content-Type": options.contentType ?? "application/octet-stream" },
      answerMs: null,
    });
    return decoded("StoredFile", answer);
  }

  /** Return the bytes of a file as they arrive; FileNotFound if there is none. */
  async get(key: string, options: CallOptions = {}): Promise<ReadableStream<Uint8Array>> {
    const response = await this.connection.stream({
      method: "GET",
      path: keyPath(key),
      repeatable: true,
      answerMs: null,
      signal: options.signal,
    });
    return streamed(this.connection, response, `${key} was read`, options.signal);
  }

  /** Return what is known of a file; FileNotFound if there is none. */
  async info(key: string, options: CallOptions = {}): Promise<StoredFile> {
    // Use the list: headers lack some fields. An exact key sorts before its extensions.
    const more = { query: { prefix: key, limit: 1 } };
    const answer = await ask(this.connection, "GET", "/v1/files", options, more);
    const [found] = decoded("FileList", answer).files;
    if (found?.key !== key) {
      throw new FileNotFound(`there is no stored file ${JSON.stringify(key.slice(0, 200))}`, {
        hint: "list the files for their keys",
      });
    }
    return found;
  }

  /** Return the files whose keys begin with `prefix`. */
  async list(prefix = "", options: CallOptions = {}): Promise<StoredFile[]> {
    const found: StoredFile[] = [];
    let cursor: string | null | undefined;
    do {
      const more = { query: { prefix: prefix || undefined, cursor } };
      const answer = await ask(this.connection, "GET", "/v1/files", options, more);
      const page = decoded("FileList", answer);
      found.push(...page.files);
      cursor = page.next;
    } while (cursor !== null && cursor !== undefined);
    return found;
  }

  /** Delete a file; FileNotFound if there is none. */
  async delete(key: string, options: CallOptions = {}): Promise<void> {
    await ask(this.connection, "DELETE", keyPath(key), options);
  }
}

/** Secrets of a daemon. A value goes in and never comes out again. */
export class Secrets {
  /** Made by a client. */
  constructor(private readonly connection: Connection) {}

  /** Store a secret, or replace the one with this name. */
  async set(secret: SecretBody, options: CallOptions = {}): Promise<Secret> {
    const more = { json: encoded("SecretBody", secret) };
    return decoded("Secret", await ask(this.connection, "POST", "/v1/secrets", options, more));
  }

  /** Return all by name, without values. */
  async list(options: CallOptions = {}): Promise<Secret[]> {
    const answer = await ask(this.connection, "GET", "/v1/secrets", options);
    return decoded("SecretList", answer).secrets;
  }

  /** Remove one; running sandboxes keep it. */
  async remove(name: string, options: CallOptions = {}): Promise<void> {
    await ask(this.connection, "DELETE", path("secrets", name), options);
  }
}

/** API keys of a daemon; requires a key with the scope admin. */
export class Keys {
  /** Made by a client. */
  constructor(private readonly connection: Connection) {}

  /** Create a key. Its value is in this answer and nowhere else. */
  async create(key: KeyBody = {}, options: CallOptions = {}): Promise<CreatedKey> {
    const more = { json: encoded("KeyBody", key) };
    return decoded("CreatedKey", await ask(this.connection, "POST", "/v1/keys", options, more));
  }

  async list(options: CallOptions & { tenant?: string | undefined } = {}): Promise<ApiKey[]> {
    const more = { query: { tenant: options.tenant } };
    return decoded("KeyList", await ask(this.connection, "GET", "/v1/keys", options, more)).keys;
  }

  async revoke(id: string, options: CallOptions = {}): Promise<ApiKey> {
    const more = { repeatable: true };
    return decoded("ApiKey", await ask(this.connection, "DELETE", path("keys", id), options, more));
  }
}

function ask(
  connection: Connection,
  method: string,
  where: string,
  options: CallOptions,
  more: Partial<HttpRequest> = {},
): Promise<unknown> {
  const repeatable = method === "GET";
  return connection.ask({ method, path: where, repeatable, signal: options.signal, ...more });
}

function path(kind: string, name: string): string {
  return `/v1/${kind}/${encodeURIComponent(name)}`;
}

function keyPath(key: string): string {
  return `/v1/files/${key.split("/").map(encodeURIComponent).join("/")}`;
}
