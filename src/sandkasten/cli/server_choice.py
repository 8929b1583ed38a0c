"""The choice between a daemon and this process.

A named daemon (--url, SANDKASTEN_URL) is always used. Otherwise the daemon that serves the same
data directory is, by its socket there; without one the command runs in this process.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, Final

from sandkasten.client.server.server_pool import ServerAddress, place_of
from sandkasten.errors import InvalidRequest

if TYPE_CHECKING:
    from sandkasten.cli.state import State

# A listening socket accepts a connection at once, even if the daemon is busy.
ANSWER_S: Final = 0.5


def whom(state: State) -> ServerAddress:
    if state.embedded:
        if state.url is not None:
            raise InvalidRequest("--url and --embedded exclude each other", hint="pass one of them")
        # Explicit, so that SANDKASTEN_URL is ignored.
        tenant = os.environ.get("SANDKASTEN_TENANT") or None
        return ServerAddress(str(_settings(state).data_dir), state.backend, tenant=tenant)
    named = place_of(state.data_dir, state.backend, state.url, state.api_key)
    if named.url is not None:
        return named
    path = str(_settings(state).http.socket)
    return ServerAddress(url=f"unix://{path}", tenant=named.tenant) if answers(path) else named


def answers(path: str) -> bool:
    """Return whether a daemon listens there and this user may connect."""
    if not os.path.exists(path):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(ANSWER_S)
        try:
            probe.connect(path)
        except OSError:
            # The daemon was killed, or the socket belongs to another user.
            return False
        return True


def _settings(state: State) -> Any:
    from sandkasten.client.server.embedded import settings

    return settings(state.here)
