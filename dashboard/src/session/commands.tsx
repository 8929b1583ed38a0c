/** Commands of a session: run one, and see what ran, what it printed, used and why it ended. */

import type { ComponentChildren, TargetedEvent, VNode } from "preact";
import { useState } from "preact/hooks";
import type { ExecPast, Session } from "sandkasten";
import { Badge } from "../components/badge.js";
import { type Column, DataTable } from "../components/data_table.js";
import { Failure } from "../components/failure.js";
import { usePolled } from "../components/polled.js";
import { plainText } from "../components/plain_text.js";
import { bytes, duration } from "../components/units.js";
import { When } from "../components/when.js";
import type { TabProps } from "../pages/session.js";
import { address, go } from "../router.js";
import { Code } from "./code_text.js";
import { isCommand, type PastRow, peakMemory, recordedText, resultOf, titleOf, wasClosed } from "./past_row.js";

// The history has only the code of a reason.
const MEANINGS: Record<string, string> = {
  TIMEOUT: "It ran until its deadline.",
  OOM: "It used more memory than the session may have.",
  PIDS: "It started more processes than the session may have.",
  QUOTA: "The disk of the session is full.",
  SECCOMP: "It made a system call that is not allowed.",
  SIGNAL: "It was stopped by a signal.",
  SHELL_EXIT: "The shell that it ran in ended.",
  LOST: "Its end was not seen.",
};
const LIMIT = 500;
const MAX_SHOWN = 200_000;

export default function CommandsTab({ session, place }: TabProps): VNode {
  const list = usePolled((signal) => session.execs({ signal, limit: LIMIT }), 2000, session.id);
  const chosen = place.query.get("exec");
  const columns: readonly Column<PastRow>[] = [
    {
      title: "Command",
      cell: (row) => (
        <a
          class={row.command ? "mono" : "muted"}
          href={address(["sessions", session.id, "commands"], { exec: row.execId })}
        >
          {titleOf(row)}
        </a>
      ),
    },
    { title: "Kind", cell: ({ kind }) => kind ?? "command", sort: ({ kind }) => kind ?? "", wide: true },
    {
      title: "Result",
      cell: (row) => <Badge {...resultOf(row)} />,
      sort: (row) => resultOf(row).state,
      plain: true,
    },
    {
      title: "Time",
      cell: ({ durationMs }) => duration(durationMs),
      sort: ({ durationMs }) => durationMs,
      numeric: true,
    },
    {
      title: "Peak memory",
      cell: (row) => bytes(peakMemory(row)),
      sort: ({ usage }) => usage.peakMemoryBytes,
      numeric: true,
      wide: true,
    },
    {
      title: "Started",
      cell: ({ startedAt }) => <When unix={startedAt} />,
      sort: ({ startedAt }) => -startedAt,
      plain: true,
    },
  ];
  const rows = ([...(list.value ?? [])] as PastRow[]).reverse();
  const row = rows.find(({ execId }) => execId === chosen);
  return (
    <>
      <RunForm session={session} done={list.refresh} />
      {list.error !== undefined && <Failure error={list.error} />}
      {row !== undefined && <Details key={row.execId} session={session} row={row} />}
      <DataTable
        caption="Commands"
        rows={rows}
        columns={columns}
        keyOf={({ execId }) => execId}
        empty={list.value === undefined ? "Loading" : "Nothing ran here yet."}
      />
    </>
  );
}

function RunForm({ session, done }: { session: Session; done: () => void }): VNode {
  const [error, setError] = useState<unknown>();
  const submit = async (event: TargetedEvent<HTMLFormElement>): Promise<void> => {
    event.preventDefault();
    const form = event.currentTarget;
    const command = String(new FormData(form).get("command") ?? "");
    try {
      const started = await session.start(command);
      form.reset();
      setError(undefined);
      done();
      go(["sessions", session.id, "commands"], { exec: started.execId });
    } catch (problem) {
      setError(problem);
    }
  };
  return (
    <>
      <form class="line-form" onSubmit={submit}>
        <label class="hidden" for="command">
          Command
        </label>
        <input
          id="command"
          name="command"
          class="mono"
          placeholder="Run a command, for example: python3 --version"
          autocomplete="off"
          spellcheck={false}
          required
        />
        <button class="primary" type="submit">
          Run
        </button>
      </form>
      {error !== undefined && <Failure error={error} />}
    </>
  );
}

function Details({ session, row }: { session: Session; row: PastRow }): VNode {
  const running = row.status === "running";
  const [error, setError] = useState<unknown>();
  const output = usePolled(
    async (signal) => {
      if (!isCommand(row)) {
        return (await recordedText(session.id, row.execId, signal)) ?? "(its output was not recorded)";
      }
      const pieces = await session.process(row.execId).output({ signal });
      return pieces.map(({ text }) => text).join("");
    },
    running ? 1000 : 0,
    row.status,
  );
  const stop = (): void => {
    session.process(row.execId).kill().then(undefined, setError);
  };
  const text = plainText(output.value ?? "");
  return (
    <article class="card details">
      <div class="heading">
        <h2 class={row.command ? "mono" : ""}>{titleOf(row)}</h2>
        <Badge {...resultOf(row)} />
        <div class="tools">
          {running && isCommand(row) && (
            <button type="button" class="danger" onClick={stop}>
              Stop
            </button>
          )}
          <a href={address(["sessions", session.id, "commands"])}>Close</a>
        </div>
      </div>
      {row.kind === "cell" && <Code text={row.command ?? ""} language={row.language ?? ""} />}
      {error !== undefined && <Failure error={error} />}
      {output.error !== undefined && <Failure error={output.error} />}
      <dl class="facts">
        <Fact name="Exit status" value={ending(row)} />
        <Fact name="Time" value={duration(row.durationMs)} />
        <Fact name="Started" value={<When unix={row.startedAt} />} />
        <Fact name="CPU" value={duration(row.usage.cpuMs)} />
        <Fact name="Peak memory" value={bytes(peakMemory(row))} />
        <Fact name="Read" value={bytes(row.usage.ioReadBytes)} />
        <Fact name="Written" value={bytes(row.usage.ioWriteBytes)} />
        <Fact name="Directory" value={row.cwd ?? "–"} />
      </dl>
      {wasClosed(row) && <p class="hint">Its terminal was closed.</p>}
      {row.why !== null && !wasClosed(row) && (
        <p class="why">
          Ended by <strong>{row.why.code}</strong>.{" "}
          {row.why.message || MEANINGS[row.why.code]} {row.why.hint}
        </p>
      )}
      <pre tabIndex={0} aria-label="Output">
        {text === "" ? (output.value === undefined ? "" : "(no output)") : text.slice(-MAX_SHOWN)}
      </pre>
    </article>
  );
}

function Fact({ name, value }: { name: string; value: ComponentChildren }): VNode {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

export function ending({ exitCode, signal, status }: ExecPast): string {
  if (exitCode !== null) {
    return String(exitCode);
  }
  return signal !== null ? `signal ${signal}` : status === "running" ? "–" : "unknown";
}
