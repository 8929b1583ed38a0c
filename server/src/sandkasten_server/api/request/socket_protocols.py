"""Credentials of WebSockets that a page opens.

A browser sends no Authorization header with a WebSocket, only names of subprotocols. A page offers
`sandkasten`, `sandkasten.bearer.<key>` and perhaps `sandkasten.tenant.<tenant>`, the last parts in
base64url, and the daemon chooses `sandkasten`. Instead of the key it may offer
`sandkasten.ticket.<ticket>`, from `api.dashboard`. Other routes than ours for terminals and tunnels
pass subprotocols on into the sandbox, so their credentials are never read from there.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from starlette.websockets import WebSocket

NAME: Final = "sandkasten"
_HEADER: Final = "sec-websocket-protocol"
_BEARER: Final = f"{NAME}.bearer."
_TENANT: Final = f"{NAME}.tenant."
_TICKET: Final = f"{NAME}.ticket."
# Far above a key and a token in base64.
_MAX_LENGTH: Final = 16_384


def with_credentials(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers with those that the subprotocols stand for; real headers win."""
    offered = headers.get(_HEADER, "")
    if NAME not in offered or len(offered) > _MAX_LENGTH:
        return headers
    return {**dict(_credentials(offered)), **headers}


def ticket_of(headers: Mapping[str, str]) -> str | None:
    """Return the ticket among the subprotocols."""
    offered = headers.get(_HEADER, "")
    if _TICKET not in offered or len(offered) > _MAX_LENGTH:
        return None
    names = (name.strip() for name in offered.split(","))
    return next((name.removeprefix(_TICKET) for name in names if name.startswith(_TICKET)), None)


def _credentials(offered: str) -> Iterator[tuple[str, str]]:
    for name in offered.split(","):
        protocol = name.strip()
        if protocol.startswith(_BEARER):
            # A value that is not valid is an empty key, which opens nothing.
            yield "authorization", f"Bearer {_decoded(protocol.removeprefix(_BEARER))}"
        elif protocol.startswith(_TENANT):
            yield "x-sandkasten-tenant", _decoded(protocol.removeprefix(_TENANT))


def _decoded(text: str) -> str:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return raw.decode("ascii")
    except (binascii.Error, ValueError):
        return ""


async def accept(websocket: WebSocket) -> None:
    """Accept a WebSocket; a page fails if none of the names that it offered is chosen."""
    offered: list[str] = websocket.scope.get("subprotocols") or []
    await websocket.accept(subprotocol=NAME if NAME in offered else None)
