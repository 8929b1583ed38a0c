"""Cookies of a preview: the daemon's own stays outside, those of the inner server stay on its host.

A browser sends every cookie of a host name with every request to it. The inner server must not see
the one that opens its preview, nor set one for a parent domain, which other previews would get.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAIN_COOKIE: Final = "sandkasten_preview"
# A browser accepts the prefix only over TLS, for the host itself and with Path=/.
TLS_COOKIE: Final = "__Host-sandkasten_preview"
# Opens a preview as a cookie does, for clients that are not browsers.
TRAFFIC_HEADER: Final = "e2b-traffic-access-token"
_OWN: Final = frozenset({PLAIN_COOKIE.lower(), TLS_COOKIE.lower()})


def own_cookies(values: Iterable[str], *, tls: bool) -> list[str]:
    """Return the values of the daemon's own cookie among Cookie headers.

    A page of another preview may have set cookies of that name for the parent domain, and they may
    come first. Over TLS no page can set the name that is read. Elsewhere all are returned: the size
    of the headers bounds how many there are, and to check one takes microseconds.
    """
    name = TLS_COOKIE if tls else PLAIN_COOKIE
    pairs = (cookie.partition("=") for value in values for cookie in value.split(";"))
    return [value.strip() for key, _, value in pairs if key.strip() == name]


def without_own(value: str) -> str:
    """Return a Cookie header without the daemon's own cookie; empty if nothing is left."""
    cookies = (cookie.strip() for cookie in value.split(";") if _pair(cookie)[0] not in _OWN)
    return "; ".join(cookie for cookie in cookies if cookie)


def host_only(value: str) -> str | None:
    """Return a Set-Cookie header without its domain; None for the daemon's own cookie."""
    pair, *attributes = value.split(";")
    # A cookie without a name is sent as only its value, which may look like one with a name.
    if _pair(pair.strip().removeprefix("="))[0] in _OWN:
        return None
    rest = [attribute for attribute in attributes if _pair(attribute)[0] != "domain"]
    return ";".join([pair, *rest])


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip().lower(), value.strip()
