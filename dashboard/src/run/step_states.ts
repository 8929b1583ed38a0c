/** What the events of a workflow run say about its steps. Pure. */

import type { RunEvent } from "sandkasten";

export interface StepState {
  id: string;
  type: string;
  state: "waiting" | "running" | "completed" | "failed" | "stopped";
  /** How often it was entered. */
  visits: number;
  retries: number;
  /** The runs of its agent, oldest first. */
  runIds: string[];
  startedAtUnix: number | null;
  endedAtUnix: number | null;
  /** Why its last attempt failed. */
  problem: string;
}

export interface Progress {
  /** By id, in the order in which they were entered. */
  steps: Map<string, StepState>;
  /** The edges that were followed, as `from\nto`. */
  taken: Set<string>;
}

export function edgeKey(from: string, to: string): string {
  return `${from}\n${to}`;
}

export function progressOf(events: readonly RunEvent[]): Progress {
  const steps = new Map<string, StepState>();
  const taken = new Set<string>();
  for (const { type, data, atUnix } of events) {
    const id = data["step"];
    if (type === "run.ended") {
      for (const step of steps.values()) {
        if (step.state === "running") {
          step.state = "stopped";
          step.endedAtUnix = atUnix;
        }
      }
    }
    if (typeof id !== "string") {
      continue;
    }
    const step = steps.get(id) ?? waiting(id);
    steps.set(id, step);
    if (type === "step.started") {
      step.type = String(data["type"] ?? "");
      step.state = "running";
      step.visits += data["resumed"] === true ? 0 : 1;
      step.startedAtUnix = atUnix;
      step.endedAtUnix = null;
    } else if (type === "step.ended") {
      step.state = "completed";
      step.endedAtUnix = atUnix;
      if (typeof data["next"] === "string") {
        taken.add(edgeKey(id, data["next"]));
      }
    } else if (type === "step.failed") {
      step.state = "failed";
      step.endedAtUnix = atUnix;
      step.problem = problemOf(data["error"]);
    } else if (type === "step.retried") {
      step.retries += 1;
      step.problem = problemOf(data["error"]);
    } else if (type === "agent.called" && typeof data["run_id"] === "string") {
      step.runIds.push(data["run_id"]);
    }
  }
  return { steps, taken };
}

function waiting(id: string): StepState {
  return {
    id,
    type: "",
    state: "waiting",
    visits: 0,
    retries: 0,
    runIds: [],
    startedAtUnix: null,
    endedAtUnix: null,
    problem: "",
  };
}

export function problemOf(error: unknown): string {
  if (typeof error === "object" && error !== null && "message" in error) {
    return String(error.message);
  }
  return error === null || error === undefined ? "" : String(error);
}
