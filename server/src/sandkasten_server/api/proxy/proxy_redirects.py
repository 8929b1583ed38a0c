"""Redirects of a server inside a sandbox: to itself, or to another server than the daemon.

A client follows a redirect on our origin with its key and its method: without this check a server
inside could make it call any route of the daemon. Invalid addresses are dropped.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOOPBACK: Final = "localhost"
_WEB: Final = frozenset({"http", "https"})
# Which of them a port is that was left out depends on what the client used.
_USUAL_PORTS: Final = frozenset({None, 80, 443})
# A control character; or a scheme of the web without two slashes and a host.
_UNCLEAR: Final = re.compile(r"[\x00-\x1f\x7f]|\A(?i:https?):(?!//[^/?#])")
# Clients disagree on everything else: percent-encoding, other scripts, empty labels.
_AUTHORITY: Final = re.compile(
    r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?)(?::([0-9]{0,9}))?"
)
_PLAIN: Final = re.compile(rf"(?:(?i:https?):)?//{_AUTHORITY.pattern}(?=[/?#]|\Z)")
# A host whose last label is one of these is an IPv4 address for browsers: `127.1`, `0x7f000001`.
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")


def kept_inside(
    location: str, *, port: int, path: str, prefix: str, own_addresses: Iterable[str], scheme: str
) -> str | None:
    """Return `location` as the client should see it; None if its target is unclear.

    `port` and `path` are what the inner server was asked, `prefix` precedes them on our side.
    `own_addresses` are the hosts and ports of the daemon: the Host header of the request and the
    address that accepted it. `scheme` is what the client used, as far as we know: a proxy in front
    may have ended its TLS.
    """
    stripped = location.strip(" \t")
    # As browsers read it: they take a backslash for a slash.
    plain = stripped.replace("\\", "/")
    # They drop tabs, and they and other clients disagree on `https:/x`: a path, or the host `x`.
    if _UNCLEAR.search(plain):
        return None
    try:
        parts = urlsplit(urljoin(f"{scheme}://localhost:{port}{path}", plain))
        if parts.scheme not in _WEB:
            return location
        host, target_port = _origin(parts.netloc.rpartition("@")[2])
    except ValueError:
        return None
    names = {_LOOPBACK}
    ports: set[int | None] = {port}
    all_known = True
    for address in own_addresses:
        try:
            our_host, our_port = _origin(address)
        except ValueError:
            all_known = False
        else:
            names.add(our_host)
            ports.add(our_port)
    if ports & _USUAL_PORTS:
        ports |= _USUAL_PORTS
    if host not in names or target_port not in ports:
        return location if all_known and _PLAIN.match(stripped) else None
    query = f"?{parts.query}" if parts.query else ""
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    return prefix + _without_dots(parts.path) + query + fragment


def _origin(authority: str) -> tuple[str, int | None]:
    """Return the canonical host and the port; ValueError unless the host has its usual form."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise ValueError(authority)
    return _canonical(match[1].lower().removesuffix(".")), int(match[2]) if match[2] else None


def _canonical(host: str) -> str:
    """Return one spelling per host, the same one for all of this machine's loopback."""
    address: IPv4Address | IPv6Address
    if host.startswith("["):
        address = IPv6Address(host[1:-1])
        address = address.ipv4_mapped or address
    elif _NUMBER.fullmatch(host.rpartition(".")[2]):
        # Four decimal numbers without leading zeros, nothing else.
        address = IPv4Address(host)
    else:
        return _LOOPBACK if host.endswith(".localhost") else host
    return _LOOPBACK if address.is_loopback or address.is_unspecified else str(address)


def _without_dots(path: str) -> str:
    steps: list[str] = []
    names = path.split("/")[1:]
    for name in names:
        plain = name.lower().replace("%2e", ".")
        if plain == "..":
            del steps[-1:]
        elif plain != ".":
            steps.append(name)
    last = names[-1].lower().replace("%2e", ".") if names else ""
    if last in (".", ".."):
        steps.append("")
    return "/" + "/".join(steps)
