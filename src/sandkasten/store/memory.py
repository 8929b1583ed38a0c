"""The ledger of one process, for sandboxes that end with it anyway."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from sandkasten.errors import Busy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.record import Record


class MemoryStore:
    """Implements `ports.Store`; nobody else sees it."""

    def __init__(self) -> None:
        self._rows: dict[SandboxId, Record] = {}
        self._held: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def put(self, record: Record) -> None:
        self._rows[record.id] = record

    async def get(self, sandbox_id: SandboxId) -> Record | None:
        return self._rows.get(sandbox_id)

    async def find_key(self, session_key: str) -> Record | None:
        return next((r for r in self._rows.values() if r.session_key == session_key), None)

    async def list(self) -> Sequence[Record]:
        return sorted(self._rows.values(), key=lambda r: (r.created_at, r.id))

    async def drop(self, sandbox_id: SandboxId, record: Record | None = None) -> None:
        self._rows.pop(sandbox_id, None)

    async def corrupt(self) -> Sequence[SandboxId]:
        return []

    def lock(self, name: str, *, wait_s: float = 30.0) -> AbstractAsyncContextManager[None]:
        lock = self._held.get(name)
        if lock is None:
            lock = self._held[name] = asyncio.Lock()
        return _Hold(lock, wait_s)


class _Hold(AbstractAsyncContextManager[None]):
    """Not a generator: those cannot begin any more while a loop ends, and an engine closes then."""

    def __init__(self, lock: asyncio.Lock, wait_s: float) -> None:
        self._lock = lock
        self._wait_s = wait_s

    async def __aenter__(self) -> None:
        if self._wait_s <= 0 and self._lock.locked():
            raise Busy("somebody else is working on this sandbox", hint="try again in a moment")
        try:
            async with asyncio.timeout(max(self._wait_s, 1.0)):
                await self._lock.acquire()
        except TimeoutError as exc:
            raise Busy(
                f"somebody else is working on this sandbox (waited {self._wait_s:g} s)",
                hint="try again in a moment",
            ) from exc

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
