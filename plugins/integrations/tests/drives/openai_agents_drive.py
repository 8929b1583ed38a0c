"""A sandbox agent of the OpenAI Agents SDK with a scripted model. Prints JSON.

argv[1] is `sandkasten`, or `e2b` for the SDK's own client of E2B on a daemon.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from agents import Runner, set_tracing_disabled
from agents.run import RunConfig
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.sandbox.errors import ExecTimeoutError, WorkspaceReadNotFoundError
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.testing import ScriptedModel, assistant_message, function_call
from e2b_daemon import e2b_daemon

PROGRAM = "print(sum(int(line) for line in open('numbers.txt')))\n"


def chosen() -> SandboxRunConfig:
    if sys.argv[1] == "e2b":
        from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions

        options = E2BSandboxClientOptions("e2b", on_timeout="kill")
        return SandboxRunConfig(client=E2BSandboxClient(), options=options)
    from sandkasten.integrations.openai_agents_client import SandkastenSandboxClient

    return SandboxRunConfig(client=SandkastenSandboxClient())


def call(number: int, cmd: str, **more: object):
    return function_call("exec_command", {"cmd": cmd, **more}, call_id=f"call_{number}")


async def agent_loop() -> dict[str, object]:
    """The agent gets a file, writes a program, runs it, and answers."""
    model = ScriptedModel(
        [
            [call(1, "cat numbers.txt; pwd")],
            [call(2, f"cat > total.py <<'END'\n{PROGRAM}END\npython3 total.py")],
            [call(3, "exit 3")],
            [assistant_message("The total is 45.")],
        ]
    )
    numbers = "".join(f"{n}\n" for n in range(1, 10)).encode()
    agent = SandboxAgent(
        name="adder",
        model=model,
        instructions="Add the numbers.",
        default_manifest=Manifest(entries={"numbers.txt": File(content=numbers)}),
    )
    done = await Runner.run(agent, "Add them.", run_config=RunConfig(sandbox=chosen()))
    outputs = [str(item.output) for item in done.new_items if item.type == "tool_call_output_item"]
    return {
        "answer": done.final_output,
        "told": [output.partition("Output:\n")[2] for output in outputs],
    }


async def session() -> dict[str, object]:
    """A session as a program uses it: files, a timeout, a snapshot, and a resumed session."""
    config = chosen()
    with tempfile.TemporaryDirectory() as place:
        spec = LocalSnapshotSpec(base_path=Path(place))
        box = await config.client.create(
            snapshot=spec,
            manifest=Manifest(environment={"value": {"MODE": "test"}}),
            options=config.options,
        )
        async with box:
            await box.write(Path("kept.txt"), io.BytesIO(b"kept"))
            read = (await box.read(Path("kept.txt"))).read().decode()
            mode = (await box.exec("echo $MODE")).stdout.decode()
            try:
                await box.exec("sleep 30", timeout=0.5)
                late = ""
            except ExecTimeoutError as exc:
                late = type(exc).__name__
            try:
                await box.read(Path("missing"))
                missing = ""
            except WorkspaceReadNotFoundError as exc:
                missing = type(exc).__name__
            listed = [entry.path for entry in await box.ls(".")]
            state = config.client.serialize_session_state(box.state)
            ran = await box.running()
        again = await config.client.resume(config.client.deserialize_session_state(state))
        async with again:
            content = (await again.read(Path("kept.txt"))).read().decode()
        await config.client.delete(again)
        is_running = await again.running()
    return {
        "read": read,
        "mode": mode,
        "errors": [late, missing],
        "listed": [Path(path).name for path in listed],
        "kept": content,
        "ran": [ran, is_running],
    }


async def terminal() -> list[object]:
    """A program that waits for input, between calls of the model."""
    config = chosen()
    box = await config.client.create(manifest=Manifest(), options=config.options)
    async with box:
        started = await box.pty_exec_start(
            "python3 -c \"print('got', input())\"", tty=True, yield_time_s=0.5
        )
        ended = await box.pty_write_stdin(
            session_id=started.process_id, chars="word\n", yield_time_s=5
        )
        if ended.exit_code is None:
            ended = await box.pty_write_stdin(
                session_id=started.process_id, chars="", yield_time_s=5
            )
        slow = await box.pty_exec_start("sleep 60", yield_time_s=0.3)
        await box.pty_terminate_all()
    await config.client.delete(box)
    return [started.exit_code, ended.exit_code, b"got word" in ended.output, slow.exit_code]


async def main() -> None:
    set_tracing_disabled(True)
    report: dict[str, object] = {"agent": await agent_loop()}
    if sys.argv[1] == "sandkasten":
        from sandkasten import AsyncSandbox

        report["session"] = await session()
        report["terminal"] = await terminal()
        report["left"] = len(await AsyncSandbox.list())
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    with e2b_daemon() if sys.argv[1] == "e2b" else nullcontext():
        asyncio.run(main())
