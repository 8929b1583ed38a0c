"""Code contexts of a session: run code in a kernel that keeps its variables.

Code that raises is a result. A client that leaves interrupts its code.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from sandkasten.errors import (
    ContextNotFound,
    KernelFailed,
    KernelNotFound,
    PayloadTooLarge,
    QuotaExceeded,
)
from sandkasten.model.commands.code_values import (
    CodeDisplay,
    CodeRequest,
    CodeText,
    ContextRequest,
)
from sandkasten.model.json_codec import to_json
from sandkasten.model.request_spellings import timeout_of
from sandkasten_server.api.request.body_models import body_of
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.response.sse import begun, large_event
from sandkasten_server.api.route import EVENTS, JSON, Answer, Route
from sandkasten_server.api.routes.exec_schemas import ExecNetworkAnswer, Ok
from sandkasten_server.api.routes.stats import BUSY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from sandkasten.model.commands.code_values import CodeItem, CodeResult
    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_server.api.request.http_call import Call

_Milliseconds = Annotated[
    float,
    Field(ge=0, le=10**10, json_schema_extra={"anyOf": [{"const": 0}, {"minimum": 1}]}),
]
CodeBody = body_of(
    "CodeBody",
    CodeRequest,
    code=(str, Field(description="At most 1 MiB.")),
    timeout_ms=(
        _Milliseconds | None,
        Field(None, description="Wins over `timeout_seconds`; 0: the default."),
    ),
)
ContextBody = body_of("ContextBody", ContextRequest)
_EVENTS: Final = {CodeText: "chunk", CodeDisplay: "result"}


class CodeDisplayAnswer(Answer):
    text: str | None
    html: str | None
    markdown: str | None
    png: str | None = Field(description="Base64, as `jpeg` and `pdf`.")
    svg: str | None
    jpeg: str | None
    pdf: str | None
    latex: str | None
    json_: Any = Field(alias="json")
    javascript: str | None
    data: Any = Field(description="A table: `columns`, `index` and `data`; at most 1000 rows.")
    chart: Any = Field(description="What a chart shows: `type`, `title`, labels and `elements`.")
    extra: dict[str, Any] = Field(description="Other MIME types.")
    main: bool = Field(description="The value of the last expression.")


class CodeErrorAnswer(Answer):
    name: str
    value: str
    traceback: str = Field(description="Without the codes for colours.")


class CodeAnswer(Answer):
    context_id: str
    language: str
    status: str = Field(description="ok, error, timed_out, interrupted, restarted or died")
    results: list[CodeDisplayAnswer]
    stdout: str
    stderr: str
    error: CodeErrorAnswer | None
    execution_count: int | None
    text: str | None = Field(description="The value of the last expression.")
    timed_out: bool
    truncated: bool
    kernel_restarted: bool = Field(description="The kernel was replaced; its variables are gone.")
    duration_ms: int
    network: ExecNetworkAnswer | None = Field(
        None, description="What the network refused while it ran; null when nothing was."
    )


class ContextAnswer(Answer):
    id: str
    language: str
    default: bool = Field(description="The context of calls that name none.")
    created_at: str | None
    created_at_unix: float | None


class LanguagesAnswer(Answer):
    languages: list[str]


async def run(call: Call) -> Response:
    fields = vars(await call.body(CodeBody))
    request = CodeRequest(
        code=fields["code"],
        language=fields["language"],
        context=fields["context"],
        env=fields["env"],
        timeout_seconds=timeout_of(fields),
    )
    the_id = await call.session()
    if EVENTS in call.connection.headers.get("accept", ""):
        return await begun(_events(call, the_id, request), call)
    return answer(to_json(await call.while_there(call.engine.code.run(the_id, request))))


async def _events(call: Call, the_id: str, request: CodeRequest) -> AsyncIterator[bytes]:
    async with aclosing(run_shown(call.engine, the_id, request)) as items:  # type: ignore[type-var]
        async for item in items:
            name = _EVENTS.get(type(item), "done")
            async for piece in large_event(name, to_json(item)):
                yield piece


async def run_shown(
    engine: Engine, the_id: str, request: CodeRequest, directory: str | None = None
) -> AsyncIterator[CodeItem | CodeResult]:
    """Yield what code prints and displays while it runs, then its result.

    Closing the iterator interrupts the code.
    """
    # Without a separate bound: what a call prints and displays is bounded, and is kept anyway.
    items: asyncio.Queue[CodeItem | None] = asyncio.Queue()

    async def run() -> CodeResult:
        try:
            show = items.put_nowait
            return await engine.code.run(the_id, request, show, directory=directory)
        finally:
            items.put_nowait(None)

    running = asyncio.create_task(run())
    try:
        while (item := await items.get()) is not None:
            yield item
        yield await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def contexts(call: Call) -> Response:
    return answer(
        [to_json(context) for context in await call.engine.code.list(await call.session())]
    )


async def languages(call: Call) -> Response:
    names = await call.engine.code.languages(await call.session())
    return answer({"languages": list(names)})


async def create(call: Call) -> Response:
    request = ContextRequest(**vars(await call.body(ContextBody)))
    the_id = await call.session()
    context = await call.while_there(call.engine.code.create(the_id, request))
    return answer(to_json(context), 201)


async def remove(call: Call) -> Response:
    await call.engine.code.remove(await call.session(), call.path("cid"))
    return answer({"ok": True})


async def restart(call: Call) -> Response:
    await call.engine.code.restart(await call.session(), call.path("cid"))
    return answer({"ok": True})


async def interrupt(call: Call) -> Response:
    await call.engine.code.interrupt(await call.session(), call.path("cid"))
    return answer({"ok": True})


_KERNEL = (*BUSY, KernelNotFound, KernelFailed, QuotaExceeded)
_ONE = (*BUSY, ContextNotFound, KernelFailed)
_CONTEXTS = "/v1/sessions/{id}/contexts"

ROUTES = (
    Route(
        "POST",
        "/v1/sessions/{id}/code",
        run,
        "Run code in a context that keeps its variables",
        "code",
        body=CodeBody,
        answer=CodeAnswer,
        gives=(JSON, EVENTS),
        errors=(*_KERNEL, ContextNotFound, PayloadTooLarge),
        description="With `Accept: text/event-stream`: events `chunk` (`stream` and `text`), "
        "`result` (something displayed), then `done` with the answer, or `error`. A client that "
        "leaves interrupts its code. Calls to one context wait for each other.",
    ),
    Route(
        "GET",
        _CONTEXTS,
        contexts,
        "Code contexts of a session",
        "code",
        answer=ContextAnswer,
        array=True,
        errors=BUSY,
    ),
    Route(
        "GET",
        "/v1/sessions/{id}/languages",
        languages,
        "Languages that the image of a session has a kernel for",
        "code",
        # It runs Python in the session.
        activity="work",
        answer=LanguagesAnswer,
        errors=(*BUSY, KernelFailed),
    ),
    Route(
        "POST",
        _CONTEXTS,
        create,
        "Start a code context",
        "code",
        body=ContextBody,
        body_required=False,
        answer=ContextAnswer,
        status=201,
        errors=_KERNEL,
    ),
    Route(
        "DELETE",
        _CONTEXTS + "/{cid}",
        remove,
        "End a code context",
        "code",
        answer=Ok,
        errors=_ONE,
    ),
    Route(
        "POST",
        _CONTEXTS + "/{cid}/restart",
        restart,
        "Replace the kernel of a code context",
        "code",
        answer=Ok,
        errors=(*_ONE, KernelNotFound),
    ),
    Route(
        "POST",
        _CONTEXTS + "/{cid}/interrupt",
        interrupt,
        "Interrupt the code that runs in a context",
        "code",
        answer=Ok,
        errors=_ONE,
    ),
)
