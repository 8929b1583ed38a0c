"""Serve previews: requests whose Host names a port of a sandbox. They never reach an API route.

Errors are HTML pages for browsers. The server inside is hostile, as in `api.proxy`. Its pages have
their own origin, so they may have cookies, storage and scripts, but reach no other origin.
"""

from __future__ import annotations

import asyncio
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Final

from starlette.responses import Response
from starlette.websockets import WebSocket

from sandkasten.errors import Busy, NotFound, SessionNotFound
from sandkasten_server.api.error_responses import error_headers, status_of
from sandkasten_server.api.previews.preview_access import (
    Entry,
    Exchange,
    clean_location,
    cookie_header,
    cookies_of,
    holds_key,
    preview_target,
    unknown_preview,
    without_token,
)
from sandkasten_server.api.proxy.port_proxy import Target, forward
from sandkasten_server.api.proxy.port_proxy_ws import tunnel
from sandkasten_server.api.request.http_call import Call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Scope

    from sandkasten.errors import SandkastenError
    from sandkasten_server.api.request.request_lifecycle import ActiveRequest, Requests
    from sandkasten_server.api.server_context import Server

ROUTE: Final = "preview"
_REQUEST_ID: Final = "X-Request-Id"
# Sandboxes that are looked up at once: every client can guess names, and a database has a limited
# number of connections, which requests with a key need.
_LOOKUPS: Final = 2
_PAGE: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;margin:4rem auto;max-width:40rem;padding:0 1rem}}
code{{background:#eee;padding:.1em .3em}}</style>
<h1>{title}</h1><p>{message}</p><p>Hint: {hint}</p>
"""
_PAGE_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PreviewApp:
    """Part of the ASGI application."""

    def __init__(self, server: Server, requests: Requests) -> None:
        self._server = server
        self._requests = requests
        self._lookups = asyncio.Semaphore(_LOOKUPS)

    async def serve(self, name: str, active: ActiveRequest, headers: Mapping[str, str]) -> None:
        active.route, active.is_proxied = ROUTE, True
        # A response is that of the server inside, or a page with its own headers.
        active.added_headers = ()
        html = active.method != "WS" and "text/html" in headers.get("accept", "")
        active.problem = partial(self._problem, name, html)
        await self._requests.serve(active, partial(self._handle, name, headers))

    async def _handle(self, name: str, headers: Mapping[str, str], active: ActiveRequest) -> None:
        server, connection = self._server, active.connection
        scope, previews = connection.scope, server.previews
        if server.draining:
            raise Busy("the daemon is shutting down", hint="try again")
        entry = await self._entry(name, active.method, scope, headers)
        assert previews is not None
        admitted = await previews.admit(entry, server.doorkeeper)
        if isinstance(admitted, Exchange):
            answer = self._exchanged(admitted, scope)
            answer.headers[_REQUEST_ID] = active.request_id
            await active.respond(answer)
            return
        if admitted.principal is not None:
            self._requests.admitted(active, admitted.principal)
        if previews.resume is not None:
            await previews.resume(entry.target.sandbox_id)
        self._requests.hold(active, admitted.recheck)
        call = Call(server, connection, server.doorkeeper.stranger, active.request_id)
        target = self._target(entry, scope)
        if isinstance(connection, WebSocket):
            await tunnel(call, connection, entry.target.sandbox_id, target)
        else:
            await active.respond(await forward(call, entry.target.sandbox_id, target))

    def _problem(self, name: str, html: bool, error: SandkastenError, request_id: str) -> Response:
        gone_response = None
        if isinstance(error, SessionNotFound):
            error, gone_response = unknown_preview(), self._gone(name)
        answer = page(error, html=html, gone_response=gone_response)
        answer.headers[_REQUEST_ID] = request_id
        return answer

    def _gone(self, name: str) -> Response | None:
        previews = self._server.previews
        return None if previews is None else previews.gone_answer(name)

    async def _entry(
        self, name: str, method: str, scope: Scope, headers: Mapping[str, str]
    ) -> Entry:
        previews = self._server.previews
        domain = None if previews is None else previews.domain_of(name)
        if domain is None:
            raise unknown_preview()
        target = preview_target(name, domain)
        return Entry(
            target=target,
            owner=await self._server.engine.owner(target.sandbox_id, self._lookups),
            method=method,
            headers=headers,
            cookies=cookies_of(scope["headers"], tls=_uses_tls(scope)),
            query=_query(scope),
        )

    def _target(self, entry: Entry, scope: Scope) -> Target:
        query = without_token(entry.query)
        path = _path(scope) + (b"?" + query if query else b"")
        keyed = holds_key(entry.headers, self._server.doorkeeper)
        return Target(
            entry.target.port,
            path.decode("latin-1"),
            "",
            own_origin=True,
            keyed=keyed,
            tls=_uses_tls(scope),
            host=self._server.previews.host_of(entry.target) if self._server.previews else None,
        )

    def _exchanged(self, exchange: Exchange, scope: Scope) -> Response:
        assert self._server.previews is not None
        headers = {
            **_PAGE_HEADERS,
            "Location": clean_location(_path(scope), _query(scope)),
            "Set-Cookie": cookie_header(
                exchange, tls=_uses_tls(scope), now=self._server.clock.now()
            ),
        }
        return Response(status_code=303, headers=headers)


def page(error: SandkastenError, *, html: bool, gone_response: Response | None = None) -> Response:
    """Return an error as a page for people: HTML for browsers, text for other clients.

    With `gone_response`, its status, and other clients get it.
    """
    status = status_of(error) if gone_response is None else gone_response.status_code
    headers = {**_PAGE_HEADERS, **error_headers(error, status)}
    if not html and gone_response is not None:
        gone_response.headers.update(headers)
        return gone_response
    if not html:
        text = f"{error.message}\nhint: {error.hint}\n"
        return Response(text, status, headers, media_type="text/plain")
    title = "Not found" if isinstance(error, NotFound) else f"Error {status}"
    fields = {"title": title, "message": error.message, "hint": error.hint or "try again"}
    text = _PAGE.format(**{name: escape(value) for name, value in fields.items()})
    return Response(text, status, headers, media_type="text/html")


def _path(scope: Scope) -> bytes:
    raw: bytes = scope["raw_path"]
    path = raw.split(b"?", 1)[0].split(b"#", 1)[0]
    return path if path.startswith(b"/") else b"/" + path


def _query(scope: Scope) -> bytes:
    query: bytes = scope["query_string"]
    return query.split(b"#", 1)[0]


def _uses_tls(scope: Scope) -> bool:
    """Return whether the browser uses TLS: always for the domain, also if a proxy ends it."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    is_local = host.partition(b":")[0].rstrip(b".").lower().endswith(b".localhost")
    return scope.get("scheme") in ("https", "wss") or not is_local
