"""E2B's code interpreter: run code in contexts, and list, create, remove and restart contexts.

The contexts are those of the engine, so the other APIs list and use the same ones. The answer to
`/execute` is a stream of JSON lines. A client that leaves interrupts its code, and that is also how
the SDKs end code at its timeout.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import OrderedDict
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, Final

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
from sandkasten_e2b.connect_codec import full_message
from sandkasten_e2b.e2b_dialect import is_gone
from sandkasten_e2b.e2b_messages import Execute, NewContext
from sandkasten_e2b.envd_access import kept_alive
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.response.streamed_response import Followed
from sandkasten_server.api.routes.code import run_shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from sandkasten.model.commands.code_values import CodeContext
    from sandkasten.model.ids import SandboxId
    from sandkasten_e2b.envd_access import EnvdAccess
    from sandkasten_server.api.request.http_call import Call

Line = dict[str, object]
_ALIVE: Final[Line] = {"type": "keepalive"}
_KEEP_ALIVE_S: Final = 5.0
_END: Final[Line] = {"type": "end_of_execution"}
_TEXTS: Final = ("html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript")
# Working directories of contexts, which the engine does not know; the oldest are forgotten.
_MAX_KNOWN: Final = 4096
# Ids of default contexts that have not started, and their languages.
_UNSTARTED: Final = {"default_python": "python", "default_javascript": "javascript"}
_CHART_KINDS: Final = frozenset({"line", "scatter", "bar", "pie", "box_and_whisker"})
_AXIS_UNIT: Final = re.compile(r"\s\(([^()]{0,100})\)|\[([^][]{0,100})\]")
_BOX_FIELDS: Final = ("min", "first_quartile", "median", "third_quartile", "max", "outliers")
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
            # The client has its own timeout, and leaves then.
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

        Such a default context is listed first, under its own id until it has started.
        """
        the_id = await self._access.sandbox(call, by_traffic_token=True)
        running = await call.engine.code.list(the_id)
        contexts = [self._context(context) for context in running]
        started = {context.language for context in running if context.default}
        if not started.issuperset(_UNSTARTED.values()):
            supported = await call.engine.code.languages(the_id)
            contexts[:0] = [
                {"id": name, "language": language, "cwd": E2B_HOME}
                for name, language in _UNSTARTED.items()
                if language in supported and language not in started
            ]
        return answer(contexts)

    async def create(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call, by_traffic_token=True)
        body = await call.body(NewContext)
        cwd = body.cwd or E2B_HOME
        language = (body.language or "python").strip()
        account = await self._access.accounts.of(call.engine, the_id)
        request = ContextRequest(language, account.directory(cwd), account.environment(""))
        context = await call.while_there(call.engine.code.create(the_id, request))
        self._directories[context.id] = cwd
        while len(self._directories) > _MAX_KNOWN:
            self._directories.popitem(last=False)
        return answer(self._context(context))

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

    def _context(self, context: CodeContext) -> Line:
        cwd = self._directories.get(context.id, E2B_HOME)
        return {"id": context.id, "language": context.language, "cwd": cwd}


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
        yield {"type": "error", "name": exc.code, "value": full_message(exc), "traceback": ""}
        yield _END


def _told(item: CodeText | CodeDisplay | CodeResult, now: float) -> list[Line]:
    if isinstance(item, CodeText):
        return [{"type": item.stream, "text": item.text, "timestamp": iso(now)}]
    if isinstance(item, CodeDisplay):
        return [_result(item)]
    lines: list[Line] = []
    error = item.error
    if error is not None:
        fields = {"name": error.name, "value": error.value, "traceback": error.traceback}
        lines.append({"type": "error", **fields})
    elif item.status in _ENDS:
        value = _ENDS[item.status]
        lines.append({"type": "error", "name": item.status, "value": value, "traceback": ""})
    if item.execution_count is not None:
        count = item.execution_count
        lines.append({"type": "number_of_executions", "execution_count": count})
    return lines


def _result(shown: CodeDisplay) -> Line:
    line: dict[str, Any] = {"type": "result", "text": _unquoted(shown.text)}
    line |= {name: getattr(shown, name) for name in _TEXTS}
    line["data"] = _columns(shown.data)
    line["chart"] = e2b_chart(shown.chart)
    line["extra"] = dict(shown.extra)
    line["is_main_result"] = shown.main
    return {name: value for name, value in line.items() if value is not None}


def _unquoted(text: str | None) -> str | None:
    """Return the text of a string without its quotes, as E2B shows it."""
    if text and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


def _columns(table: Any) -> dict[str, list[Any]] | None:
    """Return a table by its columns, as E2B has it."""
    try:
        names, rows = table["columns"], table["data"]
        if not all(isinstance(value, list) for value in (names, rows, *rows)):
            # Each character of a string would become a value.
            return None
        return {str(name): [row[at] for row in rows] for at, name in enumerate(names)}
    except (TypeError, KeyError, IndexError):
        # None, or a value that a program made and that is not a table.
        return None


def e2b_chart(chart: object) -> dict[str, Any] | None:
    """Return a chart of a code context as E2B describes it; None if the value is not a chart.

    A chart comes out of a sandbox, so its shape is checked here: what does not fit is left out.
    """
    if not isinstance(chart, dict):
        return None
    title = _text(chart.get("title"))
    if chart.get("type") == "several":
        parts = [e2b_chart(entry) for entry in _list(chart.get("charts"))]
        elements = [part for part in parts if part is not None]
        return {"type": "superchart", "title": title, "elements": elements}
    kind = chart.get("type")
    if not isinstance(kind, str) or kind not in _CHART_KINDS:
        return {"type": "unknown", "title": title, "elements": []}
    converted: dict[str, Any] = {"type": kind, "title": title}
    if kind != "pie":
        for axis in ("x", "y"):
            label = _text(chart.get(f"{axis}_label"))
            converted |= {f"{axis}_label": label, f"{axis}_unit": _unit(label)}
    if kind in ("line", "scatter"):
        for axis in ("x", "y"):
            converted[f"{axis}_ticks"] = _list(chart.get(f"{axis}_ticks"))
            converted[f"{axis}_tick_labels"] = _list(chart.get(f"{axis}_tick_labels"))
            converted[f"{axis}_scale"] = chart.get(f"{axis}_scale")
    elements = [element for element in _list(chart.get("elements")) if isinstance(element, dict)]
    converted["elements"] = [part for element in elements for part in _element(kind, element)]
    return converted


def _element(kind: str, element: dict[str, Any]) -> list[dict[str, Any]]:
    label = element.get("label")
    if kind == "pie":
        share = element.get("share")
        # A larger number could become infinite.
        is_share = isinstance(share, int | float) and 0 <= share <= 1
        angle = round(float(share) * 360, 4) if is_share else None  # type: ignore[arg-type]
        return [{"label": label, "angle": angle, "radius": element.get("radius")}]
    if kind == "box_and_whisker":
        return [{"label": label, **{name: element.get(name) for name in _BOX_FIELDS}}]
    pairs = list(zip(_list(element.get("x")), _list(element.get("y")), strict=False))
    if kind == "bar":
        return [{"label": str(x), "value": y, "group": label} for x, y in pairs]
    return [{"label": label, "points": pairs}]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _unit(label: str | None) -> str | None:
    """Return what a label has in brackets, as in `Time (s)`."""
    match = _AXIS_UNIT.search(label or "")
    return None if match is None else match[1] or match[2]
