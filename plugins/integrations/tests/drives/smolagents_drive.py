"""A CodeAgent of smolagents with a scripted model solves a task in a sandbox. Prints JSON."""

from __future__ import annotations

import json
import sys

from smolagents import ChatMessage, CodeAgent, MessageRole, Model, tool
from smolagents.utils import AgentError

from sandkasten import Sandbox
from sandkasten.integrations.smolagents_executor import SandkastenExecutor


@tool
def double(number: int) -> int:
    """Double a number.

    Args:
        number: Any number.
    """
    return 2 * number


class ScriptedModel(Model):
    """Answers with the next piece of code, whatever it is asked."""

    def __init__(self, *pieces: str) -> None:
        super().__init__()
        self.pieces = list(pieces)
        self.seen: list[str] = []

    def generate(self, messages, **_) -> ChatMessage:
        self.seen.append(str(messages[-1].content))
        piece = self.pieces.pop(0)
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"<code>\n{piece}\n</code>")


def agent_loop() -> dict[str, object]:
    model = ScriptedModel(
        "import os\nwith open('/workspace/n', 'w') as f:\n    f.write('20')\nprint(os.getcwd())",
        "1 / 0",
        "n = int(open('/workspace/n').read())\nfinal_answer(double(n) + extra)",
    )
    with CodeAgent([double], model, executor=SandkastenExecutor(), verbosity_level=0) as agent:
        answer = agent.run("Compute.", additional_args={"extra": 2})
        box = agent.python_executor.sandbox.id
    return {
        "answer": answer,
        "first": "/workspace" in model.seen[1],
        "second": "ZeroDivisionError" in model.seen[2],
        "alive": box in [sandbox.id for sandbox in Sandbox.list()],
    }


def values() -> dict[str, object]:
    """What code leaves behind, as the executors that smolagents has would return it."""
    with SandkastenExecutor(timeout_seconds=20) as executor:
        executor.send_variables({"n": 3, "names": {"a", "b"}})
        plain = executor("print('said')\nsorted(names) * n")
        executor.send_tools({"double": double})
        used = executor("double(n)")
        try:
            executor("undefined")
            failed = ""
        except AgentError as exc:
            failed = str(exc)
        return {
            "plain": [plain.output, plain.logs, plain.is_final_answer],
            "tool": used.output,
            "error": "NameError: name 'undefined' is not defined" in failed,
        }


def large_answer() -> int:
    with CodeAgent(
        [],
        ScriptedModel("final_answer('x' * 300_000)"),
        executor=SandkastenExecutor(),
        verbosity_level=0,
    ) as agent:
        return len(agent.run("Answer."))


def borrowed_sandbox() -> str:
    with Sandbox() as box:
        with SandkastenExecutor(sandbox=box) as executor:
            executor("open('/workspace/kept', 'w').write('kept')")
        return box.read("kept").text


def timeout() -> list[object]:
    with SandkastenExecutor(timeout_seconds=10) as executor:
        executor("before = 1")
        try:
            executor("while True: pass")
            message = ""
        except AgentError as exc:
            message = str(exc)
        return [message.splitlines()[-1], executor("before").output]


if __name__ == "__main__":
    report = {
        "agent": agent_loop(),
        "values": values(),
        "large": large_answer(),
        "borrowed": borrowed_sandbox(),
        "timeout": timeout(),
    }
    sys.stdout.write(json.dumps(report))
