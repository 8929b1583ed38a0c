/** A line over the last two minutes, or over less while there is less, as SVG. */

import type { VNode } from "preact";

export interface Point {
  /** Milliseconds. */
  at: number;
  value: number;
}

interface PlotProps {
  title: string;
  points: readonly Point[];
  shown: (value: number) => string;
  /** Beside the last value. */
  note?: string;
  /** The top of the scale is at least this. */
  least: number;
}

const WIDTH = 300;
const HEIGHT = 90;
const LEAST_SPAN_MS = 30_000;

export function Plot({ title, points, shown, note = "", least }: PlotProps): VNode {
  const end = points.at(-1)?.at ?? 0;
  const span = Math.max(LEAST_SPAN_MS, end - (points[0]?.at ?? end));
  const last = points.at(-1)?.value;
  const top = Math.max(least, ...points.map(({ value }) => value), 1e-9);
  const places = points.map(({ at, value }) => {
    const x = WIDTH - ((end - at) / span) * WIDTH;
    return `${x.toFixed(1)},${(HEIGHT - (value / top) * (HEIGHT - 4) - 2).toFixed(1)}`;
  });
  const [first] = places;
  const now = last === undefined ? "no data" : shown(last);
  return (
    <figure class="card plot">
      <figcaption>
        <span>{title}</span> <strong>{now}</strong> <span class="muted">{note}</span>
      </figcaption>
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${title}: ${now}`}
      >
        <path class="grid" d={`M0 ${HEIGHT / 2}H${WIDTH}M0 1H${WIDTH}M0 ${HEIGHT - 1}H${WIDTH}`} />
        {first !== undefined && (
          <>
            <path
              class="area"
              d={`M${first.split(",")[0]},${HEIGHT}L${places.join("L")}L${WIDTH},${HEIGHT}Z`}
            />
            <path class="line" d={`M${places.join("L")}`} />
          </>
        )}
      </svg>
      <div class="scale muted">top: {shown(top)}</div>
    </figure>
  );
}
