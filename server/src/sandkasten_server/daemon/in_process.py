"""A daemon started by this process, and what the command line asks of its data directory.

The door of the command line to the daemon: the modules of a daemon are imported when they are
needed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.client.server.embedded import require_linux, settings, with_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandkasten.client.server.daemon_or_embedded import ServerAddress
    from sandkasten_runtime.assembly.settings.resolver import Settings


def serve(flags: Mapping[str, str], announce: Callable[[str], None]) -> None:
    """Run a daemon in this process until a signal ends it. `announce` receives one line when the
    daemon is ready.
    """
    require_linux()
    from sandkasten_runtime.assembly.settings.resolver import load
    from sandkasten_server.daemon.serve import run

    run(load(flags, os.environ, Path.cwd()), announce)


def authority(place: ServerAddress) -> str:
    """Return the certificate of the authority that a daemon of this data directory has made."""
    loaded = settings(place)
    from sandkasten_server.daemon.http.local_authority import certificate_in_use

    return certificate_in_use(loaded)


def settings_in_force(flags: Mapping[str, str]) -> Settings:
    """Return the settings for a daemon elsewhere; this machine need not be Linux."""
    from sandkasten_runtime.assembly.settings.resolver import load

    return with_warnings(load(flags, os.environ, Path.cwd()))
