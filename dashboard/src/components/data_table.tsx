/** A table that only draws the rows in view, so that thousands of them cost nothing. */

import type { ComponentChildren, VNode } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

// The heights of a row are in style.css too. On a phone a row has two lines.
const ROW_PX = 40;
const STACKED_PX = 66;
const PHONE = matchMedia("(max-width: 45rem)");
// Drawn beyond the view on both sides, so that fast scrolling shows no gap.
const SPARE = 12;

export interface Column<T> {
  title: string;
  cell: (row: T) => ComponentChildren;
  /** The value to sort by; without it the column cannot be sorted. */
  sort?: (row: T) => string | number;
  /** Left out on narrow screens. */
  wide?: boolean;
  /** Numbers are aligned right. */
  numeric?: boolean;
  /** Without its title where rows are stacked. */
  plain?: boolean;
}

export interface DataTableProps<T> {
  caption: string;
  rows: readonly T[];
  columns: readonly Column<T>[];
  keyOf: (row: T) => string;
  /** The last cell of a row. */
  actions?: (row: T) => ComponentChildren;
  empty: ComponentChildren;
}

interface Order {
  column: number;
  down: boolean;
}

export function DataTable<T>(props: DataTableProps<T>): VNode {
  const { caption, rows, columns, keyOf, actions, empty } = props;
  const [order, setOrder] = useState<Order>();
  const frame = useRef<HTMLDivElement>(null);
  const { first, last } = useRowsInView(frame, rows.length);
  const shown = ordered(rows, columns, order);
  const turn = (column: number): void =>
    setOrder((one) => ({ column, down: one?.column === column && !one.down }));
  if (rows.length === 0) {
    return <div class="empty">{empty}</div>;
  }
  return (
    <div class="table" ref={frame} tabIndex={0} role="region" aria-label={caption}>
      <table aria-rowcount={rows.length + 1}>
        <caption class="hidden">{caption}</caption>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map((column, at) => (
              <th
                key={column.title}
                scope="col"
                class={classOf(column)}
                {...(order?.column === at
                  ? { "aria-sort": order.down ? ("descending" as const) : ("ascending" as const) }
                  : {})}
              >
                {column.sort === undefined ? (
                  column.title
                ) : (
                  <button type="button" class="sort" onClick={() => turn(at)}>
                    {column.title}
                    <span aria-hidden="true">
                      {order?.column === at ? (order.down ? " ↓" : " ↑") : ""}
                    </span>
                  </button>
                )}
              </th>
            ))}
            {actions !== undefined && (
              <th scope="col">
                <span class="hidden">Actions</span>
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          <Space rows={first} />
          {shown.slice(first, last).map((row, at) => (
            <tr key={keyOf(row)} aria-rowindex={first + at + 2}>
              {columns.map((column) => (
                <td key={column.title} class={classOf(column)} data-title={column.title}>
                  {column.cell(row)}
                </td>
              ))}
              {actions !== undefined && <td class="actions">{actions(row)}</td>}
            </tr>
          ))}
          <Space rows={Math.max(0, rows.length - last)} />
        </tbody>
      </table>
    </div>
  );
}

function rowPx(): number {
  return PHONE.matches ? STACKED_PX : ROW_PX;
}

function Space({ rows }: { rows: number }): VNode | null {
  if (rows === 0) {
    return null;
  }
  return (
    <tr aria-hidden="true" class="space">
      <td style={{ height: `${rows * rowPx()}px` }} />
    </tr>
  );
}

function useRowsInView(
  frame: { current: HTMLDivElement | null },
  count: number,
): { first: number; last: number } {
  const [range, setRange] = useState({ first: 0, last: 2 * SPARE + 20 });
  const look = (): void => {
    const element = frame.current;
    if (element === null) {
      return;
    }
    const from = Math.floor(element.scrollTop / rowPx());
    const first = Math.max(0, Math.min(from, count) - SPARE);
    const last = from + Math.ceil(element.clientHeight / rowPx()) + SPARE;
    setRange((one) => (one.first === first && one.last === last ? one : { first, last }));
  };
  useLayoutEffect(look, [count]);
  useEffect(() => {
    const element = frame.current;
    element?.addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      element?.removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  }, [count]);
  return range;
}

function ordered<T>(
  rows: readonly T[],
  columns: readonly Column<T>[],
  order: Order | undefined,
): readonly T[] {
  const by = order === undefined ? undefined : columns[order.column]?.sort;
  if (order === undefined || by === undefined) {
    return rows;
  }
  const sign = order.down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [one, other] = [by(a), by(b)];
    return one === other ? 0 : one < other ? -sign : sign;
  });
}

function classOf<T>(column: Column<T>): string {
  const { wide, numeric, plain } = column;
  return [wide && "wide", numeric && "numeric", plain && "plain-cell"].filter(Boolean).join(" ");
}
