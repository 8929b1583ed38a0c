"""One expression of a workflow, held against the library of CEL with nothing around it.

Ours is evaluated in a process of its own, which the context goes to and the value comes from.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import cel
from cel.stdlib import add_stdlib_to_context

from benchmarks.turns import in_turns
from sandkasten_agents.workflows.expressions import Expressions

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.samples import Samples

KILOBYTES: Final = (1, 100, 1000)
FIRST: Final = "first expression, with its process"
LIBRARY: Final = "cel in process"
_EXPRESSION: Final = "size(steps.s0.output.text) == 1000"


def operation(kilobytes: int) -> str:
    return f"expression that looks at {kilobytes} kB"


def measure(samples: Samples, plan: Plan) -> None:
    asyncio.run(_measure(samples, plan))


def _outputs(kilobytes: int) -> dict[str, object]:
    return {"steps": {f"s{n}": {"output": {"text": "x" * 1000}} for n in range(kilobytes)}}


async def _measure(samples: Samples, plan: Plan) -> None:
    program = cel.compile(_EXPRESSION)
    async with Expressions() as expressions:
        with samples.timed(FIRST, "sandkasten"):
            await expressions.value("1", {})
        for kilobytes in KILOBYTES:
            outputs = _outputs(kilobytes)

            async def evaluate(outputs: dict[str, object] = outputs) -> None:
                assert await expressions.value(_EXPRESSION, outputs) is True

            async def library(outputs: dict[str, object] = outputs) -> None:
                context = cel.Context(variables=outputs)
                add_stdlib_to_context(context)
                assert program.execute(context) is True

            turns = {"sandkasten": evaluate, LIBRARY: library}
            rounds = plan.rounds * plan.execs
            await in_turns(samples, operation(kilobytes), turns, rounds=rounds, plan=plan)
