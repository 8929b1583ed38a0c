"""Sandboxes this process is connected to: one cell and one channel each, opened when needed.

Any process with the same ledger can open any sandbox; nothing here is needed to find it again.
Unknown ids raise SessionNotFound; dead cells raise SandboxLost or SessionExpired and are recorded
as lost. A paused sandbox is never dialled and raises Conflict. A backend that does not answer
raises BackendUnavailable, and nothing is recorded: only the backend knows what is dead.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING

from sandkasten.disk.process_identity import boot_id
from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    Conflict,
    InternalError,
    NotFound,
    QuotaExceeded,
    SandboxLost,
    SandkastenError,
    SessionNotFound,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.commands.exec_values import DEFAULT_SHELL
from sandkasten.model.ids import SandboxId, sandbox_id
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten.model.sandbox.lifecycle import State, may_move
from sandkasten_runtime.engine.network_audit import NetworkAudit
from sandkasten_runtime.engine.network_totals import NetworkTotals
from sandkasten_runtime.engine.placement.backend_health import LOOK_TIMEOUT_S, BackendHealth
from sandkasten_runtime.engine.placement.places import (
    DEPARTED,
    has_departed,
    located,
    not_configured,
)
from sandkasten_runtime.engine.session_journal import EndReason, SessionJournal, expired, silent_end
from sandkasten_runtime.wire.channel import Channel, observing
from sandkasten_runtime.wire.frame_codec import SAYS_ENDING
from sandkasten_runtime.wire.messages import decode_shells

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.network_policy import NetworkCounts
    from sandkasten.model.sandbox.sandbox_values import DiskUsage
    from sandkasten.model.sandbox.usage import Usage
    from sandkasten.ports import Backend, Cell, Clock, EventSink, Store
    from sandkasten_runtime.wire.messages import ExecReply

# Attach and dial are local: if they take longer, the host is starving, not the runner.
ATTACH_TIMEOUT_S = 10.0
# If the first process of a sandbox exits, it does so within this time of its connections.
_DYING_S = 3.0
# A runner answers within a millisecond.
_DIRECTORY_S = 2.0
_REMEMBERED = 256
_REMEMBERED_ENDS = 4096


@dataclass(slots=True)
class ExecStart:
    """What was true when a command started, for the verdict when it has ended."""

    before: Usage | None
    timeout_s: float


@dataclass(slots=True)
class Handle:
    record: Record
    backend: Backend
    cell: Cell
    channel: Channel | None = None
    counters: Usage | None = None
    """The kernel's counters when they were last read."""
    last_used: float = 0.0
    """Boot time of the last request made here that was an activity."""
    cwd: str | None = None
    """Directory of the default shell; None if this process does not know it."""
    cwd_ms: int = 0
    """When the command started that left the shell there."""
    cut_at: float | None = None
    """Boot time at which the connection ended without our closing it."""
    outlived: Channel | None = None
    """A connection whose end was not, or perhaps not, the end of the sandbox."""
    networked: bool | None = None  # Whether it was created with a network; None: not asked yet.
    disk: DiskUsage | None = None  # Usage of the workspace, when it was last asked for.
    untyped: set[str] = field(default_factory=set)
    """Shells on a terminal that got no input yet, which do not count as activity."""
    dialing: asyncio.Lock = field(default_factory=asyncio.Lock)
    began: dict[str, ExecStart] = field(default_factory=dict)

    @property
    def live(self) -> Channel | None:
        """The channel, if it is usable as far as this process knows."""
        channel = self.channel
        if channel is None or channel.closed or self.record.state is State.PAUSED:
            return None
        return channel

    def note(self, reply: ExecReply) -> None:
        """Remember the directory that the newest command of the default shell ended in."""
        if reply.ended and reply.shell == DEFAULT_SHELL and reply.started_ms >= self.cwd_ms:
            self.cwd, self.cwd_ms = reply.cwd, reply.started_ms

    def remember(self, exec_id: str, began: ExecStart) -> None:
        if len(self.began) >= _REMEMBERED:
            del self.began[next(iter(self.began))]
        self.began[exec_id] = began


class Handles:
    def __init__(
        self,
        backends: Mapping[str, Backend],
        store: Store,
        clock: Clock,
        events: EventSink | None = None,
        session_journal: SessionJournal | None = None,
        disconnects: asyncio.Queue[SandboxId] | None = None,
    ) -> None:
        """`disconnects` gets the id of each sandbox whose connection was cut, while it has room."""
        self._backends = backends
        self._store = store
        self._clock = clock
        self._events = events
        self._session_journal = session_journal or SessionJournal(None, clock, events)
        self._open: dict[str, Handle] = {}
        self._judged: dict[str, EndReason] = {}
        self.health = BackendHealth(backends, clock, events)
        self.network_totals = NetworkTotals(clock.boottime())
        self.trail = self._session_journal.trail
        self.network_audit = NetworkAudit(self, self.trail)
        self._disconnects = disconnects
        # Called with a sandbox of an earlier process before it is used for the first time.
        self.settle: Callable[[Record], Awaitable[None]] | None = None

    def peek(self, the_id: str) -> Handle | None:
        return self._open.get(the_id)

    def connected(self, the_id: str) -> bool:
        """Return whether a connection to this sandbox is open, whose end would be noticed."""
        handle = self._open.get(the_id)
        return handle is not None and handle.live is not None

    async def traffic(self) -> NetworkCounts:
        """Return the network counters of all sandboxes since this engine began."""
        return await self.network_totals.read(self._open.values())

    def keep(self, handle: Handle) -> None:
        handle.last_used = handle.record.created_boottime
        self._used(handle)
        self._open[handle.record.id] = handle
        self._judged.pop(handle.record.id, None)
        self.attend(handle)

    def attend(self, handle: Handle) -> None:
        """Watch for the end of the current connection."""
        channel, the_id = handle.channel, handle.record.id
        if channel is None:
            return
        handle.cut_at = None
        if self.health.is_external(handle.record.backend):
            channel.explain = partial(self._explained, handle)

        def ended() -> None:
            if channel.cut_off:
                if handle.channel is channel:
                    handle.cut_at = self._clock.boottime()
                if self._disconnects is not None:
                    with suppress(asyncio.QueueFull):
                        self._disconnects.put_nowait(the_id)

        channel.when_closed(ended)

    async def get(self, text: str) -> Handle:
        """Return the open handle, or attach now."""
        handle = await self.look(text)
        if self.settle is not None:
            # Also if it is open: recovery opens a sandbox before it is done with it, and may find
            # that it has ended.
            await self.settle(handle.record)
            handle = await self.look(text)
        if text not in self._open:
            self.keep(handle)
        handle = self._open[text]
        if handle.record.acquired == "spare":
            # Unclaimed warm-pool sandboxes stay clean: no request may reach one.
            raise _not_found(text)
        self._used(handle)
        return handle

    def _used(self, handle: Handle) -> None:
        if not observing.get():
            handle.last_used = self._clock.boottime()

    async def look(self, text: str) -> Handle:
        """Return a handle for measuring from outside. Not an activity; opens and keeps nothing."""
        return self._open.get(text) or await self._found(sandbox_id(text))

    async def channel(self, handle: Handle) -> Channel:
        """Return the live channel of this handle; dial again if the last one ended."""
        channel = handle.live
        if channel is not None:
            return channel
        async with handle.dialing:
            channel = handle.live
            if channel is not None:
                return channel
            if handle.channel is not None or handle.record.state is State.PAUSED:
                # Pausing closes every connection, so only a new one can meet a paused sandbox.
                await self.refresh(handle)
                check_not_paused(handle.record)
            if handle.channel is not None:
                await handle.channel.aclose()
            try:
                handle.channel = channel = await self._dialled(handle)
            except SandboxLost as exc:
                raise await self.over(handle, exc) from exc
            self.attend(handle)
            return channel

    async def over(self, handle: Handle, cause: SandboxLost) -> SandkastenError:
        """Return the `lost` error, unless the backend's engine still reports the container alive:
        the runner is its first process, so then the sandbox lives even if it cannot be reached.
        """
        if self.health.is_external(handle.record.backend) and await self._there(handle):
            return _no_answer(handle)
        return await self.lost(handle.record, cause)

    async def _dialled(self, handle: Handle) -> Channel:
        """Dial; retry once if the backend reports the cell alive. Raise SandboxLost."""
        for last in (False, True):
            try:
                async with asyncio.timeout(ATTACH_TIMEOUT_S):
                    return await Channel.open(await handle.cell.dial())
            except BackendUnavailable as exc:
                self.health.away(handle.record.backend, exc)
                raise
            except SandboxLost:
                await self.refresh(handle)
                check_not_paused(handle.record)
                # The connection may have been cut, not the sandbox.
                if (
                    last
                    or not self.health.is_external(handle.record.backend)
                    or not await self._there(handle)
                ):
                    raise
            except TimeoutError as exc:
                await self.refresh(handle)
                check_not_paused(handle.record)
                if self.health.is_external(handle.record.backend):
                    await self._there(handle)
                raise _no_answer(handle) from exc
        raise AssertionError

    async def _there(self, handle: Handle) -> bool:
        """Return whether the backend still has the cell. Raise BackendUnavailable."""
        name = handle.record.backend
        try:
            async with self.health.asking(name, LOOK_TIMEOUT_S, handle.record.place):
                handle.cell = await handle.backend.attach(handle.record.id)
        except BackendUnavailable:
            handle.outlived = handle.channel
            raise
        except SandboxLost:
            return False
        return True

    async def _explained(self, handle: Handle, cause: SandboxLost) -> SandkastenError:
        """Return the error that explains why a connection ended, for backends with an engine."""
        try:
            await self.refresh(handle)
            check_not_paused(handle.record)
            if not await self._there(handle):
                return cause
        except SandkastenError as exc:
            return exc
        return BackendUnavailable(
            f"the connection to sandbox {handle.record.id} was cut; the sandbox is still running",
            hint="check whether the request took effect before you repeat it",
            backend=handle.record.backend,
        )

    async def directory(self, the_id: str) -> str | None:
        """Return the directory of the default shell; None if the sandbox does not answer soon."""
        handle = self._open.get(the_id)
        if handle is not None and handle.cwd is not None:
            return handle.cwd
        with suppress(SandkastenError, TimeoutError):
            async with asyncio.timeout(_DIRECTORY_S):
                handle, channel = await self.connect(the_id)
                shells = decode_shells(await channel.call("shell.list"))
                shell = next((shell for shell in shells if shell.name == DEFAULT_SHELL), None)
                directory = WORKSPACE if shell is None else shell.cwd
                # A command in the background may move it, and no caller may ask how that ended.
                if shell is None or not shell.busy:
                    handle.cwd = directory
                return directory
        return None

    async def connect(self, text: str) -> tuple[Handle, Channel]:
        handle = await self.get(text)
        channel = handle.live
        if channel is None:
            channel = await self.channel(handle)
        return handle, channel

    async def refresh(self, handle: Handle) -> None:
        """Reload the row, which other processes may have changed."""
        row = await self._store.get(handle.record.id)
        if row is None or row.state is State.DESTROYING:
            raise await self.missing(handle.record.id)
        handle.record = row

    @asynccontextmanager
    async def explaining(self, handle: Handle) -> AsyncIterator[None]:
        """Explain SandboxLost: a connection closed by a pause raises Conflict instead."""
        try:
            yield
        except SandboxLost as exc:
            if self.health.is_external(handle.record.backend):
                raise await self._explained(handle, exc) from exc
            await self.refresh(handle)
            check_not_paused(handle.record)
            raise

    async def forget(self, the_id: str) -> Handle | None:
        """Close the connection kept here; the sandbox lives on."""
        handle = self._open.pop(the_id, None)
        if handle is not None and handle.channel is not None:
            await handle.channel.aclose()
        return handle

    async def aclose(self) -> None:
        for the_id in list(self._open):
            await self.forget(the_id)

    def backend(self, name: str) -> Backend:
        backend = self._backends.get(name)
        if backend is None:
            raise not_configured(name, self._backends)
        return backend

    def departed(self, record: Record) -> bool:
        """See `places.has_departed`."""
        return has_departed(record, self._backends, self._clock)

    async def remover(self, record: Record) -> Backend:
        """Return the backend that removes a sandbox. Raise BackendUnavailable."""
        if self.departed(record):
            return DEPARTED
        return await located(self.backend(record.backend), record)

    async def lost(self, record: Record, cause: SandkastenError) -> SandkastenError:
        """Record that the cell is gone, and return the error with the reason if it is known."""
        # Decided once: a later check knows less and must not overwrite the reason.
        ending = self._judged[record.id] = self.judge(record, cause)
        if len(self._judged) > _REMEMBERED_ENDS:
            del self._judged[next(iter(self._judged))]
        await self.forget(record.id)
        row = await self._store.get(record.id)
        if row is None or row.state is State.DESTROYING:
            return await self.missing(record.id)
        if may_move(row.state, State.LOST):
            # Another holder of the lock is destroying it or recording the same. A ledger that
            # cannot be written must not hide the cause from the caller.
            with suppress(Busy, QuotaExceeded, InternalError):
                async with self._store.lock(record.id, wait_s=0):
                    row = await self._store.get(record.id)
                    if row is not None and may_move(row.state, State.LOST):
                        await self._store.put(replace(row, state=State.LOST))
                        await self._session_journal.ended(record.id, ending.end, ending.reason)
                        self._emit(f"sandbox.{ending.end}", record, reason=ending.reason)
        if self._session_journal.journal is not None:
            error = await self._session_journal.gone(record.id)
            return error or expired(record.id, ending.end, ending.reason)
        if ending.end == "expired" and ending.certain:
            return expired(record.id, ending.end, ending.reason)
        return SandboxLost(
            f"sandbox {record.id} is gone: {cause.message}",
            hint="it was killed, ran out of memory or expired; create a new one",
        )

    def judge(self, record: Record, cause: SandkastenError | None = None) -> EndReason:
        """Decide what ended a dead cell, from what is known here and reported by its backend."""
        if record.id in self._judged:
            return self._judged[record.id]
        if record.boot_id != boot_id():
            return EndReason("lost", "the machine was restarted")
        handle = self._open.get(record.id)
        channel = handle.channel if handle is not None else None
        if handle is not None and handle.outlived is channel:
            channel = None
        now = self._clock.boottime()
        idle = EndReason("expired", f"nothing was asked of it for {record.idle_timeout_s:g} s")
        if now - record.created_boottime >= record.lifetime_s or (
            channel is not None and channel.ending == "lifetime"
        ):
            return EndReason("expired", f"its lifetime of {record.lifetime_s:g} s was over")
        if channel is not None and channel.ending is not None:
            return idle
        if channel is not None and channel.cut_off and channel.hello.generation >= SAYS_ENDING:
            # It could not announce its end, so it did not end by itself.
            return silent_end(cause)
        used = handle.last_used if handle is not None else record.created_boottime
        if now - used >= record.idle_timeout_s:
            return replace(idle, certain=handle is not None)
        return silent_end(cause)

    async def missing(self, the_id: str) -> SandkastenError:
        """Return the error for an id that is not in the ledger: how it ended, if that is known."""
        return await self._session_journal.gone(the_id) or _not_found(the_id)

    async def alive(self, record: Record) -> bool:
        """Return whether the cell of a RUNNING or PAUSED row is alive; record it as lost if not."""
        if record.boot_id != boot_id():
            await self.lost(record, SandboxLost("the machine was restarted"))
            return False
        handle = self._open.get(record.id)
        if handle is not None and handle.channel is not None and not handle.channel.closed:
            return True
        backend = await located(self.backend(record.backend), record)
        try:
            async with self.health.looking(record.backend, ATTACH_TIMEOUT_S, record.place):
                await backend.attach(record.id)
        except BackendUnavailable:
            if handle is not None:
                handle.outlived = handle.channel
            raise
        except SandboxLost as exc:
            await self.lost(record, exc)
            return False
        except TimeoutError:
            # Slow is not dead: a starved host must not make us forget living sandboxes.
            return True
        cut_at = None if handle is None else handle.cut_at
        if handle is not None and cut_at is not None:
            dying = self._clock.boottime() - cut_at <= _DYING_S
            handle.outlived = None if dying else handle.channel
        return True

    async def _found(self, the_id: SandboxId) -> Handle:
        record = await self._store.get(the_id)
        if record is None or record.state is State.DESTROYING:
            raise await self.missing(the_id)
        if record.acquired == "spare":
            raise _not_found(the_id)
        if record.state is State.CREATING:
            raise Busy(f"sandbox {the_id} is still being created", hint="try again in a moment")
        if record.state is State.LOST or record.boot_id != boot_id():
            raise await self.lost(record, SandboxLost("its processes have ended"))
        backend = await located(self.backend(record.backend), record)
        try:
            async with self.health.asking(record.backend, ATTACH_TIMEOUT_S, record.place):
                cell = await backend.attach(the_id)
                # Counters are read here, so that earlier kills are not attributed to the next
                # command.
                counters = await cell.usage()
        except SandboxLost as exc:
            raise await self.lost(record, exc) from exc
        except TimeoutError as exc:
            raise Busy(
                f"sandbox {the_id} could not be reached within {ATTACH_TIMEOUT_S:g} s",
                hint="the host may be starved; try again",
            ) from exc
        return Handle(record=record, backend=backend, cell=cell, counters=counters)

    def _emit(self, event: str, record: Record, *, reason: str) -> None:
        if self._events is not None:
            fields = {"sandbox": record.id, "backend": record.backend, "reason": reason}
            self._events.emit(event, fields)


def _no_answer(handle: Handle) -> Busy:
    return Busy(
        f"sandbox {handle.record.id} did not answer within {ATTACH_TIMEOUT_S:g} s",
        hint="it may be starved of CPU; retry or destroy it",
    )


def check_not_paused(record: Record) -> None:
    if record.state is State.PAUSED:
        raise Conflict(
            f"sandbox {record.id} is paused",
            hint="resume it first: box.resume() or sandkasten resume",
            sandbox_id=record.id,
            reason="paused",
        )


def is_paused(error: SandkastenError) -> bool:
    """Return whether this is the Conflict of a paused sandbox."""
    return isinstance(error, Conflict) and error.details.get("reason") == "paused"


def _not_found(the_id: str) -> NotFound:
    return SessionNotFound(
        f"no sandbox has the id {the_id}", hint="it may have been destroyed; list them with ls"
    )
