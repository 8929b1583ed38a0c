/**
 * Agents, workflows and their runs at a daemon.
 *
 * A run belongs to the daemon and continues without the client. A run that failed is a result; a
 * run that could not be started is an error.
 */

import type { CallOptions } from "./commands.js";
import { ANSWER_MS, type Connection, given, type HttpRequest } from "./connection.js";
import { EVENTS, follow, type Followed } from "./events.js";
import { InvalidRequest } from "./generated/error_classes.js";
import type {
  Definition,
  DefinitionWithSource,
  RunDetail,
  RunEvent,
  RunList,
  RunRow,
  Tool,
} from "./generated/schema.js";
import { decoded, isRecord, invalidAnswer, type Json } from "./json.js";

// A tool may build an image or run for as long as it asks to; the daemon ends it.
const TOOL_MS = 88_200_000;
// A run that is cancelled takes its sandboxes along, which has its own deadline.
const CANCEL_MS = 2 * ANSWER_MS;
const PAGE = 1000;

export type RunKind = "agent" | "workflow";

export interface RunOptions extends CallOptions {
  /** The text of a prompt or workflow file, in place of one of the library. */
  source?: string | undefined;
  /** Keep its sessions that long after its end; `retained` of the run names them. */
  retainSeconds?: number | undefined;
  /** False: return the run at its start. */
  wait?: boolean | undefined;
}

export interface AgentOptions extends RunOptions {
  variables?: Record<string, unknown> | undefined;
}

export interface RunsOptions extends CallOptions {
  kind?: RunKind | undefined;
  status?: string | undefined;
  /** Default: 100. */
  limit?: number | undefined;
  /** The last id of the previous page. */
  before?: string | undefined;
}

const RUN: Followed<RunEvent, RunRow> = {
  piece: "event",
  pieceOf: (data) => decoded("RunEvent", data),
  endOf: (data) => decoded("RunRow", data),
  what: "a run",
  hint: "the run goes on; ask for it by its id",
};

/** The events of a run as they happen; `run` is set when iteration has ended. */
export class RunEvents implements AsyncIterable<RunEvent>, AsyncDisposable {
  private ended: RunRow | undefined;
  private readonly source: AsyncGenerator<RunEvent>;

  /** Made by `runEvents` of a client. */
  constructor(connection: Connection, runId: string, sinceSeq: number, options: CallOptions) {
    this.source = this.read(connection, runId, sinceSeq, options);
  }

  get run(): RunRow {
    if (this.ended === undefined) {
      throw new InvalidRequest("the run has not ended yet", {
        hint: "iterate to the end, then read `run`",
      });
    }
    return this.ended;
  }

  [Symbol.asyncIterator](): AsyncGenerator<RunEvent> {
    return this.source;
  }

  /** Drop the rest of the events and wait for the end. */
  async wait(): Promise<RunRow> {
    for (;;) {
      const next = await this.source.next();
      if (next.done === true) {
        return this.run;
      }
    }
  }

  /** Stop following. The run goes on. */
  async close(): Promise<void> {
    await this.source.return(undefined);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  private async *read(
    connection: Connection,
    runId: string,
    sinceSeq: number,
    options: CallOptions,
  ): AsyncGenerator<RunEvent> {
    const after = (seq: number): HttpRequest => ({
      method: "GET",
      path: runPath(runId, "events"),
      query: { since_seq: seq },
      headers: EVENTS,
      repeatable: true,
      answerMs: null,
    });
    for await (const item of follow(connection, after, RUN, sinceSeq, options.signal)) {
      if (item.end !== undefined) {
        this.ended = item.end;
        return;
      }
      yield item.piece as RunEvent;
    }
  }
}

/** The agents, workflows, runs and tools of a daemon. */
export class Agents {
  /** Made by a client. */
  constructor(protected readonly connection: Connection) {}

  /** Return the agents in the library; a broken file has its reason in `error`. */
  async agents(options: CallOptions = {}): Promise<Definition[]> {
    return decoded("AgentList", await this.fetched("/agents", options)).agents;
  }

  /** Return the workflows in the library. */
  async workflows(options: CallOptions = {}): Promise<Definition[]> {
    return decoded("WorkflowList", await this.fetched("/workflows", options)).workflows;
  }

  /** Return one agent or workflow with its source. */
  async definition(
    kind: RunKind,
    name: string,
    options: CallOptions = {},
  ): Promise<DefinitionWithSource> {
    const path = `/${kind}s/${encodeURIComponent(name)}`;
    return decoded("DefinitionWithSource", await this.fetched(path, options));
  }

  /** Check the text of an agent or workflow file; what is wrong is in `error`. */
  async check(
    kind: RunKind,
    source: string,
    options: CallOptions & { name?: string | undefined } = {},
  ): Promise<DefinitionWithSource> {
    const json = { source, ...given({ name: options.name }) };
    const more = { json, repeatable: true };
    const answer = await this.ordered("POST", `/${kind}s/validate`, more, options);
    return decoded("DefinitionWithSource", answer);
  }

  /** Run an agent. Returns the run at its end, or with `wait: false` at its start. */
  async runAgent(agent: string, task = "", options: AgentOptions = {}): Promise<RunRow> {
    const json = given({
      agent_name: agent || undefined,
      task: task || undefined,
      variables: options.variables,
      source: options.source,
      session: retained(options),
    });
    return this.begun("/execute", json, options);
  }

  /** Run a workflow. Returns the run at its end, or with `wait: false` at its start. */
  async runWorkflow(workflow: string, input?: unknown, options: RunOptions = {}): Promise<RunRow> {
    const json: Json = given({
      workflow_id: workflow || undefined,
      source: options.source,
      session: retained(options),
    });
    if (input !== undefined && input !== null) {
      json["input"] = input;
    }
    return this.begun("/workflow-runs", json, options);
  }

  /** Return a run as it stands; RunNotFound if there is none. */
  async getRun(runId: string, options: CallOptions = {}): Promise<RunDetail> {
    return decoded("RunDetail", await this.fetched(runPath(runId), options));
  }

  /** Return runs, newest first. */
  async runs(options: RunsOptions = {}): Promise<RunRow[]> {
    const { kind, status, limit = 100 } = options;
    const found: RunRow[] = [];
    let before: string | null | undefined = options.before;
    while (found.length < limit) {
      const size = Math.min(PAGE, limit - found.length);
      const query: HttpRequest["query"] = { kind, status, before, limit: size };
      const page: RunList = decoded("RunList", await this.fetched("/runs", options, query));
      found.push(...page.runs);
      before = page.next;
      if (before === null || before === undefined) {
        break;
      }
    }
    return found;
  }

  /** End a run and its sandboxes. A run that has ended stays as it is. */
  async cancelRun(runId: string, options: CallOptions = {}): Promise<RunDetail> {
    const more = { json: {}, repeatable: true, answerMs: CANCEL_MS };
    const answer = await this.ordered("POST", runPath(runId, "cancel"), more, options);
    return decoded("RunDetail", answer);
  }

  /** Continue a workflow run whose process died. */
  async resumeRun(runId: string, options: CallOptions = {}): Promise<RunRow> {
    const path = `/workflow-runs/${encodeURIComponent(runId)}/resume`;
    return decoded("RunRow", await this.ordered("POST", path, { json: {} }, options));
  }

  /** Return the events of a run, from the first to its end. */
  runEvents(
    runId: string,
    options: CallOptions & { sinceSeq?: number | undefined } = {},
  ): RunEvents {
    return new RunEvents(this.connection, runId, options.sinceSeq ?? 0, options);
  }

  /** Return name, description and parameters of the tools of a mode. */
  async tools(
    mode: "code" | "compute" = "code",
    options: CallOptions = {},
  ): Promise<Tool[]> {
    return decoded("ToolList", await this.fetched("/v1/tools", options, { mode })).tools;
  }

  /**
   * Call a tool in a sandbox of the caller, created on first use.
   *
   * Arguments and answer are those of the tool, as a model writes and reads them. A failure of the
   * tool is an answer.
   */
  async callTool(
    name: string,
    args: Record<string, unknown> = {},
    options: CallOptions & {
      session?: string | undefined;
      image?: string | undefined;
      runtime?: string | undefined;
    } = {},
  ): Promise<Record<string, unknown>> {
    const { session = "default", image, runtime } = options;
    const json = { arguments: args, session, ...given({ image, runtime }) };
    const more = { json, answerMs: TOOL_MS };
    const path = `/v1/tools/${encodeURIComponent(name)}`;
    const answer = await this.ordered("POST", path, more, options);
    if (!isRecord(answer)) {
      throw invalidAnswer("tool");
    }
    return answer;
  }

  private async begun(path: string, json: Json, options: RunOptions): Promise<RunRow> {
    const row = decoded("RunRow", await this.ordered("POST", path, { json }, options));
    return options.wait === false ? row : this.runEvents(row.id, options).wait();
  }

  protected fetched(
    path: string,
    options: CallOptions,
    query?: HttpRequest["query"],
  ): Promise<unknown> {
    return this.ordered("GET", path, { query, repeatable: true }, options);
  }

  protected ordered(
    method: string,
    path: string,
    more: Partial<HttpRequest>,
    options: CallOptions,
  ): Promise<unknown> {
    return this.connection.ask({ method, path, signal: options.signal, ...more });
  }
}

function runPath(runId: string, verb = ""): string {
  const base = `/runs/${encodeURIComponent(runId)}`;
  return verb === "" ? base : `${base}/${verb}`;
}

function retained(options: RunOptions): Json | undefined {
  return options.retainSeconds === undefined ? undefined : { retain: options.retainSeconds };
}
