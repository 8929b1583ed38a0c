"""Run an example of the OpenAI Agents SDK without the SDK: argv[1].

A module `agents` with the names that the example imports calls its tools as a model would. With
the SDK it is run by scripted_model.py, which uses the same calls.
"""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

PROGRAM = "a, b = 0, 1\nwhile a < 50:\n    print(a, end=' ')\n    a, b = b, a + b\n"
CALLS: list[tuple[str, dict[str, object]]] = [
    ("exec", {"cmd": "mkdir -p src && cd src && export STEP=two"}),
    ("write_file", {"path": "/workspace/src/fib.py", "content": PROGRAM}),
    ("exec", {"cmd": "echo $STEP; pwd; python3 fib.py", "timeout_ms": 20000}),
    ("read_file", {"path": "/workspace/src/fib.py"}),
]


@dataclass(frozen=True, slots=True)
class Agent:
    name: str
    instructions: str
    tools: Sequence[Callable[..., Awaitable[str]]]


@dataclass(frozen=True, slots=True)
class Result:
    final_output: str


class Runner:
    @staticmethod
    async def run(agent: Agent, task: str) -> Result:
        tools: dict[str, Any] = {one.__name__: one for one in agent.tools}
        return Result(json.dumps([await tools[name](**given) for name, given in CALLS]))


def main() -> None:
    agents: Any = ModuleType("agents")
    agents.Agent, agents.Runner, agents.function_tool = Agent, Runner, lambda function: function
    sys.modules["agents"] = agents
    asyncio.run(runpy.run_path(sys.argv[1])["main"]())


if __name__ == "__main__":
    main()
