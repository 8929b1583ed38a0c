"""A service with agent files, a scripted model, and real sandboxes of the local backend."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.runs.run_values import AgentRunRequest, RunEvent, RunRow, WorkflowRunRequest
from sandkasten_agents.agent_assembly import agent_service
from sandkasten_runtime.assembly.backend_registry import prepare_data_dir
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.store.run_directory import RunDirectory
from sandkasten_server.daemon.persistent_stores import open_books
from tests.models.server import Answer, Asked, Call, ScriptedModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from sandkasten.ports import FileStore
    from sandkasten_agents.agent_service import AgentService
    from sandkasten_runtime.assembly.settings.resolver import Settings
    from sandkasten_runtime.engine.engine import Engine

WRITER = """---
model: scripted
metadata: {name: writer, description: writes a file}
sandbox: {mode: code, runtime: bash, session: workflow}
---
You are the writer.
"""
READER = """---
model: scripted
metadata: {name: reader, description: reads it}
sandbox: {mode: code, runtime: bash, session: workflow}
output: {schema: {type: object, properties: {said: {type: string}}, required: [said]}}
---
You are the reader.
"""
CALLER = """---
model: scripted
metadata: {name: caller}
agents: [writer]
sandbox: {mode: code, runtime: bash}
---
You are the caller.
"""
PLAIN = """---
model: scripted
metadata: {name: plain}
input: {schema: {type: object, properties: {word: {type: string}}, required: [word]}}
---
You are plain. {{word}}
"""
FLOW = """id: flow
steps:
  - {id: write, type: agent, agent: writer, task: "write ${input.text}"}
  - {id: read, type: agent, agent: reader, task: "read"}
  - {id: done, type: end}
"""


def played(asked: Asked) -> Answer:
    """Return a scripted model for all agents, which answers by system prompt and turn."""
    who, turn = asked.system, asked.turn
    if "the writer" in who:
        if "hang" in asked.user and turn == 1:
            return Answer(fault="hang")
        if turn == 0:
            command = f"echo {asked.user!r} > note.txt; cat note.txt"
            return Answer(calls=[Call("sandbox_exec", {"command": command})])
        return Answer("written")
    if "the reader" in who:
        if turn == 0:
            return Answer(calls=[Call("sandbox_fs_read", {"path": "note.txt"})])
        return Answer('{"said": "' + str(asked.last.get("content", "?")).strip() + '"}')
    if "the caller" in who:
        if turn == 0:
            return Answer(calls=[Call("agent_writer", {"task": "hand it on"})])
        return Answer(f"it said {asked.last}")
    if "I fail" in who:
        return Answer(status=400, raw=b'{"error": {"message": "no"}}')
    return Answer("plainly")


@dataclass(frozen=True, slots=True)
class House:
    service: AgentService
    engine: Engine
    model: ScriptedModel
    runs: RunDirectory
    settings: Settings
    files: FileStore

    async def sandboxes(self) -> list[str]:
        return [info.session_key or "" for info in await self.engine.list()]

    async def agent(self, agent: str, task: str = "", **more: Any) -> RunRow:
        return await self.ended(
            await self.service.start_agent(AgentRunRequest(agent, task, **more))
        )

    async def flow(self, workflow: str, input: Any = None, **more: Any) -> RunRow:
        return await self.ended(
            await self.service.start_workflow(WorkflowRunRequest(workflow, input, **more))
        )

    async def ended(self, row: RunRow) -> RunRow:
        async with asyncio.timeout(60):
            async for item in self.service.events(row.id, row.tenant, follow=True):
                if isinstance(item, RunRow):
                    return item
        raise AssertionError("it ended without its end")

    async def heard(self, row: RunRow, type: str) -> RunEvent:
        """Wait for the first event of that type."""
        async with asyncio.timeout(60):
            async for item in self.service.events(row.id, row.tenant, follow=True):
                if isinstance(item, RunEvent) and item.type == type:
                    return item
        raise AssertionError(f"no {type}")

    async def step_at_work(self, row: RunRow) -> RunRow:
        """Return the run of a workflow's step once a tool has answered it."""
        called = await self.heard(row, "agent.called")
        below = await self.service.run(called.data["run_id"], row.tenant)
        await self.heard(below, "tool.answered")
        return below

    async def types(self, row: RunRow) -> list[str]:
        return [one.type for one in await self.runs.events(row.id)]


def files_in(directory: Path, more: Mapping[str, str] | None = None) -> None:
    agents, flows = directory / "agents", directory / "workflows"
    for one in (agents, flows):
        one.mkdir(parents=True, exist_ok=True)
    known = {
        "agents/writer.prompt": WRITER,
        "agents/reader.prompt": READER,
        "agents/caller.prompt": CALLER,
        "agents/plain.prompt": PLAIN,
        "workflows/flow.yaml": FLOW,
        **(more or {}),
    }
    for name, text in known.items():
        (directory / name).write_text(text)


def environ_for(directory: Path, model: ScriptedModel, **more: str) -> dict[str, str]:
    return {
        "HOME": str(directory),
        "SANDKASTEN_AGENTS_DIRS": str(directory / "agents"),
        "SANDKASTEN_WORKFLOWS_DIRS": str(directory / "workflows"),
        "SANDKASTEN_MODELS_BASE_URL": model.base_url,
        "SANDKASTEN_MODELS_API_KEY": "sk-test-key",
        **more,
    }


@asynccontextmanager
async def house(
    directory: Path,
    *,
    recovers: bool = False,
    script: Any = played,
    files: Mapping[str, str] | None = None,
    backend: str = "local",
    **environ: str,
) -> AsyncIterator[House]:
    """Open a service; everything that is still there is destroyed at the end."""
    files_in(directory, files)
    async with ScriptedModel(script) as model:
        settings = load(
            {"data_dir": str(directory / "data"), "backend": backend},
            environ_for(directory, model, **environ),
            directory,
        )
        prepare_data_dir(settings.data_dir)
        engine = await open_engine(settings)
        try:
            async with (
                open_books(settings, SystemClock()) as books,
                agent_service(settings, engine, books.files, recovers=recovers) as service,
            ):
                runs = RunDirectory(settings.data_dir / "runs")
                yield House(service, engine, model, runs, settings, books.files)
        finally:
            for info in await engine.list(all=True):
                await engine.destroy(info.id)
            await engine.aclose()


async def until(what: Any, said: str, seconds: float = 60.0) -> None:
    """Poll until the condition is true; the failure shows the last value."""
    deadline = time.monotonic() + seconds
    while True:
        found = await what()
        if found is True:
            return
        assert time.monotonic() < deadline, f"{said}: {found!r}"
        await asyncio.sleep(0.05)


__all__ = ["DEFAULT_TENANT", "House", "house", "until"]
