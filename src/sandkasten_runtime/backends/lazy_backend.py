"""A backend that is imported and opened when it is first used.

Most processes need one backend, and the library of another may take half a second to import. What a
backend can do is known before it is opened. One whose directory does not exist owns nothing, so a
sweep need not open it either. One that cannot be opened reports the reason in `probe`; other calls
raise BackendUnavailable.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable
from sandkasten.model.backends.capabilities import check_open
from sandkasten.model.optional_extras import install_command
from sandkasten.model.sandbox.readiness import Readiness
from sandkasten.plugins.plugin_failure import REMEDY, described, is_its_own, text_of
from sandkasten.ports.backend_plugins import BACKENDS_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sandkasten.model.backends.capabilities import Capabilities
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.ports import Backend, Cell


class LazyBackend:
    """Implements `ports.Backend` and `ports.Opens`.

    `directory` holds everything that the backend may own. `holds` looks closer where that exists,
    if the settings close the backend: its credentials may be gone, and without a record it has
    nothing.
    """

    def __init__(
        self,
        name: str,
        capabilities: Capabilities,
        directory: Path,
        opener: Callable[[], Backend],
        holds: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = name
        self.capabilities = capabilities
        self._directory = directory
        self._opener = opener
        self._holds = holds
        self._opening = threading.Lock()
        self._backend: Backend | None = None

    def open(self) -> Backend:
        """Return the backend itself. Blocks while it is imported."""
        with self._opening:
            if self._backend is None:
                self._backend = self._opened()
        return self._backend

    def _opened(self) -> Backend:
        try:
            return self._opener()
        except BaseException as exc:
            if not is_its_own(exc):
                raise
            plugin = described(BACKENDS_GROUP, self.name.partition("/")[0])
            error = BackendUnavailable(
                f"{plugin} cannot be opened: {type(exc).__name__}", hint=REMEDY, backend=self.name
            )
            # For the operator: it may have values of the settings.
            error.add_note(text_of(exc))
            raise error from exc

    async def opened(self) -> Backend:
        # In a thread: other requests must not wait for the import.
        if self._backend is None:
            return await asyncio.to_thread(self.open)
        return self._backend

    def may_hold(self) -> bool:
        return self._directory.exists()

    async def probe(self) -> Readiness:
        closed = self.capabilities.closed
        if closed is not None:
            return Readiness(ready=False, reason=closed.reason, remedy=closed.remedy)
        try:
            backend = await self.opened()
        except BackendUnavailable as exc:
            return Readiness(ready=False, reason=exc.operator_message, remedy=exc.hint)
        return await backend.probe()

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> Cell:
        check_open(self.name, self.capabilities)
        return await (await self.opened()).create(sandbox_id, spec)

    async def attach(self, sandbox_id: SandboxId) -> Cell:
        return await (await self.opened()).attach(sandbox_id)

    async def owned(self) -> Sequence[SandboxId]:
        if not self.may_hold():
            return ()
        if self.capabilities.closed is not None and not await asyncio.to_thread(self._holds):
            return ()
        return await (await self.opened()).owned()

    async def discard(self, sandbox_id: SandboxId) -> None:
        if self.may_hold():
            await (await self.opened()).discard(sandbox_id)

    async def ping(self) -> None:
        await (await self.opened()).ping()

    async def aclose(self) -> None:
        """Close the backend if it was opened."""
        if self._backend is not None:
            await self._backend.aclose()


def with_library(backend: str, extra: str, opener: Callable[[], Backend]) -> Callable[[], Backend]:
    """Return an opener that raises BackendUnavailable if the library of an extra is missing."""
    return partial(_with_library, backend, extra, opener)


def _with_library(backend: str, extra: str, opener: Callable[[], Backend]) -> Backend:
    try:
        return opener()
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("sandkasten"):
            raise
        raise BackendUnavailable(
            f"backend {extra} requires the library {exc.name}, which is not installed",
            hint=install_command(extra),
            backend=backend,
        ) from exc
