"""`sandbox_exec`, `sandbox_exec_read`, `sandbox_exec_wait`: commands in the sandbox of a run.

A command that ran is an answer, however it ended. A foreground command is awaited until its own
deadline; when the wait is cancelled the command is killed, because no id of it was returned.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sandkasten.disk.cleanup import finish
from sandkasten.errors import SandkastenError
from sandkasten.model.commands.exec_values import Chunk, ExecRequest
from sandkasten.model.request_spellings import exec_request, without_doubles
from sandkasten_tools.calls import tool_answers
from sandkasten_tools.calls.tool_requests import call_limits, checked_timeout
from sandkasten_tools.calls.tool_schemas import READ_CHUNKS, WAIT_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.commands.exec_values import ExecResult
    from sandkasten.model.sandbox.limits import Limits
    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_tools.calls.call_sandboxes import CallSandbox
    from sandkasten_tools.calls.run_context import RunContext
    from sandkasten_tools.calls.tool_answers import Answer

# Three sweeps, after which the runner replaces a shell that does not stop, take half a second.
KILL_S: Final = 10.0
_DYING_S: Final = 0.2


class ExecTools:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run(
        self, arguments: Mapping[str, Any], context: RunContext, target: CallSandbox
    ) -> Answer:
        stream = arguments.get("stream", False)
        limits, session_limits = self._limits(context), target.info.limits
        request = exec_request(
            {**without_doubles(arguments), "idempotency_key": "tool-" + secrets.token_hex(8)}
        )
        if (
            limits.stdout_bytes > session_limits.stdout_bytes
            or limits.stderr_bytes > session_limits.stderr_bytes
        ):
            most = max(limits.stdout_bytes, limits.stderr_bytes)
            request = replace(request, max_output_bytes=most)
        # What is begun for later reading lives as long as the sandbox.
        if not stream:
            timeout_s = checked_timeout(request.timeout_seconds, limits)
            request = replace(request, timeout_seconds=timeout_s)
        if stream:
            execution = await self._engine.exec_start(target.info.id, request)
            # Output written in the meantime is read later, from the beginning.
            return {**tool_answers.ending(execution), "stdout": "", "stderr": "", "output": ""}
        try:
            result = await self._engine.exec(target.info.id, request)
        except asyncio.CancelledError:
            await finish(self._kill(target.info.id, request))
            raise
        return tool_answers.command(result, self._most(context, result))

    async def _kill(self, sandbox_id: str, request: ExecRequest) -> None:
        """Kill repeatedly until nothing is left: a shell continues after the command it waited
        for died.
        """
        with suppress(SandkastenError, TimeoutError):
            async with asyncio.timeout(KILL_S):
                # The same key is the same command: running, queued, or ended.
                same = replace(request, stateful=isinstance(request.command, str))
                execution = await self._engine.exec_start(sandbox_id, same)
                while execution.status == "running":
                    await self._engine.exec_signal(sandbox_id, execution.exec_id, signal.SIGKILL)
                    execution = await self._engine.exec_get(
                        sandbox_id, execution.exec_id, wait_s=_DYING_S
                    )

    async def read(
        self, arguments: Mapping[str, Any], context: RunContext, target: CallSandbox
    ) -> Answer:
        since, most = arguments.get("since_seq", 0), arguments.get("max_chunks", READ_CHUNKS)
        limits = self._limits(context)
        room = limits.stdout_bytes + limits.stderr_bytes
        items = self._engine.exec_output(target.info.id, arguments["exec_id"], since_seq=int(since))
        chunks: list[Answer] = []
        fields: Answer = {"done": False, "more": True}
        async with aclosing(items) as source:  # type: ignore[type-var]
            async for item in source:
                if not isinstance(item, Chunk):
                    ended = item.status != "running"
                    fields = {**tool_answers.ending(item), "done": ended, "more": False}
                    break
                # At least one byte, or the reader would never advance past it.
                if len(chunks) >= most or (chunks and len(item.data) > room):
                    break
                room -= len(item.data)
                chunks.append(tool_answers.chunk(item))
        last = chunks[-1]["seq"] if chunks else int(since)
        return {**fields, "exec_id": arguments["exec_id"], "chunks": chunks, "next_seq": last}

    async def wait(
        self, arguments: Mapping[str, Any], context: RunContext, target: CallSandbox
    ) -> Answer:
        result = await self._engine.exec_get(
            target.info.id, arguments["exec_id"], wait_s=arguments.get("timeout_seconds", WAIT_S)
        )
        if result.status == "running":
            return {**tool_answers.ending(result), "done": False}
        return {**tool_answers.command(result, self._most(context, result)), "done": True}

    def _limits(self, context: RunContext) -> Limits:
        return call_limits(context.sandbox, self._engine.policy.limits)

    def _most(self, context: RunContext, result: ExecResult) -> dict[str, int | None]:
        """Return the output limits of this agent: the sandbox may belong to an agent with other
        limits. Both streams in one have no more than what each of them may have.
        """
        limits = self._limits(context)
        out, err = limits.stdout_bytes, limits.stderr_bytes
        both = min(out, len(result.stdout)) + min(err, len(result.stderr))
        return {"stdout": out, "stderr": err, "output": both}
