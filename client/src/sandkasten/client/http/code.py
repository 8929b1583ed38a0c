"""The code contexts of a daemon's sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from sandkasten.client.http.connection import HttpRequest, reading, session_path
from sandkasten.client.http.error_responses import body_error
from sandkasten.client.http.event_streams import events, parsed
from sandkasten.client.http.json_values import given, value_of, values_of, wrong
from sandkasten.errors import BackendUnavailable
from sandkasten.model.commands.code_values import CodeContext, CodeDisplay, CodeResult, CodeText

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.client.http.connection import Connection
    from sandkasten.model.commands.code_values import CodeReader, CodeRequest, ContextRequest

# The daemon bounds every call itself: the longest timeout, and the start of a kernel.
_ANSWER_S: Final = 90_000.0
_START_S: Final = 200.0


class HttpCode:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def run(
        self, sandbox_id: str, request: CodeRequest, show: CodeReader | None = None
    ) -> CodeResult:
        path = session_path(sandbox_id, "code")
        body = given(
            code=request.code or None,
            language=request.language,
            context=request.context,
            env=dict(request.env),
            timeout_seconds=request.timeout_seconds,
        )
        body.setdefault("code", request.code)
        if show is None:
            order = HttpRequest("POST", path, body, answer_s=_ANSWER_S)
            return value_of(CodeResult, await self._connection.ask(order), "code")
        headers = {"Accept": "text/event-stream"}
        order = HttpRequest("POST", path, body, headers=headers, answer_s=None)
        async with self._connection.stream(order) as answer:
            source = events(answer)
            while True:
                # Not around `show`, whose failures are the caller's.
                async with reading(self._connection, "the code ran"):
                    event = await anext(source, None)
                if event is None:
                    raise BackendUnavailable(
                        "the connection was lost while the code ran",
                        hint="the daemon interrupted the code; run it again",
                    )
                if event.name == "chunk":
                    show(value_of(CodeText, parsed(event), "chunk"))
                elif event.name == "result":
                    show(value_of(CodeDisplay, parsed(event), "result"))
                elif event.name == "done":
                    return value_of(CodeResult, parsed(event), "code")
                elif event.name == "error":
                    raise body_error(parsed(event))

    async def create(self, sandbox_id: str, request: ContextRequest) -> CodeContext:
        body = given(language=request.language, cwd=request.cwd, env=dict(request.env))
        path = session_path(sandbox_id, "contexts")
        order = HttpRequest("POST", path, body, answer_s=_START_S)
        return value_of(CodeContext, await self._connection.ask(order), "context")

    async def list(self, sandbox_id: str) -> Sequence[CodeContext]:
        order = HttpRequest("GET", session_path(sandbox_id, "contexts"), repeatable=True)
        return values_of(CodeContext, await self._connection.ask(order), "contexts")

    async def languages(self, sandbox_id: str) -> Sequence[str]:
        order = HttpRequest("GET", session_path(sandbox_id, "languages"), repeatable=True)
        reply = await self._connection.ask(order)
        listed = reply.get("languages") if isinstance(reply, dict) else None
        if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
            raise wrong("languages")
        return listed

    async def restart(self, sandbox_id: str, context: str) -> None:
        path = _path(sandbox_id, context) + "/restart"
        await self._connection.ask(HttpRequest("POST", path, {}, answer_s=_START_S))

    async def interrupt(self, sandbox_id: str, context: str) -> None:
        path = _path(sandbox_id, context) + "/interrupt"
        await self._connection.ask(HttpRequest("POST", path, {}))

    async def remove(self, sandbox_id: str, context: str) -> None:
        await self._connection.ask(HttpRequest("DELETE", _path(sandbox_id, context)))


def _path(sandbox_id: str, context: str) -> str:
    return session_path(sandbox_id, f"contexts/{quote(context, safe='')}")
