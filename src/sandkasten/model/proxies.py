"""Which proxy an environment names for an address, as our HTTP clients are told it. Pure.

Found by ourselves: a library that is told to trust the environment looks for passwords in
`~/.netrc` too, and ours come by settings.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final, TypedDict
from urllib.parse import unquote, urlsplit

# Of which the stubs do not know; its sister takes no `proxies` on every system.
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from collections.abc import Mapping

# A proxy is for other machines.
LOCAL: Final = ("localhost", "127.0.0.1", "::1")


class Proxy(TypedDict, total=False):
    """Arguments of a request; none of them where it goes straight."""

    proxy: str
    proxy_headers: dict[str, str]


def proxy_of(url: str, proxies: Mapping[str, str]) -> Proxy:
    """`proxies` by scheme, and under `no` what goes straight, as `getproxies` has it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in LOCAL or proxy_bypass_environment(host, dict(proxies)):
        return {}
    told = proxies.get(parts.scheme)
    if not told:
        return {}
    proxy = urlsplit(told)
    if proxy.username is None:
        return {"proxy": told}
    who = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    bare = proxy._replace(netloc=proxy.netloc.rpartition("@")[2]).geturl()
    # aiohttp makes it the header by which a proxy is told, and tells it to nobody else.
    told_who = {"Authorization": "Basic " + base64.b64encode(who).decode()}
    return {"proxy": bare, "proxy_headers": told_who}
