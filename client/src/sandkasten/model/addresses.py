"""Network addresses: whether one means this machine, whether one is public, and text without any.
Pure.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sandkasten.model import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable

# The same as in runner/src/egress/addresses.rs, which decides.
CLOSED_V4: Final = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32",
        "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24",
        "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4",
        "240.0.0.0/4",
    )
)  # fmt: skip
_PUBLIC_V6: Final = ipaddress.IPv6Network("2000::/3")
_CLOSED_V6: Final = tuple(
    ipaddress.IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "3fff::/20")
)  # fmt: skip
_IN_TEXT: Final = lazy_pattern.compile(
    r"[a-z][a-z0-9+.-]*://[^\s'\"\])]+"
    r"|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?![\w.])"
    r"|\[[0-9a-f:]*:[0-9a-f:.]*\](?::\d+)?|(?<![\w:])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){3,7}(?![\w:])"
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def is_loopback(host: str) -> bool:
    """Return whether a host without a port is certainly this machine; a name could be any."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Return whether a host is an address, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address, without the IPv6 address that only wraps it; ValueError if invalid."""
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return mapped or parsed


def is_public(address: str) -> bool:
    """Return whether an address is on the public internet; ValueError if it is not one."""
    parsed = plain(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        embedded = parsed.sixtofour
        if parsed in _NAT64:
            embedded = ipaddress.IPv4Address(int(parsed) & 0xFFFF_FFFF)
        if embedded is None:
            return parsed in _PUBLIC_V6 and not any(parsed in network for network in _CLOSED_V6)
        parsed = embedded
    return not any(parsed in network for network in CLOSED_V4)


def holds_public(network: str) -> bool:
    """Return whether a network has public addresses; ValueError if it is not one."""
    parsed = ipaddress.ip_network(network)
    if isinstance(parsed, ipaddress.IPv6Network):
        closed = any(parsed.subnet_of(block) for block in _CLOSED_V6)
        return parsed.overlaps(_PUBLIC_V6) and not closed
    return not any(parsed.subnet_of(block) for block in CLOSED_V4)


def without_addresses(text: str, addresses: Iterable[str]) -> str:
    """Return a message without URLs, IP addresses and these addresses, or parts of them."""
    parts = {part for address in addresses for part in (address, *_parts(address)) if len(part) > 1}
    for part in sorted(parts, key=len, reverse=True):
        text = re.sub(rf"(?<![\w-]){re.escape(part)}(?![\w-])", "\u2026", text)
    return _IN_TEXT.sub("\u2026", text)


def _parts(address: str) -> tuple[str, ...]:
    try:
        split = urlsplit(address)
        return split.netloc, split.netloc.rpartition("@")[2], split.hostname or "", split.path
    except ValueError:
        return ()
