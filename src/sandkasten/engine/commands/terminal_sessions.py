"""Terminals that outlive their viewers: start, attach, detach, attach again.

The runner owns the program and its output; this module only tracks viewers. When the last viewer of
a terminal detaches, the terminal is hung up after a delay; a viewer that returns earlier finds it
unchanged. A killed daemon hangs nothing up: the program stays until a viewer attaches or the
sandbox ends. Each terminal is recorded in the command history.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandkasten.engine.commands.exec_endings import explain_end
from sandkasten.engine.commands.exec_results import result_of
from sandkasten.engine.commands.execution import CALL_TIMEOUT_S
from sandkasten.engine.commands.terminal import hang_up, terminal_fields
from sandkasten.errors import SandkastenError
from sandkasten.model.commands.command import checked_pty
from sandkasten.model.commands.exec_values import ExecRequest, ExecResult, Pty
from sandkasten.model.commands.kept_output import KeptOutput
from sandkasten.model.ids import exec_id as checked_exec_id
from sandkasten.wire.call import Call, OutputChunk
from sandkasten.wire.messages import decode_exec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandkasten.engine.commands.exec_history import ExecHistory
    from sandkasten.engine.drain import Drain
    from sandkasten.engine.handles import Handle, Handles

# Output kept for a viewer that returns; a full screen is a few KiB.
KEPT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TerminalBytes:
    """Bytes of a terminal. `gap_bytes` before them were not kept."""

    data: bytes
    gap_bytes: int = 0


@dataclass(slots=True)
class _Watched:
    watchers: int = 0
    ending: asyncio.Task[None] | None = field(default=None)


class AttachedTerminal:
    """Iterate it to read what the program writes from `offset` on; then `result` is set."""

    def __init__(self, call: Call, handle: Handle, handles: Handles, offset: int) -> None:
        self._call = call
        self._handle = handle
        self._handles = handles
        self.offset = offset
        self.ended = False

    async def __aiter__(self) -> AsyncIterator[TerminalBytes]:
        async for item in self._call:
            if not isinstance(item, OutputChunk):
                continue
            end = item.offset + len(item.data)
            if end <= self.offset:
                continue
            data = item.data[max(0, self.offset - item.offset) :]
            gap = max(0, item.offset - self.offset)
            self.offset = end
            yield TerminalBytes(bytes(data), gap)
        self.ended = True

    async def result(self) -> ExecResult:
        reply = decode_exec(await self._call.result())
        self.ended = True
        why = await explain_end(self._handles, self._handle, reply)
        return result_of(reply, KeptOutput(0, 0), raw=True, why=why)


class TerminalSessions:
    def __init__(self, handles: Handles, history: ExecHistory, in_flight: Drain) -> None:
        self._handles = handles
        self._history = history
        self._in_flight = in_flight
        self._watched: dict[tuple[str, str], _Watched] = {}

    async def start(
        self,
        sandbox_id: str,
        *,
        command: tuple[str, ...] | None = None,
        rows: int = 24,
        cols: int = 80,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> str:
        """Start a terminal. It runs when this returns; attach to it by its id."""
        self._in_flight.check()
        handle, channel = await self._handles.connect(sandbox_id)
        fields = terminal_fields(channel, command, Pty(rows, cols), env, cwd)
        fields |= {"follow": False, "stdout_cap": KEPT_BYTES}
        reply = decode_exec(await channel.call("exec.start", fields, timeout_s=CALL_TIMEOUT_S))
        request = ExecRequest(command or (channel.hello.shell or "sh",))
        row = self._history.began(handle.record, reply.exec_id, request)
        if row is not None:
            self._history.follow(row)
        return reply.exec_id

    @asynccontextmanager
    async def attach(
        self, sandbox_id: str, exec_id: str, *, offset: int = 0, keep_s: float = 60.0
    ) -> AsyncIterator[AttachedTerminal]:
        """Attach from byte `offset` of the output on. When the last viewer leaves, hang up after
        `keep_s`.

        Raise ExecNotFound if there is no such command (any more).
        """
        exec_id = checked_exec_id(exec_id)
        handle, channel = await self._handles.connect(sandbox_id)
        key = (sandbox_id, exec_id)
        watched = self._watched.setdefault(key, _Watched())
        if watched.ending is not None:
            watched.ending.cancel()
            watched.ending = None
        watched.watchers += 1
        ended = False
        try:
            fields: dict[str, object] = {"exec_id": exec_id, "follow": True}
            async with (
                self._handles.explaining(handle),
                channel.stream("exec.output", fields) as call,
            ):
                attached = AttachedTerminal(call, handle, self._handles, offset)
                try:
                    yield attached
                finally:
                    ended = attached.ended
        finally:
            watched.watchers -= 1
            if watched.watchers == 0:
                if ended:
                    self._watched.pop(key, None)
                else:
                    work = self._end_later(sandbox_id, exec_id, keep_s)
                    watched.ending = asyncio.get_running_loop().create_task(work)

    async def resize(self, sandbox_id: str, exec_id: str, rows: int, cols: int) -> None:
        _, channel = await self._handles.connect(sandbox_id)
        pty = checked_pty(Pty(rows, cols))
        fields = {"exec_id": checked_exec_id(exec_id), "rows": pty.rows, "cols": pty.cols}
        await channel.call("exec.resize", fields, timeout_s=CALL_TIMEOUT_S)

    async def hang_up(self, sandbox_id: str, exec_id: str) -> None:
        _, channel = await self._handles.connect(sandbox_id)
        await hang_up(channel, checked_exec_id(exec_id))

    async def aclose(self) -> None:
        """Detach without hanging up: the next daemon finds the terminals unchanged."""
        ending = [one.ending for one in self._watched.values() if one.ending is not None]
        self._watched.clear()
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _end_later(self, sandbox_id: str, exec_id: str, keep_s: float) -> None:
        await asyncio.sleep(keep_s)
        self._watched.pop((sandbox_id, exec_id), None)
        # The sandbox may be gone, which ends the terminal too.
        with suppress(SandkastenError):
            await self.hang_up(sandbox_id, exec_id)
