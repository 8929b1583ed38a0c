/** Sessions: the list, and a dialog that creates one. An id in the address is one session. */

import type { VNode } from "preact";
import { useState } from "preact/hooks";
import type { SessionInfo } from "sandkasten";
import { Badge } from "../components/badge.js";
import type { Column } from "../components/data_table.js";
import { Confirm } from "../components/dialog.js";
import { Field, type Fields, FormDialog } from "../components/form_dialog.js";
import { ListPage } from "../components/list_page.js";
import { usePolled } from "../components/polled.js";
import { ago, bytes, clock, MIB } from "../components/units.js";
import { When } from "../components/when.js";
import { daemon } from "../daemon.js";
import type { PageProps } from "../pages.js";
import { address, go } from "../router.js";
import { SessionPage } from "./session.js";

function columnsOf(search: (text: string) => void): readonly Column<SessionInfo>[] {
  return [
    {
      title: "Session",
      cell: ({ id, sessionKey }) => (
        <>
          <a class="mono" href={address(["sessions", id])}>
            {id}
          </a>
          {sessionKey !== null && <span class="muted"> {sessionKey}</span>}
        </>
      ),
      sort: ({ id }) => id,
    },
    {
      title: "State",
      cell: ({ status }) => <Badge state={status} />,
      sort: ({ status }) => status,
      plain: true,
    },
    { title: "Image", cell: ({ image }) => image, sort: ({ image }) => image, wide: true },
    {
      title: "Labels",
      cell: ({ labels }) =>
        labelsOf(labels).map((label) => (
          <button
            key={label}
            type="button"
            class="badge chip"
            title={`Show only sessions with ${label}`}
            onClick={() => search(label)}
          >
            {label}
          </button>
        )),
      wide: true,
    },
    {
      title: "Running",
      cell: ({ usage }) => <Running usage={usage} />,
      sort: ({ usage }) => -(usage?.running ?? 0),
      wide: true,
    },
    {
      title: "Memory",
      cell: ({ usage, limits }) => (
        <Share
          name="Memory"
          used={usage?.memoryBytes ?? null}
          most={usage?.memoryLimitBytes ?? (limits["mem_limit_mb"] ?? 0) * MIB}
        />
      ),
      sort: ({ usage }) => -(usage?.memoryBytes ?? 0),
      numeric: true,
      plain: true,
    },
    {
      title: "Ends",
      cell: ({ expiresAtUnix }) => <When unix={expiresAtUnix} />,
      sort: ({ expiresAtUnix }) => expiresAtUnix ?? Infinity,
      numeric: true,
    },
    {
      title: "Age",
      cell: ({ createdAtUnix }) => <span title={clock(createdAtUnix)}>{ago(createdAtUnix)}</span>,
      sort: ({ createdAtUnix }) => -createdAtUnix,
      numeric: true,
      wide: true,
    },
  ];
}

/** The newest command that has not ended, as `sandkasten top` shows it. */
function Running({ usage }: { usage: SessionInfo["usage"] }): VNode {
  const newest = usage?.commands.at(-1);
  const others = (usage?.running ?? 0) - 1;
  return newest === undefined ? (
    <span class="muted">{usage === null ? "–" : "idle"}</span>
  ) : (
    <span class="mono cut" title={newest.command}>
      {newest.command}
      {others > 0 && <span class="muted"> +{others}</span>}
    </span>
  );
}

/** How much of a limit is used: the number, and a bar. */
function Share({ name, used, most }: { name: string; used: number | null; most: number }): VNode {
  return used === null ? (
    <>–</>
  ) : (
    <span class="share" title={`${bytes(used)} of ${bytes(most)}`}>
      {bytes(used)}
      <meter aria-label={name} min={0} max={Math.max(1, most)} high={most * 0.9} value={used} />
    </span>
  );
}

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
        load={async (signal) => {
          const found = await daemon().listSessions({ usage: true, signal });
          return found.sort((a, b) => b.createdAtUnix - a.createdAtUnix);
        }}
        everyMs={3000}
        columns={columnsOf}
        keyOf={({ id }) => id}
        textOf={({ id, image, backend, status, labels, workspaceId, sessionKey }) =>
          [id, image, backend, status, ...labelsOf(labels), workspaceId, sessionKey].join(" ")
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
  const [network, setNetwork] = useState("none");
  const [allow, setAllow] = useState("");
  const images = usePolled((signal) => daemon().images.list({ signal }), 0);
  const rules = words(allow);
  const send = async (fields: Fields): Promise<void> => {
    const minutes = fields.number("ttl");
    const made = await daemon().createSession({
      image: fields.text("image"),
      profile: fields.text("profile") === "dev" ? "dev" : undefined,
      workspaceId: fields.text("workspace"),
      network: network === "full" ? "full" : rules.length > 0 ? { allow: rules } : "none",
      limits: { memLimitMb: fields.number("memory"), cpuLimit: fields.number("cpus") },
      ttlSeconds: minutes === undefined ? undefined : minutes * 60,
      labels: labelled(words(fields.text("labels") ?? "")),
      pipPackages: words(fields.text("pip") ?? ""),
      npmPackages: words(fields.text("npm") ?? ""),
    });
    go(["sessions", made.id]);
  };
  return (
    <FormDialog title="New session" label="Create" send={send} close={close}>
      <Field
        name="image"
        label="Image"
        placeholder="the default image"
        list="images"
        autocomplete="off"
      />
      <datalist id="images">
        {["host", ...(images.value ?? []).flatMap(({ names }) => names)].map((name) => (
          <option key={name} value={name} />
        ))}
      </datalist>
      <Field name="network" label="Network">
        <select
          id="field-network"
          name="network"
          value={network}
          onChange={(event) => setNetwork(event.currentTarget.value)}
        >
          <option value="none">only the hosts below</option>
          <option value="full">everything that is public</option>
        </select>
      </Field>
      {network === "none" && (
        <Field
          name="allow"
          label="Allowed hosts"
          placeholder="preset:pypi, api.example.com, *.example.org:443"
          value={allow}
          onInput={(event) => setAllow(event.currentTarget.value)}
          hint={rules.length === 0 ? "None: the session has no network." : undefined}
        />
      )}
      <details>
        <summary>Limits, time, labels and packages</summary>
        <div class="form pairs">
          <Field name="memory" label="Memory (MiB)" type="number" min={1} placeholder="default" />
          <Field name="cpus" label="CPUs" type="number" min={0.1} step={0.1} placeholder="default" />
          <Field
            name="ttl"
            label="Ends when idle for (minutes)"
            type="number"
            min={1}
            placeholder="default"
          />
          <Field name="workspace" label="Workspace" placeholder="ends with the session" />
          <Field name="labels" label="Labels" placeholder="task=report, team=data" />
          <Field name="profile" label="Profile">
            <select id="field-profile" name="profile">
              <option value="hardened">hardened: no root, read-only system</option>
              <option value="dev">dev: root inside, packages can be installed</option>
            </select>
          </Field>
          <Field name="pip" label="Python packages" placeholder="pandas, matplotlib" />
          <Field name="npm" label="npm packages" placeholder="left-pad" />
        </div>
      </details>
    </FormDialog>
  );
}

/** Return what spaces and commas separate. */
function words(text: string): string[] {
  return text.split(/[\s,]+/).filter((word) => word !== "");
}

function labelled(pairs: readonly string[]): Record<string, string> {
  return Object.fromEntries(
    pairs.map((pair) => {
      const [name = "", ...value] = pair.split("=");
      return [name, value.join("=")];
    }),
  );
}

function labelsOf(labels: Record<string, string>): string[] {
  return Object.entries(labels).map(([name, value]) => `${name}=${value}`);
}
