"""Rules of a network: destinations by name or address, and requests. Pure.

A rule is `host`, `*.host`, `host:port`, an address or a network (`192.0.2.0/24`,
`[2001:db8::1]:443`), or with inspection `METHOD host/path*`. `preset:name` stands for several.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAX_RULE: Final = 300
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*\Z")
_NUMBERS = re.compile(r"[0-9.]+\Z|0x", re.IGNORECASE)
_METHOD = re.compile(r"[A-Z]{1,20}\Z")
_PATH = re.compile(r"/[!$&'()+,./0-9:=@A-Z_a-z~-]*\*?\Z")
_EXAMPLES: Final = "write api.example.com, *.example.com, example.com:443 or 192.0.2.0/24"

PRESETS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "pypi": ("pypi.org:443", "files.pythonhosted.org:443"),
        "npm": ("registry.npmjs.org:443", "registry.yarnpkg.com:443"),
        "debian": (
            "deb.debian.org",
            "security.debian.org",
            "archive.ubuntu.com",
            "security.ubuntu.com",
        ),
        "crates": ("crates.io:443", "index.crates.io:443", "static.crates.io:443"),
        "golang": ("proxy.golang.org:443", "sum.golang.org:443", "storage.googleapis.com:443"),
        "github": (
            "github.com",
            "api.github.com:443",
            "codeload.github.com:443",
            "*.githubusercontent.com:443",
        ),
        "huggingface": ("huggingface.co:443", "*.huggingface.co:443", "*.hf.co:443"),
    }
)


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """One destination: a name or a network, and a port; or some requests to a name."""

    text: str
    host: str | None = None
    network: str | None = None
    port: int | None = None
    method: str | None = None
    path: str | None = None
    """All paths that begin with it, if it ends with an asterisk."""

    @property
    def partial(self) -> bool:
        return self.method is not None or self.path is not None


def rules_of(text: object, presets: Mapping[str, Sequence[str]] = PRESETS) -> list[NetworkRule]:
    """Return the rules that a string stands for; a preset stands for several."""
    if not isinstance(text, str) or not 0 < len(text) <= _MAX_RULE or not text.isascii():
        raise invalid_network(f"{shown(str(text))} is not a valid rule", _EXAMPLES)
    if text.startswith("preset:"):
        name = text.removeprefix("preset:")
        if name not in presets:
            raise invalid_network(f"there is no preset {shown(name)}", did_you_mean(name, presets))
        return [parse_rule(one) for one in presets[name]]
    return [parse_rule(text)]


def parse_rule(text: str) -> NetworkRule:
    """Return one rule. Unusual spellings of addresses are refused, not guessed."""
    method, space, rest = text.strip().rpartition(" ")
    if not space:
        try:
            host, port = _split_port(rest.lower().rstrip("."))
            network = ipaddress.ip_network(host, strict=False)
        except (ValueError, InvalidRequest):
            network = None
        if network is not None and "%" not in host:
            return NetworkRule(text, network=str(network), port=port)
    authority, slash, path = rest.partition("/")
    host, port = _split_port(authority.lower().rstrip("."))
    if not _NAME.match(host) or len(host) > 253 or _NUMBERS.match(host):
        raise invalid_network(f"{shown(text)} is not a valid rule", _EXAMPLES)
    if (space and not _METHOD.match(method)) or (slash and not _plain_path(f"/{path}")):
        raise invalid_network(
            f"{shown(text)} is not a valid rule", "write GET api.example.com/repos/*"
        )
    return NetworkRule(
        text, host=host, port=port, method=method or None, path=f"/{path}" if slash else None
    )


def _plain_path(path: str) -> bool:
    """Whether all servers agree about what a path means."""
    dots = {".", ".."} & set(path.removesuffix("*").split("/"))
    return bool(_PATH.match(path)) and "//" not in path and not dots


def _split_port(text: str) -> tuple[str, int | None]:
    host, port = text, ""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise invalid_network(f"{shown(text)} is not a valid rule", _EXAMPLES)
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not port:
        return host, None
    if not port.isdigit():
        raise invalid_network(f"{shown(text)} is not a valid rule", _EXAMPLES)
    if not 1 <= int(port) <= 65_535:
        raise invalid_network(f"{shown(text)} has no valid port", "use a port from 1 to 65535")
    return host, int(port)


def covers(wide: NetworkRule, narrow: NetworkRule) -> bool:
    """Return whether everything that one rule allows is allowed by another."""
    if wide.port is not None and wide.port != narrow.port:
        return False
    if wide.method is not None and wide.method != narrow.method:
        return False
    if wide.path is not None and not _path_covers(wide.path, narrow.path):
        return False
    if wide.network is not None:
        if narrow.network is None:
            return False
        outer, inner = ipaddress.ip_network(wide.network), ipaddress.ip_network(narrow.network)
        return outer.version == inner.version and inner.subnet_of(outer)  # type: ignore[arg-type]
    if wide.host is None or narrow.host is None:
        return False
    if wide.host.startswith("*."):
        return narrow.host.removeprefix("*").endswith(wide.host[1:]) or narrow.host == wide.host
    return wide.host == narrow.host


def _path_covers(wide: str, narrow: str | None) -> bool:
    if narrow is None:
        return False
    return narrow.startswith(wide[:-1]) if wide.endswith("*") else narrow == wide


def invalid_network(message: str, hint: str) -> InvalidRequest:
    return InvalidRequest(message, hint=hint, field="network")
