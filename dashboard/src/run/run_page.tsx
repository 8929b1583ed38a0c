/** One run: its state, what it costs, its steps, its transcript, its input and its output. */

import type { VNode } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import type { RunDetail, RunEvent } from "sandkasten";
import { Badge } from "../components/badge.js";
import { Confirm } from "../components/dialog.js";
import { Facts } from "../components/facts.js";
import { Failure } from "../components/failure.js";
import { usePolled } from "../components/polled.js";
import { duration } from "../components/units.js";
import { When } from "../components/when.js";
import { daemon } from "../daemon.js";
import { address } from "../router.js";
import "./run.css";
import { useRunEvents } from "./run_events.js";
import { Steps } from "./run_steps.js";
import { problemOf } from "./step_states.js";
import { indented, Transcript } from "./transcript.js";
import { modelUse } from "./transcript_items.js";

export function RunPage({ id }: { id: string }): VNode {
  const [turn, setTurn] = useState(0);
  const followed = useRunEvents(id, turn);
  const run = usePolled(
    (signal) => daemon().getRun(id, { signal }),
    followed.ended ? 0 : 2000,
    `${id} ${turn}`,
  );
  const row = run.value;
  useEffect(() => {
    document.title = `${row?.name ?? id} · Sandkasten`;
  }, [row?.name, id]);
  const again = (): void => setTurn((one) => one + 1);
  return (
    <section class="run">
      <div class="heading">
        <a href={address(["runs"])}>Runs</a>
        <span aria-hidden="true">/</span>
        <h1>{row?.name ?? id}</h1>
        {row !== undefined && <Badge state={row.status} />}
        <div class="tools">
          {row !== undefined && <Acts run={row} refresh={run.refresh} again={again} />}
        </div>
      </div>
      {run.error !== undefined && <Failure error={run.error} />}
      {followed.error !== undefined && run.error === undefined && (
        <Failure error={followed.error} />
      )}
      {row !== undefined && (
        <>
          <About run={row} />
          {row.error !== null && <Problem run={row} />}
          <ModelCost events={followed.events} />
          {row.kind === "workflow" && (
            <Steps name={row.name} events={followed.events} done={row.done} />
          )}
          <div class="two">
            <Value title="Input" value={row.input} />
            <Value title="Output" value={row.output} />
          </div>
          <Transcript events={followed.events} dropped={followed.dropped} />
        </>
      )}
    </section>
  );
}

interface ActsProps {
  run: RunDetail;
  refresh: () => void;
  again: () => void;
}

function Acts({ run, refresh, again }: ActsProps): VNode | null {
  const [error, setError] = useState<unknown>();
  if (!run.done) {
    return (
      <Confirm
        label="Cancel"
        about={run.name}
        question="The run and its sandboxes end."
        act={() => daemon().cancelRun(run.id)}
        done={refresh}
      />
    );
  }
  if (run.kind !== "workflow" || run.status !== "lost") {
    return null;
  }
  const resume = async (): Promise<void> => {
    try {
      await daemon().resumeRun(run.id);
      again();
    } catch (problem) {
      setError(problem);
    }
  };
  return (
    <>
      {error !== undefined && <Failure error={error} />}
      <button type="button" class="primary" onClick={resume}>
        Resume
      </button>
    </>
  );
}

function About({ run }: { run: RunDetail }): VNode {
  const { usage, parentId, workflowRunId } = run;
  const until = run.endedAtUnix ?? Date.now() / 1000;
  const link = (id: string): VNode => (
    <a class="mono" href={address(["runs", id])}>
      {id}
    </a>
  );
  const retained = Object.entries(run.retained);
  return (
    <Facts
      facts={[
        ["Run", <span class="mono">{run.id}</span>],
        ["Kind", run.kind],
        ["Started", <When unix={run.createdAtUnix} />],
        ["Time", duration((until - run.createdAtUnix) * 1000)],
        ["Model answers", usage.steps],
        ["Tool calls", usage.toolCalls],
        [
          "Tokens",
          `${usage.totalTokens.toLocaleString()} (${usage.promptTokens.toLocaleString()} in, ` +
            `${usage.completionTokens.toLocaleString()} out)`,
        ],
        ["Started by", parentId === null ? undefined : link(parentId)],
        [
          "Workflow run",
          workflowRunId === null || workflowRunId === parentId ? undefined : link(workflowRunId),
        ],
        [
          "Kept sessions",
          retained.length === 0
            ? undefined
            : retained.map(([key, id]) => (
                <a key={id} class="mono" href={address(["sessions", id])}>
                  {key}
                </a>
              )),
        ],
      ]}
    />
  );
}

function Problem({ run }: { run: RunDetail }): VNode {
  const { code, hint } = run.error ?? {};
  return (
    <div class="failure">
      <p>
        <strong>{typeof code === "string" ? code : "Error"}</strong> {problemOf(run.error)}
      </p>
      {typeof hint === "string" && hint !== "" && <p class="hint">{hint}</p>}
    </div>
  );
}

function ModelCost({ events }: { events: readonly RunEvent[] }): VNode | null {
  const used = useMemo(() => modelUse(events), [events]);
  if (used.length === 0) {
    return null;
  }
  return (
    <div class="card cost" tabIndex={0} role="region" aria-label="Cost by model">
      <table>
        <caption class="hidden">Cost by model</caption>
        <thead>
          <tr>
            <th scope="col">Model</th>
            <th scope="col" class="numeric">
              Calls
            </th>
            <th scope="col" class="numeric">
              Tokens in
            </th>
            <th scope="col" class="numeric">
              Tokens out
            </th>
            <th scope="col" class="numeric">
              Time
            </th>
          </tr>
        </thead>
        <tbody>
          {used.map((one) => (
            <tr key={one.model}>
              <td>{one.model}</td>
              <td class="numeric">{one.calls}</td>
              <td class="numeric">{one.promptTokens.toLocaleString()}</td>
              <td class="numeric">{one.completionTokens.toLocaleString()}</td>
              <td class="numeric">{duration(one.ms)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Value({ title, value }: { title: string; value: unknown }): VNode {
  const text = value === null || value === undefined ? "" : indented(value);
  return (
    <div>
      <h2>{title}</h2>
      {text === "" ? <p class="muted">None</p> : <pre class="value" tabIndex={0}>{text}</pre>}
    </div>
  );
}
