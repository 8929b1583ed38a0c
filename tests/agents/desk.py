"""A toolbox on a real engine with real local sandboxes and a file store."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sandkasten.errors import SandkastenError
from sandkasten_runtime.assembly.backend_registry import prepare_data_dir
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.storage.stage_publish import StagePublish
from sandkasten_server.daemon.persistent_stores import open_books
from sandkasten_tools.calls.agent_sandbox import AgentSandbox
from sandkasten_tools.calls.run_context import RunContext
from sandkasten_tools.calls.toolbox import Toolbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sandkasten.ports import FileStore
    from sandkasten_runtime.assembly.settings.resolver import Settings
    from sandkasten_runtime.engine.engine import Engine

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
