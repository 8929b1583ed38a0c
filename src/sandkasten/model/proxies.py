"""Which proxy the environment names for an address, as our HTTP clients are told it.

Read from the environment (`http_proxy`, `https_proxy`, `no_proxy`) and nowhere else: a library that
is told to trust the environment also looks for passwords in `~/.netrc`, and ours come by settings.
"""

from __future__ import annotations

import base64
import urllib.request
from typing import Final, TypedDict
from urllib.parse import unquote, urlsplit

# A proxy is for other machines.
LOCAL: Final = ("localhost", "127.0.0.1", "::1")


class Proxy(TypedDict, total=False):
    """Arguments of a request; none of them where it goes straight."""

    proxy: str
    proxy_headers: dict[str, str]


def proxy_of(url: str) -> Proxy:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in LOCAL or urllib.request.proxy_bypass(host):
        return {}
    told = urllib.request.getproxies().get(parts.scheme)
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
