"""Where a server inside a sandbox may send whoever asked it: to itself, or away from us.

A client follows a redirect with the key it came with, as long as it stays on our origin, and with
the method it had: without this a server inside could have it ask anything of the daemon. Knows
addresses only; what is none is dropped.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urljoin, urlsplit

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_PORTS: Final = {"http": 80, "https": 443}


def kept_inside(location: str, *, port: int, path: str, prefix: str, ours: str) -> str | None:
    """`location` as the client should see it; None when it cannot be told where it leads.

    `port` and `path` are what the server inside was asked, `prefix` what stands before them on
    our side, `ours` the Host header we were asked by.
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
