"""Checks of the Host and Origin headers.

A page in a browser can reach loopback addresses and, by DNS rebinding, talk to the daemon as if it
were its own server; it cannot choose its Host and Origin headers. So foreign ones are refused, also
for WebSockets, for which browsers ask no permission.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sandkasten.errors import InvalidRequest, PolicyDenied
from sandkasten.model.access.preview_links import LOCAL_DOMAIN

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, MutableMapping

    from sandkasten_server.api.http_limits import HttpLimits
    from sandkasten_server.api.route import Route

_NAME = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s@/?#\\:\[\],]+)(:\d{0,5})?\Z")
NAMED_HOST = "sandkasten.named_host"
"""The key in a scope of a Host that another protocol has recognised as its own."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


# Two of one of these would leave it to chance which of them counts.
_ONCE = frozenset(
    {
        "host", "origin", "authorization", "content-type", "content-length",
        "x-sandkasten-tenant", "x-api-key", "x-access-token", "e2b-sandbox-id",
    }
)  # fmt: skip


class PreviewHosts:
    """The host names that belong to previews, and so to no API route."""

    def __init__(self, *domains: str) -> None:
        self._endings = tuple(f".{domain}" for domain in domains)
        self._rooted = frozenset(f"{domain}." for domain in domains)

    def covers(self, name: str, allowed: Container[str]) -> bool:
        """Return whether a name in lower case is one of them. `allowed`: names of the API."""
        if not name.removesuffix(".").endswith(self._endings) and name not in self._rooted:
            return False
        # The API may have a name there that the operator chose, but never one of this form.
        return name not in allowed or name[:1].isdigit()


LOCAL_PREVIEWS = PreviewHosts(LOCAL_DOMAIN)


def plain_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by name, the first of each; a repeated Host or Origin counts as empty."""
    headers: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("latin-1")
        if key not in headers:
            headers[key] = value.decode("latin-1")
        elif key in _ONCE:
            headers[key] = ""
    return headers


def check_origin(
    headers: Mapping[str, str], rules: HttpLimits, scope: MutableMapping[str, Any]
) -> None:
    host = headers.get("host")
    name = host_name(host)
    if name is None:
        raise InvalidRequest("the request has no Host header", hint="send one")
    if not _known(name, rules, scope):
        raise PolicyDenied(
            "the Host header names another server",
            hint="use the address the daemon listens on, or add the name to http.allowed_hosts",
            http_status=421,
        )
    origin = headers.get("origin")
    if origin is None and _is_from_other_page(headers):
        # A page can suppress Referer, and cannot choose it.
        origin = headers.get("referer", "")
    if origin is not None and not _same(origin, host, rules):
        raise PolicyDenied(
            "requests from another origin are not allowed",
            hint="add its origin to http.allowed_origins",
        )


def _is_from_other_page(headers: Mapping[str, str]) -> bool:
    """Return whether a page of another origin caused the request, and it is not a navigation.

    Images and scripts are requested without an Origin header. A page that the port proxy serves
    has its own origin too, but its Referer names the daemon.
    """
    if headers.get("sec-fetch-site") not in ("cross-site", "same-site"):
        return False
    return (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) != (
        "navigate",
        "document",
    )


def check_type(headers: Mapping[str, str], route: Route) -> None:
    """Refuse forms and plain text as JSON: any page can send them without permission."""
    if route.body is None and not route.reads_body:
        return
    length = headers.get("content-length")
    if not route.body_required and length in (None, "0") and "transfer-encoding" not in headers:
        return
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if "*/*" not in route.takes and content_type not in route.takes:
        raise InvalidRequest(
            f"the content type of the body is {content_type[:80] or 'missing'}",
            hint="send Content-Type: " + " or ".join(route.takes),
            http_status=415,
        )


def _known(name: str, rules: HttpLimits, scope: MutableMapping[str, Any]) -> bool:
    if name in LOOPBACK or "*" in rules.allowed_hosts or name in rules.allowed_hosts:
        return True
    if name == scope.get(NAMED_HOST):
        return True
    server = scope.get("server")
    # The very address that was connected to: a rebound name is a name, never an address.
    return server is not None and name == server[0]


def _same(origin: str, host: str | None, rules: HttpLimits) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    if {origin, f"{parts.scheme}://{parts.netloc}"} & set(rules.allowed_origins):
        return True
    return parts.scheme in ("http", "https") and parts.netloc.lower() == (host or "").lower()


def host_name(host: str | None) -> str | None:
    """Return the name in a Host header, in lower case; None if it is malformed."""
    # Nothing but a name and a port: a Host header has no other part of an address.
    if not host or not _NAME.match(host):
        return None
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
