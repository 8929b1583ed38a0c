"""Pause, resume and memory reclaim, for cells that support them; the ledger is the truth.

The row says PAUSED before anything stops, and RUNNING after everything runs again. A process that
dies in between leaves a sandbox whose row says PAUSED; the reaper's `keep` then stops what still
runs, and a resume works as usual. Before the stop, the runner is notified and closes every
connection, so no client waits for a sandbox that cannot answer. A cell that lacks the port raises
UnsupportedByBackend.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.disk.cleanup import finish
from sandkasten.errors import Busy, SandboxLost, SandkastenError, UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.ids import SandboxId, sandbox_id
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.ports import Cell, Pausable, Reclaims
from sandkasten_runtime.wire.channel import Channel

if TYPE_CHECKING:
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.policy import Policy
    from sandkasten.ports import Clock, EventSink, Store
    from sandkasten_runtime.engine.handles import Handle, Handles
    from sandkasten_runtime.engine.network_control import NetworkControl

# The runner answers these at once; a sandbox that starves it for longer is not paused.
TELL_TIMEOUT_S = 5.0
# Another holder of the lock is creating, destroying, pausing or resuming: seconds at most.
LOCK_WAIT_S = 30.0
# A sandbox that uses less CPU than this is idle: its runner wakes up now and then.
REST_SHARE = 0.01


class PauseControl:
    def __init__(
        self,
        handles: Handles,
        store: Store,
        policy: Policy,
        clock: Clock,
        events: EventSink | None,
        network: NetworkControl,
    ) -> None:
        self._network = network
        self._handles = handles
        self._store = store
        self._clock = clock
        self._events = events
        self._rest = _IdleTracker(policy.reclaim_after_s)

    async def pause(self, text: str) -> Record:
        """Stop everything inside. Twice is fine; a failure leaves the sandbox running."""
        the_id = sandbox_id(text)
        async with self._store.lock(the_id, wait_s=LOCK_WAIT_S):
            handle = await self._fresh(the_id)
            cell = _pausable(handle.cell, handle.record)
            if handle.record.state is State.PAUSED:
                await cell.pause()
            else:
                await finish(self._pause(handle, cell))
                self._emit("sandbox.paused", handle.record)
            return handle.record

    async def resume(self, text: str) -> Record:
        """Continue where it stopped. Twice is fine; a failure leaves the sandbox paused."""
        the_id = sandbox_id(text)
        async with self._store.lock(the_id, wait_s=LOCK_WAIT_S):
            handle = await self._fresh(the_id)
            cell = _pausable(handle.cell, handle.record)
            if handle.record.state is State.PAUSED:
                await finish(self._resume(handle, cell))
                self._emit("sandbox.resumed", handle.record)
            else:
                await cell.resume()
            return handle.record

    async def reclaim(self, text: str) -> int:
        """Return how many bytes the host got back. Works on a paused sandbox too and does not count
        as activity.
        """
        cell = (await self._handles.look(text)).cell
        if not isinstance(cell, Reclaims):
            raise UnsupportedByBackend(
                f"the backend of sandbox {text} does not support memory reclaim",
                hint="destroy the sandbox, or use a backend that counts memory",
            )
        freed = await cell.reclaim()
        if self._events is not None:
            self._events.emit("sandbox.reclaimed", {"sandbox": text, "bytes": freed})
        return freed

    async def keep(self, record: Record) -> None:
        """Check one living sandbox for the reaper: enforce a pause, and reclaim memory after a long
        idle time.
        """
        if record.state is State.PAUSED:
            with suppress(Busy):
                async with self._store.lock(record.id, wait_s=0):
                    await self._keep_paused(record.id)
        if self._rest.wanted:
            cell = (await self._handles.look(record.id)).cell
            cpu_usec = (await cell.usage()).cpu_usec
            if isinstance(cell, Reclaims) and self._rest.due(
                record.id, cpu_usec, self._clock.boottime()
            ):
                await self.reclaim(record.id)

    @property
    def tracks_idle(self) -> bool:
        """Whether `keep` measures each living sandbox, to reclaim memory of idle ones."""
        return self._rest.wanted

    def forget(self, existing: set[SandboxId]) -> None:
        """Drop what is remembered of sandboxes that no longer exist."""
        self._rest.forget(existing)

    async def _keep_paused(self, the_id: SandboxId) -> None:
        row = await self._store.get(the_id)
        cell = (await self._handles.look(the_id)).cell
        if row is not None and row.state is State.PAUSED and isinstance(cell, Pausable):
            await cell.pause()

    async def _fresh(self, the_id: SandboxId) -> Handle:
        handle = await self._handles.get(the_id)
        await self._handles.refresh(handle)
        return handle

    async def _pause(self, handle: Handle, cell: Pausable) -> None:
        running = handle.record
        # Thawing a running sandbox does nothing, and fails at once where pausing is not supported.
        await cell.resume()
        channel = await self._handles.channel(handle)
        # The egress process is frozen with its sandbox and cannot be read until it is resumed.
        await self._handles.network_totals.read_one(handle)
        paused = replace(running, state=State.PAUSED)
        await self._store.put(paused)
        handle.record = paused
        try:
            await channel.call("freeze", {"frozen": True}, timeout_s=TELL_TIMEOUT_S)
            await channel.call("quiesce", {"ms": 0}, timeout_s=TELL_TIMEOUT_S)
            # It is ending. Do not close the channel here: a client that follows a command would be
            # cancelled.
            if not await channel.wait_closed(TELL_TIMEOUT_S):
                raise _silent(running)
            await cell.pause()
        except BaseException:
            await self._run_on(handle, cell, running)
            raise

    async def _run_on(self, handle: Handle, cell: Pausable, running: Record) -> None:
        """Undo a failed pause; the caller gets the error that caused it."""
        with suppress(SandkastenError):
            await cell.resume()
            await self._tell_running(handle)
        with suppress(SandkastenError):
            handle.record = running
            await self._store.put(running)

    async def _resume(self, handle: Handle, cell: Pausable) -> None:
        paused = handle.record
        running = replace(paused, state=State.RUNNING)
        try:
            await cell.resume()
            await self._tell_running(handle)
            await self._store.put(running)
        except SandboxLost as exc:
            raise await self._handles.over(handle, exc) from exc
        except BaseException:
            with suppress(SandkastenError):
                await cell.pause()
            raise
        handle.record = running
        try:
            # Recovery could not send a frozen process what the operator opens now.
            await self._network.adopt(running)
        except SandkastenError as exc:
            if self._events is not None:
                fields = {"sandbox": running.id, "error": exc.code}
                self._events.emit("recovery.network_unchanged", fields)

    async def _tell_running(self, handle: Handle) -> None:
        """Notify the runner that its clocks continue. This dial bypasses the check for paused
        sandboxes.
        """
        async with handle.dialing:
            if handle.channel is not None:
                await handle.channel.aclose()
            try:
                async with asyncio.timeout(TELL_TIMEOUT_S):
                    handle.channel = channel = await Channel.open(await handle.cell.dial())
            except TimeoutError as exc:
                raise _silent(handle.record) from exc
            self._handles.attend(handle)
        await channel.call("freeze", {"frozen": False}, timeout_s=TELL_TIMEOUT_S)

    def _emit(self, event: str, record: Record) -> None:
        if self._events is not None:
            self._events.emit(event, {"sandbox": record.id, "backend": record.backend})


@dataclass(slots=True)
class _IdleCheck:
    cpu_usec: int
    at: float
    since: float
    """Time at which it was last seen active."""
    relieved: bool = False


class _IdleTracker:
    """Tracks which sandboxes have been idle long enough to reclaim their memory, once per idle
    period.
    """

    def __init__(self, after_s: float | None) -> None:
        self._after_s = after_s
        self._looks: dict[str, _IdleCheck] = {}

    @property
    def wanted(self) -> bool:
        return self._after_s is not None

    def due(self, the_id: str, cpu_usec: int | None, now: float) -> bool:
        """Return True once per idle period, when it has lasted long enough."""
        if cpu_usec is None or self._after_s is None:
            return False
        look = self._looks.get(the_id)
        if look is None:
            self._looks[the_id] = _IdleCheck(cpu_usec, now, now)
            return False
        if cpu_usec - look.cpu_usec > (now - look.at) * 1e6 * REST_SHARE:
            look.since, look.relieved = now, False
        look.cpu_usec, look.at = cpu_usec, now
        if look.relieved or now - look.since < self._after_s:
            return False
        look.relieved = True
        return True

    def forget(self, existing: set[SandboxId]) -> None:
        for the_id in [the_id for the_id in self._looks if the_id not in existing]:
            del self._looks[the_id]


def _silent(record: Record) -> Busy:
    return Busy(
        f"sandbox {record.id} did not answer within {TELL_TIMEOUT_S:g} s",
        hint="it may be starved of CPU; retry",
    )


def _pausable(cell: Cell, record: Record) -> Pausable:
    if not isinstance(cell, Pausable):
        raise UnsupportedByBackend(
            f"backend {record.backend} cannot pause a sandbox",
            hint="destroy it, or use a backend that can; doctor lists them",
            sandbox_id=record.id,
        )
    return cell
