"""The choice between a daemon and this process, with the global options.

The SDK chooses in the same way (`client.server.daemon_or_embedded`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.cli.exit_status import UsageError
from sandkasten.client.server.daemon_or_embedded import (
    EMBEDDED,
    ServerAddress,
    find_server,
    place_of,
)

if TYPE_CHECKING:
    from sandkasten.cli.state import State


def whom(state: State) -> ServerAddress:
    if state.embedded and state.url is not None:
        raise UsageError("--url and --embedded exclude each other", hint="pass one of them")
    url = EMBEDDED if state.embedded else state.url
    found = find_server(place_of(state.data_dir, state.backend, url, state.api_key))
    # Found to be this process once, it stays so for the rest of the command.
    return replace(found, embedded=found.url is None)
