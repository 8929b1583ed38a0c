"""Pause and resume a session, and reclaim its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import UnsupportedByBackend
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.route import Answer, Route
from sandkasten_server.api.routes.sessions import Session, session_fields
from sandkasten_server.api.routes.stats import BUSY

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten_server.api.request.http_call import Call


class Reclaimed(Answer):
    ok: bool
    bytes: int


async def pause(call: Call) -> Response:
    return answer(session_fields(await call.engine.pause(await call.session())))


async def resume(call: Call) -> Response:
    return answer(session_fields(await call.engine.resume(await call.session())))


async def reclaim(call: Call) -> Response:
    return answer({"ok": True, "bytes": await call.engine.reclaim(await call.session())})


_ERRORS = (*BUSY, UnsupportedByBackend)

ROUTES = (
    Route(
        "POST",
        "/v1/sessions/{id}/pause",
        pause,
        "Stop everything in a session until it is resumed",
        "sessions",
        answer=Session,
        errors=_ERRORS,
    ),
    Route(
        "POST",
        "/v1/sessions/{id}/resume",
        resume,
        "Resume a paused session",
        "sessions",
        answer=Session,
        errors=_ERRORS,
    ),
    Route(
        "POST",
        "/v1/sessions/{id}/reclaim",
        reclaim,
        "Reclaim memory of a session",
        "sessions",
        answer=Reclaimed,
        errors=_ERRORS,
    ),
)
