/** The audit: who did what through the daemon, newest first. */

import type { TargetedEvent, VNode } from "preact";
import { useRef, useState } from "preact/hooks";
import type { AuditEntry, AuditVerification } from "sandkasten";
import { Badge } from "../components/badge.js";
import type { Column } from "../components/data_table.js";
import { Dialog } from "../components/dialog.js";
import { Facts } from "../components/facts.js";
import { Failure } from "../components/failure.js";
import { ListPage } from "../components/list_page.js";
import { When } from "../components/when.js";
import { daemon } from "../daemon.js";
import type { PageProps } from "../pages.js";
import { address, replacePlace } from "../router.js";

const NEWEST = 500;
const KINDS = ["change", "exec", "file", "network", "policy", "key", "session", "audit"];
const FILTERS = ["tenant", "action", "target", "session"] as const;

export default function Audit({ place }: PageProps): VNode {
  const [shown, setShown] = useState<AuditEntry>();
  // By the target of its records: only that of the start has the command line.
  const commands = useRef(new Map<string, string>());
  const wanted = Object.fromEntries(
    [...FILTERS, "kind"].map((name) => [name, place.query.get(name) ?? ""]).filter(([, value]) => value !== ""),
  ) as Record<string, string>;
  const columns: readonly Column<AuditEntry>[] = [
    {
      title: "Time",
      cell: (entry) => (
        <button type="button" class="plain" onClick={() => setShown(entry)}>
          <When unix={entry.atUnix} />
        </button>
      ),
      sort: ({ seq }) => -seq,
    },
    {
      title: "Action",
      cell: ({ action }) => action,
      sort: ({ action }) => action,
      plain: true,
    },
    {
      title: "Outcome",
      cell: ({ outcome }) => <Badge state={outcome} />,
      sort: ({ outcome }) => outcome,
      plain: true,
    },
    {
      title: "What",
      cell: (entry) => (
        <span class="mono" title={whatOf(entry, commands.current)}>
          {whatOf(entry, commands.current)}
        </span>
      ),
      sort: (entry) => whatOf(entry, commands.current),
      plain: true,
    },
    {
      title: "Session",
      cell: ({ sessionId }) =>
        sessionId !== null && (
          <a class="mono" href={address(["sessions", sessionId])}>
            {sessionId}
          </a>
        ),
      sort: ({ sessionId }) => sessionId ?? "",
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
        load={async (signal) => {
          const { session: sessionId, ...others } = wanted;
          const found = await daemon().audit({ ...others, sessionId, limit: NEWEST, signal });
          commands.current = new Map(
            found.flatMap(({ detail, target }) => {
              const line = detail["command"] ?? detail["code"];
              return line === undefined ? [] : [[target, line] as const];
            }),
          );
          return found.reverse();
        }}
        readKey={JSON.stringify(wanted)}
        columns={columns}
        keyOf={({ seq }) => String(seq)}
        textOf={(one) =>
          `${one.kind} ${one.action} ${one.sessionId ?? ""} ${one.target} ${one.outcome} ${one.tenant} ${one.keyId ?? ""} ${one.requestId} ${JSON.stringify(one.detail)}`
        }
        filters={<Filters wanted={wanted} />}
        buttons={() => <Verify />}
        empty="There are no entries."
      />
      <p class="hint">
        The newest {NEWEST} entries. Narrow them with the fields, which search in the whole audit.
      </p>
      {shown !== undefined && <Entry entry={shown} close={() => setShown(undefined)} />}
    </>
  );
}

/** Return what it was about: the command or the code if a record has it, else its target. */
function whatOf({ target }: AuditEntry, commands: ReadonlyMap<string, string>): string {
  return commands.get(target) ?? target;
}

function Filters({ wanted }: { wanted: Record<string, string> }): VNode {
  const submit = (event: TargetedEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const fields = [...FILTERS, "kind"].map((name) => [name, String(form.get(name) ?? "").trim()] as const);
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
      <select name="kind" aria-label="Only this kind" defaultValue={wanted["kind"] ?? ""}>
        <option value="">All kinds</option>
        {KINDS.map((kind) => (
          <option key={kind} value={kind}>
            {kind}
          </option>
        ))}
      </select>
      <button type="submit">Search</button>
    </form>
  );
}

function Verify(): VNode {
  const [found, setFound] = useState<AuditVerification>();
  const [error, setError] = useState<unknown>();
  const [open, setOpen] = useState(false);
  const verify = (): void => {
    setOpen(true);
    setFound(undefined);
    setError(undefined);
    daemon().verifyAudit().then(setFound, setError);
  };
  return (
    <>
      <button type="button" onClick={verify}>
        Verify
      </button>
      {open && (
        <Dialog title="Verify the audit" close={() => setOpen(false)}>
          <div role="status">
            {error !== undefined && <Failure error={error} />}
            {found === undefined && error === undefined && <p>Reading every record…</p>}
            {found?.ok === true && (
              <p>
                <Badge state="ok" /> {found.records.toLocaleString()} records are as they were
                written.
              </p>
            )}
            {found !== undefined && found.flaw !== null && (
              <div class="failure">
                <p>
                  <strong>{found.flaw.flaw}</strong> Record {found.flaw.seq}: {found.flaw.message}
                </p>
              </div>
            )}
            {found !== undefined && (
              <>
                <h3>Hash of record {found.lastSeq}</h3>
                <pre>{found.head}</pre>
                <p class="hint">
                  Note it elsewhere. <code>sandkasten audit verify</code> can check later that this
                  record is still there.
                </p>
              </>
            )}
          </div>
          <div class="buttons">
            <button type="button" onClick={() => setOpen(false)}>
              Close
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}

function Entry({ entry, close }: { entry: AuditEntry; close: () => void }): VNode {
  const mono = (text: string): VNode => <span class="mono">{text}</span>;
  return (
    <Dialog title={`Entry ${entry.seq}`} close={close}>
      <Facts
        facts={[
          ["Time", entry.at],
          ["Kind", entry.kind],
          ["Action", entry.action],
          ["Outcome", <Badge state={entry.outcome} />],
          ["Target", mono(entry.target)],
          ["Tenant", entry.tenant],
          ["Key", entry.keyId === null ? "the key of the settings" : mono(entry.keyId)],
          ["Request", mono(entry.requestId)],
          [
            "Session",
            entry.sessionId === null ? undefined : (
              <a class="mono" href={address(["sessions", entry.sessionId])}>
                {entry.sessionId}
              </a>
            ),
          ],
          ["Hash", mono(entry.hash)],
        ]}
      />
      {[entry.detail, entry.usage].map(
        (more, at) =>
          Object.keys(more).length > 0 && (
            <pre key={at} tabIndex={0}>
              {JSON.stringify(more, null, 2)}
            </pre>
          ),
      )}
      <div class="buttons">
        <button type="button" onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
