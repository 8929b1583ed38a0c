"""Each call of a starting adapter to its sandbox fails once. Prints what was left, as JSON.

argv is the module of an adapter. `STARTS` has every adapter that creates sandboxes; `GIVEN` are
those that get one from their caller. Runs in the environment of the framework.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
import os
import sys
import tempfile
from pathlib import Path

from sandkasten import AsyncSandbox, Sandbox

# An image and root, for starts that need both.
IMAGE = {"image": os.environ.get("DEV_IMAGE"), "profile": "dev"}


class Injected(Exception):
    """The failure of a call."""


class Faults:
    """Count the calls to sandboxes that exist, and fail the one with the number `at`."""

    def __init__(self, at: int | None) -> None:
        self.at, self.calls = at, []

    def meet(self, name: str) -> None:
        self.calls.append(name)
        if len(self.calls) - 1 == self.at:
            raise Injected(name)


def faulty(kind: type, faults: Faults) -> type:
    """Return a kind of sandbox whose methods fail as `faults` says, except those of its life."""
    members = {}
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_") or name in ("begin", "close", "transport"):
            continue

        @functools.wraps(method)
        def called(self, *words, _method=method, _name=name, **options):
            if self._id is not None:
                faults.meet(_name)
            return _method(self, *words, **options)

        members[name] = called
    return type(kind.__name__, (kind,), members)


async def inspect_ai(module) -> object:
    config = module.SandkastenConfig(**IMAGE, user="sandbox")
    return (await module.SandkastenEnvironment.sample_init("task", config, {}))["default"].box


async def autogen(module) -> object:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "file").write_text("x")
        executor = module.SandkastenCodeExecutor(
            **IMAGE,
            work_dir=place,
            init_command="touch made",
            extra_volumes={f"{place}/file": {"bind": "/container/file", "mode": "ro"}},
            extra_hosts={"example.com": "127.0.0.1"},
        )
        await executor.start()
        return executor


async def agent_framework(module) -> object:
    await (shell := module.SandkastenShell()).start()
    return shell


async def swe_rex(module) -> object:
    await (deployment := module.SandkastenDeployment()).start()
    return deployment


async def openai_agents(module) -> object:
    return (await module.SandkastenSandboxClient().create())._inner.box


async def pydantic_ai(module) -> object:
    return await module.SandkastenWorkspaceBackend().sandbox()


async def smolagents(module) -> object:
    return await asyncio.to_thread(module.SandkastenExecutor)


STARTS = {
    "inspect_ai_environment": inspect_ai,
    "autogen_executor": autogen,
    "agent_framework_shell": agent_framework,
    "swe_rex_deployment": swe_rex,
    "openai_agents_client": openai_agents,
    "pydantic_ai_workspace": pydantic_ai,
    "smolagents_executor": smolagents,
}
GIVEN = {"langchain_backend", "claude_agent_tools"}


async def ended(adapter: object) -> None:
    for name in ("close", "stop", "cleanup"):
        if hasattr(adapter, name):
            done = await asyncio.to_thread(getattr(adapter, name))
            if inspect.isawaitable(done):
                await done
            return
    raise TypeError(adapter)


async def started(name: str, at: int | None) -> tuple[Faults, str]:
    """Start an adapter whose call number `at` fails; return its calls and how that ended."""
    module, faults = importlib.import_module(f"sandkasten.integrations.{name}"), Faults(at)
    kinds = {kind: faulty(getattr(module, kind), faults)
             for kind in ("AsyncSandbox", "Sandbox") if hasattr(module, kind)}  # fmt: skip
    before = {kind: getattr(module, kind) for kind in kinds}
    for kind, replacement in kinds.items():
        setattr(module, kind, replacement)
    try:
        adapter = await STARTS[name](module)
    except Injected as exc:
        return faults, f"failed: {exc}"
    finally:
        for kind, original in before.items():
            setattr(module, kind, original)
    await ended(adapter)
    return faults, "started"


async def main(name: str) -> dict[str, object]:
    whole, end = await started(name, None)
    assert end == "started", end
    rows = []
    for at, call in enumerate(whole.calls):
        _, end = await started(name, at)
        ids = [sandbox.id for sandbox in await AsyncSandbox.list()]
        for sandbox_id in ids:
            await (await AsyncSandbox.attach(sandbox_id)).close()
        rows.append([call, end, len(ids)])
    return {"rows": rows, "left": len(await AsyncSandbox.list())}


if __name__ == "__main__":
    assert AsyncSandbox is not Sandbox
    sys.stdout.write(json.dumps(asyncio.run(main(sys.argv[1]))))
