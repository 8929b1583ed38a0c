/** Sessions: the list, and a dialog that creates one. An id in the address is one session. */

import type { TargetedEvent, VNode } from "preact";
import { useState } from "preact/hooks";
import type { SessionInfo } from "sandkasten";
import { Badge } from "../components/badge.js";
import type { Column } from "../components/data_table.js";
import { Confirm, Dialog } from "../components/dialog.js";
import { Failure } from "../components/failure.js";
import { ListPage } from "../components/list_page.js";
import { ago } from "../components/units.js";
import { daemon } from "../daemon.js";
import type { PageProps } from "../pages.js";
import { address, go } from "../router.js";
import { SessionPage } from "./session.js";

const COLUMNS: readonly Column<SessionInfo>[] = [
  {
    title: "Session",
    cell: ({ id }) => (
      <a class="mono" href={address(["sessions", id])}>
        {id}
      </a>
    ),
    sort: ({ id }) => id,
  },
  { title: "State", cell: ({ status }) => <Badge state={status} />, sort: ({ status }) => status },
  { title: "Image", cell: ({ image }) => image, sort: ({ image }) => image },
  { title: "Labels", cell: ({ labels }) => labelsOf(labels), wide: true },
  { title: "Backend", cell: ({ backend }) => backend, sort: ({ backend }) => backend, wide: true },
  {
    title: "Memory",
    cell: ({ limits }) => `${limits["mem_limit_mb"] ?? "–"} MB`,
    sort: ({ limits }) => limits["mem_limit_mb"] ?? 0,
    numeric: true,
    wide: true,
  },
  {
    title: "Age",
    cell: ({ createdAtUnix }) => ago(createdAtUnix),
    sort: ({ createdAtUnix }) => -createdAtUnix,
    numeric: true,
  },
];

export default function Sessions({ place }: PageProps): VNode {
  const id = place.parts[1];
  return id === undefined ? <SessionList /> : <SessionPage key={id} id={id} place={place} />;
}

function SessionList(): VNode {
  const [creating, setCreating] = useState(false);
  return (
    <>
      <ListPage<SessionInfo>
        title="Sessions"
        load={(signal) => daemon().listSessions({ signal })}
        everyMs={3000}
        columns={COLUMNS}
        keyOf={({ id }) => id}
        textOf={({ id, image, backend, status, labels, workspaceId }) =>
          `${id} ${image} ${backend} ${status} ${labelsOf(labels)} ${workspaceId ?? ""}`
        }
        buttons={() => (
          <button type="button" class="primary" onClick={() => setCreating(true)}>
            New session
          </button>
        )}
        actions={({ id }, { refresh }) => (
          <Confirm
            label="Kill"
            about={id}
            question="Everything in this session is lost, except a named workspace."
            act={async () => (await daemon().getSession(id)).destroy()}
            done={refresh}
          />
        )}
        empty="There are no sessions. Create one, or let an agent do it."
      />
      {creating && <Create close={() => setCreating(false)} />}
    </>
  );
}

function Create({ close }: { close: () => void }): VNode {
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const submit = async (event: TargetedEvent<HTMLFormElement>): Promise<void> => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const given = (name: string): string => String(form.get(name) ?? "").trim();
    const allow = given("allow").split(/[\s,]+/).filter((rule) => rule !== "");
    setBusy(true);
    setError(undefined);
    try {
      const made = await daemon().createSession({
        image: given("image") || undefined,
        profile: given("profile") === "dev" ? "dev" : undefined,
        workspaceId: given("workspace") || undefined,
        network: given("network") === "full" ? "full" : allow.length > 0 ? { allow } : undefined,
      });
      go(["sessions", made.id]);
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  return (
    <Dialog title="New session" close={close}>
      <form class="form" onSubmit={submit}>
        <div>
          <label for="image">Image</label>
          <input id="image" name="image" placeholder="the default image" spellcheck={false} />
        </div>
        <div>
          <label for="workspace">Workspace</label>
          <input id="workspace" name="workspace" placeholder="ends with the session" />
        </div>
        <div>
          <label for="profile">Profile</label>
          <select id="profile" name="profile">
            <option value="hardened">hardened: no root, read-only system</option>
            <option value="dev">dev: root inside, packages can be installed</option>
          </select>
        </div>
        <div>
          <label for="network">Network</label>
          <select id="network" name="network">
            <option value="none">only the hosts below</option>
            <option value="full">everything</option>
          </select>
        </div>
        <div>
          <label for="allow">Allowed hosts</label>
          <input id="allow" name="allow" placeholder="none; for example preset:pypi" />
        </div>
        {error !== undefined && <Failure error={error} />}
        <div class="buttons">
          <button type="button" onClick={close}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={busy}>
            Create
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function labelsOf(labels: Record<string, string>): string {
  return Object.entries(labels)
    .map(([name, value]) => `${name}=${value}`)
    .join(" ");
}
