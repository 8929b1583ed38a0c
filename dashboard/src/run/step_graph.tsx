/** The steps of a workflow as a drawing. A table beside it says the same in words. */

import type { VNode } from "preact";
import { useMemo } from "preact/hooks";
import { address } from "../router.js";
import { type Graph, layout, NODE, type PlacedNode } from "./graph_layout.js";
import { edgeKey, type Progress } from "./step_states.js";

// Beyond this a drawing helps nobody, and costs seconds.
const MOST = 200;
const LETTERS = 22;

interface StepGraphProps {
  graph: Graph;
  /** Without it the drawing shows a workflow that does not run. */
  progress?: Progress;
}

export function StepGraph({ graph, progress }: StepGraphProps): VNode {
  const drawing = useMemo(
    () => (graph.nodes.length > MOST ? undefined : layout(graph)),
    [JSON.stringify(graph)],
  );
  if (drawing === undefined) {
    return <p class="muted">The workflow has too many steps to draw them.</p>;
  }
  const { nodes, edges, width, height } = drawing;
  return (
    <div class="graph" tabIndex={0} role="region" aria-label="Graph of the steps">
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} aria-label="Steps">
        <defs>
          <marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
            <path d="M0 0L8 4L0 8z" />
          </marker>
        </defs>
        {edges.map((edge, at) => (
          <g key={at} class={`edge ${progress?.taken.has(edgeKey(edge.from, edge.to)) ? "taken" : ""}`}>
            <path d={edge.path} marker-end="url(#tip)" />
            {edge.when !== "" && (
              <text x={edge.labelX} y={edge.labelY + 4}>
                {short(edge.when)}
              </text>
            )}
          </g>
        ))}
        {nodes.map((node) => (
          <Node key={node.id} node={node} progress={progress} />
        ))}
      </svg>
    </div>
  );
}

function Node({ node, progress }: { node: PlacedNode; progress: Progress | undefined }): VNode {
  const step = progress?.steps.get(node.id);
  const run = step?.runIds.at(-1);
  const state = step?.state ?? "waiting";
  const again = step !== undefined && step.visits > 1 ? ` ×${step.visits}` : "";
  const what = node.agent === "" ? node.type : `${node.type} ${node.agent}`;
  const shape = (
    <g class={`node ${state}`} transform={`translate(${node.x} ${node.y})`}>
      <title>{`${node.id}: ${what}${progress === undefined ? "" : `, ${state}`}`}</title>
      <rect width={NODE.width} height={NODE.height} rx={node.type === "end" ? 23 : 8} />
      <text x="14" y="20" class="name">
        {short(node.id) + again}
      </text>
      <text x="14" y="36" class="what">
        {short(what)}
      </text>
    </g>
  );
  return run === undefined ? (
    shape
  ) : (
    <a href={address(["runs", run])}>{shape}</a>
  );
}

function short(text: string): string {
  return text.length > LETTERS ? `${text.slice(0, LETTERS - 1)}…` : text;
}
