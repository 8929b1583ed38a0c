"""Addresses of daemons: `http://host:port`, `https://…` or `unix:///path/daemon.sock`. Pure."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass

_HINT = "say http://host:8080, https://host or unix:///path/daemon.sock"


@dataclass(frozen=True, slots=True)
class Address:
    base: str
    """What every path is added to; never ends with a slash."""
    socket: str | None = None
    """The Unix socket to go through instead of the network."""
    shown: str = ""


def address_of(url: str) -> Address:
    """Parse an address; InvalidRequest if it is invalid. A password would end up in logs."""
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        raise InvalidRequest(
            f"{url[:200]!r} is not a valid daemon URL", hint=_HINT, field="url"
        ) from None
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest(
            "the URL contains a user name or a password",
            hint="give the key as api_key",
            field="url",
        )
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        # The name is only there because HTTP wants one: a listener on a socket is local.
        return Address("http://localhost", socket=unquote(parts.path), shown=url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok:
        raise InvalidRequest(f"{url[:200]!r} is not a valid daemon URL", hint=_HINT, field="url")
    if parts.query or parts.fragment:
        raise InvalidRequest(f"{url[:200]!r} is not a valid daemon URL", hint=_HINT, field="url")
    return Address(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", shown=url)
