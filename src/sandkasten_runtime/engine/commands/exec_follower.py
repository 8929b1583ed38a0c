"""Follow one command from its start to its end, over a connection that may break in between.

The runner owns the command; this module only watches it. When the connection is lost, it dials once
more and continues by exec id and sequence number, so nothing runs twice. Cancelling or leaving
early stops the watching, not the command. While the sandbox is paused, the follower waits and
continues after a resume.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from sandkasten.errors import (
    Cancelled,
    CommandNotFound,
    Conflict,
    ExecNotFound,
    IdempotencyKeyReused,
    ProtocolViolation,
    SandboxLost,
    SandkastenError,
    SessionExpired,
    SessionNotFound,
)
from sandkasten.model.commands.exec_values import Chunk
from sandkasten.model.commands.kept_output import KeptOutput
from sandkasten.model.commands.missing_program import missing_program
from sandkasten.model.ids import may_be_same_command
from sandkasten_runtime.engine.commands.exec_results import (
    GRACE_S,
    SOURCES,
    missing_end,
    start_fields,
)
from sandkasten_runtime.engine.handles import ExecStart, Handle, Handles, is_paused
from sandkasten_runtime.wire.call import Call, CallEvent, OutputChunk
from sandkasten_runtime.wire.messages import ExecReply, decode_exec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from sandkasten.model.commands.command import Command

# The runner's sweep repeats until nothing is left, which takes a while on a starved host. After
# this time the answer will not come: the sandbox is frozen or broken.
REPORT_SLACK_S = 30.0
# Up to this size stdin fits the initial credit of a stream and can be sent without a task.
_STDIN_AT_ONCE = 512 * 1024
# A waiting caller notices a resume within this time.
_PAUSED_LOOK_S = 0.2


def check_same_command(requested: str, existing: str) -> None:
    """Raise IdempotencyKeyReused if the command that has the key is not the requested one."""
    if not may_be_same_command(requested, existing):
        raise IdempotencyKeyReused(
            "the idempotency key was used for another command of this sandbox",
            hint="use a new key for each command, and the same one only to repeat it",
            exec_id=existing,
        )


class ExecFollower:
    """A command that is being followed. Iterate `chunks()` to the end; then `reply` is set, or is
    None if the command was lost.
    """

    def __init__(self, handles: Handles, handle: Handle, exec_id: str, command: Command) -> None:
        self.exec_id = exec_id
        self._real_id = exec_id
        self.handle = handle
        self.command = command
        self.output = KeptOutput(command.stdout_cap, command.stderr_cap)
        self.began = ExecStart(handle.counters, command.timeout_s)
        self.reply: ExecReply | None = None
        self.asked = False
        """True if the runner may have received the request."""
        self.on_started: Callable[[str], None] | None = None
        """Called once with the exec id. With an idempotency key the command may already be running.
        """
        self._handles = handles
        self._started = False
        self._feeder: asyncio.Task[None] | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._overdue = False

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield output as it arrives. Raise the runner's error, or SandboxLost if nothing ran."""
        self.handle.remember(self.exec_id, self.began)
        start = start_fields(self.exec_id, self.command, follow=True)
        verb, fields = "exec.start", start
        retried = False
        while True:
            try:
                channel = await self._handles.channel(self.handle)
            except Conflict as exc:
                # The runner kept the request that was sent before the pause: it is running or
                # queued.
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
                        if isinstance(item, OutputChunk):
                            self._started = True
                            if item.seq > self.output.last_seq:
                                yield self._chunk(item)
                        elif isinstance(item, CallEvent) and item.name == "started":
                            # With an idempotency key this may be the command of an earlier request.
                            self._real_id = str(item.body.get("exec_id", self.exec_id))
                            check_same_command(self.exec_id, self._real_id)
                            self._started = True
                            self._tell_started(item)
                            if self.command.argv is None:
                                # The shell's queue reached this command, so its own deadline starts
                                # now.
                                self._watch(call, self._own_bound_s())
                    if self._overdue:
                        return
                    self.reply = decode_exec(await call.result())
                    self.handle.note(self.reply)
                    for chunk in missing_end(self.reply, self.output, self._real_id):
                        yield chunk
                self.handle.began.pop(self.exec_id, None)
                return
            except CommandNotFound as exc:
                raise missing_program(exc, self.command.argv) from exc
            except ExecNotFound:
                # Only a second attempt can miss the command: the first request never arrived.
                if verb == "exec.start" or self._started:
                    raise
                verb, fields = "exec.start", start
            except (SandboxLost, Cancelled) as exc:
                # A runner that is shutting down cancels streams that we did not cancel; a stream we
                # closed reports that itself.
                if isinstance(exc, Cancelled) and "runner_code" not in exc.details:
                    raise
                if retried:
                    if self._started:
                        return
                    raise
                retried = True
                # With an idempotency key the command may have another id; asking for the key finds
                # it.
                if self.command.key is None:
                    verb, fields = "exec.output", self._rest_of_output()
            finally:
                await self._rest()

    def _tell_started(self, event: CallEvent) -> None:
        tell, self.on_started = self.on_started, None
        if tell is not None:
            exec_id = event.body.get("exec_id")
            tell(exec_id if isinstance(exec_id, str) else self.exec_id)

    def _rest_of_output(self) -> dict[str, object]:
        return {"exec_id": self.exec_id, "since_seq": self.output.last_seq, "follow": True}

    def _chunk(self, piece: OutputChunk) -> Chunk:
        if not 0 <= piece.source < len(SOURCES):
            raise ProtocolViolation("an output chunk has an unknown source")
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
            # Read output at the same time, or a filter fills its pipe and both sides wait.
            self._feeder = asyncio.ensure_future(self._send(call, stdin))

    async def _send(self, call: Call, stdin: bytes) -> None:
        await call.send(stdin)
        if not self.command.keep_stdin_open:
            await call.end()

    def _queue_bound_s(self) -> float:
        """Return how long the start may take: a shell first finishes the commands queued before."""
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
