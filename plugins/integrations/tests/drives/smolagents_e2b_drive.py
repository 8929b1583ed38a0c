"""A CodeAgent of smolagents with its own executor for E2B, on a daemon of ours. Prints JSON."""

from __future__ import annotations

import json
import sys

from e2b import Sandbox
from e2b_daemon import e2b_daemon
from smolagents import CodeAgent
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import E2BExecutor
from smolagents_drive import ScriptedModel, double


def agent_loop() -> dict[str, object]:
    model = ScriptedModel(
        "with open('/home/user/n', 'w') as f:\n    f.write('20')\nkept = 2\nprint('written')",
        "1 / 0",
        "final_answer(double(int(open('/home/user/n').read())) + kept)",
    )
    executor = E2BExecutor([], AgentLogger(LogLevel.ERROR))
    # The definitions of tools import these. E2B's template has them; the image of the host does
    # not, and nothing here uses them.
    for module in ("numpy", "PIL"):
        executor.sandbox.files.write(f"/home/user/{module}.py", "")
    with CodeAgent([double], model, executor=executor, verbosity_level=0) as agent:
        running = len(Sandbox.list().next_items())
        answer = agent.run("Compute.")
    return {
        "answer": answer,
        "first": "written" in model.seen[1],
        "second": "ZeroDivisionError" in model.seen[2],
        "running": [running, len(Sandbox.list().next_items())],
    }


if __name__ == "__main__":
    with e2b_daemon():
        sys.stdout.write(json.dumps(agent_loop()))
