/** What a session tried to reach; an operator allows a refused host with one click. */

import type { VNode } from "preact";
import { useState } from "preact/hooks";
import type { NetworkAttempt, NetworkStatus, Session, UpdateBody } from "sandkasten";
import { Badge } from "../components/badge.js";
import { type Column, DataTable } from "../components/data_table.js";
import { Failure } from "../components/failure.js";
import { usePolled } from "../components/polled.js";
import { bytes } from "../components/units.js";
import { When } from "../components/when.js";
import type { TabProps } from "../pages/session.js";
import { address } from "../router.js";

const NOT_PUBLIC = "address that is not public";

/** All attempts to reach one port of one host. */
interface Target {
  rule: string;
  refused: number;
  allowed: number;
  bytesIn: number;
  bytesOut: number;
  lastUnix: number;
  /** Of the last attempt: the rule that decided, or why it was refused. */
  because: string;
}

const COLUMNS: readonly Column<Target>[] = [
  { title: "Host", cell: ({ rule }) => <span class="mono">{rule}</span>, sort: ({ rule }) => rule },
  {
    title: "Verdict",
    cell: ({ refused, allowed }) => (
      <>
        {refused > 0 && <Badge state={counts(refused, "refused")} kind="bad" />}{" "}
        {allowed > 0 && <Badge state={counts(allowed, "allowed")} kind="good" />}
      </>
    ),
    sort: ({ refused, allowed }) => -(refused || allowed),
    plain: true,
  },
  { title: "Because", cell: ({ because }) => because, wide: true },
  { title: "In", cell: ({ bytesIn }) => bytes(bytesIn), sort: ({ bytesIn }) => -bytesIn, numeric: true },
  { title: "Out", cell: ({ bytesOut }) => bytes(bytesOut), sort: ({ bytesOut }) => -bytesOut, numeric: true },
  {
    title: "Last",
    cell: ({ lastUnix }) => <When unix={lastUnix} />,
    sort: ({ lastUnix }) => -lastUnix,
    numeric: true,
    plain: true,
  },
];

function counts(count: number, word: string): string {
  return count === 1 ? word : `${word} ${count}×`;
}

export default function NetworkTab({ session, info, refresh }: TabProps): VNode {
  const log = usePolled((signal) => session.networkLog({ signal }), 2000, session.id);
  const status = usePolled((signal) => session.network({ signal }), 2000, session.id);
  const [error, setError] = useState<unknown>();
  const rules = typeof info.network === "string" ? [] : strings(info.network["allow"]);
  const { suggested = [], notPublic = [] } = status.value ?? {};
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
  const failures = [log.error, status.error, error].map(
    (one) => one !== undefined && <Failure key={String(one)} error={one} />,
  );
  if (info.network === "none" && !(status.value !== undefined && counted(status.value))) {
    return (
      <>
        {failures}
        {status.value === undefined ? <div aria-busy="true" /> : <WithoutNetwork />}
      </>
    );
  }
  return (
    <>
      {failures}
      <div class="card">
        <h2>Allowed</h2>
        <p class="chips">
          {typeof info.network === "string"
            ? info.network === "none"
              ? "Nothing: its network is closed. Allow a host to open it again."
              : "Everything that is public."
            : rules.length === 0
              ? "Nothing."
              : rules.map((rule) => (
                  <span key={rule} class="badge mono">
                    {rule}
                  </span>
                ))}
        </p>
        {info.network !== "full" && <AllowForm allow={allow} />}
      </div>
      <DataTable
        caption="Hosts"
        rows={grouped(log.value ?? [], notPublic)}
        columns={COLUMNS}
        keyOf={({ rule }) => rule}
        actions={({ rule, refused }) =>
          refused === 0 ? undefined : notPublic.includes(rule) ? (
            <span class="muted">
              operator<span class="wide">: network.reachable</span>
            </span>
          ) : (
            suggested.includes(rule) &&
            !rules.includes(rule) && (
              <button type="button" aria-label={`Allow ${rule}`} onClick={() => allow(rule)}>
                Allow
              </button>
            )
          )
        }
        empty={log.value === undefined ? "Loading" : "It has not tried to reach anything."}
      />
      {notPublic.length > 0 && (
        <p class="hint">
          Only the operator of the daemon opens an {NOT_PUBLIC}: setting{" "}
          <code>network.reachable</code>.
        </p>
      )}
    </>
  );
}

function WithoutNetwork(): VNode {
  return (
    <div class="card">
      <h2>No network</h2>
      <p>This session was created without a network, and cannot get one later.</p>
      <p class="hint">
        Create another one with a network: <strong>New session</strong> with allowed hosts in the
        list of <a href={address(["sessions"])}>sessions</a>, or{" "}
        <code>sandkasten create --allow HOST</code>. Its rules can be changed later.
      </p>
    </div>
  );
}

/** Whether it has had a network: one that was closed counts what it refused, and what it did before. */
function counted({ opened, refused, failed }: NetworkStatus): boolean {
  return opened + refused + failed > 0;
}

/** Return the hosts that it tried to reach: refused ones first, then the last used one. */
function grouped(log: readonly NetworkAttempt[], notPublic: readonly string[]): Target[] {
  const targets = new Map<string, Target & { connections: Set<number> }>();
  for (const attempt of log) {
    const rule = ruleOf(attempt);
    const target = targets.get(rule) ?? {
      rule,
      refused: 0,
      allowed: 0,
      bytesIn: 0,
      bytesOut: 0,
      lastUnix: 0,
      because: "",
      connections: new Set(),
    };
    targets.set(rule, target);
    if (!attempt.allowed || attempt.event === "refused") {
      target.refused += 1;
    } else if (!target.connections.has(attempt.connection)) {
      target.connections.add(attempt.connection);
      target.allowed += 1;
    }
    target.bytesIn += attempt.bytesIn ?? 0;
    target.bytesOut += attempt.bytesOut ?? 0;
    target.lastUnix = attempt.atUnix;
    target.because = becauseOf(attempt, notPublic.includes(rule));
  }
  return [...targets.values()].sort(
    (a, b) => Number(b.refused > 0) - Number(a.refused > 0) || b.lastUnix - a.lastUnix,
  );
}

function becauseOf({ reason, rule }: NetworkAttempt, notPublic: boolean): string {
  return reason ?? (rule !== "default" ? rule : notPublic ? NOT_PUBLIC : "no rule allows it");
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

/** Return the rule that allows exactly this host and port, as the daemon writes it. */
function ruleOf({ host, address: ip, port }: NetworkAttempt): string {
  const to = host ?? ip ?? "";
  return to.includes(":") ? `[${to}]:${port}` : `${to}:${port}`;
}

function strings(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((one) => typeof one === "string") : [];
}
