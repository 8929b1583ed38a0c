/** A page that is a list: it reads rows again and again, filters them and shows a table. */

import type { ComponentChildren, VNode } from "preact";
import { useMemo, useState } from "preact/hooks";
import { type Column, DataTable } from "./data_table.js";
import { Failure } from "./failure.js";
import { type Polled, usePolled } from "./polled.js";

export interface ListPageProps<T> {
  title: string;
  /** Read the rows. Other keyword for reading anew: `readKey`. */
  load: (signal: AbortSignal) => Promise<readonly T[]>;
  /** When it changes, the rows are read at once. */
  readKey?: string;
  /** Default: 5 seconds; 0: only once. */
  everyMs?: number;
  /** A cell may set what the filter searches for. */
  columns: readonly Column<T>[] | ((search: (text: string) => void) => readonly Column<T>[]);
  keyOf: (row: T) => string;
  /** What the filter searches in. Default: no filter. */
  textOf?: (row: T) => string;
  /** Buttons beside the title. `refresh` reads the rows now. */
  buttons?: (list: Polled<readonly T[]>) => ComponentChildren;
  /** Fields beside the filter. */
  filters?: ComponentChildren;
  /** The last cell of a row. */
  actions?: (row: T, list: Polled<readonly T[]>) => ComponentChildren;
  /** Shown when there is no row at all. */
  empty: ComponentChildren;
}

export function ListPage<T>(props: ListPageProps<T>): VNode {
  const { title, load, everyMs = 5000, columns, keyOf, textOf, buttons, actions, empty } = props;
  const list = usePolled(load, everyMs, props.readKey);
  const [wanted, setWanted] = useState("");
  const rows = useMemo(() => matching(list.value ?? [], textOf, wanted), [list.value, wanted]);
  const all = list.value?.length ?? 0;
  return (
    <section class="list">
      <div class="heading">
        <h1>{title}</h1>
        <span class="count" role="status">
          {list.value === undefined ? "" : rows.length === all ? all : `${rows.length} of ${all}`}
        </span>
        <div class="tools">
          {textOf !== undefined && (
            <input
              type="search"
              aria-label={`Filter ${title.toLowerCase()}`}
              placeholder="Filter"
              value={wanted}
              onInput={(event) => setWanted(event.currentTarget.value)}
            />
          )}
          {props.filters}
          {buttons?.(list)}
        </div>
      </div>
      {list.error !== undefined && <Failure error={list.error} />}
      {list.value === undefined ? (
        <div class="empty" aria-busy="true">
          {list.error === undefined ? "Loading" : ""}
        </div>
      ) : (
        <DataTable
          caption={title}
          rows={rows}
          columns={typeof columns === "function" ? columns(setWanted) : columns}
          keyOf={keyOf}
          empty={all === 0 ? empty : "Nothing matches the filter."}
          {...(actions === undefined ? {} : { actions: (row: T) => actions(row, list) })}
        />
      )}
    </section>
  );
}

function matching<T>(
  rows: readonly T[],
  textOf: ((row: T) => string) | undefined,
  wanted: string,
): readonly T[] {
  const words = wanted.toLowerCase().split(/\s+/).filter((word) => word !== "");
  if (textOf === undefined || words.length === 0) {
    return rows;
  }
  return rows.filter((row) => {
    const text = textOf(row).toLowerCase();
    return words.every((word) => text.includes(word));
  });
}
