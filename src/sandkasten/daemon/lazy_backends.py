"""Backends that are imported on first use: most processes need only one of them.

A backend whose directory does not exist owns nothing, so a sweep need not import it either. One
that cannot be opened reports the reason in `probe`; other calls raise BackendUnavailable.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable, InternalError
from sandkasten.model.sandbox.readiness import Readiness
from sandkasten.ports import Closes, Discards, KeepsImages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.ports import Backend, Cell


class LazyBackend:
    """A `ports.Backend`; `directory` holds everything that the backend may own."""

    def __init__(self, name: str, directory: Path, opener: Callable[[], Backend]) -> None:
        self._name = name
        self._directory = directory
        self._opener = opener

    @property
    def name(self) -> str:
        return self._name

    @cached_property
    def _backend(self) -> Backend:
        return self._opener()

    async def probe(self) -> Readiness:
        try:
            backend = self._backend
        except BackendUnavailable as exc:
            return Readiness(ready=False, reason=exc.message, remedy=exc.hint)
        return await backend.probe()

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> Cell:
        return await self._backend.create(sandbox_id, spec)

    async def attach(self, sandbox_id: SandboxId) -> Cell:
        return await self._backend.attach(sandbox_id)

    async def owned(self) -> Sequence[SandboxId]:
        if not self._directory.exists():
            return ()
        return await self._backend.owned()

    async def discard(self, sandbox_id: SandboxId) -> None:
        if self._directory.exists() and isinstance(self._backend, Discards):
            await self._backend.discard(sandbox_id)

    async def aclose(self) -> None:
        """Close the backend if it was opened."""
        backend = self.__dict__.get("_backend")
        if isinstance(backend, Closes):
            await backend.aclose()


class LazyImageBackend(LazyBackend):
    """A lazy backend that is a `ports.KeepsImages`; the engine tests for this class."""

    @property
    def _keeper(self) -> KeepsImages:
        backend = self._backend
        if not isinstance(backend, KeepsImages):
            raise InternalError(
                f"backend {self._name} does not keep images", hint="open it as a LazyBackend"
            )
        return backend

    async def find_image(self, names: Sequence[str]) -> Image | None:
        return await self._keeper.find_image(names)

    async def bring_image(self, image: Image) -> None:
        await self._keeper.bring_image(image)
