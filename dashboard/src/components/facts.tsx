/** Names and values, side by side. */

import type { ComponentChildren, VNode } from "preact";

export type Fact = readonly [name: string, value: ComponentChildren];

/** Values that are undefined are left out. */
export function Facts({ facts }: { facts: readonly Fact[] }): VNode {
  return (
    <dl class="facts">
      {facts
        .filter(([, value]) => value !== undefined)
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}
