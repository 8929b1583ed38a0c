"""E2B's code interpreter: run code in contexts, and list, create, remove and restart contexts.

The contexts are those of the engine, so the other APIs list and use the same ones. The answer to
`/execute` is a stream of JSON lines. A client that leaves interrupts its code, and that is also how
the SDKs end code at its timeout.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, Final

from sandkasten.api.response.json_response import answer
from sandkasten.api.response.streamed_response import Followed
from sandkasten.api.routes.code import run_shown
from sandkasten.compat.e2b.chart_json import e2b_chart
from sandkasten.compat.e2b.connect_codec import told
from sandkasten.compat.e2b.e2b_dialect import is_gone
from sandkasten.compat.e2b.e2b_messages import Execute, NewContext
from sandkasten.compat.e2b.envd_access import kept_alive
from sandkasten.errors import InvalidRequest, SandkastenError
from sandkasten.model.commands.code_values import (
    CodeDisplay,
    CodeRequest,
    CodeResult,
    CodeText,
    ContextRequest,
)
from sandkasten.model.json_codec import iso
from sandkasten.model.sandbox.cell_spec import E2B_HOME

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from sandkasten.api.request.http_call import Call
    from sandkasten.compat.e2b.envd_access import EnvdAccess
    from sandkasten.model.commands.code_values import CodeContext
    from sandkasten.model.ids import SandboxId

Line = dict[str, object]
_ALIVE: Final[Line] = {"type": "keepalive"}
_KEEP_ALIVE_S: Final = 5.0
_END: Final[Line] = {"type": "end_of_execution"}
_TEXTS: Final = ("html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript")
# Working directories of contexts, which the engine does not know; the oldest are forgotten.
_MAX_KNOWN: Final = 4096
# Ids of default contexts that have not started, and their languages.
_UNSTARTED: Final = {"default_python": "python", "default_javascript": "javascript"}
# Code that ended in another way than by an exception of its own.
_ENDS: Final = {
    "timed_out": "the code ran longer than max_exec_timeout_seconds",
    "interrupted": "the code was interrupted",
    "restarted": "the context was restarted",
    "died": "the kernel ended; its variables are gone",
}


class CodeInterpreterRoutes:
    def __init__(self, access: EnvdAccess) -> None:
        self._access = access
        self._directories: OrderedDict[str, str] = OrderedDict()

    async def execute(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call, by_traffic_token=True)
        body = await call.body(Execute)
        if body.context_id and body.language:
            raise InvalidRequest(
                "only one of context_id or language can be provided",
                hint="a context has one language",
                field="language",
            )
        limits = (await call.engine.get(the_id)).limits
        unstarted = _UNSTARTED.get(body.context_id or "")
        request = CodeRequest(
            body.code,
            unstarted or (body.language or "python").strip(),
            None if unstarted else body.context_id or None,
            body.env_vars or {},
            # The client has a timeout of its own, and leaves then.
            limits.max_exec_timeout_s,
        )
        account = await self._access.accounts.of(call.engine, the_id)
        lines = _lines(call, the_id, request, account.directory(None))
        # What is refused is refused with a status, and not in the middle of a stream.
        first = asyncio.ensure_future(anext(lines, None))
        try:
            await call.while_there(asyncio.wait((first,), timeout=_KEEP_ALIVE_S))
            if first.done():
                first.result()
        except BaseException as exc:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await lines.aclose()  # type: ignore[attr-defined]
            if not (isinstance(exc, SandkastenError) and is_gone(exc)):
                raise
        # A sandbox that ended breaks the connection: the SDKs then ask whether it still runs.
        pieces = _encoded(_with_error(kept_alive(lines, _ALIVE, _KEEP_ALIVE_S, first)))
        return Followed(AsyncExitStack(), pieces, headers={"content-type": "application/json"})

    async def contexts(self, call: Call) -> Response:
        """List the contexts. E2B starts some with the sandbox; here they start when they are used.

        Such a default context is listed first, under an id of its own until it has started.
        """
        the_id = await self._access.sandbox(call, by_traffic_token=True)
        running = await call.engine.code.list(the_id)
        found = [self._context(one) for one in running]
        begun = {one.language for one in running if one.default}
        if not begun.issuperset(_UNSTARTED.values()):
            known = await call.engine.code.languages(the_id)
            found[:0] = [
                {"id": name, "language": language, "cwd": E2B_HOME}
                for name, language in _UNSTARTED.items()
                if language in known and language not in begun
            ]
        return answer(found)

    async def create(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call, by_traffic_token=True)
        body = await call.body(NewContext)
        cwd = body.cwd or E2B_HOME
        language = (body.language or "python").strip()
        account = await self._access.accounts.of(call.engine, the_id)
        request = ContextRequest(language, account.directory(cwd), account.environment(""))
        made = await call.while_there(call.engine.code.create(the_id, request))
        self._directories[made.id] = cwd
        while len(self._directories) > _MAX_KNOWN:
            self._directories.popitem(last=False)
        return answer(self._context(made))

    async def remove(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call, by_traffic_token=True)
        if call.path("cid") not in _UNSTARTED:
            await call.engine.code.remove(the_id, call.path("cid"))
        return answer(None)

    async def restart(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call, by_traffic_token=True)
        # What has not started has no variables.
        if call.path("cid") not in _UNSTARTED:
            await call.engine.code.restart(the_id, call.path("cid"))
        return answer(None)

    def _context(self, one: CodeContext) -> Line:
        cwd = self._directories.get(one.id, E2B_HOME)
        return {"id": one.id, "language": one.language, "cwd": cwd}


async def _encoded(lines: AsyncIterator[Line]) -> AsyncIterator[bytes]:
    async with aclosing(lines) as source:  # type: ignore[type-var]
        async for line in source:
            yield json.dumps(line, separators=(",", ":")).encode() + b"\n"


async def _lines(
    call: Call, the_id: SandboxId, request: CodeRequest, home: str | None
) -> AsyncIterator[Line]:
    """Yield the messages of one call. A default context that it starts is in `home`."""
    shown = run_shown(call.engine, the_id, request, home)
    async with aclosing(shown) as items:  # type: ignore[type-var]
        async for item in items:
            for line in _told(item, call.server.clock.now()):
                yield line
    yield _END


async def _with_error(lines: AsyncIterator[Line]) -> AsyncIterator[Line]:
    """Yield the lines; an error becomes one, because the status has been sent."""
    try:
        async with aclosing(lines) as source:  # type: ignore[type-var]
            async for line in source:
                yield line
    except SandkastenError as exc:
        if is_gone(exc):
            raise
        yield {"type": "error", "name": exc.code, "value": told(exc), "traceback": ""}
        yield _END


def _told(item: CodeText | CodeDisplay | CodeResult, now: float) -> list[Line]:
    if isinstance(item, CodeText):
        return [{"type": item.stream, "text": item.text, "timestamp": iso(now)}]
    if isinstance(item, CodeDisplay):
        return [_result(item)]
    found: list[Line] = []
    error = item.error
    if error is not None:
        fields = {"name": error.name, "value": error.value, "traceback": error.traceback}
        found.append({"type": "error", **fields})
    elif item.status in _ENDS:
        value = _ENDS[item.status]
        found.append({"type": "error", "name": item.status, "value": value, "traceback": ""})
    if item.execution_count is not None:
        count = item.execution_count
        found.append({"type": "number_of_executions", "execution_count": count})
    return found


def _result(shown: CodeDisplay) -> Line:
    found: dict[str, Any] = {"type": "result", "text": _unquoted(shown.text)}
    found |= {name: getattr(shown, name) for name in _TEXTS}
    found["data"] = _columns(shown.data)
    found["chart"] = e2b_chart(shown.chart)
    found["extra"] = dict(shown.extra)
    found["is_main_result"] = shown.main
    return {name: value for name, value in found.items() if value is not None}


def _unquoted(text: str | None) -> str | None:
    """Return the text of a string without its quotes, as E2B shows it."""
    if text and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


def _columns(table: Any) -> dict[str, list[Any]] | None:
    """Return a table by its columns, as E2B has it."""
    try:
        names, rows = table["columns"], table["data"]
        if not all(isinstance(one, list) for one in (names, rows, *rows)):
            # Each character of a string would become a value.
            return None
        return {str(name): [row[at] for row in rows] for at, name in enumerate(names)}
    except (TypeError, KeyError, IndexError):
        # None, or a value that a program made and that is not a table.
        return None
