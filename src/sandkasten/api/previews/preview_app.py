"""Serve previews: requests whose Host names a port of a sandbox. They never reach an API route.

Errors are HTML pages for browsers. The server inside is hostile, as in `api.proxy`. Its pages have
an origin of their own, so they may have cookies, storage and scripts, but reach no other origin.
"""

from __future__ import annotations

import asyncio
import logging
import time
from html import escape
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketState

from sandkasten.api.error_responses import CutShort, status_of, unforeseen
from sandkasten.api.previews.preview_access import (
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
from sandkasten.api.proxy.port_proxy import Target, forward
from sandkasten.api.proxy.port_proxy_ws import tunnel
from sandkasten.api.request.http_call import Call
from sandkasten.api.request.key_recheck import Held
from sandkasten.api.request.request_body import ClientLeft
from sandkasten.api.request.request_log import log_request
from sandkasten.errors import Busy, NotFound, SandkastenError, SessionNotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import HTTPConnection
    from starlette.types import Receive, Scope, Send

    from sandkasten.api.server_context import Server

log = logging.getLogger("sandkasten.api")
ROUTE: Final = "preview"
_POLICY_VIOLATION: Final = 1008
# Sandboxes that are looked up at once: every client can guess names, and a database has a limited
# number of connections, which requests with a key need.
_LOOKUPS: Final = 2
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
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

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lookups = asyncio.Semaphore(_LOOKUPS)

    def covers(self, name: str) -> bool:
        """Return whether a host name belongs to previews, and so to no API route."""
        previews, allowed = self._server.previews, self._server.rules.allowed_hosts
        domain = previews.domain_of(name) if previews is not None else _local_domain(name)
        # The API may have a name there that the operator chose, but never one of this form.
        return domain not in (None, name) and not (name in allowed and not name[:1].isdigit())

    async def serve(
        self,
        name: str,
        connection: HTTPConnection,
        headers: Mapping[str, str],
        request_id: str,
        receive: Receive,
        send: Send,
    ) -> None:
        began, answer, held = time.perf_counter(), _Answer(send), None
        scope = connection.scope
        method = "WS" if isinstance(connection, WebSocket) else str(scope["method"])
        error: SandkastenError | None = None
        try:
            if self._server.draining:
                raise Busy("the daemon is shutting down", hint="try again")
            entry = await self._entry(name, method, scope, headers)
            assert self._server.previews is not None
            admitted = await self._server.previews.admit(entry, self._server.doorkeeper)
            if isinstance(admitted, Exchange):
                await self._exchanged(admitted, scope)(scope, receive, answer)
                return
            if self._server.previews.resume is not None:
                await self._server.previews.resume(entry.target.sandbox_id)
            held = Held(admitted.recheck)
            call = Call(self._server, connection, self._server.doorkeeper.stranger, request_id)
            target = self._target(entry, scope)
            if isinstance(connection, WebSocket):
                await tunnel(call, connection, entry.target.sandbox_id, target)
            else:
                response = await forward(call, entry.target.sandbox_id, target)
                await response(scope, receive, answer)
        except ClientLeft:
            return
        except SandkastenError as exc:
            is_unknown = isinstance(exc, SessionNotFound)
            error = unknown_preview() if is_unknown else exc
            gone = self._gone(name) if is_unknown else None
            await _fail(error, connection, answer, receive, gone)
        except asyncio.CancelledError:
            if held is None or held.lost is None:
                raise
            error = held.lost
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            await _fail(error, connection, answer, receive)
        except Exception as exc:
            log.exception("request.failed", extra={"request_id": request_id})
            error = unforeseen(exc)
            await _fail(error, connection, answer, receive)
        finally:
            if held is not None:
                held.end()
            self._note(method, connection, answer, time.perf_counter() - began, request_id, error)

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

    def _note(
        self,
        method: str,
        connection: HTTPConnection,
        answer: _Answer,
        seconds: float,
        request_id: str,
        error: SandkastenError | None,
    ) -> None:
        status = answer.status
        if isinstance(connection, WebSocket):
            if connection.application_state is not WebSocketState.CONNECTING:
                status = status or 101
        elif self._server.events is not None:
            self._server.events.emit(
                "http.answered",
                {
                    "method": method if method in _METHODS else "other",
                    "route": ROUTE,
                    "status": f"{status // 100}xx",
                    "seconds": seconds,
                },
            )
        log_request(
            method=method,
            route=ROUTE,
            status=status,
            seconds=seconds,
            request_id=request_id,
            key_id=None,
            tenant=None,
            code=None if error is None else error.code,
        )


class _Answer:
    """Remembers whether a response has started."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.began = False
        self.status = 0

    async def __call__(self, message: Any) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self.began = True
            self.status = message["status"]
        await self._send(message)


async def _fail(
    error: SandkastenError,
    connection: HTTPConnection,
    answer: _Answer,
    receive: Receive,
    gone: Response | None = None,
) -> None:
    if isinstance(connection, WebSocket):
        if connection.application_state is WebSocketState.CONNECTED:
            await connection.close(_POLICY_VIOLATION, error.message[:100])
        elif connection.application_state is WebSocketState.CONNECTING:
            await _refuse_websocket(page(error, html=False, gone=gone), answer)
        return
    if answer.began:
        raise CutShort from error
    html = "text/html" in connection.headers.get("accept", "")
    await page(error, html=html, gone=gone)(connection.scope, receive, answer)


async def _refuse_websocket(body: Response, answer: _Answer) -> None:
    await answer(
        {
            "type": "websocket.http.response.start",
            "status": body.status_code,
            "headers": [(b"content-type", b"text/plain; charset=utf-8")],
        }
    )
    await answer({"type": "websocket.http.response.body", "body": bytes(body.body)})


def page(error: SandkastenError, *, html: bool, gone: Response | None = None) -> Response:
    """Return an error as a page for people: HTML for browsers, text for other clients.

    With `gone`, its status, and other clients get it.
    """
    headers = dict(_PAGE_HEADERS)
    status = status_of(error) if gone is None else gone.status_code
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="sandkasten"'
    if status == 503:
        headers["Retry-After"] = "1"
    if not html and gone is not None:
        gone.headers.update(headers)
        return gone
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


def _local_domain(name: str) -> str | None:
    return "localhost" if name.removesuffix(".").endswith(".localhost") else None


def _uses_tls(scope: Scope) -> bool:
    """Return whether the browser uses TLS: always for the domain, also if a proxy ends it."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    is_local = host.partition(b":")[0].rstrip(b".").lower().endswith(b".localhost")
    return scope.get("scheme") in ("https", "wss") or not is_local
