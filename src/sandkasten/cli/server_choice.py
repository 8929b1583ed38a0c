"""The choice between a daemon and this process.

A named daemon (--url, SANDKASTEN_URL) is always used. Otherwise the daemon that serves the same
data directory is, by its socket there; without one the command runs in this process.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sandkasten.client.server.daemon_or_embedded import ServerAddress, daemon_of, place_of
from sandkasten.errors import InvalidRequest

if TYPE_CHECKING:
    from sandkasten.cli.state import State


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
    return daemon_of(named, str(_settings(state).http.socket))


def _settings(state: State) -> Any:
    from sandkasten.client.server.embedded import settings

    return settings(state.here)
