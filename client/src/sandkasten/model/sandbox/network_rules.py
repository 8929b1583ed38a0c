"""Rules of a network: destinations by name or address, and requests. Pure.

A rule is `host`, `*.host`, `host:port`, an address or a network (`192.0.2.0/24`,
`[2001:db8::1]:443`), or with inspection `METHOD host/path*`. `preset:name` stands for several.
"""

from __future__ import annotations

import ipaddress
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

_MAX_RULE: Final = 300
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = lazy_pattern.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*\Z")
_NUMBERS = lazy_pattern.compile(r"[0-9.]+\Z|0x", re.IGNORECASE)
_METHOD = lazy_pattern.compile(r"[A-Z]{1,20}\Z")
_PATH = lazy_pattern.compile(r"/[!$&'()+,./0-9:=@A-Z_a-z~-]*\*?\Z")
_EXAMPLES: Final = "write api.example.com, *.example.com, example.com:443 or 192.0.2.0/24"
_ONE_PORT: Final = "a port is one number; write one rule per port"
_PORTS: Final = {"http": 80, "ws": 80, "https": 443, "wss": 443, "ssh": 22, "git": 9418}
_NOT_A_PORT: Final = lazy_pattern.compile(r"(?:[0-9,*-]+|[a-z]+)\Z")
_URL: Final = lazy_pattern.compile(r"([a-z][a-z0-9+-]{0,15})://([^/?#\s]*)", re.IGNORECASE)

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
    """A path. One that ends with an asterisk stands for all paths that begin with the rest."""

    @property
    def partial(self) -> bool:
        return self.method is not None or self.path is not None


def rules_of(text: object, presets: Mapping[str, Sequence[str]] = PRESETS) -> list[NetworkRule]:
    """Return the rules that a string stands for; a preset stands for several."""
    if not isinstance(text, str) or not 0 < len(text) <= _MAX_RULE:
        raise invalid_network(f"{shown(str(text))} is not a valid rule", _EXAMPLES)
    if not text.isascii():
        raise _invalid_rule(text)
    if text.startswith("preset:"):
        name = text.removeprefix("preset:")
        if name not in presets:
            raise invalid_network(f"there is no preset {shown(name)}", did_you_mean(name, presets))
        return [parse_rule(rule) for rule in presets[name]]
    return [parse_rule(text)]


def refuse_bare_presets(
    rules: Iterable[str], presets: Container[str], hosts: Container[str]
) -> None:
    """Raise InvalidRequest for `pypi` where `preset:pypi` was meant."""
    for text in rules:
        if text in presets and text not in hosts:
            raise invalid_network(
                f"{shown(text)} is the name of a preset, not of a host",
                f"did you mean preset:{text}? For a host of this name, write {shown(text + '.')}",
            )


def parse_rule(text: str) -> NetworkRule:
    """Return one rule. Unusual spellings of addresses are refused, not guessed."""
    method, space, rest = text.strip().rpartition(" ")
    if not space:
        try:
            host, port = _split_port(rest.lower().rstrip("."))
            network = ipaddress.ip_network(host, strict=False)
        except ValueError:
            network = None
        if network is not None and "%" not in host:
            return NetworkRule(text, network=str(network), port=port)
    authority, slash, path = rest.partition("/")
    try:
        host, port = _split_port(authority.lower().rstrip("."))
    except ValueError as exc:
        raise _invalid_rule(text) from exc
    valid_name = _NAME.match(host) and len(host) <= 253 and not _NUMBERS.match(host)
    valid_request = (not space or _METHOD.match(method)) and (not slash or _plain_path(f"/{path}"))
    if not valid_name or not valid_request:
        raise _invalid_rule(text)
    return NetworkRule(
        text, host=host, port=port, method=method or None, path=f"/{path}" if slash else None
    )


def _plain_path(path: str) -> bool:
    """Whether all servers agree about what a path means."""
    dots = {".", ".."} & set(path.removesuffix("*").split("/"))
    return bool(_PATH.match(path)) and "//" not in path and not dots


def _split_port(text: str) -> tuple[str, int | None]:
    """Return host and port. Raise ValueError."""
    host, port = text, ""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise ValueError(text)
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not port:
        return host, None
    if not (port.isascii() and port.isdecimal()) or not 1 <= int(port) <= 65_535:
        raise ValueError(text)
    return host, int(port)


def _invalid_rule(text: str) -> InvalidRequest:
    """Return the error for a string that is not a rule; its hint is for what was written."""
    return invalid_network(f"{shown(text)} is not a valid rule", _rule_hint(text))


def _rule_hint(text: str) -> str:
    url = _URL.search(text)
    if url is not None:
        host = url[2].rpartition("@")[2]
        default_port = _PORTS.get(url[1].lower())
        port = "" if default_port is None or re.search(r":\d+\Z", host) else f":{default_port}"
        return f"a rule is a host, not a URL: write {host.lower() or 'api.example.com'}{port}"
    authority = text.strip().rpartition(" ")[2].partition("/")[0]
    port = authority.rpartition(":")[2] if ":" in authority else ""
    if port.isdecimal() and not 1 <= int(port) <= 65_535:
        return "use a port from 1 to 65535"
    if not port.isdecimal() and _NOT_A_PORT.match(port):
        return f"{_ONE_PORT}, such as example.com:443; without one, every port is allowed"
    if "," in text or ";" in text:
        return "write one rule per host: repeat --allow, or give a list"
    if not text.isascii():
        return _ascii_hint(text)
    if "*" in authority.removeprefix("*."):
        return "* is only allowed as the first part, as in *.example.com"
    method, space, _ = text.strip().rpartition(" ")
    if space and _NAME.match(method.lower()) and "." in method:
        return "write one rule per host: repeat --allow, or give a list"
    return "write GET api.example.com/repos/*" if space or "/" in text else _EXAMPLES


def _ascii_hint(text: str) -> str:
    """Return the hint for a name with characters that DNS does not have."""
    try:
        form = text.encode("idna").decode("ascii")
        # The codec implements IDNA 2003, which changes some letters: suggest only a name that it
        # decodes to the same letters.
        valid = form.encode("ascii").decode("idna") == text.lower() and parse_rule(form)
    except (UnicodeError, InvalidRequest):
        valid = False
    return f"write the xn-- form of the name{f': {form}' if valid else ''}"


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
