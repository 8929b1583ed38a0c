"""The routes that stream their answer, and a count of what each answer sends.

Every daemon of the tests counts. An answer in pieces from a route that is not listed here fails
the test that asked for it, so that `test_leaving_clients.py` has a case for each.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

PREVIEW: Final = ("ANY", "a preview")
"""Of requests that a host name leads into a sandbox; they have no route."""

LARGE_JSON: Final = ("ANY", "a large JSON answer")
"""An answer of any route: above 256 KiB it is encoded while it is sent."""

STREAMED: Final = frozenset(
    {
        ("POST", "/v1/sessions/{id}/exec"),
        ("POST", "/v1/sessions/{id}/exec/stream"),
        ("GET", "/v1/sessions/{id}/execs/{eid}/output"),
        ("POST", "/v1/sessions/{id}/code"),
        ("POST", "/v1/run"),
        ("ANY", "/v1/sessions/{id}/ports/{port}/{rest:path}"),
        ("ANY", "/v1/sessions/{id}/ports/{port}"),
        ("WS", "/v1/sessions/{id}/ports/{port}/{rest:path}"),
        ("WS", "/v1/sessions/{id}/ports/{port}"),
        ("WS", "/v1/sessions/{id}/tunnels/{port}"),
        ("WS", "/v1/sessions/{id}/pty"),
        ("GET", "/v1/files/{key:path}"),
        ("GET", "/v1/audit/export"),
        ("GET", "/v1/sessions/{id}/fs/download"),
        ("GET", "/v1/sessions/{id}/fs/watch"),
        ("GET", "/v1/sessions/{id}/network/log"),
        ("GET", "/v1/workspaces/{id}/fs/download"),
        ("POST", "/v1/images/pull"),
        ("POST", "/v1/images/build"),
        ("GET", "/runs/{run_id}/events"),
        ("GET", "/workflow-runs/{run_id}/events"),
        ("GET", "/v1/runs/{run_id}/events"),
        ("GET", "/v1/workflow-runs/{run_id}/events"),
        ("POST", "/e2b/process.Process/Start"),
        ("POST", "/e2b/process.Process/Connect"),
        ("POST", "/e2b/filesystem.Filesystem/WatchDir"),
        ("GET", "/e2b/files"),
        ("GET", "/files"),
        ("POST", "/e2b/execute"),
        LARGE_JSON,
        PREVIEW,
    }
)


@dataclass(slots=True)
class Stream:
    """One answer: how many pieces were sent, and whether its handler has ended."""

    route: tuple[str, str] | None = None
    pieces: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class CountedStreams:
    """An ASGI application that counts the pieces of each answer of another."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self.of: dict[tuple[str, int], Stream] = {}
        """By the address of the client."""
        self.unlisted: set[tuple[str, str]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        stream = self.of[scope["client"]] = Stream()

        is_json = False

        async def counted(message: Any) -> None:
            nonlocal is_json
            if message["type"] == "http.response.start":
                is_json = dict(message["headers"]).get(b"content-type") == b"application/json"
            if message.get("more_body") or message["type"] == "websocket.send":
                stream.pieces += 1
                route = scope.get("sandkasten.route")
                stream.route = PREVIEW if route is None else (route.method, route.path)
                if is_json and stream.route not in STREAMED:
                    stream.route = LARGE_JSON
                if message.get("more_body") and stream.route not in STREAMED:
                    self.unlisted.add(stream.route)
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            stream.ended.set()
