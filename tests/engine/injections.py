"""A backend that fails on purpose, behind the port, around the unisolated one.

Each hook is awaited before the real call; it may raise, hang or wait. What reaches the
unisolated backend is real, so what is left behind afterwards can be counted there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from sandkasten.model.backends.capabilities import UNKNOWN
from sandkasten.model.sandbox.policy import Policy
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.engine import NO_POOL, Engine
from sandkasten_runtime.images.host_image import HostImages
from tests.store.memory_store import MemoryStore
from tests.unisolated.backend import UnisolatedBackend

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.model.sandbox.readiness import Readiness
    from sandkasten.model.sandbox.usage import Usage
    from sandkasten.ports import ByteStream, Cell, FileStore, HostMounts, Journal, Store
    from sandkasten_runtime.engine.pool.pool_rules import PoolRules


# A command that goes on until somebody writes this file, and not until a clock says so.
GO = "/workspace/go"
UNTIL_GO = f"while ! test -e {GO}; do sleep 0.01; done"


class Gate:
    """One hook for each method; None lets the call pass."""

    def __init__(self) -> None:
        self.before_create: Callable[[], Awaitable[None]] | None = None
        self.after_create: Callable[[], Awaitable[None]] | None = None
        self.before_attach: Callable[[], Awaitable[None]] | None = None
        self.before_dial: Callable[[], Awaitable[None]] | None = None
        self.before_destroy: Callable[[], Awaitable[None]] | None = None
        self.before_owned: Callable[[], Awaitable[None]] | None = None
        self.usage: Usage | None = None
        self.usage_reads = 0


async def _pass(hook: Callable[[], Awaitable[None]] | None) -> None:
    if hook is not None:
        await hook()


class InjectedCell:
    def __init__(self, cell: Cell, gate: Gate) -> None:
        self.real = cell
        self._gate = gate
        self.streams: list[ByteStream] = []

    async def dial(self) -> ByteStream:
        await _pass(self._gate.before_dial)
        stream = await self.real.dial()
        self.streams.append(stream)
        return stream

    async def usage(self) -> Usage:
        self._gate.usage_reads += 1
        return self._gate.usage if self._gate.usage is not None else await self.real.usage()

    async def destroy(self) -> None:
        await _pass(self._gate.before_destroy)
        await self.real.destroy()


class InjectedBackend:
    name = "unisolated"
    capabilities = UNKNOWN

    def __init__(self) -> None:
        self.real = UnisolatedBackend()
        self.gate = Gate()
        self.cells: dict[str, InjectedCell] = {}
        self.created = 0

    async def probe(self) -> Readiness:
        return await self.real.probe()

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> InjectedCell:
        self.created += 1
        await _pass(self.gate.before_create)
        cell = InjectedCell(await self.real.create(sandbox_id, spec), self.gate)
        self.cells[sandbox_id] = cell
        await _pass(self.gate.after_create)
        return cell

    async def attach(self, sandbox_id: SandboxId) -> InjectedCell:
        await _pass(self.gate.before_attach)
        return InjectedCell(await self.real.attach(sandbox_id), self.gate)

    async def owned(self) -> Sequence[SandboxId]:
        await _pass(self.gate.before_owned)
        return await self.real.owned()

    async def discard(self, sandbox_id: SandboxId) -> None:
        await _pass(self.gate.before_destroy)
        await self.real.discard(sandbox_id)

    async def ping(self) -> None:
        """It needs nothing else."""

    async def aclose(self) -> None:
        """It keeps nothing open."""


class Events:
    """Records emitted events."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str | int | float | bool | None]]] = []

    def emit(self, event: str, fields: Mapping[str, str | int | float | bool | None]) -> None:
        self.seen.append((event, dict(fields)))

    def names(self) -> list[str]:
        return [event for event, _ in self.seen]


class TestClock:
    """The system's clocks, advanced by the test."""

    __test__ = False

    def __init__(self) -> None:
        self._real = SystemClock()
        self.ahead_s = 0.0

    def now(self) -> float:
        return self._real.now() + self.ahead_s

    def boottime(self) -> float:
        return self._real.boottime() + self.ahead_s


class StoredFiles:
    """Stored files of that many bytes, for every tenant."""

    def __init__(self) -> None:
        self.bytes = 0

    async def usage(self, tenant: str) -> int:
        return self.bytes


class World:
    """An engine with access to everything behind it."""

    def __init__(
        self,
        store: Store | None = None,
        policy: Policy | None = None,
        allowed: Sequence[str] | None = None,
        *,
        interpreters: tuple[str, ...] | None = None,
        pool: PoolRules = NO_POOL,
        host_mounts: HostMounts | None = None,
        journal: Journal | None = None,
        host_disk: Path | None = None,
    ) -> None:
        self.journal: Any = journal
        self._host_disk = host_disk
        self._interpreters = interpreters
        self._pool = pool
        self._host_mounts = host_mounts
        self._images = HostImages(allowed=allowed)
        self.backend = InjectedBackend()
        self.store: Store = store if store is not None else MemoryStore()
        self.events = Events()
        self.clock = TestClock()
        self.policy = policy or Policy()
        self.stored_files = StoredFiles()
        self.engine = self.another()

    def another(self) -> Engine:
        """Return a second engine on the same ledger and backend, as in another process."""
        return Engine(
            backends={"unisolated": self.backend},
            default_backend="unisolated",
            store=self.store,
            images=self._images,
            policy=self.policy,
            clock=self.clock,
            events=self.events,
            interpreters=self._interpreters,
            pool=self._pool,
            workspaces=self.backend.real.workspaces,
            host_mounts=self._host_mounts,
            journal=self.journal,
            stored_files=cast("FileStore", self.stored_files),
            host_disk=self._host_disk,
        )

    async def left(self) -> tuple[list[str], list[str]]:
        """Return ids with a row, and ids of cells."""
        rows: list[str] = [record.id for record in await self.store.list()]
        return rows, list(await self.backend.real.owned())
