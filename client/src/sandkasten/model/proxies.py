"""The proxy that an environment names for an address. Pure.

Chosen here and not by the HTTP libraries: a library that trusts the environment also reads
passwords from `~/.netrc`, and ours come from settings.
"""

from __future__ import annotations

import base64
from dataclasses import field
from typing import TYPE_CHECKING, TypedDict
from urllib.parse import unquote, urlsplit

# Missing from the stubs; `proxy_bypass` does not take `proxies` on every system.
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Proxy:
    url: str
    """Without the login."""
    authorization: str | None = field(default=None, repr=False)
    """Value of the header Proxy-Authorization."""


class ProxyArguments(TypedDict, total=False):
    """Arguments of an aiohttp request; empty if it needs no proxy."""

    proxy: str
    proxy_headers: dict[str, str]


def proxies_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the proxies by scheme, and the exceptions under `no`, as `getproxies` does."""
    proxies = {
        name.lower().removesuffix("_proxy"): value
        for name, value in environ.items()
        if name.lower().endswith("_proxy") and value
    }
    # The lower-case name wins, also if it is empty.
    for name, value in environ.items():
        if name.endswith("_proxy"):
            proxies.pop(name.removesuffix("_proxy"), None)
            if value:
                proxies[name.removesuffix("_proxy")] = value
    return proxies


def proxy_for(url: str, proxies: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for a URL; None if it is reached directly, as this machine always is."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or proxy_bypass_environment(host, dict(proxies)):
        return None
    address = proxies.get(parts.scheme)
    if not address:
        return None
    proxy = urlsplit(address if "://" in address else f"http://{address}")
    bare = proxy._replace(netloc=proxy.netloc.rpartition("@")[2]).geturl()
    if proxy.username is None:
        return Proxy(bare)
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return Proxy(bare, "Basic " + base64.b64encode(login.encode()).decode())


def proxy_arguments(url: str, proxies: Mapping[str, str]) -> ProxyArguments:
    """Return what an aiohttp request must be given to use the proxy for a URL."""
    proxy = proxy_for(url, proxies)
    if proxy is None:
        return {}
    if proxy.authorization is None:
        return {"proxy": proxy.url}
    # aiohttp sends it only to the proxy, as Proxy-Authorization.
    return {"proxy": proxy.url, "proxy_headers": {"Authorization": proxy.authorization}}
