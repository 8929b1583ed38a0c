/** Files of a session: browse, view, edit, upload, download and delete. */

import type { TargetedEvent, VNode } from "preact";
import { useRef, useState } from "preact/hooks";
import type { FileEntry, FilePath, Session } from "sandkasten";
import { type Column, DataTable } from "../components/data_table.js";
import { Confirm } from "../components/dialog.js";
import { saveAs } from "../components/downloads.js";
import { Failure } from "../components/failure.js";
import { usePolled } from "../components/polled.js";
import { bytes } from "../components/units.js";
import { When } from "../components/when.js";
import type { TabProps } from "../pages/session.js";
import { address } from "../router.js";
import { FileView } from "./file_view.js";

export default function FilesTab({ session, info, place }: TabProps): VNode {
  const path = place.query.get("path") ?? info.workdir;
  const open = place.query.get("open");
  const list = usePolled((signal) => session.ls(path, { signal, limit: 10_000 }), 4000, path);
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState("");
  const picker = useRef<HTMLInputElement>(null);
  const attempt = async (what: string, act: () => Promise<unknown>): Promise<void> => {
    setBusy(what);
    try {
      await act();
      setError(undefined);
    } catch (problem) {
      setError(problem);
    }
    setBusy("");
    list.refresh();
  };
  const upload = (files: FileList | null): Promise<void> =>
    attempt("Uploading", async () => {
      for (const file of files ?? []) {
        await session.write(join(path, file.name), file);
      }
    });
  const makeFolder = (event: TargetedEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const form = event.currentTarget;
    const name = String(new FormData(form).get("folder") ?? "");
    form.reset();
    void attempt("Creating", () => session.mkdir(join(path, name), { existOk: false }));
  };
  return (
    <div
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        void upload(event.dataTransfer?.files ?? null);
      }}
    >
      <div class="heading">
        <Crumbs session={session} path={path} />
        <span role="status" class="muted">
          {busy}
        </span>
        <div class="tools">
          <form class="line-form" onSubmit={makeFolder}>
            <label class="hidden" for="folder">
              New folder
            </label>
            <input id="folder" name="folder" placeholder="New folder" required />
            <button type="submit">Create</button>
          </form>
          <button
            type="button"
            onClick={() =>
              attempt("Packing", async () =>
                saveAs(await new Response(await session.downloadTar(path)).blob(), "files.tar"),
              )
            }
          >
            Download all
          </button>
          <button class="primary" type="button" onClick={() => picker.current?.click()}>
            Upload
          </button>
          <input
            ref={picker}
            class="hidden"
            type="file"
            multiple
            aria-label="Files to upload"
            tabIndex={-1}
            onChange={(event) => void upload(event.currentTarget.files)}
          />
        </div>
      </div>
      {error !== undefined && <Failure error={error} />}
      {list.error !== undefined && <Failure error={list.error} />}
      {open !== null && (
        <FileView
          key={open}
          session={session}
          path={open}
          closed={address(["sessions", session.id, "files"], { path })}
        />
      )}
      <DataTable
        caption="Files"
        rows={sorted(list.value ?? [])}
        columns={columnsOf(session, path)}
        keyOf={(entry) => entry.pathB64 ?? entry.path}
        actions={(entry) => (
          <>
            {entry.type === "file" && (
              <button
                type="button"
                aria-label={`Download ${entry.name}`}
                onClick={() =>
                  attempt("Downloading", async () => {
                    const stream = await session.readStream(exact(entry));
                    saveAs(await new Response(stream).blob(), entry.name);
                  })
                }
              >
                Download
              </button>
            )}{" "}
            <Confirm
              label="Delete"
              about={entry.name}
              question={entry.isDir ? "Everything in it is deleted." : "It cannot be undone."}
              act={() => session.remove(exact(entry), { recursive: entry.isDir })}
              done={list.refresh}
            />
          </>
        )}
        empty={list.value === undefined ? "Loading" : "This folder is empty."}
      />
    </div>
  );
}

function columnsOf(session: Session, path: string): readonly Column<FileEntry>[] {
  const here = ["sessions", session.id, "files"];
  return [
    {
      title: "Name",
      cell: (entry) => (
        <a
          class="mono"
          href={address(here, entry.isDir ? { path: entry.path } : { path, open: entry.path })}
        >
          {entry.name}
          {entry.isDir ? "/" : ""}
          {typeof entry.target === "string" && <span class="muted"> → {entry.target}</span>}
        </a>
      ),
      sort: ({ name }) => name,
    },
    {
      title: "Size",
      cell: ({ isDir, size }) => (isDir ? "–" : bytes(size)),
      sort: ({ size }) => size,
      numeric: true,
    },
    {
      title: "Changed",
      cell: ({ mtimeUnix }) => <When unix={mtimeUnix} />,
      sort: ({ mtimeUnix }) => -mtimeUnix,
      wide: true,
    },
    {
      title: "Mode",
      cell: ({ mode }) => <span class="mono">{(mode & 0o7777).toString(8).padStart(4, "0")}</span>,
      wide: true,
    },
  ];
}

function Crumbs({ session, path }: { session: Session; path: string }): VNode {
  const parts = path.split("/").filter((part) => part !== "");
  const here = ["sessions", session.id, "files"];
  return (
    <nav class="crumbs mono" aria-label="Folder">
      <a href={address(here, { path: "/" })}>/</a>
      {parts.map((part, at) => (
        <span key={at}>
          <a href={address(here, { path: `/${parts.slice(0, at + 1).join("/")}` })}>{part}</a>
          <span aria-hidden="true">/</span>
        </span>
      ))}
    </nav>
  );
}

function sorted(entries: readonly FileEntry[]): FileEntry[] {
  return [...entries].sort((a, b) =>
    a.isDir === b.isDir ? (a.name < b.name ? -1 : 1) : a.isDir ? -1 : 1,
  );
}

/** Return the name as the sandbox has it, which may not be UTF-8. */
function exact({ path, pathB64 }: FileEntry): FilePath {
  return typeof pathB64 === "string"
    ? Uint8Array.from(atob(pathB64), (one) => one.charCodeAt(0))
    : path;
}

function join(folder: string, name: string): string {
  return folder.endsWith("/") ? folder + name : `${folder}/${name}`;
}
