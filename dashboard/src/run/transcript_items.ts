/** The transcript of a run: its events as messages, tool calls and notes. Pure. */

import type { RunEvent } from "sandkasten";
import { problemOf } from "./step_states.js";

export interface Message {
  kind: "message";
  seq: number;
  role: string;
  text: string;
}

export interface ToolUse {
  kind: "tool";
  seq: number;
  name: string;
  input: string;
  /** Undefined while it runs. */
  answer: string | undefined;
  ok: boolean;
  ms: number | undefined;
  /** The run of the agent that it called. */
  runId: string | undefined;
}

export interface Note {
  kind: "note";
  seq: number;
  text: string;
  bad: boolean;
  runId: string | undefined;
}

export type Item = Message | ToolUse | Note;

export interface ModelUse {
  model: string;
  calls: number;
  promptTokens: number;
  completionTokens: number;
  ms: number;
}

export function itemsOf(events: readonly RunEvent[]): Item[] {
  const items: Item[] = [];
  const open = new Map<string, ToolUse>();
  let last: ToolUse | undefined;
  for (const { seq, type, data } of events) {
    const text = (name: string): string => {
      const value = data[name];
      return typeof value === "string" || typeof value === "number" ? String(value) : "";
    };
    const call = `${text("step")} ${text("id")}`;
    if (type === "agent.message") {
      items.push({ kind: "message", seq, role: text("role"), text: text("text") });
    } else if (type === "tool.called") {
      const [name, input] = [text("name"), text("arguments")];
      const more = { answer: undefined, ok: true, ms: undefined, runId: undefined };
      last = { kind: "tool", seq, name, input, ...more };
      open.set(call, last);
      items.push(last);
    } else if (type === "tool.answered") {
      const use = open.get(call);
      if (use !== undefined) {
        open.delete(call);
        use.answer = text("answer");
        use.ok = data["ok"] !== false;
        use.ms = Number(text("ms"));
      }
    } else if (type === "agent.called" && last?.answer === undefined && last !== undefined) {
      last.runId = text("run_id");
    } else if (type !== "model.called") {
      items.push(noteOf(seq, type, text, data));
    }
  }
  return items;
}

function noteOf(
  seq: number,
  type: string,
  text: (name: string) => string,
  data: Record<string, unknown>,
): Note {
  const problem = problemOf(data["error"]);
  const said: Record<string, string> = {
    "run.started": "The run started.",
    "run.resumed": "The run was resumed.",
    "run.ended": `The run ended: ${text("status")}.`,
    "step.started": `Step ${text("step")} started${data["resumed"] === true ? " again" : ""}.`,
    "step.ended": `Step ${text("step")} ended.`,
    "step.failed": `Step ${text("step")} failed: ${problem}`,
    "step.retried": `Step ${text("step")} is retried in ${text("wait_s")} s: ${problem}`,
    "switch.taken": `Step ${text("step")} goes on with ${text("next")}, because its value is ${text("value")}.`,
    "loop.stopped": `Step ${text("step")} reached ${text("limit")}, which is ${text("most")}.`,
    "agent.called": `Agent ${text("agent")} was called.`,
    "model.retried": `The model is asked again in ${text("pause_s")} s: ${text("reason")}`,
  };
  const bad = ["step.failed", "step.retried", "loop.stopped", "model.retried"].includes(type);
  const runId = type === "agent.called" ? text("run_id") : undefined;
  return { kind: "note", seq, text: said[type] ?? type, bad, runId };
}

/** Return what each model was asked, by its name. */
export function modelUse(events: readonly RunEvent[]): ModelUse[] {
  const found = new Map<string, ModelUse>();
  for (const { type, data } of events) {
    if (type !== "model.called") {
      continue;
    }
    const model = String(data["model"] ?? "");
    const use = found.get(model) ?? {
      model,
      calls: 0,
      promptTokens: 0,
      completionTokens: 0,
      ms: 0,
    };
    found.set(model, use);
    use.calls += 1;
    use.promptTokens += Number(data["prompt_tokens"] ?? 0);
    use.completionTokens += Number(data["completion_tokens"] ?? 0);
    use.ms += Number(data["ms"] ?? 0);
  }
  return [...found.values()];
}
