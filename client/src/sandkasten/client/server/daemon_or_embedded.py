"""The choice of a server, the same for the SDK and the command line.

A daemon that is named (url, SANDKASTEN_URL) is always used. Otherwise the daemon that serves the
same data directory is, by its socket there; without one the engine of this process does the work.
The name "embedded" in place of a URL stands for the last, whether a daemon runs or not.
"""

from __future__ import annotations

import os
import socket
from dataclasses import field
from os import PathLike, fspath
from typing import Final
from urllib.parse import quote

from sandkasten.errors import BackendUnavailable, InvalidRequest
from sandkasten.lazy_dataclass import dataclass

# A listening socket accepts a connection at once, even if the daemon is busy.
ANSWER_S: Final = 0.5
EMBEDDED: Final = "embedded"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server: a daemon's address, or the data directory of an engine in this process.

    None leaves it to environment, file and default.
    """

    data_dir: str | None = None
    backend: str | None = None
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    tenant: str | None = None
    """Whom an operator acts for; a key's own tenant by default."""
    embedded: bool = False
    """Use this process even if a daemon serves the data directory."""

    def flags(self) -> dict[str, str]:
        options = {"data_dir": self.data_dir, "backend": self.backend}
        return {name: value for name, value in options.items() if value is not None}


def place_of(
    data_dir: str | PathLike[str] | None = None,
    backend: str | None = None,
    url: str | None = None,
    api_key: str | None = None,
) -> ServerAddress:
    """Return the server that arguments or the environment name; arguments win."""
    named = os.environ.get("SANDKASTEN_URL") or None
    if url is None and (data_dir is None or named == EMBEDDED):
        url = named
    embedded = url == EMBEDDED
    if embedded:
        url = None
    if url is not None and data_dir is not None:
        raise InvalidRequest(
            "url and data_dir exclude each other",
            hint="url is for a daemon, data_dir for sandboxes of this process; give one of them",
            field="url",
        )
    tenant = os.environ.get("SANDKASTEN_TENANT") or None
    if url is None:
        if api_key is not None:
            raise InvalidRequest(
                "api_key requires url",
                hint="give the daemon's address as url, or in SANDKASTEN_URL",
                field="api_key",
            )
        directory = None if data_dir is None else fspath(data_dir)
        return ServerAddress(directory, backend, tenant=tenant, embedded=embedded)
    if api_key is None and not url.startswith("unix:"):
        # A process that can open the socket has the operator's rights; a key only reduces them.
        api_key = os.environ.get("SANDKASTEN_API_KEY") or None
    return ServerAddress(url=url, api_key=api_key, tenant=tenant)


def find_server(place: ServerAddress) -> ServerAddress:
    """Return the daemon that serves the data directory, if one answers; otherwise `place`.

    Blocks for a moment: it reads the settings and tries the socket.
    """
    if place.url is not None or place.embedded:
        return place
    from sandkasten.client.server.embedded import daemon_socket

    try:
        path = daemon_socket(place)
    except BackendUnavailable:
        # There is no engine here that could have a data directory; opening it fails with the
        # reason.
        return place
    if not answers(path):
        return place
    return ServerAddress(url=f"unix://{quote(path)}", tenant=place.tenant)


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


def no_tenant(place: ServerAddress) -> None:
    """Refuse SANDKASTEN_TENANT without a daemon: there is only one tenant here."""
    if place.tenant is not None:
        raise InvalidRequest(
            "SANDKASTEN_TENANT requires a daemon",
            hint="give its address with --url or SANDKASTEN_URL, or unset the variable",
            field="tenant",
        )
