/** Runs of agents and workflows: the list. An id in the address is one run. */

import type { VNode } from "preact";
import { useState } from "preact/hooks";
import type { RunKind, RunRow } from "sandkasten";
import { Badge } from "../components/badge.js";
import type { Column } from "../components/data_table.js";
import { ListPage } from "../components/list_page.js";
import { duration } from "../components/units.js";
import { When } from "../components/when.js";
import { daemon } from "../daemon.js";
import type { PageProps } from "../pages.js";
import { address } from "../router.js";
import { RunPage } from "../run/run_page.js";

const NEWEST = 500;
const STATES = ["running", "completed", "failed", "cancelled", "lost"];

const COLUMNS: readonly Column<RunRow>[] = [
  {
    title: "Name",
    cell: ({ id, name }) => <a href={address(["runs", id])}>{name}</a>,
    sort: ({ name }) => name,
  },
  { title: "State", cell: ({ status }) => <Badge state={status} />, sort: ({ status }) => status },
  { title: "Kind", cell: ({ kind }) => kind, sort: ({ kind }) => kind, wide: true },
  { title: "Run", cell: ({ id }) => <span class="mono">{id}</span>, wide: true },
  {
    title: "Part of",
    cell: ({ parentId }) =>
      parentId === null ? (
        ""
      ) : (
        <a class="mono" href={address(["runs", parentId])}>
          {parentId}
        </a>
      ),
    wide: true,
  },
  {
    title: "Tokens",
    cell: ({ usage }) => usage.totalTokens.toLocaleString(),
    sort: ({ usage }) => usage.totalTokens,
    numeric: true,
    wide: true,
  },
  {
    title: "Time",
    cell: (row) => duration(timeOf(row)),
    sort: timeOf,
    numeric: true,
    wide: true,
  },
  {
    title: "Started",
    cell: ({ createdAtUnix }) => <When unix={createdAtUnix} />,
    sort: ({ createdAtUnix }) => -createdAtUnix,
    numeric: true,
  },
];

export default function Runs({ place }: PageProps): VNode {
  const id = place.parts[1];
  return id === undefined ? <RunList /> : <RunPage key={id} id={id} />;
}

function RunList(): VNode {
  const [kind, setKind] = useState("");
  const [status, setStatus] = useState("");
  return (
    <ListPage<RunRow>
      title="Runs"
      load={(signal) =>
        daemon().runs({
          kind: kind === "" ? undefined : (kind as RunKind),
          status: status || undefined,
          limit: NEWEST,
          signal,
        })
      }
      readKey={`${kind} ${status}`}
      everyMs={3000}
      columns={COLUMNS}
      keyOf={({ id }) => id}
      textOf={({ id, name, kind, status, parentId }) =>
        `${id} ${name} ${kind} ${status} ${parentId ?? ""}`
      }
      filters={
        <>
          <select
            aria-label="Kind"
            value={kind}
            onChange={(event) => setKind(event.currentTarget.value)}
          >
            <option value="">All kinds</option>
            <option value="agent">Agents</option>
            <option value="workflow">Workflows</option>
          </select>
          <select
            aria-label="State"
            value={status}
            onChange={(event) => setStatus(event.currentTarget.value)}
          >
            <option value="">All states</option>
            {STATES.map((state) => (
              <option key={state} value={state}>
                {state}
              </option>
            ))}
          </select>
          <a class="button primary" href={address(["agents"])}>
            New run
          </a>
        </>
      }
      empty="There are no runs. Start an agent or a workflow."
    />
  );
}

function timeOf({ createdAtUnix, endedAtUnix }: RunRow): number {
  return ((endedAtUnix ?? Date.now() / 1000) - createdAtUnix) * 1000;
}
