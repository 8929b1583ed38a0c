"""Redirects of a server inside a sandbox: to itself, or away from the daemon.

A client follows a redirect on our origin with its key and its method: without this check a server
inside could make it call any route of the daemon. Invalid addresses are dropped.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urljoin, urlsplit

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_PORTS: Final = {"http": 80, "https": 443}


def kept_inside(location: str, *, port: int, path: str, prefix: str, ours: str) -> str | None:
    """Return `location` as the client should see it; None if its target is unclear.

    `port` and `path` are what the inner server was asked, `prefix` precedes them on our side,
    `ours` is the Host header of the request.
    """
    try:
        # As browsers read it: they take a backslash for a slash.
        parts = urlsplit(urljoin(f"http://localhost:{port}{path}", location.replace("\\", "/")))
        here = urlsplit(f"//{ours}")
        if parts.scheme not in _PORTS:
            return location
        there = parts.port or _PORTS[parts.scheme]
        known = {port, here.port} if here.port is not None else {port, *_PORTS.values()}
        if parts.hostname not in _LOOPBACK | {here.hostname} or there not in known:
            return location
    except ValueError:
        return None
    query = f"?{parts.query}" if parts.query else ""
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    return prefix + _without_dots(parts.path) + query + fragment


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
