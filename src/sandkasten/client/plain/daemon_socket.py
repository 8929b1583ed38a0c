"""Find and connect to the daemon that a command uses, without building the settings.

`daemon_or_embedded` has the whole rule; this is the part of it that needs neither settings nor
imports. `find` returns None if the whole rule has to decide: if there is a settings file, a
variable that is a setting, a URL that needs decoding, or a contradiction. A connection that fails
is not an error here.
"""

from __future__ import annotations

import os

# Not from typing, which takes longer to import than this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from socket import socket

_FILES = ("sandkasten.yaml", "/etc/sandkasten/sandkasten.yaml")
_PREFIXES = ("SANDKASTEN_", "STATION_SANDBOX_", "SANDBOX_")
# Variables that cannot make the settings invalid and cause no warning.
_HARMLESS = frozenset(
    {
        "SANDKASTEN_URL",
        "SANDKASTEN_TENANT",
        "SANDKASTEN_DATA_DIR",
        "SANDKASTEN_LONG",
    }
)
CONNECT_S = 10.0


class DaemonSocket:
    """A connection to a daemon, and how it was found; `connection` is None without a daemon."""

    __slots__ = ("api_key", "connection", "tenant", "url")

    def __init__(
        self, connection: socket | None, url: str | None, api_key: str | None, tenant: str | None
    ) -> None:
        self.connection = connection
        self.url = url
        self.api_key = api_key
        self.tenant = tenant


def find(
    environ: Mapping[str, str],
    *,
    data_dir: str | None = None,
    url: str | None = None,
    api_key: str | None = None,
    embedded: bool = False,
) -> DaemonSocket | None:
    """Connect to the daemon that these options and the environment name, if that is certain."""
    named = environ.get("SANDKASTEN_URL") or None
    tenant = environ.get("SANDKASTEN_TENANT") or None
    if embedded and url is not None:
        return None
    if embedded or url == "embedded" or (url is None and named == "embedded"):
        return None if api_key is not None else DaemonSocket(None, None, None, tenant)
    if url is None and data_dir is None:
        url = named
    if url is not None:
        path = url.removeprefix("unix://")
        if data_dir is not None or not url.startswith("unix:///") or not _is_plain(path):
            return None
        connection = connected(path)
        return None if connection is None else DaemonSocket(connection, url, api_key, tenant)
    if api_key is not None or not _defaults_alone(environ):
        return None
    directory = data_dir or environ.get("SANDKASTEN_DATA_DIR") or _default_directory(environ)
    path = os.path.join(os.path.abspath(directory), "daemon.sock")
    if not _is_plain(path):
        return None
    connection = connected(path) if os.path.exists(path) else None
    return DaemonSocket(connection, None if connection is None else f"unix://{path}", None, tenant)


def connected(path: str) -> socket | None:
    """Return a connection to the socket; None if nothing listens or access is denied."""
    from socket import AF_UNIX, socket

    connection = socket(AF_UNIX)
    connection.settimeout(CONNECT_S)
    try:
        connection.connect(path)
    except (OSError, ValueError):
        connection.close()
        return None
    connection.settimeout(None)
    return connection


def _is_plain(path: str) -> bool:
    """Return whether a path is written the same way in a URL."""
    return (
        path.isascii()
        and path.replace("/", "").replace("-", "").replace("_", "").replace(".", "").isalnum()
    )


def _defaults_alone(environ: Mapping[str, str]) -> bool:
    """Return whether no file and no variable sets or breaks anything but the data directory."""
    if environ.get("SANDKASTEN_CONFIG") or any(map(os.path.lexists, _FILES)):
        return False
    return not any(
        value
        for name, value in environ.items()
        if name.startswith(_PREFIXES)
        and name not in _HARMLESS
        and not name.startswith("SANDKASTEN_TEST_")
    )


def _default_directory(environ: Mapping[str, str]) -> str:
    if os.geteuid() == 0:
        return "/var/lib/sandkasten"
    state = environ.get("XDG_STATE_HOME")
    if state and state.startswith("/"):
        return os.path.join(state, "sandkasten")
    home = environ.get("HOME") or os.path.expanduser("~")
    return os.path.join(home, ".local/state/sandkasten")
