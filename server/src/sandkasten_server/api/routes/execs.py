"""Commands of a session: run and wait, stream, start in the background, read the history.

A command that ran is a result however it ended; a timeout is an error only if the caller asked for
that. Disconnecting stops the stream, not the command.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sandkasten.errors import (
    Busy,
    CommandNotExecutable,
    CommandNotFound,
    CommandTimeout,
    Conflict,
    ExecNotFound,
    IdempotencyKeyReused,
    InvalidRequest,
    PayloadTooLarge,
    SandboxLost,
    SandkastenError,
    SessionExpired,
    SessionNotFound,
    ShellNotFound,
)
from sandkasten.model.commands.exec_values import Chunk, ExecRequest, ExecResult
from sandkasten.model.commands.signals import signal_number
from sandkasten.model.ids import exec_id as checked_exec_id
from sandkasten.model.json_codec import to_json
from sandkasten.model.request_spellings import exec_request, input_of
from sandkasten_server.api.error_responses import body_of
from sandkasten_server.api.response.exec_json import ChunkPrinter, chunk_fields, result_fields
from sandkasten_server.api.response.exec_rows import exec_row, history
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.response.sse import begun, event, large_event
from sandkasten_server.api.route import EVENTS, JSON, Route
from sandkasten_server.api.routes.exec_schemas import (
    Exec,
    ExecBody,
    ExecPast,
    HistoryQuery,
    Ok,
    OutputAnswer,
    OutputQuery,
    SignalBody,
    StdinBody,
    StreamBody,
    WaitQuery,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.responses import Response

    from sandkasten_server.api.request.http_call import Call

_MAX_STDIN = 16 << 20


async def run(call: Call) -> Response:
    fields = vars(await call.body(ExecBody))
    if fields["stream"]:
        return await _streamed(call, fields)
    request = _request(fields, call)
    the_id = await call.session()
    if fields["background"]:
        return answer(to_json(await call.engine.exec_start(the_id, request)), 202)
    result = await call.engine.exec(the_id, request)
    if result.timed_out and fields["error_on_timeout"]:
        return await _timed_out(call, result)
    return answer(await result_fields(result))


async def stream(call: Call) -> Response:
    return await _streamed(call, vars(await call.body(StreamBody)))


async def _streamed(call: Call, fields: Mapping[str, Any]) -> Response:
    if fields["background"]:
        raise InvalidRequest(
            "background and stream exclude each other",
            hint="start it in the background, then read execs/{id}/output as a stream",
            field="background",
            http_status=422,
        )
    request = _request(fields, call)
    the_id = await call.session()
    items = call.engine.exec_stream(the_id, request)
    return await begun(_events(items, call), call)


async def _events(
    items: AsyncIterator[Chunk | ExecResult], call: Call, exec_id: str | None = None
) -> AsyncIterator[bytes]:
    """Format items as events. A failure before the first one fails the request."""
    printer = ChunkPrinter(call.server.clock, exec_id)
    began = False
    try:
        async with aclosing(items) as source:  # type: ignore[type-var]
            async for item in source:
                began = True
                if isinstance(item, Chunk):
                    yield event("chunk", printer.fields(item), item.seq)
                else:
                    async for piece in large_event("done", await result_fields(item)):
                        yield piece
    except SandkastenError as exc:
        if not began:
            raise
        yield event("error", body_of(exc, call.request_id))


async def listed(call: Call) -> Response:
    query = call.query(HistoryQuery)
    return answer(await history(call, query.limit))


async def described(call: Call) -> Response:
    query = call.query(WaitQuery)
    eid = _exec_id(call)
    try:
        the_id = await call.session()
        result = await call.engine.exec_get(the_id, eid, wait_s=query.wait_seconds)
    except (SessionNotFound, SessionExpired, SandboxLost, ExecNotFound):
        past = await exec_row(call, eid)
        if past is None:
            raise
        return answer(past)
    return answer(await result_fields(result))


async def output(call: Call) -> Response:
    query = call.query(OutputQuery)
    eid = _exec_id(call)
    the_id = await call.session()
    since = query.since_seq
    headers = call.connection.headers
    if EVENTS in headers.get("accept", ""):
        last_id = headers.get("last-event-id", "")
        if last_id.isascii() and last_id.isdigit() and len(last_id) < 19:
            since = max(since, int(last_id))
        items = call.engine.exec_output(the_id, eid, since_seq=since, follow=True)
        return await begun(_events(items, call, eid), call)
    chunks, result = await _kept(call, the_id, eid, since)
    if not chunks and result.status == "running" and query.wait > 0:
        await _something_new(call, the_id, eid, since, query.wait)
        chunks, result = await _kept(call, the_id, eid, since)
    shown = chunks[: query.max_chunks]
    return answer(
        {
            **await result_fields(result),
            "chunks": [chunk_fields(chunk) for chunk in shown],
            "done": result.status != "running" and len(shown) == len(chunks),
            "next_seq": shown[-1].seq if shown else since,
        }
    )


async def _kept(call: Call, the_id: str, eid: str, since: int) -> tuple[list[Chunk], ExecResult]:
    chunks: list[Chunk] = []
    async for item in call.engine.exec_output(the_id, eid, since_seq=since):
        if isinstance(item, ExecResult):
            return chunks, item
        chunks.append(item)
    raise SandboxLost(
        "the sandbox ended before the result of the command was known", hint="create a new one"
    )


async def _something_new(call: Call, the_id: str, eid: str, since: int, wait_s: float) -> None:
    items = call.engine.exec_output(the_id, eid, since_seq=since, follow=True)
    async with aclosing(items) as source:  # type: ignore[type-var]
        try:
            async with asyncio.timeout(wait_s):
                await anext(source)
        except TimeoutError:
            return


async def stdin(call: Call) -> Response:
    eid = _exec_id(call)
    if _is_json(call):
        body = await call.body(StdinBody)
        data, close = input_of(vars(body), "data") or b"", body.close
    else:
        data, close = await call.raw(_MAX_STDIN), False
    the_id = await call.session()
    # A program reads its stdin when it wants to; a client that leaves stops waiting for that.
    await call.while_there(call.engine.exec_stdin(the_id, eid, data, close=close))
    return answer({"ok": True, "bytes": len(data)})


async def close_stdin(call: Call) -> Response:
    eid = _exec_id(call)
    await call.engine.exec_stdin(await call.session(), eid, b"", close=True)
    return answer({"ok": True})


async def signal(call: Call) -> Response:
    eid = _exec_id(call)
    number = signal_number((await call.body(SignalBody)).signal)
    await call.engine.exec_signal(await call.session(), eid, number)
    return answer({"ok": True, "signal": number})


async def close_shell(call: Call) -> Response:
    await call.engine.shell_close(await call.session(), call.path("name"))
    return answer({"ok": True})


def _request(fields: Mapping[str, Any], call: Call) -> ExecRequest:
    request = exec_request(fields)
    return replace(
        request,
        # 0 means the session's own.
        timeout_seconds=request.timeout_seconds or None,
        idempotency_key=call.connection.headers.get("idempotency-key")
        if request.idempotency_key is None
        else request.idempotency_key,
    )


async def _timed_out(call: Call, result: ExecResult) -> Response:
    error = CommandTimeout(
        f"the command timed out ({result.duration_ms} ms)",
        hint="give it a longer timeout_ms, or run it in the background",
    )
    return answer({**body_of(error, call.request_id), "details": await result_fields(result)}, 504)


def _exec_id(call: Call) -> str:
    try:
        return checked_exec_id(call.path("eid"))
    except InvalidRequest as exc:
        raise ExecNotFound("no command has that id", hint="list them with execs") from exc


def _is_json(call: Call) -> bool:
    content_type = call.connection.headers.get("content-type", "")
    return content_type.partition(";")[0].strip().lower() == JSON


GONE = (SessionNotFound, SessionExpired, SandboxLost)
_RUN: tuple[type[SandkastenError], ...] = (
    *GONE,
    Conflict,
    IdempotencyKeyReused,
    CommandNotFound,
    CommandNotExecutable,
    Busy,
    PayloadTooLarge,
)
_ONE = (*GONE, ExecNotFound, Conflict, Busy)
_EXEC = "/v1/sessions/{id}/execs/{eid}"
_more: dict[str, Any] = {"tag": "exec"}

ROUTES = (
    Route(
        "POST",
        "/v1/sessions/{id}/exec",
        run,
        "Run a command and wait for its end",
        body=ExecBody,
        answer=Exec,
        also={202: Exec},
        gives=(JSON, EVENTS),
        errors=(*_RUN, CommandTimeout),
        headers={"Idempotency-Key": "The same as `idempotency_key`."},
        **_more,
    ),
    Route(
        "POST",
        "/v1/sessions/{id}/exec/stream",
        stream,
        "Run a command and watch its output",
        body=StreamBody,
        gives=(EVENTS,),
        errors=_RUN,
        headers={"Idempotency-Key": "The same as `idempotency_key`."},
        description="Events: `chunk` (a piece of output), `done` (the answer of exec), `error` "
        "(an error body). A client that leaves does not stop the command.",
        **_more,
    ),
    Route(
        "GET",
        "/v1/sessions/{id}/execs",
        listed,
        "Commands of a session, newest first",
        query=HistoryQuery,
        answer=ExecPast,
        array=True,
        errors=GONE,
        **_more,
    ),
    Route(
        "GET",
        _EXEC,
        described,
        "Status and result of a command",
        query=WaitQuery,
        answer=Exec,
        errors=_ONE,
        **_more,
    ),
    Route(
        "GET",
        _EXEC + "/output",
        output,
        "Output of a command from a sequence number on",
        query=OutputQuery,
        answer=OutputAnswer,
        gives=(JSON, EVENTS),
        errors=_ONE,
        headers={"Last-Event-ID": "With events, the same as `since_seq`."},
        description="With `Accept: text/event-stream` it follows the command as exec/stream does; "
        "`Last-Event-ID` counts as `since_seq`.",
        **_more,
    ),
    Route(
        "POST",
        _EXEC + "/stdin",
        stdin,
        "Write to a command's stdin",
        body=StdinBody,
        takes=(JSON, "application/octet-stream"),
        answer=Ok,
        errors=_ONE,
        **_more,
    ),
    Route(
        "POST",
        _EXEC + "/close-stdin",
        close_stdin,
        "End a command's stdin",
        answer=Ok,
        errors=_ONE,
        **_more,
    ),
    Route(
        "POST",
        _EXEC + "/signal",
        signal,
        "Send a command a signal",
        body=SignalBody,
        answer=Ok,
        errors=_ONE,
        **_more,
    ),
    Route(
        "DELETE",
        "/v1/sessions/{id}/shells/{name}",
        close_shell,
        "End a persistent shell with its jobs",
        answer=Ok,
        errors=(*GONE, ShellNotFound, InvalidRequest, Conflict, Busy),
        **_more,
    ),
)
