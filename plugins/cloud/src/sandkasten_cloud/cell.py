"""One machine of a provider: connecting to its runner, and its removal. Implements `ports.Cell` and
`Candid`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sandkasten.errors import Busy, SandboxLost
from sandkasten.model.sandbox.usage import Usage
from sandkasten.model.spelling import one_line
from sandkasten_cloud import provider_errors
from sandkasten_runtime.backends.gate import tls_stream
from sandkasten_runtime.wire.byte_streams import PrefixedStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sandkasten.errors import SandkastenError
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.limits import Unenforced
    from sandkasten.ports import ByteStream
    from sandkasten_cloud.machine_list import MachineList
    from sandkasten_cloud.provider import Provider
    from sandkasten_runtime.backends.gate.entry_keys import EntryKeys

_GATE_S: Final = 10.0
_HELLO_S: Final = 20.0
_FIRST_BYTES: Final = 64 * 1024
# A provider notices a moment later that a machine has ended.
_NOTICE_S: Final = (0.0, 0.2, 0.5, 1.5)
# The gate listens a moment after its start; a provider takes longer to notice that.
_RETRY_S: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class CloudCell:
    """A machine that is a sandbox. `end` removes everything of it."""

    def __init__(
        self,
        sandbox_id: SandboxId,
        machine_id: str,
        provider: Provider,
        machines: MachineList,
        keys: EntryKeys,
        end: Callable[[SandboxId, str], Awaitable[None]],
    ) -> None:
        self.id = sandbox_id
        self.machine_id = machine_id
        self._provider = provider
        self._machines = machines
        self._keys = keys
        self._end = end
        self._first: ByteStream | None = None
        self._gone = False

    @property
    def unenforced(self) -> Sequence[Unenforced]:
        return self._provider.traits.unenforced

    async def greet(self, timeout_s: float) -> None:
        """Wait until the runner has answered; that connection serves the next `dial`."""
        until = asyncio.get_running_loop().time() + timeout_s
        pauses = iter(_RETRY_S)
        while True:
            try:
                self._first = await self._spoken()
                return
            except OSError as exc:
                if asyncio.get_running_loop().time() > until:
                    raise await self._no_way_in(str(exc)) from exc
            await asyncio.sleep(next(pauses, _RETRY_S[-1]))

    async def dial(self) -> ByteStream:
        first, self._first = self._first, None
        if first is not None:
            return first
        if self._gone:
            raise provider_errors.lost(self.id, "it was removed")
        try:
            return await self._spoken()
        except SandboxLost:
            self._machines.drop(self.id)
            raise
        except OSError as exc:
            raise await self._no_way_in(str(exc) or type(exc).__name__) from exc

    async def _spoken(self) -> ByteStream:
        """Return a stream when the runner's first bytes are there. Raise OSError."""
        below = await self._provider.connect(self.machine_id)
        stream = await tls_stream.enter(below, self._keys, _GATE_S)
        try:
            async with asyncio.timeout(_HELLO_S):
                first = await stream.receive(_FIRST_BYTES)
            if not first:
                raise ConnectionResetError("the runner says nothing")
        except BaseException:
            await asyncio.shield(stream.aclose())
            raise
        return PrefixedStream(first, stream)

    async def _no_way_in(self, why: str) -> SandkastenError:
        """Return the error for a machine that cannot be reached: lost, or alive and silent."""
        for pause_s in _NOTICE_S:
            await asyncio.sleep(pause_s)
            if await self._machines.look(self.id) != self.machine_id:
                return provider_errors.lost(
                    self.id, f"{self._provider.traits.title} has no such machine"
                )
        return Busy(
            f"sandbox {self.id} does not answer: {one_line(why)}",
            hint="try again, or destroy it",
        )

    async def usage(self) -> Usage:
        """Return nothing known: what a machine uses is counted by its provider."""
        if self._gone:
            raise provider_errors.lost(self.id, "it was removed")
        return Usage()

    def forget(self) -> None:
        """Note that the sandbox was removed."""
        self._gone = True

    async def let_go(self) -> None:
        """Close the connection kept for the next `dial`."""
        first, self._first = self._first, None
        if first is not None:
            await first.aclose()

    async def destroy(self) -> None:
        await self.let_go()
        await self._end(self.id, self.machine_id)
