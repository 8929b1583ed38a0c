/** API keys: the list, a dialog that makes one and shows it once, and their end. */

import type { VNode } from "preact";
import { useState } from "preact/hooks";
import type { ApiKey, CreatedKey, KeyBody } from "sandkasten";
import { Badge } from "../components/badge.js";
import type { Column } from "../components/data_table.js";
import { Confirm, Dialog } from "../components/dialog.js";
import { Field, type Fields, FormDialog } from "../components/form_dialog.js";
import { ListPage } from "../components/list_page.js";
import { When } from "../components/when.js";
import { daemon } from "../daemon.js";
import type { PageProps } from "../pages.js";

type Scope = NonNullable<KeyBody["scopes"]>[number];

const SCOPES: readonly (readonly [Scope, string])[] = [
  ["sessions", "sessions, runs and agents"],
  ["files", "stored files"],
  ["workspaces", "named workspaces"],
  ["images", "pull and remove images"],
  ["secrets", "secrets for networks"],
  ["metrics", "read the metrics"],
  ["admin", "everything, of every tenant"],
];
const USUAL: readonly Scope[] = ["sessions", "files", "workspaces"];
const LIFETIMES: readonly (readonly [number, string])[] = [
  [86_400, "one day"],
  [30 * 86_400, "30 days"],
  [365 * 86_400, "one year"],
];

export default function Keys({ identity }: PageProps): VNode {
  const [creating, setCreating] = useState(false);
  const [made, setMade] = useState<CreatedKey>();
  const [turn, setTurn] = useState(0);
  const columns: readonly Column<ApiKey>[] = [
    { title: "Id", cell: ({ id }) => <span class="mono">{id}</span>, sort: ({ id }) => id },
    {
      title: "Name",
      cell: ({ id, name }) => (id === identity.keyId ? `${name} (this login)` : name),
      sort: ({ name }) => name,
    },
    { title: "State", cell: (key) => <Badge state={stateOf(key)} />, sort: stateOf },
    { title: "Tenant", cell: ({ tenant }) => tenant, sort: ({ tenant }) => tenant, wide: true },
    { title: "Scopes", cell: ({ scopes }) => scopes.join(", "), wide: true },
    {
      title: "Last used",
      cell: ({ lastUsedAtUnix }) =>
        lastUsedAtUnix === null ? "never" : <When unix={lastUsedAtUnix} />,
      sort: ({ lastUsedAtUnix }) => -(lastUsedAtUnix ?? 0),
      numeric: true,
      wide: true,
    },
    {
      title: "Expires",
      cell: ({ expiresAtUnix }) => (expiresAtUnix === null ? "never" : <When unix={expiresAtUnix} />),
      sort: ({ expiresAtUnix }) => expiresAtUnix ?? Number.MAX_VALUE,
      numeric: true,
      wide: true,
    },
  ];
  return (
    <>
      <ListPage<ApiKey>
        title="Keys"
        load={(signal) => daemon().keys.list({ signal })}
        readKey={String(turn)}
        everyMs={10_000}
        columns={columns}
        keyOf={({ id }) => id}
        textOf={(key) =>
          `${key.id} ${key.name} ${key.tenant} ${key.scopes.join(" ")} ${stateOf(key)}`
        }
        buttons={() => (
          <button type="button" class="primary" onClick={() => setCreating(true)}>
            New key
          </button>
        )}
        actions={(key, { refresh }) =>
          key.revokedAtUnix === null && (
            <Confirm
              label="Revoke"
              about={key.name || key.id}
              question="Every client with this key is refused from now on. This cannot be undone."
              act={() => daemon().keys.revoke(key.id)}
              done={refresh}
            />
          )
        }
        empty="There are no keys. The daemon accepts the key of its settings."
      />
      {creating && (
        <Create
          close={() => setCreating(false)}
          done={(key) => {
            setMade(key);
            setTurn((one) => one + 1);
          }}
        />
      )}
      {made !== undefined && <Once made={made} close={() => setMade(undefined)} />}
    </>
  );
}

function Create({ close, done }: { close: () => void; done: (made: CreatedKey) => void }): VNode {
  const create = async (fields: Fields): Promise<void> => {
    const megabytes = fields.number("memory");
    done(
      await daemon().keys.create({
        name: fields.text("name") ?? "",
        tenant: fields.text("tenant"),
        scopes: fields.all("scope") as Scope[],
        expiresInSeconds: fields.number("expires"),
        quota: {
          maxSessions: fields.number("sessions"),
          maxMemoryBytes: megabytes === undefined ? undefined : megabytes * 2 ** 20,
          requestsPerSecond: fields.number("requests"),
        },
      }),
    );
  };
  return (
    <FormDialog title="New key" label="Create" send={create} close={close}>
      <Field name="name" label="Name" placeholder="what it is for" />
      <Field name="tenant" label="Tenant" placeholder="your own" />
      <fieldset>
        <legend>Scopes</legend>
        {SCOPES.map(([scope, what]) => (
          <label key={scope} class="tick">
            <input
              type="checkbox"
              name="scope"
              value={scope}
              defaultChecked={USUAL.includes(scope)}
            />{" "}
            {scope} <span class="muted">{what}</span>
          </label>
        ))}
      </fieldset>
      <Field name="expires" label="Expires after">
        <select id="field-expires" name="expires">
          <option value="">never</option>
          {LIFETIMES.map(([seconds, name]) => (
            <option key={seconds} value={seconds}>
              {name}
            </option>
          ))}
        </select>
      </Field>
      <details>
        <summary>Quota</summary>
        <div class="form">
          <Field name="sessions" label="Sessions" type="number" min="0" placeholder="no limit" />
          <Field name="memory" label="Memory (MiB)" type="number" min="1" placeholder="no limit" />
          <Field
            name="requests"
            label="Requests per second"
            type="number"
            min="0.1"
            step="any"
            placeholder="no limit"
          />
        </div>
      </details>
    </FormDialog>
  );
}

function Once({ made, close }: { made: CreatedKey; close: () => void }): VNode {
  const [copied, setCopied] = useState(false);
  return (
    <Dialog title="The new key" close={close}>
      <p>Copy it now. It is not kept and never shown again.</p>
      <pre class="secret" aria-label="Key">
        {made.key}
      </pre>
      <div class="buttons">
        {/* Only pages with TLS, and those on loopback, have a clipboard. */}
        {"clipboard" in navigator && (
          <button
            type="button"
            onClick={() => navigator.clipboard.writeText(made.key).then(() => setCopied(true))}
          >
            {copied ? "Copied" : "Copy"}
          </button>
        )}
        <button type="button" class="primary" onClick={close}>
          Done
        </button>
      </div>
    </Dialog>
  );
}

function stateOf({ revokedAtUnix, expiresAtUnix }: ApiKey): string {
  if (revokedAtUnix !== null) {
    return "revoked";
  }
  return expiresAtUnix !== null && expiresAtUnix * 1000 <= Date.now() ? "expired" : "active";
}
