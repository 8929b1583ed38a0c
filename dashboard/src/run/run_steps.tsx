/** The steps of a workflow run: the drawing, and a table with the cost of each. */

import type { VNode } from "preact";
import { useMemo } from "preact/hooks";
import { type RunEvent, type RunRow, SandkastenError } from "sandkasten";
import { Badge } from "../components/badge.js";
import { usePolled } from "../components/polled.js";
import { duration } from "../components/units.js";
import { daemon } from "../daemon.js";
import { address } from "../router.js";
import { type Graph, graphOf } from "./graph_layout.js";
import { StepGraph } from "./step_graph.js";
import { type Progress, progressOf, type StepState } from "./step_states.js";

// Each is one request. A workflow with more agent runs shows the cost of the newest ones.
const MOST_RUNS = 40;

interface StepsProps {
  name: string;
  events: readonly RunEvent[];
  done: boolean;
}

export function Steps({ name, events, done }: StepsProps): VNode {
  const progress = useMemo(() => progressOf(events), [events]);
  const plan = usePolled((signal) => planOf(name, signal), 0, name);
  const runIds = [...progress.steps.values()].flatMap((step) => step.runIds).slice(-MOST_RUNS);
  const runs = usePolled(
    (signal) => Promise.all(runIds.map((id) => daemon().getRun(id, { signal }))),
    done ? 0 : 3000,
    `${runIds.join()} ${done}`,
  );
  const graph = plan.value ?? (plan.value === null || plan.error ? walked(progress) : undefined);
  const rows = stepRows(graph, progress);
  return (
    <div class="steps">
      <div class="card">
        <h2>Graph</h2>
        {graph !== undefined && <StepGraph graph={graph} progress={progress} />}
      </div>
      <div class="card">
        <h2>Steps</h2>
        <div class="scroll" tabIndex={0} role="region" aria-label="Steps">
          <table>
            <caption class="hidden">Steps</caption>
            <thead>
              <tr>
                <th scope="col">Step</th>
                <th scope="col">State</th>
                <th scope="col" class="numeric">
                  Tokens
                </th>
                <th scope="col" class="numeric">
                  Time
                </th>
                <th scope="col">Runs</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((step) => (
                <Row key={step.id} step={step} runs={runs.value ?? []} />
              ))}
            </tbody>
          </table>
        </div>
      </div>
    </div>
  );
}

function Row({ step, runs }: { step: StepState; runs: readonly RunRow[] }): VNode {
  const own = runs.filter(({ id }) => step.runIds.includes(id));
  const tokens = own.reduce((sum, { usage }) => sum + usage.totalTokens, 0);
  const until = step.endedAtUnix ?? Date.now() / 1000;
  return (
    <tr>
      <th scope="row" title={step.problem}>
        {step.id}
        {step.visits > 1 && <span class="muted"> ×{step.visits}</span>}
        {step.retries > 0 && <span class="muted"> {step.retries} retries</span>}
      </th>
      <td>
        <Badge state={step.state} />
      </td>
      <td class="numeric">{tokens === 0 ? "–" : tokens.toLocaleString()}</td>
      <td class="numeric">
        {step.startedAtUnix === null ? "–" : duration((until - step.startedAtUnix) * 1000)}
      </td>
      <td>
        {step.runIds.slice(-5).map((id) => (
          <a key={id} href={address(["runs", id])}>
            {own.find((one) => one.id === id)?.name ?? "run"}
          </a>
        ))}
      </td>
    </tr>
  );
}

/** Return the graph of the library's file; null for a workflow that was sent along. */
async function planOf(name: string, signal: AbortSignal): Promise<Graph | null> {
  try {
    return graphOf((await daemon().definition("workflow", name, { signal })).fields);
  } catch (error) {
    if (error instanceof SandkastenError && error.code === "WORKFLOW_NOT_FOUND") {
      return null;
    }
    throw error;
  }
}

/** Return a graph of what happened, for a file that the library does not have. */
function walked({ steps, taken }: Progress): Graph {
  return {
    nodes: [...steps.values()].map(({ id, type }) => ({ id, type, agent: "" })),
    edges: [...taken].map((edge) => {
      const [from = "", to = ""] = edge.split("\n");
      return { from, to, when: "" };
    }),
  };
}

function stepRows(graph: Graph | undefined, { steps }: Progress): StepState[] {
  const waiting = (graph?.nodes ?? [])
    .filter(({ id }) => !steps.has(id))
    .map(({ id, type }): StepState => {
      const none = { startedAtUnix: null, endedAtUnix: null, problem: "" };
      return { id, type, state: "waiting", visits: 0, retries: 0, runIds: [], ...none };
    });
  return [...steps.values(), ...waiting];
}
