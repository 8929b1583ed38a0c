"""Commands whose standard input is too large for one JSON body.

The command is started in the background, its input follows in pieces, and then it is awaited as any
other. It has the deadline of a command that is waited for. A command that ends without reading all
of its input is not an error.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten.errors import Conflict, ExecNotFound, InvalidRequest
from sandkasten.model.commands.exec_values import Chunk, ExecResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sandkasten.client.http.http_transport import HttpTransport
    from sandkasten.model.commands.exec_values import ExecRequest

# Base64 makes it a third longer, and a daemon accepts JSON of 16 MB unless its operator sets less.
LARGE: Final = 4 << 20
_PIECE: Final = 4 << 20
_WAIT_S: Final = 60.0


def is_large(request: ExecRequest) -> bool:
    return request.stdin is not None and len(request.stdin) > LARGE


async def run(transport: HttpTransport, sandbox_id: str, request: ExecRequest) -> ExecResult:
    started = await _begin(transport, sandbox_id, request)
    feeding = asyncio.create_task(_feed(transport, sandbox_id, started.exec_id, request))
    try:
        waiting = asyncio.create_task(_end(transport, sandbox_id, started.exec_id))
        try:
            await asyncio.wait({waiting, feeding}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                await feeding
            result = await waiting
        finally:
            await _stop(waiting)
    finally:
        await _stop(feeding)
    return await _raw(transport, sandbox_id, result) if request.raw_output else result


async def stream(
    transport: HttpTransport, sandbox_id: str, request: ExecRequest
) -> AsyncGenerator[Chunk | ExecResult]:
    started = await _begin(transport, sandbox_id, request)
    feeding = asyncio.create_task(_feed(transport, sandbox_id, started.exec_id, request))
    try:
        async for item in transport.exec_output(sandbox_id, started.exec_id, follow=True):
            if feeding.done():
                feeding.result()
            if isinstance(item, ExecResult) and request.raw_output:
                yield await _raw(transport, sandbox_id, item)
            else:
                yield item
    finally:
        await _stop(feeding)


async def start(transport: HttpTransport, sandbox_id: str, request: ExecRequest) -> ExecResult:
    """Start a command in the background; returns when it has taken its input."""
    open_stdin = replace(request, stdin=None, keep_stdin_open=True)
    started = await transport.exec_start(sandbox_id, open_stdin)
    await _feed(transport, sandbox_id, started.exec_id, request)
    return started


async def _begin(transport: HttpTransport, sandbox_id: str, request: ExecRequest) -> ExecResult:
    limits = (await transport.get(sandbox_id)).limits
    timeout_s = request.timeout_seconds or limits.exec_timeout_s
    if timeout_s > limits.max_exec_timeout_s:
        raise InvalidRequest(
            f"a timeout of {timeout_s:g} s is over max_exec_timeout_seconds "
            f"({limits.max_exec_timeout_s:g})",
            hint="lower it, or start the command in the background",
            field="timeout_seconds",
        )
    # In the background a string would run beside the session's shell.
    in_shell = isinstance(request.command, str) and request.user is None
    return await transport.exec_start(
        sandbox_id,
        replace(
            request,
            stdin=None,
            keep_stdin_open=True,
            timeout_seconds=timeout_s,
            stateful=True if in_shell and request.stateful is None else request.stateful,
        ),
    )


async def _feed(
    transport: HttpTransport, sandbox_id: str, exec_id: str, request: ExecRequest
) -> None:
    data = memoryview(request.stdin or b"")
    with suppress(Conflict, ExecNotFound):  # It ended, or closed its input.
        for at in range(0, len(data), _PIECE):
            await transport.exec_stdin_piece(sandbox_id, exec_id, bytes(data[at : at + _PIECE]))
        if not request.keep_stdin_open:
            await transport.exec_stdin(sandbox_id, exec_id, b"", close=True)


async def _end(transport: HttpTransport, sandbox_id: str, exec_id: str) -> ExecResult:
    while True:
        result = await transport.exec_get(sandbox_id, exec_id, wait_s=_WAIT_S)
        if result.status != "running":
            return result


async def _raw(transport: HttpTransport, sandbox_id: str, result: ExecResult) -> ExecResult:
    """Return the result with its kept output, without the line that marks omitted bytes."""
    chunks = [
        item
        async for item in transport.exec_output(sandbox_id, result.exec_id)
        if isinstance(item, Chunk)
    ]
    return replace(
        result,
        stdout=b"".join(chunk.data for chunk in chunks if chunk.source != "stderr"),
        stderr=b"".join(chunk.data for chunk in chunks if chunk.source == "stderr"),
        output=b"".join(chunk.data for chunk in chunks),
    )


async def _stop(task: asyncio.Task[object]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
