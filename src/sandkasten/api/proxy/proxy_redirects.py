"""Redirects of a server inside a sandbox: to itself, or away from the daemon.

A client follows a redirect on our origin with its key and its method: without this check a server
inside could make it call any route of the daemon. Invalid addresses are dropped.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urljoin, urlsplit

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_WEB: Final = frozenset({"http", "https"})
# Which of them a port is that was left out depends on what the client used.
_USUAL_PORTS: Final = frozenset({None, 80, 443})
# A control character; or a scheme of the web without two slashes and a host.
_UNCLEAR: Final = re.compile(r"[\x00-\x1f\x7f]|\A(?i:https?):(?!//[^/?#])")


def kept_inside(
    location: str, *, port: int, path: str, prefix: str, ours: str, scheme: str
) -> str | None:
    """Return `location` as the client should see it; None if its target is unclear.

    `port` and `path` are what the inner server was asked, `prefix` precedes them on our side.
    `ours` is the Host header of the request and `scheme` what the client used, as far as we know:
    a proxy in front may have ended its TLS.
    """
    # As browsers read it: they take a backslash for a slash.
    plain = location.strip(" \t").replace("\\", "/")
    # They drop tabs, and they and other clients disagree on `https:/x`: a path, or the host `x`.
    if _UNCLEAR.search(plain):
        return None
    try:
        parts = urlsplit(urljoin(f"{scheme}://localhost:{port}{path}", plain))
        here = urlsplit(f"//{ours}")
        if parts.scheme not in _WEB:
            return location
        if not parts.hostname:
            return None
        known = {port, here.port}
        if known & _USUAL_PORTS:
            known |= _USUAL_PORTS
        if parts.hostname not in _LOOPBACK | {here.hostname} or parts.port not in known:
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
