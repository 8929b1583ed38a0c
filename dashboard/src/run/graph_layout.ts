/** Places of the steps of a workflow in a drawing: one row below the other. Pure. */

export interface GraphNode {
  id: string;
  type: string;
  agent: string;
}

export interface GraphEdge {
  from: string;
  to: string;
  when: string;
}

export interface Graph {
  nodes: GraphNode[];
  edges: GraphEdge[];
}

export interface PlacedNode extends GraphNode {
  x: number;
  y: number;
}

export interface PlacedEdge extends GraphEdge {
  /** Of an SVG path. */
  path: string;
  labelX: number;
  labelY: number;
}

export interface Layout {
  nodes: PlacedNode[];
  edges: PlacedEdge[];
  width: number;
  height: number;
}

export const NODE = { width: 190, height: 46 };
const GAP = { x: 36, y: 44 };
// Room at the sides for edges that go back up or skip rows.
const SIDE = 64;

/** Return the graph in the `fields` of a definition; input of an unknown form is left out. */
export function graphOf(fields: Record<string, unknown>): Graph {
  const graph = recordOf(fields["graph"]);
  const text = (value: unknown): string => (typeof value === "string" ? value : "");
  const nodes = listOf(graph["nodes"]).map(recordOf);
  const edges = listOf(graph["edges"]).map(recordOf);
  return {
    nodes: nodes.map((one) => ({
      id: text(one["id"]),
      type: text(one["type"]),
      agent: text(one["agent"]),
    })),
    edges: edges.map((one) => ({
      from: text(one["from"]),
      to: text(one["to"]),
      when: text(one["when"]),
    })),
  };
}

export function layout(graph: Graph): Layout {
  const known = new Set(graph.nodes.map(({ id }) => id));
  const edges = graph.edges.filter(({ from, to }) => known.has(from) && known.has(to));
  const row = rowsOf(graph.nodes, edges);
  const rows: PlacedNode[][] = [];
  for (const node of graph.nodes) {
    (rows[row.get(node.id) ?? 0] ??= []).push({ ...node, x: 0, y: 0 });
  }
  const widest = Math.max(1, ...rows.map((one) => one?.length ?? 0));
  const inner = widest * NODE.width + (widest - 1) * GAP.x;
  const placed = new Map<string, PlacedNode>();
  rows.forEach((nodes, at) => {
    const width = nodes.length * NODE.width + (nodes.length - 1) * GAP.x;
    nodes.forEach((node, column) => {
      node.x = SIDE + (inner - width) / 2 + column * (NODE.width + GAP.x);
      node.y = 8 + at * (NODE.height + GAP.y);
      placed.set(node.id, node);
    });
  });
  return {
    nodes: [...placed.values()],
    edges: edges.map((edge) => drawn(edge, placed, row)),
    width: inner + 2 * SIDE,
    height: 16 + rows.length * (NODE.height + GAP.y) - GAP.y,
  };
}

function drawn(
  edge: GraphEdge,
  placed: Map<string, PlacedNode>,
  row: Map<string, number>,
): PlacedEdge {
  const [from, to] = [placed.get(edge.from) as PlacedNode, placed.get(edge.to) as PlacedNode];
  const rows = (row.get(edge.to) ?? 0) - (row.get(edge.from) ?? 0);
  if (rows === 1) {
    const [x1, y1] = [from.x + NODE.width / 2, from.y + NODE.height];
    const [x2, y2] = [to.x + NODE.width / 2, to.y];
    const middle = (y1 + y2) / 2;
    const path = `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2 - 2}`;
    return { ...edge, path, labelX: (x1 + x2) / 2, labelY: middle };
  }
  // Back up on the left, past other rows on the right.
  const back = rows <= 0;
  const side = back ? 0 : NODE.width;
  const [x1, y1] = [from.x + side, from.y + NODE.height / 2];
  const [x2, y2] = [to.x + side, to.y + NODE.height / 2];
  const bow = back ? Math.min(x1, x2) - SIDE + 14 : Math.max(x1, x2) + SIDE - 14;
  const tip = x2 + (back ? -2 : 2);
  const path =
    from.id === to.id
      ? `M${x1} ${y1 - 10}C${bow} ${y1 - 26} ${bow} ${y1 + 26} ${tip} ${y1 + 10}`
      : `M${x1} ${y1}C${bow} ${y1} ${bow} ${y2} ${tip} ${y2}`;
  return { ...edge, path, labelX: (x1 + x2) / 8 + bow * 0.75, labelY: (y1 + y2) / 2 };
}

/** Return the row of each node: below everything that leads to it, apart from loops. */
function rowsOf(nodes: readonly GraphNode[], edges: readonly GraphEdge[]): Map<string, number> {
  const after = new Map<string, string[]>();
  for (const { from, to } of edges) {
    after.set(from, [...(after.get(from) ?? []), to]);
  }
  // Depth first, without recursion: a file can have a chain of thousands of steps.
  const state = new Map<string, "open" | "done">();
  const order: string[] = [];
  const loops = new Set<string>();
  for (const { id } of nodes) {
    const stack = state.has(id) ? [] : [{ id, next: 0 }];
    state.set(id, state.get(id) ?? "open");
    while (stack.length > 0) {
      const top = stack[stack.length - 1] as { id: string; next: number };
      const to = after.get(top.id)?.[top.next];
      top.next += 1;
      if (to === undefined) {
        state.set(top.id, "done");
        order.push(top.id);
        stack.pop();
      } else if (state.get(to) === "open") {
        loops.add(`${top.id}\n${to}`);
      } else if (!state.has(to)) {
        state.set(to, "open");
        stack.push({ id: to, next: 0 });
      }
    }
  }
  const row = new Map<string, number>();
  for (const id of order.reverse()) {
    const here = row.get(id) ?? 0;
    row.set(id, here);
    for (const to of after.get(id) ?? []) {
      if (!loops.has(`${id}\n${to}`)) {
        row.set(to, Math.max(row.get(to) ?? 0, here + 1));
      }
    }
  }
  return row;
}

function recordOf(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

function listOf(value: unknown): unknown[] {
  return Array.isArray(value) ? value : [];
}
