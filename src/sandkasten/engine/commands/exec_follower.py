"""One command from its start to its end, over a connection that may break in between.

The runner owns the command; this only watches. When the connection is lost it dials once
more and goes on where it stopped, by exec id and sequence number, so nothing runs twice.
Being cancelled or left early stops the watching and never the command. While the sandbox is
paused it waits, and goes on when somebody resumes it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from sandkasten.engine.commands.exec_results import GRACE_S, SOURCES, start_fields
from sandkasten.engine.handles import Began, Handle, Handles, is_paused
from sandkasten.errors import (
    Cancelled,
    Conflict,
    ExecNotFound,
    ProtocolViolation,
    SandboxLost,
    SandkastenError,
    SessionExpired,
    SessionNotFound,
)
from sandkasten.model.commands.exec_values import Chunk
from sandkasten.model.commands.kept_output import Output
from sandkasten.wire.call import Call, Event
from sandkasten.wire.call import Output as Piece
from sandkasten.wire.messages import ExecReply, decode_exec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from sandkasten.model.commands.command import Command

# The runner's sweep repeats until nothing is left; on a starved host that takes a while.
# Later than this it is not coming: the sandbox is frozen or broken.
REPORT_SLACK_S = 30.0
# Up to here stdin fits the credit every stream starts with and can be sent without a task.
_STDIN_AT_ONCE = 512 * 1024
# How long after a resume a waiting caller may notice it.
_PAUSED_LOOK_S = 0.2


class Following:
    """Iterate `chunks()` to the end; then `reply` is set, or None when the command was lost."""

    def __init__(self, handles: Handles, handle: Handle, exec_id: str, command: Command) -> None:
        self.exec_id = exec_id
        self._real_id = exec_id
        self.handle = handle
        self.command = command
        self.output = Output(command.stdout_cap, command.stderr_cap)
        self.began = Began(handle.counters, command.timeout_s)
        self.reply: ExecReply | None = None
        self.asked = False
        """Whether the runner may have heard of it."""
        self.on_started: Callable[[str], None] | None = None
        """Told once under which id it runs: one that was asked for by key may run already."""
        self._handles = handles
        self._started = False
        self._feeder: asyncio.Task[None] | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._overdue = False

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Output as it comes. Raises what the runner refused, or SandboxLost if nothing ran."""
        self.handle.remember(self.exec_id, self.began)
        start = start_fields(self.exec_id, self.command, follow=True)
        verb, fields = "exec.start", start
        retried = False
        while True:
            try:
                channel = await self._handles.channel(self.handle)
            except Conflict as exc:
                # What was asked before the pause is at work or in a queue there, and kept.
                if not self.asked or not is_paused(exc):
                    raise
                await asyncio.sleep(_PAUSED_LOOK_S)
                retried = False
                continue
            except (SandboxLost, SessionNotFound, SessionExpired):
                if self._started:
                    return
                raise
            self.asked = True
            try:
                async with channel.stream(verb, fields) as call:
                    await self._feed(call, first=verb == "exec.start")
                    async for item in call:
                        if isinstance(item, Piece):
                            self._started = True
                            if item.seq > self.output.last_seq:
                                yield self._chunk(item)
                        elif isinstance(item, Event) and item.name == "started":
                            self._started = True
                            self._tell_started(item)
                            # Under a key it may be the command of an earlier request.
                            self._real_id = str(item.body.get("exec_id", self.exec_id))
                            if self.command.argv is None:
                                # Its turn in the shell's queue has come: now its own time counts.
                                self._watch(call, self._own_bound_s())
                    if self._overdue:
                        return
                    self.reply = decode_exec(await call.result())
                self.handle.began.pop(self.exec_id, None)
                return
            except ExecNotFound:
                # Only a second look can miss it: the first request never arrived.
                if verb == "exec.start" or self._started:
                    raise
                verb, fields = "exec.start", start
            except (SandboxLost, Cancelled) as exc:
                # A runner on its way out cancels what we did not; one we closed says so itself.
                if isinstance(exc, Cancelled) and "runner_code" not in exc.details:
                    raise
                if retried:
                    if self._started:
                        return
                    raise
                retried = True
                # Under a key the command may have another id; asking for the key again finds it.
                if self.command.key is None:
                    verb, fields = "exec.output", self._rest_of_output()
            finally:
                await self._rest()

    def _tell_started(self, event: Event) -> None:
        tell, self.on_started = self.on_started, None
        if tell is not None:
            exec_id = event.body.get("exec_id")
            tell(exec_id if isinstance(exec_id, str) else self.exec_id)

    def _rest_of_output(self) -> dict[str, object]:
        return {"exec_id": self.exec_id, "since_seq": self.output.last_seq, "follow": True}

    def _chunk(self, piece: Piece) -> Chunk:
        if not 0 <= piece.source < len(SOURCES):
            raise ProtocolViolation("a chunk of output came from an unknown source")
        source = SOURCES[piece.source]
        gap = self.output.add(piece.seq, source, piece.offset, piece.data)
        return Chunk(piece.seq, source, piece.data, gap, self._real_id)

    async def _feed(self, call: Call, *, first: bool) -> None:
        self._watch(call, self._queue_bound_s())
        stdin = self.command.stdin
        if not first or stdin is None:
            return
        if len(stdin) <= _STDIN_AT_ONCE:
            await self._send(call, stdin)
        else:
            # Output must be read meanwhile, or a filter fills its pipe and both sides wait.
            self._feeder = asyncio.ensure_future(self._send(call, stdin))

    async def _send(self, call: Call, stdin: bytes) -> None:
        await call.send(stdin)
        if not self.command.keep_stdin_open:
            await call.end()

    def _queue_bound_s(self) -> float:
        """How long it may take to begin: a shell finishes what it was given before."""
        if self.command.argv is not None:
            return self._own_bound_s()
        return self._own_bound_s() + self.handle.record.limits.max_exec_timeout_s

    def _own_bound_s(self) -> float:
        return self.command.timeout_s + GRACE_S + REPORT_SLACK_S

    def _watch(self, call: Call, seconds: float) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._watchdog = asyncio.get_running_loop().call_later(seconds, self._give_up, call)

    def _give_up(self, call: Call) -> None:
        self._overdue = True
        call.leave()

    async def _rest(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if self._feeder is not None:
            self._feeder.cancel()
            # A command that ends without reading its stdin is not an error.
            with suppress(asyncio.CancelledError, SandkastenError):
                await self._feeder
            self._feeder = None
