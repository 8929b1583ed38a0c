"""Parse image references: registry, repository, tag, digest and platform. Pure.

`python:3.11-slim` is repository library/python of docker.io; a first part that looks like a host
names another registry. Knows nothing of HTTP or of the store. Raises InvalidImage for an invalid
name and InvalidRequest for an invalid platform.
"""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidImage, InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.model.spelling import shown
from sandkasten_runtime.images.image_names import HOST, checked_name

if TYPE_CHECKING:
    from collections.abc import Iterable

DOCKER_HUB: Final = "docker.io"
_HUB_SPELLINGS: Final = frozenset({DOCKER_HUB, "index.docker.io", "registry-1.docker.io"})
_HUB_API: Final = "registry-1.docker.io"


@dataclass(frozen=True, slots=True)
class Reference:
    """`tag` is None if the name has a digest and no tag."""

    registry: str
    repository: str
    tag: str | None
    digest: str | None

    @property
    def api_host(self) -> str:
        """The host that serves the protocol: the hub's is not the one in its names."""
        return _HUB_API if self.registry == DOCKER_HUB else self.registry

    @property
    def wanted(self) -> str:
        """What to request: a digest wins over a tag, because it cannot move."""
        return self.digest or self.tag or "latest"

    @property
    def familiar(self) -> str:
        """The usual spelling: without the hub and its `library`, always with a tag."""
        name = f"{self.registry}/{self.repository}"
        if self.registry == DOCKER_HUB:
            name = self.repository.removeprefix("library/")
        return name + self._suffix

    @property
    def full(self) -> str:
        return f"{self.registry}/{self.repository}{self._suffix}"

    @property
    def _suffix(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{tag}@{self.digest}" if self.digest else tag


def parse_reference(name: object) -> Reference:
    """Parse a name. `host` is this machine's own image and comes from no registry."""
    text = checked_name(name)
    if text == HOST:
        raise InvalidImage(
            "image host is this machine's own /usr and is not pulled",
            hint="name an image of a registry, such as python:3.11-slim",
            image=text,
        )
    rest, _, digest = text.partition("@")
    first, slash, tail = rest.partition("/")
    registry = DOCKER_HUB
    if slash and (first == "localhost" or "." in first or ":" in first or first != first.lower()):
        registry, rest = first.lower(), tail
    if registry in _HUB_SPELLINGS:
        registry = DOCKER_HUB
    repository, _, tag = rest.partition(":")
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    port = registry.partition(":")[2]
    if port and not 1 <= int(port) <= 65535:
        raise InvalidImage(
            f"{shown(text)} names port {port}, which is not a valid port",
            hint="a registry is written host:port/repository:tag",
        )
    return Reference(registry, repository, tag or (None if digest else "latest"), digest or None)


@dataclass(frozen=True, slots=True)
class Platform:
    """`linux/arm64/v8`. An empty variant fits every variant of its architecture."""

    os: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        tail = f"/{self.variant}" if self.variant else ""
        return f"{self.os}/{self.architecture}{tail}"


_MACHINES: Final = {
    "x86_64": ("amd64", ""),
    "aarch64": ("arm64", "v8"),
    "armv8l": ("arm", "v8"),
    "armv7l": ("arm", "v7"),
    "armv6l": ("arm", "v6"),
    "i386": ("386", ""),
    "i686": ("386", ""),
    "loongarch64": ("loong64", ""),
}
_PLATFORM: Final = lazy_pattern.compile(
    r"([a-z0-9]{1,32})/([a-z0-9_]{1,32})(?:/([a-z0-9.]{1,32}))?\Z"
)


def this_platform(machine: str | None = None) -> Platform:
    machine = platform.machine() if machine is None else machine
    architecture, variant = _MACHINES.get(machine, (machine, ""))
    return Platform("linux", architecture, variant)


def parse_platform(text: str) -> Platform:
    match = _PLATFORM.match(text) if len(text) <= 128 else None
    if match is None:
        raise InvalidRequest(
            f"{shown(text)} is not a platform", hint="write linux/amd64 or linux/arm64/v8"
        )
    architecture, variant = _MACHINES.get(match[2], (match[2], ""))
    return Platform(match[1], architecture, match[3] or variant)


def wanted_platform(text: str | None) -> Platform:
    """Return the requested platform; this machine's if none was requested."""
    return this_platform() if text is None else parse_platform(text)


def fit(wanted: Platform, offered: Platform) -> int | None:
    """Return how well an image for `offered` serves `wanted`: 0 is best, None is not at all.

    An older variant runs on a newer processor, not the other way round; an image without a variant
    is the plain one of its architecture.
    """
    if (wanted.os, wanted.architecture) != (offered.os, offered.architecture):
        return None
    if wanted.variant == offered.variant:
        return 0
    if not offered.variant:
        return 1
    have, need = _level(wanted), _level(offered)
    if have is None or need is None or need > have:
        return None
    return 2 + have - need


def best(wanted: Platform, offered: Iterable[Platform]) -> int | None:
    """Return the index of the platform that fits best; the first of two equals."""
    fits = [
        (at, score)
        for at, candidate in enumerate(offered)
        if (score := fit(wanted, candidate)) is not None
    ]
    return min(fits, key=lambda pair: pair[1])[0] if fits else None


def _level(of: Platform) -> int | None:
    # No variant: what every processor of the architecture supports.
    plain = {"amd64": 1, "arm64": 8}
    if not of.variant:
        return plain.get(of.architecture)
    digits = re.match(r"v(\d{1,2})", of.variant)
    return int(digits[1]) if digits else None
