"""What says how the daemon is: alive, ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.api.printing import answer
from sandkasten.api.routing import Answer, Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten.api.call import Call


class Health(Answer):
    status: str
    version: str


async def healthz(call: Call) -> Response:
    return answer({"status": "ok", "version": call.server.version})


ROUTES = (
    Route(
        "GET", "/healthz", healthz, "Whether the daemon lives", "system", scope=None, answer=Health
    ),
)
