"""A toolbox on a real engine with real local sandboxes and a file store."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sandkasten.agents.definitions.agent_sandbox import AgentSandbox
from sandkasten.agents.run_context import RunContext
from sandkasten.agents.tools.toolbox import Toolbox
from sandkasten.daemon.backend_registry import prepare_data_dir
from sandkasten.daemon.engine_assembly import open_engine
from sandkasten.daemon.persistent_stores import open_books
from sandkasten.daemon.settings.resolver import load
from sandkasten.engine.clock import SystemClock
from sandkasten.engine.storage.stage_publish import StagePublish
from sandkasten.errors import SandkastenError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sandkasten.daemon.settings.resolver import Settings
    from sandkasten.engine.engine import Engine
    from sandkasten.ports import FileStore

CODE = AgentSandbox(mode="code")


@dataclass(frozen=True, slots=True)
class Desk:
    engine: Engine
    store: FileStore
    toolbox: Toolbox
    context: RunContext

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        return await self.toolbox.call(f"sandbox_{tool}", arguments, self.context)

    def asking(self, sandbox: AgentSandbox, **changes: Any) -> Desk:
        """The same toolbox for an agent that asks for this."""
        return replace(self, context=replace(self.context, sandbox=sandbox, **changes))

    def within(self, **changes: Any) -> Desk:
        """Return the same toolbox in another run."""
        return replace(self, context=replace(self.context, **changes))


@asynccontextmanager
async def opened(data_dir: Path, backend: str = "local", **settings: str) -> AsyncIterator[Desk]:
    """Open a toolbox; everything that is still there is destroyed at the end."""
    environ = {"HOME": str(data_dir), "SANDKASTEN_BACKEND": backend}
    environ["SANDKASTEN_FILES_MAX_BYTES"] = str(300 << 20)
    environ |= {f"SANDKASTEN_{name.upper()}": value for name, value in settings.items()}
    async with opened_with(load({"data_dir": str(data_dir)}, environ, data_dir.parent)) as one:
        yield one


@asynccontextmanager
async def opened_with(given: Settings) -> AsyncIterator[Desk]:
    prepare_data_dir(given.data_dir)
    async with open_books(given, SystemClock()) as books:
        engine = await open_engine(given, journal=books.journal, stored_files=books.files)
        try:
            yield fresh(engine, books.files)
        finally:
            try:
                await cleared(engine)
            finally:
                await engine.aclose()


def fresh(engine: Engine, store: FileStore) -> Desk:
    """Return a toolbox without state, and a run for it."""
    toolbox = Toolbox(engine, StagePublish(engine.files, store))
    return Desk(engine, store, toolbox, RunContext("run_a", "tester", sandbox=CODE))


async def cleared(engine: Engine) -> None:
    for one in await engine.list():
        try:
            await engine.destroy(one.id)
        except SandkastenError:
            continue
