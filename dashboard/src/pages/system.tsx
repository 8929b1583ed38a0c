/** The daemon itself: whether it can create sandboxes, what the tenant uses, and its settings. */

import type { VNode } from "preact";
import type { BackendLine, Doctor as DoctorReport, Ready, Setting, TierLine, Usage } from "sandkasten";
import { Badge } from "../components/badge.js";
import type { Column } from "../components/data_table.js";
import { Facts } from "../components/facts.js";
import { Failure } from "../components/failure.js";
import { ListPage } from "../components/list_page.js";
import { type Polled, usePolled } from "../components/polled.js";
import { bytes, counted } from "../components/units.js";
import { daemon } from "../daemon.js";
import { mayUse, type PageProps } from "../pages.js";

export default function System({ identity }: PageProps): VNode {
  const ready = usePolled((signal) => daemon().ready({ signal }), 10_000);
  const version = usePolled((signal) => daemon().version({ signal }), 0);
  return (
    <>
      <div class="heading">
        <h1>System</h1>
        <Badge state={stateOf(ready)} />
        <div class="tools">
          <a class="button" href="/docs" target="_blank" rel="noreferrer">
            API reference
          </a>
        </div>
      </div>
      <Facts
        facts={[
          ["Version", version.value?.version],
          ["API", version.value?.api],
          ["Backend", version.value?.backend],
          ["Tenant", identity.tenant],
          ["Key", identity.keyId ?? (identity.requiresKey ? "of the settings" : "not required")],
          ["Scopes", identity.scopes.join(", ")],
        ]}
      />
      <Readiness ready={ready} />
      {mayUse(identity, "sessions") && <Backends />}
      {mayUse(identity, "sessions") && <Used />}
      {mayUse(identity, "admin") && <Doctor />}
      {mayUse(identity, "admin") ? (
        <Settings />
      ) : (
        <p class="hint">The machine and the settings are shown to keys with the scope admin.</p>
      )}
    </>
  );
}

function stateOf({ value, error }: Polled<Ready>): string {
  if (error !== undefined) {
    return "error";
  }
  return value === undefined ? "unknown" : value.degraded.length > 0 ? "warning" : value.status;
}

function Readiness({ ready }: { ready: Polled<Ready> }): VNode {
  const { value, error } = ready;
  if (error !== undefined) {
    return <Failure error={error} />;
  }
  return (
    <>
      {value?.degraded.map(({ backend, reason, hint }) => (
        <div key={`${backend} ${reason}`} class="failure warning">
          <p>
            <strong>{backend}</strong> {reason}
          </p>
          {hint !== "" && <p class="hint">{hint}</p>}
        </div>
      ))}
      {value?.degraded.length === 0 && <p class="hint">The backend can create sandboxes.</p>}
    </>
  );
}

/** Each backend, and each named Docker Engine, with its health and room. */
function Backends(): VNode {
  const { value, error } = usePolled((signal) => daemon().backends({ signal }), 10_000);
  return (
    <section class="card later" aria-busy={value === undefined && error === undefined}>
      <h2>Backends</h2>
      {error !== undefined && <Failure error={error} />}
      <ul class="plain checks" aria-label="Backends">
        {value?.map((one) => (
          <Check key={one.name} {...backendCheck(one)} />
        ))}
      </ul>
    </section>
  );
}

function backendCheck(one: BackendLine): CheckProps {
  const { name, ready, isolation, sandboxes, maxSandboxes, reason, remedy } = one;
  const labels = Object.entries(one.labels).map(([key, value]) => `${key}=${value}`);
  const held = maxSandboxes === null ? "" : `${sandboxes} of `;
  const full = sandboxes !== null && maxSandboxes !== null && sandboxes >= maxSandboxes;
  const facts = [
    `isolation ${isolation}`,
    ...(sandboxes === null ? [] : [held + counted(maxSandboxes ?? sandboxes, "sandbox", "sandboxes")]),
    ...labels,
    ...(reason === "" ? [] : [reason]),
  ];
  const state = !ready ? (one.default ? "missing" : "not ready") : full ? "full" : "ready";
  const text = `${name}${one.default ? " (default)" : ""}: ${facts.join("; ")}`;
  return { state, text, remedy };
}

/** What `sandkasten doctor` prints on the machine of the daemon. */
function Doctor(): VNode {
  const { value, error, refresh } = usePolled((signal) => daemon().doctor({ signal }), 0);
  return (
    <section class="card later" aria-busy={value === undefined && error === undefined}>
      <div class="heading">
        <h2>Doctor</h2>
        {value !== undefined && <Badge state={value.ready ? "ready" : "error"} />}
        <div class="tools">
          <button type="button" onClick={refresh}>
            Check again
          </button>
        </div>
      </div>
      {error !== undefined && <Failure error={error} />}
      {value !== undefined && <Findings found={value} />}
    </section>
  );
}

function Findings({ found }: { found: DoctorReport }): VNode {
  return (
    <>
      {!found.ready && (
        <div class="failure">
          <p>{found.reason}</p>
          {found.remedy !== "" && <p class="hint">{found.remedy}</p>}
        </div>
      )}
      <ul class="plain checks" aria-label="Requirements of the machine">
        {found.requirements.map((line) => (
          <Check
            key={line.name}
            state={line.ok ? "ok" : line.required ? "missing" : "warning"}
            text={`${line.name}: ${line.state}`}
            remedy={line.ok ? "" : line.remedy}
          />
        ))}
        {found.unenforced.map(({ limit, reason, remedy }) => (
          <Check
            key={`limit ${limit}`}
            state="warning"
            text={`limit ${limit} is not enforced: ${reason}`}
            remedy={remedy}
          />
        ))}
      </ul>
      <h3>Kinds of sandboxes</h3>
      <ul class="plain checks" aria-label="Kinds of sandboxes">
        {found.tiers.map((tier) => (
          <Check key={tier.name} {...tierCheck(tier)} />
        ))}
      </ul>
    </>
  );
}

interface CheckProps {
  state: string;
  text: string;
  remedy: string;
}

function Check({ state, text, remedy }: CheckProps): VNode {
  return (
    <li>
      <Badge state={state} /> {text}
      {remedy !== "" && <p class="hint under">{remedy}</p>}
    </li>
  );
}

function tierCheck(tier: TierLine): CheckProps {
  const name = tier.default ? `${tier.name} (default)` : tier.name;
  return tier.ready
    ? { state: "ready", text: tier.image === "" ? name : `${name}: image ${tier.image}`, remedy: "" }
    : {
        state: tier.default ? "missing" : "not ready",
        text: `${name}: ${tier.reason}`,
        remedy: tier.remedy,
      };
}

function Used(): VNode | null {
  const { value, error } = usePolled((signal) => daemon().usage({ signal }), 5000);
  if (error !== undefined) {
    return <Failure error={error} />;
  }
  return value === undefined ? null : <Meters usage={value} />;
}

function Meters({ usage: { tenant, used, quota } }: { usage: Usage }): VNode {
  const count = (value: number): string => value.toLocaleString();
  const rate = (value: number): string => `${bytes(value / 8)}/s`;
  return (
    <section class="card later">
      <h2>Used by tenant {tenant}</h2>
      <div class="meters">
        <Meter name="Sessions" used={used.sessions} most={quota["max_sessions"]} show={count} />
        <Meter
          name="Memory"
          used={used.memoryBytes}
          most={quota["max_memory_bytes"]}
          show={bytes}
        />
        <Meter name="Disk" used={used.diskBytes} most={quota["max_disk_bytes"]} show={bytes} />
        <Meter
          name="Connections"
          used={used.networkConnections}
          most={quota["max_network_connections"]}
          show={count}
        />
        <Meter
          name="Bandwidth"
          used={used.networkBandwidthBps}
          most={quota["max_network_bandwidth_bps"]}
          show={rate}
        />
        <Meter
          name="Network today"
          used={used.networkBytesToday}
          most={quota["max_network_bytes_per_day"]}
          show={bytes}
        />
      </div>
    </section>
  );
}

interface MeterProps {
  name: string;
  /** Null: without a limit of its own. */
  used: number | null;
  most: number | null | undefined;
  show: (value: number) => string;
}

function Meter({ name, used, most, show }: MeterProps): VNode {
  const limited = most !== null && most !== undefined;
  return (
    <div>
      <div class="muted">{name}</div>
      <strong>{used === null ? "unlimited" : show(used)}</strong>{" "}
      <span class="muted">{limited ? `of ${show(most)}` : "no quota"}</span>
      {limited && used !== null && (
        <meter
          aria-label={name}
          min={0}
          max={Math.max(1, most)}
          high={most * 0.9}
          value={used}
        />
      )}
    </div>
  );
}

const COLUMNS: readonly Column<Setting>[] = [
  { title: "Name", cell: ({ name }) => <span class="mono">{name}</span>, sort: ({ name }) => name },
  { title: "Value", cell: ({ value }) => <span class="mono">{valueOf(value)}</span> },
  { title: "From", cell: ({ origin }) => origin, sort: ({ origin }) => origin, wide: true },
];

function Settings(): VNode {
  return (
    <div class="later">
      <ListPage<Setting>
        title="Settings"
        load={(signal) => daemon().settings({ signal })}
        everyMs={0}
        columns={COLUMNS}
        keyOf={({ name }) => name}
        textOf={({ name, value, origin }) => `${name} ${valueOf(value)} ${origin}`}
        empty="There are no settings."
      />
    </div>
  );
}

function valueOf(value: Setting["value"]): string {
  return value === null ? "–" : Array.isArray(value) ? value.join(", ") : String(value);
}
