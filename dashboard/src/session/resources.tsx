/** Live plots of what a session uses. */

import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { ProcessInfo, Stats } from "sandkasten";
import { type Column, DataTable } from "../components/data_table.js";
import { Failure } from "../components/failure.js";
import { Plot, type Point } from "../components/plot.js";
import { usePolled } from "../components/polled.js";
import { bytes, duration } from "../components/units.js";
import type { TabProps } from "../pages/session.js";

const EVERY_MS = 1000;
const KEPT = 120;
// With fewer there is no line to see.
const LEAST_SAMPLES = 3;

interface Sample {
  at: number;
  stats: Stats;
}

// Of the session that was seen last, so that another tab does not empty the plots.
let past: { id: string; samples: Sample[] } = { id: "", samples: [] };

const COLUMNS: readonly Column<ProcessInfo>[] = [
  { title: "PID", cell: ({ pid }) => pid, sort: ({ pid }) => pid, numeric: true },
  { title: "Command", cell: (row) => <Command row={row} /> },
  { title: "State", cell: ({ state }) => state, wide: true },
  {
    title: "Memory",
    cell: ({ rssBytes }) => bytes(rssBytes),
    sort: ({ rssBytes }) => -rssBytes,
    numeric: true,
  },
  { title: "CPU", cell: ({ cpuMs }) => duration(cpuMs), sort: ({ cpuMs }) => -cpuMs, numeric: true },
];

// Where our programs are inside, and the folder of persistent shells.
const OURS = "/run/sandkasten/runner";
const SHELL_FOLDER = "/run/sandkasten/state/shell-";

/** What a process runs; a process of Sandkasten by its purpose. Any process can take such a name. */
function Command({ row: { cmdline, name } }: { row: ProcessInfo }): VNode {
  const line = cmdline.join(" ") || name;
  const purpose =
    cmdline[0] === OURS
      ? "Sandkasten's runner"
      : line.includes(SHELL_FOLDER)
        ? "persistent shell"
        : undefined;
  return purpose === undefined ? (
    <span class="mono">{line}</span>
  ) : (
    <span class="muted" title={line}>
      {purpose}
    </span>
  );
}

export default function ResourcesTab({ session, info }: TabProps): VNode {
  const read = usePolled((signal) => session.stats({ signal }), EVERY_MS, session.id);
  const processes = usePolled((signal) => session.processes({ signal }), 3000, session.id);
  const [samples, setSamples] = useState<Sample[]>(past.id === session.id ? past.samples : []);
  useEffect(() => {
    const stats = read.value;
    if (stats !== undefined) {
      setSamples((all) => {
        const now = Date.now();
        const kept = all.filter(({ at }) => now - at < KEPT * EVERY_MS);
        past = { id: session.id, samples: [...kept, { at: now, stats }] };
        return past.samples;
      });
    }
  }, [read.value]);
  const last = samples.at(-1)?.stats;
  const workspace = last?.disk[0];
  const cpus = info.limits["cpu_limit"] ?? 1;
  return (
    <>
      {read.error !== undefined && <Failure error={read.error} />}
      {samples.length < LEAST_SAMPLES && (
        <p class="hint" aria-busy={last === undefined}>
          Measuring: the plots begin in a moment, with what this page has seen.
        </p>
      )}
      <div class="plots" hidden={samples.length < LEAST_SAMPLES}>
        <Plot
          title="CPU"
          points={rates(samples, ({ cpuUsec }) => cpuUsec, 1e-4)}
          shown={(value) => `${value.toFixed(0)} %`}
          least={100 * cpus}
        />
        <Plot
          title="Memory"
          points={levels(samples, ({ memoryBytes }) => memoryBytes)}
          shown={bytes}
          note={last === undefined ? "" : `of ${bytes(last.memoryLimitBytes)}`}
          least={last?.memoryLimitBytes ?? 0}
        />
        <Plot
          title="Disk"
          points={levels(samples, ({ disk }) => disk[0]?.usedBytes ?? null)}
          shown={bytes}
          note={workspace === undefined ? "" : `of ${bytes(workspace.totalBytes)}`}
          least={workspace?.totalBytes ?? 0}
        />
        <Plot
          title="Network in"
          points={rates(samples, ({ network }) => network.rxBytes, 1)}
          shown={(value) => `${bytes(value)}/s`}
          least={1000}
        />
        <Plot
          title="Network out"
          points={rates(samples, ({ network }) => network.txBytes, 1)}
          shown={(value) => `${bytes(value)}/s`}
          least={1000}
        />
        <Plot
          title="Processes"
          points={levels(samples, ({ pids }) => pids)}
          shown={(value) => String(Math.round(value))}
          note={last === undefined ? "" : `of ${last.pidsLimit ?? "–"}`}
          least={last?.pidsLimit ?? 8}
        />
      </div>
      <h2>Processes</h2>
      {processes.error !== undefined && <Failure error={processes.error} />}
      <DataTable
        caption="Processes"
        rows={processes.value ?? []}
        columns={COLUMNS}
        keyOf={({ pid }) => String(pid)}
        empty="There are no processes."
      />
    </>
  );
}

function levels(samples: Sample[], read: (stats: Stats) => number | null): Point[] {
  return samples.flatMap(({ at, stats }) => {
    const value = read(stats);
    return value === null ? [] : [{ at, value }];
  });
}

/** Return how fast a counter grows in a second, times `scale`. */
function rates(samples: Sample[], read: (stats: Stats) => number | null, scale: number): Point[] {
  const found = levels(samples, read);
  return found.slice(1).map(({ at, value }, before) => {
    const one = found[before] ?? { at, value };
    const seconds = Math.max(0.1, (at - one.at) / 1000);
    return { at, value: (Math.max(0, value - one.value) / seconds) * scale };
  });
}
