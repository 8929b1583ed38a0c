/** Files and trees between this machine and a session. */

import { createReadStream, createWriteStream } from "node:fs";
import { lstat, mkdir, readdir, rename, rm, stat } from "node:fs/promises";
import { basename, join, resolve, sep } from "node:path";
import { pipeline } from "node:stream/promises";

import type { CallOptions } from "../commands.js";
import { PayloadTooLarge } from "../generated/error_classes.js";
import type { FileEntry } from "../generated/schema.js";
import { randomHex } from "../json.js";
import type { Session } from "../session.js";

// A sandbox must not fill the disk of its client by accident.
const MAX_DOWNLOAD_BYTES = 10_000_000_000;

/** What an upload or download moved. `skipped` names what was left out. */
export interface Transfer {
  path: string;
  files: number;
  bytes: number;
  skipped: string[];
}

/** Copy a local file to `remote`, or the contents of a directory into `remote`. */
export async function upload(
  session: Session,
  local: string,
  remote: string,
  options: CallOptions = {},
): Promise<Transfer> {
  const found = await stat(local);
  const moved: Transfer = { path: remote, files: 0, bytes: 0, skipped: [] };
  if (!found.isDirectory()) {
    await sendFile(session, local, remote, found.mode, moved, options);
    return moved;
  }
  await session.mkdir(remote, options);
  const left: [string, string][] = [[local, remote]];
  for (let next = left.pop(); next !== undefined; next = left.pop()) {
    const [from, to] = next;
    for (const name of (await readdir(from)).sort()) {
      const here = join(from, name);
      const one = await lstat(here);
      if (one.isDirectory()) {
        await session.mkdir(`${to}/${name}`, options);
        left.push([here, `${to}/${name}`]);
      } else if (one.isFile()) {
        await sendFile(session, here, `${to}/${name}`, one.mode, moved, options);
      } else {
        moved.skipped.push(`${here}: neither a file nor a directory`);
      }
    }
  }
  return moved;
}

/**
 * Copy a file to `local` (or into it, if it is a directory), or a tree's contents into `local`.
 *
 * Names come from the sandbox: entries that would land outside `local`, and anything but files and
 * directories, are left out and named in `skipped`.
 */
export async function download(
  session: Session,
  remote: string,
  local: string,
  options: CallOptions & { maxBytes?: number | undefined } = {},
): Promise<Transfer> {
  const { signal, maxBytes = MAX_DOWNLOAD_BYTES } = options;
  const entry = await session.stat(remote, { signal });
  const moved: Transfer = { path: local, files: 0, bytes: 0, skipped: [] };
  const fetchOne = async (path: string, to: string, mode: number): Promise<void> => {
    const size = await receiveFile(session, path, to, mode, maxBytes - moved.bytes, signal);
    moved.files += 1;
    moved.bytes += size;
  };
  if (!entry.isDir) {
    const into = await stat(local).catch(() => undefined);
    const to = into?.isDirectory() === true ? join(local, basename(entry.name)) : local;
    await fetchOne(entry.path, to, entry.mode);
    return { ...moved, path: to };
  }
  const root = resolve(local);
  await mkdir(root, { recursive: true });
  for (const one of await session.ls(remote, { recursive: true, signal })) {
    const to = placeOf(root, entry, one);
    if (to === undefined || (await leavesRoot(root, to))) {
      moved.skipped.push(`${one.path}: it would land outside`);
    } else if (one.isDir) {
      await mkdir(to, { recursive: true });
    } else if (one.type === "file") {
      await fetchOne(one.path, to, one.mode);
    } else {
      moved.skipped.push(`${one.path}: neither a file nor a directory`);
    }
  }
  return moved;
}

async function sendFile(
  session: Session,
  local: string,
  remote: string,
  mode: number,
  moved: Transfer,
  options: CallOptions,
): Promise<void> {
  const written = await session.write(remote, createReadStream(local), {
    ...options,
    mode: mode & 0o777,
  });
  moved.files += 1;
  moved.bytes += written.size;
}

async function receiveFile(
  session: Session,
  remote: string,
  local: string,
  mode: number,
  maxBytes: number,
  signal: AbortSignal | undefined,
): Promise<number> {
  const part = `${local}.part-${randomHex(4)}`;
  let size = 0;
  try {
    const source = await session.readStream(remote, { signal });
    await pipeline(
      source as unknown as AsyncIterable<Uint8Array>,
      async function* (pieces: AsyncIterable<Uint8Array>) {
        for await (const piece of pieces) {
          size += piece.length;
          if (size > maxBytes) {
            throw new PayloadTooLarge(`${remote} is larger than maxBytes allows`, {
              hint: "raise maxBytes",
            });
          }
          yield piece;
        }
      },
      // Neither set-user-id nor what else the sandbox may have set.
      createWriteStream(part, { flags: "wx", mode: mode & 0o777 }),
    );
    await rename(part, local);
  } finally {
    await rm(part, { force: true });
  }
  return size;
}

function placeOf(root: string, top: FileEntry, one: FileEntry): string | undefined {
  const prefix = top.path.endsWith("/") ? top.path : `${top.path}/`;
  // A name that is not UTF-8 cannot be asked for by its text.
  if (!one.path.startsWith(prefix) || typeof one.pathB64 === "string") {
    return undefined;
  }
  const to = resolve(root, one.path.slice(prefix.length));
  return to.startsWith(root + sep) ? to : undefined;
}

/** Return whether a link on this machine leads a path below `root` out of it. */
async function leavesRoot(root: string, to: string): Promise<boolean> {
  const names = to.slice(root.length + 1).split(sep);
  for (let count = 1; count <= names.length; count += 1) {
    const found = await lstat(join(root, ...names.slice(0, count))).catch(() => undefined);
    if (found?.isSymbolicLink() === true) {
      return true;
    }
  }
  return false;
}
