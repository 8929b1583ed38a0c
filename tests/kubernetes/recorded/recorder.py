"""A proxy before a real API server that records the calls of the backend and their answers."""

from __future__ import annotations

import io
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from tests.kubernetes.recorded import local_server, recorded_calls
from tests.kubernetes.recorded.recorded_calls import END, JSON, RecordedCall

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ssl import SSLContext

# The server sends a bookmark two seconds before the end of a watch.
_BOOKMARKS = {"allowWatchBookmarks": "true", "timeoutSeconds": "4"}


class Recorder:
    """`async with Recorder(server, trust, tokens) as proxy:`. `tokens` has the real token for the
    name of a client; any other name is passed on as it is.
    """

    def __init__(self, server: str, trust: SSLContext, tokens: Mapping[str, str]) -> None:
        self.url = ""
        self.bookmarks = False
        """Whether watches ask for bookmarks, which the backend does not do."""
        self._server, self._trust, self._tokens = server, trust, tokens
        self._calls: list[RecordedCall] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Recorder:
        self._session = await self._stack.enter_async_context(aiohttp.ClientSession())
        self.url = await self._stack.enter_async_context(local_server.serving(self._pass_on))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def recorded(self) -> list[RecordedCall]:
        """Return the calls since this was asked last."""
        calls, self._calls, self.bookmarks = self._calls, [], False
        recorded_calls.settle(calls)
        return calls

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        sent = await request.read()
        who = local_server.token(request)
        watch = "watch" in request.query
        call = RecordedCall(
            who,
            request.method,
            request.path,
            dict(request.query),
            JSON if watch else request.headers.get("Accept", JSON),
            request.content_type if sent else "",
            recorded_calls.shape(json.loads(sent)) if sent else None,
        )
        async with self._session.request(
            request.method,
            f"{self._server}{request.path}",
            params={**request.query, **(_BOOKMARKS if watch and self.bookmarks else {})},
            data=io.BytesIO(sent) if sent else None,
            headers={
                "Authorization": f"Bearer {self._tokens.get(who, who)}",
                "Accept": request.headers.get("Accept", JSON),
                "Content-Type": request.content_type,
            },
            ssl=self._trust,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as answer:
            call.status = answer.status
            if watch and answer.status < 400:
                return await self._stream(request, call, answer)
            body = await answer.read()
            call.answer = _kept(call, body)
            self._note(call)
            return web.Response(body=body, status=answer.status, content_type=answer.content_type)

    async def _stream(
        self, request: web.Request, call: RecordedCall, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        events = self._note(call).events
        out = web.StreamResponse()
        await out.prepare(request)
        rest = b""
        async for part in answer.content.iter_any():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                told = json.loads(line)
                events.append({"type": told["type"], "object": recorded_calls.kept(told["object"])})
                await out.write(line + b"\n")
        events.append({"type": END, "object": {}})
        return out

    def _note(self, call: RecordedCall) -> RecordedCall:
        """Add a call, unless it is one that `Replay` lets a client repeat."""
        last = self._calls[-1] if self._calls else None
        if last is not None and (call.who, call.object_path) == (last.who, last.object_path) != (
            call.who,
            "",
        ):
            if call.is_watch and last.is_watch:
                return last
            if not call.is_watch and last.shows_object and call.status < 400:
                return last
        self._calls.append(call)
        return call


def _kept(call: RecordedCall, body: bytes) -> Any:
    try:
        told = json.loads(body)
    except ValueError:
        # A path that the server does not know is refused in plain text.
        return body.decode()
    if call.method == "DELETE" and call.status < 400:
        # The backend reads only that it was done.
        return {"kind": told.get("kind")}
    return recorded_calls.kept(told)
