/** Agents and workflows: the files that the daemon knows, and a dialog that runs one. */

import type { VNode } from "preact";
import { useState } from "preact/hooks";
import type { Definition, DefinitionWithSource, RunKind } from "sandkasten";
import { Badge } from "../components/badge.js";
import type { Column } from "../components/data_table.js";
import { Facts } from "../components/facts.js";
import { Failure } from "../components/failure.js";
import { Field, type Fields, FormDialog } from "../components/form_dialog.js";
import { ListPage } from "../components/list_page.js";
import { usePolled } from "../components/polled.js";
import { counted } from "../components/units.js";
import { daemon } from "../daemon.js";
import type { PageProps } from "../pages.js";
import { address, go } from "../router.js";
import { graphOf } from "../run/graph_layout.js";
import "../run/run.css";
import { StepGraph } from "../run/step_graph.js";
import { problemOf } from "../run/step_states.js";

const COLUMNS: readonly Column<Definition>[] = [
  {
    title: "Name",
    cell: ({ kind, name }) => <a href={address(["agents", kind, name])}>{name}</a>,
    sort: ({ name }) => name,
  },
  { title: "Kind", cell: ({ kind }) => kind, sort: ({ kind }) => kind },
  {
    title: "State",
    cell: (one) => <Badge state={stateOf(one)} />,
    sort: stateOf,
  },
  { title: "Description", cell: ({ description }) => description, wide: true },
  { title: "Uses", cell: usesOf, wide: true },
];

export default function Agents({ place }: PageProps): VNode {
  const [, kind, name] = place.parts;
  if ((kind === "agent" || kind === "workflow") && name !== undefined) {
    return <OneDefinition key={`${kind} ${name}`} kind={kind} name={name} />;
  }
  return <Library />;
}

function Library(): VNode {
  const [chosen, setChosen] = useState<Definition>();
  return (
    <>
      <ListPage<Definition>
        title="Agents and workflows"
        load={async (signal) => [
          ...(await daemon().agents({ signal })),
          ...(await daemon().workflows({ signal })),
        ]}
        everyMs={10_000}
        columns={COLUMNS}
        keyOf={({ kind, path, name }) => `${kind} ${name} ${path}`}
        textOf={({ kind, name, description }) => `${kind} ${name} ${description}`}
        actions={(one) =>
          one.error === null && (
            <button type="button" aria-label={`Run ${one.name}`} onClick={() => setChosen(one)}>
              Run
            </button>
          )
        }
        empty="There are no agents. Put prompt files into a directory of agents.dirs, and workflows into one of workflows.dirs."
      />
      {chosen !== undefined && <Run definition={chosen} close={() => setChosen(undefined)} />}
    </>
  );
}

function Run({ definition, close }: { definition: Definition; close: () => void }): VNode {
  const { kind, name, fields } = definition;
  const start = async (form: Fields): Promise<void> => {
    const input = jsonOf(form.text("input"));
    const options = { wait: false, retainSeconds: form.number("retain") };
    const run =
      kind === "workflow"
        ? await daemon().runWorkflow(name, input, options)
        : await daemon().runAgent(name, form.text("task") ?? "", {
            ...options,
            variables: (input ?? undefined) as Record<string, unknown> | undefined,
          });
    go(["runs", run.id]);
  };
  const schema = fields["input_schema"];
  const wanted = isFilled(schema) ? JSON.stringify(schema, null, 1) : undefined;
  return (
    <FormDialog title={`Run ${name}`} label="Start" send={start} close={close}>
      {kind === "agent" && (
        <Field name="task" label="Task">
          <textarea id="field-task" name="task" rows={4} />
        </Field>
      )}
      <Field name="input" label={kind === "agent" ? "Variables, as JSON" : "Input, as JSON"}>
        <textarea id="field-input" name="input" rows={4} placeholder="{}" spellcheck={false} />
      </Field>
      {wanted !== undefined && (
        <details>
          <summary>Schema</summary>
          <pre tabIndex={0}>{wanted}</pre>
        </details>
      )}
      <Field
        name="retain"
        label="Keep its sessions for (seconds)"
        type="number"
        min="0"
        placeholder="as its file says"
      />
    </FormDialog>
  );
}

function OneDefinition({ kind, name }: { kind: RunKind; name: string }): VNode {
  const found = usePolled((signal) => daemon().definition(kind, name, { signal }), 10_000);
  const [running, setRunning] = useState(false);
  const one = found.value;
  return (
    <section>
      <div class="heading">
        <a href={address(["agents"])}>Agents and workflows</a>
        <span aria-hidden="true">/</span>
        <h1>{name}</h1>
        {one !== undefined && <Badge state={stateOf(one)} />}
        <div class="tools">
          {one?.error === null && (
            <button type="button" class="primary" onClick={() => setRunning(true)}>
              Run
            </button>
          )}
        </div>
      </div>
      {found.error !== undefined && <Failure error={found.error} />}
      {one !== undefined && <Described one={one} />}
      {running && one !== undefined && <Run definition={one} close={() => setRunning(false)} />}
    </section>
  );
}

function Described({ one }: { one: DefinitionWithSource }): VNode {
  return (
    <>
      {one.description !== "" && <p>{one.description}</p>}
      <Facts
        facts={[
          ["Kind", one.kind],
          ["Uses", usesOf(one) || undefined],
          ["File", <span class="mono">{one.path}</span>],
        ]}
      />
      {one.error !== null && (
        <div class="failure">
          <p>{problemOf(one.error)}</p>
        </div>
      )}
      {one.warnings.map((warning) => (
        <p key={warning} class="note bad">
          {warning}
        </p>
      ))}
      <div class="steps">
        {one.kind === "workflow" && one.error === null && (
          <div class="card">
            <h2>Graph</h2>
            <StepGraph graph={graphOf(one.fields)} />
          </div>
        )}
        <div>
          <h2 class="hidden">Source</h2>
          <pre class="source" tabIndex={0}>
            {one.source}
          </pre>
        </div>
      </div>
    </>
  );
}

function stateOf({ error, warnings }: Definition): string {
  return error !== null ? "invalid" : warnings.length > 0 ? "warning" : "valid";
}

function usesOf({ kind, fields }: Definition): string {
  if (kind === "workflow") {
    const steps = fields["steps"];
    return Array.isArray(steps) ? counted(steps.length, "step") : "";
  }
  const sandbox = fields["sandbox"] as { runtime?: unknown } | null | undefined;
  const parts = [fields["model"], fields["mode"], sandbox?.runtime];
  return parts.filter((part) => typeof part === "string").join(", ");
}

function jsonOf(text: string | undefined): unknown {
  if (text === undefined) {
    return undefined;
  }
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The input is not valid JSON: ${(error as Error).message}`);
  }
}

function isFilled(value: unknown): boolean {
  return typeof value === "object" && value !== null && Object.keys(value).length > 0;
}
