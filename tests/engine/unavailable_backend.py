"""A backend that depends on an engine, around the unisolated one.

The engine can be present, unavailable (every method raises), hanging (no method returns) or have
lost its state. Connections go through it: they are cut when it leaves, and the sandboxes live on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from sandkasten.errors import BackendUnavailable, SandboxLost
from sandkasten.model.sandbox.network_policy import NetworkCounts
from sandkasten.model.sandbox.policy import Policy
from sandkasten_runtime.engine.engine import Engine
from sandkasten_runtime.images.host_image import HostImages
from tests.engine.injections import Events, TestClock
from tests.store.memory_store import MemoryJournal, MemoryStore
from tests.unisolated.backend import UnisolatedBackend, standing_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.model.sandbox.readiness import Readiness
    from sandkasten.model.sandbox.usage import Usage
    from sandkasten.ports import ByteStream, Cell

Mode = Literal["there", "away", "hanging", "forgetful"]
HINT = "start it"


class FarBackend:
    name = "docker"
    capabilities = standing_for("docker")

    def __init__(self) -> None:
        self.real = UnisolatedBackend()
        self.mode: Mode = "there"
        self.asked: Counter[str] = Counter()
        self.asking = 0
        self.most = 0
        """At once, ever."""
        self.streams: list[ByteStream] = []
        self.closed = 0

    async def turn(self, mode: Mode) -> None:
        self.mode = mode
        if mode != "there":
            cut, self.streams = self.streams, []
            for stream in cut:
                await stream.aclose()
            # Whoever read from them notices.
            await asyncio.sleep(0.01)

    async def ask(self, verb: str) -> None:
        self.asked[verb] += 1
        self.asking += 1
        self.most = max(self.most, self.asking)
        try:
            if self.mode == "hanging":
                await asyncio.Event().wait()
            if self.mode == "away":
                raise BackendUnavailable("no engine answers at unix:///far.sock", hint=HINT)
        finally:
            self.asking -= 1

    async def probe(self) -> Readiness:
        await self.ask("probe")
        return await self.real.probe()

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> FarCell:
        await self.ask("create")
        return FarCell(self, await self.real.create(sandbox_id, spec))

    async def attach(self, sandbox_id: SandboxId) -> FarCell:
        await self.ask("attach")
        if self.mode == "forgetful":
            raise SandboxLost("the engine knows no such container", hint="create a new one")
        return FarCell(self, await self.real.attach(sandbox_id))

    async def owned(self) -> Sequence[SandboxId]:
        await self.ask("owned")
        return await self.real.owned()

    async def discard(self, sandbox_id: SandboxId) -> None:
        await self.ask("discard")
        await self.real.discard(sandbox_id)

    async def ping(self) -> None:
        await self.ask("ping")

    async def aclose(self) -> None:
        self.closed += 1


class FarCell:
    def __init__(self, backend: FarBackend, real: Any) -> None:
        self._backend = backend
        self.real: Cell = real

    async def dial(self) -> ByteStream:
        await self._backend.ask("dial")
        stream = await self.real.dial()
        self._backend.streams.append(stream)
        return stream

    async def usage(self) -> Usage:
        await self._backend.ask("usage")
        return await self.real.usage()

    async def network_counts(self) -> NetworkCounts:
        await self._backend.ask("network_counts")
        return NetworkCounts()

    async def network_records(self, after: int, since: float = 0.0) -> Sequence[Mapping[str, Any]]:
        return []

    async def change_network(self, *_: object) -> None:
        await self._backend.ask("change_network")

    async def cut_network(self) -> bool:
        return False

    async def destroy(self) -> None:
        await self._backend.ask("destroy")
        await self.real.destroy()


class Nearby(UnisolatedBackend):
    """The machine's own."""

    name = "local"
    capabilities = standing_for("local")


class FarWorld:
    def __init__(self) -> None:
        self.far, self.near = FarBackend(), Nearby()
        self.store, self.journal = MemoryStore(), MemoryJournal()
        self.events, self.clock = Events(), TestClock()
        self.policy = Policy()
        self.engine = self.another()

    def another(self, **more: Any) -> Engine:
        return Engine(
            backends={"docker": self.far, "local": self.near},
            default_backend="local",
            store=self.store,
            images=HostImages(),
            policy=self.policy,
            clock=self.clock,
            events=self.events,
            journal=self.journal,
            **more,
        )

    async def state(self, the_id: str) -> str:
        """Return the state in the ledger and in the journal."""
        record = await self.store.get(the_id)  # type: ignore[arg-type]
        row = await self.journal.session(the_id)
        return f"{None if record is None else record.state.value}/{row and row.status}"
