/** A time as people say it, and the whole of it on hover. */

import type { VNode } from "preact";
import { clock, relative } from "./units.js";

export function When({ unix }: { unix: number | null | undefined }): VNode {
  if (unix === null || unix === undefined) {
    return <>–</>;
  }
  return (
    <time dateTime={new Date(unix * 1000).toISOString()} title={clock(unix)}>
      {relative(unix)}
    </time>
  );
}
