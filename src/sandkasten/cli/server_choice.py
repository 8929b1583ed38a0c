"""Who does what the command line asks: a daemon, or this process.

A daemon that was named (--url, SANDKASTEN_URL) is asked and nobody else. Otherwise one that serves
the same data directory is, by its socket there; without one, this process does the work itself.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, Final

from sandkasten.client.server.server_pool import Place, place_of
from sandkasten.errors import InvalidRequest

if TYPE_CHECKING:
    from sandkasten.cli.state import State

# A listening socket takes a connection at once, busy or not.
ANSWER_S: Final = 0.5


def whom(state: State) -> Place:
    if state.embedded:
        if state.url is not None:
            raise InvalidRequest("--url and --embedded exclude each other", hint="say one of them")
        # Named, so that SANDKASTEN_URL does not count.
        tenant = os.environ.get("SANDKASTEN_TENANT") or None
        return Place(str(_settings(state).data_dir), state.backend, tenant=tenant)
    named = place_of(state.data_dir, state.backend, state.url, state.api_key)
    if named.url is not None:
        return named
    path = str(_settings(state).http.socket)
    return Place(url=f"unix://{path}", tenant=named.tenant) if answers(path) else named


def answers(path: str) -> bool:
    """Whether a daemon listens there, for us."""
    if not os.path.exists(path):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(ANSWER_S)
        try:
            probe.connect(path)
        except OSError:
            # Nobody there (a daemon was killed), or not for us (another user's).
            return False
        return True


def _settings(state: State) -> Any:
    from sandkasten.client.server.embedded import settings

    return settings(state.here)
