"""How long one expression of a workflow takes, by how much it looks at.

`python -m benchmarks.expressions`
"""

from __future__ import annotations

import asyncio
import time

from benchmarks.samples import percentile
from sandkasten.agents.workflows.expressions import Expressions

_ROUNDS = 100


def _outputs(kilobytes: int) -> dict[str, object]:
    return {"steps": {f"s{n}": {"output": {"text": "x" * 1000}} for n in range(kilobytes)}}


async def _main() -> None:
    async with Expressions() as expressions:
        began = time.perf_counter()
        await expressions.value("1", {})
        print(f"first one, with its process  {(time.perf_counter() - began) * 1000:8.1f} ms")
        for kilobytes in (1, 100, 1000):
            context = _outputs(kilobytes)
            took = []
            for _ in range(_ROUNDS):
                began = time.perf_counter()
                await expressions.value("size(steps.s0.output.text) == 1000", context)
                took.append((time.perf_counter() - began) * 1000)
            p50, p99 = percentile(took, 0.5), percentile(took, 0.99)
            print(f"looking at {kilobytes:4} kB           p50 {p50:8.2f} ms   p99 {p99:8.2f} ms")


if __name__ == "__main__":
    asyncio.run(_main())
