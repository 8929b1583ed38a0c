"""Agents of AutoGen with a scripted model solve a task in a sandbox. Prints JSON."""

from __future__ import annotations

import asyncio
import json
import sys

from autogen_agentchat.agents import CodeExecutorAgent
from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.models.replay import ReplayChatCompletionClient

from sandkasten import AsyncSandbox
from sandkasten.integrations.autogen_executor import SandkastenCodeExecutor

PLAN = """I write the numbers first.
```bash
seq 1 9 > numbers
```
```python
print(sum(int(line) for line in open('numbers')))
```
"""


async def coding_agent() -> dict[str, object]:
    """The model writes code, the executor runs it, and the model reads the output."""
    model = ReplayChatCompletionClient([PLAN, "The sum is 45."])
    async with SandkastenCodeExecutor() as executor:
        languages = ["python", "bash"]
        agent = CodeExecutorAgent(
            "coder", executor, model_client=model, supported_languages=languages
        )
        done = await agent.run(task="Sum the numbers from 1 to 9.")
        box = executor.sandbox.id
        content = (await executor.sandbox.read("numbers")).text
    alive = [sandbox.id for sandbox in await AsyncSandbox.list()]
    # What the model was told before its last answer.
    messages = [str(message.content) for message in model.create_calls[-1]["messages"]]
    return {
        "told": "45\n" in messages[-1],
        "answer": done.messages[-1].content,
        "kept": content,
        "alive": box in alive,
    }


async def executor_agent() -> str:
    """An agent without a model runs the code of a message."""
    async with SandkastenCodeExecutor() as executor:
        agent = CodeExecutorAgent("executor", executor)
        message = TextMessage(content="```python\nprint(6 * 7)\n```", source="user")
        answer = await agent.on_messages([message], CancellationToken())
        return answer.chat_message.content


async def restart() -> list[object]:
    async with SandkastenCodeExecutor(timeout=20) as executor:
        token = CancellationToken()
        await executor.execute_code_blocks([CodeBlock("touch here", "sh")], token)
        await executor.restart()
        listing = await executor.execute_code_blocks([CodeBlock("ls", "sh")], token)
        copy = SandkastenCodeExecutor.load_component(executor.dump_component())
        return [listing.exit_code, listing.output.split(), copy.timeout]


async def main() -> None:
    report = {
        "coder": await coding_agent(),
        "executor": await executor_agent(),
        "restart": await restart(),
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(main())
