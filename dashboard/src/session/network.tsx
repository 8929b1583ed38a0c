/** What a session tried to reach; an operator allows a refused host with one click. */

import type { VNode } from "preact";
import { useState } from "preact/hooks";
import type { NetworkAttempt, Session, UpdateBody } from "sandkasten";
import { Badge } from "../components/badge.js";
import { type Column, DataTable } from "../components/data_table.js";
import { Failure } from "../components/failure.js";
import { usePolled } from "../components/polled.js";
import { bytes, clock } from "../components/units.js";
import type { TabProps } from "../pages/session.js";

const COLUMNS: readonly Column<NetworkAttempt>[] = [
  { title: "Time", cell: ({ atUnix }) => clock(atUnix), sort: ({ atUnix }) => -atUnix, wide: true },
  { title: "Host", cell: ({ host, address }) => host ?? address ?? "–", sort: ruleOf },
  { title: "Port", cell: ({ port }) => port, sort: ({ port }) => port, numeric: true },
  {
    title: "Verdict",
    cell: ({ allowed }) => <Badge state={allowed ? "allowed" : "refused"} />,
    sort: ({ allowed }) => Number(allowed),
  },
  { title: "Event", cell: ({ event }) => event, wide: true },
  { title: "Rule", cell: ({ rule, reason }) => reason ?? rule, wide: true },
  { title: "In", cell: ({ bytesIn }) => bytes(bytesIn), numeric: true, wide: true },
  { title: "Out", cell: ({ bytesOut }) => bytes(bytesOut), numeric: true, wide: true },
];

export default function NetworkTab({ session, info, refresh }: TabProps): VNode {
  const log = usePolled((signal) => session.networkLog({ signal }), 2000, session.id);
  const status = usePolled((signal) => session.network({ signal }), 2000, session.id);
  const [error, setError] = useState<unknown>();
  const rules = typeof info.network === "string" ? [] : strings(info.network["allow"]);
  const allow = async (rule: string): Promise<void> => {
    try {
      await session.update({ network: await withRule(session, rule) });
      setError(undefined);
    } catch (problem) {
      setError(problem);
    }
    refresh();
    status.refresh();
  };
  const suggested = (status.value?.suggested ?? []).filter((rule) => !rules.includes(rule));
  return (
    <>
      {[log.error, status.error, error].map(
        (one) => one !== undefined && <Failure key={String(one)} error={one} />,
      )}
      <div class="card">
        <h2>Allowed</h2>
        <p class="chips">
          {typeof info.network === "string"
            ? info.network === "none"
              ? "No network at all. Allow a host to open one."
              : "Everything that is public."
            : rules.length === 0
              ? "Nothing."
              : rules.map((rule) => (
                  <span key={rule} class="badge mono">
                    {rule}
                  </span>
                ))}
        </p>
        <AllowForm allow={allow} />
        {suggested.length > 0 && (
          <>
            <h2>Refused</h2>
            <ul class="plain">
              {suggested.map((rule) => (
                <li key={rule}>
                  <span class="mono">{rule}</span>{" "}
                  <button type="button" aria-label={`Allow ${rule}`} onClick={() => allow(rule)}>
                    Allow
                  </button>
                </li>
              ))}
            </ul>
          </>
        )}
      </div>
      <DataTable
        caption="Network log"
        rows={[...(log.value ?? [])].reverse()}
        columns={COLUMNS}
        keyOf={({ seq }) => String(seq)}
        actions={(row) =>
          !row.allowed &&
          !rules.includes(ruleOf(row)) && (
            <button
              type="button"
              aria-label={`Allow ${ruleOf(row)}`}
              onClick={() => allow(ruleOf(row))}
            >
              Allow
            </button>
          )
        }
        empty={log.value === undefined ? "Loading" : "It has not tried to reach anything."}
      />
    </>
  );
}

function AllowForm({ allow }: { allow: (rule: string) => Promise<void> }): VNode {
  return (
    <form
      class="line-form"
      onSubmit={(event) => {
        event.preventDefault();
        const form = event.currentTarget;
        void allow(String(new FormData(form).get("rule") ?? "").trim());
        form.reset();
      }}
    >
      <label class="hidden" for="rule">
        Rule
      </label>
      <input id="rule" name="rule" placeholder="host, *.host, host:port, preset:pypi" required />
      <button type="submit">Allow</button>
    </form>
  );
}

/** Return the network of the session as it is now, with one more rule. */
async function withRule(session: Session, rule: string): Promise<NonNullable<UpdateBody["network"]>> {
  const { network } = await session.info();
  if (typeof network === "string") {
    return network === "full" ? network : { allow: [rule] };
  }
  const allow = strings(network["allow"]);
  return { ...network, allow: allow.includes(rule) ? allow : [...allow, rule] };
}

function ruleOf({ host, address, port }: NetworkAttempt): string {
  return `${host ?? address ?? ""}:${port}`;
}

function strings(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((one) => typeof one === "string") : [];
}
