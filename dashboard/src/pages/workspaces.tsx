/** Named workspaces: the list, and one with its size and its files. */

import type { VNode } from "preact";
import { useState } from "preact/hooks";
import type { FileEntry, Workspace } from "sandkasten";
import { Badge } from "../components/badge.js";
import { type Column, DataTable } from "../components/data_table.js";
import { Confirm } from "../components/dialog.js";
import { saveAs } from "../components/downloads.js";
import { Facts } from "../components/facts.js";
import { Failure } from "../components/failure.js";
import { Field, FormDialog } from "../components/form_dialog.js";
import { ListPage } from "../components/list_page.js";
import { usePolled } from "../components/polled.js";
import { bytes } from "../components/units.js";
import { When } from "../components/when.js";
import { daemon } from "../daemon.js";
import type { PageProps } from "../pages.js";
import { address, go } from "../router.js";

const MOST_FILES = 10_000;
const LOST = "Everything in this workspace is lost.";

const COLUMNS: readonly Column<Workspace>[] = [
  {
    title: "Name",
    cell: ({ name }) => <a href={address(["workspaces", name])}>{name}</a>,
    sort: ({ name }) => name,
  },
  {
    title: "State",
    cell: (one) => <Badge state={stateOf(one)} />,
    sort: stateOf,
  },
  { title: "Sessions", cell: ({ usedBy }) => <Sessions ids={usedBy} />, wide: true },
  {
    title: "Size",
    cell: ({ sizeBytes }) => bytes(sizeBytes),
    sort: ({ sizeBytes }) => sizeBytes ?? 0,
    numeric: true,
  },
  {
    title: "Created",
    cell: ({ createdAt }) => <When unix={createdAt} />,
    sort: ({ createdAt }) => -(createdAt ?? 0),
    numeric: true,
    wide: true,
  },
];

export default function Workspaces({ place }: PageProps): VNode {
  const name = place.parts[1];
  return name === undefined ? (
    <WorkspaceList />
  ) : (
    <OneWorkspace key={name} name={name} path={place.query.get("path") ?? "."} />
  );
}

function WorkspaceList(): VNode {
  const [creating, setCreating] = useState(false);
  return (
    <>
      <ListPage<Workspace>
        title="Workspaces"
        load={(signal) => daemon().workspaces.list({ signal })}
        columns={COLUMNS}
        keyOf={({ name }) => name}
        textOf={({ name, usedBy }) => `${name} ${usedBy.join(" ")}`}
        buttons={() => (
          <button type="button" class="primary" onClick={() => setCreating(true)}>
            New workspace
          </button>
        )}
        actions={({ name }, { refresh }) => (
          <Confirm
            label="Delete"
            about={name}
            question={LOST}
            act={() => daemon().workspaces.delete(name)}
            done={refresh}
          />
        )}
        empty="There are no workspaces. Create one, or name one when you create a session."
      />
      {creating && (
        <FormDialog
          title="New workspace"
          label="Create"
          close={() => setCreating(false)}
          send={async (fields) => {
            const name = fields.text("name") ?? "";
            await daemon().workspaces.create(name, { sizeMb: fields.number("size") });
            go(["workspaces", name]);
          }}
        >
          <Field name="name" label="Name" required />
          <Size />
        </FormDialog>
      )}
    </>
  );
}

function Size({ required = false }: { required?: boolean }): VNode {
  return (
    <Field
      name="size"
      label="Size (MiB)"
      type="number"
      min="1"
      required={required}
      placeholder="the default"
    />
  );
}

function OneWorkspace({ name, path }: { name: string; path: string }): VNode {
  const found = usePolled((signal) => daemon().workspaces.get(name, { signal }), 10_000);
  const [open, setOpen] = useState<"copy" | "resize">();
  const close = (): void => setOpen(undefined);
  const one = found.value;
  return (
    <section>
      <div class="heading">
        <a href={address(["workspaces"])}>Workspaces</a>
        <span aria-hidden="true">/</span>
        <h1>{name}</h1>
        {one !== undefined && <Badge state={stateOf(one)} />}
        <div class="tools">
          <button type="button" onClick={() => setOpen("copy")}>
            Copy
          </button>
          <button type="button" onClick={() => setOpen("resize")}>
            Enlarge
          </button>
          <Confirm
            label="Delete"
            about={name}
            question={LOST}
            act={() => daemon().workspaces.delete(name)}
            done={() => go(["workspaces"])}
          />
        </div>
      </div>
      {found.error !== undefined && <Failure error={found.error} />}
      {one?.problem != null && <p class="failure">{one.problem}</p>}
      {one !== undefined && (
        <>
          <Facts
            facts={[
              ["Size", bytes(one.sizeBytes)],
              ["Used", bytes(one.usedBytes)],
              ["On the host", bytes(one.allocatedBytes)],
              ["Enforced by", one.kind === "image" ? "the kernel" : "nothing: it is a directory"],
              ["Created", <When unix={one.createdAt} />],
              ["Sessions", one.usedBy.length === 0 ? "none" : <Sessions ids={one.usedBy} />],
            ]}
          />
          <Files name={name} path={path} />
        </>
      )}
      {open === "copy" && (
        <FormDialog
          title={`Copy ${name}`}
          label="Copy"
          close={close}
          send={async (fields) => {
            const target = fields.text("name") ?? "";
            await daemon().workspaces.copy(name, target);
            go(["workspaces", target]);
          }}
        >
          <Field name="name" label="Name of the copy" required />
        </FormDialog>
      )}
      {open === "resize" && (
        <FormDialog
          title={`Enlarge ${name}`}
          label="Enlarge"
          close={close}
          send={async (fields) => {
            await daemon().workspaces.resize(name, fields.number("size") ?? 0);
            found.refresh();
          }}
        >
          <Size required />
        </FormDialog>
      )}
    </section>
  );
}

function Files({ name, path }: { name: string; path: string }): VNode {
  const tree = daemon().workspaces.files(name);
  const list = usePolled(
    (signal) => tree.ls(path, { signal, limit: MOST_FILES }),
    0,
    `${name} ${path}`,
  );
  const [error, setError] = useState<unknown>();
  const save = async (file: FileEntry): Promise<void> => {
    try {
      const stream = await tree.readStream(file.path);
      saveAs(await new Response(stream).blob(), file.name);
      setError(undefined);
    } catch (problem) {
      setError(problem);
    }
  };
  const columns: Column<FileEntry>[] = [
    {
      title: "File",
      cell: (file) =>
        file.isDir ? (
          <a href={address(["workspaces", name], { path: file.path })}>{file.name}/</a>
        ) : (
          file.name
        ),
      sort: (file) => `${file.isDir ? 0 : 1}${file.name}`,
    },
    {
      title: "Size",
      cell: (file) => (file.type === "file" ? bytes(file.sizeBytes) : ""),
      sort: (file) => file.sizeBytes,
      numeric: true,
    },
    {
      title: "Changed",
      cell: (file) => <When unix={file.mtimeUnix} />,
      sort: (file) => -(file.mtimeUnix),
      numeric: true,
      wide: true,
    },
  ];
  return (
    <>
      <div class="heading">
        <h2>Files</h2>
        <Crumbs name={name} path={path} />
      </div>
      {list.error !== undefined && <Failure error={list.error} />}
      {error !== undefined && <Failure error={error} />}
      {list.value !== undefined && (
        <DataTable
          caption="Files"
          rows={list.value}
          columns={columns}
          keyOf={(file) => file.path}
          actions={(file) =>
            file.type === "file" && (
              <button
                type="button"
                aria-label={`Download ${file.name}`}
                onClick={() => void save(file)}
              >
                Download
              </button>
            )
          }
          empty="This folder is empty."
        />
      )}
    </>
  );
}

function Crumbs({ name, path }: { name: string; path: string }): VNode {
  const parts = path.split("/").filter((part) => part !== "" && part !== ".");
  return (
    <nav class="crumbs" aria-label="Folder">
      <a href={address(["workspaces", name])}>{name}</a>
      {parts.map((part, at) => (
        <span key={at}>
          {" / "}
          <a href={address(["workspaces", name], { path: parts.slice(0, at + 1).join("/") })}>
            {part}
          </a>
        </span>
      ))}
    </nav>
  );
}

function Sessions({ ids }: { ids: readonly string[] }): VNode {
  return (
    <>
      {ids.map((id) => (
        <a key={id} class="mono spaced" href={address(["sessions", id])}>
          {id}
        </a>
      ))}
    </>
  );
}

function stateOf({ problem, usedBy }: Workspace): string {
  return problem !== null ? "damaged" : usedBy.length > 0 ? "in use" : "free";
}
