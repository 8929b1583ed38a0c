/** The audit: who did what through the daemon, newest first. */

import type { TargetedEvent, VNode } from "preact";
import { useState } from "preact/hooks";
import type { AuditEntry } from "sandkasten";
import { Badge } from "../components/badge.js";
import type { Column } from "../components/data_table.js";
import { Dialog } from "../components/dialog.js";
import { Facts } from "../components/facts.js";
import { ListPage } from "../components/list_page.js";
import { timestamp } from "../components/units.js";
import { daemon } from "../daemon.js";
import type { PageProps } from "../pages.js";
import { replacePlace } from "../router.js";

const NEWEST = 500;
const FILTERS = ["tenant", "action", "target"] as const;

export default function Audit({ place }: PageProps): VNode {
  const [shown, setShown] = useState<AuditEntry>();
  const wanted = Object.fromEntries(
    FILTERS.map((name) => [name, place.query.get(name) ?? ""]).filter(([, value]) => value !== ""),
  ) as Record<string, string>;
  const columns: readonly Column<AuditEntry>[] = [
    {
      title: "Time",
      cell: (entry) => (
        <button type="button" class="plain" onClick={() => setShown(entry)}>
          {timestamp(entry.atUnix)}
        </button>
      ),
      sort: ({ seq }) => -seq,
    },
    { title: "Action", cell: ({ action }) => action, sort: ({ action }) => action },
    {
      title: "Outcome",
      cell: ({ outcome }) => <Badge state={outcome} />,
      sort: ({ outcome }) => outcome,
    },
    {
      title: "Target",
      cell: ({ target }) => <span class="mono">{target}</span>,
      sort: ({ target }) => target,
      wide: true,
    },
    { title: "Tenant", cell: ({ tenant }) => tenant, sort: ({ tenant }) => tenant, wide: true },
    {
      title: "Key",
      cell: ({ keyId }) => <span class="mono">{keyId ?? ""}</span>,
      sort: ({ keyId }) => keyId ?? "",
      wide: true,
    },
  ];
  return (
    <>
      <ListPage<AuditEntry>
        title="Audit"
        load={async (signal) =>
          (await daemon().audit({ ...wanted, limit: NEWEST, signal })).reverse()
        }
        readKey={JSON.stringify(wanted)}
        columns={columns}
        keyOf={({ seq }) => String(seq)}
        textOf={(one) =>
          `${one.action} ${one.target} ${one.outcome} ${one.tenant} ${one.keyId ?? ""} ${one.requestId} ${JSON.stringify(one.detail)}`
        }
        filters={<Filters wanted={wanted} />}
        empty="There are no entries."
      />
      <p class="hint">
        The newest {NEWEST} entries. Narrow them with the fields, which search in the whole audit.
      </p>
      {shown !== undefined && <Entry entry={shown} close={() => setShown(undefined)} />}
    </>
  );
}

function Filters({ wanted }: { wanted: Record<string, string> }): VNode {
  const submit = (event: TargetedEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const fields = FILTERS.map((name) => [name, String(form.get(name) ?? "").trim()] as const);
    replacePlace(["audit"], Object.fromEntries(fields.filter(([, value]) => value !== "")));
  };
  return (
    <form class="tools" onSubmit={submit}>
      {FILTERS.map((name) => (
        <input
          key={name}
          name={name}
          class="short"
          aria-label={`Only this ${name}`}
          placeholder={name}
          defaultValue={wanted[name] ?? ""}
          spellcheck={false}
        />
      ))}
      <button type="submit">Search</button>
    </form>
  );
}

function Entry({ entry, close }: { entry: AuditEntry; close: () => void }): VNode {
  const mono = (text: string): VNode => <span class="mono">{text}</span>;
  return (
    <Dialog title={`Entry ${entry.seq}`} close={close}>
      <Facts
        facts={[
          ["Time", entry.at],
          ["Action", entry.action],
          ["Outcome", <Badge state={entry.outcome} />],
          ["Target", mono(entry.target)],
          ["Tenant", entry.tenant],
          ["Key", entry.keyId === null ? "the key of the settings" : mono(entry.keyId)],
          ["Request", mono(entry.requestId)],
        ]}
      />
      {Object.keys(entry.detail).length > 0 && <pre tabIndex={0}>{JSON.stringify(entry.detail, null, 2)}</pre>}
      <div class="buttons">
        <button type="button" onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
