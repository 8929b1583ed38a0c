"""Run code in contexts: kernels that keep their variables between calls.

A context is a background command of its sandbox: the program `kernel_bridge`, which this module
sends into the sandbox. They exchange JSON lines over its stdin and stdout. The id of the command
marks it as a context, so any process finds contexts again after a restart. This module keeps only
the position up to which the output of a context was read, and the default context of a sandbox.

Calls to one context wait for each other inside it; more than 16 raise Busy. A caller that is
cancelled interrupts its code. A context that ends or sends invalid data is KernelFailed.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import time
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from sandkasten.disk.cleanup import finish
from sandkasten.errors import (
    Busy,
    Conflict,
    ExecNotFound,
    KernelFailed,
    QuotaExceeded,
    SandkastenError,
)
from sandkasten.model.commands.code_values import (
    MAX_CONTEXTS,
    CodeContext,
    CodeError,
    CodeRequest,
    CodeResult,
    ContextRequest,
    checked_code,
    checked_context,
    context_language,
    context_of,
    no_context,
)
from sandkasten_runtime.engine.code.bridge_lines import (
    MAX_RESULT_BYTES,
    SLOW_BYTES,
    CallLines,
    Done,
    invalid,
)
from sandkasten_runtime.engine.code.code_record import CodeRecord
from sandkasten_runtime.engine.code.context_program import ContextProgram, no_kernel
from sandkasten_runtime.engine.commands.execution import CALL_TIMEOUT_S, Execution
from sandkasten_runtime.wire.call import OutputChunk
from sandkasten_runtime.wire.messages import decode_exec, decode_execs, decode_processes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.commands.code_values import CodeReader
    from sandkasten_runtime.engine.drain import Drain
    from sandkasten_runtime.engine.handles import Handle, Handles
    from sandkasten_runtime.wire.channel import Channel

# The program allows 60 s for the start of a kernel and 10 s for an interrupt, each twice if the
# kernel is replaced.
ANSWER_SLACK_S: Final = 140.0
_CANCEL_S: Final = 5.0
# Half of it keeps the newest output, four times what the program writes unacknowledged.
_KEPT_BYTES: Final = 1 << 20
_ACK_BYTES: Final = 32 * 1024
# Parsed in a row before others have their turn: thousands of empty lines fit in it.
_SLICE: Final = 8 * 1024
_STDOUT: Final = 1
_MAX_REMEMBERED: Final = 4096
_NEWEST: Final = 256
_STDERR_BYTES: Final = 2000


class _Ended(Exception):
    """The context ended before it answered."""


class CodeContexts:
    def __init__(self, handles: Handles, execution: Execution, in_flight: Drain) -> None:
        self._handles = handles
        self._execution = execution
        self._in_flight = in_flight
        self._program = ContextProgram(execution)
        self._defaults: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._read_to: OrderedDict[str, int] = OrderedDict()
        self._starting: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def run(
        self,
        sandbox_id: str,
        request: CodeRequest,
        show: CodeReader | None = None,
        *,
        directory: str | None = None,
    ) -> CodeResult:
        """Run code and wait for its end; `show` gets output and results as they come.

        A default context that does not run yet starts in `directory`, or in the workspace.

        Code that raises is a result with `error`; a timeout is one with `timed_out`.
        """
        self._in_flight.check()
        handle, _ = await self._handles.connect(sandbox_id)
        limits = handle.record.limits
        checked = checked_code(request, limits.max_exec_timeout_s, limits.exec_timeout_s)
        began = time.monotonic()
        fields: dict[str, Any] = {
            "op": "run",
            "code": checked.code,
            "env": dict(checked.env),
            "timeout_s": checked.timeout_seconds,
            "stdout": limits.stdout_bytes,
            "stderr": limits.stderr_bytes,
            "results": MAX_RESULT_BYTES,
        }
        retried = False
        with CodeRecord(
            handle, self._execution.history, checked, self._execution.reachable
        ) as cell:
            reader = cell.shown_to(show)
            while True:
                context = checked.context or await self._default(
                    sandbox_id, checked.language, directory
                )
                await cell.begins(context)
                lines = CallLines(secrets.token_hex(8), limits.stdout_bytes, limits.stderr_bytes)
                bound_s = (checked.timeout_seconds or 0.0) + ANSWER_SLACK_S
                try:
                    done = await self._talk(sandbox_id, context, lines, fields, bound_s, reader)
                except _Ended as exc:
                    self._defaults.pop((sandbox_id, checked.language), None)
                    if checked.context is not None and not lines.seen:
                        raise no_context() from exc
                    if lines.seen or retried:
                        raise _died(str(exc)) from exc
                    retried = True
                    continue
                if done.status in ("no_kernel", "not_started"):
                    self._defaults.pop((sandbox_id, checked.language), None)
                await self._check(sandbox_id, context, done)
                return await cell.ended(_result(context, checked.language, lines, done, began))

    async def create(self, sandbox_id: str, request: ContextRequest) -> CodeContext:
        """Start a context and wait until its kernel is ready."""
        self._in_flight.check()
        checked = checked_context(request)
        the_id = f"ctx_{checked.language}_{secrets.token_hex(8)}"
        await self._start(sandbox_id, the_id, checked)
        try:
            await self._ask(sandbox_id, the_id, {"op": "run", "timeout_s": ANSWER_SLACK_S})
        except BaseException:
            await finish(self._kill(sandbox_id, the_id))
            raise
        context = context_of(the_id, int(time.time() * 1000))
        assert context is not None
        return context

    async def list(self, sandbox_id: str) -> tuple[CodeContext, ...]:
        """Return the running contexts, oldest first."""
        _, channel = await self._handles.connect(sandbox_id)
        replies = decode_execs(await channel.call("exec.list", {}, timeout_s=CALL_TIMEOUT_S))
        if len(replies) >= _NEWEST:
            # The runner lists only the newest commands. Find older contexts by their processes.
            ids = {reply.exec_id for reply in replies}
            listed = decode_processes(await channel.call("proc.list", timeout_s=CALL_TIMEOUT_S))
            older = {process.exec_id for process in listed.processes if process.exec_id} - ids
            replies = (
                *[
                    await self._state(channel, exec_id)
                    for exec_id in older
                    if context_of(exec_id, 0)
                ],
                *replies,
            )
        contexts = [
            context_of(reply.exec_id, reply.started_ms) for reply in replies if not reply.ended
        ]
        return tuple(sorted(filter(None, contexts), key=lambda context: context.created_at))

    async def languages(self, sandbox_id: str) -> tuple[str, ...]:
        """Return the languages that the image of a sandbox has a kernel for, sorted."""
        self._in_flight.check()
        return await self._program.languages(sandbox_id)

    async def restart(self, sandbox_id: str, context: str) -> None:
        """Replace the kernel of a context. Its variables are lost, and running code ends."""
        context_language(context)
        await self._ask(sandbox_id, context, {"op": "restart"})
        await self._acted(sandbox_id, "context.restart", context)

    async def interrupt(self, sandbox_id: str, context: str) -> None:
        """Interrupt the code that runs in a context; do nothing if none runs."""
        context_language(context)
        _, channel = await self._handles.connect(sandbox_id)
        await self._check_runs(channel, context)
        try:
            async with asyncio.timeout(_CANCEL_S):
                await self._write(channel, context, {"op": "cancel"})
                await self._acted(sandbox_id, "context.interrupt", context)
        except TimeoutError as exc:
            raise KernelFailed(
                f"the code context did not take the interrupt within {_CANCEL_S:g} s",
                hint="remove the context; a new call starts another one",
            ) from exc

    async def remove(self, sandbox_id: str, context: str) -> None:
        context_language(context)
        _, channel = await self._handles.connect(sandbox_id)
        await self._check_runs(channel, context)
        await self._kill(sandbox_id, context)
        await self._acted(sandbox_id, "context.remove", context)

    async def _acted(self, sandbox_id: str, action: str, context: str) -> None:
        handle = await self._handles.get(sandbox_id)
        self._handles.trail.acted(handle.record, action, context)

    # ---- the program of a context

    async def _default(self, sandbox_id: str, language: str, directory: str | None) -> str:
        key = (sandbox_id, language)
        the_id = self._defaults.get(key)
        if the_id is not None:
            return the_id
        lock = self._starting.setdefault(key, asyncio.Lock())
        async with lock:
            the_id = self._defaults.get(key)
            if the_id is None:
                running = await self.list(sandbox_id)
                own = [
                    context.id
                    for context in running
                    if context.default and context.language == language
                ]
                the_id = own[0] if own else f"ctx_{language}_default_{secrets.token_hex(8)}"
                if not own:
                    await self._start(sandbox_id, the_id, ContextRequest(language, directory))
                _remember(self._defaults, key, the_id)
        return the_id

    async def _start(self, sandbox_id: str, the_id: str, context: ContextRequest) -> None:
        # One at a time, because contexts are counted first.
        async with self._starting.setdefault((sandbox_id, ""), asyncio.Lock()):
            if len(await self.list(sandbox_id)) >= MAX_CONTEXTS:
                raise QuotaExceeded(
                    f"the sandbox already has {MAX_CONTEXTS} code contexts, the maximum",
                    hint="remove one of them first",
                    limit=MAX_CONTEXTS,
                )
            handle, _ = await self._handles.connect(sandbox_id)
            idle_s = handle.record.idle_timeout_s
            await self._program.start(sandbox_id, the_id, context, idle_s, _KEPT_BYTES)
        _remember(self._read_to, the_id, 0)

    async def _ask(self, sandbox_id: str, context: str, fields: Mapping[str, Any]) -> Done:
        lines = CallLines(secrets.token_hex(8), 0, 0)
        try:
            done = await self._talk(sandbox_id, context, lines, fields, ANSWER_SLACK_S, None)
        except _Ended as exc:
            if not str(exc):
                raise no_context() from exc
            raise _died(str(exc)) from exc
        await self._check(sandbox_id, context, done)
        return done

    async def _check(self, sandbox_id: str, context: str, done: Done) -> None:
        """Raise the error of a call that did not run."""
        if done.status == "busy":
            raise Busy(
                f"16 calls already wait for context {context}",
                hint="wait for them, or create another context",
            )
        if done.status in ("no_kernel", "not_started"):
            await finish(self._kill(sandbox_id, context))
            if done.status == "no_kernel":
                raise no_kernel(context_language(context), done.detail)
            raise KernelFailed(
                f"the kernel did not start: {done.detail}",
                hint="check the memory limit of the sandbox and the kernel of the image",
            )

    async def _talk(
        self,
        sandbox_id: str,
        context: str,
        lines: CallLines,
        fields: Mapping[str, Any],
        bound_s: float,
        show: CodeReader | None,
    ) -> Done:
        """Send a request and read until its end. Raise _Ended if the context ended first."""
        handle, channel = await self._handles.connect(sandbox_id)
        try:
            async with asyncio.timeout(bound_s), self._handles.explaining(handle):
                return await self._exchange(handle, channel, context, lines, fields, show)
        except TimeoutError as exc:
            await finish(self._kill(sandbox_id, context))
            raise KernelFailed(
                f"the code context did not answer within {bound_s:g} s",
                hint="it was ended; a new call starts another context",
            ) from exc
        except KernelFailed:
            await finish(self._kill(sandbox_id, context))
            raise
        except (_Ended, ExecNotFound):
            raise
        except BaseException:
            # The caller was cancelled or the connection is lost, so the output has no reader.
            await finish(self._cancel(sandbox_id, context, lines.call))
            raise

    async def _exchange(
        self,
        handle: Handle,
        channel: Channel,
        context: str,
        lines: CallLines,
        fields: Mapping[str, Any],
        show: CodeReader | None,
    ) -> Done:
        try:
            since = self._read_to.get(context)
            if since is None:
                since = (await self._state(channel, context)).last_seq
            query: dict[str, object] = {"exec_id": context, "since_seq": since, "follow": True}
            offset, errors = None, b""
            async with channel.stream("exec.output", query) as call:
                with suppress(Conflict):
                    # A command that has ended takes no input; its end is read below.
                    await self._write(channel, context, {**fields, "call": lines.call})
                async for item in call:
                    if not isinstance(item, OutputChunk):
                        continue
                    _remember(self._read_to, context, item.seq)
                    if item.source != _STDOUT:
                        errors = (errors + item.data)[-_STDERR_BYTES:]
                        continue
                    if offset is not None and item.offset != offset:
                        raise invalid("more output than was acknowledged")
                    offset = item.offset + len(item.data)
                    done = await self._take(channel, context, lines, item.data, show)
                    if done is not None:
                        return done
                decode_exec(await call.result())
        except ExecNotFound as exc:
            raise _Ended("") from exc
        raise _Ended(errors.decode(errors="replace").strip().rpartition("\n")[2])

    async def _take(
        self,
        channel: Channel,
        context: str,
        lines: CallLines,
        data: bytes,
        show: CodeReader | None,
    ) -> Done | None:
        for at in range(0, len(data), _SLICE):
            await asyncio.sleep(0)
            for message in lines.feed(data[at : at + _SLICE]):
                if len(message) > SLOW_BYTES:
                    item = await asyncio.to_thread(lines.take, message)
                else:
                    item = lines.take(message)
                if isinstance(item, Done):
                    return item
                if item is not None and show is not None:
                    show(item)
        if lines.owed >= _ACK_BYTES:
            owed, lines.owed = lines.owed, 0
            await self._write(channel, context, {"op": "ack", "bytes": owed})
        return None

    async def _write(self, channel: Channel, context: str, fields: Mapping[str, Any]) -> None:
        line = json.dumps(fields).encode() + b"\n"
        await channel.call("exec.stdin", {"exec_id": context, "close": False}, data=line)

    async def _state(self, channel: Channel, context: str) -> Any:
        query = {"exec_id": context, "timeout_ms": 0}
        return decode_exec(await channel.call("exec.wait", query, timeout_s=CALL_TIMEOUT_S))

    async def _check_runs(self, channel: Channel, context: str) -> None:
        try:
            state = await self._state(channel, context)
        except ExecNotFound as exc:
            raise no_context() from exc
        if state.ended:
            raise no_context()

    async def _cancel(self, sandbox_id: str, context: str, call: str) -> None:
        with suppress(SandkastenError, TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                _, channel = await self._handles.connect(sandbox_id)
                await self._write(channel, context, {"op": "cancel", "call": call})

    async def _kill(self, sandbox_id: str, context: str) -> None:
        for key in [key for key, value in self._defaults.items() if value == context]:
            del self._defaults[key]
        self._read_to.pop(context, None)
        with suppress(SandkastenError, TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                await self._execution.signal(sandbox_id, context, signal.SIGKILL)
                _, channel = await self._handles.connect(sandbox_id)
                query = {"exec_id": context, "timeout_ms": int(_CANCEL_S * 1000)}
                await channel.call("exec.wait", query)


def _result(context: str, language: str, lines: CallLines, done: Done, began: float) -> CodeResult:
    error, status = lines.error, done.status
    if status == "died" and error is None:
        error = CodeError("KernelDied", f"{done.detail}; its variables are gone", "")
    main = [display.text for display in lines.results if display.main]
    return CodeResult(
        context_id=context,
        language=language,
        status="error" if status == "ok" and error is not None else status,  # type: ignore[arg-type]
        results=tuple(lines.results),
        stdout="".join(lines.stdout),
        stderr="".join(lines.stderr),
        error=error,
        execution_count=done.count,
        text=main[-1] if main else None,
        timed_out=status == "timed_out",
        truncated=lines.truncated or done.truncated,
        kernel_restarted=done.restarted,
        duration_ms=int((time.monotonic() - began) * 1000),
    )


def _died(why: str) -> KernelFailed:
    return KernelFailed(
        f"the code context ended: {why}" if why else "the code context ended",
        hint="a new call starts another context, without the variables of this one",
    )


def _remember(remembered: OrderedDict[Any, Any], key: object, value: object) -> None:
    remembered[key] = value
    remembered.move_to_end(key)
    if len(remembered) > _MAX_REMEMBERED:
        remembered.popitem(last=False)
