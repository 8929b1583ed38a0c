"""The tools of a daemon, opened on first use because importing them is slow.

A missing library is UnsupportedByBackend.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sandkasten.errors import UnsupportedByBackend
from sandkasten.model.optional_extras import install_command

if TYPE_CHECKING:
    from sandkasten.ports import FileStore
    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_tools.tool_service import ToolService


class LazyTools:
    def __init__(self, engine: Engine, files: FileStore, max_sandboxes: int) -> None:
        """`max_sandboxes`: of one client."""
        self._engine = engine
        self._files = files
        self._max_sandboxes = max_sandboxes
        self._opening = asyncio.Lock()
        self._service: ToolService | None = None

    async def open(self) -> ToolService:
        async with self._opening:
            if self._service is None:
                # In a thread: importing the libraries takes as long as a hundred requests.
                await asyncio.to_thread(_load)
                from sandkasten_runtime.engine.storage.stage_publish import StagePublish
                from sandkasten_tools.calls.toolbox import Toolbox
                from sandkasten_tools.tool_service import ToolService

                filing = StagePublish(self._engine.files, self._files)
                self._service = ToolService(Toolbox(self._engine, filing, self._max_sandboxes))
            return self._service


def _load() -> None:
    try:
        import sandkasten_tools.calls.toolbox  # noqa: F401  (imported to have it loaded)
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("sandkasten"):
            raise
        raise UnsupportedByBackend(
            f"the tools of agents require the library {exc.name}, which is not installed",
            hint=install_command("tools"),
        ) from exc
