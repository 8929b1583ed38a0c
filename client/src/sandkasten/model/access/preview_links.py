"""Previews: the host name of a port of a sandbox, and the signed links that open it. Pure.

Each port has its own origin, `{port}-{id}.{domain}`, so that a page of one sandbox reaches
neither the API nor another sandbox. The id is written with `-` in place of `_`: TLS libraries
do not match an underscore with a wildcard certificate. Both spellings are read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final, Literal
from urllib.parse import parse_qs, urlsplit

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.model.ids import SandboxId, host_label
from sandkasten.model.numbers import number

LOCAL_DOMAIN: Final = "localhost"
"""Browsers resolve every name below it to this machine."""
DEFAULT_TTL_S: Final = 3600.0
MAX_TTL_S: Final = 7 * 86_400.0
LINK_PARAMETER: Final = "sandkasten_token"
# A label of a host name has at most 63 characters.
_LABEL: Final = lazy_pattern.compile(r"([1-9][0-9]{0,4})-(?:sbx[-_])?([0-9a-f]{16,48})\Z")
_LINK_ID: Final = lazy_pattern.compile(r"[0-9a-f]{16}\Z")
_TOKEN: Final = lazy_pattern.compile(r"([0-9]{1,11})\.([0-9a-f]{16})\.([A-Za-z0-9_-]{43})\Z")
_DOMAIN_LABEL: Final = lazy_pattern.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z")
_PURPOSE: Final = b"sandkasten preview 2\0"

Kind = Literal["link", "cookie"]
"""A link is shown to people and may end up in a history; the cookie that it sets is not one."""
Verdict = Literal["valid", "expired", "revoked", "false"]


@dataclass(frozen=True, slots=True)
class PreviewTarget:
    """One port of one sandbox."""

    sandbox_id: SandboxId
    port: int

    @property
    def label(self) -> str:
        """Return the first label of its host name."""
        return f"{self.port}-{host_label(self.sandbox_id)}"


@dataclass(frozen=True, slots=True)
class SandboxPreviews:
    """Rules for all ports of one sandbox."""

    public: bool | None = None
    """True: all are public. False: the sandbox was created with the request that none is."""
    host: str | None = None
    """The Host that servers see; `${PORT}` stands for the port. None: that of the request."""

    def host_of(self, port: int) -> str | None:
        return None if self.host is None else self.host.replace("${PORT}", str(port))


@dataclass(frozen=True, slots=True)
class Preview:
    """A link to a port. Without `public`, it opens the port only with its token."""

    url: str
    port: int
    public: bool
    expires_at: float | None
    """When the link stops working; None: with its sandbox."""
    link_id: str | None = None
    """The id that revokes the link; None if the port is public."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The content of a token: until when it opens its port, and which link it belongs to."""

    expires_at: int
    link_id: str
    series: int = 0
    """Number of times that all links of the sandbox had been revoked before."""


def domain_of(name: str, domains: tuple[str, ...]) -> str | None:
    """Return the domain of previews that a host name is in."""
    name = name.lower().removesuffix(".")
    return next(
        (domain for domain in domains if name == domain or name.endswith(f".{domain}")), None
    )


def target_of(name: str, domain: str) -> PreviewTarget | None:
    """Return the port that a host name of the domain stands for."""
    label = name.lower().removesuffix(".").removesuffix(domain).removesuffix(".")
    match = _LABEL.match(label)
    if match is None or int(match[1]) > 65_535:
        return None
    return PreviewTarget(SandboxId(f"sbx_{match[2]}"), int(match[1]))


def link_ttl(ttl_s: float | None) -> float:
    """Return for how long a link is valid; InvalidRequest if that is out of range."""
    if ttl_s is None:
        return DEFAULT_TTL_S
    return number("ttl_seconds", ttl_s, low=1, high=MAX_TTL_S)


def sign(key: bytes, kind: Kind, target: PreviewTarget, grant: Grant) -> str:
    """Return a token that opens this port only, until the grant expires."""
    mac = hmac.digest(key, _signed(kind, target, grant), hashlib.sha256)
    encoded = base64.urlsafe_b64encode(mac).decode().rstrip("=")
    return f"{grant.expires_at}.{grant.link_id}.{encoded}"


def verify(
    key: bytes, kind: Kind, target: PreviewTarget, token: str, now: float, *, series: int = 0
) -> Verdict:
    grant = grant_of(token, series)
    if grant is None or not hmac.compare_digest(sign(key, kind, target, grant), token):
        return "false"
    return "valid" if now < grant.expires_at else "expired"


def grant_of(token: str, series: int) -> Grant | None:
    """Return the content of a token, whether it is signed or not."""
    match = _TOKEN.match(token)
    return None if match is None else Grant(int(match[1]), match[2], series)


def link_id_of(text: str) -> str:
    """Return the id of a link that is given by its id or its URL; InvalidRequest if it is none."""
    try:
        query = parse_qs(urlsplit(text).query) if "?" in text else {}
    except ValueError:
        query = {}
    token = _TOKEN.match(query.get(LINK_PARAMETER, [""])[-1])
    name = text if token is None else token[2]
    if not _LINK_ID.match(name):
        raise InvalidRequest(
            f"{text[:80]!r} is not a link to a preview",
            hint="give the URL of the link, or its link_id",
            field="link",
        )
    return name


def checked_domain(name: str, text: str) -> tuple[str, int | None]:
    """Return a domain and the port that links name; InvalidRequest if it is not one."""
    host, _, port = text.strip().lower().removesuffix(".").partition(":")
    labels = host.split(".")
    if (
        len(host) > 190
        or not all(_DOMAIN_LABEL.match(label) for label in labels)
        or labels[-1].isdigit()
        or (port and not (port.isdigit() and 1 <= int(port) <= 65_535))
    ):
        raise InvalidRequest(
            f"{name} must be a domain, got {text[:80]!r}",
            hint="such as preview.example.com, or preview.example.com:8443",
            field=name,
        )
    return host, int(port) if port else None


def _signed(kind: Kind, target: PreviewTarget, grant: Grant) -> bytes:
    parts = (kind, target.sandbox_id, target.port, grant.expires_at, grant.link_id, grant.series)
    return _PURPOSE + "\0".join(str(part) for part in parts).encode()
